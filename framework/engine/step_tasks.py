"""Step envelopes, LangGraph tasks, and label scopes."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.func import task

from capgraph.base.errors import ErrorSeverity, InfrastructureError
from capgraph.base.ports import Attempt, FlowPolicy, StepRecord
from capgraph.configs.run_context import override_run_context
from capgraph.governance.information_flow import InformationFlow
from capgraph.helpers.plain_data import copy_plain
from capgraph.pipeline.failures import TOOL_ERROR
from capgraph.pipeline.journal import running_journal
from capgraph.pipeline.run_config import restore_turn_caller
from capgraph.pipeline.state_update import to_state
from capgraph.pipeline.step_execution import (
    LABELS_KEY,
    LabelScope,
    current_label_scope,
    propagate_labels,
)
from capgraph.registry import Registry

T = TypeVar("T")
Envelope = dict[str, Any]
"""Saved result of a step's task. It contains ``key`` and ``update``, and if present ``question``,
``failure``, or ``plan`` with its author (``by``). For a ``for_each`` step, it also contains the
``copies`` and whether there are ``more``.
"""

AskScope = Callable[[], AbstractAsyncContextManager[None]]
"""Creates the context manager in which a request asks a person."""

_ENDS_THE_TURN = frozenset({"CG-LIMIT", "CG-STOPPED"})


def envelope_of(record: StepRecord, plan: str) -> Envelope:
    """Create the serializable result of a step, which LangGraph saves with the step's task.

    Args:
        record: Record of the step.
        plan: ID of the step's plan.
    """
    envelope: Envelope = {"key": record.key, "update": to_state(record, plan)}
    if record.error is not None and record.skipped is None:
        envelope["failure"] = record.error.to_state()
    if record.plan is not None:
        envelope |= {"plan": record.plan, "by": record.capability}
    return envelope


def check_envelope_key(key: str, envelope: Envelope | None) -> Envelope | None:
    """Validate that a saved step result (envelope) belongs to a step, and return the result.

    Raises:
        InfrastructureError: The envelope belongs to another step.
    """
    if envelope and envelope.get("key") != key:
        raise InfrastructureError(
            f"The saved result for step {key!r} belongs to another step.",
            fix="start a new thread, because a graph with other steps saved this thread.",
        )
    return envelope


def skip_optional_failure(record: StepRecord) -> StepRecord:
    """Treat the failure of an optional step as a skip, so that the plan continues.

    Failures that end the turn, and attempts that were stopped early, are returned unchanged.
    """
    error = record.error
    if error is None or not error.final or error.metadata.get("code") in _ENDS_THE_TURN:
        return record
    return replace(record, skipped=error.message)


def mark_observed(record: StepRecord, attempt: Attempt) -> StepRecord:
    """Mark a step's failure for review by the planner, so that the turn continues.

    A failure whose declared severity is not REPLANNING is returned unchanged.
    """
    error, after = record.error, skip_optional_failure(record)
    if error is None or after is record or "effect_done" in error.metadata:
        return record
    is_unexplained = error.unclassified or error.metadata.get("category") == TOOL_ERROR
    replans = error.severity is ErrorSeverity.REPLANNING
    if not (is_unexplained or replans) or "rejected_by_person" in error.metadata:
        return record
    parameters = copy_plain(attempt.step.get("parameters") or {})
    return replace(after, observed=True, values=parameters)


@contextmanager
def label_scope(labels: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Context manager that attaches labels (provenance tags) to all data produced in its block.

    Args:
        labels: Labels of the data at the start of the block, with their sources.

    Yields:
        A dictionary that collects the labels of data that is read in the block.
    """
    outer, collected = current_label_scope(), dict[str, str]()
    inherited = {**outer.inherited, **labels} if outer is not None else labels
    with override_run_context(labels=LabelScope(inherited, collected, _create_default_flow)):
        yield collected


def _create_default_flow() -> FlowPolicy:
    return InformationFlow().bind(Registry(infrastructure=()), lambda: running_journal().is_durable)


def run_as_task(name: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Run a function as a LangGraph task, so that a resumed run reuses the saved result.

    The data labels (provenance tags) that the function collects are saved with the result.
    """
    outer = current_label_scope()
    labels = outer.labels if outer is not None else {}

    async def body() -> Any:
        with label_scope(labels) as collected, restore_turn_caller():
            result = await work()
        return {LABELS_KEY: collected, "gave": result} if collected else result

    decorate: Any = task(name=name)
    return _collect_labels(decorate(body)())


async def _collect_labels(task_result: Awaitable[Any]) -> Any:
    saved = await task_result
    if isinstance(saved, Mapping) and LABELS_KEY in saved:
        propagate_labels(saved[LABELS_KEY])
        return saved["gave"]
    return saved


async def gather_tasks(tasks: Iterable[Awaitable[T]]) -> list[T]:
    """Run tasks concurrently and return their results in order.

    If a task raises an error, the error takes precedence over interrupts. Interrupts of several
    tasks are merged and raised as one.
    """
    results = await asyncio.gather(*tasks, return_exceptions=True)
    signals = [item for item in results if isinstance(item, GraphBubbleUp)]
    for item in results:
        if isinstance(item, BaseException) and item not in signals:
            raise item
    if signals:
        raise merge_interrupts(signals)
    return [item for item in results if not isinstance(item, BaseException)]


class ConcurrentRequests:
    """Coordinator for concurrent capability calls in one node, such as ``ToolNode`` calls.

    An interrupt ends the node, which would cancel the remaining calls in the middle of their
    effects. Interrupts are therefore held back until all calls have ended, and are then raised
    together. LangGraph matches answers to interrupts by order, so calls ask their questions in
    the order in which they started.

    If the node catches an interrupt, for example by using ``with_fallbacks``, the next call
    raises the interrupt again.
    """

    def __init__(self) -> None:
        self._settled: list[asyncio.Event] = []
        self._running = 0
        self._idle = asyncio.Event()
        self._signals: list[GraphInterrupt] = []

    @asynccontextmanager
    async def request(self) -> AsyncIterator[AskScope]:
        """Context manager for one capability call, during which the call may ask a person.

        The yielded value creates a context manager in which the call must ask its question.
        """
        if self._signals and not self._running:
            raise merge_interrupts(self._signals)  # the node caught it and continued
        before, settled = [*self._settled], asyncio.Event()
        self._settled.append(settled)
        self._running += 1
        self._idle.clear()

        @asynccontextmanager
        async def asking() -> AsyncIterator[None]:
            for event in before:
                await event.wait()
            yield
            settled.set()

        try:
            yield asking
        except GraphInterrupt as signal:
            self._signals.append(signal)
            self._end_request(settled)
            await self._idle.wait()
            raise merge_interrupts(self._signals) from None
        except BaseException:
            self._end_request(settled)
            raise
        self._end_request(settled)

    def _end_request(self, settled: asyncio.Event) -> None:
        settled.set()
        self._running -= 1
        if not self._running:
            self._idle.set()


@asynccontextmanager
async def single_request() -> AsyncIterator[AskScope]:
    """Context manager for a capability call that has no concurrent calls.

    See :class:`ConcurrentRequests` for concurrent calls.
    """
    yield nullcontext


def merge_interrupts(signals: Sequence[GraphBubbleUp]) -> GraphBubbleUp:
    """Merge the interrupts of several steps into a single ``GraphInterrupt``.

    A control-flow exception of any other type takes precedence and is returned unchanged.
    """
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    other_signals = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if other_signals:
        return other_signals[0]
    # An interrupt of a nested graph is raised by its task and again by its node.
    questions = {item.id: item for signal in interrupts for item in signal.args[0]}
    return GraphInterrupt(tuple(questions.values()))
