"""``interrupt()`` inside a capability works as in LangGraph, whatever the step's effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import BaseCapability, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.stores import open_saver
from tests.support.one_door import (
    Reading,
    Receipt,
    measurer,
    own_node,
    own_nodes,
    payer,
    said,
    status,
)

EFFECTS = ["none", "idempotent", "once"]


def asking(body: Any, effect: str = "once", **declared: Any) -> Any:
    """Return a capability whose ``execute`` is ``body(self)``."""
    return payer([], execute=body, effect=effect, Parameters=None, **declared)


def questions(out: dict[str, Any]) -> list[Any]:
    return [item.value for item in out.get("__interrupt__") or []]


async def answer(made: Any, value: Any) -> dict[str, Any]:
    out: dict[str, Any] = await made.graph.ainvoke(Command(resume=value), made.config())
    return out


@pytest.fixture
def house(agent: Any, step: Any) -> Any:
    def make(Cap: Any, *keys: str, **options: Any) -> Any:
        plan = [step(key, "pay") for key in keys or ("a",)]
        options.setdefault("checkpointer", InMemorySaver())
        return agent(Receipt, Cap, plans=[plan], **options)

    return make


@pytest.mark.may_block
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("effect", EFFECTS)
async def test_asked_once_and_resumed_with_the_answer(
    house: Any, effect: str, kind: str, tmp_path: Path
) -> None:
    before: list[int] = []
    acted: list[Any] = []

    async def body(self: Any) -> Receipt:
        before.append(1)
        account = interrupt("which account?")
        acted.append(account)
        return Receipt(paid=1)

    async def check(saver: Any) -> None:
        out = await house(asking(body, effect), checkpointer=saver).ask()
        assert questions(out) == ["which account?"]
        assert not out.get("control_has_error")
        # Another graph on the same saver, as after a restart.
        made = house(asking(body, effect), checkpointer=saver)
        out = await answer(made, "ACC-7")
        assert questions(out) == []
        assert acted == ["ACC-7"]
        assert len(before) == 2, "what stands before an interrupt runs again, as in LangGraph"
        assert status(out) == "completed"
        assert said(out) == "Paid 1."

    if kind == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/asks.db") as saver:
            await check(saver)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("value", [0, "", False, ["x"], {"account": "ACC-7"}, "approve", "rerun"])
async def test_any_answer_reaches_the_capability(house: Any, effect: str, value: Any) -> None:
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        got.append(interrupt({"ask": "which account?"}))
        return Receipt(paid=1)

    made = house(asking(body, effect))
    out = await made.ask()
    given = {out["__interrupt__"][0].id: value}
    out = await answer(made, given)
    assert got == [value]
    assert status(out) == "completed"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_two_questions_in_a_row_get_their_answers_in_order(house: Any, effect: str) -> None:
    got: list[tuple[Any, Any]] = []

    async def body(self: Any) -> Receipt:
        got.append((interrupt("from?"), interrupt("to?")))
        return Receipt(paid=1)

    made = house(asking(body, effect))
    assert questions(await made.ask()) == ["from?"]
    assert questions(await answer(made, "A")) == ["to?"]
    out = await answer(made, "B")
    assert questions(out) == []
    assert got == [("A", "B")]
    assert status(out) == "completed"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_beside_an_approval_of_the_same_step(house: Any, effect: str) -> None:
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        got.append(interrupt("which account?"))
        return Receipt(paid=1)

    made = house(asking(body, effect, requires_approval=True))
    (first,) = questions(await made.ask())
    assert first["steps"][0]["context_key"] == "a"
    assert got == []
    assert questions(await answer(made, "approve")) == ["which account?"]
    out = await answer(made, "ACC-7")
    assert questions(out) == [], "asked again"
    assert got == ["ACC-7"], "an approval's answer was taken for the author's"
    assert status(out) == "completed"


async def test_two_questions_beside_an_approval(house: Any) -> None:
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        got.append([interrupt("from?"), interrupt("to?")])
        return Receipt(paid=1)

    made = house(asking(body, requires_approval=True))
    await made.ask()
    assert questions(await answer(made, "approve")) == ["from?"]
    assert questions(await answer(made, "A")) == ["to?"]
    out = await answer(made, "B")
    assert got == [["A", "B"]]
    assert status(out) == "completed"


def _at_once(attempts: int) -> Any:
    policy = {"max_attempts": attempts, "delay_seconds": 0.0, "backoff_factor": 1.0}
    return staticmethod(lambda: dict(policy))


@pytest.mark.parametrize("approval", [False, True], ids=["plain", "approval"])
@pytest.mark.parametrize("effect", ["none", "idempotent"])
async def test_asked_on_a_second_try(house: Any, effect: str, approval: bool) -> None:
    tries: list[int] = []
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        tries.append(self.attempt)
        if len(tries) == 1:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        got.append(interrupt("which account?"))
        return Receipt(paid=1)

    made = house(asking(body, effect, requires_approval=approval, get_retry_policy=_at_once(4)))
    out = await made.ask()
    if approval:
        out = await answer(made, "approve")
    assert questions(out) == ["which account?"]
    out = await answer(made, "ACC-7")
    assert questions(out) == []
    assert got == ["ACC-7"]
    assert status(out) == "completed"
    assert tries[:2] == [1, 2]


@pytest.mark.parametrize("approval", [False, True], ids=["plain", "approval"])
@pytest.mark.parametrize("effect", ["none", "idempotent"])
async def test_a_try_after_the_answer_gets_the_same_answer(
    house: Any, effect: str, approval: bool
) -> None:
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        got.append((interrupt("from?"), interrupt("to?")))
        if len(got) < 3:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        return Receipt(paid=1)

    made = house(asking(body, effect, requires_approval=approval, get_retry_policy=_at_once(4)))
    out = await made.ask()
    if approval:
        out = await answer(made, "approve")
    assert questions(out) == ["from?"]
    assert questions(await answer(made, "A")) == ["to?"]
    out = await answer(made, "B")
    assert questions(out) == [], "another try asked again"
    assert got == [("A", "B")] * 3
    assert status(out) == "completed"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_parallel_steps_get_their_own_answers(house: Any, effect: str) -> None:
    got: dict[str, Any] = {}

    async def body(self: Any) -> Receipt:
        key = self.step["context_key"]
        got[key] = interrupt(f"for {key}?")
        return Receipt(paid=1)

    made = house(asking(body, effect), "a", "b", "c")
    out = await made.ask()
    asked = {item.value: item.id for item in out["__interrupt__"]}
    assert set(asked) == {"for a?", "for b?", "for c?"}
    out = await answer(made, {asked["for b?"]: "B"})
    assert set(questions(out)) == {"for a?", "for c?"}
    out = await answer(made, {asked["for a?"]: "A", asked["for c?"]: "C"})
    assert got == {"a": "A", "b": "B", "c": "C"}
    assert status(out) == "completed"


async def test_a_question_in_one_step_and_an_approval_of_another(agent: Any, step: Any) -> None:
    runs: list[Any] = []
    got: list[Any] = []

    async def body(self: Any) -> Receipt:
        got.append(interrupt("which account?"))
        return Receipt(paid=1)

    made = agent(
        Receipt,
        Reading,
        asking(body),
        measurer(runs, requires_approval=True),
        plans=[[step("a", "pay"), step("m", "measure")]],
        checkpointer=InMemorySaver(),
    )
    out = await made.ask()
    for _ in range(4):
        if not out.get("__interrupt__"):
            break
        answers = {
            item.id: "ACC-7" if item.value == "which account?" else "approve"
            for item in out["__interrupt__"]
        }
        out = await answer(made, answers)
    assert got == ["ACC-7"]
    assert runs == ["m"]
    assert status(out) == "completed"


# --- an effect of its own inside a step -------------------------------------------------------


@pytest.mark.may_block
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("effect", EFFECTS)
async def test_what_stands_in_once_is_not_run_again_on_resume(
    house: Any, effect: str, kind: str, tmp_path: Path
) -> None:
    charged: list[int] = []
    got: list[Any] = []

    async def charge() -> dict[str, Any]:
        charged.append(1)
        return {"reference": f"R{len(charged)}"}

    async def body(self: Any) -> Receipt:
        reference = await self.once("charge", charge)
        got.append((reference, interrupt("keep it?")))
        return Receipt(paid=1)

    async def check(saver: Any) -> None:
        assert questions(await house(asking(body, effect), checkpointer=saver).ask())
        out = await answer(house(asking(body, effect), checkpointer=saver), "yes")
        assert charged == [1]
        assert got == [({"reference": "R1"}, "yes")]
        assert status(out) == "completed"

    if kind == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/asks.db") as saver:
            await check(saver)


async def test_what_stands_in_once_is_not_run_again_by_another_try(house: Any) -> None:
    charged: list[int] = []
    got: list[Any] = []

    async def charge() -> str:
        charged.append(1)
        return f"R{len(charged)}"

    async def body(self: Any) -> Receipt:
        got.append(await self.once("charge", charge))
        if len(got) < 3:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        return Receipt(paid=1)

    out = await house(asking(body, "none", get_retry_policy=_at_once(3))).ask()
    assert charged == [1]
    assert got == ["R1", "R1", "R1"]
    assert status(out) == "completed"


async def test_keys_and_steps_have_effects_of_their_own(house: Any) -> None:
    charged: list[str] = []

    async def body(self: Any) -> Receipt:
        async def charge(what: str) -> str:
            charged.append(f"{self.step['context_key']}/{what}")
            return what

        assert await self.once("fee", lambda: charge("fee")) == "fee"
        assert await self.once("sum", lambda: charge("sum")) == "sum"
        assert await self.once("sum", lambda: charge("never")) == "sum"
        return Receipt(paid=1)

    out = await house(asking(body, "none"), "a", "b").ask()
    assert sorted(charged) == ["a/fee", "a/sum", "b/fee", "b/sum"]
    assert status(out) == "completed"


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("other", ["a", "b"])
async def test_another_plan_of_the_turn_does_not_repeat_it(
    agent: Any, step: Any, effect: str, other: str
) -> None:
    charged: list[str] = []

    async def body(self: Any) -> Receipt:
        order = self.parameters.order

        async def charge() -> str:
            charged.append(order)
            return f"R{order}"

        assert await self.once("charge", charge) == f"R{order}"
        tries.append(order)
        if len(tries) == 1:
            raise CapabilityError("gone", severity=ErrorSeverity.REPLANNING)
        return Receipt(paid=1)

    tries: list[str] = []
    Cap = payer([], execute=body, effect=effect, repeatable=True)

    def paid(key: str, order: str) -> Any:
        return step(key, "pay", parameters={"order": order})

    plans = [[paid("a", "A")], [paid(other, "A"), paid("c", "A"), paid("d", "B")]]
    out = await agent(Receipt, Cap, plans=plans, checkpointer=InMemorySaver()).ask()
    assert status(out) == "completed"
    # Of the equal steps of the new plan one stands for what was done, the other is a new one.
    assert sorted(charged) == ["A", "A", "B"]


async def test_the_static_form_has_it_in_its_context(house: Any) -> None:
    charged: list[int] = []
    got: list[Any] = []

    async def charge() -> str:
        charged.append(1)
        return "R1"

    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["RECEIPT"]
        effect = "once"

        @staticmethod
        async def execute(state: Any, context: Any, **kwargs: Any) -> dict[str, Any]:
            got.append((await context.once("charge", charge), interrupt("keep it?")))
            return {"paid": 1}

    made = house(capability_node(Pay))
    assert questions(await made.ask()) == ["keep it?"]
    out = await answer(made, "yes")
    assert charged == [1]
    assert got == [("R1", "yes")]
    assert status(out) == "completed"


async def test_what_was_cut_off_inside_once_is_not_run_again_by_itself(house: Any) -> None:
    charged: list[int] = []
    begun, never = asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        charged.append(1)
        begun.set()
        await never.wait()
        return "R1"

    async def body(self: Any) -> Receipt:
        await self.once("charge", charge)
        return Receipt(paid=1)

    made = house(asking(body, "none"))
    run = asyncio.create_task(made.ask())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    out = await made.graph.ainvoke(None, made.config())
    assert charged == [1]
    assert out.get("__interrupt__") or status(out) != "completed"


@pytest.mark.parametrize("door", ["plan", "goto"])
async def test_going_on_gives_no_question_the_answer_of_another(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    got: list[Any] = []

    async def execute(self: Any) -> Receipt:
        got.append((interrupt("How much?"), interrupt("Really?")))
        return Receipt(paid=1)

    plan = [step("a", "pay", {"amount": 5})]

    @own_node("orchestrator")
    async def Jumping(state: Any) -> Any:
        return Command(update={"planning_execution_plan": {"steps": plan}}, goto="pay")

    Pay = payer([], requires_approval=True, execute=execute)
    house = {"infrastructure": own_nodes(monkeypatch, Jumping)} if door == "goto" else {}
    it = agent(Receipt, Pay, plans=[plan], checkpointer=InMemorySaver(), **house)
    await it.ask()
    for answer in ("approve", None, "one", None):  # LangGraph would answer with "approve" here
        out = await it.graph.ainvoke(answer and Command(resume=answer), it.config())
        assert out["__interrupt__"]
    assert got == []
    out = await it.graph.ainvoke(Command(resume="two"), it.config())
    assert (got, status(out)) == ([("one", "two")], "completed")
