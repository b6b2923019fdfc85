"""Execution of a ``for_each`` step: one copy per element, each in a LangGraph task.

The copies are called in list order, so that a copy that finished before a restart is found by its
position. The number of concurrent copies is limited. If all copies finish, their results become one
list under the step's key. Otherwise, the step keeps the results of finished copies under separate
keys and continues with the others in the next pass. The cost of a LangGraph task grows with the
number of tasks in the superstep, so a long list takes several supersteps.
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
from capgraph.pipeline.state_update import MERGED_BY_TYPE
from capgraph.planning.references import element_name
from capgraph.state import TurnView

MOST_AT_ONCE = 1000
"""Maximum number of copies of one step in a superstep."""


def collects_failures(step: PlannedStep) -> bool:
    """Return True if a ``for_each`` step continues after one of its copies fails."""
    return (step.get("for_each") or {}).get("on_failure") == "collect"


class ForEachRun:
    """Execution of a ``for_each`` step: one copy of the step for each list element.

    Args:
        attempt: Attempt of the whole step.
        elements: Elements of the list.
        spec: Declarations of the capability.
        view: Current state of the turn, into which the results of copies are merged.
        call: Function that calls the LangGraph task of a copy, by the index of its element.
        merge: Function that merges the update of a copy into the state.

    Attributes:
        is_stopped: True if no further copy may start because a copy failed.
        has_more: True if further copies run in the next superstep.
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
        """Return the context key of the copy that processes the element with this index."""
        return element_key(self._attempt.key, number)

    def attempt_at(self, number: int) -> Attempt:
        """Create the attempt that processes the list element with this index."""
        return create_element_attempt(self._attempt, self._elements, number, self._view)

    async def run(self, window: int) -> list[Envelope]:
        """Run the unfinished copies of a ``for_each`` step.

        Return the result envelopes of the copies in list order.

        Args:
            window: Maximum number of concurrent copies.

        Raises:
            FatalExecutionError: A copy failed with severity FATAL.
            GraphBubbleUp: A copy raised an interrupt. All other copies have run.
        """
        telemetry.emit(
            telemetry.StepStarted(
                task_objective=self._attempt.objective, **self._attempt.event_fields()
            )
        )
        under_way: set[asyncio.Task[None]] = set()
        try:
            unfinished = [n for n in range(len(self._elements)) if self._is_free(n)]
            waiting = sum(
                plan_key(key) == self._attempt.key for key in self._view.pending_approvals
            )
            started = unfinished[: MOST_AT_ONCE - waiting]
            for number in started:
                if len(under_way) >= window:
                    under_way = await _wait_for_first(under_way)
                # Make the call now to keep the list order, and await it later.
                task = asyncio.ensure_future(self._wait_for_copy(number, self._call(number)))
                under_way.add(task)
            while under_way:
                under_way = await _wait_for_first(under_way)
        finally:
            for task in under_way:
                task.cancel()
        if self._signals:
            raise merge_interrupts([self._signals[index] for index in sorted(self._signals)])
        waiting += sum("question" in envelope for envelope in self._envelopes.values())
        put_off = len(self._envelopes) < len(started)
        self.has_more = put_off or (len(started) < len(unfinished) and waiting < MOST_AT_ONCE)
        return [self._envelopes[number] for number in sorted(self._envelopes)]

    async def _wait_for_copy(self, number: int, call: Awaitable[Envelope | None]) -> None:
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
        return (
            not self._find_record(number) and self.key(number) not in self._view.pending_approvals
        )

    def _find_record(self, number: int) -> Mapping[str, Any] | None:
        """Return the result entry of a finished copy, or ``None`` if the copy still has to run."""
        record = self._view.results.get(self.key(number)) or {}
        return record if record.get("success") or record.get("skipped") else None

    def record(self) -> StepRecord | None:
        """Return the record of the ``for_each`` step, or ``None`` if copies are unfinished."""
        failed = sorted(self._failures, key=lambda n: (not self._failures[n].final, n))
        if failed:
            first = self._failures[failed[0]]
            message = f"Element {failed[0]} of {len(self._elements)}: {first.message}"
            return self._create_failed_record(
                replace(first, message=message, key=self._attempt.key)
            )
        records = [self._find_record(number) for number in range(len(self._elements))]
        if None in records:
            return None
        finished = [n for n, record in enumerate(records) if record and record.get("success")]
        if records and not finished:
            return self._create_failed_record(self._create_no_results_failure(records[0] or {}))
        missing = tuple(self.key(n) for n in range(len(records)) if n not in set(finished))
        result = self._create_record(
            success=True,
            contexts=self._collect_contexts(finished),
            labels=self._collect_labels(finished),
            elements=len(records),
            missing=missing,
        )
        fields = {"duration": result.execution_time, **self._attempt.event_fields()}
        telemetry.emit(telemetry.StepFinished(outputs=result.outputs, **fields))
        return result

    def without_collected_data(self) -> list[Envelope]:
        """Return the copies' result envelopes without data that the step's result list contains."""
        envelopes = []
        for number, envelope in sorted(self._envelopes.items()):
            key, update = self.key(number), dict(envelope["update"])
            for name in MERGED_BY_TYPE:
                kinds = update.pop(name, {}).items()
                remaining = {
                    kind: {k: v for k, v in entries.items() if k != key} for kind, entries in kinds
                }
                if remaining := {kind: entries for kind, entries in remaining.items() if entries}:
                    update[name] = remaining
            envelopes.append({**envelope, "update": update})
        return envelopes

    def _create_record(self, **found: Any) -> StepRecord:
        spent = asyncio.get_running_loop().time() - self._began
        return StepRecord.from_attempt(self._attempt, execution_time=spent, **found)

    def _create_failed_record(self, error: Failure) -> StepRecord:
        record = self._create_record(error=error)
        fields = {"duration": record.execution_time, **self._attempt.event_fields()}
        telemetry.emit(
            telemetry.StepFailed(severity=error.severity.value, message=error.message, **fields)
        )
        return record

    def _create_no_results_failure(self, record: Mapping[str, Any]) -> Failure:
        """Create the failure for a ``for_each`` step in which no copy succeeded."""
        return Failure(
            ErrorSeverity(record.get("severity", ErrorSeverity.CRITICAL)),
            f"None of {len(self._elements)} elements has a result: {record.get('error')}",
            capability=self._attempt.capability,
            key=self._attempt.key,
        )

    def _find_outputs(self, number: int) -> Mapping[str, str]:
        return self._view.results[self.key(number)].get("outputs") or {}

    def _collect_contexts(self, finished: list[int]) -> dict[str, dict[str, Any]]:
        """Collect the results of the copies into one list per context type, in list order."""
        contexts = self._view.contexts
        expected = self._attempt.step.get("expected_output")
        kinds = [expected] if expected else self._spec.provides
        lists: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for number in finished:
            for kind, key in self._find_outputs(number).items():
                lists.setdefault(kind, []).append(contexts[kind][key])
        return {kind + LIST_SUFFIX: {self._attempt.key: items} for kind, items in lists.items()}

    def _collect_labels(self, finished: list[int]) -> dict[str, dict[str, str]]:
        stored_labels = self._view.labels
        found: dict[str, dict[str, str]] = {}
        for number in finished if stored_labels else ():
            for kind, key in self._find_outputs(number).items():
                own_labels = stored_labels.get(kind, {}).get(key, {})
                found.setdefault(kind + LIST_SUFFIX, {}).update(own_labels)
        return {kind: labels for kind, labels in found.items() if labels}


def create_element_attempt(
    attempt: Attempt, elements: list[Any], number: int, view: TurnView
) -> Attempt:
    """Create the attempt that processes one list element of a ``for_each`` step.

    Args:
        attempt: Attempt of the whole step.
        elements: Elements of the list.
        number: Index of the element, starting at 0.
        view: Current state of the turn, which may contain parameters that a person edited.
    """
    step, key = attempt.step, element_key(attempt.key, number)
    element = ForEachElement(element_name(step) or "item", elements[number], number, len(elements))
    own_step = PlannedStep(**{**step, "context_key": key})
    decided = view.decisions.get(key) or {}
    if "parameters" in decided and decided["plan"] == view.plan_id:
        own_step["parameters"] = decided["parameters"]
    return replace(attempt, key=key, step=own_step, element=element)


async def _wait_for_first(under_way: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until at least one task finishes, and return the tasks that are still running.

    Raises:
        BaseException: A finished task raised this exception.
    """
    done, pending = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return pending
