"""What LangGraph saves with a step's task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.func import task

from capgraph.base.errors import ErrorSeverity, InfrastructureError
from capgraph.base.ports import FlowPolicy, StepRecord
from capgraph.configs.run_context import using
from capgraph.engine.bind import running_journal
from capgraph.governance.flow import InformationFlow
from capgraph.pipeline.failures import TOOL_ERROR
from capgraph.pipeline.job import LABELS, Hearing, current_hearing, hear
from capgraph.pipeline.state_update import to_state
from capgraph.registry import Registry

T = TypeVar("T")
Envelope = dict[str, Any]
"""``key`` and ``update``, and where there is one ``question``, ``failure``, or ``plan`` with its
author (``by``); of a step that ran for each element of a list also what its ``copies`` left, and
whether there are ``more`` of them."""

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


def own(key: str, envelope: Envelope | None) -> Envelope | None:
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


def let_go(record: StepRecord) -> StepRecord:
    """Return the record of a step without which the plan goes on, whatever it failed of.

    What ends the turn ends it all the same, and a try that was cut short is none.
    """
    error = record.error
    if error is None or not error.final or error.metadata.get("code") in _ENDS_THE_TURN:
        return record
    return replace(record, skipped=error.message)


def observed(record: StepRecord) -> StepRecord:
    """Return the record of a step whose failure the planner is shown, in place of ending the turn.

    A failure that somebody classified means what they said, except that a planner is asked for
    another plan either way.
    """
    error, after = record.error, let_go(record)
    if error is None or after is record or "effect_done" in error.metadata:
        return record
    told = error.unclassified or error.metadata.get("category") == TOOL_ERROR
    replans = error.severity is ErrorSeverity.REPLANNING
    if not (told or replans) or "rejected_by_person" in error.metadata:
        return record
    return replace(after, observed=True)


@contextmanager
def hearing(known: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Have what runs in the block carry labels, those of what is around among them.

    Args:
        known: Labels of what it has before it, with their sources.

    Yields:
        Takes up the labels of what is read in the block.
    """
    around, told = current_hearing(), dict[str, str]()
    before = {**around.before, **known} if around is not None else known
    with using(labels=Hearing(before, told, _flow)):
        yield told


def _flow() -> FlowPolicy:
    return InformationFlow().of(Registry(infrastructure=()), lambda: running_journal().durable)


def as_task(name: str, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Begin work as a LangGraph task: what it gave is kept, so that none is done twice.

    The labels of what it heard meanwhile are kept beside it, and heard wherever it is handed out.
    """
    around = current_hearing()
    known = around.labels if around is not None else {}

    async def body() -> Any:
        with hearing(known) as told:
            gave = await work()
        return {LABELS: told, "gave": gave} if told else gave

    decorate: Any = task(name=name)
    return _told(decorate(body)())


async def _told(begun: Awaitable[Any]) -> Any:
    found = await begun
    if isinstance(found, Mapping) and LABELS in found:
        hear(found[LABELS])
        return found["gave"]
    return found


async def side_by_side(begun: Iterable[Awaitable[T]]) -> list[T]:
    """Return what several tasks gave; an error comes before questions, and those as one signal."""
    found = await asyncio.gather(*begun, return_exceptions=True)
    signals = [item for item in found if isinstance(item, GraphBubbleUp)]
    for item in found:
        if isinstance(item, BaseException) and item not in signals:
            raise item
    if signals:
        raise one_signal(signals)
    return [item for item in found if not isinstance(item, BaseException)]


def one_signal(signals: Sequence[GraphBubbleUp]) -> GraphBubbleUp:
    """Return one signal for those of several steps: all their questions at once."""
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    others = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if others:
        return others[0]
    # A question inside a graph that a step calls comes out of its task and of its node.
    asked = {item.id: item for signal in interrupts for item in signal.args[0]}
    return GraphInterrupt(tuple(asked.values()))
