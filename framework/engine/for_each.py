"""One step for each element of a list: copies of it, each a LangGraph task inside the step's own.

The copies are called in the order of the list, so a copy that ended before a restart is found again
by its place. Only so many are under way at once as can run, however long the list is. What each of
them gave becomes one list under the step's key; a step that does not get through keeps what its
copies left, each under a key of its own, and goes on with the others in the next pass. Since what
LangGraph does for a task grows with the tasks of the superstep, a long list takes several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

import capgraph.telemetry as telemetry
from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import PlannedStep, element_key, plan_key
from capgraph.base.ports import Attempt, Failure, ForEachElement, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.base.value_context import LIST_SUFFIX
from capgraph.engine.step_tasks import Envelope, check_envelope_key, merge_interrupts
from capgraph.planning.references import element_name
from capgraph.state import TurnView

MOST_AT_ONCE = 1000
"""Copies of one step in one superstep."""

_BY_TYPE = ("capability_context_data", "capability_context_labels")


def collects_failures(step: PlannedStep) -> bool:
    """Tell whether the other copies of a step go on when one fails."""
    return (step.get("for_each") or {}).get("on_failure") == "collect"


class ForEachRun:
    """The copies of one step in one pass.

    Args:
        attempt: The step.
        elements: For what it runs.
        spec: Its capability.
        view: The turn as it stands; what copies leave is merged into it.
        call: Calls the LangGraph task of a copy, by the place of its element.
        merge: Takes up what a copy left.

    Attributes:
        is_stopped: Whether no further copy may begin, because one failed.
        has_more: Whether further copies, or those that were put off, run in a superstep of their own.
    """

    def __init__(
        self,
        attempt: Attempt,
        elements: list[Any],
        spec: CapabilitySpec,
        view: TurnView,
        *,
        call: Callable[[int], Awaitable[Envelope | None]],
        merge: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.is_stopped: bool = False
        self.has_more: bool = False
        self._attempt, self._elements, self._spec, self._view = attempt, elements, spec, view
        self._call, self._merge = call, merge
        self._envelopes: dict[int, Envelope] = {}
        self._signals: dict[int, GraphBubbleUp] = {}
        self._failures: dict[int, Failure] = {}
        self._began = asyncio.get_running_loop().time()

    def key(self, number: int) -> str:
        """Return the key of a copy."""
        return element_key(self._attempt.key, number)

    def attempt_at(self, number: int) -> Attempt:
        """Return what is asked for one element."""
        return element_attempt(self._attempt, self._elements, number, self._view)

    async def run(self, window: int) -> list[Envelope]:
        """Run the copies that have not ended yet; return what they left, in order.

        Args:
            window: How many may be under way at once.

        Raises:
            FatalExecutionError: One failed with severity FATAL.
            GraphBubbleUp: Some interrupted themselves; all others have run.
        """
        telemetry.emit(
            telemetry.StepStarted(
                task_objective=self._attempt.objective, **self._attempt.event_fields()
            )
        )
        under_way: set[asyncio.Task[None]] = set()
        try:
            todo = [n for n in range(len(self._elements)) if self._is_free(n)]
            waiting = sum(
                plan_key(key) == self._attempt.key for key in self._view.pending_approvals
            )
            begun = todo[: MOST_AT_ONCE - waiting]
            for number in begun:
                if len(under_way) >= window:
                    under_way = await _wait_for_first(under_way)
                # The call comes now, in the order of the list; only waiting for it is put off.
                task = asyncio.ensure_future(self._watch(number, self._call(number)))
                under_way.add(task)
            while under_way:
                under_way = await _wait_for_first(under_way)
        finally:
            for task in under_way:
                task.cancel()
        if self._signals:
            raise merge_interrupts([self._signals[place] for place in sorted(self._signals)])
        waiting += sum("question" in envelope for envelope in self._envelopes.values())
        put_off = len(self._envelopes) < len(begun)
        self.has_more = put_off or (len(begun) < len(todo) and waiting < MOST_AT_ONCE)
        return [self._envelopes[number] for number in sorted(self._envelopes)]

    async def _watch(self, number: int, call: Awaitable[Envelope | None]) -> None:
        try:
            envelope = check_envelope_key(self.key(number), await call)
        except GraphBubbleUp as signal:
            self._signals[number] = signal
            return
        if not envelope:
            return
        envelope = dict(envelope)
        if (failure := envelope.pop("failure", None)) is not None:
            self._failures[number] = Failure.from_state(failure)
            self.is_stopped = True
        self._envelopes[number] = envelope
        self._merge(envelope["update"])

    def _is_free(self, number: int) -> bool:
        return not self._record(number) and self.key(number) not in self._view.pending_approvals

    def _record(self, number: int) -> Mapping[str, Any] | None:
        """Return how a copy ended; ``None`` for one that has to run."""
        record = self._view.results.get(self.key(number)) or {}
        return record if record.get("success") or record.get("skipped") else None

    def record(self) -> StepRecord | None:
        """Return what the step as a whole left behind; ``None`` while copies have not ended."""
        failed = sorted(self._failures, key=lambda n: (not self._failures[n].final, n))
        if failed:
            first = self._failures[failed[0]]
            message = f"Element {failed[0]} of {len(self._elements)}: {first.message}"
            return self._failed_record(replace(first, message=message, key=self._attempt.key))
        records = [self._record(number) for number in range(len(self._elements))]
        if None in records:
            return None
        done = [n for n, record in enumerate(records) if record and record.get("success")]
        if records and not done:
            return self._failed_record(self._no_results_failure(records[0] or {}))
        missing = tuple(self.key(n) for n in range(len(records)) if n not in set(done))
        found = self._make_record(
            success=True,
            contexts=self._collect_contexts(done),
            labels=self._collect_labels(done),
            elements=len(records),
            missing=missing,
        )
        told = {"duration": found.execution_time, **self._attempt.event_fields()}
        telemetry.emit(telemetry.StepFinished(outputs=found.outputs, **told))
        return found

    def without_collected_data(self) -> list[Envelope]:
        """Return what the copies left without what stands in the step's list."""
        found = []
        for number, envelope in sorted(self._envelopes.items()):
            key, update = self.key(number), dict(envelope["update"])
            for name in _BY_TYPE:
                kinds = update.pop(name, {}).items()
                rest = {kind: {k: v for k, v in kept.items() if k != key} for kind, kept in kinds}
                if rest := {kind: kept for kind, kept in rest.items() if kept}:
                    update[name] = rest
            found.append({**envelope, "update": update})
        return found

    def _make_record(self, **found: Any) -> StepRecord:
        spent = asyncio.get_running_loop().time() - self._began
        return StepRecord.from_attempt(self._attempt, execution_time=spent, **found)

    def _failed_record(self, error: Failure) -> StepRecord:
        found = self._make_record(error=error)
        told = {"duration": found.execution_time, **self._attempt.event_fields()}
        telemetry.emit(
            telemetry.StepFailed(severity=error.severity.value, message=error.message, **told)
        )
        return found

    def _no_results_failure(self, record: Mapping[str, Any]) -> Failure:
        """Say that no element of a list gave anything."""
        return Failure(
            ErrorSeverity(record.get("severity", ErrorSeverity.CRITICAL)),
            f"None of {len(self._elements)} elements gave a result: {record.get('error')}",
            capability=self._attempt.capability,
            key=self._attempt.key,
        )

    def _outputs(self, number: int) -> Mapping[str, str]:
        return self._view.results[self.key(number)].get("outputs") or {}

    def _collect_contexts(self, done: list[int]) -> dict[str, dict[str, Any]]:
        """Put together what the copies gave: one list for each type, in order."""
        contexts = self._view.contexts
        expected = self._attempt.step.get("expected_output")
        kinds = [expected] if expected else self._spec.provides
        lists: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for number in done:
            for kind, key in self._outputs(number).items():
                lists.setdefault(kind, []).append(contexts[kind][key])
        return {kind + LIST_SUFFIX: {self._attempt.key: items} for kind, items in lists.items()}

    def _collect_labels(self, done: list[int]) -> dict[str, dict[str, str]]:
        known = self._view.labels
        found: dict[str, dict[str, str]] = {}
        for number in done if known else ():
            for kind, key in self._outputs(number).items():
                own_labels = known.get(kind, {}).get(key, {})
                found.setdefault(kind + LIST_SUFFIX, {}).update(own_labels)
        return {kind: labels for kind, labels in found.items() if labels}


def element_attempt(attempt: Attempt, elements: list[Any], number: int, view: TurnView) -> Attempt:
    """Return what is asked for one element of a step's list.

    Args:
        attempt: The step.
        elements: The list.
        number: Which element, from 0.
        view: The turn; a person may have changed the parameters of a copy.
    """
    step, key = attempt.step, element_key(attempt.key, number)
    element = ForEachElement(element_name(step) or "item", elements[number], number, len(elements))
    own_step = PlannedStep(**{**step, "context_key": key})
    decided = view.decisions.get(key) or {}
    if "parameters" in decided and decided["plan"] == view.plan_id:
        own_step["parameters"] = decided["parameters"]
    return replace(attempt, key=key, step=own_step, element=element)


async def _wait_for_first(under_way: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until one has ended; return the others.

    Raises:
        BaseException: What one of them raised.
    """
    done, rest = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest
