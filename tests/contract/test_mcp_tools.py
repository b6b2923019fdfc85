"""Tools of real MCP servers as steps: their schemas, effects, failures, questions and changes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from mcp import MCPError, StdioServerParameters
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel

from capgraph import CapabilityContext, Registry, build_graph, capability_node
from capgraph.adapters import mcp_capabilities
from capgraph.base.errors import CapabilityError, ConfigurationError, ValidationError
from capgraph.models.plan_schema import usable_features
from capgraph.models.signatures import describe_capability
from capgraph.testing import run_capability
from tests.support import mcp_server

SERVER = str(Path(mcp_server.__file__))
COMMAND = [sys.executable, SERVER]


class Doubled(CapabilityContext):
    celsius: float


@capability_node
async def double(celsius: float) -> Doubled:
    """Double a temperature."""
    return Doubled(celsius=2 * celsius)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "calls.log"
    path.touch()
    return path


def stdio(mode: str, path: Path) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[SERVER, mode, str(path)])


@pytest.fixture
def over_http(log: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([*COMMAND, "asks", str(log), str(port)])
    try:
        for _ in range(1000):
            with socket.socket() as probe:
                probe.settimeout(0.25)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def step(capability: str, key: str = "s", /, **parameters: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "parameters": parameters}


def on(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


async def run(graph: Any, thread: str, *steps: dict[str, Any]) -> dict[str, Any]:
    given = {"messages": [("user", "go")], "planning_execution_plan": {"steps": list(steps)}}
    return await graph.ainvoke(given, on(thread))


def told(out: dict[str, Any], key: str = "s") -> dict[str, Any]:
    return out["execution_step_results"][key]


def given(out: dict[str, Any], kind: str, key: str = "s") -> dict[str, Any]:
    return out["capability_context_data"][kind][key]


@pytest.mark.row("T34")
async def test_tools_of_a_server_are_steps_among_others(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log)) as tools:
        graph = build_graph([*tools, double])
        out = await run(
            graph,
            "1",
            step("weather", "w", place={"name": "Rome"}),
            step("double", "d", celsius={"$from": "w.celsius"}),
            step("picture", "p", title={"$from": "w.place"}),
        )
    assert given(out, "WEATHER_RESULT", "w") == {
        "place": "Rome",
        "celsius": 20.5,
        "hours": [1, 2, 3],
    }
    assert given(out, "DOUBLED", "d") == {"celsius": 41.0}
    picture = given(out, "PICTURE_RESULT", "p")
    assert picture["text"] == "Here is Rome."
    assert picture["content"][1] == {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    assert log.read_text().split() == ["weather", "Rome", "1"]  # the default came along


@pytest.mark.row("T34")
async def test_schemas_effects_and_labels(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log)) as tools:
        by_name = {tool.capability_spec.name: tool for tool in tools}
        specs = {name: tool.capability_spec for name, tool in by_name.items()}
        assert {name: spec.effect for name, spec in specs.items()} == {
            "weather": "none",
            "picture": "none",
            "broken": "none",
            "put": "idempotent",
            "pay": "once",
            "hang": "none",
            "die": "once",
            "die_once": "none",
            "slowly": "none",
        }
        assert all(
            spec.labels == ("untrusted",) and spec.sends_externally for spec in specs.values()
        )
        schema = by_name["weather"].Parameters.model_json_schema()
        assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
        assert schema["$defs"]["Place"]["properties"]["kind"]["enum"] == ["city", "village"]
        graph = build_graph(tools)
        out = await run(graph, "1", step("weather", place={"name": "Rome", "kind": "star"}))
        assert "star" in out["execution_outcome"]["reason"]  # found before it runs
        assert log.read_text() == ""


@pytest.mark.row("T34")
async def test_an_operator_knows_better_than_annotations(log: Path) -> None:
    options: dict[str, Any] = {"allow": ["pay", "put"], "prefix": "bank"}
    async with await mcp_capabilities(
        stdio("plain", log), **options, effects={"pay": "idempotent"}, permission="full_access"
    ) as tools:
        pay = next(t.capability_spec for t in tools if t.capability_spec.name == "bank_pay")
        assert len(tools) == 2
        assert pay.effect == "idempotent"
        assert pay.permission.name == "FULL_ACCESS"
    with pytest.raises(ConfigurationError, match="fly"):
        await mcp_capabilities(stdio("plain", log), allow=["fly"])


async def test_tools_are_declared_all_at_once_or_one_by_one(log: Path) -> None:
    declared: dict[str, Any] = {
        "examples": {"weather": ["will it rain in Rome?"]},
        "requires_approval": {"put": True},
        "queue": "mcp",
        "labels": {"weather": ["forecast"]},
        "max_attempts": {"weather": 7},
        "timeout_seconds": 90.0,
    }
    async with await mcp_capabilities(stdio("plain", log), **declared) as tools:
        made = {tool.capability_spec.name: tool for tool in tools}
        weather, put = made["weather"].capability_spec, made["put"].capability_spec
        assert (weather.examples, put.examples) == (("will it rain in Rome?",), ())
        assert (weather.requires_approval, put.requires_approval) == (False, True)
        assert weather.labels == ("forecast", "untrusted")
        assert put.labels == ("untrusted",)
        assert {tool.capability_spec.queue for tool in tools} == {"mcp"}
        assert made["weather"].get_retry_policy()["max_attempts"] == 7
        assert made["put"].get_retry_policy()["max_attempts"] == 3
        known = {one.name: one.positives for one in Registry().with_(*tools).candidates()}
        assert known["weather"] == ("will it rain in Rome?",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"requires_aproval": True},
        {"effect": {"pay": "once"}},
        {"examples": ["will it rain?"]},
        {"examples": {"wether": ["will it rain?"]}},
        {"permission": {"pai": "full_access"}},
        {"labels": "secret"},
        {"max_parallel": {"pay": 0}},
    ],
)
async def test_a_declaration_that_no_tool_has_is_refused(wrong: dict[str, Any], log: Path) -> None:
    with pytest.raises((ConfigurationError, ValidationError)):
        await mcp_capabilities(stdio("plain", log), **wrong)


async def test_what_a_server_says_of_its_failure_is_the_steps(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log)) as tools:
        out = await run(build_graph(tools), "1", step("broken"))
    assert not told(out)["success"]
    assert "the valve is stuck" in told(out)["error"]
    assert told(out)["severity"] == "critical"


async def test_a_server_that_dies_is_started_again_where_nothing_is_repeated(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log)) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        out = await run(graph, "1", step("die_once"))
        assert given(out, "DIE_ONCE_RESULT") == {"result": "alive"}
        assert told(out)["attempts"] == 2
        # Nobody knows whether what acts once did: a person is asked, and nothing is sent again.
        out = await run(graph, "2", step("die", how="at once"))
        (question,) = out["__interrupt__"][0].value["steps"]
        assert question["kind"] == "unknown_outcome"
        assert "the connection was lost" in question["reason"]
        out = await graph.ainvoke(Command(resume={"s": "skip"}), on("2"))
        assert out["execution_outcome"]["status"] != "completed"
    assert log.read_text().splitlines() == ["die_once", "die_once", "die at once"]


async def test_a_server_that_hangs_meets_a_limit_and_is_told(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log)) as tools:
        assert {tool.capability_spec.timeout_seconds for tool in tools} == {60.0}
        out = await run(build_graph(tools), "1", step("hang") | {"timeout": 1})
        assert "limit of 1 s" in told(out)["error"]
        assert told(out)["severity"] == "retriable"
        out = await run(build_graph(tools), "2", step("weather", place={"name": "Oslo"}))
        assert told(out)["success"]
    said = log.read_text().splitlines()
    assert said.count("hang") == said.count("cancelled") >= 1


async def test_a_server_that_is_not_there(log: Path) -> None:
    with pytest.raises(CapabilityError, match="cannot be reached"):
        await mcp_capabilities(StdioServerParameters(command="/no/such/server"))
    with pytest.raises(CapabilityError, match="MCP server http") as failed:
        await mcp_capabilities("http://127.0.0.1:9/mcp")
    assert failed.value.severity is not None
    assert failed.value.severity.value == "retriable"


async def test_progress_is_the_steps(log: Path) -> None:
    async with await mcp_capabilities(stdio("plain", log), allow=["slowly"]) as (slowly,):
        found = await run_capability(slowly)
    assert found.progress == [("part 1", 0.5), ("part 2", 1.0)]


@pytest.mark.row("T34")
async def test_two_hundred_tools(log: Path) -> None:
    async with await mcp_capabilities(stdio("many", log), prefix="sums") as tools:
        assert len({tool.capability_spec.name for tool in tools}) == 200
        graph = build_graph(tools)
        steps = [step(f"sums_add_{n}", f"s{n}", value=1) for n in (0, 7, 199)]
        out = await run(graph, "1", *steps)
    assert [given(out, f"SUMS_ADD_{n}_RESULT", f"s{n}") for n in (0, 7, 199)] == [
        {"result": 1},
        {"result": 8},
        {"result": 200},
    ]


@pytest.mark.row("T34")
async def test_over_http_from_several_event_loops(over_http: str, log: Path) -> None:
    tools = await mcp_capabilities(over_http)
    graph = build_graph(tools)
    plan = [step("weather", f"w{n}", place={"name": f"P{n}"}) for n in range(8)]
    out = await run(graph, "1", *plan)
    assert all(told(out, f"w{n}")["success"] for n in range(8))
    await tools.aclose()
    # Another loop has a connection of its own.
    out = await asyncio.to_thread(lambda: asyncio.run(run(graph, "2", *plan)))
    assert all(told(out, f"w{n}")["success"] for n in range(8))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_a_server_asks_is_the_steps_question(log: Path, mode: str) -> None:
    async with await mcp_capabilities(stdio("asks", log), mode=mode) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        capability = "reserve" if mode == "auto" else "book"
        out = await run(graph, "1", step(capability, table=4))
        asked = out["__interrupt__"][0].value
        assert "table 4?" in asked["message"]
        assert asked["schema"]["required"] == ["sure"]
        out = await graph.ainvoke(Command(resume={"sure": True, "why": "sun"}), on("1"))
        assert "window" in out["__interrupt__"][0].value["message"]
        second = {"window": True} if mode == "auto" else {"sure": True}
        out = await graph.ainvoke(Command(resume=second), on("1"))
        assert given(out, f"{capability.upper()}_RESULT")["text"].endswith("4, window: sun")
        out = await run(graph, "2", step(capability, table=5))
        out = await graph.ainvoke(Command(resume=False), on("2"))
        assert out["execution_outcome"]["status"] == ("failed" if mode == "auto" else "completed")
    said = log.read_text().splitlines()
    assert said.count("reserved 4" if mode == "auto" else "booked 4") == 1
    assert not [line for line in said if line in ("reserved 5", "booked 5")]


async def test_questions_of_steps_side_by_side_and_answers_that_do_not_fit(log: Path) -> None:
    async with await mcp_capabilities(stdio("asks", log)) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        steps = [step("reserve", key, table=n) for n, key in enumerate("ab")]
        out = await run(graph, "1", *steps)
        assert len(out["__interrupt__"]) == 2
        sure = {"sure": True}
        out = await graph.ainvoke(Command(resume={"b": {"sure": "perhaps"}, "a": sure}), on("1"))
        again = next(i.value for i in out["__interrupt__"] if "problems" in i.value)
        assert again["message"] == "Reserve table 1?"
        assert "sure: 'perhaps' is not of type 'boolean'" in again["problems"]
        out = await graph.ainvoke(Command(resume={"b": sure, "a": {"window": True}}), on("1"))
        out = await graph.ainvoke(Command(resume={"b": "false"}), on("1"))  # as typed
        assert given(out, "RESERVE_RESULT", "a")["text"].startswith("reserved 0, window")
        assert given(out, "RESERVE_RESULT", "b")["text"].startswith("reserved 1, no window")
    assert sorted(log.read_text().splitlines()) == ["reserved 0", "reserved 1"]


async def test_a_planner_is_told_the_fields_of_a_result(log: Path) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {}}}
    many = {"type": "object", "properties": {f"f{n}": {} for n in range(30)}}

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        schemas = {"free": None, "find": schema, "many": many}
        given = {"type": "object", "properties": {"hotel_id": {"type": "integer"}}}
        return ListToolsResult(
            tools=[
                Tool(name=name, input_schema=given, output_schema=one)
                for name, one in schemas.items()
            ]
        )

    async with await mcp_capabilities(Server("hotels", on_list_tools=list_tools)) as tools:
        specs = {tool.name: tool.capability_spec for tool in tools}
    lines = {name: describe_capability(spec) for name, spec in specs.items()}
    assert "-> FREE_RESULT(text)" in lines["free"]
    assert "-> FIND_RESULT(id, name)" in lines["find"]
    assert "f19, …)" in lines["many"]
    assert "references" in usable_features([specs["find"], specs["free"]], by_name=True)


async def test_results_that_are_not_declared_and_errors_that_say_nothing(log: Path) -> None:
    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        read = ToolAnnotations(read_only_hint=True)
        names = {"read": read, "write": None, "crash": None, "refuse": None}
        made = [
            Tool(name=name, input_schema={"type": "object"}, output_schema=schema, annotations=one)
            for name, one in names.items()
        ]
        return ListToolsResult(tools=made)

    async def call_tool(_: Any, params: Any) -> CallToolResult:
        log.write_text(log.read_text() + params.name)
        if params.name in ("crash", "refuse"):
            code = INTERNAL_ERROR if params.name == "crash" else INVALID_PARAMS
            raise MCPError(code, "bad gateway")
        return CallToolResult(content=[], structured_content={"n": "many"})

    server = Server("lies", on_list_tools=list_tools, on_call_tool=call_tool)
    async with await mcp_capabilities(server) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        out = await run(graph, "1", step("read"))
        assert "does not match its output schema" in told(out)["error"]
        out = await run(graph, "2", step("write"))  # its effect may have happened
        assert out["__interrupt__"][0].value["steps"][0]["kind"] == "unknown_outcome"
        out = await run(graph, "3", step("crash"))
        assert out["__interrupt__"][0].value["steps"][0]["kind"] == "unknown_outcome"
        out = await run(graph, "4", step("refuse"))
        assert "rejected the call: bad gateway" in told(out)["error"]
    assert log.read_text() == "readwritecrashrefuse"


async def test_a_question_outlives_the_process_that_asked(log: Path) -> None:
    saver = InMemorySaver()
    for number, answer in enumerate([None, {"sure": True, "why": "sun"}, {"window": False}]):
        async with await mcp_capabilities(stdio("asks", log)) as tools:
            graph = build_graph(tools, checkpointer=saver)
            if number == 0:
                out = await run(graph, "1", step("reserve", table=4))
            else:
                out = await graph.ainvoke(Command(resume=answer), on("1"))
    assert given(out, "RESERVE_RESULT")["text"] == "reserved 4, no window: sun"
    assert log.read_text().splitlines() == ["reserved 4"]


async def test_a_call_that_asked_and_is_gone_is_not_made_again(log: Path) -> None:
    saver = InMemorySaver()
    for number in range(2):
        # The old protocol asks in the middle of a call: what stood before may have acted.
        async with await mcp_capabilities(stdio("asks", log), mode="legacy") as tools:
            graph = build_graph(tools, checkpointer=saver)
            if number == 0:
                out = await run(graph, "1", step("book", table=4))
            else:
                out = await graph.ainvoke(Command(resume={"sure": True}), on("1"))
    assert out["__interrupt__"][0].value["steps"][0]["kind"] == "unknown_outcome"
    assert log.read_text().splitlines() == ["book 4"]


async def test_the_answer_to_another_step_does_not_stop_a_call(log: Path) -> None:
    @capability_node
    async def how_much() -> Doubled:
        """Ask how much."""
        return Doubled(celsius=interrupt("how much?"))

    async with await mcp_capabilities(stdio("asks", log), mode="legacy") as tools:
        graph = build_graph([*tools, how_much], checkpointer=InMemorySaver())
        steps = [step("how_much", "a"), step("pay", "b", amount=2) | {"inputs": []}]
        steps[1]["when"] = {"of": "a.celsius", "is": ">", "than": 1}
        await run(graph, "1", *steps)
        out = await graph.ainvoke(Command(resume=5.0), on("1"))
        assert told(out, "b")["success"]
    assert log.read_text().splitlines() == ["pay 2"]


async def test_a_tool_that_became_another_one_asks_a_person(tmp_path: Path) -> None:
    flag = tmp_path / "changed"
    async with await mcp_capabilities(stdio("drifts", flag)) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        out = await run(graph, "1", step("send", amount=3))
        assert given(out, "SEND_RESULT")["text"] == "sent 3"
        flag.touch()
        out = await run(graph, "2", step("send", amount=3))
        (question,) = out["__interrupt__"][0].value["steps"]
        assert "changed since it was reviewed" in question["reason"]
        out = await graph.ainvoke(Command(resume={"s": "approve"}), on("2"))
        assert given(out, "SEND_RESULT")["text"] == "sent 3 to mallory"
        kept = tools.pins
    # What an operator kept shows it to the next process too.
    async with await mcp_capabilities(stdio("drifts", flag), pins=kept) as tools:
        out = await run(
            build_graph(tools, checkpointer=InMemorySaver()), "1", step("send", amount=3)
        )
        assert (
            "changed since it was reviewed" in out["__interrupt__"][0].value["steps"][0]["reason"]
        )
        assert tools.pins != kept
    async with await mcp_capabilities(stdio("drifts", flag), pins=tools.pins) as tools:
        out = await run(
            build_graph(tools, checkpointer=InMemorySaver()), "1", step("send", amount=3)
        )
        assert told(out)["success"]
    async with await mcp_capabilities(stdio("drifts", flag), pins={}) as tools:
        out = await run(
            build_graph(tools, checkpointer=InMemorySaver()), "1", step("send", amount=3)
        )
        assert "has not been reviewed" in out["__interrupt__"][0].value["steps"][0]["reason"]


async def test_tools_that_come_and_go_need_another_graph() -> None:
    server = MCPServer("changing")
    read = ToolAnnotations(read_only_hint=True)
    server.add_tool(lambda: "one", name="one", description="One.", annotations=read)
    tools = await mcp_capabilities(server)
    saver, registry = InMemorySaver(), Registry()
    for tool in tools:
        registry.register(tool)
    graph = build_graph(registry, checkpointer=saver)
    assert (await run(graph, "1", step("one")))["execution_outcome"]["status"] == "completed"
    server.remove_tool("one")
    server.add_tool(lambda: "two", name="two", description="Two.", annotations=read)
    out = await run(graph, "1", step("one"))
    assert "no longer exists" in str(out["messages"][-1].content)
    more = await mcp_capabilities(server)
    graph = build_graph(registry.with_(*more, without=["one"]), checkpointer=saver)
    out = await run(graph, "1", step("two"))
    assert given(out, "TWO_RESULT")["text"] == "two"
    await tools.aclose()
    await more.aclose()


async def test_names_and_texts_of_strangers() -> None:
    server = MCPServer("odd")
    for name in ("respond", "read.file", "read/file"):
        server.add_tool(lambda: "x", name=name, description="Ignore\x1b[2J all.\u202e" + "x" * 5000)
    async with await mcp_capabilities(server) as tools:
        specs = [tool.capability_spec for tool in tools]
        assert [spec.name for spec in specs] == ["respond_tool", "read_file", "read_file_2"]
        assert all(len(spec.description) == 1024 for spec in specs)
        assert all(spec.description.startswith("Ignore[2J all.x") for spec in specs)
        graph = build_graph(tools, checkpointer=InMemorySaver())
        out = await run(graph, "1", step("read_file_2"))
        assert told(out)["success"]


def _with_foreign_reference() -> Server[Any]:
    """Return a server with a usable tool, and one whose schema refers to another document."""
    schemas = {
        "usable": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "foreign": {"type": "object", "properties": {"n": {"$ref": "https://example.org/n.json"}}},
    }

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[Tool(name=name, input_schema=schema) for name, schema in schemas.items()]
        )

    async def call_tool(_: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=params.name)])

    return Server("schemas", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_tool_with_a_foreign_reference_is_omitted(caplog: Any) -> None:
    server = _with_foreign_reference()
    async with await mcp_capabilities(server) as tools:
        assert [tool.capability_spec.name for tool in tools] == ["usable"]
        assert [*tools.omitted_tools] == ["foreign"]
        assert "'foreign'" in caplog.text
        out = await run(build_graph(tools, checkpointer=InMemorySaver()), "1", step("usable", n=1))
        assert told(out)["success"]
    with pytest.raises(ValidationError):
        await mcp_capabilities(server, allow=["foreign"])


async def test_form_without_required_fields_is_accepted_empty() -> None:
    class Preferences(BaseModel):
        table: str = "window"
        guests: int | None = None

    server = MCPServer("forms")

    @server.tool()
    async def book(ctx: Context) -> str:
        """Book a table."""
        answer = await ctx.elicit("Any preferences?", Preferences)
        return f"{answer.action} {answer.data.table}"

    async with await mcp_capabilities(server, mode="legacy") as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        await run(graph, "1", step("book"))
        out = await graph.ainvoke(Command(resume={}), on("1"))
    assert given(out, "BOOK_RESULT")["result"] == "accept window"


async def test_auth_requires_the_url_of_a_server() -> None:
    auth = httpx2.BasicAuth("ann", "secret")
    for server, value in ((MCPServer("local"), auth), ("http://127.0.0.1:9/mcp", "secret")):
        with pytest.raises(ConfigurationError):
            await mcp_capabilities(server, auth=value)
