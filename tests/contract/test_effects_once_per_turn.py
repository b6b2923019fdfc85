"""An effect that is to happen once happens once a turn, whatever plan asks for it again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.stores import open_saver
from capgraph.testing import ScriptedModel
from tests.support.one_door import Reading, Receipt, payer, refused, registered, said, status

LEVELS = ["replanning", "reclassification"]


def after_payment(level: str, times: int = 1, name: str = "file") -> Any:
    """Return a step behind a payment that fails ``times`` times and asks for another plan."""
    runs: list[int] = []

    class File(BaseCapability):
        description = "File a receipt"
        requires = [("RECEIPT", "many")]

        async def execute(self) -> dict[str, Any]:
            runs.append(1)
            if len(runs) <= times:
                raise CapabilityError("the drawer is shut", severity=ErrorSeverity(level))
            return {}

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> Any:
            return None

    File.name = name
    return capability_node(File)


def bench(agent: Any, Pay: Any, level: str, *plans: Any, **options: Any) -> Any:
    options.setdefault("checkpointer", InMemorySaver())
    # Choosing again leaves out what failed; another filing capability takes its place.
    items = (Receipt, Pay, after_payment(level), after_payment(level, 0, "keep"))
    return agent(*items, plans=plans, **options)


async def answer(made: Any, value: Any) -> dict[str, Any]:
    out: dict[str, Any] = await made.graph.ainvoke(Command(resume=value), made.config())
    return out


@pytest.mark.may_block
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("level", LEVELS)
async def test_the_same_effect_under_another_key_and_words_is_not_done_again(
    agent: Any, step: Any, level: str, kind: str, tmp_path: Path
) -> None:
    paid: list[int] = []
    again = {**step("z", "pay", {"amount": 5}), "task_objective": "Settle the bill, please"}
    plans = [
        [step("a", "pay", {"amount": 5}), step("b", "file", RECEIPT="a")],
        [again, step("y", "keep", RECEIPT="z")],
    ]

    async def check(saver: Any) -> None:
        out = await bench(agent, payer(paid), level, *plans, checkpointer=saver).ask()
        assert paid == [5]
        assert "__interrupt__" not in out, "an equal effect needs no person"
        assert out["capability_context_data"]["RECEIPT"]["z"] == {"paid": 5}
        assert "already" in said(out).lower()

    if kind == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/effects.db") as saver:
            await check(saver)


@pytest.mark.parametrize("level", LEVELS)
async def test_defaults_and_written_values_are_the_same_effect(
    agent: Any, step: Any, level: str
) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay"), step("b", "file", RECEIPT="a")],
        [step("z", "pay", {"order": "A", "amount": 5}), step("y", "keep", RECEIPT="z")],
    ]
    out = await bench(agent, payer(paid), level, *plans).ask()
    assert paid == [5]
    assert "__interrupt__" not in out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("decision", "then"), [("approve", [5, 6]), ("reject", [5])])
async def test_another_effect_of_what_acted_before_is_a_question(
    agent: Any, step: Any, level: str, decision: str, then: list[int]
) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay", {"amount": 5}), step("b", "file", RECEIPT="a")],
        [step("z", "pay", {"amount": 6}), step("y", "keep", RECEIPT="z")],
    ]
    made = bench(agent, payer(paid), level, *plans)
    out = await made.ask()
    assert paid == [5]
    assert out["__interrupt__"]
    assert "6" in json.dumps(out["__interrupt__"][0].value, default=str)
    out = await answer(made, decision)
    for _ in range(4):
        if not out.get("__interrupt__"):
            break
        assert decision == "reject", "asked twice for one effect"
        out = await answer(made, decision)
    assert paid == then
    assert said(out)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_repeatable_capability_needs_no_question(agent: Any, step: Any, level: str) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay", {"amount": 5}), step("b", "file", RECEIPT="a")],
        [step("z", "pay", {"amount": 6}), step("y", "keep", RECEIPT="z")],
    ]
    out = await bench(agent, payer(paid, repeatable=True), level, *plans).ask()
    assert "__interrupt__" not in out
    assert paid == [5, 6]


@pytest.mark.parametrize("level", LEVELS)
async def test_the_author_names_what_makes_effects_equal(agent: Any, step: Any, level: str) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay", {"amount": 5, "order": "A"}), step("b", "file", RECEIPT="a")],
        [step("z", "pay", {"amount": 6, "order": "A"}), step("y", "keep", RECEIPT="z")],
    ]
    out = await bench(agent, payer(paid, effect_key=["order"]), level, *plans).ask()
    assert paid == [5], "the same order was paid twice"
    assert "__interrupt__" not in out
    assert "already" in said(out).lower()


async def test_another_effect_key_is_another_effect(agent: Any, step: Any) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay", {"order": "A"}), step("b", "file", RECEIPT="a")],
        [step("z", "pay", {"order": "B"}), step("y", "keep", RECEIPT="z")],
    ]
    made = bench(agent, payer(paid, effect_key=["order"]), "replanning", *plans)
    out = await made.ask()
    assert paid == [5]
    assert out["__interrupt__"]


async def test_an_effect_key_that_names_no_parameter_is_refused(agent: Any) -> None:
    from capgraph.base.errors import CapgraphError

    with pytest.raises((CapgraphError, ValueError), match="ordr"):
        agent(Receipt, payer([], effect_key=["ordr"]))


async def test_equal_steps_of_one_plan_are_each_an_effect(agent: Any, step: Any) -> None:
    paid: list[int] = []
    plan = [step("a", "pay"), step("b", "pay")]
    out = await agent(Receipt, payer(paid), plans=[plan], checkpointer=InMemorySaver()).ask()
    assert paid == [5, 5]
    assert status(out) == "completed"


@pytest.mark.parametrize("level", LEVELS)
async def test_two_equal_steps_get_their_two_records_in_the_next_plan(
    agent: Any, step: Any, level: str
) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay"), step("b", "pay"), step("c", "file", RECEIPT=["a", "b"])],
        [step("x", "pay"), step("y", "pay"), step("z", "keep", RECEIPT=["x", "y"])],
    ]
    out = await bench(agent, payer(paid), level, *plans).ask()
    assert paid == [5, 5]
    assert "__interrupt__" not in out
    assert set(out["capability_context_data"]["RECEIPT"]) >= {"x", "y"}


async def test_a_third_equal_step_is_never_taken_for_done(agent: Any, step: Any) -> None:
    paid: list[int] = []
    plans = [
        [step("a", "pay"), step("b", "pay"), step("c", "file", RECEIPT=["a", "b"])],
        [*(step(k, "pay") for k in "wxy"), step("z", "keep", RECEIPT=["w", "x", "y"])],
    ]
    out = await bench(agent, payer(paid), "replanning", *plans).ask()
    assert out.get("__interrupt__") or paid == [5, 5, 5]


async def test_the_review_of_a_plan_shows_equal_effects(agent: Any, step: Any) -> None:
    options = {"settings": {"approvals": {"plans": True}}, "checkpointer": InMemorySaver()}
    same = agent(Receipt, payer([]), plans=[[step("a", "pay"), step("b", "pay")]], **options)
    told = json.dumps((await same.ask())["__interrupt__"][0].value, default=str)
    options["checkpointer"] = InMemorySaver()
    other = [step("a", "pay"), step("b", "pay", {"amount": 6})]
    differ = agent(Receipt, payer([]), plans=[other], **options)
    plain = json.dumps((await differ.ask())["__interrupt__"][0].value, default=str)
    words = re.compile(r"(?i)\b(equal|same|twice|identical|repeat\w*)\b")
    assert words.search(told)
    assert len(words.findall(told)) > len(words.findall(plain))


async def test_the_values_of_the_inputs_belong_to_the_effect(agent: Any, step: Any) -> None:
    sent: list[float] = []

    @capability_node
    class Send(BaseCapability):
        name = "send"
        description = "Send a reading"
        requires = ["READING"]
        provides = ["RECEIPT"]
        effect = "once"

        async def execute(self) -> Receipt:
            sent.append(self.inputs["READING"].value)
            return Receipt(paid=1)

    def plans(second: str) -> list[Any]:
        return [
            [step("a", "send", READING="one"), step("b", "file", RECEIPT="a")],
            [step("z", "send", READING=second), step("y", "file", RECEIPT="z")],
        ]

    stored = {"READING": {"one": {"value": 1}, "twin": {"value": 1}, "two": {"value": 2}}}

    async def run(second: str) -> Any:
        items = (Reading, Receipt, Send, after_payment("replanning"))
        options = {"given": ["READING"], "checkpointer": InMemorySaver()}
        made = agent(*items, plans=plans(second), **options)
        return await made.ask(capability_context_data=stored)

    out = await run("twin")
    assert sent == [1.0]
    assert "__interrupt__" not in out
    sent.clear()
    out = await run("two")
    assert sent == [1.0]
    assert out["__interrupt__"]


async def test_an_idempotency_key_is_the_same_in_every_plan_of_a_turn(
    agent: Any, step: Any
) -> None:
    keys: list[str] = []

    async def execute(self: Any) -> Receipt:
        keys.append(self.idempotency_key)
        if len(keys) == 1:
            raise CapabilityError("no answer", severity=ErrorSeverity.REPLANNING)
        return Receipt(paid=1)

    Pay = payer([], effect="idempotent", execute=execute)
    words = {**step("z", "pay", {"amount": 5}), "task_objective": "Settle it"}
    plans = [[step("a", "pay", {"amount": 5})], [words]]
    made = agent(Receipt, Pay, plans=plans, checkpointer=InMemorySaver())
    await made.ask()
    assert len(keys) == 2
    assert keys[0] == keys[1]
    await made.ask("Another turn")
    assert keys[2] not in keys[:2]


async def test_equal_idempotent_steps_of_one_plan_have_keys_of_their_own(
    agent: Any, step: Any
) -> None:
    keys: list[str] = []

    async def execute(self: Any) -> Receipt:
        keys.append(self.idempotency_key)
        return Receipt(paid=1)

    Pay = payer([], effect="idempotent", execute=execute)
    plan = [step("a", "pay"), step("b", "pay")]
    await agent(Receipt, Pay, plans=[plan], checkpointer=InMemorySaver()).ask()
    assert len(set(keys)) == 2


async def test_what_was_done_is_shown_to_a_model_that_plans_again(step: Any) -> None:
    def reply(call: Any) -> Any:
        if call.schema == "Choice":
            return {"reason": "both", "capabilities": ["pay", "file"]}
        if call.schema != "ExecutionPlan":
            return "Fine."
        key = f"k{len(plans)}"
        plans.append(call.prompt)
        steps = [step(key, "pay", {"amount": 5417}), step(f"f{key}", "file", RECEIPT=key)]
        return {"steps": steps}

    plans: list[str] = []
    paid: list[int] = []
    made = build_graph(
        registered(Receipt, payer(paid), after_payment("replanning")),
        model=ScriptedModel(responses=reply),
        checkpointer=InMemorySaver(),
        settings=load_settings(approvals={"ungrounded": "allow"}),
    )
    thread = {"configurable": {"thread_id": "1"}}
    out = await made.ainvoke({"messages": [("user", "Pay")]}, thread)
    assert status(out) == "completed"
    assert paid == [5417]
    assert len(plans) == 2
    assert "5417" not in plans[0]
    assert "5417" in plans[1]


@pytest.mark.parametrize("level", ["retriable", "replanning", "reclassification"])
async def test_a_finished_effect_whose_result_does_not_fit_is_not_done_again(
    agent: Any, step: Any, level: str
) -> None:
    acted: list[int] = []

    async def execute(self: Any) -> Any:
        acted.append(1)
        return {"lost_key": 1}

    from capgraph import ErrorClassification

    def classify(exc: Exception, context: dict[str, Any]) -> Any:
        return ErrorClassification(ErrorSeverity(level), "odd result")

    Pay = payer([], execute=execute, provides=[], classify_error=staticmethod(classify))
    plans = [[step("a", "pay")], [step("b", "pay")]]
    out = await agent(Pay, plans=plans, checkpointer=InMemorySaver()).ask()
    assert acted == [1]
    assert status(out) == "failed"
    assert out["execution_outcome"]["severity"] == "critical"
    assert re.search(r"(?i)\bdone\b|took place|happened|acted", said(out)), said(out)


async def test_the_next_turn_acts_again(agent: Any, step: Any) -> None:
    paid: list[int] = []
    made = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], checkpointer=InMemorySaver())
    await made.ask("Pay")
    out = await made.ask("Pay")
    assert paid == [5, 5]
    assert "__interrupt__" not in out
    assert status(out) == "completed"


async def test_an_earlier_question_can_be_answered_again_and_repeats_no_effect(
    agent: Any, step: Any
) -> None:
    paid: list[int] = []
    it = agent(
        Receipt,
        payer(paid, requires_approval=True),
        plans=[[step("a", "pay")]],
        checkpointer=InMemorySaver(),
    )
    await it.ask()
    asked = (await it.graph.aget_state(it.config())).config
    await it.graph.ainvoke(Command(resume="approve"), it.config())
    out = await it.graph.ainvoke(Command(resume="approve"), asked)
    assert (status(out), paid) == ("completed", [5])
    await refused(it.graph.ainvoke(Command(resume="approve"), it.config()), "no open question")
