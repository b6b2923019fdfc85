"""The served agent over MCP, called by the official client over loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import httpx
import httpx2
import pytest
from langgraph.types import interrupt
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    INVALID_PARAMS,
    ElicitResult,
    EmptyResult,
    PromptReference,
    ResourceTemplateReference,
    SetLevelRequest,
    SetLevelRequestParams,
)
from pydantic import Field

from capgraph import CapabilityContext, capability_node
from capgraph.adapters.mcp_calls import IDEMPOTENCY_META_KEY
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.planning.recipes import Recipe
from tests.support import mcp1_client
from tests.support.listening import listening
from tests.support.served import Level, OpenValve, read_level

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
TOOLS = {"mcp": {"tools": ["read_level", "open_valve"]}}


@asynccontextmanager
async def client(url: str, user: str = "ann", mode: str = "auto", **options: Any) -> Any:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers={"x-user": user}))
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=mode, **options))


class Person:
    """Whoever sits at a client; gives the answers one after the other."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return ElicitResult(action=answer)
        return ElicitResult(action="accept", content=answer)


def text(result: Any) -> str:
    return result.content[0].text


@pytest.fixture(autouse=True)
def _dry() -> None:
    OpenValve.opened.clear()


@MODES
async def test_ask_is_a_run_that_tells_how_far_it_is(mode: str) -> None:
    told: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total, message))

    async with listening() as url, client(url, mode=mode) as mcp:
        assert [tool.name for tool in (await mcp.list_tools()).tools] == ["ask"]
        assert mcp.server_info.version == version("capgraph")
        given = {"message": "Read the level", "user_id": "bob", "langgraph_auth_user": "bob"}
        found = await mcp.call_tool("ask", given, progress_callback=progress)
        assert not found.is_error
        assert found.structured_content["status"] == "completed"
        assert "7" in text(found)
        said = [message for *_, message in told]
        assert said[:3] == ["Plan with 2 steps", "level started", "level finished"]
        assert [done for done, *_ in told] == sorted({done for done, *_ in told})
        thread = found.structured_content["thread"]
        again = await mcp.call_tool("ask", {"message": "Read the level", "thread": thread})
        assert again.structured_content["thread"] == thread
        async with httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http:
            # The turn is in the log, and nobody else's.
            run = await http.get(f"/api/runs/{found.structured_content['run_id']}")
            assert run.json()["thread_id"] == thread
            messages = (await http.get(f"/api/threads/{thread}")).json()["messages"]
            assert len(messages) == 4
            for name in ("bob", "eve"):
                path = f"/api/threads/{thread}"
                assert (await http.get(path, headers={"x-user": name})).status_code == 404


@MODES
async def test_an_edit_that_is_refused_is_elicited_again(mode: str) -> None:
    person = Person({"decision": "edit", "litres": 900}, {"decision": "approve", "litres": 4})
    async with (
        listening(**TOOLS) as url,
        client(url, mode=mode, elicitation_callback=person) as mcp,
    ):
        found = await mcp.call_tool("open_valve", {"LEVEL": {"litres": 7}, "litres": 3})
    assert not found.is_error, text(found)
    assert OpenValve.opened == [4.0]
    first, second = person.asked
    fields = first.requested_schema["properties"]
    assert fields["decision"]["enum"] == ["approve", "edit", "reject", "respond"]
    assert (fields["litres"]["type"], fields["litres"]["default"]) == ("number", 3.0)
    assert "Open the valve" in first.message
    assert "900" in second.message
    assert "litres" in second.message


@MODES
async def test_answers_that_let_nothing_run(mode: str) -> None:
    given = {"LEVEL": {"litres": 7}, "litres": 3}
    async with listening(**TOOLS) as url:
        for answer in ({"decision": "reject", "reason": "not now"}, "decline"):
            async with client(url, mode=mode, elicitation_callback=Person(answer)) as mcp:
                refused = await mcp.call_tool("open_valve", given)
            assert refused.is_error
            assert "reject" in text(refused)
        for options in ({"elicitation_callback": Person("cancel")}, {}):
            async with client(url, mode=mode, **options) as mcp:
                left = await mcp.call_tool("open_valve", given)
            assert "Open the valve of the tank." in text(left)
            assert f"{url}/?thread={left.structured_content['thread']}" in text(left)
            async with httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http:
                asked = (await http.get("/api/questions")).json()["items"]
                path = f"/api/questions/{left.structured_content['question_id']}"
                assert any(one["question_id"] in path for one in asked)
                eve = await http.post(path, json={"answer": "approve"}, headers={"x-user": "eve"})
                assert eve.status_code == 404
    assert OpenValve.opened == []


@MODES
async def test_capabilities_are_tools_where_the_operator_names_them(mode: str) -> None:
    async with listening(mcp={"tools": ["read_level"]}) as url, client(url, mode=mode) as mcp:
        names = [tool.name for tool in (await mcp.list_tools()).tools]
        assert names == ["ask", "read_level"]
        found = await mcp.call_tool("read_level", {}, meta={IDEMPOTENCY_META_KEY: "once"})
        assert found.structured_content == {"litres": 7}
        again = await mcp.call_tool("read_level", {}, meta={IDEMPOTENCY_META_KEY: "once"})
        assert again.structured_content == {"litres": 7}
        with pytest.raises(MCPError) as unknown:
            await mcp.call_tool("open_valve", {"litres": 3})
        assert unknown.value.error.code == INVALID_PARAMS
        wrong = await mcp.call_tool("read_level", {"how": "well"})
        assert wrong.is_error
        async with httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http:
            # A refused call creates no thread.
            assert len((await http.get("/api/threads")).json()["items"]) == 1
    with pytest.raises(ConfigurationError, match="nothing_such"):
        async with listening(mcp={"tools": ["nothing_such"]}):
            pass


@MODES
async def test_steps_are_log_messages_for_clients_that_set_a_level(mode: str) -> None:
    messages: list[Any] = []

    async def log(params: Any) -> None:
        messages.append(params)

    async with listening(**TOOLS) as url, client(url, mode=mode, logging_callback=log) as mcp:
        await mcp.call_tool("read_level", {})
        assert messages == []
        meta = {"io.modelcontextprotocol/logLevel": "debug"} if mode == "auto" else None
        if mode == "legacy":
            request = SetLevelRequest(params=SetLevelRequestParams(level="debug"))
            await mcp.session.send_request(request, EmptyResult)
        await mcp.call_tool("read_level", {}, meta=meta)
        while len(messages) < 3:
            await asyncio.sleep(0.01)
    assert [one.data for one in messages] == ["Plan with 2 steps", "call started", "call finished"]
    assert {one.level for one in messages} == {"info"}


async def test_files_of_the_operator_are_resources(tmp_path: Path) -> None:
    (tmp_path / "manual.txt").write_text("Close the valve first.")
    (tmp_path / "plan.png").write_bytes(b"picture")
    files = {f"docs://{name}": str(tmp_path / name) for name in ("manual.txt", "plan.png")}
    async with listening(mcp={"resources": files}) as url, client(url, "eve") as mcp:
        listed = {str(one.uri): one for one in (await mcp.list_resources()).resources}
        assert [*listed] == [*files]
        (manual,) = (await mcp.read_resource("docs://manual.txt")).contents
        assert manual.text == "Close the valve first."
        assert manual.mime_type.startswith("text/plain")
        (picture,) = (await mcp.read_resource("docs://plan.png")).contents
        assert picture.mime_type == "image/png"
        (tmp_path / "manual.txt").unlink()
        with pytest.raises(MCPError) as missing:
            await mcp.read_resource("docs://manual.txt")
        assert missing.value.error.code == INVALID_PARAMS
    for uri, path in (("docs://x", "missing.txt"), ("capgraph://threads/x", __file__)):
        with pytest.raises(ConfigurationError):
            async with listening(mcp={"resources": {uri: path}}):
                pass


async def test_a_session_is_its_users() -> None:
    async with listening() as url, httpx.AsyncClient(base_url=url) as http:
        about = {"name": "x", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
        headers = {"accept": "application/json, text/event-stream", "x-user": "ann"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        opened = await http.post("/mcp", json=body, headers=headers)
        assert opened.status_code == 200
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        for user, status in (("eve", 404), ("ann", 200)):
            headers["x-user"] = user
            assert (await http.post("/mcp", json=listing, headers=headers)).status_code == status
        assert (await http.post("/mcp", json=listing)).status_code == 401
        headers["origin"] = "http://evil.example"
        assert (await http.post("/mcp", json=listing, headers=headers)).status_code == 403


async def test_without_its_extra_a_protocol_is_not_there(monkeypatch: Any, caplog: Any) -> None:
    for name in ("mcp.server", "a2a.server.routes"):
        monkeypatch.setitem(sys.modules, name, None)
    async with (
        listening() as url,
        httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http,
    ):
        for path in ("/mcp", "/a2a"):
            assert (await http.post(path, json={})).status_code == 404
        assert (await http.get("/.well-known/agent-card.json")).status_code == 404
    assert "pip install 'capgraph[mcp]'" in caplog.text
    assert "pip install 'capgraph[a2a]'" in caplog.text


@pytest.fixture(scope="session")
def first_generation(tmp_path_factory: Any) -> Path:
    """A folder with `mcp` 1.x, which stands before 2.x on the path of another process."""
    where: Path = tmp_path_factory.mktemp("mcp1")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(where)]
    wanted = ["mcp>=1.25,<2", "httpx-sse"]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True, timeout=240)
    if done.returncode:
        missing = "mcp 1.x cannot be installed here: its client is not tried"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return where


async def test_a_client_of_the_first_generation(first_generation: Path) -> None:
    async def run(url: str, *answers: dict[str, Any]) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, mcp1_client.__file__, url, "ann", json.dumps(answers)),
            env={**os.environ, "PYTHONPATH": str(first_generation)},
            stdout=subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)

    async with listening() as url:
        found = await run(
            url, {"decision": "edit", "litres": 900}, {"decision": "edit", "litres": 4}
        )
        left = await run(url)
    assert found["protocol"] == "2025-11-25"
    assert found["tools"] == ["ask"]
    assert "900" in found["asked"][1]["message"]
    assert found["result"]["status"] == "completed"
    assert "open_valve started" in " ".join(message for *_, message in found["told"])
    assert OpenValve.opened == [4.0]
    assert left["result"]["status"] == "waiting"
    assert f"{url}/?thread=" in left["result"]["text"]


class Tank(CapabilityContext):
    """A tank with its parts."""

    litres: float
    parts: list[Level] = Field(default_factory=list)


@capability_node
async def broken_gauge() -> Level:
    """Read a gauge that is broken."""
    raise CapabilityError("The gauge is broken.")


@capability_node(requires_approval=True)
async def drain_tank() -> Tank:
    """Drain the tank."""
    return Tank(litres=0, parts=[Level(litres=0)])


@MODES
async def test_failing_tool_returns_an_error_result(mode: str) -> None:
    tools = {"mcp": {"tools": ["broken_gauge"]}}
    async with listening(broken_gauge, **tools) as url, client(url, mode=mode) as mcp:
        result = await mcp.call_tool("broken_gauge", {})
    assert result.is_error
    assert "The gauge is broken." in text(result)


@MODES
async def test_open_question_fits_the_output_schema_of_its_tool(mode: str) -> None:
    tools = {"mcp": {"tools": ["drain_tank"]}}
    async with listening(drain_tank, **tools) as url:
        for options in ({"elicitation_callback": Person("cancel")}, {}):
            async with client(url, mode=mode, **options) as mcp:
                waiting = await mcp.call_tool("drain_tank", {})
            assert not waiting.is_error
            assert waiting.structured_content["status"] == "waiting"
            assert f"{url}/?thread={waiting.structured_content['thread']}" in text(waiting)
        person = Person({"decision": "approve"})
        async with client(url, mode=mode, elicitation_callback=person) as mcp:
            drained = await mcp.call_tool("drain_tank", {})
    assert drained.structured_content == {"litres": 0, "parts": [{"litres": 0}]}


class Drawing(CapabilityContext):
    """A drawing."""

    path: str
    file: ClassVar[Path]

    def get_files(self) -> list[str]:
        return [self.path]


@capability_node(examples=["draw the tide", "draw the moon"])
async def draw_tide() -> Drawing:
    """Draw the tide."""
    return Drawing(path=str(Drawing.file))


HARBOR_RECIPE = Recipe(
    name="harbor_level",
    description="Read the level of a harbor.",
    parameters={"harbor": {"type": "string"}},
    steps=[{"context_key": "level", "capability": "read_level", "task_objective": "{harbor}"}],
    examples=[{"request": "How high is the water in Oslo?", "parameters": {"harbor": "Oslo"}}],
)


@MODES
async def test_threads_and_pictures_are_resources(mode: str, tmp_path: Path) -> None:
    Drawing.file = tmp_path / "tide.png"
    Drawing.file.write_bytes(b"\x89PNG")
    options = {"mcp": {"tools": ["draw_tide"]}, "downloads": [str(tmp_path)]}
    async with listening(draw_tide, **options) as url:
        async with client(url, mode=mode) as mcp:
            drawn = await mcp.call_tool("draw_tide", {})
            assert [part.type for part in drawn.content] == ["text", "image"]
            assert drawn.content[1].mime_type == "image/png"
            (listed,) = (await mcp.list_resources()).resources
            document = (await mcp.read_resource(listed.uri)).contents[0]
            (file,) = json.loads(document.text)["files"]
            picture = (await mcp.read_resource(file["uri"])).contents[0]
            assert picture.blob == drawn.content[1].data
            templates = (await mcp.list_resource_templates()).resource_templates
            thread = listed.uri.rpartition("/")[2]
            reference = ResourceTemplateReference(uri=templates[0].uri_template)
            argument = {"name": "thread", "value": thread[:6]}
            completion = await mcp.complete(reference, argument)
            assert completion.completion.values == [thread]
            with pytest.raises(MCPError) as missing:
                await mcp.read_resource("capgraph://threads/unknown")
            assert missing.value.error.code == INVALID_PARAMS
        async with client(url, "eve", mode=mode) as eve:
            assert (await eve.list_resources()).resources == []
            for uri in (listed.uri, file["uri"]):
                with pytest.raises(MCPError):
                    await eve.read_resource(uri)


@MODES
async def test_recipes_and_example_requests_are_prompts(mode: str) -> None:
    async with (
        listening(read_level, draw_tide, HARBOR_RECIPE) as url,
        client(url, mode=mode) as mcp,
    ):
        prompts = {prompt.name: prompt for prompt in (await mcp.list_prompts()).prompts}
        assert {*prompts} == {"draw_tide", "harbor_level"}
        (argument,) = prompts["harbor_level"].arguments
        assert (argument.name, argument.required) == ("harbor", True)
        prompt = await mcp.get_prompt("harbor_level", {"harbor": "Bergen"})
        assert prompt.messages[0].content.text == "How high is the water in Bergen?"
        prompt = await mcp.get_prompt("draw_tide")
        assert prompt.messages[0].content.text == "draw the tide"
        reference = PromptReference(name="harbor_level")
        completion = await mcp.complete(reference, {"name": "harbor", "value": "O"})
        assert completion.completion.values == ["Oslo"]
        for name, arguments in (("unknown", {}), ("harbor_level", {}), ("draw_tide", {"a": "b"})):
            with pytest.raises(MCPError):
                await mcp.get_prompt(name, arguments)


async def test_prompt_argument_may_contain_the_example_of_another() -> None:
    steps = [
        {"context_key": "one", "capability": "read_level", "task_objective": "{near}"},
        {"context_key": "two", "capability": "read_level", "task_objective": "{far}"},
    ]
    example = {"near": "Bergen", "far": "Oslo"}
    compare = Recipe(
        name="compare_harbors",
        description="Compare the levels of two harbors.",
        parameters={"near": {"type": "string"}, "far": {"type": "string"}},
        steps=steps,
        examples=[{"request": "Is Bergen above Oslo?", "parameters": example}],
    )
    async with listening(read_level, compare) as url, client(url) as mcp:
        prompt = await mcp.get_prompt("compare_harbors", {"near": "Oslo", "far": "Hamburg"})
        assert prompt.messages[0].content.text == "Is Oslo above Hamburg?"


async def test_response_without_the_answer_is_elicited_again() -> None:
    @capability_node
    async def greet() -> str:
        """Greet a guest."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        return f"Hello, {interrupt({'name': 'guest', 'message': 'Who?', 'schema': schema})['name']}"

    async with listening(greet, mcp={"tools": ["greet"]}) as url, httpx.AsyncClient() as http:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "x-user": "ann",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "greet",
        }

        async def call(**params: Any) -> Any:
            params = {"name": "greet", "arguments": {}, "_meta": meta, **params}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            response = await http.post(f"{url}/mcp", json=body, headers=headers)
            text = response.text.rpartition("data: ")[2]
            return json.loads(text)["result"]

        asked = await call()
        assert [*asked["inputRequests"]] == ["guest"]
        answer = {"action": "accept", "content": {"name": "Bo"}}
        state = asked["requestState"]
        again = await call(requestState=state, inputResponses={"other": answer})
        assert [*again["inputRequests"]] == ["guest"]
        greeted = await call(requestState=again["requestState"], inputResponses={"guest": answer})
        assert greeted["structuredContent"] == {"value": "Hello, Bo"}
