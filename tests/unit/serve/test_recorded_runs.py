"""Recorded runs over the API: comparison, replay, and read-only links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from capgraph import capability_node
from capgraph.base import CapabilityError
from capgraph.configs.settings import Settings
from capgraph.governance import PermissionMode, PermissionPolicy, RolePermissionConfig
from capgraph.serve.tokens import issue_token, revoke_token
from tests.support.served import PLAN, READ, Level, OpenValve, asked, ended, read_level, served

SECRET = "hunter2-hunter2"


async def ran(client: httpx.AsyncClient, plan: Any = READ, **more: Any) -> str:
    thread, run = await asked(client, plan, **more)
    await ended(client, run)
    return thread


async def link_to(client: httpx.AsyncClient, thread: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/api/threads/{thread}/links", json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_two_runs_are_compared() -> None:
    async with served() as client:
        ann = await client()
        first, second = await ran(ann), await ran(ann, PLAN)
        [run] = (await ann.get(f"/api/threads/{second}/recorded")).json()["items"]
        assert (run["turn"], run["status"]) == (1, "waiting")
        path = f"/api/threads/{first}/compare"
        found = (await ann.get(path, params={"other": second})).json()
        assert not found["same"]
        assert found["recorded"]["results"]["level"]["gave"]["LEVEL"]["litres"] == 7
        parts = {(one["part"], one["name"]) for one in found["differences"]}
        assert ("plan", "open") in parts
        assert ("outcome", "status") in parts
        assert ("plan", "level") not in parts
        same = (await ann.get(path)).json()
        assert same["same"]


async def test_replay_runs_no_step_and_reports_the_differences_of_the_new_code() -> None:
    calls: list[str] = []

    @capability_node(name="read_level")
    async def read_again() -> Level:
        """Read the level of the tank."""
        calls.append("read")
        return Level(litres=8)

    @capability_node
    async def read_tank() -> Level:
        """Read the level of the tank."""
        raise AssertionError

    async with served(read_again, OpenValve) as client:
        ann = await client()
        thread = await ran(ann)
        assert calls == ["read"]
        found = (await ann.post(f"/api/threads/{thread}/replay", json={"turn": 1})).json()
        assert found["same"], found
        assert found["replayed"]["status"] == "completed"
        assert calls == ["read"]
        before = (await ann.get(f"/api/threads/{thread}/state")).json()
        # The server restarts with code in which the capability has another name.
        saver = client.graph.checkpointer
        async with served(read_tank, OpenValve, saver=saver) as restarted:
            ann = await restarted()
            found = (await ann.post(f"/api/threads/{thread}/replay")).json()
            assert not found["same"]
            assert found["replayed"]["status"] != "completed"
            assert (await ann.get(f"/api/threads/{thread}/state")).json() == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/threads/{}/recorded"),
        ("GET", "/api/threads/{}/compare"),
        ("POST", "/api/threads/{}/replay"),
        ("GET", "/api/threads/{}/links"),
        ("POST", "/api/threads/{}/links"),
        ("DELETE", "/api/threads/{}/links/{}"),
    ],
)
async def test_other_users_cannot_use_a_recorded_run(method: str, path: str) -> None:
    async with served() as client:
        ann, bob, admin = await client(), await client("bob"), await client("eve", "admin")
        thread = await ran(ann)
        link = await link_to(ann, thread)
        for other in (bob, admin, await client("ann", tenant="other")):
            answer = await other.request(method, path.format(thread, link["link_id"]))
            assert answer.status_code == 404, answer.text
        nobody = await client("")
        assert (await nobody.request(method, path.format(thread, thread))).status_code == 401
        assert (await nobody.get(link["url"])).status_code == 200


async def test_run_is_not_compared_with_a_run_of_another_user() -> None:
    async with served() as client:
        ann, bob = await client(), await client("bob")
        path = f"/api/threads/{await ran(bob)}/compare"
        assert (await bob.get(path, params={"other": await ran(ann)})).status_code == 404


async def test_link_shows_the_run_without_identities_secrets_and_controls() -> None:
    @capability_node
    async def greet() -> Level:
        """Greet."""
        raise CapabilityError(f"no greeting for ann of acme: api_key={SECRET}", fix="-")

    settings = Settings(name="tank")
    async with served(read_level, OpenValve, greet, settings=settings) as client:
        ann, nobody = await client("ann", "keeper", "acme"), await client("")
        greeting = {"context_key": "hello", "capability": "greet"}
        steps = [*PLAN["steps"], greeting]
        thread = await ran(ann, {"steps": steps}, message="Ann asks for <b>water</b>\u202e")
        page = await nobody.get((await link_to(ann, thread))["url"])
        assert page.status_code == 200
        text = page.text.lower()
        for hidden in ("ann", "keeper", "acme", SECRET, thread, "<b>", "\u202e"):
            assert hidden not in text
        for tag in ("<script", "<form", "<button", "<input", "<a "):
            assert tag not in text
        assert "read_level" in text
        assert "respond" not in text
        assert "[user] asks for" in text
        assert "script-src" not in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        from_mail = await nobody.get(
            (await link_to(ann, thread))["url"],
            headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        )
        assert from_mail.status_code == 200


async def test_expired_revoked_and_forged_links_are_refused() -> None:
    now = [1_000_000.0]
    async with served(clock=lambda: now[0]) as client:
        ann, nobody = await client(), await client("")
        thread = await ran(ann)
        link, other = await link_to(ann, thread, days=2), await link_to(ann, thread)
        for place in (-1, -60, -70):  # the secret, the ID, the thread
            character = "0" if link["url"][place] != "0" else "1"
            forged = (
                link["url"][:place] + character + (link["url"][place + 1 :] if place + 1 else "")
            )
            assert (await nobody.get(forged)).status_code == 404
        assert (await nobody.get("/shared/x")).status_code == 404
        revoked = await ann.delete(f"/api/threads/{thread}/links/{other['link_id']}")
        assert revoked.status_code == 204
        assert (await nobody.get(other["url"])).status_code == 404
        again = await ann.delete(f"/api/threads/{thread}/links/{other['link_id']}")
        assert again.status_code == 404
        [listed] = (await ann.get(f"/api/threads/{thread}/links")).json()["items"]
        assert listed == {name: link[name] for name in ("link_id", "turn", "expires_at")}
        assert (await nobody.get(link["url"])).status_code == 200
        now[0] += 2 * 86_400 + 1
        assert (await nobody.get(link["url"])).status_code == 404
        assert (await ann.get(f"/api/threads/{thread}/links")).json()["items"] == []


async def test_link_ends_with_its_thread() -> None:
    async with served() as client:
        ann, nobody = await client(), await client("")
        thread = await ran(ann)
        url = (await link_to(ann, thread))["url"]
        assert (await ann.delete(f"/api/threads/{thread}")).status_code == 204
        assert (await nobody.get(url)).status_code == 404


@pytest.mark.parametrize("loss", ["token", "role"])
async def test_link_ends_when_its_maker_loses_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr("capgraph.serve.tokens._REFRESH_SECONDS", 0.0)
    auth = tmp_path / "tokens.json"
    token = await asyncio.to_thread(issue_token, auth, "ann", role="keeper")
    async with served(auth=auth) as client:
        ann, nobody = await client(), await client("")
        ann.headers["authorization"] = f"Bearer {token}"
        url = (await link_to(ann, await ran(ann)))["url"]
        assert (await nobody.get(url)).status_code == 200
        if loss == "token":
            await asyncio.to_thread(revoke_token, auth, "ann")
        else:
            await asyncio.to_thread(issue_token, auth, "ann", role="visitor")
        assert (await nobody.get(url)).status_code == 404


async def test_link_ends_when_a_login_reports_another_role_of_its_maker() -> None:
    async with served() as client:
        keeper, visitor, nobody = (
            await client(role="keeper"),
            await client(role="visitor"),
            await client(""),
        )
        url = (await link_to(keeper, await ran(keeper)))["url"]
        assert (await nobody.get(url)).status_code == 200
        await ran(visitor)
        assert (await nobody.get(url)).status_code == 404


@pytest.mark.parametrize("place", ["settings", "code"])
async def test_replay_uses_the_role_of_the_user_who_replays(place: str) -> None:
    roles = {
        "keeper": PermissionMode.FULL_ACCESS,
        "visitor": PermissionMode.READ_ONLY,
    }
    tools = {"keeper": None, "visitor": ["open_valve"]}
    if place == "settings":
        entries = [
            {"role": role, "mode": mode.name.lower(), "allowed_tools": tools[role]}
            for role, mode in roles.items()
        ]
        options: dict[str, Any] = {"settings": Settings(permissions={"roles": entries})}
    else:
        configs = [
            RolePermissionConfig(role, mode, allowed_tools=tools[role])
            for role, mode in roles.items()
        ]
        options = {"permissions": PermissionPolicy(configs)}
    async with served(**options) as client:
        keeper, visitor = await client(role="keeper"), await client(role="visitor")
        path = f"/api/threads/{await ran(keeper)}/replay"
        assert (await keeper.post(path)).json()["same"]
        found = (await visitor.post(path)).json()
        assert not found["same"]
        assert found["replayed"]["status"] != "completed"


@pytest.mark.parametrize(
    ("setting", "body", "status"),
    [(0, {}, 422), (30, {"days": 31}, 422), (30, {"days": 0}, 422), (30, {"days": "1"}, 400)],
)
async def test_lifetime_of_links_is_limited(
    setting: float, body: dict[str, Any], status: int
) -> None:
    async with served(serve={"max_link_days": setting}) as client:
        ann = await client()
        thread = await ran(ann)
        answer = await ann.post(f"/api/threads/{thread}/links", json=body)
        assert answer.status_code == status, answer.text


async def test_disabled_links_are_refused_after_a_restart() -> None:
    async with served() as client:
        ann = await client()
        thread = await ran(ann)
        url = (await link_to(ann, thread))["url"]
        saver = client.graph.checkpointer
    async with served(saver=saver, serve={"max_link_days": 0}) as client:
        assert (await (await client("")).get(url)).status_code == 404
