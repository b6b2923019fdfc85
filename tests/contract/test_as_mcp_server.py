"""Capabilities as an MCP server, called by the official client: what holds in a plan holds there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitResult

from capgraph import Registry, bind, build_graph, capability_node
from capgraph.adapters import as_mcp_server, mcp_capabilities
from capgraph.adapters.mcp_calls import IDEMPOTENCY_META_KEY
from capgraph.base.ports import Caller, PermissionMode
from capgraph.governance import PermissionPolicy, RolePermissionConfig
from tests.support import own_mcp_server as own
from tests.support.listening import on_loopback


class Person:
    """Whoever sits at a client."""

    def __init__(self, action: str = "accept", **content: Any) -> None:
        self.action, self.content = action, content
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action=self.action, content=self.content or None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "effects.log"
    path.touch()
    return path


def text(result: Any) -> str:
    return result.content[0].text


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@MODES
async def test_schemas_results_errors_and_progress(log: Path, mode: str) -> None:
    async with Client(as_mcp_server(own.services(log)), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["weather"].input_schema["required"] == ["PLACE"]
        assert set(tools["weather"].input_schema["properties"]) == {"PLACE", "days"}
        assert tools["weather"].annotations.read_only_hint
        assert tools["pay"].annotations.destructive_hint
        found = await client.call_tool("weather", {"PLACE": {"name": "Rome"}, "days": 2})
        assert found.structured_content == {"place": "Rome", "celsius": 22.5}
        failed = await client.call_tool("broken", {})
        assert failed.is_error
        assert text(failed) == "The valve is stuck. Fix: Free it by hand."
        wrong = await client.call_tool("weather", {"PLACE": {"name": "Rome"}, "days": "many"})
        assert wrong.is_error
        assert "days 'many'" in text(wrong)
        assert (await client.call_tool("nothing", {})).is_error
        told: list[Any] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append((done, total, message))

        await client.call_tool("slowly", {}, progress_callback=progress)
        assert told == [(0.5, 1.0, "part 1"), (1.0, 1.0, "part 2")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": "5"},
        {"count": 5.5},
        {"count": True},
        {"factor": "2.5"},
        {"is_dry": "yes"},
        {"is_dry": 1},
        {"name": 5},
        {"sizes": ["1"]},
        {"sizes": "[1]"},
    ],
)
async def test_a_parameter_of_the_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    runs: list[Any] = []

    @capability_node
    async def note(
        count: int = 0,
        factor: float = 0,
        is_dry: bool = False,
        name: str = "",
        sizes: list[int] | None = None,
    ) -> str:
        """Note the parameters."""
        runs.append((count, factor))
        return "noted"

    async with Client(as_mcp_server([note])) as client:
        refused = await client.call_tool("note", wrong)
        assert refused.is_error
        assert next(iter(wrong)) in text(refused)
        assert runs == []
        accepted = await client.call_tool("note", {"count": 5.0, "factor": 2, "sizes": [1]})
        assert not accepted.is_error
    assert runs == [(5, 2)]


@MODES
async def test_an_approval_is_asked_by_elicitation(log: Path, mode: str) -> None:
    server = as_mcp_server(own.services(log))
    person = Person(decision="approve")
    async with Client(server, mode=mode, elicitation_callback=person) as client:
        assert text(await client.call_tool("pay", {"amount": 3})) == "paid 3"
    assert person.asked == ['pay: Pay an amount. Parameters: {"amount": 3}.']
    for refusing in (Person("decline"), Person("cancel"), Person(decision="reject", reason="no")):
        async with Client(server, mode=mode, elicitation_callback=refusing) as client:
            refused = await client.call_tool("pay", {"amount": 4})
        assert refused.is_error
        assert "rejected" in text(refused)
    async with Client(server, mode=mode) as client:
        refused = await client.call_tool("pay", {"amount": 5})
    assert refused.is_error
    assert "does not support elicitation" in text(refused)
    assert "Nothing was run" in text(refused)
    assert log.read_text().splitlines() == ["pay 3"]


@MODES
async def test_a_person_edits_and_is_asked_again_where_that_does_not_fit(
    log: Path, mode: str
) -> None:
    class Edits(Person):
        async def __call__(self, context: Any, params: Any) -> ElicitResult:
            self.content = {"decision": "edit", "amount": 2 if self.asked else "many"}
            return await super().__call__(context, params)

    person = Edits()
    async with Client(
        as_mcp_server(own.services(log)), mode=mode, elicitation_callback=person
    ) as client:
        assert text(await client.call_tool("pay", {"amount": 3})) == "paid 2"
    assert len(person.asked) == 2
    assert "many" in person.asked[1]
    assert log.read_text().splitlines() == ["pay 2"]


@MODES
async def test_a_question_of_the_capabilitys_own_is_asked_too(mode: str) -> None:
    @capability_node
    async def count() -> str:
        """Count."""
        return f"{interrupt('How many?')} of {interrupt('Of what?')}"

    class Knows(Person):
        async def __call__(self, context: Any, params: Any) -> ElicitResult:
            said = {"How many?": "three", "Of what?": "pears"}[params.message]
            return ElicitResult(action="accept", content={"answer": said})

    async with Client(as_mcp_server([count]), mode=mode, elicitation_callback=Knows()) as client:
        assert text(await client.call_tool("count", {})) == "three of pears"


async def test_permissions_are_those_of_the_caller(log: Path) -> None:
    modes = {"admin": "full_access", "guest": "read_only"}
    roles = [RolePermissionConfig(role, PermissionMode.of(mode)) for role, mode in modes.items()]
    services = own.services(log, permissions=PermissionPolicy(roles))
    for role, is_allowed in (("guest", False), ("admin", True), (None, False)):
        server = as_mcp_server(services, caller=Caller("someone", role))
        async with Client(server) as client:
            assert (await client.call_tool("erase", {"name": "a"})).is_error is not is_allowed
    assert log.read_text().splitlines() == ["erase a"]


async def test_a_call_with_a_key_is_done_once(log: Path) -> None:
    saver = InMemorySaver()
    answers = []
    for _ in range(2):  # as after a restart: another server on the same saver
        server = as_mcp_server(own.services(log, checkpointer=saver), checkpointer=saver)
        async with Client(server) as client:
            for key in ("k1", "k1", "k2"):
                found = await client.call_tool(
                    "erase", {"name": key}, meta={IDEMPOTENCY_META_KEY: key}
                )
                answers.append(text(found))
    assert answers == ["erased"] * 6
    assert log.read_text().splitlines() == ["erase k1", "erase k2"]


async def test_a_registry_serves_too_and_limits_hold() -> None:
    running, most = 0, 0

    @capability_node(max_parallel=2)
    async def work(number: int) -> int:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return number

    registry = Registry()
    registry.register(work)
    async with Client(as_mcp_server(registry)) as client:
        found = await asyncio.gather(*(client.call_tool("work", {"number": n}) for n in range(8)))
    assert [one.structured_content for one in found] == [{"value": n} for n in range(8)]
    assert most == 2


async def test_a_cancelled_call_is_cancelled() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @capability_node
    async def wait() -> int:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    async with Client(as_mcp_server([wait]), mode="legacy") as client:
        call = asyncio.create_task(client.call_tool("wait", {}))
        await began.wait()
        call.cancel()
        await asyncio.wait_for(ended.wait(), 100)


async def test_over_stdio_and_with_our_own_client(log: Path) -> None:
    server = StdioServerParameters(command=sys.executable, args=[own.__file__, str(log)])
    server.env = {"PYTHONPATH": str(Path(own.__file__).parents[2])}
    person = Person(decision="approve")
    async with Client(stdio_client(server), elicitation_callback=person) as client:
        assert text(await client.call_tool("pay", {"amount": 1})) == "paid 1"
    async with await mcp_capabilities(server, allow=["weather", "pay"]) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        thread: Any = {"configurable": {"thread_id": "1"}}
        weather = {"PLACE": {"name": "Rome"}}
        plan = [
            {"context_key": "w", "capability": "weather", "parameters": weather},
            {"context_key": "p", "capability": "pay", "parameters": {"amount": 2}},
        ]
        asked = {"messages": [("user", "go")], "planning_execution_plan": {"steps": plan}}
        out = await graph.ainvoke(asked, thread)
        # Their approval is our step's question, all the way through.
        assert "Pay an amount" in out["__interrupt__"][0].value["message"]
        out = await graph.ainvoke(Command(resume={"decision": "approve"}), thread)
    data = out["capability_context_data"]
    assert data["WEATHER_RESULT"]["w"] == {"place": "Rome", "celsius": 21.5}
    assert data["PAY_RESULT"]["p"] == {"value": "paid 2"}
    assert log.read_text().splitlines() == ["pay 1", "pay 2"]


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    async with on_loopback(lambda _: app) as url:
        yield f"{url}/mcp"


async def test_over_http(log: Path) -> None:
    async with served(as_mcp_server(bind(own.capabilities(log))).streamable_http_app()) as url:
        tools = await mcp_capabilities(url, headers={"X-Who": "me"})
        out = await build_graph(tools, checkpointer=InMemorySaver()).ainvoke(
            {
                "messages": [("user", "go")],
                "planning_execution_plan": {
                    "steps": [
                        {
                            "context_key": "w",
                            "capability": "weather",
                            "parameters": {"PLACE": {"name": "Rome"}},
                        }
                    ]
                },
            },
            {"configurable": {"thread_id": "1"}},
        )
        assert out["capability_context_data"]["WEATHER_RESULT"]["w"]["place"] == "Rome"
        await tools.aclose()
