"""One model call before the first step: the planner chooses while it can be shown everything."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import BaseCapability, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.testing import ModelCall, ScriptedModel
from tests.support.readings import Reading, Wipe, sensor_registry

ASKED = {"messages": [("user", "What does the sensor say?")]}
READ = {"steps": [{"capability": "read_sensor"}]}


def graph_of(model: ScriptedModel, registry: Any = None, **settings: Any) -> Any:
    return build_graph(registry or sensor_registry(), model, settings=load_settings(**settings))


def asked(model: ScriptedModel) -> list[str]:
    return [call.schema or "text" for call in model.calls]


async def test_one_call_before_the_first_step_and_one_for_the_answer() -> None:
    model = ScriptedModel(responses=[READ, "It reads 3.5."])
    out = await graph_of(model).ainvoke(ASKED)
    assert asked(model) == ["ExecutionPlan", "text"]
    assert out["messages"][-1].content == "It reads 3.5."
    assert out["planning_active_capabilities"] == ["read_sensor"]
    assert out["control_budget"]["model_calls"] == 2
    assert (out["control_budget"]["plans"], out["control_budget"]["classifications"]) == (1, 1)


async def test_hello_costs_one_call_in_all() -> None:
    model = ScriptedModel(responses=[{"steps": [], "answer": "Hello! I read the sensor."}])
    out = await graph_of(model).ainvoke({"messages": [("user", "hello")]})
    assert asked(model) == ["ExecutionPlan"]
    assert out["messages"][-1].content == "Hello! I read the sensor."
    assert out["execution_outcome"]["status"] == "completed"
    assert out["planning_active_capabilities"] == []


async def test_hello_costs_one_call_past_the_budget_too() -> None:
    reply = {"reason": "small talk", "capabilities": [], "answer": "Hello!"}
    model = ScriptedModel(responses=[reply])
    graph = graph_of(model, sensor_registry(60), selection={"max_catalog_tokens": 100})
    out = await graph.ainvoke({"messages": [("user", "hello")]})
    assert asked(model) == ["Choice"]
    assert out["messages"][-1].content == "Hello!"


async def test_past_the_budget_the_choice_is_a_call_of_its_own() -> None:
    choice = {"reason": "reads", "capabilities": ["read_sensor"], "answer": ""}
    model = ScriptedModel(responses=[choice, READ, "It reads 3.5."])
    graph = graph_of(model, sensor_registry(60), selection={"max_catalog_tokens": 100})
    await graph.ainvoke(ASKED)
    assert asked(model) == ["Choice", "ExecutionPlan", "text"]
    assert "archive_7" not in model.calls[1].prompt


@pytest.mark.parametrize("strategy", ["model", "auto"])
async def test_who_has_a_model_for_the_choice_is_asked(strategy: str) -> None:
    choice = {"reason": "reads", "capabilities": ["read_sensor"]}
    small = ScriptedModel(responses=[choice])
    large = ScriptedModel(responses=[READ, "It reads 3.5."])
    given: Any = {"selection": small, "default": large} if strategy == "auto" else large
    if strategy == "model":
        large.responses = [choice, READ, "It reads 3.5."]
    settings = load_settings(selection={"strategy": strategy})
    out = await build_graph(sensor_registry(), given, settings=settings).ainvoke(ASKED)
    assert len(small.calls) + len(large.calls) == 3
    assert out["execution_outcome"]["status"] == "completed"


async def test_an_answer_beside_steps_or_after_work_is_not_taken() -> None:
    model = ScriptedModel(responses=[{**READ, "answer": "It is 99."}, "It reads 3.5."])
    out = await graph_of(model).ainvoke(ASKED)
    assert out["messages"][-1].content == "It reads 3.5."

    old = {"steps": [{"capability": "old_sensor"}]}
    gives_up = {"steps": [], "answer": "It is 99."}
    model = ScriptedModel(responses=[old, gives_up, "The old sensor is silent."])
    out = await graph_of(model).ainvoke(ASKED)
    assert out["messages"][-1].content == "The old sensor is silent."


async def test_what_is_not_registered_is_a_problem_and_goes_back() -> None:
    flies = {"steps": [{"capability": "teleport"}]}
    model = ScriptedModel(responses=[flies, READ, "It reads 3.5."])
    out = await graph_of(model).ainvoke(ASKED)
    assert asked(model) == ["ExecutionPlan", "ExecutionPlan", "text"]
    assert "CG-P04" in model.calls[1].prompt
    assert out["control_budget"]["plans"] == 2


async def test_choosing_again_plans_again_without_what_was_refused_and_costs_one_call() -> None:
    @capability_node
    class Guess(BaseCapability):
        """Guesses the value."""

        name = "guess"
        description = "Guesses the value."
        provides = ["READING"]

        async def execute(self) -> Reading:
            raise CapabilityError(
                "A guess will not do.", fix="Read it.", severity=ErrorSeverity.RECLASSIFICATION
            )

    registry = sensor_registry()
    registry.register(Guess)
    guess = {"steps": [{"capability": "guess"}]}
    model = ScriptedModel(responses=[guess, READ, "It reads 3.5."])
    out = await graph_of(model, registry).ainvoke(ASKED)
    assert asked(model) == ["ExecutionPlan", "ExecutionPlan", "text"]
    assert "guess: A guess will not do" in model.calls[1].messages[1].text
    assert model.calls[0].messages[0] == model.calls[1].messages[0], "the beginning is cached"
    assert (out["control_budget"]["plans"], out["control_budget"]["classifications"]) == (2, 2)

    # A planner that insists is told, and is bounded.
    model = ScriptedModel(responses=[guess, *[guess] * 20])
    out = await graph_of(model, registry, limits={"max_planning_attempts": 3}).ainvoke(ASKED)
    assert asked(model) == ["ExecutionPlan"] * 3
    assert "CG-P05" in out["execution_outcome"]["reason"]


async def test_a_new_plan_may_use_what_the_first_did_not() -> None:
    old = {"steps": [{"capability": "old_sensor"}]}
    model = ScriptedModel(responses=[old, READ, "It reads 3.5."])
    out = await graph_of(model).ainvoke(ASKED)
    assert out["messages"][-1].content == "It reads 3.5."
    assert out["planning_active_capabilities"] == ["read_sensor"]


async def test_an_application_that_plans_itself_still_gets_a_choice() -> None:
    class Mine:
        can_correct = False

        async def plan(self, request: Any) -> Any:
            assert request.active == ("read_sensor",)
            return READ

    choice = {"reason": "reads", "capabilities": ["read_sensor"]}
    model = ScriptedModel(responses=[choice, "It reads 3.5."])
    graph = build_graph(sensor_registry(), model, planner=Mine(), settings=load_settings())
    out = await graph.ainvoke(ASKED)
    assert out["execution_outcome"]["status"] == "completed"


async def test_between_turns_only_the_end_of_a_prompt_changes() -> None:
    """Which bytes change: the human message; the system message and the form never do."""
    prompts: dict[str, list[ModelCall]] = {}

    def answer(call: ModelCall) -> Any:
        prompts.setdefault(call.schema or "text", []).append(call)
        task = {"task": "t", "depends_on_chat_history": True, "depends_on_user_memory": False}
        return {"ExecutionPlan": READ, "Task": task}.get(call.schema or "", "It reads 3.5.")

    from langgraph.checkpoint.memory import InMemorySaver

    graph = build_graph(
        sensor_registry(),
        ScriptedModel(responses=answer),
        InMemorySaver(),
        settings=load_settings(),
    )
    for said in ("What does it say?", "And now?", "And after that?"):
        await graph.ainvoke({"messages": [("user", said)]}, {"configurable": {"thread_id": "1"}})
    assert {kind: len(calls) for kind, calls in prompts.items()} == {
        "ExecutionPlan": 3,
        "text": 3,
        "Task": 2,
    }
    for calls in prompts.values():
        first, *rest = [[(m.type, str(m.content)) for m in call.messages] for call in calls]
        for other in rest:
            assert other[0] == first[0], "the system message is the same to the byte"
            assert other[-1] != first[-1]
    # The conversation of the answer only grows before its last message.
    grown = [[str(m.content) for m in call.messages[:-1]] for call in prompts["text"]]
    assert grown[2][: len(grown[1])] == grown[1]
    assert grown[1][: len(grown[0])] == grown[0]


async def test_what_acts_on_the_world_still_passes_the_gate() -> None:
    Wipe.wiped.clear()
    plan = {"steps": [{"capability": "wipe"}]}
    model = ScriptedModel(responses=[plan, "Erased."])
    graph = graph_of(model, approvals={"steps": "all"})
    out = await graph.ainvoke(ASKED)
    assert Wipe.wiped == []
    assert out.get("__interrupt__") or out["execution_outcome"]["status"] != "completed"


async def test_a_parameter_may_be_taken_from_an_earlier_step_of_the_same_plan() -> None:
    @capability_node
    async def level() -> float:
        """Read the level of the tank."""
        return 2.5

    @capability_node
    async def double(value: float) -> float:
        """Double a number."""
        return 2 * value

    registry = Registry()
    registry.register(level)
    registry.register(double)
    plan = {
        "steps": [
            {"capability": "level", "context_key": "now"},
            {"capability": "double", "parameters": {"value": {"$from": "now"}}},
        ]
    }
    model = ScriptedModel(responses=[plan, "Five."])
    out = await graph_of(model, registry).ainvoke({"messages": [("user", "Twice the level?")]})
    assert out["execution_outcome"]["status"] == "completed"
    assert out["capability_context_data"]["DOUBLE"]["double"]["value"] == 5.0
    assert '{"$from": "key.field"}' in model.calls[0].prompt

    model = ScriptedModel(responses=[READ, "It reads 3.5."])
    await graph_of(model).ainvoke(ASKED)
    assert "$from" not in model.calls[0].prompt, "nothing here has a field to refer to"
