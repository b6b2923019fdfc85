"""Code examples of the gmf forge document, with their imports renamed and ``model`` for gateways."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph.agents import (
    AgentResult,
    AgentStep,
    BaseAgent,
    Blackboard,
    DebateOrchestrator,
    PipelineOrchestrator,
    ReActAgent,
)
from capgraph.behaviors import (
    AuditBehavior,
    BaseBehavior,
    CircuitBreakerBehavior,
    CircuitOpenError,
    GuardrailBehavior,
    GuardrailRule,
    GuardrailViolationError,
    HumanApprovalRequired,
    HumanInLoopBehavior,
    PendingApproval,
    RateLimitBehavior,
    RetryBehavior,
)
from capgraph.selection import (
    LLMRouter,
    LoadBalancingRouter,
    RoutingRequest,
    RuleBasedRouter,
    SemanticRouter,
)
from capgraph.stores import CheckpointManager, StateStoreFactory
from capgraph.testing import ScriptedModel
from capgraph.workflows import (
    DAGWorkflow,
    EventDrivenWorkflow,
    StateMachineWorkflow,
    WorkflowEdge,
    WorkflowEvent,
    WorkflowNode,
)


class Worker(BaseAgent):
    """Agent that writes its name before the task, and fails while ``failures`` are left."""

    def __init__(self, name: str, failures: int = 0, **options: Any) -> None:
        super().__init__(agent_id=name, **options)
        self.failures = failures

    async def execute(self, task: str, context: Any = None) -> AgentResult:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("out of reach")
        return AgentResult(f"{self.agent_id}: {task}")

    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        yield AgentStep("", self.agent_id)


class Metrics:
    """Metrics collector that counts calls."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def increment(self, name: str, value: float = 1, **labels: Any) -> None:
        self.names.append(name)

    def histogram(self, name: str, value: float, **labels: Any) -> None:
        self.names.append(name)


@pytest.mark.row("G4", "G2", "G7")
async def test_blackboard_example() -> None:
    store = StateStoreFactory.create("memory")
    await store.set("session:abc", {"key": "value"}, ttl=3600)
    assert await store.get("session:abc") == {"key": "value"}

    board = Blackboard(store, namespace="run-abc")
    await board.write("search_results", ["a document"], author="search_agent")
    assert await board.read("search_results") == ["a document"]
    all_entries = await board.list_entries()
    assert all_entries["search_results"].author == "search_agent"


@pytest.mark.row("G6")
async def test_checkpoint_example() -> None:
    manager = CheckpointManager(StateStoreFactory.create("memory"))
    agent = ReActAgent(ScriptedModel(responses=["It is 4."]), checkpoint_manager=manager)
    execution_id = (await agent.execute("How much?")).metadata["execution_id"]
    checkpoint = await manager.load_latest_for_execution(execution_id)
    assert checkpoint is not None
    assert checkpoint.state["steps"]
    last = (await manager.list_by_execution(execution_id))[-1]
    assert (loaded := await manager.load(last.checkpoint_id)) is not None
    assert loaded.state == checkpoint.state
    assert [one.agent_id for one in await manager.list(agent.agent_id)]


@pytest.mark.row("G10")
async def test_retry_example() -> None:
    behaviors = [RetryBehavior(max_retries=3, base_delay=0.001)]
    agent = Worker("worker", failures=3, behaviors=behaviors)
    assert (await agent.execute("go")).output == "worker: go"


@pytest.mark.row("G11")
@pytest.mark.parametrize("task", ["My SSN is 1.", "x" * 4001])
async def test_guardrail_example(task: str) -> None:
    behavior = GuardrailBehavior(
        rules=[
            GuardrailRule(name="no_pii", blocked_words=["ssn", "social security"], apply_to="both"),
            GuardrailRule(name="max_input", max_length=4000, apply_to="input"),
        ]
    )
    agent = Worker("worker", behaviors=[behavior])
    assert (await agent.execute("go")).success
    with pytest.raises(GuardrailViolationError):
        await agent.execute(task)


@pytest.mark.row("G12")
@pytest.mark.parametrize("answer", ["y", "n"])
async def test_review_example(answer: str) -> None:
    async def my_reviewer(ctx: Any, result: Any) -> bool:
        return answer.strip().lower() == "y"

    agent = Worker("worker", behaviors=[HumanInLoopBehavior(review_callback=my_reviewer)])
    if answer == "y":
        assert (await agent.execute("go")).success
        return
    with pytest.raises(HumanApprovalRequired):
        await agent.execute("go")


@pytest.mark.row("G12")
async def test_submit_example() -> None:
    posted: list[dict[str, Any]] = []

    async def submit_for_approval(ctx: Any, result: Any) -> str:
        posted.append({"task": ctx.task, "output": result.output})
        return "approval-7"

    agent = Worker("worker", behaviors=[HumanInLoopBehavior(submit_callback=submit_for_approval)])
    try:
        await agent.execute("go")
    except PendingApproval as pa:
        saved = (pa.approval_id, pa.result.output, pa.task)
    assert saved == ("approval-7", "worker: go", "go")
    assert posted == [{"task": "go", "output": "worker: go"}]


@pytest.mark.row("G13")
async def test_circuit_breaker_example() -> None:
    # ``metrics`` and ``logger`` are errors that name their replacement.
    behavior = CircuitBreakerBehavior(failure_threshold=3, recovery_timeout=30)
    agent = Worker("worker", failures=9, behaviors=[behavior])
    for _ in range(3):
        with pytest.raises(ConnectionError):
            await agent.execute("go")
    with pytest.raises(CircuitOpenError):
        await agent.execute("go")


@pytest.mark.row("G14")
async def test_rate_limit_example() -> None:
    behavior = RateLimitBehavior(calls_per_second=2.0, burst=5)
    agent = Worker("worker", behaviors=[behavior])
    assert all([(await agent.execute("go")).success for _ in range(5)])


@pytest.mark.row("G15")
async def test_audit_example(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    behavior = AuditBehavior(logger=logging.getLogger("my_app.audit"), metrics=metrics)
    with caplog.at_level(logging.INFO, "my_app.audit"):
        await Worker("worker", behaviors=[behavior]).execute("go")
    assert {record.name for record in caplog.records} == {"my_app.audit"}
    assert "behavior.audit.invocations" in metrics.names


REQUEST = RoutingRequest(
    input="Search for code", available_agents=["search_agent", "code_agent", "general_agent"]
)


@pytest.mark.row("G28")
async def test_model_router_example() -> None:
    router = LLMRouter(
        ScriptedModel(responses=['{"target": "code_agent", "confidence": 0.9}']),
        agent_descriptions={
            "search_agent": "Searches the web for information.",
            "code_agent": "Writes and explains code.",
        },
        fallback_target="search_agent",
    )
    assert (await router.route(REQUEST)).target == "code_agent"


@pytest.mark.row("G29")
async def test_semantic_router_example() -> None:
    async def my_embed(text: str) -> list[float]:
        return [float(text.lower().count("code")), float(text.lower().count("web"))]

    router = SemanticRouter(embed_fn=my_embed)
    await router.add_route("search_agent", "web search and information retrieval")
    await router.add_route("code_agent", "code generation debugging and review")
    assert (await router.route(REQUEST)).target == "code_agent"


@pytest.mark.row("G30")
async def test_rule_router_example() -> None:
    router = RuleBasedRouter(
        rules=[
            (lambda r: "code" in r.input.lower(), "code_agent"),
            (lambda r: "search" in r.input.lower(), "search_agent"),
        ],
        fallback_target="general_agent",
    )
    assert (await router.route(REQUEST)).target == "code_agent"


@pytest.mark.row("G31")
async def test_load_balancing_example() -> None:
    router = LoadBalancingRouter(agent_weights={"heavy_agent": 2, "light_agent": 1})
    request = RoutingRequest(input="go", available_agents=["heavy_agent", "light_agent"])
    targets = [(await router.route(request)).target for _ in range(6)]
    assert (targets.count("heavy_agent"), targets.count("light_agent")) == (4, 2)
    assert (await LoadBalancingRouter().route(request)).target == "heavy_agent"


@pytest.mark.row("G32")
async def test_dag_example() -> None:
    search_node = WorkflowNode("search", Worker("search"))
    summarise_node = WorkflowNode("summarise", Worker("summarise"))
    wf = DAGWorkflow(
        nodes=[search_node, summarise_node],
        edges=[WorkflowEdge(source="search", target="summarise")],
    )
    result = await wf.run({"query": "AI trends 2026"})
    assert result.success
    assert result.outputs["search"].output == "search: AI trends 2026"
    assert result.final_output.startswith("summarise: ")


@pytest.mark.row("G33")
async def test_state_machine_example() -> None:
    wf = StateMachineWorkflow(
        states={"gather": Worker("search"), "summarise": Worker("summarise")},
        transitions={"gather": [(None, "summarise")], "summarise": [(None, "END")]},
        initial_state="gather",
        terminal_states={"END"},
    )
    result = await wf.run({"query": "AI news"})
    assert result.success
    assert result.final_output.startswith("summarise: ")


@pytest.mark.row("G34")
async def test_event_example() -> None:
    async def handle_query(event: WorkflowEvent) -> WorkflowEvent:
        return WorkflowEvent(name="results_ready", payload={"of": event.payload["q"]})

    async def handle_results(event: WorkflowEvent) -> WorkflowEvent:
        return WorkflowEvent(name="done", payload=event.payload)

    wf = EventDrivenWorkflow(terminal_event="done")
    wf.on("query_received", handle_query)
    wf.on("results_ready", handle_results)
    # ``emit`` is an error that names this argument, because each run has its own queue.
    event = WorkflowEvent(name="query_received", payload={"q": "AI"})
    result = await wf.run({"events": [event]})
    assert (result.success, result.final_output) == (True, {"of": "AI"})


@pytest.mark.row("G37")
async def test_pipeline_example() -> None:
    pipeline = PipelineOrchestrator(
        agents=[Worker("search"), Worker("summarise"), Worker("translate")]
    )
    result = await pipeline.run("Summarise the latest AI news in Spanish")
    assert result.success
    assert list(result.agent_outputs) == [
        "step_0_search",
        "step_1_summarise",
        "step_2_translate",
    ]


@pytest.mark.row("G38")
async def test_debate_example() -> None:
    debate = DebateOrchestrator(
        agents=[Worker("agent_a"), Worker("agent_b"), Worker("agent_c")],
        debate_rounds=2,
        synthesis_gateway=ScriptedModel(responses=["Hybrid search."]),
    )
    result = await debate.run("What is the best AI architecture for RAG?")
    assert (result.success, result.final_output, result.rounds) == (True, "Hybrid search.", 2)


@pytest.mark.row("G21", "G8")
async def test_resume_example() -> None:
    agent = ReActAgent(
        ScriptedModel(responses=["It is 4."]),
        behaviors=[BaseBehavior()],
        checkpoint_manager=InMemorySaver(),
    )
    result = await agent.execute("How much?")
    again = await agent.resume_from(result.metadata["execution_id"])
    assert again.output == result.output == "It is 4."
