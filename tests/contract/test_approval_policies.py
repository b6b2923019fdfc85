"""Agreement of several people, of others than whoever asked, and for a while: on every path."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph import BaseCapability, bind, build_graph, capability_node
from capgraph.approvals import StandingRule, add_rule
from capgraph.base import CapabilityError, ErrorSeverity, PersistenceError, ValidationError
from capgraph.behaviors import RateLimitBehavior, RateLimiter
from capgraph.governance import ApprovalPolicy, Budget
from capgraph.pipeline.approval_records import ApprovalRecords
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.testing import FakeClock
from tests.support.doors import question, shown, status
from tests.support.one_door import Receipt, own_node, own_nodes, payer

TWO = ApprovalPolicy(approvers=2, not_requester=True)
PATHS = ["router", "bind", "goto"]


class Desk:
    """One way to a payment, with whoever asks and whoever answers."""

    def __init__(self, graph: Any, clock: Any, paid: list[int]) -> None:
        self.graph, self.clock, self.paid = graph, clock, paid

    async def run(self, given: Any, user: str | None, thread: str = "1") -> dict[str, Any]:
        named = {"user_id": user} if user is not None else {}
        config = {"configurable": {"thread_id": thread, **named}}
        return dict(await self.graph.ainvoke(given, config))

    async def ask(self, user: str | None = "alice", thread: str = "1") -> dict[str, Any]:
        return await self.run({"messages": [("user", "Pay")]}, user, thread)

    async def say(self, user: str | None, given: Any = "approve") -> dict[str, Any]:
        return await self.run(Command(resume=given), user)


@pytest.fixture
def desk(agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(
        path: str, policy: Any, store: Any = None, budget: Any = None, **declared: Any
    ) -> Desk:
        paid: list[int] = []
        pay = payer(paid, requires_approval=policy, **declared)
        if path == "bind":
            clock = FakeClock()
            node = bind([Receipt, pay], clock=clock, budget=budget).node(pay)
            builder = StateGraph(AgentState)
            builder.add_node("pay", node)
            builder.add_edge(START, "pay")
            return Desk(builder.compile(checkpointer=InMemorySaver(), store=store), clock, paid)
        options: dict[str, Any] = {"plans": [[step("a", "pay")]], "store": store, "budget": budget}
        if path == "goto":

            @own_node("orchestrator")
            async def jump(state: Any) -> Any:
                done = (state.get("execution_step_results") or {}).values()
                return Command(goto="respond" if done else "pay")

            options["infrastructure"] = own_nodes(monkeypatch, jump)
        it = agent(Receipt, pay, checkpointer=InMemorySaver(), **options)
        return Desk(it.graph, it.clock, paid)

    return make


@pytest.mark.row("A1")
@pytest.mark.parametrize("path", PATHS)
async def test_two_other_people_have_to_agree(desk: Any, path: str) -> None:
    it = desk(path, TWO)
    (entry,) = question(await it.ask("alice"))["steps"]
    assert entry["approvals"] == {"needed": 2, "agreed": [], "not_requester": True}
    out = await it.say("alice")
    assert "cannot approve it" in shown(out)
    out = await it.say("bob")
    assert it.paid == []
    assert question(out)["steps"][0]["approvals"]["agreed"] == ["bob"]
    assert "so far: bob" in shown(out)
    out = await it.say("bob")
    assert "has already approved" in shown(out)
    out = await it.say(None)
    assert "approver is unknown" in shown(out)
    assert it.paid == []
    await it.say("carol")
    assert it.paid == [5]


@pytest.mark.row("A1")
@pytest.mark.parametrize("path", PATHS)
async def test_one_person_twice_is_one(desk: Any, path: str) -> None:
    it = desk(path, ApprovalPolicy(approvers=2))
    await it.ask("alice")
    await it.say("alice")
    for _ in range(3):
        assert question(await it.say("alice"))
    assert it.paid == []
    await it.say("bob")
    assert it.paid == [5]


@pytest.mark.parametrize("path", PATHS)
async def test_who_began_the_turn_pays_whoever_agrees(desk: Any, path: str) -> None:
    budget = Budget(steps=2, per="user")
    calls = RateLimitBehavior(0.001, burst=1, wait_on_limit=False, per="user")
    it = desk(path, ApprovalPolicy(), budget=budget, behaviors=[calls])
    await it.ask("alice")
    await it.say("bob")
    assert it.paid == [5]
    assert [await budget.remaining(user) for user in ("alice", "bob")] == [
        {"steps": 1},
        {"steps": 2},
    ]
    await it.run({"messages": [("user", "Pay")]}, "bob", "2")
    await it.run(Command(resume="approve"), "alice", "2")
    assert it.paid == [5, 5]  # the limit of alice is used up, that of bob was not


@pytest.mark.parametrize("by", ["budget", "limit"])
async def test_who_began_a_run_pays_for_all_nodes_of_a_graph_of_ones_own(by: str) -> None:
    @capability_node(requires_approval=True)
    async def pay() -> dict[str, Any]:
        """Pay."""
        return {}

    @capability_node
    async def tell() -> dict[str, Any]:
        """Tell."""
        return {}

    nodes, budget = [pay, tell, tell], Budget(steps=9, per="user")
    limiter = RateLimiter(rpm=0.001, burst=3)
    limits = [RateLimitBehavior(limiter=limiter, wait_on_limit=False, per="user")]
    options: Any = {"budget": budget} if by == "budget" else {"behaviors": limits}
    services = bind([pay, tell], **options)
    own = StateGraph(AgentState).add_sequence(
        [(f"n{place}", services.node(node)) for place, node in enumerate(nodes)]
    )
    own.add_edge(START, "n0")
    graph = own.compile(checkpointer=InMemorySaver(), interrupt_before=["n2"])
    given = {"messages": [("user", "Pay")]}
    for who, *others in (["ann", "bob", "cy"], ["bob", "ann", "cy"]):
        for user, said in zip(
            [who, *others], (given, Command(resume="approve"), None), strict=True
        ):
            config: Any = {"configurable": {"thread_id": "1", "user_id": user}}
            await graph.ainvoke(said, config)
    for user, used in (("ann", 3), ("bob", 3), ("cy", 0)):
        if by == "budget":
            assert await budget.remaining(user) == {"steps": 9 - used}
        else:
            assert await limiter.try_acquire(user) is (not used)


@pytest.mark.row("A1")
@pytest.mark.parametrize("path", PATHS)
async def test_a_rejection_ends_it_however_many_have_agreed(desk: Any, path: str) -> None:
    it = desk(path, ApprovalPolicy(approvers=3))
    await it.ask()
    await it.say("bob")
    out = await it.say("carol", "reject")
    assert it.paid == []
    assert out["control_has_error"] or status(out) == "failed"


@pytest.mark.row("A2")
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_to_a_question_that_lapsed_does_not_count(desk: Any, path: str) -> None:
    it = desk(path, ApprovalPolicy(expires_seconds=60))
    await it.ask()
    it.clock.advance(61)
    out = await it.say("bob")
    assert it.paid == []
    assert "expired after 60 s" in shown(out)
    it.clock.advance(59)
    await it.say("bob")
    assert it.paid == [5]


@pytest.mark.row("A2")
@pytest.mark.parametrize("path", PATHS)
async def test_the_first_of_two_agreements_lapses_while_the_second_is_waited_for(
    desk: Any, path: str
) -> None:
    it = desk(path, ApprovalPolicy(approvers=2, expires_seconds=60))
    await it.ask()
    await it.say("bob")
    it.clock.advance(59)
    out = await it.say("carol")
    assert it.paid == [5], shown(out)
    it = desk(path, ApprovalPolicy(approvers=2, expires_seconds=60))
    await it.ask()
    it.clock.advance(30)
    await it.say("bob")
    it.clock.advance(61)
    out = await it.say("carol")
    assert it.paid == [], "the question had lapsed"
    assert question(out)["steps"][0]["approvals"]["agreed"] == []
    out = await it.say("carol")
    assert it.paid == [], "what the first had said has lapsed, too"
    assert question(out)["steps"][0]["approvals"]["agreed"] == ["carol"]
    await it.say("bob")
    assert it.paid == [5]


@pytest.mark.row("A2")
async def test_an_agreement_that_lapses_while_the_step_waits_is_asked_for_again(
    agent: Any, step: Any
) -> None:
    """Between the agreement and the step lies a wait for another try; the ledger looks last."""
    tries: list[int] = []

    @capability_node
    class Call(BaseCapability):
        name = "call"
        description = "Call"
        effect = "idempotent"
        requires_approval = ApprovalPolicy(expires_seconds=60)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 100.0, "backoff_factor": 1.0}

        async def execute(self) -> dict[str, Any]:
            tries.append(1)
            if len(tries) == 1:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            return {}

    it = agent(Call, plans=[[step("a", "call")]], checkpointer=InMemorySaver())
    await it.ask()
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert len(tries) == 1
    assert question(out)["steps"][0]["capability"] == "call"
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert (len(tries), status(out)) == (2, "completed")


@pytest.mark.row("A3")
@pytest.mark.parametrize("path", PATHS)
async def test_no_standing_rule_stands_for_a_person(desk: Any, path: str) -> None:
    store = InMemoryStore()
    await add_rule(store, StandingRule(capability="pay"))
    it = desk(path, TWO, store)
    out = await it.ask()
    key = question(out)["steps"][0]["context_key"]
    remember = {"decision": "approve", "remember": {"scope": "everywhere"}}
    out = await it.say("bob", {key: remember})
    assert "cannot be remembered" in shown(out)
    assert it.paid == []


@pytest.mark.row("A3")
async def test_the_requester_cannot_switch_the_others_off(agent: Any, step: Any) -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=TWO)
    settings = {"approvals": {"callers_may_disable": True}}
    plans = [[step("a", "pay")]]
    it = agent(Receipt, pay, plans=plans, settings=settings, checkpointer=InMemorySaver())
    assert question(await it.ask(agent_control={"approval_disabled": True}))
    assert paid == []


async def test_an_edit_is_one_persons_agreement_to_something_else(desk: Any) -> None:
    it = desk("router", TWO)
    await it.ask()
    await it.say("bob")
    out = await it.say("carol", {"a": {"decision": "edit", "parameters": {"amount": 9}}})
    entry = question(out)["steps"][0]
    assert (entry["parameters"]["amount"], entry["approvals"]["agreed"]) == (9, ["carol"])
    await it.say("bob")
    assert it.paid == [9]


async def test_who_agreed_stands_in_the_state_and_in_an_event(desk: Any) -> None:
    it = desk("router", TWO)
    await it.ask()
    await it.say("bob")
    config = {"configurable": {"thread_id": "1", "user_id": "carol"}}
    told = [
        event
        async for event in it.graph.astream(Command(resume="approve"), config, stream_mode="custom")
        if event["event_type"] == "approval_given"
    ]
    assert [(event["by"], event["decision"], event["capability"]) for event in told] == [
        ("carol", "approve", "pay")
    ]
    state = await it.graph.aget_state(config)
    assert state.values["approval_decisions"]["a"]["by"] == "carol"


@pytest.mark.row("A3")
async def test_who_a_server_authenticated_is_the_one_who_agrees(desk: Any) -> None:
    it = desk("router", ApprovalPolicy(not_requester=True))
    alice = {"thread_id": "1", "langgraph_auth_user": {"identity": "alice"}}
    await it.graph.ainvoke({"messages": [("user", "Pay")]}, {"configurable": alice})
    posing = {"configurable": {**alice, "user_id": "bob"}}
    out = await it.graph.ainvoke(Command(resume="approve"), posing)
    assert "cannot approve it" in shown(out)
    assert it.paid == []


@pytest.mark.row("A2")
async def test_an_agreement_serves_one_step(agent: Any, step: Any) -> None:
    """A step that was agreed to and done does not lend its agreement to those that do it again."""
    paid: list[int] = []
    pay = payer(paid, requires_approval=True, effect="none")

    @capability_node
    async def falter(receipt: Receipt) -> None:
        """Need another plan."""
        raise CapabilityError("Not like this.", severity=ErrorSeverity.REPLANNING)

    first = [step("a", "pay"), step("f", "falter", RECEIPT="a")]
    again = [step("b", "pay"), step("c", "pay")]
    it = agent(Receipt, pay, falter, plans=[first, again], checkpointer=InMemorySaver())
    await it.ask()
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert paid == [5]
    assert [entry["context_key"] for entry in question(out)["steps"]] == ["b", "c"]


@pytest.mark.row("A4")
async def test_what_is_shown_holds_nothing_that_deceives(agent: Any, step: Any) -> None:
    paid: list[int] = []
    told = step("a", "pay", {"order": "pay\u202e01\u202c\u200bPal\x1b[31m"})
    told["task_objective"] = "Pay \u2066nobody\u2069\u200b"
    pay = payer(paid, requires_approval=True)
    it = agent(Receipt, pay, plans=[[told]], checkpointer=InMemorySaver())
    text = shown(await it.ask())
    assert not {c for c in text if unicodedata.category(c) in {"Cf", "Cc"}}
    assert "u202e" in text
    text = shown(await it.ask(thread="2", agent_control={"planning_mode_enabled": True}))
    assert not {c for c in text if unicodedata.category(c) in {"Cf", "Cc"}}


@pytest.mark.parametrize(
    "given",
    [
        {"approvers": 0},
        {"approvers": True},
        {"approvers": 1.5},
        {"expires_seconds": 0},
        {"expires_seconds": float("nan")},
        {"expires_seconds": "1"},
    ],
    ids=str,
)
def test_numbers_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Fix"):
        ApprovalPolicy(**given)


def test_a_declaration_of_another_kind_is_refused() -> None:
    with pytest.raises(ValidationError, match="requires_approval"):
        payer([], requires_approval="yes")


async def test_an_answer_is_nobody_elses_whose_run_goes_on_after_a_crash(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = desk("router", TWO)
    await it.ask()
    with monkeypatch.context() as patched:

        async def dies(*_: Any, **__: Any) -> None:
            raise PersistenceError("The database is away.")

        patched.setattr(ApprovalRecords, "record_approval", dies)
        with pytest.raises(PersistenceError):
            await it.say("bob")
    out = await it.run(None, "carol")
    entry = question(out)["steps"][0]
    assert entry["approvals"]["agreed"] == []
    await it.say("bob")
    assert it.paid == []
    await it.say("carol")
    assert it.paid == [5]


async def test_an_answer_that_does_not_count_is_none_in_the_state(desk: Any) -> None:
    it = desk("router", TWO)
    await it.ask("alice")
    out = await it.say("alice")
    assert out["approval_approved"] is False
    assert "cannot approve it" in out["approval_decisions"]["a"]["refused"]
    out = await it.say("bob")
    assert "refused" not in out["approval_decisions"]["a"]


@pytest.mark.row("T14")
async def test_people_answer_from_processes_of_their_own(tmp_path: Any, step: Any) -> None:
    """Each asks and answers with a graph, a saver and a connection of their own."""
    paid: list[int] = []
    pay = payer(paid, requires_approval=TWO)

    async def run(user: str, given: Any) -> dict[str, Any]:
        async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
            graph = build_graph([Receipt, pay], checkpointer=saver)
            config: Any = {"configurable": {"thread_id": "1", "user_id": user}}
            return dict(await graph.ainvoke(given, config))

    plan = {"steps": [step("a", "pay")]}
    await run("alice", {"messages": [("user", "Pay")], "planning_execution_plan": plan})
    for user in ("alice", "bob", "bob"):
        assert question(await run(user, Command(resume="approve")))
    assert paid == []
    assert status(await run("carol", Command(resume="approve"))) == "completed"
    assert paid == [5]
