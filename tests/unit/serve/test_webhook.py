"""New questions are told of by a web hook."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph
from capgraph.base import ConfigurationError
from capgraph.configs.settings import Settings, load_settings
from capgraph.serve import webhook
from capgraph.serve.app import create_app
from capgraph.stores import open_saver
from tests.support.served import asked, ended, read_level, served

SECRET = "a secret of sixteen"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_RETRY_DELAYS", (0.0, 0.01, 0.02, 0.02))
    monkeypatch.setattr(webhook, "_POLL_SECONDS", 0.02)


class Receiver:
    """Takes up what is posted, and answers what it is told to, in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.came = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        cased = dict(line.split(": ", 1) for line in head[1:] if line)
        self.got.append((head[0], {name.lower(): cased[name] for name in cased}, body))
        answer = self.answers.pop(0) if self.answers else "200 OK"
        if answer == "hang":
            await self.came.wait()
        writer.write(
            f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()
        if answer.startswith("200"):
            self.came.set()


@contextlib.asynccontextmanager
async def receiving(*answers: str) -> AsyncIterator[tuple[Receiver, str]]:
    receiver = Receiver(*answers)
    server = await asyncio.start_server(receiver.take, "127.0.0.1", 0)
    async with server:
        yield receiver, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?a=1"


def serve(url: str, **more: Any) -> dict[str, Any]:
    hook = {"url": url, "secret": SECRET, **more}
    return {"base_url": "https://agent.example", "webhook": hook}


async def test_question_is_delivered_once_signed_and_without_content(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 't.db'}"
    async with receiving("500 Oh", "302 Found\r\nLocation: http://127.0.0.1:1/") as (got, url):
        for _ in range(2):  # the second server tells nothing again
            async with (
                open_saver(database) as saver,
                served(saver=saver, serve=serve(url)) as client,
            ):
                ann = await client()
                if not got.got:
                    thread, run = await asked(ann)
                    assert await ended(ann, run) == "waiting"
                async with asyncio.timeout(20):
                    await got.came.wait()
                await asyncio.sleep(0.2)
                (question,) = (await ann.get("/api/questions")).json()["items"]
        assert len(got.got) == 3
        line, headers, body = got.got[-1]
        assert line == "POST /hook?a=1 HTTP/1.1"
        assert json.loads(body) == {
            "type": "question",
            "question_id": question["question_id"],
            "link": f"https://agent.example/?thread={thread}",
        }
        assert {one[1]["webhook-id"] for one in got.got} == {question["question_id"]}
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.digest(SECRET.encode(), signed, hashlib.sha256)
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


async def test_content_is_included_if_enabled() -> None:
    async with receiving() as (got, url):
        async with served(serve=serve(url, content=True)) as client:
            await asked(await client())
            async with asyncio.timeout(20):
                await got.came.wait()
        told = json.loads(got.got[0][2])
        assert [step["capability"] for step in told["steps"]] == ["open_valve"]
        assert told["user"] == "ann"
        assert "parameters" not in told["steps"][0]


async def test_runs_do_not_wait_for_deliveries() -> None:
    async with receiving("hang") as (got, url), served(serve=serve(url)) as client:
        ann = await client()
        _, run = await asked(ann)
        assert await ended(ann, run) == "waiting"
        async with asyncio.timeout(20):
            while not got.got:
                await asyncio.sleep(0.02)
        (question,) = (await ann.get("/api/questions")).json()["items"]
        path = f"/api/questions/{question['question_id']}"
        run = (await ann.post(path, json={"answer": "approve"})).json()["run_id"]
        assert await ended(ann, run) == "completed"
        assert len(got.got) == 1
        got.came.set()


async def test_failed_delivery_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with served(serve=serve("http://127.0.0.1:1/")) as client:
        await asked(await client())
        async with asyncio.timeout(20):
            while "was not delivered" not in caplog.text:
                await asyncio.sleep(0.02)


def test_invalid_webhook_settings_fail_at_startup() -> None:
    odd: list[dict[str, Any]] = [
        {"webhook": {"url": "https://user@example.org", "secret": SECRET}},
        {"webhook": {"url": "file:///etc/passwd", "secret": SECRET}},
        {"webhook": {"url": "https://example.org", "secret": "whsec_not base64 at all"}},
        {"webhook": {"url": "https://example.org", "secret": SECRET}, "base_url": None},
    ]
    for one in odd:
        settings = Settings(serve={"base_url": "https://agent.example", **one})
        graph = build_graph([read_level], checkpointer=InMemorySaver(), settings=settings)
        with pytest.raises(ConfigurationError, match="webhook"):
            create_app(graph)


def test_secret_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.yml").write_text("serve: {webhook: {url: 'https://example.org/x'}}\n")
    with pytest.raises(ConfigurationError, match="secret"):
        load_settings(tmp_path / "agent.yml")
    monkeypatch.setenv("CAPGRAPH_SERVE__WEBHOOK__SECRET", SECRET)
    hook = load_settings(tmp_path / "agent.yml").serve.webhook
    assert hook is not None
    assert hook.secret.get_secret_value() == SECRET
    assert SECRET not in repr(hook)
