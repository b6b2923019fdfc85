"""The served agent over A2A, called by the official client over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_data_part, new_text_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict

from capgraph import capability_node
from capgraph.stores import open_saver
from tests.support.listening import listening
from tests.support.served import OpenValve, read_level

STREAMING = pytest.mark.parametrize("streaming", [True, False])
ASKS = TaskState.TASK_STATE_INPUT_REQUIRED
DONE = TaskState.TASK_STATE_COMPLETED


@asynccontextmanager
async def client(url: str, user: str = "ann", *, streaming: bool = True) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(headers={"x-user": user}, timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        yield ClientFactory(ClientConfig(streaming=streaming, httpx_client=http)).create(card)


def message(*parts: Any, task: str = "", context: str = "") -> SendMessageRequest:
    made = [new_text_part(one) if isinstance(one, str) else new_data_part(one) for one in parts]
    return SendMessageRequest(
        message=Message(
            message_id="m", role=Role.ROLE_USER, parts=made, task_id=task, context_id=context
        )
    )


async def sent(agent: Any, request: SendMessageRequest) -> Task:
    """Send a message, and return the task as its events leave it."""
    task = Task()
    async for event in agent.send_message(request):
        if event.HasField("task"):
            task.CopyFrom(event.task)
        elif event.HasField("status_update"):
            task.status.CopyFrom(event.status_update.status)
        elif event.HasField("artifact_update") and event.artifact_update.last_chunk:
            task.artifacts.append(event.artifact_update.artifact)
    return task


def data(task: Task) -> dict[str, Any]:
    return next(
        MessageToDict(part.data) for part in task.status.message.parts if part.HasField("data")
    )


@pytest.fixture(autouse=True)
def _dry() -> None:
    OpenValve.opened.clear()


async def test_the_card_is_open_and_tells_nothing_of_a_user() -> None:
    async with listening() as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/.well-known/agent-card.json")
        assert answer.status_code == 200
        card = answer.json()
        assert [skill["id"] for skill in card["skills"]] == ["read_level", "open_valve"]
        assert card["supportedInterfaces"][0]["url"] == f"{url}/a2a"
        same = await http.get("/.well-known/agent-card.json", headers={"x-user": "ann"})
        assert same.json() == card
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        assert (await http.post("/a2a", json=body)).status_code == 401


@STREAMING
async def test_an_approval_in_the_middle(streaming: bool) -> None:
    async with listening() as url, client(url, streaming=streaming) as agent:
        task = await sent(agent, message("Open the valve"))
        assert task.status.state == ASKS
        asked = data(task)
        assert asked["capability"] == "open_valve"
        key = asked["context_key"]
        assert "Open the valve of the tank." in task.status.message.parts[0].text
        wrong = {key: {"decision": "edit", "parameters": {"litres": 900}}}
        again = await sent(agent, message(wrong, task=task.id))
        assert (again.status.state, again.id) == (ASKS, task.id)
        assert data(again)["problems"][0]["path"] == f"{key}.parameters.litres"
        assert data(again)["question_id"] == asked["question_id"]
        right = {key: {"decision": "edit", "parameters": {"litres": 4}}}
        ended = await sent(agent, message(right, task=task.id))
        assert (ended.status.state, ended.id) == (DONE, task.id)
        assert ended.artifacts[0].parts[0].text
        assert OpenValve.opened == [4.0]
        found = await agent.get_task(GetTaskRequest(id=task.id))
        assert (found.status.state, found.context_id) == (DONE, task.context_id)
        with pytest.raises(A2AError, match="no open question"):
            await sent(agent, message("approve", task=task.id))
        second = await sent(agent, message("Open the valve", context=task.context_id))
        assert second.id != task.id
        assert (await sent(agent, message("approve", task=second.id))).status.state == DONE
        assert len(OpenValve.opened) == 2
        listed = await agent.list_tasks(ListTasksRequest(context_id=task.context_id))
        assert [one.id for one in listed.tasks] == [second.id, task.id]
        first = await agent.list_tasks(ListTasksRequest(page_size=1))
        rest = await agent.list_tasks(
            ListTasksRequest(page_size=1, page_token=first.next_page_token)
        )
        assert [one.id for one in (*first.tasks, *rest.tasks)] == [second.id, task.id]
        assert rest.next_page_token == ""
        with pytest.raises(A2AError, match="page size"):
            await agent.list_tasks(ListTasksRequest(page_size=-1))


async def test_progress_is_streamed() -> None:
    async with listening(read_level) as url, client(url) as agent:
        events = [event async for event in agent.send_message(message("Read the level"))]
    told = [
        event.status_update.status.message.parts[0].text
        for event in events
        if event.HasField("status_update") and event.status_update.status.HasField("message")
    ]
    assert told[:2] == ["level started", "level finished"]
    assert events[-1].status_update.status.state == DONE


async def test_a_task_is_its_users_and_nobody_is_who_he_says() -> None:
    async with listening() as url, client(url) as ann, client(url, "eve") as eve:
        task = await sent(ann, message("Open the valve"))
        for call in (
            eve.get_task(GetTaskRequest(id=task.id)),
            eve.cancel_task(CancelTaskRequest(id=task.id)),
            sent(eve, message("approve", task=task.id)),
        ):
            with pytest.raises(TaskNotFoundError):
                await call
        with pytest.raises(TaskNotFoundError):
            _ = [one async for one in eve.subscribe(SubscribeToTaskRequest(id=task.id))]
        request = message("approve", task=task.id)
        request.tenant = "ann"
        request.metadata.update({"user_id": "ann", "langgraph_auth_user": "ann"})
        with pytest.raises(TaskNotFoundError):
            await sent(eve, request)
        # A context of that name is another one: each user has names of his own.
        hers = await sent(eve, message("Open the valve", context=task.context_id))
        assert hers.id != task.id
        assert [one.id for one in (await eve.list_tasks(ListTasksRequest())).tasks] == [hers.id]
        assert OpenValve.opened == []


async def test_cancel_stops_the_run_and_what_it_asked() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @capability_node
    async def wait_long() -> int:
        """Wait long."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    async with listening(wait_long) as url, client(url, streaming=False) as agent:
        request = message("Wait long")
        request.configuration.return_immediately = True
        task = await sent(agent, request)
        await began.wait()
        stopped = await agent.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        assert ended.is_set()
        with pytest.raises(A2AError):
            await agent.cancel_task(CancelTaskRequest(id=task.id))
    async with listening() as url, client(url) as agent:
        task = await sent(agent, message("Open the valve"))
        stopped = await agent.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(A2AError):
            await sent(agent, message("approve", task=task.id))
        async with httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http:
            assert (await http.get("/api/questions")).json()["items"] == []
    assert OpenValve.opened == []


async def test_a_restart_keeps_the_task_and_its_question(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'threads.db'}"
    async with open_saver(where) as saver, listening(saver=saver) as url, client(url) as agent:
        task = await sent(agent, message("Open the valve"))
    async with open_saver(where) as saver, listening(saver=saver) as url, client(url) as agent:
        found = await agent.get_task(GetTaskRequest(id=task.id))
        assert found.status.state == ASKS
        assert data(found)["context_key"] == data(task)["context_key"]
        ended = await sent(agent, message("approve", task=task.id))
        assert ended.status.state == DONE
    assert len(OpenValve.opened) == 1
