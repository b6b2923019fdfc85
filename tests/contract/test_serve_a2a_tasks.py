"""Files, artifacts, history, lists, subscriptions, and push notifications over A2A."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from capgraph import CapabilityContext, Registry, capability_node
from tests.contract.test_serve_a2a import ASKS, DONE, client, message, sent
from tests.support.listening import listening, on_loopback
from tests.support.served import Level, Source, read_level

WORKING = TaskState.TASK_STATE_WORKING


class Report(CapabilityContext):
    """File that a step wrote."""

    path: str

    def get_files(self) -> list[str]:
        return [self.path]


@capability_node(examples=["read the file"])
async def read_file(source: Source) -> Level:
    """Read the file."""
    return Level(litres=len(source.files))


async def test_bytes_are_an_upload_and_other_parts_are_refused(tmp_path: Path) -> None:
    registry = Registry()
    for item in (Source, Level, read_file):
        registry.register(item)
    registry.declare_provided("SOURCE")
    request = message("Read the file")
    request.message.parts.append(Part(raw=b"a,b\n1,2\n", filename="a.csv", media_type="text/csv"))
    uploads = {"folder": str(tmp_path)}
    async with listening(registry=registry, uploads=uploads) as url, client(url) as agent:
        task = await sent(agent, request)
        assert task.status.state == DONE
        (data,) = [
            MessageToDict(one.parts[0].data) for one in task.artifacts if one.name == "LEVEL"
        ]
        assert data == {"litres": 1.0}
        unknown = message("Read the file")
        unknown.message.parts.append(Part(raw=b"MZ", filename="a.exe"))
        link = message("Read the file")
        link.message.parts.append(Part(url="https://a.example/a.csv", filename="a.csv"))
        for refused in (unknown, link):
            with pytest.raises(ContentTypeNotSupportedError):
                await sent(agent, refused)
    async with listening() as url, client(url) as agent:
        with pytest.raises(ContentTypeNotSupportedError):
            await sent(agent, request)


async def test_subscription_to_a_question_lasts_to_the_end_of_the_task() -> None:
    async with listening() as url, client(url) as agent:
        task = await sent(agent, message("Open the valve"))
        events: list[Any] = []

        async def subscribe() -> None:
            async for event in agent.subscribe(SubscribeToTaskRequest(id=task.id)):
                events.append(event)

        subscription = asyncio.create_task(subscribe())
        while not events:
            await asyncio.sleep(0.01)
        assert events[0].task.status.state == ASKS
        await sent(agent, message("approve", task=task.id))
        await asyncio.wait_for(subscription, 20)
        assert events[-1].status_update.status.state == DONE
        with pytest.raises(A2AError, match="over"):
            _ = [one async for one in agent.subscribe(SubscribeToTaskRequest(id=task.id))]
        other = await sent(agent, message("Open the valve"))
        later: list[Any] = []

        async def subscribe_again() -> None:
            async for event in agent.subscribe(SubscribeToTaskRequest(id=other.id)):
                later.append(event)

        subscription = asyncio.create_task(subscribe_again())
        while not later:
            await asyncio.sleep(0.01)
        await agent.cancel_task(CancelTaskRequest(id=other.id))
        await asyncio.wait_for(subscription, 20)
        assert later[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED


async def test_list_filters_before_it_pages() -> None:
    async with listening() as url, client(url) as agent:
        done = [await sent(agent, message("Read the level")) for _ in range(2)]
        asks = await sent(agent, message("Open the valve"))
        request = ListTasksRequest(status=DONE, page_size=1)
        first = await agent.list_tasks(request)
        assert (first.total_size, [one.id for one in first.tasks]) == (2, [done[1].id])
        request.page_token = first.next_page_token
        second = await agent.list_tasks(request)
        assert ([one.id for one in second.tasks], second.next_page_token) == ([done[0].id], "")
        since = ListTasksRequest(status_timestamp_after=asks.status.timestamp)
        assert [one.id for one in (await agent.list_tasks(since)).tasks] == [asks.id]
        assert not (await agent.list_tasks(since)).tasks[0].artifacts
        with pytest.raises(InvalidParamsError):
            await agent.list_tasks(ListTasksRequest(page_token="unknown"))


async def test_task_has_its_history() -> None:
    async with listening() as url, client(url) as agent:
        task = await sent(agent, message("Open the valve"))
        await sent(agent, message("approve", task=task.id))
        found = await agent.get_task(GetTaskRequest(id=task.id))
        assert [one.role for one in found.history] == [
            Role.ROLE_USER,
            Role.ROLE_AGENT,
            Role.ROLE_USER,
        ]
        texts = [one.parts[0].text for one in found.history]
        assert (texts[0], texts[2]) == ("Open the valve", "approve")
        last = await agent.get_task(GetTaskRequest(id=task.id, history_length=1))
        assert [one.parts[0].text for one in last.history] == ["approve"]
        listed = await agent.list_tasks(ListTasksRequest(history_length=0))
        assert not listed.tasks[0].history


async def test_data_and_files_are_artifacts(tmp_path: Path) -> None:
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text("seven")
    large.write_text("x" * 300_000)

    @capability_node(examples=["write a report"])
    async def write_report() -> Report:
        """Write a report."""
        return Report(path=str(small))

    @capability_node(examples=["store an archive"])
    async def store_archive() -> Report:
        """Store an archive."""
        return Report(path=str(large))

    parts: dict[str, Any] = {}
    async with (
        listening(write_report, store_archive, downloads=[str(tmp_path)]) as url,
        client(url) as agent,
    ):
        for text in ("Write a report", "Store an archive"):
            task = await sent(agent, message(text))
            parts |= {one.name: one.parts[0] for one in task.artifacts}
        async with httpx.AsyncClient(headers={"x-user": "ann"}) as http:
            assert len((await http.get(parts["large.txt"].url)).content) == 300_000
    assert (parts["small.txt"].raw, parts["small.txt"].media_type) == (b"seven", "text/plain")
    assert parts["answer"].text
    assert MessageToDict(parts["REPORT"].data) == {"path": "large.txt"}


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_each_binding_serves_a_task(binding: str) -> None:
    async with (
        listening() as url,
        httpx.AsyncClient(headers={"x-user": "ann"}, timeout=60) as http,
    ):
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        agent = ClientFactory(config).create(card)
        task = await sent(agent, message("Open the valve"))
        assert (await sent(agent, message("approve", task=task.id))).status.state == DONE
        assert (await agent.list_tasks(ListTasksRequest())).total_size == 1


async def test_card_can_be_cached_and_serves_clients_of_version_0_3() -> None:
    async with (
        listening() as url,
        httpx.AsyncClient(base_url=url, headers={"x-user": "ann"}) as http,
    ):
        path = "/.well-known/agent-card.json"
        card = await http.get(path)
        assert "max-age" in card.headers["cache-control"]
        again = await http.get(path, headers={"if-none-match": card.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert card.json()["protocolVersion"] == "0.3"
        part = {"kind": "text", "text": "Read the level"}
        params = {"message": {"messageId": "m", "role": "user", "parts": [part]}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        for address in (card.json()["url"], f"{url}/a2a/"):
            result = (await http.post(address, json=body)).json()["result"]
            assert result["status"]["state"] == "completed"
        wrong = await http.post("/a2a", content=b"{}", headers={"content-type": "text/plain"})
        assert wrong.json()["error"]["code"] == -32005
    async with listening(a2a={"version_0_3": False}) as url, httpx.AsyncClient() as http:
        assert "protocolVersion" not in (await http.get(url + path)).json()


@asynccontextmanager
async def receiver() -> Any:
    """Serve an address that records the notifications that it gets."""
    notifications: list[dict[str, Any]] = []

    async def receive(request: Request) -> JSONResponse:
        token = request.headers.get("x-a2a-notification-token")
        notifications.append({"token": token, **await request.json()})
        return JSONResponse({})

    app = Starlette(routes=[Route("/", receive, methods=["POST"])])
    async with on_loopback(lambda _: app) as url:
        yield url, notifications


async def test_updates_of_a_task_are_pushed_to_allowed_hosts() -> None:
    async with (
        receiver() as (address, notifications),
        listening(a2a={"push_hosts": ["127.0.0.1"]}) as url,
        client(url) as agent,
    ):
        task = await sent(agent, message("Open the valve"))
        config = TaskPushNotificationConfig(task_id=task.id, id="c", url=address, token="secret")
        assert (await agent.create_task_push_notification_config(config)).id == "c"
        config.url = "http://10.0.0.1/"
        with pytest.raises(InvalidParamsError):
            await agent.create_task_push_notification_config(config)
        await sent(agent, message("approve", task=task.id))
        while "statusUpdate" not in (notifications or [{}])[-1] or (
            notifications[-1]["statusUpdate"]["status"]["state"] != "TASK_STATE_COMPLETED"
        ):
            await asyncio.sleep(0.05)
        assert notifications[0]["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert {one["token"] for one in notifications} == {"secret"}
        request = GetTaskPushNotificationConfigRequest(task_id=task.id, id="c")
        assert (await agent.get_task_push_notification_config(request)).url == address
        async with client(url, "eve") as eve:
            with pytest.raises(A2AError):
                await eve.get_task_push_notification_config(request)
    async with listening(read_level) as url, client(url) as agent:
        task = await sent(agent, message("Read the level"))
        config.task_id = task.id
        with pytest.raises(A2AError):
            await agent.create_task_push_notification_config(config)
