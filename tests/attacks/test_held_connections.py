"""Connections, streams, sessions, and runs that clients open without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from capgraph import build_graph, capability_node
from capgraph.configs.settings import ServeSettings, Settings
from capgraph.serve import connections
from capgraph.serve.app import create_app
from capgraph.serve.routes import mcp
from capgraph.serve.security import SecurityMiddleware
from capgraph.serve.server import Server
from capgraph.stores import open_saver
from capgraph.telemetry.audit_log import AuditTable
from tests.conftest import EverySelector
from tests.support import PATIENCE
from tests.support.served import ByHeader, Level, asked, ended, read_level, served

LIMIT_SECONDS = 0.3
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}


async def large(_: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * 20_000_000)


async def read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


class NoRuns:
    async def drain(self) -> None:
        """Nothing runs here."""


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HEADER_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(connections, "_STALL_SECONDS", LIMIT_SECONDS)


@asynccontextmanager
async def serving(app: Any = None, max_connections: int = 100) -> AsyncIterator[int]:
    """Run the server of ``capgraph serve`` and yield its port."""
    app = app or Starlette(routes=[Route("/large", large), Route("/read", read, methods=["POST"])])
    app.state.runs, app.state.max_connections = NoRuns(), max_connections
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(app, listener, lambda: None)
        task = asyncio.create_task(server.listen())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET /read HTTP/1.1\r\nHost: a\r\n", b"GET /read HTTP/1.1\r\nx: " + b"y" * 999],
)
async def test_a_request_that_never_ends_loses_its_connection(sent: bytes) -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await is_closed(reader)
        writer.close()


@pytest.mark.usefixtures("short_limits")
async def test_bytes_one_at_a_time_do_not_extend_the_time_for_headers() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = asyncio.create_task(is_closed(reader))
        writer.write(b"GET /read HTTP/1.1\r\n")
        async with asyncio.timeout(PATIENCE):
            while not closed.done():
                writer.write(b"x: y\r\n")
                await asyncio.sleep(LIMIT_SECONDS / 10)
        assert await closed
        writer.close()


@pytest.mark.usefixtures("short_limits")
async def test_a_second_request_on_the_connection_has_the_same_limit() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(2 * LIMIT_SECONDS)  # between two requests, a connection may wait
        writer.write(b"POST /read")
        assert await is_closed(reader)
        writer.close()


@pytest.mark.usefixtures("short_limits")
async def test_a_body_that_stalls_and_a_response_that_nobody_reads_lose_their_connection() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
        assert await is_closed(reader)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(10 * LIMIT_SECONDS)
        async with asyncio.timeout(PATIENCE):
            received = 0
            try:
                while data := await reader.read(1_000_000):
                    received += len(data)
            except ConnectionError:
                pass
        assert received < 20_000_000
        writer.close()


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with serving(max_connections=5) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.post("/read", content=b"abc")).text == "3"
        for _, writer in held:
            writer.close()


async def test_event_streams_per_user_are_limited() -> None:
    gate = asyncio.Event()

    async def stream(_: Request) -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            await gate.wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/api/stream", stream)])
    settings = ServeSettings(max_streams_per_user=2)
    protected = Starlette()
    protected.router.default = SecurityMiddleware(app, settings, ByHeader())
    async with serving(protected) as port:
        url = f"http://127.0.0.1:{port}/api/stream"
        async with httpx.AsyncClient(headers={"x-user": "ann"}) as client:

            async def opened(user: str = "ann") -> int:
                request = client.build_request("GET", url, headers={"x-user": user})
                response = await client.send(request, stream=True)
                responses.append(response)
                return response.status_code

            responses: list[httpx.Response] = []
            assert [await opened() for _ in range(3)] == [200, 200, 429]
            assert await opened("bob") == 200
            await responses[0].aclose()
            async with asyncio.timeout(PATIENCE):
                while await opened() != 200:
                    await asyncio.sleep(0.05)
            gate.set()
            for response in responses:
                await response.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_twenty_requests_at_once_do_not_exceed_the_active_runs(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    gate = asyncio.Event()

    @capability_node
    async def wait_long() -> Level:
        """Wait until the gate opens."""
        await gate.wait()
        return Level(litres=1)

    plan = {"steps": [{"context_key": "a", "capability": "wait_long"}]}
    urls = {"memory": lambda: None, "sqlite": lambda: f"sqlite:///{tmp_path / 't.db'}"}
    urls["postgres"] = lambda: request.getfixturevalue("server").database()
    async with (
        open_saver(urls[kind]()) as saver,
        served(wait_long, saver=saver, serve={"max_active_runs_per_user": 4}) as client,
    ):
        ann = await client()
        threads = [(await ann.post("/api/threads")).json()["thread_id"] for _ in range(20)]
        requests = [ann.post(f"/api/threads/{name}/runs", json={"plan": plan}) for name in threads]
        responses = await asyncio.gather(*requests)
        accepted = [one.json()["run_id"] for one in responses if one.status_code == 202]
        assert len(accepted) == 4
        assert {one.status_code for one in responses} == {202, 429}
        gate.set()
        assert {await ended(ann, run) for run in accepted} == {"completed"}
        assert (await asked(ann, plan))[1]


class PlanOfOneStep:
    """Planner whose plans run ``wait_long``."""

    chooses_parameters: ClassVar[bool] = True
    writes_with_model: ClassVar[bool] = False
    reads_results: ClassVar[bool] = False
    can_correct: ClassVar[bool] = False

    async def plan(self, _: Any) -> Any:
        return {"steps": [{"context_key": "a", "capability": "wait_long"}]}


async def test_requests_of_several_protocols_do_not_exceed_the_active_runs_together() -> None:
    """A variant: twenty requests at once that enter by different routes."""
    gate, started = asyncio.Event(), []

    @capability_node
    async def wait_long() -> Level:
        """Wait until the gate opens."""
        started.append(1)
        await gate.wait()
        return Level(litres=1)

    options: dict[str, Any] = {"planner": PlanOfOneStep(), "selector": EverySelector([])}
    limits = {"max_active_runs_per_user": 4}
    async with served(wait_long, serve=limits, **options) as client:
        ann = await client()
        ask = {"messages": [{"role": "user", "content": "Wait"}]}
        call = {"name": "ask", "arguments": {"message": "Wait"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-session-id": await _open_session(ann),
        }
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        sent = [asyncio.create_task(ann.post("/v1/chat/completions", json=ask)) for _ in range(7)]
        sent += [
            asyncio.create_task(ann.post("/mcp", json={**body, "id": n}, headers=headers))
            for n in range(7)
        ]
        threads = [(await ann.post("/api/threads")).json()["thread_id"] for _ in range(6)]
        sent += [
            asyncio.create_task(ann.post(f"/api/threads/{name}/runs", json={"message": "Wait"}))
            for name in (thread, *threads)
        ]
        async with asyncio.timeout(PATIENCE):
            while sum(task.done() for task in sent) < len(sent) - 4 or len(started) < 4:
                await asyncio.sleep(0.05)
        assert len(started) == 4
        gate.set()
        responses = await asyncio.gather(*sent)
        assert sum(one.status_code == 429 for one in responses) >= 7
        assert len(started) == 4


async def _open_session(client: httpx.AsyncClient) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    headers = {"accept": "application/json, text/event-stream"}
    opened = await client.post("/mcp", json=body, headers=headers)
    return str(opened.headers["mcp-session-id"])


@asynccontextmanager
async def mcp_client() -> AsyncIterator[Any]:
    graph = build_graph([read_level], checkpointer=InMemorySaver(), settings=Settings())
    app = await asyncio.to_thread(create_app, graph, auth=ByHeader(), host="127.0.0.1")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://127.0.0.1",
            headers={"accept": "application/json, text/event-stream"},
        ) as client,
    ):

        async def send(
            method: str,
            user: str,
            session: str | None = None,
            http_method: str = "POST",
            **params: Any,
        ) -> Any:
            headers = {"x-user": user, **({"mcp-session-id": session} if session else {})}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return await client.request(http_method, "/mcp", json=body, headers=headers)

        yield send


async def test_a_user_cannot_keep_sessions_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "_MAX_SESSIONS_PER_USER", 3)
    async with mcp_client() as send:
        (first, *others) = [
            (await send("initialize", "ann", **HELLO)).headers["mcp-session-id"] for _ in range(4)
        ]
        other_user = (await send("initialize", "bob", **HELLO)).headers["mcp-session-id"]
        assert (await send("tools/list", "ann", first)).status_code == 404
        for session in others:
            assert (await send("tools/list", "ann", session)).status_code == 200
        assert (await send("tools/list", "bob", other_user)).status_code == 200


async def test_sessions_that_a_client_ends_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant: closed sessions end no session that is still open."""
    monkeypatch.setattr(mcp, "_MAX_SESSIONS_PER_USER", 3)
    async with mcp_client() as send:
        opened = await send("initialize", "ann", **HELLO)
        first = opened.headers["mcp-session-id"]
        for _ in range(6):
            other = (await send("initialize", "ann", **HELLO)).headers["mcp-session-id"]
            ended = await send("", "ann", other, http_method="DELETE")
            assert ended.status_code == 200
            assert (await send("tools/list", "ann", other)).status_code == 404
        assert (await send("tools/list", "ann", first)).status_code == 200


async def test_an_idle_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "_SESSION_IDLE_SECONDS", LIMIT_SECONDS)
    async with mcp_client() as send:
        session = (await send("initialize", "ann", **HELLO)).headers["mcp-session-id"]
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(3 * LIMIT_SECONDS)
            assert (await send("tools/list", "ann", session)).status_code == 404


async def test_only_admin_roles_verify_the_audit_and_share_one_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, started = AuditTable.averify, []

    async def counted(table: AuditTable, anchor: str | None = None) -> Any:
        started.append(anchor)
        return await verify(table, anchor)

    monkeypatch.setattr(AuditTable, "averify", counted)
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        settings = Settings(audit={"keep": True})
        async with served(saver=saver, settings=settings) as client:
            ann, eve = await client(), await client("eve", "auditor")
            _, run = await asked(ann)
            await ended(ann, run)
            assert (await ann.get("/api/audit/verify")).status_code == 403
            assert started == []
            answers = await asyncio.gather(*[eve.get("/api/audit/verify") for _ in range(10)])
            assert all(answer.json()["valid"] for answer in answers)
            assert len(started) < 10
