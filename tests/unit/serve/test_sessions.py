"""Sessions of browsers over one database: known to every server process, ended for all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from capgraph import build_graph
from capgraph.configs.settings import ServeSettings, Settings
from capgraph.serve.app import create_app
from capgraph.serve.tokens import issue_token, revoke_token
from capgraph.stores import open_saver

HOST = "http://127.0.0.1:8000"
PAGE = {"origin": HOST}


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capgraph.serve.identity._SESSION_CACHE_SECONDS", -1.0)


def browser(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST)


async def served(saver: Any, auth: Path | None) -> Any:
    graph = build_graph([], checkpointer=saver, settings=Settings(serve=ServeSettings()))
    return await asyncio.to_thread(lambda: create_app(graph, auth=auth, host="127.0.0.1"))


async def test_session_is_shared_between_servers(tmp_path: Path) -> None:
    url, auth = f"sqlite:///{tmp_path}/threads.db", tmp_path / "tokens.json"
    token = await asyncio.to_thread(issue_token, auth, "ada")
    async with open_saver(url) as one, open_saver(url) as two:
        first, second = browser(await served(one, auth)), browser(await served(two, auth))
        async with first, second:
            assert (await first.post("/login", data={"token": token})).status_code == 303
            second.cookies.update(first.cookies)
            assert (await second.get("/api/threads")).status_code == 200
            assert (await second.post("/logout", headers=PAGE)).status_code == 303
            assert (await first.get("/api/threads")).status_code == 401


async def test_session_survives_restart_and_ends_with_its_token(tmp_path: Path) -> None:
    url, auth = f"sqlite:///{tmp_path}/threads.db", tmp_path / "tokens.json"
    token = await asyncio.to_thread(issue_token, auth, "ada")
    async with open_saver(url) as saver, browser(await served(saver, auth)) as asking:
        await asking.post("/login", data={"token": token})
        cookies = asking.cookies
    async with open_saver(url) as saver, browser(await served(saver, auth)) as asking:
        asking.cookies.update(cookies)
        assert (await asking.get("/api/threads")).status_code == 200
        await asyncio.to_thread(revoke_token, auth, "ada")
        async with asyncio.timeout(30):  # the file of tokens is looked at again within seconds
            while (await asking.get("/api/threads")).status_code != 401:
                await asyncio.sleep(0.1)


async def test_one_time_link_session_is_invalid_at_other_servers(
    tmp_path: Path,
) -> None:
    url, auth = f"sqlite:///{tmp_path}/threads.db", tmp_path / "tokens.json"
    await asyncio.to_thread(issue_token, auth, "ada")
    async with open_saver(url) as saver:
        alone, shared = await served(saver, None), await served(saver, auth)
        async with browser(alone) as first, browser(shared) as second:
            assert (await first.get(f"/login?link={alone.state.link}")).status_code == 303
            second.cookies.update(first.cookies)
            assert (await second.get("/api/threads")).status_code == 401
