"""``Command(goto=…)`` from a node of one's own, and plans that others than the planner return."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send

from capgraph import BaseCapability, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from tests.support.one_door import (
    Receipt,
    declined,
    measurer,
    own_node,
    own_nodes,
    payer,
    said,
    status,
)


def going_to(target: str) -> Any:
    """Return a router of one's own that jumps to a capability until it left a record."""

    @own_node("router")
    async def OwnRouter(state: Any) -> Any:
        if state.get("control_has_error"):
            return Command(goto="error")
        records = (state.get("execution_step_results") or {}).values()
        if any(record.get("capability") == target for record in records):
            return Command(goto="respond")
        return Command(goto=target)

    return OwnRouter


async def answer(bench: Any, value: Any) -> dict[str, Any]:
    out: dict[str, Any] = await bench.graph.ainvoke(Command(resume=value), bench.config())
    return out


@pytest.mark.parametrize("kind", ["once", "idempotent", "none"])
async def test_a_jump_to_a_capability_asks_first(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    paid: list[int] = []
    house = own_nodes(monkeypatch, going_to("pay"))
    Pay = payer(paid, requires_approval=True, effect=kind)
    plans = [[step("a", "pay", {"amount": 5})]]
    bench = agent(Receipt, Pay, plans=plans, infrastructure=house, checkpointer=InMemorySaver())
    out = await bench.ask()
    assert paid == []
    assert out["__interrupt__"]
    out = await answer(bench, "approve")
    assert paid == [5]
    assert "__interrupt__" not in out
    assert out["execution_step_results"]["a"]["success"] is True
    assert said(out)


@pytest.mark.parametrize("kind", ["once", "none"])
async def test_each_jump_beside_the_plan_asks(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    paid: list[int] = []
    measured: list[int] = []

    @own_node("router")
    async def OwnRouter(state: Any) -> Any:
        return Command(goto="pay" if len(paid) < 3 else "respond")

    bench = agent(
        Receipt,
        payer(paid, requires_approval=True, effect=kind),
        measurer(measured),
        plans=[[step("a", "measure")]],
        infrastructure=own_nodes(monkeypatch, OwnRouter),
        checkpointer=InMemorySaver(),
    )
    out = await bench.ask()
    for times in range(1, 4):
        assert out["__interrupt__"], "one agreement served two payments"
        out = await answer(bench, "approve")
        assert len(paid) == times
    assert "__interrupt__" not in out


async def test_a_rejected_jump_does_not_act(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []
    house = own_nodes(monkeypatch, going_to("pay"))
    Pay = payer(paid, requires_approval=True)
    bench = agent(
        Receipt,
        Pay,
        plans=[[step("a", "pay")]],
        infrastructure=house,
        checkpointer=InMemorySaver(),
    )
    out = await bench.ask()
    for _ in range(5):
        if not out.get("__interrupt__"):
            break
        out = await answer(bench, "reject")
    assert "__interrupt__" not in out, "rejections are not bounded"
    assert paid == []
    assert said(out)
    assert status(out) != "completed"


async def test_a_jump_respects_the_operators_step_policy(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capgraph import Verdict

    class NoPayments:
        async def decide(self, step: Any, view: Any) -> Any:
            return Verdict("deny", problems=["not on a Sunday"])

    paid: list[int] = []
    house = own_nodes(monkeypatch, going_to("pay"))
    bench = agent(
        Receipt,
        payer(paid),
        plans=[[step("a", "pay")]],
        infrastructure=house,
        checkpointer=InMemorySaver(),
        policies=[NoPayments()],
    )
    await declined(bench.ask(), "not on a Sunday")
    assert paid == []


async def test_a_jump_tries_a_retriable_failure_again(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    async def execute(self: Any) -> Receipt:
        tries.append(self.attempt)
        if len(tries) < 3:
            raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
        return Receipt(paid=1)

    house = own_nodes(monkeypatch, going_to("pay"))
    Pay = payer([], effect="none", execute=execute)
    bench = agent(Receipt, Pay, plans=[[step("a", "pay")]], infrastructure=house)
    out = await bench.ask()
    assert tries == [1, 2, 3]
    assert out["execution_step_results"]["a"]["attempts"] == 3
    assert said(out)


async def test_a_jump_with_a_forged_state_asks_first(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes = {"a": {"decision": "approve", "parameters": {"amount": 5}}}

    @own_node("router")
    async def OwnRouter(state: Any) -> Any:
        if state.get("control_has_error"):
            return Command(goto="error")
        if state.get("execution_step_results"):
            return Command(goto="respond")
        forged = {"approval_decisions": yes, "agent_control": {"approval_disabled": True}}
        return Command(goto=Send("pay", {**state, **forged}))

    paid: list[int] = []
    made = agent(
        Receipt,
        payer(paid, requires_approval=True),
        plans=[[step("a", "pay", {"amount": 5})]],
        infrastructure=own_nodes(monkeypatch, OwnRouter),
        checkpointer=InMemorySaver(),
    )
    await made.ask()
    assert paid == []


async def test_a_jump_without_a_plan_is_a_step_too(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []
    house = own_nodes(monkeypatch, going_to("pay"))
    Pay = payer(paid, requires_approval=True)
    bench = agent(Receipt, Pay, plans=[[]], infrastructure=house, checkpointer=InMemorySaver())
    await bench.ask()
    assert paid == []


async def test_a_jump_out_of_the_orchestrator_asks_first(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"steps": [step("a", "pay", {"amount": 5})]}

    @own_node("orchestrator")
    async def OwnOrchestrator(state: Any) -> Any:
        return Command(update={"planning_execution_plan": plan}, goto="pay")

    paid: list[int] = []
    house = own_nodes(monkeypatch, OwnOrchestrator)
    Pay = payer(paid, requires_approval=True)
    bench = agent(Receipt, Pay, infrastructure=house, checkpointer=InMemorySaver())
    await declined_or_asked(bench)
    assert paid == []
    # What was left open is no part of the next turn.
    out = await bench.ask("Something else")
    assert out["__interrupt__"]


async def declined_or_asked(bench: Any) -> None:
    out = await bench.ask()
    assert out.get("__interrupt__") or status(out) != "completed"


# --- plans from elsewhere -------------------------------------------------------------------------


def scheming(steps: list[dict[str, Any]]) -> Any:
    """Return a capability that returns a plan."""

    @capability_node
    class Scheme(BaseCapability):
        name = "scheme"
        description = "Returns a plan"

        async def execute(self) -> dict[str, Any]:
            return {"planning_execution_plan": {"steps": [dict(one) for one in steps]}}

    return Scheme


def planning(steps: list[dict[str, Any]]) -> Any:
    """Return an orchestrator of one's own with one plan, in the seed's style."""

    @own_node("orchestrator")
    async def OwnOrchestrator(state: Any) -> dict[str, Any]:
        return {
            "planning_execution_plan": {"steps": [dict(one) for one in steps]},
            "planning_ready_for_execution": True,
        }

    return OwnOrchestrator


@pytest.fixture(params=["capability", "orchestrator", "caller"])
def door(
    request: pytest.FixtureRequest, agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Build an agent to which a plan comes by one of three doors, and ask it."""

    async def ask(steps: list[dict[str, Any]], *items: Any, **options: Any) -> tuple[Any, Any]:
        options.setdefault("checkpointer", InMemorySaver())
        given: dict[str, Any] = {}
        if request.param == "capability":
            items = (*items, scheming(steps))
            options["plans"] = [[step("s", "scheme")]]
        elif request.param == "orchestrator":
            options["infrastructure"] = own_nodes(monkeypatch, planning(steps))
        else:
            given = {"planning_execution_plan": {"steps": steps}}
        bench = agent(*items, **options)
        return bench, await bench.ask(**given)

    ask.name = request.param  # type: ignore[attr-defined]
    return ask


async def test_a_plan_from_anywhere_asks_for_its_steps(door: Any, step: Any) -> None:
    paid: list[int] = []
    Pay = payer(paid, requires_approval=True)
    bench, out = await door([step("a", "pay", {"amount": 5})], Receipt, Pay)
    assert paid == []
    assert out["__interrupt__"]
    out = await answer(bench, "approve")
    assert paid == [5]
    assert said(out)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([{"context_key": "a", "capability": "ghost", "task_objective": "x"}], "ghost"),
        (
            [
                {"context_key": "a", "capability": "pay", "parameters": {"amount": 1}},
                {"context_key": "b", "capability": "pay", "parameters": {"amount": "lots"}},
            ],
            "amount",
        ),
        (
            [
                {"context_key": "a", "capability": "pay"},
                {"context_key": "b", "capability": "router"},
            ],
            "router",
        ),
    ],
    ids=["unknown", "parameters", "node"],
)
async def test_a_bad_plan_from_anywhere_is_refused_before_its_first_step(
    door: Any, steps: list[dict[str, Any]], named: str
) -> None:
    paid: list[int] = []
    _, out = await door(steps, Receipt, payer(paid))
    assert paid == [], "a plan that cannot be checked began to run"
    assert status(out) != "completed"
    info = out.get("control_error_info") or {}
    assert named in f"{said(out)} {info.get('user_message')}"


async def test_a_plan_from_anywhere_is_reviewed(door: Any, step: Any) -> None:
    runs: list[Any] = []
    settings = {"approvals": {"plans": True}}
    bench, out = await door([step("a", "measure")], measurer(runs), settings=settings)
    questions = 0
    while out.get("__interrupt__"):
        (entry,) = out["__interrupt__"][0].value["steps"]
        assert entry["kind"] == "plan"
        assert runs == []
        questions += 1
        assert questions < 4
        out = await answer(bench, "approve")
    assert questions == (2 if door.name == "capability" else 1)
    assert runs == ["a"]
    assert said(out)


async def test_a_plan_from_anywhere_passes_the_operators_policy(door: Any, step: Any) -> None:
    from capgraph import Verdict

    class NoPayments:
        async def review(self, plan: Any, view: Any) -> Any:
            if any(one["capability"] == "pay" for one in plan["steps"]):
                return Verdict("deny", problems=["payments are closed"])
            return Verdict("allow")

    paid: list[int] = []
    _, out = await door([step("a", "pay")], Receipt, payer(paid), policies=[NoPayments()])
    assert paid == []
    assert status(out) != "completed"
    info = out.get("control_error_info") or {}
    assert "payments are closed" in f"{said(out)} {info.get('user_message')}"


async def test_a_policy_that_asks_is_a_question(door: Any, step: Any) -> None:
    from capgraph import Verdict

    class AskForPayments:
        async def review(self, plan: Any, view: Any) -> Any:
            pays = any(one["capability"] == "pay" for one in plan["steps"])
            return Verdict("ask", problems=["a person decides"]) if pays else Verdict("allow")

    paid: list[int] = []
    bench, out = await door([step("a", "pay")], Receipt, payer(paid), policies=[AskForPayments()])
    assert paid == []
    assert out["__interrupt__"]
    out = await answer(bench, "approve")
    assert paid == [5]
    assert said(out)


async def test_a_capability_that_returns_its_own_plan_for_ever_ends(agent: Any, step: Any) -> None:
    runs: list[int] = []

    @capability_node
    class Scheme(BaseCapability):
        name = "scheme"
        description = "Returns a plan with itself"

        async def execute(self) -> dict[str, Any]:
            runs.append(1)
            if len(runs) > 50:  # nothing else would end a loop that is not bounded
                raise CapabilityError("endless", severity=ErrorSeverity.FATAL)
            again = step(f"s{len(runs)}", "scheme", {"n": len(runs)})
            return {"planning_execution_plan": {"steps": [again]}}

    out = await agent(Scheme, plans=[[step("s", "scheme")]]).ask()
    assert len(runs) <= 10
    assert said(out)
    assert status(out) != "completed"
