"""The public contract of ``capgraph serve``, line by line, tried by a stranger on a real process.

What holds for every route stands in ``tests/unit/serve/test_security.py``, restarts in
``tests/graph/test_serving.py``, each protocol's details in tests of its own.
"""

from __future__ import annotations

import contextlib
import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ag_ui.core
import httpx
import jsonschema
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter

from tests.support import PATIENCE
from tests.support.serve_process import ROOT, Served, serve_process
from tests.support.served import PLAN

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
    pytest.mark.may_block,
    pytest.mark.timeout(600),
]
_EVENT: TypeAdapter[Any] = TypeAdapter(ag_ui.core.Event)


SLOW = '''"""Something that takes long."""
import asyncio

from capgraph import capability_node


@capability_node
async def wait_long() -> None:
    """Wait for a long time."""
    await asyncio.sleep(600)
'''


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_process(tmp_path_factory.mktemp("contract"), "--host", "0.0.0.0") as found:
        yield found


@pytest.fixture
def ann(served: Served) -> Iterator[Stranger]:
    with _stranger(served, served.ann) as found:
        yield found


@pytest.fixture
def bob(served: Served) -> Iterator[Stranger]:
    with _stranger(served, served.bob) as found:
        yield found


class Stranger(httpx.Client):
    """Somebody with a token, who knows nothing but the contract."""

    def begun(self, thread: str, **body: Any) -> str:
        answer = self.post(f"/api/threads/{thread}/runs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def new(self, **body: Any) -> tuple[str, str]:
        answer = self.post("/api/threads")
        assert answer.status_code == 201
        thread = answer.json()["thread_id"]
        return thread, self.begun(thread, **body)

    def told(self, run: str, after: int = 0) -> list[dict[str, Any]]:
        headers = {"last-event-id": str(after)} if after else {}
        return events(self.get(f"/api/runs/{run}/events", headers=headers), after)

    def ended(self, run: str) -> str:
        end = time.monotonic() + PATIENCE
        while (found := self.get(f"/api/runs/{run}").json())["status"] in ("queued", "running"):
            assert time.monotonic() < end, "the run does not end"
            time.sleep(0.02)
        return str(found["status"])

    def question(self, thread: str) -> dict[str, Any]:
        (found,) = self.get("/api/questions", params={"thread_id": thread}).json()["items"]
        return dict(found)

    def agui(self, thread: str, text: str = "", **more: Any) -> Any:
        said = [{"id": "1", "role": "user", "content": text}] if text else []
        body = {"threadId": thread, "runId": "mine", "state": {}, "messages": said}
        body |= {"tools": [], "context": [], "forwardedProps": {}, **more}
        answer = self.post("/agui", json=body)
        return events(answer, 0) if answer.status_code == 200 else answer


def _stranger(served: Served, token: str) -> Stranger:
    headers = {"authorization": f"Bearer {token}"}
    return Stranger(base_url=f"http://{served.host}", headers=headers, timeout=PATIENCE)


def events(answer: httpx.Response, after: int) -> list[dict[str, Any]]:
    """Read server-sent events, each numbered and of the protocol."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found: list[dict[str, Any]] = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append(json.loads(lines["data"]))
            _EVENT.validate_python(found[-1])
            assert int(lines["id"]) == after + len(found)
    return found


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = dict(answer.json())
    assert found["code"].startswith("CG-")
    return found


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "capgraph", *words],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


def test_a_token_is_made_shown_once_and_revoked(served: Served, tmp_path: Path) -> None:
    assert served.line == f"serving http://0.0.0.0:{served.address[1]}/\n"
    made = command(served.folder, "token", "eve", "--role", "clerk", "--auth", "tokens.json")
    token = made.stdout.strip()
    assert (made.stdout, made.returncode) == (f"{token}\n", 0)
    assert token not in served.tokens.read_text()
    assert stat.S_IMODE(served.tokens.stat().st_mode) == 0o600
    assert command(served.folder, "token", "revoke", "nobody", "--auth", "tokens.json").returncode

    def until(status: int) -> None:
        end = time.monotonic() + 10
        while served.ask("GET", "/api/threads", token).status != status:
            assert time.monotonic() < end
            time.sleep(0.1)

    until(200)
    assert not command(served.folder, "token", "revoke", "eve", "--auth", "tokens.json").returncode
    until(401)


def test_threads(ann: Stranger, bob: Stranger) -> None:
    thread, run = ann.new(message="Read the level of the tank")
    assert ann.ended(run) == "completed"
    assert set(ann.get(f"/api/runs/{run}").json()) == {"run_id", "thread_id", "status"}
    # As the contract writes it: what is left empty is not asked for.
    found = ann.get("/api/threads?query=&outcome=&limit=&after=").json()
    assert set(found) == {"items", "next"}
    assert thread in [item["thread_id"] for item in found["items"]]
    listed: list[str] = []
    after = ""
    ann.post("/api/threads", json={"user": "bob", "owner": "bob", "user_id": "bob"})
    while after is not None:
        page = ann.get(f"/api/threads?limit=1&after={after}").json()
        listed += [item["thread_id"] for item in page["items"]]
        after = page["next"]
    assert thread in listed
    assert len(listed) == len(set(listed)) >= 2
    assert bob.get("/api/threads").json() == {"items": [], "next": None}
    missing = problem(bob.get("/api/threads/nothing"), 404)
    assert problem(bob.get(f"/api/threads/{thread}"), 404) == missing
    assert ann.patch(f"/api/threads/{thread}", json={"title": "Mine"}).json()["title"] == "Mine"
    (found,) = ann.get("/api/threads?query=mine&outcome=completed").json()["items"]
    assert found["thread_id"] == thread
    history = ann.get(f"/api/threads/{thread}/history").json()["items"]
    body = {"checkpoint_id": history[0]["checkpoint_id"]}
    forked = ann.post(f"/api/threads/{thread}/fork", json=body)
    assert (forked.status_code, list(forked.json())) == (201, ["thread_id"])
    problem(ann.post(f"/api/threads/{thread}/fork", json={"checkpoint_id": "nothing"}), 404)
    assert ann.post(f"/api/threads/{thread}/signals/go", json={"value": 1}).status_code == 202
    assert ann.delete(f"/api/threads/{thread}").status_code == 204
    problem(ann.get(f"/api/threads/{thread}"), 404)
    problem(ann.get(f"/api/runs/{run}"), 404)


@pytest.mark.parametrize("answer", ["yes", {"open": "Yes"}])
def test_a_plain_word_answers_an_approval_request(
    served: Served, ann: Stranger, answer: Any
) -> None:
    thread, run = ann.new(plan=PLAN)
    assert ann.ended(run) == "waiting"
    path = f"/api/questions/{ann.question(thread)['question_id']}"
    on = ann.post(path, json={"answer": answer})
    assert on.status_code == 202
    assert ann.ended(on.json()["run_id"]) == "completed"


def test_a_question_and_its_answers(served: Served, ann: Stranger, bob: Stranger) -> None:
    thread, run = ann.new(plan=PLAN)
    assert ann.ended(run) == "waiting"
    told = ann.told(run)
    assert told[0]["type"] == "RUN_STARTED"
    assert told[-1]["outcome"]["type"] == "interrupt"
    assert ann.told(run, after=3) == told[3:]
    assert ann.told(run, after=9999) == []
    asked = ann.question(thread)
    assert asked["steps"][0]["parameters_schema"]["properties"]["litres"]["maximum"] == 50
    path = f"/api/questions/{asked['question_id']}"
    for bad, where in (
        ({"open": {"decision": "edit", "parameters": {"litres": 900}}}, "open.parameters.litres"),
        ({"open": {"decision": "edit"}}, "open.parameters"),
        ({"open": {"decision": "perhaps"}}, "open.decision"),
        ({"other": {"decision": "approve"}}, "other"),
        ("perhaps", "open.decision"),
        (None, ""),
    ):
        told_back = problem(ann.post(path, json={"answer": bad}), 422)
        assert told_back["problems"][0]["path"] == where
        assert told_back["problems"][0]["message"]
    assert ann.question(thread) == asked
    missing = problem(bob.post("/api/questions/nothing", json={"answer": "approve"}), 404)
    assert problem(bob.post(path, json={"answer": "approve"}), 404) == missing
    answer = {"open": {"decision": "edit", "parameters": {"litres": 4}}}
    forged = {"caller": {"user_id": "bob"}, "user": "bob"}
    on = ann.post(path, json={"answer": answer, **forged})
    assert on.status_code == 202
    assert ann.ended(on.json()["run_id"]) == "completed"
    problem(ann.post(path, json={"answer": "approve"}), 409)
    (effect,) = ann.get("/api/effects", params={"thread_id": thread}).json()["items"]
    assert (effect["capability"], effect["thread_id"]) == ("open_valve", thread)
    assert effect["approved_by"] == ["ann"]
    assert bob.get("/api/effects").json()["items"] == []
    for name in ("usage", "effects", "audit", "capabilities", "questions"):
        assert set(ann.get(f"/api/{name}").json()) == {"items", "next"}
    problem(ann.get("/api/audit/verify"), 403)


def test_agui(ann: Stranger, bob: Stranger) -> None:
    name = "my thread/1"
    told = ann.agui(name, "Open the valve of the tank", user="bob")
    assert (told[0]["threadId"], told[0]["runId"]) == (name, "mine")
    (asked,) = told[-1]["outcome"]["interrupts"]
    # Names are the user's own, whatever stands in them.
    assert ann.get(f"/api/threads/{quote(name, safe='')}").json()["outcome"] == "waiting"
    assert bob.get(f"/api/threads/{quote(name, safe='')}").status_code == 404
    assert ann.get(f"/api/threads/{quote(name, safe='')}/history").json()["items"]
    ((key, schema),) = asked["responseSchema"]["properties"].items()
    decisions = {one["properties"]["decision"]["const"] for one in schema["oneOf"]}
    assert {"approve", "edit", "reject"} <= decisions
    wrong = {key: {"decision": "edit", "parameters": {"litres": 900}}}
    right = {key: {"decision": "edit", "parameters": {"litres": 5}}}
    jsonschema.validate(right, asked["responseSchema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, asked["responseSchema"])

    def resume(payload: Any) -> Any:
        return [{"interruptId": asked["id"], "status": "resolved", "payload": payload}]

    (end,) = ann.agui(name, resume=resume(wrong))[-1:]
    assert end["outcome"]["interrupts"][0]["id"] == asked["id"]
    assert end["metadata"]["capgraph"]["problems"][0]["path"] == f"{key}.parameters.litres"
    problem(bob.agui(name, resume=resume("approve")), 404)
    assert ann.agui(name, resume=resume(right))[-1]["outcome"]["type"] == "success"
    problem(ann.agui(name, resume=resume("approve")), 409)


def test_openai(served: Served, ann: Stranger, bob: Stranger) -> None:
    address = f"http://{served.host}"
    with openai.OpenAI(api_key=served.ann, base_url=f"{address}/v1", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["capgraph"]

        def said(text: str, **more: Any) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return client.chat.completions.create(model="capgraph", messages=messages, **more)

        before = bob.get("/api/threads").json()
        answer = said("Read the level of the tank", user="bob").choices[0]
        assert answer.finish_reason == "stop"
        assert "7" in answer.message.content
        assert bob.get("/api/threads").json() == before
        parts = said("Open the valve of the tank", stream=True)
        asked = "".join(part.choices[0].delta.content or "" for part in parts)
        assert "Open the valve of the tank." in asked
        assert f"{address}/" in asked
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="capgraph", messages=[])


def test_what_is_refused_before_anybody_is_asked(served: Served, ann: Stranger) -> None:
    for name in ("/healthz", "/readyz", "/.well-known/agent-card.json", "/", "/login"):
        assert served.ask("GET", name).status == 200
    for page in ("/", "/login"):
        assert b'data-testid="token-input"' in served.ask("GET", page).body
    for name in ("/api/threads", "/metrics", "/openapi.json", "/v1/models", "/mcp", "/nothing"):
        assert served.ask("GET", name).status == 401
    for origin in ("null", "http://evil.example", "https://127.0.0.1"):
        assert ann.get("/api/threads", headers={"origin": origin}).status_code == 403
    assert ann.get("/api/threads", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert ann.get("/api/threads", headers={"host": "evil.example"}).status_code == 421
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    for name in ("/", "/agui", "/mcp", "/api/threads"):
        assert ann.get(name, headers=upgrade).status_code == 403
    long = b'{"title": "' + b"x" * 1_048_576 + b'"}'
    parts = [long[at : at + 65_536] for at in range(0, len(long), 65_536)]
    problem(ann.post("/api/threads", content=long), 413)
    problem(ann.post("/api/threads", content=iter(parts)), 413)
    assert ann.post("/api/threads", content=iter([b"{", b"}"])).status_code == 201
    assert {"/api/threads", "/api/runs/{id}/events"} <= set(
        ann.get("/openapi.json").json()["paths"]
    )
    families = list(text_string_to_metric_families(ann.get("/metrics").text))
    assert families
    assert all(family.name.startswith("capgraph_") for family in families)


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("db", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def test_two_processes_over_one_database(
    db: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with contextlib.ExitStack() as stack:
        if db == "sqlite":
            url = f"sqlite:///{tmp_path / 'threads.db'}"
        else:
            url = request.getfixturevalue("server").database()
        modules = {"modules": ["tests.support.served", "slow"]}
        strangers = []
        for folder in (tmp_path / "a", tmp_path / "b"):
            folder.mkdir()
            (folder / "slow.py").write_text(SLOW)
            one = stack.enter_context(serve_process(folder, db=url, configured=modules))
            strangers.append(stack.enter_context(_stranger(one, one.ann)))
        here, there = strangers
        thread, run = here.new(plan=PLAN)
        told = there.told(run)
        assert told == here.told(run)
        assert there.ended(run) == "waiting"
        path = f"/api/questions/{there.question(thread)['question_id']}"
        body = {"answer": {"open": {"decision": "edit", "parameters": {"litres": 900}}}}
        problem(there.post(path, json=body), 422)
        with ThreadPoolExecutor(8) as pool:
            asking = [here, there] * 4
            given = pool.map(lambda one: one.post(path, json={"answer": "approve"}), asking)
            answers = list(given)
        assert sorted(answer.status_code for answer in answers) == [202, *[409] * 7]
        (on,) = [answer.json()["run_id"] for answer in answers if answer.status_code == 202]
        assert here.ended(on) == there.ended(on) == "completed"
        slow = {"steps": [{"context_key": "s", "capability": "wait_long"}]}
        thread, run = here.new(plan=slow)
        problem(there.post(f"/api/threads/{thread}/runs", json={"plan": PLAN}), 409)
        stopped = there.post(f"/api/runs/{run}/stop")
        assert (stopped.status_code, stopped.json()["status"]) == (202, "running")
        assert there.ended(run) == "stopped"
        assert here.told(run)[-1]["type"] == "RUN_FINISHED"
        assert len(here.get("/api/effects").json()["items"]) == 1


def test_an_unknown_field_of_a_run_is_refused_with_the_nearest_name(ann: Stranger) -> None:
    thread = ann.post("/api/threads", json={}).json()["thread_id"]
    body = {"message": "Look.", "plann": {"steps": []}}
    found = problem(ann.post(f"/api/threads/{thread}/runs", json=body), 400)
    assert "'plann'" in str(found)
    assert "'plan'" in str(found)
