"""What stands around an agent holds on every way in: execute, stream, resume, the graph itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph.agents import (
    AgentResult,
    AgentStep,
    BaseAgent,
    BaseOrchestrator,
    ChainOfThoughtAgent,
    OrchestratorResult,
    PlanExecuteAgent,
    ReActAgent,
    ReflexionAgent,
)
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.behaviors import (
    BaseBehavior,
    CacheBehavior,
    CircuitBreakerBehavior,
    CircuitOpenError,
    FallbackBehavior,
    GuardrailBehavior,
    GuardrailRule,
    GuardrailViolationError,
    HumanApprovalRequired,
    HumanInLoopBehavior,
    PendingApproval,
    RateLimitBehavior,
    RateLimitExceededError,
    RetryBehavior,
    TimeoutBehavior,
)
from capgraph.helpers.clock import use_clock
from capgraph.stores.checkpoints import CheckpointManager
from capgraph.testing import FakeClock, ScriptedModel
from tests.support.agents import SUM, Seen, add, call, calls
from tests.support.doors import let_others_run

DOORS = ["execute", "stream", "graph"]
KINDS = ["react", "plan", "reflexion", "thought", "own"]


class Own(BaseAgent):
    """Written by somebody else: two methods and nothing more."""

    async def execute(self, task: str, context: Any = None) -> AgentResult:
        message = await self.model.ainvoke(task)
        return AgentResult(message.text, [AgentStep("", "say", {}, message.text)])

    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        message = await self.model.ainvoke(task)
        yield AgentStep("hm", "think", {}, "...")
        yield AgentStep("", "say", {}, message.text)


SCRIPTS: dict[str, list[Any]] = {
    "react": SUM,
    "plan": ['["Add"]', "It is 4."],
    "reflexion": ["It is 4.", "YES"],
    "thought": ["<thinking>hm</thinking>It is 4."],
    "own": ["It is 4."],
}


def agent_of(kind: str, script: Any = None, **options: Any) -> BaseAgent:
    script = SCRIPTS[kind] if script is None else script
    model = ScriptedModel(responses=script)
    if kind == "reflexion":
        return ReflexionAgent(ChainOfThoughtAgent(model), **options)
    made: dict[str, Any] = {"plan": PlanExecuteAgent, "thought": ChainOfThoughtAgent, "own": Own}
    if kind == "react":
        options = {"tools": [add], **options}
    agent: BaseAgent = made.get(kind, ReActAgent)(model, **options)
    return agent


async def through(door: str, agent: BaseAgent, task: str = "What is 2 + 2?") -> str:
    """Go in by a door; give the output, or what is said in its place."""
    if door == "execute":
        result = await agent.execute(task)
        return str(result.output if result.success else result.error)
    if door == "stream":
        steps = [step async for step in agent.stream_execute(task)]
        return steps[-1].observation
    out = await agent.compile().ainvoke({"task": task})
    return str(out["output"] if out["success"] else out["error"])


@pytest.mark.row("G25")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_hooks_are_called_once_each(kind: str, door: str) -> None:
    seen = Seen()
    assert await through(door, agent_of(kind, behaviors=[seen])) == "It is 4."
    assert seen.hooks == ["before", "after"]
    assert seen.contexts[0].task == "What is 2 + 2?"
    assert seen.contexts[0].execution_id
    assert isinstance(seen.results[0], AgentResult)


@pytest.mark.row("G25")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_calls_on_error_once_and_is_raised_unchanged(kind: str, door: str) -> None:
    seen = Seen()
    error = ModelError("The model is away.")
    with pytest.raises(ModelError, match="away"):
        await through(door, agent_of(kind, [error], behaviors=[seen]))
    assert seen.hooks == ["before", "error"]
    assert isinstance(seen.errors[0], ModelError)


async def test_a_behavior_class_is_instantiated_and_may_have_a_single_hook() -> None:
    told: list[str] = []

    class One:
        async def after_execute(self, context: Any, result: Any) -> Any:
            told.append(context.execution_id)
            return AgentResult(f"<{result.output}>")

    agent = agent_of("thought", behaviors=[One])
    result = await agent.execute("?")
    assert result.output == "<It is 4.>"
    assert told == [result.metadata["execution_id"]]


@pytest.mark.parametrize("door", DOORS)
async def test_a_hook_replaces_the_result(door: str) -> None:
    class Loud(BaseBehavior):
        def after_execute(self, context: Any, result: AgentResult) -> Any:
            result.output = str(result.output).upper()

    class Calm(BaseBehavior):
        def on_error(self, context: Any, error: Exception) -> Any:
            return AgentResult("later", success=False, error="It is away.")

    assert await through(door, agent_of("react", behaviors=[Loud()])) == "IT IS 4."
    away = agent_of("react", [ModelError("away")], behaviors=[Calm()])
    assert await through(door, away) == "It is away."


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_guardrails_check_task_and_output(kind: str, door: str) -> None:
    guard = GuardrailBehavior(rules=[GuardrailRule("no_four", blocked_words=["4"])])
    with pytest.raises(GuardrailViolationError, match="no_four"):
        await through(door, agent_of(kind, behaviors=[guard]), "Add.")
    with pytest.raises(GuardrailViolationError, match="no_four"):
        await through(door, agent_of(kind, [], behaviors=[guard]), "What is 4?")
    length = GuardrailRule("short", max_length=8, apply_to="output")
    ok = agent_of(kind, behaviors=[GuardrailBehavior(rules=[length])])
    assert await through(door, ok) == "It is 4."


async def test_guardrails_check_arguments_and_observations() -> None:
    @tool
    def look(name: str) -> str:
        """Look it up."""
        return "The secret is 7."

    script = [calls(call("look", name="a")), calls(call("look", name="secret")), "Nothing."]
    guard = GuardrailBehavior(rules=[GuardrailRule("quiet", blocked_words=["secret"])])
    model = ScriptedModel(responses=script)
    result = await ReActAgent(model, tools=[look], behaviors=[guard]).execute("Look.")
    assert [step.metadata for step in result.steps[:2]] == [{"error": True}] * 2
    assert all("quiet" in step.observation for step in result.steps[:2])
    assert "The secret is 7" not in str(model.calls[2].messages)


# --- the shipped behaviours, for every kind of agent ------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_retry_counts_attempts_per_run(kind: str) -> None:
    seen, clock = Seen(), FakeClock()
    rule = RetryBehavior(max_retries=2, base_delay=0, exceptions_to_retry=(ModelError,))
    script = [ModelError("a"), ModelError("b"), *SCRIPTS[kind]]
    agent = agent_of(kind, script, behaviors=[seen, rule])
    with use_clock(clock):
        result = await agent.execute("2 + 2?")
    assert result.output == "It is 4."
    assert seen.hooks == ["before", "after"]
    agent = agent_of(kind, [ModelError(str(n)) for n in range(9)], behaviors=[seen, rule])
    for _ in range(2):
        with pytest.raises(ModelError):
            await agent.execute("2 + 2?")
    assert len(_model(agent).calls) == 6, "three tries for each run"


def _model(agent: Any) -> Any:
    return agent.model


async def test_a_retry_resumes_where_the_run_failed() -> None:
    ran: list[int] = []

    @tool
    def count(n: int) -> str:
        """Count."""
        ran.append(n)
        return str(n)

    script = [calls(call("count", n=1)), ModelError("away"), "done"]
    rule = RetryBehavior(max_retries=1, base_delay=0, exceptions_to_retry=(ModelError,))
    options: Any = {"tools": [count], "behaviors": [rule], "checkpoint_manager": InMemorySaver()}
    result = await agent_of("react", script, **options).execute("Count.")
    assert (result.output, ran) == ("done", [1])


async def test_a_resumed_run_has_all_its_attempts() -> None:
    rule = RetryBehavior(max_retries=2, base_delay=0, exceptions_to_retry=(ModelError,))
    saver, seen = InMemorySaver(), Seen()
    script = [SUM[0], *[ModelError(str(n)) for n in range(5)], SUM[1]]
    agent = agent_of("react", script, behaviors=[rule, seen], checkpoint_manager=saver)
    with pytest.raises(ModelError):
        await agent.execute("2 + 2?")
    result = await agent.resume_from(seen.contexts[0].execution_id)
    assert result.output == "It is 4.", "three tries, and then three more"
    assert seen.hooks == ["before", "error", "before", "after"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_open_circuit_refuses(kind: str) -> None:
    broken = CircuitBreakerBehavior(1, 60)
    agent = agent_of(kind, [ModelError("away")], behaviors=[broken])
    with pytest.raises(ModelError):
        await agent.execute("?")
    with pytest.raises(CircuitOpenError):
        await agent.execute("?")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rate_limit_refuses(kind: str) -> None:
    limit = RateLimitBehavior(calls_per_second=0.01, burst=1, wait_on_limit=False)
    agent = agent_of(kind, [*SCRIPTS[kind], *SCRIPTS[kind]], behaviors=[limit])
    assert (await agent.execute("?")).success
    with pytest.raises(RateLimitExceededError):
        await agent.execute("?")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cache_stores_answers_but_no_failures(kind: str) -> None:
    agent = agent_of(kind, behaviors=[CacheBehavior()])
    first, second = await agent.execute("What?"), await agent.execute("What?")
    assert first.output == second.output == "It is 4."
    assert second.metadata["source"] == "cache"
    endless = ScriptedModel(responses=lambda _: calls(call("add", a=1, b=1)))
    agent = ReActAgent(endless, tools=[add], max_steps=1, behaviors=[CacheBehavior()])
    for times in (1, 2):
        assert not (await agent.execute("What?")).success
        assert len(endless.calls) == times


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fallback_and_a_timeout(kind: str) -> None:
    agent = agent_of(kind, [ModelError("x")], behaviors=[FallbackBehavior(default="unknown")])
    result = await agent.execute("?")
    assert (result.output, result.metadata["source"]) == ("unknown", "fallback")

    class Slow(ScriptedModel):
        async def _agenerate(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

    agent = agent_of(kind, behaviors=[TimeoutBehavior(0.01)])
    slow = Slow(responses=[])
    agent.model = slow
    if isinstance(agent, ReflexionAgent):
        agent.inner_agent.model = slow
    with pytest.raises(TimeoutError):
        await agent.execute("?")


# --- people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rejected_result_is_raised(kind: str, door: str) -> None:
    shown: list[Any] = []

    def review(context: Any, result: AgentResult) -> bool:
        shown.append(result.output)
        return False

    rule = RetryBehavior(max_retries=3, base_delay=0)
    agent = agent_of(kind, behaviors=[rule, HumanInLoopBehavior(review_callback=review)])
    with pytest.raises(HumanApprovalRequired):
        await through(door, agent)
    assert shown == ["It is 4."], "and it was not tried again"
    waits = agent_of(kind, behaviors=[HumanInLoopBehavior(submit_callback=lambda *_: "A-7")])
    with pytest.raises(PendingApproval) as found:
        await through(door, waits)
    assert found.value.approval_id == "A-7"


@pytest.mark.row("G21")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rejected_result_is_rejected_again_on_resume(kind: str) -> None:
    answers = iter([False, False, True])
    behaviors = [HumanInLoopBehavior(review_callback=lambda *_: next(answers)), seen := Seen()]
    agent = agent_of(kind, behaviors=behaviors, checkpoint_manager=InMemorySaver())
    with pytest.raises(HumanApprovalRequired):
        await agent.execute("?")
    name = seen.contexts[0].execution_id
    with pytest.raises(HumanApprovalRequired):
        await agent.resume_from(name)
    result = await agent.resume_from(name)
    assert result.output == "It is 4."
    assert len(_model(agent).calls) == len(SCRIPTS[kind]), "nothing was done again"
    assert result.metadata["execution_id"] == name


@pytest.mark.row("G21")
async def test_a_finished_run_passes_new_guardrails_on_resume() -> None:
    saver = InMemorySaver()
    guard = GuardrailBehavior(rules=[GuardrailRule("no_four", blocked_words=["4"])])
    for before in ([], [Seen()]):
        agent = agent_of("react", behaviors=before, checkpoint_manager=saver)
        name = (await agent.execute("?")).metadata["execution_id"]
        strict = agent_of("react", [], behaviors=[guard], checkpoint_manager=saver)
        with pytest.raises(GuardrailViolationError):
            await strict.resume_from(name)


@pytest.mark.parametrize("kind", KINDS)
async def test_approval_before_a_run(kind: str) -> None:
    agent = agent_of(kind, behaviors=[HumanInLoopBehavior()], checkpoint_manager=InMemorySaver())
    result = await agent.execute("?")
    assert not result.success
    assert result.metadata["interrupts"]
    assert _model(agent).calls == []
    name = result.metadata["execution_id"]
    key = next(iter(result.metadata["interrupts"][0]["steps"]))["context_key"]
    assert (await agent.resume_from(name, answer={key: "approve"})).output == "It is 4."
    other = agent_of(kind, behaviors=[HumanInLoopBehavior()])
    graph, thread = other.compile(InMemorySaver()), {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"task": "?"}, thread)
    assert out["__interrupt__"]
    out = await graph.ainvoke(Command(resume={key: "approve"}), thread)
    assert (out["output"], out["success"]) == ("It is 4.", True)


# --- resuming -----------------------------------------------------------------------------------


@pytest.mark.row("G21")
@pytest.mark.parametrize("around", [[], [Seen()]], ids=["bare", "with a behaviour"])
async def test_a_failed_run_is_resumed(around: list[Any]) -> None:
    ran: list[int] = []

    @tool
    def count(n: int) -> str:
        """Count."""
        ran.append(n)
        return str(n)

    one, two = calls(call("count", "1", n=1)), calls(call("count", "2", n=2))
    seen = Seen()
    script = [one, ModelError("away"), two, "done", two, "once more"]
    saver = InMemorySaver()
    options: Any = {"tools": [count], "checkpoint_manager": saver}
    agent = agent_of("react", script, behaviors=[seen] if around else [], **options)
    with pytest.raises(ModelError):
        await agent.execute("Count.")
    name = next(iter(saver.storage))
    result = await agent.resume_from(name)
    assert (result.output, ran) == ("done", [1, 2])
    assert [s.observation for s in result.steps] == ["1", "2", "done"]
    if around:
        assert seen.hooks == ["before", "error", "before", "after"]
    assert (await agent.resume_from(name)).output == "done"
    again = await agent.resume_from(name, from_step=0)
    assert (again.output, ran) == ("once more", [1, 2, 2])
    with pytest.raises(ValueError, match="from_step is 7"):
        await agent.resume_from(name, from_step=7)


async def test_an_unknown_run_cannot_be_resumed() -> None:
    with pytest.raises(ValueError, match="checkpoint_manager"):
        await agent_of("react").resume_from("x")
    with pytest.raises(ValueError, match="'x'"):
        await agent_of("react", checkpoint_manager=InMemorySaver()).resume_from("x")


async def test_resume_answers_an_interrupt_of_a_tool() -> None:
    from langgraph.types import interrupt

    @tool
    def ask(what: str) -> str:
        """Ask a person."""
        return f"The person says {interrupt(what)}."

    for around in ([], [Seen()]):
        script = [calls(call("ask", "1", what="how many?"), call("ask", "2", what="why?")), "Good."]
        options: Any = {"tools": [ask], "behaviors": around, "checkpoint_manager": InMemorySaver()}
        agent = agent_of("react", script, **options)
        result = await agent.execute("Ask.")
        assert sorted(result.metadata["interrupts"]) == ["how many?", "why?"]
        assert not result.success
        graph = agent._get_graph()
        thread: Any = {"configurable": {"thread_id": result.metadata["execution_id"]}}
        state = await graph.aget_state(thread)
        answers = {item.id: item.value.upper() for item in state.interrupts}
        result = await agent.resume_from(result.metadata["execution_id"], answer=answers)
        assert [step.observation for step in result.steps[:2]] == [
            "The person says HOW MANY?.",
            "The person says WHY?.",
        ]


# --- agents of one's own ---------------------------------------------------------------------------


async def test_a_custom_agent_streams_its_own_steps() -> None:
    found = [step async for step in agent_of("own").stream_execute("?")]
    assert [step.action for step in found] == ["think", "say"]
    found = [step async for step in agent_of("own", behaviors=[Seen()]).stream_execute("?")]
    assert [step.action for step in found] == ["think", "say"]


@pytest.mark.row("G25")
@pytest.mark.parametrize("around", [[], [Seen()]], ids=["bare", "with a behaviour"])
async def test_steps_are_streamed_when_they_finish(around: list[Any]) -> None:
    gone_on: list[str] = []

    @tool
    def count(n: int) -> str:
        """Count."""
        gone_on.append(str(n))
        return str(n)

    script = [calls(call("count", "1", n=1)), calls(call("count", "2", n=2)), "done"]
    agent = agent_of("react", script, tools=[count], behaviors=around)
    seen = [(s.observation, len(gone_on)) async for s in agent.stream_execute("Count.")]
    assert [text for text, _ in seen] == ["1", "2", "done"]
    assert around or [count for _, count in seen] == [1, 2, 2], "the graph waits for who reads"
    script = ['["a", "b"]', "one", "two"]
    plan = agent_of("plan", script, behaviors=around)
    made = [(s.observation, len(_model(plan).calls)) async for s in plan.stream_execute("Go.")]
    assert [text for text, _ in made] == ["one", "two"]
    assert around or [count for _, count in made] == [2, 3]


@pytest.mark.parametrize("around", [[], [Seen()]], ids=["bare", "with a behaviour"])
async def test_closing_the_stream_cancels_the_run(around: list[Any]) -> None:
    ended = asyncio.Event()

    @tool
    async def wait(n: int) -> str:
        """Wait for ever, but for the first time."""
        try:
            await (asyncio.sleep(0) if n == 1 else asyncio.Event().wait())
        finally:
            if n == 2:
                ended.set()
        return str(n)

    script = [calls(call("wait", "1", n=1)), calls(call("wait", "2", n=2)), "done"]
    agent = agent_of("react", script, tools=[wait], behaviors=around)
    steps = agent.stream_execute("Wait.")
    assert (await anext(steps)).observation == "1"
    await let_others_run()
    await steps.aclose()  # type: ignore[attr-defined]
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    assert ended.is_set() or len(_model(agent).calls) < 2


@pytest.mark.row("G18")
async def test_a_subclass_may_call_super() -> None:
    class Polite(ReActAgent):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            result = await super().execute(f"Please: {task}", context)
            return AgentResult(f"{result.output} Goodbye.", result.steps)

    seen = Seen()
    model = ScriptedModel(responses=[*SUM, *SUM])
    agent = Polite(model, tools=[add], behaviors=[seen])
    result = await agent.execute("2 + 2?")
    assert result.output == "It is 4. Goodbye."
    assert seen.hooks == ["before", "after"]
    assert "Please: 2 + 2?" in model.calls[0].prompt
    found = [step async for step in agent.stream_execute("2 + 2?")]
    assert found[-1].observation == "It is 4. Goodbye."


async def test_an_agent_without_execute_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="does not override"):
        await BaseAgent().execute("?")


@pytest.mark.row("G26")
async def test_steps_are_stored_per_run() -> None:
    class Store:
        def __init__(self) -> None:
            self.kept: dict[str, Any] = {}

        async def set(self, key: str, value: Any, ttl: float | None = None) -> None:
            self.kept[key] = value

    store = Store()
    agent = agent_of("react", [*SUM, *SUM], state_store=store, agent_id="adder")
    names = [(await agent.execute("?")).metadata["execution_id"] for _ in range(2)]
    assert sorted(store.kept) == sorted(f"agent:adder:{name}:steps" for name in names)
    assert [step["observation"] for step in store.kept[f"agent:adder:{names[0]}:steps"]] == [
        "4",
        "It is 4.",
    ]


@pytest.mark.row("G18")
async def test_an_agent_inside_a_graph_uses_its_checkpointer() -> None:
    from langgraph.graph import START, StateGraph
    from typing_extensions import TypedDict

    class State(TypedDict):
        said: str

    agent = agent_of("react")

    async def node(state: State) -> State:
        return {"said": str((await agent.execute("2 + 2?")).output)}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    saver = InMemorySaver()
    graph = builder.compile(saver)
    out = await graph.ainvoke({"said": ""}, {"configurable": {"thread_id": "t"}})
    assert out["said"] == "It is 4."
    assert list(saver.storage) == ["t"]


async def test_the_conversation_of_a_thread_continues() -> None:
    for around in ([], [Seen()]):
        agent = agent_of("react", ["Hello Ann.", "You are Ann."], behaviors=around, tools=[])
        graph, thread = agent.compile(InMemorySaver()), {"configurable": {"thread_id": "1"}}
        await graph.ainvoke({"task": "I am Ann."}, thread)
        out = await graph.ainvoke({"task": "Who am I?"}, thread)
        assert out["output"] == "You are Ann."
        told = [m.text for m in _model(agent).calls[1].messages]
        assert told == ["I am Ann.", "Hello Ann.", "Who am I?"]
        assert len(out["steps"]) == 1


class Halving(BaseAgent):
    """An agent that divides its task and calls itself for each half."""

    async def execute(self, task: str, context: Any = None) -> AgentResult:
        if len(task) < 2:
            return AgentResult(task.upper())
        halves = task[: len(task) // 2], task[len(task) // 2 :]
        found = [await self.execute(half, context) for half in halves]
        return AgentResult("".join(str(one.output) for one in found))

    async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
        if len(task) < 2:
            yield AgentStep("", "letter", observation=task.upper())
            return
        halves = task[: len(task) // 2], task[len(task) // 2 :]
        letters = [str(s.observation) for h in halves async for s in self.stream_execute(h)]
        yield AgentStep("", "joined", observation="".join(letters))


@pytest.mark.parametrize("saved", [False, True])
async def test_a_nested_call_passes_the_behaviors(saved: bool) -> None:
    seen = Seen()
    more = {"checkpoint_manager": CheckpointManager(InMemorySaver())} if saved else {}
    agent = Halving(behaviors=[seen], **more)
    assert (await agent.execute("abcd")).output == "ABCD"
    assert seen.hooks.count("before") == seen.hooks.count("after") == 7
    seen.hooks.clear()
    assert [s.observation async for s in agent.stream_execute("abcd")] == ["ABCD"]
    assert seen.hooks.count("before") == 7


async def test_nested_calls_may_run_in_parallel() -> None:
    class Wide(BaseAgent):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            if len(task) < 2:
                return AgentResult(task.upper())
            found = await asyncio.gather(*(self.execute(letter) for letter in task))
            return AgentResult("".join(str(one.output) for one in found))

    seen = Seen()
    assert (await Wide(behaviors=[seen]).execute("abc")).output == "ABC"
    assert seen.hooks.count("before") == 4


async def test_one_method_may_delegate_its_task_to_the_other() -> None:
    class Streaming(BaseAgent):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            steps = [step async for step in self.stream_execute(task, context)]
            return AgentResult(steps[-1].observation, steps)

        async def stream_execute(self, task: str, context: Any = None) -> AsyncIterator[AgentStep]:
            yield AgentStep("", "echo", observation=task.upper())

    class Louder(Streaming):
        async def execute(self, task: str, context: Any = None) -> AgentResult:
            return AgentResult(f"{(await super().execute(task, context)).output}!")

    for kind, output in ((Streaming, "ABC"), (Louder, "ABC!")):
        seen = Seen()
        assert (await kind(behaviors=[seen]).execute("abc")).output == output
        assert seen.hooks == ["before", "after"]


async def test_a_nested_run_of_a_team_passes_the_behaviors() -> None:
    class Halves(BaseOrchestrator):
        async def lead(self, task: str, context: Any, team_run: Any) -> Any: ...

        async def run(self, task: str, context: Any = None) -> OrchestratorResult:
            if len(task) < 2:
                return OrchestratorResult(task.upper(), {}, [], 0)
            found = [await self.run(letter, context) for letter in task]
            return OrchestratorResult("".join(one.final_output for one in found), {}, [], 0)

    seen = Seen()
    assert (await Halves(behaviors=[seen]).run("ab")).final_output == "AB"
    assert seen.hooks.count("before") == 3
