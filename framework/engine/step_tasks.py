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
    """Return a step record in the form that LangGraph saves with the step's task.

    Args:
        record: Record of the step.
        plan: ID of its plan.
    """
    envelope: Envelope = {"key": record.key, "update": to_state(record, plan)}
    if record.error is not None and record.skipped is None:
        envelope["failure"] = record.error.to_state()
    if record.plan is not None:
        envelope |= {"plan": record.plan, "by": record.capability}
    return envelope


def check_envelope_key(key: str, envelope: Envelope | None) -> Envelope | None:
    """Return the saved result of a step's task after checking its key.

    Raises:
        InfrastructureError: It belongs to another step.
    """
    if envelope and envelope.get("key") != key:
        raise InfrastructureError(
            f"The saved result for step {key!r} belongs to another step.",
            fix="start a new thread; a graph with other steps saved this one.",
        )
    return envelope


def skip_optional_failure(record: StepRecord) -> StepRecord:
    """Return the record of a failed optional step, without which the plan continues.

    Failures that end the turn, and attempts that were cut short, are returned unchanged.
    """
    error = record.error
    if error is None or not error.final or error.metadata.get("code") in _ENDS_THE_TURN:
        return record
    return replace(record, skipped=error.message)


def mark_observed(record: StepRecord, attempt: Attempt) -> StepRecord:
    """Return the record of a failure that the planner is shown instead of ending the turn.

    A failure that was classified explicitly keeps its meaning, except that REPLANNING leads to a
    new plan in both cases.
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
    """Open a label scope: code in the block carries the given labels and the enclosing ones.

    Args:
        labels: Labels of the data at the start of the block, with their sources.

    Yields:
        A dictionary that collects the labels of data that is read in the block.
    """
    outer, collected = current_label_scope(), dict[str, str]()
    inherited = {**outer.inherited, **labels} if outer is not None else labels
    with override_run_context(labels=LabelScope(inherited, collected, _default_flow)):
        yield collected


def _default_flow() -> FlowPolicy:
    return InformationFlow().bind(Registry(infrastructure=()), lambda: running_journal().is_durable)


def run_as_task(name: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Run a function as a LangGraph task, so that its result is saved and it is not repeated.

    The labels that the function collects are saved with the result and apply wherever it is used.
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
    """Return the results of concurrent tasks.

    An error takes precedence over interrupts, which are merged into one signal.
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
    """Concurrent requests of one node run, such as the calls of a ``ToolNode``.

    An interrupt of one request ends the node run and would cancel other requests during their
    effects. An interrupt therefore waits for the other requests, and all interrupts are raised
    together. LangGraph matches answers by the order of the interrupts, so the requests ask in the
    order in which they started.

    A node that catches an interrupt, for example with ``with_fallbacks``, would hide it. The next
    request raises it again.
    """

    def __init__(self) -> None:
        self._settled: list[asyncio.Event] = []
        self._running = 0
        self._idle = asyncio.Event()
        self._signals: list[GraphInterrupt] = []

    @asynccontextmanager
    async def request(self) -> AsyncIterator[AskScope]:
        """Run a request in the block; it asks a person inside the yielded context manager."""
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
            self._end(settled)
            await self._idle.wait()
            raise merge_interrupts(self._signals) from None
        except BaseException:
            self._end(settled)
            raise
        self._end(settled)

    def _end(self, settled: asyncio.Event) -> None:
        settled.set()
        self._running -= 1
        if not self._running:
            self._idle.set()


@asynccontextmanager
async def single_request() -> AsyncIterator[AskScope]:
    """Run a request without concurrent ones; see :class:`ConcurrentRequests`."""
    yield nullcontext


def merge_interrupts(signals: Sequence[GraphBubbleUp]) -> GraphBubbleUp:
    """Merge the signals of several steps into one signal with all their interrupts.

    A signal other than an interrupt takes precedence.
    """
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    other_signals = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if other_signals:
        return other_signals[0]
    # An interrupt of a nested graph is raised by its task and again by its node.
    questions = {item.id: item for signal in interrupts for item in signal.args[0]}
    return GraphInterrupt(tuple(questions.values()))
