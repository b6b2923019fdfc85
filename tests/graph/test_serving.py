"""``capgraph serve`` as real processes: streams, a restart in the middle, and an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from capgraph.serve.tokens import issue_token
from tests.support import PATIENCE
from tests.support.reverse_proxy import proxied

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).with_name("serve_toys.py")
LEVEL = {"context_key": "level", "capability": "read_level"}
FILL = {"steps": [LEVEL, {"context_key": "full", "capability": "fill_tank",
                          "inputs": [{"LEVEL": "level"}]}]}  # fmt: skip
OPEN = {"steps": [LEVEL, {"context_key": "open", "capability": "open_valve",
                          "inputs": [{"LEVEL": "level"}]}]}  # fmt: skip

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
    pytest.mark.timeout(600),
]


class Place:
    """A folder with an agent, its tokens and its database; and the server that serves it."""

    def __init__(self, folder: Path, db: str) -> None:
        self.folder, self.db = folder, db
        self.gate = folder / "gate"
        self.tokens = folder / "tokens.json"
        self.process: subprocess.Popen[str] | None = None
        (folder / "toys.py").write_bytes(TOYS.read_bytes())
        (folder / "agent.yml").write_text("modules: [toys]\n")
        self.ann = self.header("ann")
        self.bob = self.header("bob")

    def header(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {issue_token(self.tokens, name)}"}

    def start(self, *more: str) -> str:
        """Start the server; returns its first line."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOY_GATE": str(self.gate)}
        environment["TOY_LOG"] = str(self.folder / "log")
        named = ["--config", "agent.yml", "--port", "0", "--db", self.db, "--no-open"]
        auth = [] if "--no-auth" in more else ["--auth", str(self.tokens)]
        more = tuple(word for word in more if word != "--no-auth")
        with (self.folder / "err").open("a") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "capgraph", "serve", *named, *auth, *more],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:"), (self.folder / "err").read_text()
        self.url = line.split()[1]
        return line

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def client(self, headers: Any = None) -> httpx.Client:
        headers = self.ann if headers is None else headers
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def begun(self, plan: Any) -> tuple[str, str]:
        with self.client() as client:
            thread = client.post("/api/threads").json()["thread_id"]
            answer = client.post(f"/api/threads/{thread}/runs", json={"plan": plan})
            return thread, answer.json()["run_id"]

    def told(self, run: str, after: int = 0, until: str = "") -> list[Any]:
        """Return the events of a run with their ids, until one holds a text or the last one came."""
        found: list[Any] = []
        headers = {**self.ann, "last-event-id": str(after)} if after else self.ann
        with self.client(headers) as client, client.stream("GET", f"/api/runs/{run}/events") as got:
            assert got.status_code == 200
            number = 0
            for line in got.iter_lines():
                if line.startswith("id: "):
                    number = int(line[4:])
                if line.startswith("data: "):
                    found.append((number, json.loads(line[6:])))
                    if until and until in line:
                        break
        assert [number for number, _ in found] == [*range(after + 1, after + 1 + len(found))]
        return found

    def status(self, run: str, *words: str) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with self.client() as client:
                found = str(client.get(f"/api/runs/{run}").json()["status"])
            if found in words:
                return found
            time.sleep(0.05)
        raise AssertionError(f"the run is {found}")

    @property
    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """Return two servers of one folder and one database, which have not been started."""
    first = Place(tmp_path, request.getfixturevalue("server").database())
    (tmp_path / "log").touch()
    second = copy.copy(first)
    yield first, second
    for one in (first, second):
        if one.process is not None:
            one.end()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    db = "threads.db"
    if request.param == "postgres":
        db = request.getfixturevalue("server").database()
    made = Place(tmp_path, db)
    yield made
    if made.process is not None:
        made.end()


async def _start(*places: Place) -> list[str]:
    await asyncio.gather(*(asyncio.to_thread(place.start) for place in places))
    return [place.url for place in places]


async def _follow(client: httpx.AsyncClient, run: str) -> list[Any]:
    """Return the events of a run; reconnect after each end of the stream."""
    events: list[Any] = []
    while not events or events[-1]["type"] not in ("RUN_FINISHED", "RUN_ERROR"):
        headers = {"last-event-id": str(len(events))} if events else {}
        async with client.stream("GET", f"/api/runs/{run}/events", headers=headers) as stream:
            assert stream.status_code == 200
            with contextlib.suppress(httpx.RemoteProtocolError):
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        events.append(json.loads(line[6:]))
    return events


@pytest.mark.service
@pytest.mark.may_block
async def test_two_servers_behind_one_name(pair: tuple[Place, Place]) -> None:
    urls = await _start(*pair)
    async with (
        proxied(lambda: urls) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as browser,
    ):
        token = pair[0].ann["authorization"].removeprefix("Bearer ")
        login = await browser.post("/login", data={"token": token})
        browser.cookies.clear()
        browser.headers["cookie"] = login.headers["set-cookie"].split(";")[0]
        # The requests reach the servers in turn.
        threads = [(await browser.post("/api/threads")).json()["thread_id"] for _ in pair]
        for thread in threads:
            started = await browser.post(f"/api/threads/{thread}/runs", json={"plan": OPEN})
            events = await _follow(browser, started.json()["run_id"])
            (interrupt,) = events[-1]["outcome"]["interrupts"]
            (await browser.get("/api/threads")).raise_for_status()
            question = f"/api/questions/{interrupt['id']}"
            answered = await browser.post(question, json={"answer": "approve"})
            assert answered.status_code == 202
            ended = (await _follow(browser, answered.json()["run_id"]))[-1]
            assert ended["result"]["status"] == "completed"
    assert pair[0].log.count("opened") == 2


@pytest.mark.service
@pytest.mark.may_block
async def test_second_server_takes_over_without_a_failed_request(pair: tuple[Place, Place]) -> None:
    first, second = pair
    urls = await _start(first)
    async with (
        proxied(lambda: urls) as url,
        httpx.AsyncClient(base_url=url, headers=first.ann, timeout=PATIENCE) as client,
        httpx.AsyncClient(base_url=first.url, headers=first.ann, timeout=PATIENCE) as old,
    ):

        async def begin(through: httpx.AsyncClient) -> str:
            thread = (await through.post("/api/threads")).json()["thread_id"]
            started = await through.post(f"/api/threads/{thread}/runs", json={"plan": FILL})
            assert started.status_code == 202, started.text
            return str(started.json()["run_id"])

        runs = [await begin(client)]
        following = [asyncio.create_task(_follow(client, runs[0]))]
        while "fill" not in first.log:
            await asyncio.sleep(0.05)
        urls += await _start(second)
        assert first.process is not None
        first.process.send_signal(signal.SIGTERM)
        while (await old.get("/readyz")).status_code == 200:
            await asyncio.sleep(0.05)
        # The old server still answers, and stores a new run for the other one.
        runs.append(await begin(old))
        following.append(asyncio.create_task(_follow(client, runs[1])))
        first.gate.touch()
        for events in await asyncio.gather(*following):
            assert events[-1]["result"]["status"] == "completed"
            assert [one["type"] for one in events].count("RUN_STARTED") == 1
        assert await asyncio.to_thread(first.process.wait, PATIENCE) == 0
        assert (await client.get("/api/threads")).status_code == 200
    assert first.log.count("filled") == 2


@pytest.mark.may_block
@pytest.mark.sampled(0.5)
def test_a_killed_server_goes_on_with_its_runs_under_their_ids(place: Place) -> None:
    place.start()
    thread, run = place.begun(FILL)
    before = place.told(run, until='"stepName":"full"')
    assert place.end() == -signal.SIGKILL
    place.start()
    place.gate.touch()
    again = place.told(run)
    assert again[: len(before)] == before
    assert again[-1][1]["type"] == "RUN_FINISHED"
    assert again[-1][1]["result"]["status"] == "completed"
    assert place.told(run, after=3) == again[3:]
    assert place.status(run, "completed")
    assert place.log == ["read", "fill", "fill", "filled"]
    kinds = [event["type"] for _, event in again]
    assert kinds.count("RUN_STARTED") == kinds.count("RUN_FINISHED") == 1
    assert kinds.count("STEP_STARTED") == kinds.count("STEP_FINISHED")
    with place.client() as client:
        assert client.get(f"/api/threads/{thread}").json()["outcome"] == "completed"


@pytest.mark.may_block
@pytest.mark.sampled(0.5)
def test_sigterm_hands_over_what_runs_and_ends_well(place: Place) -> None:
    place.start()
    waits, asking = place.begun(OPEN)
    assert place.status(asking, "waiting")
    _, run = place.begun(FILL)
    place.told(run, until='"stepName":"full"')
    assert place.process is not None
    place.process.send_signal(signal.SIGTERM)
    place.gate.touch()
    assert place.end(signal.SIGCONT) == 0
    place.start()
    assert place.status(run, "completed")
    assert place.log.count("filled") == 1
    with place.client() as client, place.client(place.bob) as other:
        (question,) = client.get("/api/questions").json()["items"]
        assert question["thread_id"] == waits
        name = f"/api/questions/{question['question_id']}"
        assert other.post(name, json={"answer": "approve"}).status_code == 404
        answered = client.post(name, json={"answer": "approve"})
        assert answered.status_code == 202
        assert place.status(answered.json()["run_id"], "completed")
        assert client.post(name, json={"answer": "approve"}).status_code == 409
    assert place.log.count("opened") == 1
    assert place.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in (place.folder / "err").read_text().splitlines()]
    assert {"POST", "/api/threads", 201} <= {v for line in lines for v in line.values()}
    assert waits not in str(lines)


@pytest.mark.may_block
def test_the_one_time_link_works_once_and_the_thread_of_the_command_line_is_there(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, "threads.db")
    line = place.start("--no-auth")
    try:
        link = line.split()[2]
        assert link.startswith(place.url)
        with place.client({}) as client:
            assert client.get("/api/threads").status_code == 401
            assert client.get(link).status_code == 303
            assert client.get("/api/threads").json() == {"items": [], "next": None}
        with place.client({}) as client:
            assert client.get(link).status_code == 401
    finally:
        assert place.end(signal.SIGTERM) == 0


@pytest.mark.may_block
def test_elsewhere_than_loopback_a_login_is_needed(tmp_path: Path) -> None:
    place = Place(tmp_path, "threads.db")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOY_LOG": "log", "TOY_GATE": "gate"}
    command = [sys.executable, "-m", "capgraph", "serve", "--config", "agent.yml"]
    found = subprocess.run(
        [*command, "--host", "0.0.0.0", "--port", "0", "--db", "memory"],
        cwd=place.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert found.returncode == 2
    assert "--auth" in found.stderr


def test_hangup_reloads_the_settings_and_loses_no_run(tmp_path: Path) -> None:
    place = Place(tmp_path, "threads.db")
    (tmp_path / "log").touch()
    place.start()
    process = place.process
    assert process is not None
    assert process.stdout is not None
    try:
        _, run = place.begun(FILL)
        place.status(run, "running")
        # Settings that are invalid change nothing.
        (tmp_path / "agent.yml").write_text("modules: [toys]\nname: [invalid]\n")
        process.send_signal(signal.SIGHUP)
        _wait_until(lambda: "old settings" in (tmp_path / "err").read_text())
        (tmp_path / "agent.yml").write_text("modules: [toys]\nname: other-agent\n")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline().split()[1] == place.url
        with place.client() as client:
            assert client.get("/.well-known/agent-card.json").json()["name"] == "other-agent"
        place.gate.touch()
        assert place.status(run, "completed", "failed") == "completed"
        assert process.poll() is None
    finally:
        assert place.end(signal.SIGTERM) == 0


def _wait_until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.05)
