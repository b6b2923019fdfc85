"""A capability inside another one: approvals, effects and questions hold there as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity, ValidationError
from capgraph.stores import open_saver
from tests.support.doors import question
from tests.support.one_door import (
    Reading,
    Receipt,
    bound,
    in_a_row,
    payer,
    planned,
    registered,
    said,
    status,
)

THREAD: Any = {"configurable": {"thread_id": "1"}}
Ask = Callable[[], Awaitable[Any]]
pytestmark = pytest.mark.parametrize("effect", ["none", "once"])


@pytest.fixture(params=["by its node", "by a graph"])
def way(request: pytest.FixtureRequest) -> str:
    """How the outer capability reaches the inner one."""
    return str(request.param)


def _graph(way: str, pay: Any, effect: str, body: Callable[[Ask, int], Awaitable[Any]]) -> Any:
    """Return a graph whose capability ``outer`` asks for ``pay`` in its body."""
    node, tries = bound(Receipt, pay).node(pay), []

    async def execute(self: Any) -> Reading:
        async def ask() -> Any:
            if way == "by its node":
                out = await node(dict(self.state))
            else:
                out = await in_a_row(pay=node).ainvoke({"messages": [("user", "pay")]})
            if out.get("control_has_error"):
                raise CapabilityError(out["control_error_info"]["user_message"])
            return out

        tries.append(1)
        return Reading(value=float(await body(ask, len(tries)) or 0))

    members = {
        "name": "outer",
        "description": "Pay inside",
        "provides": ["READING"],
        "effect": effect,
        "execute": execute,
        "get_retry_policy": staticmethod(lambda: {"max_attempts": 3, "delay_seconds": 0.0}),
        "__module__": __name__,
    }
    outer = capability_node(type("Outer", (BaseCapability,), members))
    return registered(Reading, Receipt, outer)


def _asked(out: Any) -> list[str]:
    return [step["capability"] for step in question(out)["steps"]]


PLAN = planned({"context_key": "a", "capability": "outer"})


async def _fails_twice(ask: Ask, tries: int) -> None:
    await ask()
    if tries < 3:
        raise CapabilityError("again", severity=ErrorSeverity.RETRIABLE)


@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.may_block
async def test_another_try_of_the_outer_one_does_not_repeat_the_inner_effect(
    way: str, effect: str, where: str, tmp_path: Any
) -> None:
    paid: list[int] = []
    made = _graph(way, payer(paid), effect, _fails_twice)

    async def check(saver: Any) -> None:
        assert status(await build_graph(made, checkpointer=saver).ainvoke(PLAN, THREAD)) == (
            "completed"
        )
        assert paid == [5]

    if where == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/inside.db") as saver:
            await check(saver)


async def test_asked_for_twice_in_one_body_it_acts_twice(way: str, effect: str) -> None:
    paid: list[int] = []

    async def twice(ask: Ask, _: int) -> None:
        await ask()
        await ask()

    graph = build_graph(_graph(way, payer(paid), effect, twice), checkpointer=InMemorySaver())
    assert status(await graph.ainvoke(PLAN, THREAD)) == "completed"
    assert paid == [5, 5]


async def test_a_person_is_asked_once_about_the_inner_one_whatever_the_outer_one_tries(
    way: str, effect: str
) -> None:
    paid: list[int] = []
    made = _graph(way, payer(paid, requires_approval=True), effect, _fails_twice)
    graph = build_graph(made, checkpointer=InMemorySaver())
    out = await graph.ainvoke(PLAN, THREAD)
    assert (_asked(out), paid, len(out["__interrupt__"])) == (["pay"], [], 1)
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert (status(out), paid) == ("completed", [5])


async def test_two_inner_ones_are_answered_by_the_keys_that_are_shown(
    way: str, effect: str
) -> None:
    paid: list[int] = []

    async def once(ask: Ask, _: int) -> None:
        await ask()

    made = _graph(way, payer(paid, requires_approval=True), effect, once)
    graph = build_graph(made, checkpointer=InMemorySaver())
    steps = [{"context_key": key, "capability": "outer"} for key in ("a", "b")]
    out = await graph.ainvoke(planned(*steps), THREAD)
    shown = [entry["context_key"] for one in out["__interrupt__"] for entry in one.value["steps"]]
    if len({*shown}) < 2:  # the same name in two graphs
        with pytest.raises(ValidationError, match="2 open questions"):
            await graph.ainvoke(Command(resume=dict.fromkeys(shown, "approve")), THREAD)
        shown = ["a", "b"]
    out = await graph.ainvoke(Command(resume=dict.fromkeys(shown, "approve")), THREAD)
    assert (status(out), paid) == ("completed", [5, 5])


async def test_the_outer_ones_question_and_the_inner_approval_keep_their_answers(
    way: str, effect: str
) -> None:
    paid: list[int] = []

    async def asks_too(ask: Ask, _: int) -> Any:
        await ask()
        return interrupt("which?")

    made = _graph(way, payer(paid, requires_approval=True), effect, asks_too)
    graph = build_graph(made, checkpointer=InMemorySaver())
    assert _asked(await graph.ainvoke(PLAN, THREAD)) == ["pay"]
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert (out["__interrupt__"][0].value, paid) == ("which?", [5])
    out = await graph.ainvoke(Command(resume=7), THREAD)
    assert (status(out), paid) == ("completed", [5])
    assert out["capability_context_data"]["READING"]["a"]["value"] == 7


async def test_an_answer_is_not_taken_for_that_of_another_question(way: str, effect: str) -> None:
    """The second try asks about something else first; its question must come."""
    paid: list[int] = []
    dear = payer(paid, name="dear", requires_approval=True)
    cheap = payer(paid, requires_approval=True)
    services = bound(Receipt, dear, cheap)
    other = services.node(dear)

    async def other_first(ask: Ask, tries: int) -> None:
        if tries > 2:
            await other({"messages": []})
        await ask()
        raise CapabilityError("again", severity=ErrorSeverity.RETRIABLE)

    graph = build_graph(_graph(way, cheap, effect, other_first), checkpointer=InMemorySaver())
    assert _asked(await graph.ainvoke(PLAN, THREAD)) == ["pay"]
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert (_asked(out), paid) == (["dear"], [5])


async def test_a_rejected_inner_one_fails_the_outer_one(way: str, effect: str) -> None:
    paid: list[int] = []

    async def once(ask: Ask, _: int) -> None:
        await ask()

    made = _graph(way, payer(paid, requires_approval=True), effect, once)
    graph = build_graph(made, checkpointer=InMemorySaver())
    await graph.ainvoke(PLAN, THREAD)
    out = await graph.ainvoke(Command(resume="reject"), THREAD)
    assert (status(out), paid) == ("failed", [])


@pytest.mark.parametrize("level", ["retriable", "replanning", "reclassification"])
@pytest.mark.may_block
async def test_what_acted_inside_before_the_process_ended_is_known_to_the_next(
    way: str, effect: str, level: str, tmp_path: Any
) -> None:
    """The failure is told as what it is, and no new plan is made that would act anew."""
    paid: list[int] = []

    async def asks_and_fails(ask: Ask, _: int) -> None:
        await ask()
        interrupt("go on?")
        raise CapabilityError("It broke.", severity=ErrorSeverity(level))

    async def process(given: Any) -> Any:
        made = _graph(way, payer(paid), effect, asks_and_fails)
        async with open_saver(f"sqlite:///{tmp_path}/inside.db") as saver:
            return await build_graph(made, checkpointer=saver).ainvoke(given, THREAD)

    assert (await process(PLAN))["__interrupt__"][0].value == "go on?"
    out = await process(Command(resume=True))
    assert (paid, status(out), out["execution_outcome"]["severity"]) == ([5], "failed", "critical")
    assert "is done" in said(out)
    assert "It broke." in said(out)
