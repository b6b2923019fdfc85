"""Runs of an agent are found again, in whatever they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from capgraph.agents import ChainOfThoughtAgent, PlanExecuteAgent, ReActAgent, ReflexionAgent
from capgraph.base.errors import ModelError
from capgraph.behaviors import BaseBehavior
from capgraph.stores import CheckpointManager, InMemoryStateStore
from capgraph.testing import ScriptedModel
from tests.support.agents import Seen, call, calls


@tool(response_format="content_and_artifact")
def level(tank: str) -> tuple[str, Any]:
    """Read how full a tank is."""
    return "2.5 m", (2.5, {"m"})


@pytest.mark.parametrize("kind", [InMemoryStateStore, InMemoryStore, InMemorySaver])
async def test_a_run_is_found_by_its_agent_and_its_execution_and_resumed(kind: Any) -> None:
    store = kind()
    call = {"name": "level", "args": {"tank": "a"}, "id": "1"}
    model = ScriptedModel(responses=[AIMessage("", tool_calls=[call]), AIMessage("2.5 m")])
    agent = ReActAgent(
        model, tools=[level], checkpoint_manager=CheckpointManager(store), agent_id="gauge"
    )
    result = await agent.execute("How full is tank a?")
    assert (result.success, result.output) == (True, "2.5 m")
    run = result.metadata["execution_id"]
    manager = CheckpointManager(store)
    kept = [item.checkpoint_id for item in await manager.list_by_execution(run)]
    assert kept
    assert [item.checkpoint_id for item in await manager.list("gauge")] == kept
    latest = await manager.load_latest_for_execution(run)
    assert latest is not None
    assert (latest.agent_id, latest.state["task"]) == ("gauge", "How full is tank a?")
    again = ReActAgent(
        ScriptedModel(responses=[]), tools=[level], checkpoint_manager=manager, agent_id="gauge"
    )
    assert (await again.resume_from(run)).output == "2.5 m"


@pytest.mark.parametrize("around", [[], [Seen()]], ids=["bare", "with a behaviour"])
@pytest.mark.parametrize("kind", [InMemoryStateStore, InMemorySaver])
@pytest.mark.parametrize("agent", ["react", "plan", "reflexion", "thought"])
async def test_every_agent_type_resumes_from_stored_state(
    agent: str, kind: Any, around: Any
) -> None:
    away = ModelError("away")
    model = ScriptedModel(
        responses={
            "react": [calls(call("level", tank="a")), away, "It is 4."],
            "plan": ['["look", "say"]', "3", away, "It is 4."],
            "reflexion": ["3", away, "NO", "It is 4.", "YES"],
            "thought": [away, "It is 4."],
        }[agent]
    )
    options: dict[str, Any] = {
        "checkpoint_manager": CheckpointManager(kind()),
        "behaviors": [*around, told := Named()],
    }
    made: Any = {
        "react": lambda: ReActAgent(model, tools=[level], **options),
        "plan": lambda: PlanExecuteAgent(model, **options),
        "reflexion": lambda: ReflexionAgent(ChainOfThoughtAgent(model), **options),
        "thought": lambda: ChainOfThoughtAgent(model, **options),
    }[agent]
    with pytest.raises(ModelError):
        await made().execute("How full?")
    result = await made().resume_from(told.names[0])
    assert result.output == "It is 4."
    assert told.names[1:] == told.names[:1], "the run goes on under its name"
    assert len(model.calls) == len(model.responses), "nothing was asked again"


class Named(BaseBehavior):
    """Notes the names of runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_execute(self, context: Any) -> None:
        self.names.append(context.execution_id)
