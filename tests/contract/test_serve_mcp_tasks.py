"""Long calls of the served MCP tools as tasks, by the official client with the tasks extension."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import httpx
import pytest
from langgraph.types import interrupt
from mcp import MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    Request,
    RequestParams,
    Result,
)
from pydantic import ConfigDict

from capgraph import Registry, capability_node
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.planning.recipes import Recipe
from tests.contract.test_serve_mcp import Person, client, text
from tests.support.listening import listening
from tests.support.served import OpenValve, read_level

TASKS = "io.modelcontextprotocol/tasks"


class CreatedTask(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    taskId: str
    status: str


class TaskParams(RequestParams):
    taskId: str
    inputResponses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class TasksExtension(ClientExtension):
    """Extension of the client, which polls tasks and answers their questions."""

    identifier = TASKS

    def __init__(self, *responses: Mapping[str, Any]) -> None:
        self.responses = list(responses)
        self.statuses: list[str] = []
        self.requests: list[Any] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self.resolve)]

    async def resolve(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        while True:
            task = await call(context.session, "tasks/get", created.taskId)
            if self.statuses[-1:] != [task["status"]]:
                self.statuses.append(task["status"])
            if task["status"] == "completed":
                return CallToolResult.model_validate(task["result"])
            if task["status"] == "input_required":
                self.requests += task["inputRequests"].values()
                responses = dict.fromkeys(task["inputRequests"], self.responses.pop(0))
                await call(context.session, "tasks/update", created.taskId, responses)
            await asyncio.sleep(0.05)


async def call(session: Any, method: str, task: str, responses: Any = None) -> dict[str, Any]:
    params = TaskParams(taskId=task, inputResponses=responses)
    result = await session.send_request(TaskRequest(method=method, params=params), AnyResult)
    return result.model_dump(by_alias=True)


async def start(mcp: Any, name: str, arguments: dict[str, Any]) -> str:
    created = await mcp.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(created, CreatedTask)
    assert created.status == "working"
    return created.taskId


async def until(mcp: Any, task: str, *statuses: str) -> dict[str, Any]:
    while (found := await call(mcp.session, "tasks/get", task))["status"] not in statuses:
        assert found["status"] in ("working", "input_required"), found
        await asyncio.sleep(0.05)
    return found


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


@capability_node
async def never_ends() -> str:
    """Wait forever."""
    await asyncio.Event().wait()
    return ""


@capability_node
async def fails() -> str:
    """Fail."""
    raise CapabilityError("The pump is broken.")


@pytest.fixture(autouse=True)
def _dry() -> None:
    OpenValve.opened.clear()


async def test_a_long_call_is_a_task_that_asks_and_ends_with_the_result() -> None:
    extension = TasksExtension(
        accept(decision="edit", litres=900), accept(decision="approve", litres=4)
    )
    tools = {"tools": ["open_valve"], "task_tools": ["open_valve"]}
    async with (
        listening(mcp=tools) as url,
        client(url, extensions=[extension], elicitation_callback=Person()) as mcp,
    ):
        with pytest.raises(MCPError) as refused:
            await mcp.call_tool("open_valve", {"LEVEL": {"litres": 7}, "litres": 3})
        assert refused.value.error.code == INVALID_PARAMS
        assert OpenValve.opened == []
        result = await mcp.call_tool("open_valve", {"LEVEL": {"litres": 7}, "litres": 3})
    assert not result.is_error, text(result)
    assert OpenValve.opened == [4.0]
    assert extension.statuses[-1] == "completed"
    form = extension.requests[0]["params"]["requestedSchema"]["properties"]
    assert form["decision"]["enum"] == ["approve", "edit", "reject", "respond"]


async def test_short_calls_and_calls_without_the_extension_return_their_result() -> None:
    async with (
        listening(mcp={"tools": ["read_level"], "task_after_seconds": 600}) as url,
        client(url, extensions=[TasksExtension()]) as mcp,
    ):
        result = await mcp.session.call_tool("read_level", {}, allow_claimed=True)
        assert result.structured_content == {"litres": 7}
    async with listening(mcp={"tools": ["read_level"], "task_after_seconds": 0}) as url:
        for mode in ("auto", "legacy"):
            async with client(url, mode=mode) as mcp:
                result = await mcp.call_tool("read_level", {})
                assert result.structured_content == {"litres": 7}
                with pytest.raises(MCPError) as refused:
                    await call(mcp.session, "tasks/get", "x")
                code = {"auto": MISSING_REQUIRED_CLIENT_CAPABILITY, "legacy": METHOD_NOT_FOUND}
                assert refused.value.error.code == code[mode]


async def test_a_tool_that_runs_only_as_a_task_is_refused_without_the_extension() -> None:
    tools = {"tools": ["read_level"], "task_tools": ["read_level", "ask"]}
    async with listening(mcp=tools) as url:
        async with client(url) as mcp:
            with pytest.raises(MCPError) as refused:
                await mcp.call_tool("read_level", {})
            assert refused.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert refused.value.error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        extension = TasksExtension()
        async with client(url, extensions=[extension]) as mcp:
            result = await mcp.call_tool("ask", {"message": "Read the level"})
            assert result.structured_content["status"] == "completed"
    with pytest.raises(ConfigurationError):
        async with listening(mcp={"tools": ["read_level"], "task_tools": ["open_valve"]}):
            pass


async def test_a_task_can_be_cancelled_while_it_runs_and_while_it_waits() -> None:
    names = ["never_ends", "open_valve"]
    tools = {"tools": names, "task_tools": names}
    arguments = {"never_ends": {}, "open_valve": {"LEVEL": {"litres": 7}, "litres": 3}}
    async with (
        listening(never_ends, read_level, OpenValve, mcp=tools) as url,
        client(url, extensions=[TasksExtension()], elicitation_callback=Person()) as mcp,
    ):
        for name, status in zip(names, ("working", "input_required"), strict=True):
            task = await start(mcp, name, arguments[name])
            await until(mcp, task, status)
            for _ in range(2):
                await call(mcp.session, "tasks/cancel", task)
                await until(mcp, task, "cancelled")
    assert OpenValve.opened == []


async def test_a_failed_step_completes_its_task_with_an_error_result() -> None:
    tools = {"tools": ["fails"], "task_tools": ["fails"]}
    async with (
        listening(fails, mcp=tools) as url,
        client(url, extensions=[TasksExtension()]) as mcp,
    ):
        result = await mcp.call_tool("fails", {})
    assert result.is_error
    assert "The pump is broken." in text(result)


async def test_a_task_belongs_to_its_user_and_outlives_the_client() -> None:
    tools = {"tools": ["open_valve"], "task_tools": ["open_valve"]}
    async with listening(mcp=tools) as url:
        async with client(url, extensions=[TasksExtension()]) as mcp:
            task = await start(mcp, "open_valve", {"LEVEL": {"litres": 7}, "litres": 3})
        async with client(url, "eve", extensions=[TasksExtension()]) as mcp:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError) as refused:
                    await call(mcp.session, method, task, {})
                assert refused.value.error.code == INVALID_PARAMS
        async with client(url, extensions=[TasksExtension()]) as mcp:
            # A client that cannot ask its user gets the link to the console instead.
            while not (
                message := (await call(mcp.session, "tasks/get", task)).get("statusMessage")
            ):
                await asyncio.sleep(0.05)
            assert f"{url}/?thread=" in message
            async with httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http:
                (question,) = (await http.get("/api/questions")).json()["items"]
                path = f"/api/questions/{question['question_id']}"
                await http.post(path, json={"answer": "approve"})
            found = await until(mcp, task, "completed")
    assert not found["result"].get("isError")
    assert OpenValve.opened == [3.0]


def _ask(name: str) -> str:
    fields = {"name": {"type": "string"}}
    return str(interrupt({"message": name, "schema": {"properties": fields}})["name"])


@capability_node
async def first_name() -> str:
    """Ask for the first name."""
    return _ask("first")


@capability_node
async def last_name() -> str:
    """Ask for the last name."""
    return _ask("last")


@capability_node
async def join_names(first: str, last: str) -> str:
    """Join two names."""
    return f"{first} {last}"


async def test_questions_of_parallel_steps_can_be_answered_one_after_the_other() -> None:
    registry = Registry()
    references = {name: {"$from": name} for name in ("first", "last")}
    steps = [
        {"context_key": "first", "capability": "first_name"},
        {"context_key": "last", "capability": "last_name"},
        {"context_key": "name", "capability": "join_names", "parameters": references},
    ]
    steps = [{"task_objective": "Find the name", **step} for step in steps]
    recipe = Recipe(name="full_name", description="Ask for both names.", steps=steps)
    for part in (first_name, last_name, join_names, recipe):
        registry.register(part)
    tools = {"tools": ["full_name"], "task_tools": ["full_name"]}
    async with (
        listening(registry=registry, mcp=tools) as url,
        client(url, extensions=[TasksExtension()], elicitation_callback=Person()) as mcp,
    ):
        task = await start(mcp, "full_name", {})
        asked = (await until(mcp, task, "input_required"))["inputRequests"]
        assert len(asked) == 2
        one, other = asked
        await call(mcp.session, "tasks/update", task, {one: accept(name="Ann"), "x": accept()})
        found = await call(mcp.session, "tasks/get", task)
        assert [*found["inputRequests"]] == [other]
        await call(mcp.session, "tasks/update", task, {other: accept(name="Lee")})
        found = await until(mcp, task, "completed")
        assert found["result"]["structuredContent"] == {"value": "Ann Lee"}
