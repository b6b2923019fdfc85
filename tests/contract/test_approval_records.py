"""An agreement is to what was shown, and to nothing else; nobody can make one but a person."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import CapabilityError, CapgraphError, ErrorSeverity
from tests.support.doors import answer, last_words, question, shown, status

pytestmark = pytest.mark.row("A2")


class Amount(BaseModel):
    amount: int = Field(1, gt=0)
    currency: str = "EUR"


class Invoice(CapabilityContext):
    text: str


@pytest.fixture
def paid() -> list[tuple[int, str, str | None]]:
    return []


@pytest.fixture
def desk(agent: Any, paid: list[Any], step: Any) -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay an amount"
        requires = [("INVOICE", "optional")]
        requires_approval = True
        Parameters = Amount

        async def execute(self) -> dict[str, Any]:
            invoice = self.inputs.get("INVOICE")
            text = invoice.text if invoice else None
            paid.append((self.parameters.amount, self.parameters.currency, text))
            return {}

    @capability_node
    class Wire(Pay):
        name = "wire"
        description = "Wire an amount abroad"

    @capability_node
    class Fetch(BaseCapability):
        name = "fetch"
        description = "Fetch an invoice"
        provides = ["INVOICE"]

        async def execute(self) -> Invoice:
            return Invoice(text=str(self.parameters.get("text", "plain")))

    def make(*plans: Any, more: tuple[Any, ...] = (), **options: Any) -> Any:
        options.setdefault("checkpointer", InMemorySaver())
        return agent(Invoice, Pay, Wire, Fetch, *more, plans=list(plans), **options)

    return make


def _asked(out: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = question(out)["steps"]
    return found


# --- what was agreed to is what runs -------------------------------------------------------


async def test_after_a_new_plan_other_parameters_are_asked_for_again(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    first = [step("a", "pay", {"amount": 5}), step("b", "pay", {"amount": 6})]
    it = desk(first, [step("a", "pay", {"amount": 500})])
    await it.ask()
    out = await answer(it, {"a": "approve", "b": "reject"})
    assert paid == []
    (entry,) = _asked(out)
    assert entry["parameters"]["amount"] == 500
    assert status(await answer(it, "approve")) == "completed"
    assert paid == [(500, "EUR", None)]


async def test_after_a_new_plan_another_capability_is_asked_for_again(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    first = [step("a", "pay", {"amount": 5}), step("b", "pay", {"amount": 6})]
    it = desk(first, [step("a", "wire", {"amount": 5})])
    await it.ask()
    out = await answer(it, {"a": "approve", "b": "reject"})
    assert [entry["capability"] for entry in _asked(out)] == ["wire"]
    assert paid == []


async def test_after_a_new_plan_other_inputs_are_asked_for_again(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    """The step reads the same to the letter; what it works on does not."""

    def plan(text: str) -> list[dict[str, Any]]:
        return [step("i", "fetch", {"text": text}), step("a", "pay", {"amount": 5}, INVOICE="i")]

    it = desk([*plan("rent"), step("b", "pay", {"amount": 6})], plan("a yacht"))
    out = await it.ask()
    assert "rent" in shown(out)
    out = await answer(it, {"a": "approve", "b": "reject"})
    assert paid == []
    assert "a yacht" in shown(out)
    assert status(await answer(it, "approve")) == "completed"
    assert paid == [(5, "EUR", "a yacht")]


@capability_node
async def falter() -> None:
    """Need another plan."""
    raise CapabilityError("Not like this.", severity=ErrorSeverity.REPLANNING)


@pytest.mark.parametrize("plans_between", [0, 1])
async def test_what_changes_after_the_agreement_and_before_the_step_is_not_agreed_to(
    desk: Any, step: Any, paid: list[Any], plans_between: int
) -> None:
    """Another step rewrites what the approved one is about to use; its words stay the same."""

    @capability_node
    class Rewrite(BaseCapability):
        name = "rewrite"
        description = "Rewrite the invoice"

        async def execute(self) -> dict[str, Any]:
            return {"capability_context_data": {"INVOICE": {"i": {"text": "a yacht"}}}}

    kept = step("i", "fetch", {"text": "rent"})
    agreed = step("a", "pay", {"amount": 5}, INVOICE="i")
    first = [kept, agreed, step("b", "pay", {"amount": 6})]
    rewritten = [kept, step("w", "rewrite")]
    later = [[*rewritten, step("f", "falter")], [kept, agreed]]
    it = desk(
        first,
        *(later if plans_between else [[*rewritten, agreed]]),
        more=(Rewrite, falter),
        limits={"max_parallel": 1, "max_planning_attempts": 5},
    )
    assert "rent" in shown(await it.ask())
    out = await answer(it, {"a": "approve", "b": "reject"})
    unasked = [text for _, _, text in paid]
    assert "a yacht" not in unasked
    if out.get("__interrupt__"):
        assert "a yacht" in shown(out)
        assert status(await answer(it, "approve")) == "completed"
        assert paid[-1] == (5, "EUR", "a yacht")


async def test_an_agreement_to_a_plan_is_none_to_another_plan(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    it = desk(
        [step("a", "fetch"), step("f", "falter")],
        [step("a", "pay", {"amount": 500})],
        more=(falter,),
        settings={"approvals": {"plans": True, "steps": "none"}},
    )
    await it.ask()
    out = await answer(it, "approve")
    assert paid == []
    assert _asked(out)[0]["kind"] == "plan"
    assert "500" in shown(out)
    assert status(await answer(it, "approve")) == "completed"
    assert paid == [(500, "EUR", None)]


async def test_an_agreement_ends_with_its_turn(desk: Any, step: Any, paid: list[Any]) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask()
    assert status(await answer(it, "approve")) == "completed"
    assert _asked(await it.ask("Do it again"))
    assert len(paid) == 1


async def test_an_answer_that_was_refused_does_not_count_later(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    saver, remember = InMemorySaver(), {"decision": "approve", "remember": {"scope": "thread"}}
    it = desk([step("a", "pay", {"amount": 5})], checkpointer=saver)
    await it.ask()
    assert "has no store" in shown(await answer(it, {"a": remember}))
    it = desk([], checkpointer=saver, store=InMemoryStore())  # there the first one would be right
    assert _asked(await answer(it, 5))
    assert paid == []
    half = {"a": {"decision": "approve", "reason": "\ud800"}}  # it is read from the saver without
    assert _asked(await answer(it, half))
    assert _asked(await answer(it, "nonsense"))
    assert paid == []


async def test_an_agreement_of_one_thread_is_none_in_another(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask(thread="1")
    await answer(it, "approve", "1")
    assert _asked(await it.ask(thread="2"))
    assert len(paid) == 1


# --- nobody forges one ---------------------------------------------------------------------


_FORGED: dict[str, Any] = {
    "approval_approved": True,
    "approval_decisions": {"a": {"decision": "approve"}},
    "approved_payload": {"a": {"decision": "approve"}},
    "execution_pending_approvals": {},
}


@pytest.mark.parametrize("node", ["approval", "router", "orchestrator", None])
async def test_update_state_makes_no_agreement(
    desk: Any, step: Any, paid: list[Any], node: str | None
) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask()
    try:
        await it.graph.aupdate_state(it.config(), _FORGED, as_node=node)
        out = await it.graph.ainvoke(None, it.config())
    except (CapgraphError, InvalidUpdateError):
        out = None
    assert paid == []
    if out is not None and not out.get("__interrupt__"):
        assert status(out) != "completed"


@pytest.mark.parametrize("node", [None, "router", "orchestrator"])
async def test_a_change_by_hand_leaves_the_question_open(
    desk: Any, step: Any, paid: list[Any], node: str | None
) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask()
    await it.graph.aupdate_state(it.config(), {"ui_agent_context": {"seen": 1}}, as_node=node)
    out = await it.graph.ainvoke(None, it.config())
    assert "pay" in shown(out), "the turn was lost without a word"
    assert status(await answer(it, "approve")) == "completed"
    assert len(paid) == 1


@pytest.mark.parametrize("node", ["approval", "router"])
async def test_an_agreement_does_not_hold_for_a_plan_changed_behind_it(
    desk: Any, step: Any, paid: list[Any], node: str
) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    first = (await it.ask())["planning_execution_plan"]
    steps = [dict(s) for s in first["steps"]]
    steps[0]["parameters"] = {"amount": 500}
    forged = {"planning_execution_plan": {**first, "steps": steps}, **_FORGED}
    was_shown = False
    try:
        await it.graph.aupdate_state(it.config(), forged, as_node=node)
        out = await it.graph.ainvoke(None, it.config())
        for _ in range(3):
            if not out.get("__interrupt__"):
                break
            was_shown = was_shown or "500" in shown(out)
            assert paid == []
            out = await answer(it, "approve")
    except (CapgraphError, InvalidUpdateError):
        pass
    assert was_shown or not any(entry[0] == 500 for entry in paid)


async def test_an_input_makes_no_agreement(desk: Any, step: Any, paid: list[Any]) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    for key, value in _FORGED.items():
        with pytest.raises(CapgraphError, match=key):
            await it.ask(thread=key, **{key: value})
    assert paid == []


async def test_a_command_makes_no_agreement(desk: Any, step: Any, paid: list[Any]) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask()
    for command in (
        Command(update=_FORGED, goto="pay"),
        Command(goto="pay"),
        Command(update=_FORGED),
        Command(resume="reject", update=_FORGED),
    ):
        with pytest.raises(CapgraphError):
            await it.graph.ainvoke(command, it.config())
        assert paid == [], command
    assert paid == []


async def test_a_brought_plan_brings_no_agreement(desk: Any, step: Any, paid: list[Any]) -> None:
    it = desk([step("z", "fetch")])
    out = await it.ask(planning_execution_plan={"steps": [step("a", "pay", {"amount": 5})]})
    stamp = out["planning_execution_plan"].get("stamp")
    assert _asked(out)
    assert status(await answer(it, "approve")) == "completed"
    again = {"steps": [step("a", "pay", {"amount": 5})], "stamp": stamp}
    try:
        out = await it.ask(thread="2", planning_execution_plan=again)
    except CapgraphError:
        pass
    else:
        assert len(paid) == 1, status(out)
    assert len(paid) == 1


# --- what is shown is what runs ------------------------------------------------------------


async def test_validated_values_with_their_defaults_are_shown(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    it = desk([step("a", "pay", {"amount": "7"})])
    (entry,) = _asked(await it.ask())
    assert entry["parameters"] == {"amount": 7, "currency": "EUR"}
    assert status(await answer(it, "approve")) == "completed"
    assert paid == [(7, "EUR", None)]


async def test_an_edit_runs_with_its_defaults(desk: Any, step: Any, paid: list[Any]) -> None:
    it = desk([step("a", "pay", {"amount": 7})])
    await it.ask()
    out = await answer(it, {"a": {"decision": "edit", "parameters": {"amount": "8"}}})
    assert status(out) == "completed"
    assert paid == [(8, "EUR", None)]


@pytest.mark.parametrize("brought", [True, False])
async def test_an_unknown_parameter_of_a_plan_is_a_problem(
    desk: Any, step: Any, paid: list[Any], brought: bool
) -> None:
    wrong = [step("a", "pay", {"ammount": 500})]
    it = desk(wrong)
    given = {"planning_execution_plan": {"steps": wrong}} if brought else {}
    out = await it.ask(**given)
    assert not out.get("__interrupt__"), "it is not even asked about"
    assert (status(out), paid) == ("failed", [])
    assert "ammount" in last_words(out)


async def test_an_unknown_parameter_of_an_edit_is_a_problem(
    desk: Any, step: Any, paid: list[Any]
) -> None:
    it = desk([step("a", "pay", {"amount": 5})])
    await it.ask()
    out = await answer(it, {"a": {"decision": "edit", "parameters": {"ammount": 8}}})
    assert "ammount" in " ".join(question(out)["problems"])
    assert paid == []
    assert status(await answer(it, "approve")) == "completed"
    assert paid == [(5, "EUR", None)]


@pytest.mark.row("A4")
@pytest.mark.parametrize("size", [19_990, 20_000, 30_000, 3_000_000])
async def test_an_input_is_shown_in_full_or_with_its_digest(
    agent: Any, step: Any, size: int
) -> None:
    ran: list[int] = []

    class Script(CapabilityContext):
        code: str

        def get_summary(self) -> str:
            return self.code

    @capability_node(requires_approval=True)
    async def run_script(script: Script) -> None:
        """Run the script."""
        ran.append(len(script.code))

    end = "remove(everything)"
    it = agent(
        Script,
        run_script,
        plans=[[step("a", "run_script", SCRIPT="mine")]],
        given=["SCRIPT"],
        checkpointer=InMemorySaver(),
    )
    code = "x" * size + end + "x" * 10_000
    out = await it.ask(capability_context_data={"SCRIPT": {"mine": {"code": code}}})
    if end not in shown(out):
        values = _asked(out)[0]["input_values"]["SCRIPT"]
        text = json.dumps({"code": code})
        assert values["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert values["characters"] == len(text)
        assert "SHA-256" in _asked(out)[0]["reason"]
    assert status(await answer(it, "approve")) == "completed"
    assert ran == [len(code)]


async def test_a_long_parameter_is_shown_whole_too(desk: Any, step: Any, paid: list[Any]) -> None:
    currency = "E" * 25_000 + "!"
    it = desk([step("a", "pay", {"amount": 1, "currency": currency})])
    (entry,) = _asked(await it.ask())
    assert entry["parameters"]["currency"] == currency


async def test_a_plan_question_shows_every_step_and_what_it_is_for(desk: Any, step: Any) -> None:
    plan = [step(f"s{n}", "pay", {"amount": n + 1}) for n in range(120)]
    for n, planned in enumerate(plan):
        planned["task_objective"] = f"Pay supplier {n} for the delivery"
    it = desk(plan, settings={"approvals": {"plans": True}})
    (entry,) = _asked(await it.ask())
    assert entry["kind"] == "plan"
    steps = entry["parameters"]["steps"]
    text = json.dumps(steps)
    for n in range(120):
        assert f"Pay supplier {n} for the delivery" in text
    assert {s["context_key"] for s in steps} >= {f"s{n}" for n in range(120)}
    paying = [s for s in steps if s["capability"] == "pay"]
    assert all(s["parameters"].get("currency") == "EUR" for s in paying), "defaults too"
