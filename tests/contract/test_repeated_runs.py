"""A turn, a run and a visit of a node are told apart: what is new acts, what is not does not."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

import capgraph
from capgraph import (
    BaseCapability,
    capability_node,
)
from capgraph.base import CapabilityError, ErrorClassification, ErrorSeverity
from capgraph.pipeline import Capacity
from capgraph.state import AgentState
from capgraph.testing import FakeClock
from tests.support import PATIENCE
from tests.support.doors import (
    STAGES,
    Gauge,
    Instead,
    answer,
    let_others_run,
    question,
    soon,
    status,
)
from tests.support.one_door import own_node

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Small(TypedDict, total=False):
    capability_context_data: dict[str, Any]
    rounds: int


def _pay(log: list[str], **declared: Any) -> Any:
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["GAUGE"]
        effect = "once"

        async def execute(self) -> Gauge:
            log.append(self.idempotency_key)
            return Gauge(value=len(log))

    for name, value in declared.items():
        setattr(Pay, name, value)
    return capability_node(Pay)


def _graph(node: Any, schema: Any = AgentState, *, times: int = 1, saver: Any = None) -> Any:
    builder: Any = StateGraph(schema)
    builder.add_node("pay", node)
    builder.add_edge(START, "pay")

    def again(state: Any) -> str:
        return "pay" if counted() < times else END

    calls = [0]

    def counted() -> int:
        calls[0] += 1
        return calls[0]

    builder.add_conditional_edges("pay", again, ["pay", END])
    return builder.compile(checkpointer=saver)


SAY: Any = {"messages": [("user", "pay")]}


@pytest.mark.row("B13")
@pytest.mark.parametrize("saver", [None, InMemorySaver])
@pytest.mark.parametrize("schema", [AgentState, Small])
async def test_a_second_run_of_a_graph_of_ones_own_acts_again(schema: Any, saver: Any) -> None:
    log: list[str] = []
    pay = _pay(log)
    graph = _graph(capgraph.bind([Gauge, pay]).node(pay), schema, saver=saver and saver())
    given = SAY if schema is AgentState else {"rounds": 1}
    for _ in range(3):
        await graph.ainvoke(given, CONFIG)
    assert len(log) == 3
    if saver is not None:
        assert len(set(log)) == 3, "each has a key of its own"


@pytest.mark.parametrize("schema", [AgentState, Small])
async def test_a_second_visit_in_one_run_is_a_second_effect(schema: Any) -> None:
    log: list[str] = []
    pay = _pay(log)
    node = capgraph.bind([Gauge, pay]).node(pay)
    graph = _graph(node, schema, times=3, saver=InMemorySaver())
    await graph.ainvoke(SAY if schema is AgentState else {"rounds": 1}, CONFIG)
    assert len(log) == 3
    assert len(set(log)) == 3


@pytest.mark.parametrize("how", ["nodes", "send"])
async def test_equal_effects_side_by_side_have_keys_of_their_own(how: str) -> None:
    log: list[str] = []
    pay = _pay(log)
    node = capgraph.bind([Gauge, pay]).node(pay)
    builder: Any = StateGraph(AgentState)
    if how == "nodes":
        for name in ("left", "right"):
            builder.add_node(name, node)
            builder.add_edge(START, name)
            builder.add_edge(name, END)
    else:
        builder.add_node("pay", node)
        builder.add_conditional_edges(START, lambda s: [Send("pay", s), Send("pay", s)], ["pay"])
    await builder.compile(checkpointer=InMemorySaver()).ainvoke(SAY, CONFIG)
    assert len(set(log)) == 2


async def test_a_node_that_is_run_again_after_a_stop_does_not_act_again() -> None:
    log: list[str] = []
    pay = _pay(log)
    node = capgraph.bind([Gauge, pay]).node(pay)
    stop = [True]

    async def beside(state: Any) -> Any:
        while not log:
            await asyncio.sleep(0)
        if stop.pop() if stop else False:
            raise OSError("gone")
        return {}

    builder: Any = StateGraph(Small)
    builder.add_node("pay", node)
    builder.add_node("beside", beside)
    for name in ("pay", "beside"):
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(OSError, match="gone"):
        await graph.ainvoke({"rounds": 1}, CONFIG)
    await graph.ainvoke(None, CONFIG)
    assert len(log) == 1


async def test_tries_of_an_earlier_run_are_not_counted() -> None:
    tries: list[int] = []

    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            tries.append(self.attempt)
            if self.attempt < 3:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            return Gauge(value=1)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.0}

    services = capgraph.bind([Gauge, Read], clock=FakeClock())
    graph = _graph(services.node(Read), Small, saver=InMemorySaver())
    for _ in range(2):
        await graph.ainvoke({"rounds": 1}, CONFIG)
    assert tries == [1, 2, 3] * 2


@pytest.mark.parametrize("saver", [None, InMemorySaver])
async def test_a_step_of_a_new_plan_has_all_its_tries(agent: Any, step: Any, saver: Any) -> None:
    tries: list[int] = []

    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"
        provides = ["GAUGE"]

        class Parameters(capgraph.CapabilityContext):
            round: int = 0

        async def execute(self) -> Gauge:
            tries.append(self.attempt)
            if self.attempt < 3:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            if len(tries) < 4:
                raise CapabilityError("no", severity=ErrorSeverity.REPLANNING)
            return Gauge(value=1)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.0}

    plans = [[step("a", "read")], [step("a", "read")]]
    it = agent(Gauge, Read, plans=plans, checkpointer=saver and saver())
    assert status(await it.ask()) == "completed"
    assert tries == [1, 2, 3] * 2


# --- the budget of tries never stops a turn that is right -----------------------------------------


def _unknown(log: list[int], times: int) -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["GAUGE"]
        effect = "once"
        on_unknown = "ask"

        async def execute(self) -> Gauge:
            log.append(1)
            if len(log) <= times:
                raise TimeoutError("no answer")
            return Gauge(value=1)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 1, "delay_seconds": 1.0, "backoff_factor": 1.0}

    return Pay


async def test_what_a_person_lets_run_again_is_not_stopped_by_the_budget(
    agent: Any, step: Any
) -> None:
    log: list[int] = []
    it = agent(Gauge, _unknown(log, 4), plans=[[step("a", "pay")]], checkpointer=InMemorySaver())
    out = await soon(it.ask())
    while out.get("__interrupt__"):
        question(out)
        out = await soon(answer(it, "rerun"))
    assert status(out) == "completed", out["messages"][-1].content
    assert len(log) == 5


async def test_more_tries_that_a_node_allows_are_in_the_budget(agent: Any, step: Any) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            if self.attempt < 6:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            return Gauge(value=1)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 2, "delay_seconds": 0.0, "backoff_factor": 1.0}

    @own_node("patient", after="orchestrator")
    async def Patient(state: Any) -> Any:
        return {"control_max_retries": 7}

    it = agent(Gauge, Read, Patient, plans=[[step(k, "read") for k in "abc"]])
    out = await soon(it.ask())
    assert status(out) == "completed", out["messages"][-1].content


async def test_fifty_steps_at_their_last_try(agent: Any, step: Any) -> None:
    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read"
        provides = ["GAUGE"]
        requires_approval = True

        async def execute(self) -> Gauge:
            if self.attempt < 3:
                raise CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)
            return Gauge(value=1)

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
            return ErrorClassification(ErrorSeverity.RETRIABLE, str(exc))

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 0.0, "backoff_factor": 1.0}

    it = agent(
        Gauge,
        Read,
        plans=[[step(f"s{n}", "read") for n in range(50)]],
        checkpointer=InMemorySaver(),
    )
    out = await it.ask()
    out = await it.graph.ainvoke(
        Command(resume={f"s{n}": {"decision": "approve"} for n in range(50)}), it.config()
    )
    assert status(out) == "completed", out["messages"][-1].content


@pytest.mark.parametrize("bound", [None, 2])
async def test_jumps_beside_a_plan_are_not_stopped_by_its_budget(
    agent: Any, step: Any, bound: int | None
) -> None:
    seen: list[int] = []

    def make(called: str) -> Any:
        class Read(BaseCapability):
            name = called
            description = "Read"
            provides = ["GAUGE"]

            async def execute(self) -> Gauge:
                seen.append(1)
                return Gauge(value=1)

            @staticmethod
            def get_retry_policy() -> dict[str, Any]:
                return {"max_attempts": 1}

        return capability_node(Read)

    @own_node("again", after="respond")
    async def Again(state: Any) -> Any:
        return Command(goto="jumped") if len(seen) < 4 else {}

    limits = {"max_turn_attempts": bound} if bound else {}
    items = [Gauge, make("read"), make("jumped"), Again]
    out = await soon(agent(*items, plans=[[step("a", "read")]], limits=limits).ask())
    assert status(out) == ("stopped" if bound else "completed")
    assert len(seen) == (bound or 4)


# --- cancellation ---------------------------------------------------------------------------------


async def test_a_capability_that_cancels_its_own_work_fails(agent: Any, step: Any) -> None:
    @capability_node
    async def read() -> Gauge:
        """Read."""
        inner = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner
        return Gauge(value=1)

    @capability_node
    async def other() -> Gauge:
        """Read elsewhere."""
        return Gauge(value=2)

    it = agent(Gauge, read, other, plans=[[step("a", "read"), step("b", "other")]])
    out = await soon(it.ask())
    assert status(out) == "failed"
    assert "cancel" in out["messages"][-1].content.lower()
    assert out["control_error_info"]["context_key"] == "a"
    assert out["execution_step_results"]["b"]["success"], "what ran beside it is kept"


# --- agreements -----------------------------------------------------------------------------------


async def test_one_agreement_is_not_two(agent: Any, step: Any) -> None:
    """The step that was agreed to left the plan, and two that do the same came."""
    log: list[str] = []
    pay = _pay(log, requires_approval=True)

    @capability_node
    async def fail() -> Gauge:
        """Fail."""
        raise CapabilityError("no", severity=ErrorSeverity.REPLANNING)

    plans = [[step("a", "pay"), step("b", "fail", GAUGE="a")], [step("x", "pay"), step("y", "pay")]]
    it = agent(Gauge, pay, fail, plans=plans, checkpointer=InMemorySaver())
    asked = [s["context_key"] for s in question(await soon(it.ask()))["steps"]]
    assert asked == ["a"]
    out = await soon(answer(it, {"a": {"decision": "approve"}}))
    assert len(log) == 1
    asked = [s["context_key"] for s in question(out)["steps"]]
    assert len(asked) == 1
    assert asked[0] in ("x", "y")
    out = await soon(answer(it, {asked[0]: {"decision": "approve"}}))
    assert status(out) == "completed"
    assert len(set(log)) == 2


@pytest.mark.row("B17")
async def test_a_bound_node_says_once_that_it_asks() -> None:
    pay = _pay([], requires_approval=True)
    node = capgraph.bind([Gauge, pay]).node(pay)
    graph = _graph(node, saver=InMemorySaver())

    async def kinds(given: Any) -> list[str]:
        return [e["event_type"] async for e in graph.astream(given, CONFIG, stream_mode="custom")]

    assert (await kinds(SAY)).count("approval_asked") == 1
    after = await kinds(Command(resume={"0_pay": {"decision": "approve"}}))
    assert "approval_asked" not in after
    assert "step_finished" in after


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_turn_holds_nothing(agent: Any, step: Any, stage: str) -> None:
    began = asyncio.Event()

    async def hold(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "read":
            began.set()
            await asyncio.Event().wait()
        return await call_next()

    @capability_node(max_parallel=1)
    async def read() -> Gauge:
        """Read."""
        return Gauge(value=1)

    capacity, plan = Capacity(), [step("a", "read"), step("b", "read")]
    options: Any = {"capacity": capacity, "behaviors": [Instead(stage, hold)]}
    it = agent(Gauge, read, plans=[plan], checkpointer=InMemorySaver(), **options)
    turn = asyncio.ensure_future(it.ask())
    await soon(began.wait())
    await let_others_run()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await let_others_run()
    assert capacity.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with asyncio.timeout(PATIENCE):  # a slot that somebody holds would never come
        await capacity.acquire("read", 1, 1)
