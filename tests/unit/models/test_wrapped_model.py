"""Middleware of a role around the model calls of capabilities."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.behaviors import FallbackBehavior, RetryBehavior
from capgraph.testing import ScriptedModel

PLAN = {"steps": [{"context_key": "text", "capability": "write", "task_objective": "write"}]}


class Passing:
    """Counts what passes it."""

    stage = "call"

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def wrap_model_call(self, attempt: Any, call_next: Any) -> Any:
        self.seen.append((attempt.kind, attempt.capability))
        return await call_next()

    wrap_step = wrap_model_call


class Text(CapabilityContext):
    CONTEXT_TYPE = "TEXT"
    text: str


@capability_node
class Write(BaseCapability):
    """Write something."""

    name = "write"
    description = "Write something."
    provides = (Text,)

    async def execute(self) -> Text:
        return Text(text=await self.written())

    async def written(self) -> str:
        return str((await self.chat_model().ainvoke("Write.")).text)


async def ran(model: Any, **options: Any) -> Any:
    graph = build_graph([Write], model=model, **options)
    return await graph.ainvoke({"messages": [("user", "write")], "planning_execution_plan": PLAN})


def said(out: Any) -> str:
    return out["messages"][-1].content


async def test_role_behaviors_apply_to_calls_of_capabilities() -> None:
    first = ScriptedModel(responses=[ConnectionError("gone"), "Second try."])
    retry = RetryBehavior(max_retries=1, base_delay=0.001, max_delay=0.001)
    out = await ran({"capability": {"model": first, "behaviors": [retry]}})
    assert "Second try." in said(out)
    assert len(first.calls) == 2


@pytest.mark.parametrize(
    "instead",
    [{"models": [ScriptedModel(responses=["The other one."])]}, {"default": "The other one."}],
)
async def test_middleware_can_replace_the_answer(instead: Any) -> None:
    broken = ScriptedModel(responses=[ConnectionError("gone")])
    other = FallbackBehavior(**instead)
    out = await ran({"capability": {"model": broken, "behaviors": [other]}})
    assert "The other one." in said(out)


async def test_graph_middleware_applies_to_calls_of_capabilities() -> None:
    passing = Passing()
    await ran({"capability": ScriptedModel(responses=["x"])}, behaviors=[passing])
    assert passing.seen == [("step", "write"), ("model", "capability")]


@capability_node
class Streamed(Write):
    """Write in pieces."""

    name = "write"

    async def written(self) -> str:
        bound = self.chat_model().bind_tools([])
        return "".join([str(part.text) async for part in bound.astream("Write.")])


@capability_node
class Blocking(Write):
    """Write without waiting."""

    name = "write"

    async def written(self) -> str:
        return str(self.chat_model().invoke("Write.").text)


@pytest.mark.parametrize(
    ("capability", "told"), [(Streamed, "In pieces."), (Blocking, "await model.ainvoke")]
)
async def test_streaming_and_synchronous_calls(capability: Any, told: str) -> None:
    model = {"model": ScriptedModel(responses=["In pieces."]), "behaviors": [RetryBehavior()]}
    graph = build_graph([capability], model={"capability": model})
    given = {"messages": [("user", "write")], "planning_execution_plan": PLAN}
    out = await graph.ainvoke(given)
    assert told in str(out)
