"""What LangGraph saves with a step's task."""

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
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.func import task

from capgraph.base.errors import ErrorSeverity, InfrastructureError
from capgraph.base.ports import FlowPolicy, StepRecord
from capgraph.configs.run_context import override_run_context
from capgraph.governance.information_flow import InformationFlow
from capgraph.pipeline.failures import TOOL_ERROR
from capgraph.pipeline.journal import running_journal
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
"""``key`` and ``update``, and where there is one ``question``, ``failure``, or ``plan`` with its
author (``by``); of a step that ran for each element of a list also what its ``copies`` left, and
whether there are ``more`` of them."""

AskScope = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the block in which a request asks a person."""

_ENDS_THE_TURN = frozenset({"CG-LIMIT", "CG-STOPPED"})


def envelope_of(record: StepRecord, plan: str) -> Envelope:
    """Return a record in the form that LangGraph saves with the step's task.

    Args:
        record: What the step left behind.
        plan: The stamp of its plan.
    """
    found: Envelope = {"key": record.key, "update": to_state(record, plan)}
    if record.error is not None and record.skipped is None:
        found["failure"] = record.error.to_state()
    if record.plan is not None:
        found |= {"plan": record.plan, "by": record.capability}
    return found


def check_envelope_key(key: str, envelope: Envelope | None) -> Envelope | None:
    """Return what came back for a step; its body need not have run.

    Raises:
        InfrastructureError: It is another step's.
    """
    if envelope and envelope.get("key") != key:
        raise InfrastructureError(
            f"The saved result of another step came back for {key!r}.",
            fix="Start a new thread; this one was saved by a graph with other steps.",
        )
    return envelope


def skip_optional_failure(record: StepRecord) -> StepRecord:
    """Return the record of a step without which the plan goes on, whatever it failed of.

    What ends the turn ends it all the same, and a try that was cut short is none.
    """
    error = record.error
    if error is None or not error.final or error.metadata.get("code") in _ENDS_THE_TURN:
        return record
    return replace(record, skipped=error.message)


def mark_observed(record: StepRecord) -> StepRecord:
    """Return the record of a step whose failure the planner is shown, in place of ending the turn.

    A failure that somebody classified means what they said, except that a planner is asked for
    another plan either way.
    """
    error, after = record.error, skip_optional_failure(record)
    if error is None or after is record or "effect_done" in error.metadata:
        return record
    told = error.unclassified or error.metadata.get("category") == TOOL_ERROR
    replans = error.severity is ErrorSeverity.REPLANNING
    if not (told or replans) or "rejected_by_person" in error.metadata:
        return record
    return replace(after, observed=True)


@contextmanager
def label_scope(labels: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Have what runs in the block carry labels, those of what is around among them.

    Args:
        labels: Labels of what it has before it, with their sources.

    Yields:
        Takes up the labels of what is read in the block.
    """
    around, told = current_label_scope(), dict[str, str]()
    before = {**around.inherited, **labels} if around is not None else labels
    with override_run_context(labels=LabelScope(before, told, _default_flow)):
        yield told


def _default_flow() -> FlowPolicy:
    return InformationFlow().bind(Registry(infrastructure=()), lambda: running_journal().is_durable)


def run_as_task(name: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Begin work as a LangGraph task: what it gave is kept, so that none is done twice.

    The labels of what it heard meanwhile are kept beside it, and heard wherever it is handed out.
    """
    around = current_label_scope()
    known = around.labels if around is not None else {}

    async def body() -> Any:
        with label_scope(known) as told:
            gave = await work()
        return {LABELS_KEY: told, "gave": gave} if told else gave

    decorate: Any = task(name=name)
    return _collect_labels(decorate(body)())


async def _collect_labels(task_result: Awaitable[Any]) -> Any:
    found = await task_result
    if isinstance(found, Mapping) and LABELS_KEY in found:
        propagate_labels(found[LABELS_KEY])
        return found["gave"]
    return found


async def gather_tasks(tasks: Iterable[Awaitable[T]]) -> list[T]:
    """Return what several tasks gave; an error comes before questions, and those as one signal."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    signals = [item for item in found if isinstance(item, GraphBubbleUp)]
    for item in found:
        if isinstance(item, BaseException) and item not in signals:
            raise item
    if signals:
        raise merge_interrupts(signals)
    return [item for item in found if not isinstance(item, BaseException)]


class ConcurrentRequests:
    """Requests that one run of a node makes side by side, such as the calls of a ``ToolNode``.

    A question of one ends the node's run, and would cut off another in the middle of its effect.
    So a question waits for the requests beside it, and comes out together with theirs. LangGraph
    finds answers by the order of the questions, so the requests ask in the order in which they
    began.

    A node that goes on after a question, as ``with_fallbacks`` makes it, would hide it. The next
    request raises it again.
    """

    def __init__(self) -> None:
        self._settled: list[asyncio.Event] = []
        self._running = 0
        self._idle = asyncio.Event()
        self._signals: list[GraphInterrupt] = []

    @asynccontextmanager
    async def request(self) -> AsyncIterator[AskScope]:
        """Run a request in the block; it asks inside the context manager that it is given."""
        if self._signals and not self._running:
            raise merge_interrupts(self._signals)  # the code of the node caught it, and went on
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
    """Run a request that has none beside it; see :class:`RequestsSideBySide`."""
    yield nullcontext


def merge_interrupts(signals: Sequence[GraphBubbleUp]) -> GraphBubbleUp:
    """Return one signal for those of several steps: all their questions at once."""
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    others = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if others:
        return others[0]
    # A question inside a graph that a step calls comes out of its task and of its node.
    asked = {item.id: item for signal in interrupts for item in signal.args[0]}
    return GraphInterrupt(tuple(asked.values()))
