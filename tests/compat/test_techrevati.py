"""The document of techrevati-runtime: its names with their imports changed, and what its rows promise."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import Command
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import capgraph.behaviors
from capgraph import bind, build_graph, capability_node
from capgraph.behaviors import (
    GuardrailOutcome,
    GuardrailViolationError,
    PatternGuardrail,
    PIIGuardrail,
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
    AgentSession,
    HookContext,
    MaxIterationsExceededError,
    OrchestrationSession,
    TurnTimeoutError,
)
from capgraph.compat.session_hooks import (
    HookBudgetExceededError,
    LogModelIOHook,
    RedactPIIHook,
    TokenBudgetCheckHook,
)
from capgraph.engine.capability_node import run_standalone_step
from capgraph.governance import (
    BudgetExceededError,
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
    RecoveryContext,
    RecoveryStep,
    RetryExhausted,
    RolePermissionConfig,
)
from capgraph.telemetry import (
    AgentEvent,
    AgentFailureClass,
    ModelPricing,
    OpenTelemetrySink,
    PriceTable,
    PricingAlreadyRegisteredError,
    UsageSnapshot,
)
from capgraph.testing import FakeClock

# The names that the document's package exports, by the module that has them here.
NAMES = {
    "capgraph.telemetry": """AgentEvent AgentEventName AgentEventStatus AgentFailureClass ModelPricing
        UsageSnapshot has_pricing load_pricing_from_file register_pricing""",
    "capgraph.compat.session_usage": "NoopUsageSink RingBufferUsageSink UsageSink UsageTracker",
    "capgraph.compat.session": """AgentRegistry AgentSession AgentStatus AgentWorker AgentWorkerEvent
        AsyncOrchestrationSession EventSink Handoff InvalidTransitionError
        MaxIterationsExceededError NoopEventSink OrchestrationSession Orchestrator
        RingBufferEventSink TurnTimeoutError""",
    "capgraph.behaviors": """AllowAllGuardrail AsyncCircuitBreaker CircuitBreaker CircuitOpenError
        CircuitState Guardrail GuardrailOutcome GuardrailStage GuardrailViolatedError
        backoff_delay""",
    "capgraph.governance": """BudgetExceededError EscalationPolicy FailureScenario
        PermissionDeniedError PermissionEnforcer PermissionMode PermissionOutcome PermissionPolicy
        PhaseContext PolicyAction PolicyActionData PolicyCondition PolicyEngine PolicyRule
        QualityGate QualityGateOutcome QualityLevel RecoveryContext RecoveryEvent RecoveryRecipe
        RecoveryResult RecoveryStep RolePermissionConfig aattempt_recovery attempt_recovery
        classify_exception next_provider recipe_for smaller_context_budget""",
}
PRICES = PriceTable({"m": ModelPricing(1.0, 1.0)})
DOLLAR = UsageSnapshot(input_tokens=1_000_000)


class Events:
    """An event sink."""

    def __init__(self) -> None:
        self.received: list[AgentEvent] = []

    def emit(self, event: AgentEvent) -> None:
        self.received.append(event)

    @property
    def names(self) -> list[str]:
        return [event.event.value for event in self.received]

    def first(self, name: str) -> AgentEvent:
        return next(event for event in self.received if event.event.value == name)


class Recorder:
    """A guardrail that records what it checks and allows it."""

    name = "recorder"

    def __init__(self) -> None:
        self.arguments: list[dict[str, Any]] = []

    def check_pre(self, *, role: str, tool: str, arguments: Any = None) -> GuardrailOutcome:
        self.arguments.append(dict(arguments))
        return GuardrailOutcome(True)

    def check_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        return GuardrailOutcome(True)


def writer(**options: Any) -> AgentSession:
    return AgentSession("writer", "draft", **options)


def policy() -> PermissionPolicy:
    role = RolePermissionConfig("writer", PermissionMode.READ_ONLY)
    return PermissionPolicy([role], {"delete": PermissionMode.FULL_ACCESS})


def time_out() -> None:
    raise TimeoutError("no answer")


@pytest.mark.row("T9", "T16", "T17", "T20", "T25")
@pytest.mark.parametrize("module", NAMES)
def test_names_of_the_document_exist(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


@pytest.mark.row("T9")
def test_signature_of_the_document_is_accepted() -> None:
    parameters = list(inspect.signature(AgentSession).parameters)
    documented = [
        "role",
        "phase",
        "project_id",
        "registry",
        "permissions",
        "circuit_breaker",
        "async_circuit_breaker",
        "policy_engine",
        "quality_gate",
        "budget_usd",
        "enforce_budget",
        "max_iterations",
        "guardrails",
        "event_sink",
        "usage_sink",
        "rate_limiter",
        "async_rate_limiter",
        "provider_router",
        "usage_limits",
        "governance",
        "hooks",
        "audit_log",
    ]
    assert [name for name in parameters if name in documented] == documented


# T1: events


@pytest.mark.row("T1")
def test_a_session_emits_the_events_of_its_life() -> None:
    class Hook:
        def before_tool(self, context: HookContext) -> None: ...

        def after_tool(self, context: HookContext, result: Any) -> Any:
            return result

    events = Events()
    agent = writer(
        event_sink=events, hooks=[Hook()], quality_gate=QualityGate(QualityLevel.STANDARD)
    )
    with agent.session() as session:
        session.run_tool("read", lambda: 1)
        session.evaluate_gate(QualityLevel.STRICT)
    assert events.names == [
        "agent.started", "phase.started", "hook.pre_tool", "agent.tool_called", "hook.post_tool",
        "agent.tool_completed", "phase.gate_evaluated", "phase.gate_passed", "agent.completed",
    ]  # fmt: skip
    assert events.first("hook.pre_tool").data == {"tool": "read"}


@pytest.mark.row("T1", "T3")
def test_events_carry_the_project() -> None:
    events = Events()
    with writer(event_sink=events, project_id=7).session():
        pass
    assert {event.project_id for event in events.received} == {7}


@pytest.mark.row("T1", "T14")
async def test_a_session_that_waits_for_input_is_blocked_and_ready_again() -> None:
    events = Events()
    async with writer(event_sink=events).asession() as session:
        waiting = asyncio.create_task(session.pause_for_input("how much?"))
        while "agent.blocked" not in events.names:
            await asyncio.sleep(0)
        session.provide_input(5)
        assert await waiting == 5
    assert events.names[2:4] == ["agent.blocked", "agent.ready"]
    assert events.first("agent.blocked").data == {"kind": "human_input"}


# T7, T12: order of checks


@pytest.mark.row("T7", "T12")
def test_a_denial_precedes_guardrails_and_hooks_and_is_an_event() -> None:
    calls: list[str] = []

    class Hook:
        def before_tool(self, context: HookContext) -> None:
            calls.append(context.tool)

    events, guardrail = Events(), Recorder()
    agent = writer(permissions=policy(), guardrails=[guardrail], hooks=[Hook()], event_sink=events)
    with agent.session() as session, pytest.raises(PermissionDeniedError):
        session.run_tool("delete", lambda: pytest.fail("it was called"), arguments={"a": 1})
    assert (guardrail.arguments, calls) == ([], [])
    assert events.first("agent.blocked").data == {"tool": "delete", "kind": "permission"}
    assert not [name for name in events.names if name.startswith("agent.recovery")]


@pytest.mark.row("T7", "T16")
async def test_a_denial_in_a_graph_precedes_guardrails() -> None:
    @capability_node(permission="full_access")
    async def delete(path: str) -> str:
        """Delete a file."""
        pytest.fail("it was called")

    guardrail = Recorder()
    behavior = capgraph.behaviors.GuardrailBehavior(guardrails=[guardrail])
    services = bind([delete], permissions=policy(), behaviors=[behavior])
    spec = services.registry.capabilities["delete"]
    record = await run_standalone_step(spec, {"parameters": {"path": "a"}}, services=services)
    assert record.error is not None
    assert record.error.metadata["code"] == "CG-PERMISSION"
    assert guardrail.arguments == []


@pytest.mark.row("T12", "T29")
def test_guardrails_check_the_arguments_that_hooks_leave() -> None:
    class Hook:
        def before_tool(self, context: HookContext) -> None:
            context.args["path"] = "the secret file"

    context = HookContext("writer", "draft", args={"path": "notes"})
    agent = writer(hooks=[Hook()], guardrails=[PatternGuardrail(["secret"], name="no_secrets")])
    with agent.session() as session, pytest.raises(GuardrailViolationError) as caught:
        session.run_tool("read", lambda: pytest.fail("it was called"), hook_ctx=context)
    assert caught.value.guardrail == "no_secrets"
    recorder = Recorder()
    with writer(hooks=[Hook()], guardrails=[recorder]).session() as session:
        assert session.run_tool("read", lambda: context.args["path"], hook_ctx=context)
    assert recorder.arguments == [{"path": "the secret file"}]


@pytest.mark.row("T7", "T12")
def test_a_refusal_by_a_guardrail_is_an_event_and_no_failure_to_recover() -> None:
    events = Events()
    agent = writer(event_sink=events, guardrails=[PatternGuardrail(["secret"], name="no_secrets")])
    with agent.session() as session:
        with pytest.raises(GuardrailViolationError):
            session.run_tool("read", lambda: "the secret")
        assert session.recovery.events == []
    blocked = events.first("agent.blocked")
    assert blocked.data == {
        "tool": "read", "kind": "guardrail", "stage": "post", "guardrails": ["no_secrets"]
    }  # fmt: skip
    assert "agent.recovery.attempted" not in events.names


@pytest.mark.row("T12", "T14")
@pytest.mark.parametrize("is_edited", [False, True])
async def test_a_person_approves_the_arguments_that_hooks_leave_and_cannot_edit_them(
    is_edited: bool,
) -> None:
    class Hook:
        def before_tool(self, context: HookContext) -> None:
            context.args["path"] = "the odd file"

    class Ask(Recorder):
        def check_pre(self, *, role: str, tool: str, arguments: Any = None) -> GuardrailOutcome:
            return GuardrailOutcome(True, "it is odd", "ask")

    async def work(state: dict[str, Any]) -> dict[str, Any]:
        context = HookContext("writer", "draft", args={"path": "notes"})
        async with writer(hooks=[Hook()], guardrails=[Ask()]).asession() as session:
            read = lambda: context.args["path"]  # noqa: E731
            return {"text": await session.arun_tool("read", read, hook_ctx=context)}

    builder: Any = StateGraph(dict[str, Any])
    builder.add_node("work", work).set_entry_point("work")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    (question,) = (await graph.ainvoke({"a": 1}, config))["__interrupt__"]
    (step,) = question.value["steps"]
    assert step["parameters"] == {"path": "the odd file"}
    edit = {"decision": "edit", "parameters": {"path": "another"}}
    resume: Command[Any] = Command(
        resume={step["context_key"]: edit if is_edited else {"decision": "approve"}}
    )
    if is_edited:
        with pytest.raises(GuardrailViolationError):
            await graph.ainvoke(resume, config)
    else:
        assert (await graph.ainvoke(resume, config))["text"] == "the odd file"


# T9 to T11, T19: recovery


@pytest.mark.row("T9", "T11", "T19")
def test_a_session_recovers_with_the_actions_of_its_context() -> None:
    steps: list[str] = []
    recovery = RecoveryContext({RecoveryStep.RETRY_WITH_BACKOFF: lambda: steps.append("waited")})
    events = Events()
    with writer(event_sink=events, recovery=recovery).session() as session:
        with pytest.raises(TimeoutError):
            session.run_turn(time_out)
        assert session.run_turn(lambda: "text")[0] == "text"
        summary = session.summary()
    assert steps == ["waited"]
    assert events.names[2:4] == ["agent.recovery.attempted", "agent.recovery.succeeded"]
    assert [event["event_type"] for event in summary.recovery_events] == ["succeeded"]
    assert recovery.events == [], "each session has its own counts"


@pytest.mark.row("T19", "T20")
def test_retries_are_exhausted_after_the_recipes_attempts() -> None:
    rule = PolicyRule("r", RetryExhausted("llm_timeout"), [PolicyActionData(PolicyAction.ESCALATE)])
    recovery = RecoveryContext({RecoveryStep.RETRY_WITH_BACKOFF: lambda: None})
    events = Events()
    agent = writer(event_sink=events, recovery=recovery, policy_engine=PolicyEngine([rule]))
    with agent.session() as session:

        def fail() -> int:
            with pytest.raises(TimeoutError):
                session.run_turn(time_out)
            return len(session.evaluate_policy())

        assert [fail(), fail(), fail()] == [0, 0, 1]
        assert events.names[-1] == "agent.recovery.escalated"
        session.run_turn(lambda: "text")  # a success resets the counts
        assert session.recovery.attempt_count("llm_timeout") == 0
        assert session.evaluate_policy() == []
    with writer(policy_engine=PolicyEngine([rule])).session() as session:
        assert [fail(), fail(), fail()] == [0, 0, 1], "also without actions"


@pytest.mark.row("T2", "T10")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError("no answer"), AgentFailureClass.LLM_TIMEOUT),
        (ConnectionError("refused"), AgentFailureClass.DEPENDENCY_FAILED),
        (RuntimeError("maximum context length exceeded"), AgentFailureClass.CONTEXT_OVERFLOW),
        (RuntimeError("the state is corrupt"), AgentFailureClass.MEMORY_CORRUPTION),
        (RuntimeError("no"), AgentFailureClass.LLM_ERROR),
    ],
)
def test_a_failed_session_has_the_class_of_its_scenario(
    error: Exception, expected: AgentFailureClass
) -> None:
    events = Events()
    with pytest.raises(type(error)), writer(event_sink=events).session():
        raise error
    assert events.received[-1].failure_class is expected


# T13, T25, T26, T30: usage


@pytest.mark.row("T13", "T25")
def test_the_error_for_an_unpriced_model_names_register_pricing() -> None:
    agent = writer(budget_usd=1.0, enforce_budget=True)
    with agent.session() as session, pytest.raises(BudgetExceededError) as caught:
        session.run_turn(lambda: "text", "nobody-knows", DOLLAR)
    assert "register_pricing" in str(caught.value.fix)
    assert caught.value.current_cost_usd is None


@pytest.mark.row("T26")
async def test_tokens_and_cost_of_a_session_reach_spans_and_metrics() -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    sink = OpenTelemetrySink(tracer_provider, MeterProvider([reader]))
    async with writer(event_sink=sink, usage_sink=sink).asession() as session:
        session.tracker.prices = PRICES
        await session.arun_turn(lambda: "text", "m", UsageSnapshot(400_000, 100_000))
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "chat m"]
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.input_tokens"] == 400_000
    assert span.attributes["gen_ai.usage.output_tokens"] == 100_000
    data: Any = reader.get_metrics_data()
    metrics = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert sorted(point.sum for point in metrics["gen_ai.client.token.usage"]) == [100_000, 400_000]
    assert [point.value for point in metrics["capgraph.cost"]] == [0.5]


@pytest.mark.row("T30")
@pytest.mark.parametrize("estimate", [None, UsageSnapshot(10, 50)])
async def test_token_limits_apply_to_the_turns_of_a_session(estimate: UsageSnapshot | None) -> None:
    clock = FakeClock()
    limiter = RateLimiter(output_tpm=100, clock=clock)
    used = UsageSnapshot(output_tokens=1000)
    async with writer(rate_limiter=limiter, clock=clock).asession() as session:
        for _ in range(3):
            await session.arun_turn(lambda: "text", "m", used, estimate)
    assert clock.monotonic() >= 1000 / 100 * 60


@pytest.mark.row("T30")
def test_a_rate_limiter_of_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match="RateLimiter"):
        writer(rate_limiter=object())


# T29: hooks for model calls


@pytest.mark.row("T29")
def test_personal_data_is_redacted_in_prompts_answers_and_arguments() -> None:
    context = HookContext("writer", "draft", prompt=[{"content": "Write to ann@example.com."}])
    with writer(hooks=[RedactPIIHook()]).session() as session:
        answer, _ = session.run_turn(
            lambda: f"{context.prompt[0]['content']} Or to bob@example.com.", hook_ctx=context
        )
        assert answer == "Write to [e-mail address]. Or to [e-mail address]."
        context = HookContext("writer", "draft", args={"to": "ann@example.com"})
        assert (
            session.run_tool("mail", lambda: context.args["to"], hook_ctx=context)
            == "[e-mail address]"
        )


@pytest.mark.row("T29")
def test_a_guardrail_that_denies_refuses_the_prompt() -> None:
    hook = RedactPIIHook(PIIGuardrail(action="deny", analyzer=None))
    context = HookContext("writer", "draft", prompt="Write to ann@example.com.")
    with writer(hooks=[hook]).session() as session, pytest.raises(GuardrailViolationError):
        session.run_turn(lambda: pytest.fail("it was called"), hook_ctx=context)


@pytest.mark.row("T29")
def test_model_calls_are_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test.model_io")
    context = HookContext("writer", "draft", prompt="a secret question")
    hooks = [LogModelIOHook(logger=logger), LogModelIOHook(logger=logger, include_prompt=True)]
    with caplog.at_level(logging.INFO, logger.name), writer(hooks=hooks).session() as session:
        session.run_turn(lambda: "a secret answer", "m", hook_ctx=context)
    records = [record for record in caplog.records if record.name == logger.name]
    assert [record.getMessage() for record in records] == [
        "model_input", "model_input", "model_output", "model_output"
    ]  # fmt: skip
    assert [getattr(record, "prompt", None) for record in records] == [
        None, "a secret question", None, None
    ]  # fmt: skip
    assert not any(hasattr(record, "result") for record in records)


@pytest.mark.row("T29")
def test_a_prompt_above_the_token_limit_is_refused_before_the_call() -> None:
    context = HookContext("writer", "draft", prompt="word " * 100)
    hook = TokenBudgetCheckHook(token_limit=100)
    with writer(hooks=[hook]).session() as session:
        with pytest.raises(HookBudgetExceededError) as caught:
            session.run_turn(lambda: pytest.fail("it was called"), "m", hook_ctx=context)
        assert session.run_turn(lambda: "text", "m")[0] == "text"
    assert (caught.value.estimated, caught.value.limit, caught.value.model) == (125, 100, "m")


# Attributes of exceptions


def _max_iterations(session: OrchestrationSession) -> None:
    session.agent.max_iterations = 0
    session.run_turn(lambda: "text")


def _timeout(session: OrchestrationSession) -> None:
    session.run_turn(lambda: time.sleep(0.1), timeout=0.01)


def _budget(session: OrchestrationSession) -> None:
    session.tracker.prices = PRICES
    session.run_turn(lambda: "text", "m", DOLLAR)


def _rate(session: OrchestrationSession) -> None:
    limiter = RateLimiter(output_tpm=100, clock=lambda: 0.0)
    asyncio.run(limiter.acquire("m", output_tokens=200))


def _risk(session: OrchestrationSession) -> None:
    RiskRegistry([Risk("R", "bursts", ResidualRiskLevel.UNACCEPTABLE)]).assert_no_unacceptable()


def _price(session: OrchestrationSession) -> None:
    PriceTable({"m": ModelPricing(1, 1)}).register("m", ModelPricing(2, 2), on_conflict="error")


@pytest.mark.row("T11", "T13", "T25", "T30", "T35")
@pytest.mark.parametrize(
    ("run", "kind", "expected"),
    [
        (_max_iterations, MaxIterationsExceededError, {"max_iterations": 0}),
        (_timeout, TurnTimeoutError, {"timeout_seconds": 0.01}),
        (_budget, BudgetExceededError, {"budget_usd": 0.5, "current_cost_usd": 1.0}),
        (_rate, RateLimitExceededError, {"bucket_name": "output_tokens", "tokens": 200}),
        (_price, PricingAlreadyRegisteredError, {"model": "m"}),
    ],
)
def test_exceptions_have_the_attributes_of_the_source(
    run: Callable[[OrchestrationSession], None], kind: type[Any], expected: dict[str, Any]
) -> None:
    agent = writer(budget_usd=0.5, enforce_budget=True)
    with agent.session() as session, pytest.raises(kind) as caught:
        run(session)
    assert {name: getattr(caught.value, name) for name in expected} == expected
    assert expected.items() <= caught.value.facts.items()


@pytest.mark.row("T35")
def test_an_unacceptable_risk_is_an_attribute_of_its_error() -> None:
    risk = Risk("R", "bursts", ResidualRiskLevel.UNACCEPTABLE)
    with pytest.raises(RiskUnacceptableError) as caught:
        RiskRegistry([risk]).assert_no_unacceptable()
    assert caught.value.risks == (risk,)


@pytest.mark.row("T15")
def test_policies_accept_the_fields_of_the_document() -> None:
    rule = PolicyRule("r", RetryExhausted("llm_error"), [PolicyActionData(PolicyAction.ESCALATE)])
    context = PhaseContext(retry_exhausted_scenarios={"llm_error"})
    assert [action.action for action in PolicyEngine([rule]).evaluate(context)]
    assert build_graph([], policies=[PolicyEngine([rule])])
