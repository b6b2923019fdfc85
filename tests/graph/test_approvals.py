"""A person decides: steps, whole plans, standing rules, and answers that do not fit."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, Field

from capgraph import (
    BaseCapability,
    CapabilityContext,
    Registry,
    build_graph,
    capability_node,
)
from capgraph.base import ValidationError
from capgraph.graph.turn_runner import load_thread_values, step_states
from capgraph.stores import StandingRule, add_rule, list_rules, revoke_rule


class Receipt(CapabilityContext):
    paid: int

    def get_summary(self) -> str:
        return f"Paid {self.paid}."


class Amount(BaseModel):
    amount: int = Field(1, gt=0)


@pytest.fixture
def work() -> dict[str, list[Any]]:
    return {"paid": [], "looked": []}


@pytest.fixture
def office(work: dict[str, list[Any]]) -> list[Any]:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay an amount"
        provides = ["RECEIPT"]
        effect = "once"
        requires_approval = True
        Parameters = Amount

        async def execute(self) -> Receipt:
            work["paid"].append(self.parameters.amount)
            return Receipt(paid=self.parameters.amount)

    @capability_node
    class Look(BaseCapability):
        name = "look"
        description = "Look"

        async def execute(self) -> dict[str, Any]:
            work["looked"].append(self.step["context_key"])
            return {}

    return [Receipt, Pay, Look]


@pytest.fixture
def desk(agent: Any, office: list[Any], step: Any) -> Any:
    def make(*plans: Any, **options: Any) -> Any:
        chosen = plans or ([step("look", "look"), step("a", "pay", {"amount": 5})],)
        options.setdefault("checkpointer", InMemorySaver())
        return agent(*office, plans=chosen, **options)

    return make


async def _answer(agent: Any, answer: Any, thread: str = "1") -> Any:
    return await agent.graph.ainvoke(Command(resume=answer), agent.config(thread))


def _question(out: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = out["__interrupt__"][0].value
    return found


async def test_asks_first_and_runs_after(desk: Any, work: dict[str, list[Any]]) -> None:
    agent = desk()
    question = _question(await agent.ask())
    assert [entry["context_key"] for entry in question["steps"]] == ["a"]
    assert question["steps"][0]["parameters"] == {"amount": 5}
    assert work == {"paid": [], "looked": ["look"]}
    out = await _answer(agent, "approve")
    assert out["execution_outcome"]["status"] == "completed"
    assert work == {"paid": [5], "looked": ["look"]}, "nothing before the question runs twice"


async def test_one_question_for_a_wave(desk: Any, step: Any, work: dict[str, list[Any]]) -> None:
    agent = desk([step(key, "pay", {"amount": n}) for n, key in enumerate("abc", start=1)])
    question = _question(await agent.ask())
    assert [entry["context_key"] for entry in question["steps"]] == ["a", "b", "c"]
    out = await _answer(
        agent,
        {
            "a": "approve",
            "b": {"decision": "edit", "parameters": {"amount": 20}},
            "c": {"decision": "approve"},
        },
    )
    assert out["execution_outcome"]["status"] == "completed"
    assert sorted(work["paid"]) == [1, 3, 20]
    assert out["approval_decisions"]["b"]["before"] == {"amount": 2}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("maybe", "Input should be"),
        (None, "not a decision"),
        (7, "not a decision"),
        ({"zz": "approve"}, "'zz' does not wait for a decision"),
        ({"a": "approve", "zz": "approve"}, "'zz' does not wait for a decision"),
        ({"a": {"decision": "approve", "sudo": True}}, "sudo"),
        ({"a": {"decision": "edit", "parameters": {"amount": -1}}}, "greater than 0"),
        ({"a": {"decision": "edit", "parameters": {"amount": "lots"}}}, "amount"),
        ({"a": {"decision": "edit"}}, "requires parameters"),
        ({"a": {"decision": "approve", "parameters": {"amount": 7}}}, "no field parameters"),
        ({"a": {"decision": "approve", "outputs": {"X": {}}}}, "no field outputs"),
        ({"a": {"decision": "reject", "message": "no"}}, "no field message"),
        ({"a": {"decision": "respond"}}, "requires a message"),
        ({"a": {"decision": "rerun"}}, "not allowed for step"),
        ({"a": {"decision": "approve", "remember": {}}}, "has no store"),
        ({"a": ["approve"]}, "is invalid"),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing_and_says_why(
    desk: Any, work: dict[str, list[Any]], answer: Any, says: str
) -> None:
    agent = desk()
    await agent.ask()
    if answer is None:  # LangGraph takes None for "no resume value" at the top
        answer = [None]
    question = _question(await _answer(agent, answer))
    assert says in " ".join(question["problems"])
    assert work["paid"] == []
    assert (await _answer(agent, "approve"))["execution_outcome"]["status"] == "completed"
    assert work["paid"] == [5]


async def test_stale_duplicate_and_foreign_answers_are_refused(
    desk: Any, work: dict[str, list[Any]]
) -> None:
    agent = desk()
    first = (await agent.ask())["__interrupt__"][0].id
    other = (await agent.ask(thread="2"))["__interrupt__"][0].id
    with pytest.raises(UnknownInterruptError):
        await _answer(agent, {other: "approve"})
    with pytest.raises(ValidationError, match="does not identify a question"):
        await _answer(agent, {})
    await _answer(agent, {first: "approve"})
    assert work["paid"] == [5]
    for again in ({first: "approve"}, "approve"):
        with pytest.raises(ValidationError, match="no open question"):
            await _answer(agent, again)
    assert work["paid"] == [5]


async def test_a_rejection_is_planned_around(
    desk: Any, step: Any, work: dict[str, list[Any]]
) -> None:
    agent = desk([step("a", "pay", {"amount": 5})], [step("b", "look")])
    await agent.ask()
    out = await _answer(agent, {"a": {"decision": "reject", "reason": "too dear"}})
    assert agent.planner.calls[-1].failure["metadata"]["rejected_by_person"] == {"a": "too dear"}
    assert out["execution_outcome"]["status"] == "completed"
    assert work == {"paid": [], "looked": ["b"]}


async def test_what_was_rejected_does_not_come_back(desk: Any, work: dict[str, list[Any]]) -> None:
    agent = desk()
    await agent.ask()
    out = await _answer(agent, {"a": {"decision": "reject", "reason": "too dear"}})
    assert "__interrupt__" not in out, "the same question is not asked again"
    assert out["execution_outcome"]["status"] == "failed"
    assert "too dear" in out["messages"][-1].content
    assert work["paid"] == []


async def test_rejections_are_bounded(desk: Any, step: Any) -> None:
    plans = [[step("a", "pay", {"amount": n})] for n in range(1, 9)]
    agent = desk(*plans, settings={"approvals": {"max_rejections": 3}})
    out = await agent.ask()
    for _ in range(3):
        assert _question(out)["steps"]
        out = await _answer(agent, "reject")
    assert out["execution_outcome"]["status"] == "failed"
    assert len(agent.planner.calls) == 3


async def test_an_approved_step_is_not_asked_for_again_after_a_new_plan(
    desk: Any, step: Any, work: dict[str, list[Any]]
) -> None:
    first = [step("a", "pay", {"amount": 1}), step("b", "pay", {"amount": 2})]
    agent = desk(first, first[:1])
    await agent.ask()
    out = await _answer(agent, {"a": "approve", "b": "reject"})
    assert out["execution_outcome"]["status"] == "completed"
    assert work["paid"] == [1]


@pytest.mark.parametrize(
    "answer", ["reject", {"decision": "respond", "message": "I paid it myself."}]
)
async def test_a_step_waits_for_its_answer_only(desk: Any, step: Any, answer: Any) -> None:
    agent = desk(*[[step("a", "pay", {"amount": 5})]] * 4)
    for _ in range(2):
        await agent.ask()
        assert step_states(await load_thread_values(agent.graph, "1"))["a"] == "waiting"
        await _answer(agent, {"a": answer})
        assert step_states(await load_thread_values(agent.graph, "1"))["a"] == "pending"


async def test_responding_instead_ends_the_turn(desk: Any, work: dict[str, list[Any]]) -> None:
    agent = desk()
    await agent.ask()
    out = await _answer(agent, {"a": {"decision": "respond", "message": "I paid it myself."}})
    assert out["messages"][-1].content == "I paid it myself."
    assert work["paid"] == []


async def test_without_a_saver_the_turn_ends_with_the_reason(
    desk: Any, work: dict[str, list[Any]]
) -> None:
    out = await desk(checkpointer=None).ask()
    assert out["execution_outcome"]["status"] == "failed"
    assert "checkpointer" in out["execution_outcome"]["reason"]
    assert work["paid"] == []


# --- plan review ---------------------------------------------------------------------------


@pytest.fixture
def reviewed(desk: Any) -> Any:
    return desk(settings={"approvals": {"plans": True, "steps": "none"}})


async def test_the_plan_is_shown_before_anything_runs(
    reviewed: Any, work: dict[str, list[Any]]
) -> None:
    question = _question(await reviewed.ask())
    assert [entry["kind"] for entry in question["steps"]] == ["plan"]
    keys = [s["context_key"] for s in question["steps"][0]["parameters"]["steps"]]
    assert keys[:2] == ["look", "a"]
    assert work == {"paid": [], "looked": []}
    out = await _answer(reviewed, "approve")
    assert out["execution_outcome"]["status"] == "completed"
    assert work == {"paid": [5], "looked": ["look"]}


async def test_an_edited_plan_is_checked_before_it_runs(
    reviewed: Any, step: Any, work: dict[str, list[Any]]
) -> None:
    await reviewed.ask()
    wrong = [step("x", "nonsense"), {"context_key": "r", "capability": "respond"}]
    out = await _answer(reviewed, {"plan": {"decision": "edit", "steps": wrong}})
    assert "nonsense" in " ".join(_question(out)["problems"])
    dear = [step("x", "pay", {"amount": -3}), {"context_key": "r", "capability": "respond"}]
    out = await _answer(reviewed, {"plan": {"decision": "edit", "steps": dear}})
    assert "amount" in " ".join(_question(out)["problems"])
    assert work == {"paid": [], "looked": []}
    good = [step("x", "pay", {"amount": 3})]  # what ends a plan is put behind it, as for any plan
    out = await _answer(reviewed, {"plan": {"decision": "edit", "parameters": {"steps": good}}})
    outcome = out["execution_outcome"]
    assert (outcome["status"], outcome["done"], outcome["missing"]) == ("completed", ["x"], [])
    assert "respond" in str(outcome["notes"])  # what was added to the person's plan
    assert work == {"paid": [3], "looked": []}
    assert [entry["author"] for entry in out["planning_history"]] == ["orchestrator", "approval"]


async def test_a_rejected_plan_is_planned_again_and_not_repeated(
    desk: Any, step: Any, work: dict[str, list[Any]]
) -> None:
    agent = desk(
        [step("a", "look")], [step("b", "look", {"n": 2})], settings={"approvals": {"plans": True}}
    )
    await agent.ask()
    question = _question(await _answer(agent, {"plan": {"decision": "reject", "reason": "no"}}))
    assert question["steps"][0]["parameters"]["steps"][0]["context_key"] == "b"
    out = await _answer(agent, {"plan": {"decision": "reject", "reason": "no"}})
    assert out["execution_outcome"]["status"] == "failed"
    assert work["looked"] == []


async def test_planning_mode_is_switched_per_thread(desk: Any) -> None:
    agent = desk()
    out = await agent.ask(agent_control={"planning_mode_enabled": True})
    assert _question(out)["steps"][0]["kind"] == "plan"


# --- standing rules ------------------------------------------------------------------------


async def test_a_rule_stands_in_for_the_person(desk: Any, work: dict[str, list[Any]]) -> None:
    store = InMemoryStore()
    rule = await add_rule(store, StandingRule(capability="pay"))
    agent = desk(store=store)
    out = await agent.ask()
    assert out["execution_outcome"]["status"] == "completed"
    assert out["approval_decisions"]["a"] == {"decision": "approve", "rule": rule.id}
    await revoke_rule(store, rule.id)
    assert "__interrupt__" in await agent.ask()
    assert work["paid"] == [5]
    with pytest.raises(ValidationError, match="does not exist"):
        await revoke_rule(store, rule.id)


@pytest.mark.parametrize(
    "rule",
    [
        {"capability": "look"},
        {"capability": "pay", "thread_id": "2"},
        {"capability": "pay", "expires_at": datetime(2001, 1, 1, tzinfo=UTC)},
    ],
)
async def test_a_rule_covers_only_what_it_says(desk: Any, rule: dict[str, Any]) -> None:
    store = InMemoryStore()
    await add_rule(store, StandingRule(**rule))
    assert "__interrupt__" in await desk(store=store).ask()


async def test_approve_and_remember(desk: Any, work: dict[str, list[Any]]) -> None:
    store = InMemoryStore()
    agent = desk(store=store)
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    await agent.ask()
    remember = {"scope": "thread", "until": until}
    await _answer(agent, {"a": {"decision": "approve", "remember": remember}})
    (rule,) = await list_rules(store)
    assert (rule.capability, rule.thread_id, rule.scope) == ("pay", "1", "thread")
    assert "__interrupt__" not in await agent.ask()
    assert "__interrupt__" in await agent.ask(thread="2")
    assert work["paid"] == [5, 5]


# --- outcomes that nobody knows ------------------------------------------------------------


@pytest.fixture
def line(agent: Any, step: Any, work: dict[str, list[Any]]) -> Any:
    @capability_node
    class Send(BaseCapability):
        name = "send"
        description = "Send a letter"
        provides = ["RECEIPT"]
        effect = "once"

        async def execute(self) -> Receipt:
            work["paid"].append("sent")
            if len(work["paid"]) == 1:
                raise TimeoutError("no answer")
            return Receipt(paid=len(work["paid"]))

    @capability_node
    class File(BaseCapability):
        name = "file"
        description = "File a receipt"
        requires = ["RECEIPT"]

        async def execute(self) -> dict[str, Any]:
            work["looked"].append(self.inputs["RECEIPT"].paid)
            return {}

    plan = [step("a", "send"), step("b", "file", RECEIPT="a"), step("c", "file", RECEIPT="a")]
    return agent(Receipt, Send, File, plans=[plan], checkpointer=InMemorySaver())


async def test_a_time_out_of_a_once_step_is_a_question(
    line: Any, work: dict[str, list[Any]]
) -> None:
    question = _question(await line.ask())
    (entry,) = question["steps"]
    assert entry["kind"] == "unknown_outcome"
    assert entry["decisions"] == ["rerun", "skip", "done", "reject"]
    assert "no answer" in entry["reason"]
    out = await _answer(line, {"a": {"decision": "done"}})
    assert "add it to 'outputs'" in " ".join(_question(out)["problems"])
    out = await _answer(line, {"a": {"decision": "done", "outputs": {"RECEIPT": {"paid": "x"}}}})
    assert "not a valid Receipt" in " ".join(_question(out)["problems"])
    out = await _answer(line, {"a": {"decision": "done", "outputs": {"RECEIPT": {"paid": 9}}}})
    assert out["execution_outcome"]["status"] == "completed"
    assert work == {"paid": ["sent"], "looked": [9, 9]}


async def test_it_is_run_again_only_when_a_person_says_so(
    line: Any, work: dict[str, list[Any]]
) -> None:
    await line.ask()
    out = await _answer(line, "rerun")
    assert out["execution_outcome"]["status"] == "completed"
    assert work["paid"] == ["sent", "sent"]


async def test_skipping_it_is_a_partial_result(line: Any, work: dict[str, list[Any]]) -> None:
    await line.ask()
    out = await _answer(line, "skip")
    assert out["execution_outcome"]["status"] == "partial"
    assert out["execution_outcome"]["missing"] == ["a", "b", "c"]
    assert work == {"paid": ["sent"], "looked": []}


async def test_a_capability_that_is_gone_goes_to_a_person(
    agent: Any, office: list[Any], step: Any, work: dict[str, list[Any]]
) -> None:
    saver = InMemorySaver()
    plan = [step("a", "pay", {"amount": 1}), step("b", "look")]
    await agent(*office, plans=[plan], checkpointer=saver).ask()
    receipt, _, look = office
    later = agent(receipt, look, plans=[plan], checkpointer=saver)
    out = await _answer(later, "approve")
    question = _question(out)
    assert question["steps"][0]["kind"] == "missing_capability"
    assert "pay" in question["steps"][0]["reason"]
    again = _question(await _answer(later, "rerun"))
    assert again["steps"][0]["kind"] == "missing_capability"
    out = await _answer(later, "skip")
    assert out["execution_outcome"]["status"] == "partial"
    assert out["execution_outcome"]["missing"] == ["a"]
    assert work == {"paid": [], "looked": ["b"]}


async def test_a_person_sees_what_the_step_is_about_to_work_on() -> None:
    class Script(CapabilityContext):
        code: str

        def get_summary(self) -> str:
            return self.code

    class Output(CapabilityContext):
        text: str

    @capability_node(examples=["run the script"], requires_approval=True)
    async def run_script(script: Script) -> Output:
        """Run the script."""
        return Output(text="ran")

    registry = Registry()
    for item in (Script, Output, run_script):
        registry.register(item)
    registry.declare_provided(Script)
    graph = build_graph(registry, checkpointer=InMemorySaver())
    out = await graph.ainvoke(
        {
            "messages": [("user", "run the script")],
            "capability_context_data": {"SCRIPT": {"mine": {"code": "remove(everything)"}}},
        },
        {"configurable": {"thread_id": "shown"}},
    )
    (step,) = out["__interrupt__"][0].value["steps"]
    assert step["input_summaries"] == {"SCRIPT.mine": "remove(everything)"}


class Report(CapabilityContext):
    text: str


@pytest.mark.parametrize("size", [150_000, 250_000, 3_000_000])
async def test_a_step_with_large_inputs_is_approved_by_preview_and_digest(size: int) -> None:
    sent: list[int] = []

    @capability_node
    async def write(size: int) -> Report:
        """Write a report."""
        return Report(text="x" * size)

    @capability_node(requires_approval=True)
    async def send(report: Report) -> Receipt:
        """Send a report."""
        sent.append(len(report.text))
        return Receipt(paid=1)

    graph = build_graph([Report, Receipt, write, send], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    plan = [
        {"context_key": "w", "capability": "write", "parameters": {"size": size}},
        {"context_key": "s", "capability": "send", "inputs": [{"REPORT": "w"}]},
    ]
    out = await graph.ainvoke({"planning_execution_plan": {"steps": plan}}, config)
    request = out["__interrupt__"][0].value
    (entry,) = request["steps"]
    assert "approve" in entry["decisions"]
    assert len(json.dumps(request)) < 250_000
    shown, data = entry["input_values"]["REPORT"], {"text": "x" * size}
    if size > 200_000:
        text = json.dumps(data)
        assert shown["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert shown["characters"] == len(text)
        assert text.startswith(shown["start"])
        assert text.endswith(shown["end"])
    else:
        assert shown == data
    out = await graph.ainvoke(Command(resume={"s": {"decision": "approve"}}), config)
    assert sent == [size]
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_step_with_large_parameters_cannot_be_approved() -> None:
    @capability_node(requires_approval=True)
    async def send(text: str) -> Receipt:
        """Send a text."""
        return Receipt(paid=1)

    graph = build_graph([Receipt, send], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    plan = [{"context_key": "s", "capability": "send", "parameters": {"text": "x" * 250_000}}]
    out = await graph.ainvoke({"planning_execution_plan": {"steps": plan}}, config)
    (entry,) = out["__interrupt__"][0].value["steps"]
    assert set(entry["decisions"]) == {"reject", "respond"}
