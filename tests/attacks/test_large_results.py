"""Results without a bound: of a tool, of an effect, of a part of a step, on a remote worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import BaseModel, ConfigDict, PlainSerializer

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.configs.settings import Settings
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.scale.agui_events import EventTranslator
from capgraph.stores import open_saver

LIMIT = 100_000
BIG = LIMIT + 1
SMALL = LIMIT // 2
calls: list[str] = []


class Report(CapabilityContext):
    CONTEXT_TYPE = "REPORT"
    text: Any


class Grown(BaseModel):
    """A value that is small in memory and large as plain data."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    text: Annotated[str, PlainSerializer(lambda text: text * BIG)]


VALUES = {
    "text": "x" * BIG,
    "list": ["x"] * BIG,
    "keys": {f"key {n}": 1 for n in range(BIG // 5)},
    "nested": {"a": [{"b": ["x" * SMALL]}] * 3},
    "numbers": [1] * BIG,
    "model": Grown(text="x"),
}


@capability_node
def report(kind: str = "text") -> Report:
    """Write a report."""
    return Report(text=VALUES[kind])


@capability_node(effect="once")
def send(kind: str = "text") -> Report:
    """Send a report."""
    calls.append(kind)
    return Report(text=VALUES[kind])


@capability_node
class InParts(BaseCapability):
    name, description, provides = "in_parts", "Send a report in parts.", ["REPORT"]

    async def execute(self) -> dict[str, Any]:
        def part() -> str:
            calls.append("part")
            return "x" * BIG

        await self.once("first", part)
        return {"REPORT": {"text": "sent"}}


def download() -> str:
    """Download a page."""
    return "x" * BIG


async def run(name: str, url: str = "", **parameters: Any) -> dict[str, Any]:
    capabilities = [report, send, InParts, tool_capability(download)]
    settings = Settings(limits={"max_result_bytes": LIMIT})
    plan = {"steps": [{"context_key": "s", "capability": name, "parameters": parameters}]}
    config: Any = {"configurable": {"thread_id": "1"}}
    async with open_saver(url or None) as saver:
        graph = build_graph(capabilities, settings=settings, checkpointer=saver)
        out: dict[str, Any] = await graph.ainvoke(
            {"planning_execution_plan": plan}, config if url else None
        )
        return out


def failure(out: dict[str, Any]) -> Any:
    return out["control_error_info"]["classification"]


@pytest.mark.parametrize("kind", sorted(VALUES))
async def test_a_step_with_a_large_result_fails_by_name(kind: str) -> None:
    out = await run("report", kind=kind)
    assert failure(out)["metadata"]["code"] == "CG-LIMIT"
    assert "max_result_bytes" in out["execution_outcome"]["reason"]
    assert not out.get("capability_context_data")


async def test_a_large_result_of_a_tool_is_refused() -> None:
    out = await run("download")
    assert failure(out)["metadata"]["code"] == "CG-LIMIT"


@pytest.mark.parametrize("name", ["send", "in_parts"])
async def test_an_effect_with_a_large_result_is_done_and_its_result_is_not_stored(
    tmp_path: Path, name: str
) -> None:
    calls.clear()
    out = await run(name, f"sqlite:///{tmp_path / 'threads.db'}")
    assert failure(out)["metadata"]["code"] == "CG-LIMIT"
    assert failure(out)["severity"] == "critical"
    assert len(calls) == 1
    assert all(b"x" * 1_000 not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_shared_part_counts_each_time_that_it_is_stored() -> None:
    part = ["x" * 1_000]
    for _ in range(20):
        part = [part, part]
    assert exceeds_bytes(part, 16_000_000)


def test_data_that_contains_itself_ends() -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    assert exceeds_bytes(loop, 1_000_000)


@pytest.mark.parametrize("kind", sorted({*VALUES, "many keys", "many lists"} - {"model"}))
def test_an_event_of_any_shape_is_shortened(kind: str) -> None:
    shapes: dict[str, Any] = {
        "many keys": {f"key {n}": {"a": "x" * 50} for n in range(50_000)},
        "many lists": [[["x" * 50] * 100] * 100] * 100,
    }
    value = shapes.get(kind) or [VALUES[kind]] * 20
    event = {"type": "CUSTOM", "name": "capgraph.step_finished", "value": {"result": value}}
    shortened = EventTranslator("thread", "run").shorten(event)
    assert len(json.dumps(shortened)) < 1_000_000
    assert (shortened["type"], shortened["name"]) == (event["type"], event["name"])
    assert shortened["metadata"]["capgraph"]["cut"]["parts"]


class EndlessModel(BaseChatModel):
    """Model whose replies do not end, or are larger than the limit."""

    sent: int = 0
    text: str = "word " * 200
    parts: int = 10_000

    @property
    def _llm_type(self) -> str:
        return "endless"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.text * self.parts))])

    async def _astream(self, *_: Any, **__: Any) -> Any:
        for _part in range(self.parts):
            self.sent += 1
            yield ChatGenerationChunk(message=AIMessageChunk(content=self.text))


@pytest.mark.parametrize("text", ["word " * 200, '{"a": "' + "x" * 1000, "[" * 1000])
@pytest.mark.parametrize("parts", [10_000, 60])
@pytest.mark.parametrize("role", ["default", "answer"])
async def test_a_large_reply_of_a_model_is_refused(role: str, parts: int, text: str) -> None:
    model = EndlessModel(text=text, parts=parts)
    settings = Settings.model_validate({"limits": {"max_reply_bytes": LIMIT}})
    graph = build_graph([report], model={role: model}, settings=settings)
    out = await graph.ainvoke({"messages": [("user", "Report")]})
    status = out["execution_outcome"]["status"]
    assert len(out["messages"][-1].text) < LIMIT
    assert model.sent * len(text) < 4 * LIMIT
    assert status == "failed" or role == "answer" or parts < 100
