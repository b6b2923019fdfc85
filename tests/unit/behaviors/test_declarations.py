"""Where behaviours are declared: settings, model roles, infrastructure nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    TodoListMiddleware,
    wrap_model_call,
)
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import (
    BaseInfrastructureNode,
    CapabilityContext,
    Registry,
    build_graph,
    capability_node,
    infrastructure_node,
)
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.behaviors import (
    BaseBehavior,
    BehaviorContext,
    CacheBehavior,
    FallbackBehavior,
    HumanInLoopBehavior,
    RetryBehavior,
    TimeoutBehavior,
    WeightedProviderRouter,
)
from capgraph.behaviors.langchain_middleware import adapt_middleware
from capgraph.configs.settings import load_settings
from capgraph.engine.configured_objects import build_configured
from capgraph.models import RoleModel
from capgraph.models.calls import generate_structured, stream_text
from capgraph.testing import FakeClock, ScriptedModel
from tests.support.doors import message_and_reason

STEP = {"context_key": "k", "capability": "read", "task_objective": "read it"}
START = {"messages": [("user", "read")], "planning_execution_plan": {"steps": [STEP]}}
SCHEMA = {"title": "Answer", "type": "object", "properties": {}}
ASK = [SystemMessage("Be kind."), HumanMessage("one"), AIMessage("two"), HumanMessage("three")]


class Level(CapabilityContext):
    litres: int


def reader(*errors: Exception, **declared: Any) -> Any:
    calls: list[int] = []

    @capability_node(**declared)
    async def read() -> Level:
        """Read how full the tank is."""
        calls.append(1)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return Level(litres=3)

    read.calls = calls  # type: ignore[attr-defined]
    return read


async def run(registry: Any, **options: Any) -> Any:
    options.setdefault("clock", FakeClock())
    graph = build_graph(registry, checkpointer=InMemorySaver(), **options)
    return await graph.ainvoke(START, {"configurable": {"thread_id": "t"}})


# --- settings -----------------------------------------------------------------------------


async def test_settings_declare_behaviors_of_all_steps_and_of_one() -> None:
    tank = reader(*[RuntimeError("x")] * 9)
    settings = load_settings(behaviors=[{"use": "retry", "max_retries": 4, "base_delay": 0}])
    await run([tank], settings=settings)
    assert len(tank.calls) == 5
    tank.calls.clear()
    own = {"read": {"unit": "l", "behaviors": [{"use": "retry", "max_retries": 1}]}}
    settings = load_settings(
        behaviors=[
            {"use": "retry", "max_retries": 4},
            {"use": "fallback", "default": {"litres": 0}},
        ],
        capabilities=own,
    )
    out = await run([tank], settings=settings)
    assert len(tank.calls) == 2
    assert out["execution_step_results"]["k"]["source"] == "fallback"
    assert settings.capability_settings("read") == {"unit": "l"}, "the capability is not told"


def test_a_file_declares_behaviors(tmp_path: Any) -> None:
    file = tmp_path / "agent.yml"
    file.write_text(
        "behaviors:\n"
        "  - {use: retry, max_retries: 2, exceptions_to_retry: [TimeoutError]}\n"
        "  - use: circuit_breaker\n"
        "  - {use: 'capgraph.behaviors:AuditBehavior', preview: 0}\n"
        "  - use: guardrail\n"
        "    rules: [{use: GuardrailRule, name: polite, blocked_words: [damn]}]\n"
        "    guardrails: [{use: PromptInjectionGuardrail}]\n"
    )
    made = build_configured(load_settings(file).behaviors, "behaviors")
    assert [type(item).__name__ for item in made] == [
        "RetryBehavior",
        "CircuitBreakerBehavior",
        "AuditBehavior",
        "GuardrailBehavior",
    ]
    assert "polite" in repr(made[-1])


async def test_a_file_declares_behaviors_of_a_role(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    file = tmp_path / "agent.yml"
    file.write_text(
        "models:\n"
        "  answer:\n"
        "    model: openai:nothing\n"
        "    base_url: http://127.0.0.1:9/v1\n"
        "    behaviors:\n"
        "      - {use: retry, max_retries: 1, base_delay: 5}\n"
        "      - {use: fallback, default: {use: 'langchain_core.messages:AIMessage', content: Later.}}\n"
    )
    clock = FakeClock()
    out = await run([reader()], settings=load_settings(file), clock=clock)
    assert (out["messages"][-1].content, clock.sleeps) == ("Later.", [5])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"use": "retri"}, r"behaviors\[0\]: unknown behavior 'retri'.*use: retry"),
        ({"max_retries": 2}, r"behaviors\[0\]: 'use' is missing"),
        ({"use": "retry", "max_retrys": 2}, r"'max_retrys' of 'retry'.*'max_retries'"),
        ({"use": "retry", "max_retries": -2}, r"behaviors\[0\]: max_retries is -2"),
        ({"use": "timeout"}, r"behaviors\[0\]: .*seconds"),
        ({"use": "os:nothing"}, r"'os:nothing' at behaviors"),
        ({"use": "base"}, r"unknown behavior 'base'"),
        (
            {"use": "guardrail", "rules": [{"use": "GuardrailRul"}]},
            r"behaviors\[0\]\.rules\[0\]: unknown behavior 'GuardrailRul'",
        ),
    ],
)
def test_invalid_settings_are_refused_by_name(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        build_graph([reader()], settings=load_settings(behaviors=[entry]))


def test_a_behavior_without_effect_is_refused() -> None:
    own = {"reed": {"behaviors": [{"use": "human_in_loop"}]}}
    with pytest.raises(ConfigurationError, match=r"capabilities\.reed\.behaviors.*read"):
        build_graph([reader()], settings=load_settings(capabilities=own))
    paid = {"read": {"behaviors": [{"use": "cache"}]}}
    with pytest.raises(ConfigurationError, match="cannot wrap steps with an effect"):
        build_graph([reader(effect="once")], settings=load_settings(capabilities=paid))


# --- model roles --------------------------------------------------------------------------


class Noted(BaseBehavior):
    def __init__(self, notes: list[Any], **gives: Any) -> None:
        self.notes, self.gives = notes, gives

    def before_execute(self, context: BehaviorContext) -> None:
        self.notes.append(("before", context.agent_id))

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        self.notes.append(("after", result))
        return self.gives.get("after")

    def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        self.notes.append(("error", type(error).__name__))
        return self.gives.get("on_error")


def role(*responses: Any, around: Any, name: str = "planning") -> RoleModel:
    return RoleModel(name, ScriptedModel(responses=list(responses)), 5, around, FakeClock())


async def test_hooks_of_a_role_receive_the_parsed_answer() -> None:
    notes: list[Any] = []
    assert await generate_structured(role({"a": 1}, around=[Noted(notes)]), SCHEMA, ASK) == {"a": 1}
    assert notes == [("before", "planning"), ("after", {"a": 1})]
    changed = role({"a": 1}, around=[Noted([], after={"a": 2})])
    assert await generate_structured(changed, SCHEMA, ASK) == {"a": 2}
    notes.clear()
    stands = role("no json", around=[Noted(notes, on_error={"a": 3})])
    assert await generate_structured(stands, SCHEMA, ASK) == {"a": 3}
    assert notes[-1] == ("error", "MalformedAnswerError")
    with pytest.raises(ModelError):
        await generate_structured(role("no json", around=[Noted([])]), SCHEMA, ASK)


@pytest.mark.parametrize("how", ["objects", "settings"])
async def test_a_role_has_its_own_behaviors(how: str) -> None:
    notes: list[Any] = []
    model = ScriptedModel(responses=lambda call: AIMessage("It holds 3."))
    answer: dict[str, Any] = {"model": model, "behaviors": [Noted(notes)]}
    if how == "settings":
        answer["behaviors"] = [{"use": "fallback", "default": AIMessage("Ask later.")}]
        model = ScriptedModel(responses=[ValueError("no")] * 9)
        answer["model"] = model
    tank = reader()
    out = await run([tank], model={"answer": answer}, behaviors=[Noted([])])
    if how == "objects":
        assert out["messages"][-1].content == "It holds 3."
        assert notes[0] == ("before", "answer")
    else:
        assert out["messages"][-1].content == "Ask later."


async def test_step_behaviors_are_refused_for_a_role() -> None:
    model = ScriptedModel(responses=lambda call: AIMessage("Fine."))
    for wrong in (CacheBehavior(), HumanInLoopBehavior()):
        with pytest.raises(ConfigurationError, match=r"models\.answer\.behaviors cannot wrap"):
            build_graph([reader()], model={"answer": {"model": model, "behaviors": [wrong]}})
    # Given to the graph it is left out of model calls.
    out = await run([reader()], model={"answer": model}, behaviors=[CacheBehavior()])
    assert out["messages"][-1].content == "Fine."


async def test_the_next_model_is_asked_when_one_fails() -> None:
    second, third = ScriptedModel(responses=[ConnectionError("x")]), ScriptedModel(responses=["3"])
    fallback = FallbackBehavior(models=[second, third])
    found = await stream_text(role(ConnectionError("x"), around=[fallback], name="answer"), ASK)
    assert found.text == "3"
    assert (len(second.calls), len(third.calls)) == (1, 1)
    broken = FallbackBehavior(models=[ScriptedModel(responses=[ConnectionError("y")])])
    with pytest.raises(ModelError, match="y"):
        await stream_text(role(ConnectionError("x"), around=[broken], name="answer"), ASK)


async def test_each_model_has_its_own_time_limit() -> None:
    class Slow(ScriptedModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    around = [FallbackBehavior(models=[ScriptedModel(responses=[{"a": 1}])]), TimeoutBehavior(0.5)]
    slow = RoleModel("planning", Slow(responses=[]), 5, around)
    assert await generate_structured(slow, SCHEMA, ASK) == {"a": 1}


async def test_a_router_chooses_which_model_is_next() -> None:
    models = {name: ScriptedModel(responses=[{"from": name}]) for name in "ab"}
    router = WeightedProviderRouter((("a", 0.0001), ("b", 1e9)))
    fallback = FallbackBehavior(models=models, router=router)
    asked = role(ConnectionError("x"), around=[fallback])
    assert await generate_structured(asked, SCHEMA, ASK) == {"from": "b"}


async def test_a_prompt_that_is_too_long_is_sent_again_shorter() -> None:
    asked = role(_TooLong(), {"a": 1}, around=[FallbackBehavior(keep_messages=1)])
    assert await generate_structured(asked, SCHEMA, ASK) == {"a": 1}
    sent = asked.model.calls[-1].messages  # type: ignore[attr-defined]
    assert [message.content for message in sent] == ["Be kind.", "three"]
    other = role(ConnectionError("x"), {"a": 1}, around=[FallbackBehavior(keep_messages=1)])
    with pytest.raises(ModelError):
        await generate_structured(other, SCHEMA, ASK)


class _TooLong(Exception):
    status_code = 400

    def __str__(self) -> str:
        return "maximum context length is 10"


# --- LangChain's middlewares --------------------------------------------------------------


def langchain(item: Any) -> list[Any]:
    return [adapt_middleware(item, "models.planning.behaviors")]


async def test_langchain_model_middleware_is_supported() -> None:
    other = ScriptedModel(responses=[{"a": 2}])
    asked = role(ConnectionError("x"), around=langchain(ModelFallbackMiddleware(other)))
    assert await generate_structured(asked, SCHEMA, ASK) == {"a": 2}

    again = ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    asked = role(ConnectionError("x"), {"a": 1}, around=langchain(again))
    assert await generate_structured(asked, SCHEMA, ASK) == {"a": 1}

    same = role({"a": 1}, around=langchain(ContextEditingMiddleware()))
    assert await generate_structured(same, SCHEMA, ASK) == {"a": 1}


async def test_before_and_after_model_hooks_run() -> None:
    pii = PIIMiddleware("email", apply_to_input=True, apply_to_output=True)
    asked = role("Write to a@b.org.", around=langchain(pii), name="answer")
    found = await stream_text(asked, [HumanMessage("I am c@d.org.")])
    sent = asked.model.calls[-1].messages  # type: ignore[attr-defined]
    assert "c@d.org" not in str(sent[-1].content)
    assert "a@b.org" not in found.text
    assert "REDACTED" in found.text


async def test_a_function_may_wrap_a_call() -> None:
    @wrap_model_call
    async def polite(request: Any, handler: Any) -> Any:
        return await handler(request.override(system_message=SystemMessage("Be brief.")))

    asked = role({"a": 1}, around=langchain(polite))
    await generate_structured(asked, SCHEMA, ASK)
    sent = asked.model.calls[-1].messages  # type: ignore[attr-defined]
    assert [message.content for message in sent] == ["Be brief.", "one", "two", "three"]


def test_agent_middleware_is_refused_by_name() -> None:
    @wrap_model_call
    def blocking(request: Any, handler: Any) -> Any:
        return handler(request)

    class Nothing(AgentMiddleware):
        pass

    for wrong, told in [
        (
            TodoListMiddleware(),
            "TodoListMiddleware in models.planning.behaviors",
        ),
        (blocking, "only the synchronous methods"),
        (Nothing(), "no model call"),
    ]:
        with pytest.raises(ConfigurationError, match=told):
            adapt_middleware(wrong, "models.planning.behaviors")


async def test_a_role_of_a_graph_uses_langchain_middleware() -> None:
    model = ScriptedModel(responses=lambda call: AIMessage("Write to a@b.org."))
    pii = PIIMiddleware("email", apply_to_output=True, apply_to_input=False)
    out = await run([reader()], model={"answer": {"model": model, "behaviors": [pii]}})
    assert "a@b.org" not in out["messages"][-1].content


# --- infrastructure nodes -----------------------------------------------------------------


def node(*errors: Exception, around: Any) -> tuple[Registry, list[int]]:
    """Make a registry with a node of one's own after the classifier's place."""
    calls: list[int] = []

    @infrastructure_node(before="classifier")
    class Look(BaseInfrastructureNode):
        name = "look"
        description = "Looks around"
        behaviors = around

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) <= len(errors):
                raise errors[len(calls) - 1]
            return {"task_depends_on_user_memory": True}

    registry = Registry()
    registry.register(Look)
    registry.register(reader())
    return registry, calls


async def ask_node(registry: Registry, clock: FakeClock | None = None) -> Any:
    clock = clock or FakeClock()
    graph = build_graph(registry, checkpointer=InMemorySaver(), clock=clock)
    start = {"messages": [("user", "Read how full the tank is")]}
    return await graph.ainvoke(start, {"configurable": {"thread_id": "t"}})


async def test_hooks_wrap_a_node() -> None:
    notes: list[Any] = []
    registry, _ = node(around=[Noted(notes)])
    await ask_node(registry)
    assert notes[0] == ("before", "look")
    assert notes[1][0] == "after"


async def test_a_node_is_retried_and_then_falls_back() -> None:
    notes: list[Any] = []
    rule = RetryBehavior(max_retries=3, base_delay=0)
    registry, calls = node(*[RuntimeError("x")] * 9, around=[rule, Noted(notes, on_error={})])
    out = await ask_node(registry)
    assert len(calls) == 4
    assert [note[0] for note in notes].count("error") == 1, "only when nothing is left to try"
    assert out["capability_context_data"]["LEVEL"]
    registry, calls = node(*[ConnectionError("x")] * 9, around=[RetryBehavior(max_retries=0)])
    await ask_node(registry)
    assert len(calls) == 1
    only = RetryBehavior(exceptions_to_retry=(KeyError,))
    registry, calls = node(*[ConnectionError("x")] * 9, around=[only])
    await ask_node(registry)
    assert len(calls) == 1


async def test_a_node_waits_between_attempts() -> None:
    rule = RetryBehavior(max_retries=2, base_delay=2, backoff_factor=10, max_delay=3)
    registry, calls = node(*[ConnectionError("x")] * 2, around=[rule])
    clock = FakeClock()
    began = clock.now()
    await ask_node(registry, clock)
    assert len(calls) == 3
    assert clock.now() - began == 2 + 3, "its own longest wait, and spread by nothing"


async def test_a_node_has_a_time_limit() -> None:
    @infrastructure_node(before="classifier")
    class Stuck(BaseInfrastructureNode):
        name = "stuck"
        description = "Waits for ever"
        behaviors = (TimeoutBehavior(0.01), RetryBehavior(max_retries=0))

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    registry = Registry()
    registry.register(Stuck)
    registry.register(reader())
    out = await ask_node(registry)
    assert "time limit of 0.01 s" in message_and_reason(out)


@pytest.mark.parametrize("wrong", [CacheBehavior(), HumanInLoopBehavior()])
def test_unsupported_behaviors_of_a_node_are_refused(wrong: Any) -> None:
    registry, _ = node(around=[wrong])
    with pytest.raises(ConfigurationError, match=r"look\.behaviors cannot wrap"):
        build_graph(registry)


def test_a_middleware_of_a_stage_is_refused_at_a_node() -> None:
    class Reserves:
        stage = "acquire"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            return await call_next(attempt)

    registry, _ = node(around=[Reserves()])
    with pytest.raises(ConfigurationError, match="a node has no stages"):
        build_graph(registry)
