"""Sessions of an agent that is no graph: turns, tools, limits, people, failures."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import StateGraph
from langgraph.types import Command

from capgraph.base import StoppedError
from capgraph.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitOpenError,
    GuardrailViolationError,
    PatternGuardrail,
    RateLimiter,
    RateLimitExceededError,
)
from capgraph.compat.compliance import (
    ResidualRiskLevel,
    Risk,
    RiskRegistry,
    RiskUnacceptableError,
)
from capgraph.compat.session import (
    AgentRegistry,
    AgentSession,
    AgentStatus,
    HookContext,
    MaxIterationsExceededError,
    OrchestrationSession,
    Orchestrator,
    TurnTimeoutError,
)
from capgraph.compat.session_limits import (
    GovernanceBreachError,
    GovernancePlane,
    MaxConsecutiveFailuresLimit,
    MaxToolCallsLimit,
)
from capgraph.governance import (
    BudgetExceededError,
    CostExceeded,
    PermissionDeniedError,
    PermissionMode,
    PermissionPolicy,
    PhaseContext,
    PolicyAction,
    PolicyActionData,
    PolicyEngine,
    PolicyRule,
    QualityGate,
    QualityLevel,
    RolePermissionConfig,
    TimedOut,
    stop,
)
from capgraph.stores import open_saver
from capgraph.telemetry import (
    AgentEvent,
    AgentFailureClass,
    AuditLog,
    ModelPricing,
    PriceTable,
    UsageSnapshot,
)

PRICES = PriceTable({"m": ModelPricing(1.0, 1.0)})
DOLLAR = UsageSnapshot(input_tokens=1_000_000)


class Notes:
    """An event sink."""

    def __init__(self) -> None:
        self.told: list[AgentEvent] = []

    def emit(self, event: AgentEvent) -> None:
        self.told.append(event)

    @property
    def names(self) -> list[str]:
        return [event.event.value for event in self.told]


def agent(**given: Any) -> AgentSession:
    return AgentSession("writer", "draft", **given)


def priced(session: OrchestrationSession) -> OrchestrationSession:
    session.tracker.prices = PRICES
    return session


def fail() -> None:
    raise ConnectionError("port closed")


# Beginning and end


@pytest.mark.row("T10")
def test_a_successful_session_is_completed_and_emits_events() -> None:
    notes = Notes()
    with agent(event_sink=notes).session() as session:
        assert session.run_turn(lambda: 42, "m", DOLLAR) == (42, DOLLAR)
        assert session.worker.status is AgentStatus.RUNNING
    assert session.worker.status is AgentStatus.COMPLETED
    assert notes.names == ["agent.started", "phase.started", "agent.completed"]
    assert Orchestrator is AgentSession


def test_a_failed_session_has_a_reason() -> None:
    notes = Notes()
    with pytest.raises(ConnectionError), agent(event_sink=notes).session() as session:
        session.run_turn(fail)
    assert session.worker.status is AgentStatus.FAILED
    assert notes.told[-1].detail == "port closed"
    assert notes.names.count("agent.recovery.attempted") == 1
    assert len(session.summary().recovery_events) == 1


@pytest.mark.row("T10")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_session_that_is_interrupted_is_not_left_running(kind: type[BaseException]) -> None:
    def stop() -> None:
        raise kind

    with pytest.raises(kind), agent().session() as session:
        session.run_turn(stop)
    assert session.worker.status is AgentStatus.CANCELLED


@pytest.mark.row("T10")
async def test_a_cancelled_session_is_cancelled() -> None:
    seen: list[OrchestrationSession] = []

    async def work() -> None:
        async with agent().asession() as session:
            seen.append(session)
            await session.arun_turn(lambda: asyncio.sleep(60))

    task = asyncio.create_task(work())
    while not seen:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].worker.status is AgentStatus.CANCELLED


def test_an_unacceptable_risk_prevents_a_session() -> None:
    risks = RiskRegistry([Risk("R", "bursts", ResidualRiskLevel.UNACCEPTABLE)])
    registry = AgentRegistry()
    with pytest.raises(RiskUnacceptableError), agent(risks=risks, registry=registry).session():
        pytest.fail("it began")


# Turns


@pytest.mark.row("T11")
def test_max_iterations_is_checked_before_the_call() -> None:
    calls: list[int] = []
    with agent(max_iterations=2).session() as session:
        for _ in range(2):
            session.run_turn(lambda: calls.append(1))
        with pytest.raises(MaxIterationsExceededError, match="limit of 2 turns"):
            session.run_turn(lambda: calls.append(1))
    assert len(calls) == 2


@pytest.mark.row("T11")
async def test_a_turn_has_a_timeout() -> None:
    async with agent().asession() as session:
        with pytest.raises(TurnTimeoutError, match="exceeded its timeout"):
            await session.arun_turn(lambda: asyncio.sleep(60), timeout=0.01)


@pytest.mark.row("T11")
def test_a_blocking_function_is_abandoned_at_its_timeout() -> None:
    go = threading.Event()
    with agent().session() as session:
        with pytest.raises(TurnTimeoutError, match="exceeded its timeout"):
            session.run_turn(go.wait, timeout=0.01)
        assert session.run_turn(lambda: asyncio.sleep(0, 3), timeout=60)[0] == 3
    go.set()


@pytest.mark.row("T11")
async def test_turns_with_the_same_key_make_one_call() -> None:
    calls: list[int] = []

    async def work() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        return len(calls)

    async with agent().asession() as session:
        pair = await asyncio.gather(*(session.arun_turn(work, idempotency_key="k") for _ in "ab"))
        assert pair[0] == pair[1]
        assert (await session.arun_turn(work, idempotency_key="k"))[0] == 1
        await session.arun_turn(work, idempotency_key="other")
        with pytest.raises(ConnectionError):
            await session.arun_turn(fail, idempotency_key="bad")
        assert (await session.arun_turn(lambda: "now", idempotency_key="bad"))[0] == "now"
    assert len(calls) == 2


def test_an_exceeded_budget_is_emitted_once_and_enforced() -> None:
    notes = Notes()
    with agent(budget_usd=1.5, event_sink=notes).session() as session:
        priced(session)
        for _ in range(3):
            session.run_turn(lambda: None, "m", DOLLAR)
    assert [event.data for event in notes.told if event.data] == [
        {"budget_usd": 1.5, "cost_usd": 2.0}
    ]
    calls: list[int] = []
    strict = agent(budget_usd=1.5, enforce_budget=True)
    with strict.session() as session:
        session.run_turn(lambda: None)  # nobody says that it used anything
        priced(session).run_turn(lambda: None, "m", DOLLAR)
        with pytest.raises(BudgetExceededError, match=r"budget_usd=1\.5"):
            session.run_turn(lambda: calls.append(1), "m", estimate_usage=DOLLAR)
    assert calls == []
    assert session.worker.status is AgentStatus.FAILED


@pytest.mark.row("T11")
async def test_parallel_turns_reserve_their_cost() -> None:
    strict = agent(budget_usd=1.5, enforce_budget=True)
    async with strict.asession() as session:
        turn = priced(session).arun_turn
        both = [turn(lambda: asyncio.sleep(0), "m", estimate_usage=DOLLAR) for _ in "ab"]
        found = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["BudgetExceededError", "tuple"]
    assert session.tracker.total_cost() == 1.0


@pytest.mark.parametrize("given", [{"max_iterations": -1}, {"budget_usd": float("nan")}])
def test_invalid_limits_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        agent(**given)


@pytest.mark.row("T9")
@pytest.mark.parametrize("name", ["circuit_breaker", "async_circuit_breaker"])
def test_one_breaker_covers_all_turns(name: str) -> None:
    kind = CircuitBreaker if name == "circuit_breaker" else AsyncCircuitBreaker
    given: dict[str, Any] = {name: kind("m", failure_threshold=1)}
    with agent(**given).session() as session:
        with pytest.raises(ConnectionError):
            session.run_turn(fail, "one")
        with pytest.raises(CircuitOpenError):
            session.run_turn(lambda: pytest.fail("it was called"), "another")
        assert session.run_tool("look", lambda: 1) == 1, "it is about turns"


@pytest.mark.row("T9")
def test_a_breaker_and_a_router_see_the_failures() -> None:
    class Router:
        seen: list[Any]

        def __init__(self) -> None:
            self.seen = []

        def select(
            self, *, scenario: str, attempt: int, current: str | None, exclude: Any = ()
        ) -> str:
            self.seen.append((scenario, attempt, current))
            return "other"

    router = Router()
    breaker = CircuitBreaker("m", failure_threshold=2)
    with agent(breakers={"m": breaker}, provider_router=router).session() as session:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                session.run_turn(fail, "m")
        with pytest.raises(CircuitOpenError):
            session.run_turn(lambda: pytest.fail("it was called"), "m")
        assert session.worker.provider_used == "other"
    assert router.seen[0][1:] == (1, None)
    assert router.seen[1][2] == "other"


@pytest.mark.row("T31")
async def test_a_streamed_turn_ends_with_its_usage() -> None:
    async def pieces() -> Any:
        yield "a"
        yield DOLLAR
        yield "b"

    async with agent().asession() as session:
        found = [event async for event in session.arun_turn_stream(pieces, "m")]
    assert [event.type for event in found] == ["text_delta", "text_delta", "final"]
    assert found[-1].payload == {"status": "completed", "usage": DOLLAR.to_dict()}


@pytest.mark.row("T31")
async def test_a_failed_stream_emits_an_error_and_is_closed() -> None:
    closed: list[int] = []

    async def pieces() -> Any:
        try:
            yield "a"
            raise ConnectionError("port closed")
        finally:
            closed.append(1)

    async with agent().asession() as session:
        kinds: list[str] = []
        with pytest.raises(ConnectionError):
            async for event in session.arun_turn_stream(pieces):
                kinds.append(event.type)
        assert kinds == ["text_delta", "error", "final"]
        left = session.arun_turn_stream(pieces)
        await anext(left)
        await left.aclose()
        assert session.stream_cancelled
    assert len(closed) == 2


# Tools


def policy() -> PermissionPolicy:
    role = RolePermissionConfig("writer", PermissionMode.READ_ONLY)
    return PermissionPolicy([role], {"delete": PermissionMode.FULL_ACCESS})


@pytest.mark.row("T12")
def test_a_denied_tool_is_not_called() -> None:
    with agent(permissions=policy()).session() as session:
        assert session.run_tool("read", lambda: "text") == "text"
        with pytest.raises(PermissionDeniedError) as caught:
            session.run_tool("delete", lambda: pytest.fail("it was called"))
    assert not caught.value.outcome.allowed


@pytest.mark.row("T12")
def test_async_guardrails_check_arguments_and_results() -> None:
    class Later:
        name = "later"

        async def acheck_pre(self, *, role: str, tool: str, arguments: Any = None) -> Any:
            return await self._look(arguments)

        async def acheck_post(self, value: Any, *, role: str, tool: str) -> Any:
            return await self._look(value)

        async def _look(self, value: Any) -> Any:
            from capgraph.behaviors import GuardrailOutcome

            await asyncio.sleep(0)
            return GuardrailOutcome("bad" not in str(value), "it is bad")

    with agent(guardrails=[PatternGuardrail([r"secret"]), Later()]).session() as session:
        assert session.run_tool("read", lambda: "text", arguments={"a": "b"}) == "text"
        for arguments, result in (({"a": "secret"}, "x"), ({"a": "bad"}, "x"), ({}, "bad")):
            with pytest.raises(Exception, match=r"guard|bad|secret"):
                session.run_tool("read", lambda found=result: found, arguments=arguments)


@pytest.mark.row("T12")
def test_a_guardrail_may_rewrite_a_result_but_no_arguments() -> None:
    class Cover:
        name = "cover"

        def check_pre(self, *, role: str, tool: str, arguments: Any = None) -> Any:
            return self._cover(arguments, {"a": "*"})

        def check_post(self, value: Any, *, role: str, tool: str) -> Any:
            assert (role, tool) == ("writer", "read")
            return self._cover(value, "*")

        def _cover(self, value: Any, instead: Any) -> Any:
            from capgraph.behaviors import GuardrailOutcome

            action = "rewrite" if "secret" in str(value) else "ask" if "odd" in str(value) else None
            return GuardrailOutcome(True, action=action, value=instead)

    with agent(guardrails=[Cover()]).session() as session:
        assert session.run_tool("read", lambda: "secret") == "*"
        whole = {"an", "object"}
        assert session.run_tool("read", lambda: whole) is whole
        with pytest.raises(GuardrailViolationError, match="approval is only possible"):
            session.run_tool("read", lambda: "odd")
        with pytest.raises(GuardrailViolationError, match="arguments are fixed"):
            session.run_tool(
                "read", lambda: pytest.fail("it was called"), arguments={"a": "secret"}
            )


@pytest.mark.row("T12")
def test_the_audit_has_the_decisions_of_the_pipeline(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    with agent(audit_log=log, permissions=policy()).session() as session:
        session.run_turn(lambda: None, "m", DOLLAR)
        session.run_tool("read", lambda: 1)
        with pytest.raises(PermissionDeniedError):
            session.run_tool("delete", lambda: pytest.fail("it was called"))
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["turn", "policy", "tool", "refused"]
    assert log.verify()


@pytest.mark.row("T12")
async def test_no_tool_starts_in_a_stopped_run(tmp_path: Path) -> None:
    """And one that waits for a person waits with its run, whose question outlives the process."""
    seen: list[OrchestrationSession] = []

    async def work(state: dict[str, Any]) -> dict[str, Any]:
        async with agent().asession() as session:
            seen.append(session)
            given = await session.pause_for_input("how much?")
            await stop(saver, thread="1")
            with pytest.raises(StoppedError):
                await session.arun_tool("read", lambda: pytest.fail("it was called"))
            return {"said": given}

    async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
        own: Any = StateGraph(dict[str, Any])  # type: ignore[type-var]
        graph = own.add_node("work", work).set_entry_point("work").compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "1"}}
        found = await graph.ainvoke({"a": 1}, config)
        assert found["__interrupt__"][0].value == "how much?"
        assert seen[0].worker.status is AgentStatus.WAITING_FOR_INPUT
        assert (await graph.ainvoke(Command(resume=5), config))["said"] == 5


@pytest.mark.row("T32")
async def test_parallel_tools_keep_their_order_and_pass_all_checks() -> None:
    async def after(seconds: float, value: str) -> str:
        await asyncio.sleep(seconds)
        return value

    async with agent(permissions=policy()).asession() as session:
        found = await session.arun_parallel_tools(
            [("read", lambda: after(0.01, "a")), ("read", lambda: after(0, "b"))]
        )
        assert found == ["a", "b"]
        with pytest.raises(PermissionDeniedError):
            await session.arun_parallel_tools([("read", lambda: "a"), ("delete", lambda: "b")])


def test_limits_end_a_session_and_count_per_session() -> None:
    plane = GovernancePlane([MaxToolCallsLimit(1), MaxConsecutiveFailuresLimit(1)])
    limited = agent(governance=plane)
    for _ in range(2):
        with pytest.raises(GovernanceBreachError), limited.session() as session:
            session.run_tool("read", lambda: "a")
            session.run_tool("read", lambda: pytest.fail("it was called"))
        assert session.worker.status is AgentStatus.FAILED


@pytest.mark.row("T29")
def test_hooks_may_change_values_and_none_keeps_them() -> None:
    class Cut:
        async def before_tool(self, context: HookContext) -> None:
            context.args["n"] = 1

        def after_tool(self, context: HookContext, result: str) -> str:
            return f"{result}{context.args['n']}"

        def after_model(self, context: HookContext, result: str) -> None:
            return None

    with agent(hooks=[Cut(), Cut()]).session() as session:
        assert session.run_tool("read", lambda: "a") == "a11"
        assert session.run_turn(lambda: "b")[0] == "b"


@pytest.mark.row("T9")
@pytest.mark.may_block
async def test_names_of_the_source_system_are_accepted() -> None:
    seen: list[Any] = []

    class Told:
        async def abefore_tool(self, context: HookContext) -> None:
            seen.append((context.tool, context.args, context.extra))

        def after_model(self, context: HookContext, result: str) -> str:
            return f"{context.model}: {result}"

    limiter = RateLimiter(rpm=1, clock=lambda: 0.0)
    rules = [PolicyRule("slow", TimedOut(60), [PolicyActionData(PolicyAction.ESCALATE)])]
    made = AgentSession(
        "writer", "draft", 7, None, policy(), hooks=[Told()], async_rate_limiter=limiter,
        policy_engine=PolicyEngine(rules),
    )  # fmt: skip
    async with made.asession(thread_id="t") as session:
        used = await session.arun_turn(
            lambda: "text", "m", estimate_usage=lambda result: UsageSnapshot(len(result))
        )
        assert used == ("m: text", UsageSnapshot(4))
        with pytest.raises(RateLimitExceededError):
            await asyncio.wait_for(limiter.acquire("m", timeout=0), 1)
        context = HookContext("writer", "draft", tool="read", args={"a": 1}, extra={"id": 2})
        assert await session.arun_tool(tool_name="read", fn=lambda: 1, hook_ctx=context) == 1
        assert seen == [("read", {"a": 1}, {"id": 2})]

        def one() -> int:
            return 1

        assert await session.arun_parallel_tools([one, one], timeout=60) == [1, 1]
        assert session.authorize("read").allowed
        assert not session.authorize("delete").allowed
        assert session.evaluate_policy(elapsed_seconds=61.0, quality_level=None)
        assert (session.worker.project_id, session.thread_id) == (7, "t")
        session.fail("no more", AgentFailureClass.TOOL_ERROR)
    assert session.worker.status is AgentStatus.FAILED
    assert session.events[-1].failure_class is AgentFailureClass.TOOL_ERROR


# People and the end


@pytest.mark.row("T14")
async def test_a_session_waits_for_its_input() -> None:
    async with agent().asession() as session:
        with pytest.raises(RuntimeError, match="does not wait for input"):
            session.provide_input(1)
        waiting = asyncio.create_task(session.pause_for_input("how much?"))
        await asyncio.sleep(0)
        assert session.worker.status is AgentStatus.WAITING_FOR_INPUT
        with pytest.raises(RuntimeError, match="waiting_for_input"):
            await session.pause_for_input()
        session.provide_input(5)
        assert await waiting == 5
        assert session.worker.status is AgentStatus.RUNNING
    with pytest.raises(RuntimeError, match="completed"):
        await session.pause_for_input()


@pytest.mark.row("T8")
def test_a_handoff_completes_the_source_and_prepares_the_target() -> None:
    notes, registry = Notes(), AgentRegistry()
    with agent(event_sink=notes, registry=registry).session() as session:
        handoff = session.handoff_to("editor", "too long", {"text": ["a"]})
    worker = registry.get(handoff.target_worker_id)
    assert worker is not None
    assert worker.status is AgentStatus.INITIALIZING
    assert notes.told[-1].data is not None
    assert notes.told[-1].data["handoff"]["target_role"] == "editor"
    assert [worker.role for worker in registry.list_active()] == ["editor"]


@pytest.mark.row("T15")
def test_a_gate_emits_an_event_and_a_summary_is_complete() -> None:
    notes = Notes()
    gated = agent(event_sink=notes, quality_gate=QualityGate(QualityLevel.STANDARD))
    with gated.session() as session:
        assert session.evaluate_policy() == []
        assert session.evaluate_gate(QualityLevel.STRICT).satisfied
        assert not session.evaluate_gate(None).satisfied
        priced(session).run_turn(lambda: None, "m", DOLLAR)
        summary = session.summary()
    gate_events = [name for name in notes.names if name.startswith("phase.gate")]
    assert gate_events[1::2] == ["phase.gate_passed", "phase.gate_failed"]
    assert summary.per_model_cost == summary["per_model_cost"] == {"m": 1.0}
    assert json.loads(json.dumps(summary)) == summary, "plain data"
    assert copy.deepcopy(summary) == summary
    assert not hasattr(summary, "workers")
    assert summary.worker["status"] == "running"
    assert len(summary.agent_events) == 6


def test_policies_receive_the_state_of_the_session() -> None:
    seconds = [0.0]
    rules = [
        PolicyRule("slow", TimedOut(60), [PolicyActionData(PolicyAction.ESCALATE)]),
        PolicyRule("dear", CostExceeded(1.5), [PolicyActionData(PolicyAction.ABORT_PHASE)]),
    ]
    watched = agent(policy_engine=PolicyEngine(rules), clock=lambda: seconds[0])
    with watched.session() as session:
        assert session.evaluate_policy() == []
        seconds[0] = 61.0
        for _ in range(2):
            priced(session).run_turn(lambda: None, "m", DOLLAR)
        found = [action.action for action in session.evaluate_policy()]
        assert found == [PolicyAction.ESCALATE, PolicyAction.ABORT_PHASE]
        assert session.evaluate_policy(PhaseContext()) == []


def test_a_failed_sink_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def emit(self, event: AgentEvent) -> None:
            raise OSError("disk full")

    with agent(event_sink=Broken()).session() as session:
        session.run_turn(lambda: 1)
    assert session.worker.status is AgentStatus.COMPLETED
    assert "disk full" in caplog.text
