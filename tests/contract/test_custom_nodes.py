"""Whatever a node of one's own gives, the turn ends, and it ends with a message."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import END
from langgraph.types import Command, Send

from capgraph.base import CapabilityError
from capgraph.engine.caller_plan import plan_digest
from tests.support.doors import message_and_reason, soon, status
from tests.support.one_door import (
    Receipt,
    breaker,
    measurer,
    own_node,
    own_nodes,
    payer,
    said,
)
from tests.support.toys import Reading

ROLES = [
    "begin_turn",
    "task_extraction",
    "classifier",
    "orchestrator",
    "router",
    "respond",
    "clarify",
    "error",
]


def _given(role: str, given: Any) -> Any:
    @own_node(role)
    async def node(state: Any) -> Any:
        return given

    return node


@pytest.fixture
def turn(agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a turn in which one role is played by a node that always gives the same."""

    async def run(role: str, given: Any) -> dict[str, Any]:
        works = measurer([])
        fails = breaker("broken", CapabilityError("no power"))
        house = own_nodes(monkeypatch, _given(role, given))
        plan = [step("a", "broken" if role == "error" else "measure")]
        if role == "clarify":
            plan.append(step("z", "clarify"))
        made = agent(Reading, works, fails, plans=[plan], infrastructure=house)
        return dict(await soon(made.ask()))

    return run


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        7,
        {"nowhere": 1},
        {"planning_execution_plan": 7},
        {"planning_execution_plan": ["a"]},
        {"planning_execution_plan": {"steps": 7}},
        {"planning_execution_plan": {"steps": [7, {"context_key": ["a"]}]}},
        Command(goto=END),
        Command(goto="respond"),
        Command(update={"control_next_node": "respond"}),
    ],
    ids=repr,
)
async def test_a_turn_ends_with_a_message(turn: Any, role: str, given: Any) -> None:
    assert said(await turn(role, given))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("place", ["nowhere", ["nowhere"], Send("nowhere", {})], ids=repr)
async def test_a_place_that_does_not_exist_is_told(turn: Any, role: str, place: Any) -> None:
    out = await turn(role, Command(goto=place))
    assert status(out) == "failed"
    assert "unknown nodes: ['nowhere']" in message_and_reason(out)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "begin_turn"])
async def test_a_node_that_goes_to_itself_for_ever_is_bounded(turn: Any, role: str) -> None:
    out = await turn(role, Command(goto=role))
    assert said(out)
    if role not in ("respond", "clarify"):
        assert status(out) in {"stopped", "failed"}


async def test_only_the_gate_puts_a_plan_in_force(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that writes the mark of a checked plan beside its plan does not get round the check."""
    paid: list[int] = []
    plan = {"steps": [step("a", "pay", {"amount": 7, "ammount": 9})]}

    @own_node("orchestrator")
    async def forge(state: Any) -> Any:
        return {"planning_execution_plan": plan, "planning_accepted": plan_digest(plan)}

    it = agent(Receipt, payer(paid), infrastructure=own_nodes(monkeypatch, forge))
    out = await soon(it.ask())
    assert (status(out), paid) == ("failed", [])
    assert "planning_accepted" in said(out)


async def test_a_node_of_ones_own_may_hand_on_what_the_gate_gave(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capgraph.infrastructure.orchestrator import OrchestratorNode

    paid: list[int] = []

    @own_node("orchestrator")
    async def after(state: Any) -> Any:
        return None

    async def execute(state: Any, services: Any, streamer: Any, **_: Any) -> Any:
        return await OrchestratorNode.execute(state, services, streamer)

    after.execute = staticmethod(execute)
    house = own_nodes(monkeypatch, after)
    it = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], infrastructure=house)
    out = await soon(it.ask())
    assert (status(out), paid) == ("completed", [5])


@pytest.mark.row("B46")
@pytest.mark.parametrize("update", [{}, Command(goto="router")])
async def test_an_orchestrator_without_a_plan_runs_once_per_planning_attempt(
    agent: Any, monkeypatch: pytest.MonkeyPatch, update: Any
) -> None:
    calls: list[int] = []

    @own_node("orchestrator")
    async def node(state: Any) -> Any:
        calls.append(1)
        return update

    limits = {"max_planning_attempts": 3}
    made = agent(measurer([]), Reading, limits=limits, infrastructure=own_nodes(monkeypatch, node))
    outcome = (await soon(made.ask()))["execution_outcome"]
    assert len(calls) == 3
    assert (outcome["status"], outcome["code"]) == ("failed", "CG-PLAN")


async def test_a_jump_of_the_orchestrator_is_not_a_planning_attempt(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []

    @own_node("orchestrator")
    async def node(state: Any) -> Any:
        if len(runs) < 4:
            return Command(goto="measure")
        return {"planning_execution_plan": {"steps": [step("z", "respond")]}}

    limits = {"max_planning_attempts": 1}
    house = own_nodes(monkeypatch, node)
    made = agent(Reading, measurer(runs), limits=limits, infrastructure=house)
    assert status(await soon(made.ask())) == "completed"
    assert len(runs) == 4
