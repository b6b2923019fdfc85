"""Results without a bound: of a tool, of an effect, of a part of a step, on a remote worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, ConfigDict, PlainSerializer

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.base import FatalExecutionError
from capgraph.behaviors import GuardrailBehavior, GuardrailRule
from capgraph.configs.settings import Settings
from capgraph.governance import InformationFlow
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.scale.agui_events import EventTranslator
from capgraph.stores import open_saver
from tests.support.doors import Instead, status

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


class Mailbox(CapabilityContext):
    """Messages of strangers."""

    labels = ["untrusted"]
    text: str


@capability_node
class Export(BaseCapability):
    """Capability whose large results are stored in files."""

    name, description, provides = "export", "Export the messages.", [Mailbox]
    effect, large_result = "once", "file"

    class Parameters(BaseModel):
        size: int = BIG

    async def execute(self) -> dict[str, Any]:
        calls.append("export")
        return {"MAILBOX": {"text": "x" * self.parameters.size}}


async def run(
    name: str, url: str = "", options: Any = None, folder: str = "", **parameters: Any
) -> dict[str, Any]:
    capabilities = [report, send, InParts, Export, tool_capability(download, **(options or {}))]
    settings = Settings(limits={"max_result_bytes": LIMIT}, result_folder=folder)
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


async def test_a_large_result_is_stored_in_a_file_where_declared(tmp_path: Path) -> None:
    out = await run("download", options={"large_result": "file"}, folder=str(tmp_path / "files"))
    assert out["execution_outcome"]["status"] == "completed"
    [file] = (tmp_path / "files").iterdir()
    data = out["capability_context_data"]["RESULT_FILE"]["s"]
    assert data == {"path": str(file), "size_bytes": BIG, "types": ["DOWNLOAD_RESULT"]}
    assert file.read_text() == "x" * BIG
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in out["messages"][-1].text


async def test_an_effect_with_a_large_result_is_stored_in_a_file_once(tmp_path: Path) -> None:
    calls.clear()
    files, url = tmp_path / "files", f"sqlite:///{tmp_path / 'threads.db'}"
    for _ in range(2):
        out = await run("export", url, folder=str(files))
        assert json.loads(
            Path(out["capability_context_data"]["RESULT_FILE"]["s"]["path"]).read_text()
        )
    assert calls == ["export"] * 2  # in two turns
    assert len([*files.iterdir()]) == 1
    databases = [file for file in tmp_path.iterdir() if file.is_file()]
    assert all(b"x" * 1_000 not in file.read_bytes() for file in databases)


async def test_a_small_result_is_not_stored_in_a_file(tmp_path: Path) -> None:
    out = await run("export", folder=str(tmp_path), size=3)
    assert out["capability_context_data"] == {"MAILBOX": {"s": {"text": "xxx"}}}
    assert not [*tmp_path.iterdir()]


async def test_a_folder_that_cannot_be_written_fails_the_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = await run("export", folder=str(tmp_path / "file"))
    assert failure(out)["severity"] == "critical"
    assert not out.get("capability_context_data")


async def test_the_result_of_an_effect_is_read_from_its_file_after_a_crash(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    crashes = [True]

    async def crash(_: Any, call_next: Any) -> Any:
        result = await call_next()
        if crashes.pop():
            raise FatalExecutionError("The process ended.")
        return result

    calls.clear()
    limits, settings = {"max_result_bytes": LIMIT}, {"result_folder": str(tmp_path)}
    options = {"checkpointer": InMemorySaver(), "behaviors": [Instead("retry", crash)]}
    plans = [[step("s", "export")]]
    it = agent(Export, plans=plans, limits=limits, settings=settings, **options)
    with pytest.raises(FatalExecutionError):
        await it.graph.ainvoke({"messages": [("user", "Export")]}, it.config("1"))
    crashes.append(False)
    out = await it.graph.ainvoke(None, it.config("1"))
    assert status(out) == "completed"
    assert calls == ["export"]
    assert str(tmp_path) in out["capability_context_data"]["RESULT_FILE"]["s"]["path"]


async def test_a_guard_checks_a_result_before_it_is_stored_in_a_file(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    limits, settings = {"max_result_bytes": LIMIT}, {"result_folder": str(tmp_path)}
    guard = GuardrailBehavior([GuardrailRule("letters", pattern="xxxx", apply_to="output")])
    plans = [[step("s", "export")]]
    it = agent(Export, plans=plans, limits=limits, settings=settings, behaviors=[guard])
    assert status(await it.ask()) == "failed"
    assert not [*tmp_path.iterdir()]


async def test_a_file_has_the_labels_of_the_result_in_it(
    tmp_path: Path, agent: Any, step: Any
) -> None:
    limits, settings = {"max_result_bytes": LIMIT}, {"result_folder": str(tmp_path)}
    options = {"policies": [InformationFlow(on_violation="deny")], "checkpointer": InMemorySaver()}
    plans = [[step("s", "export")]]
    it = agent(Export, plans=plans, limits=limits, settings=settings, **options)
    out = await it.ask()
    assert "untrusted" in out["capability_context_labels"]["RESULT_FILE"]["s"]


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
