"""``capgraph serve`` as a process on loopback, and a client that sends whatever it is told to."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capgraph.serve.tokens import issue_token, revoke_token
from tests.support import PATIENCE
from tests.support.served import PLAN, READ

ROOT = Path(__file__).parents[2]
CANARY = "canary-5d1e"
Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A served tank with two users, a token that has ended and one that was revoked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = folder / "tokens.json"
        self.ann, self.bob = (issue_token(self.tokens, name) for name in ("ann", "bob"))
        self.expired = issue_token(self.tokens, "old", days=1e-9)
        self.revoked = issue_token(self.tokens, "gone")
        revoke_token(self.tokens, "gone")
        self.address = ("127.0.0.1", 0)
        self.line = ""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def ask(
        self,
        method: str,
        target: str,
        token: str | None = None,
        *,
        headers: Headers = (),
        host: str | None = None,
        body: Any = None,
        chunked: bool = False,
    ) -> Answer:
        """Send one request as it is, over a connection of its own."""
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host if host is None else host}"]
        lines += ["Connection: close", *([f"Authorization: Bearer {token}"] if token else [])]
        known = {name.lower() for name, _ in headers}
        if body is not None and "content-type" not in known:
            lines.append("Content-Type: application/json")
        if chunked:
            lines.append("Transfer-Encoding: chunked")
            parts = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
            data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif "content-length" not in known:
            lines.append(f"Content-Length: {len(data)}")
        lines += [f"{name}: {value}" for name, value in headers]
        return self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + data, method)

    def send(self, data: bytes, method: str = "GET") -> Answer:
        """Send bytes, and read an answer."""
        with socket.create_connection(self.address, PATIENCE) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            got = http.client.HTTPResponse(connection, method=method)
            got.begin()
            names = {name.lower(): value for name, value in got.getheaders()}
            return Answer(got.status, names, got.read())


@contextlib.contextmanager
def serve_process(
    folder: Path,
    *more: str,
    db: str = "sqlite:///threads.db",
    configured: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Start the command, with further words and settings of the agent, and end it."""
    folder.mkdir(exist_ok=True)
    served = Served(folder)
    quick = {
        "requests_per_minute": 1e9,
        "logins_per_minute": 1e9,
        "max_active_runs_per_user": 10_000,
    }
    uploads = {"folder": str(folder / "brought"), "max_file_bytes": 1_048_576}
    agent = {
        "modules": ["tests.support.served"],
        "provided_types": ["SOURCE"],
        "serve": {**quick, "uploads": uploads, **settings},
        **(configured or {}),
    }
    (folder / "agent.yml").write_text(json.dumps(agent))
    words = ["--config", "agent.yml", "--port", "0", "--db", db, "--no-open", *more]
    with (
        (folder / "err").open("w") as err,
        subprocess.Popen(
            [sys.executable, "-m", "capgraph", "serve", *words, "--auth", str(served.tokens)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving http://"), (folder / "err").read_text()
            served.line = line
            served.address = ("127.0.0.1", int(line.split()[1].rstrip("/").rpartition(":")[2]))
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE)
        assert code == 0, (folder / "err").read_text()


class Things(NamedTuple):
    """What ann has."""

    thread: str
    run: str
    question: str
    checkpoint: str
    file: str
    made: str


def things_of(served: Served, token: str, mark: str) -> Things:
    def post(path: str, body: Any) -> Any:
        answer = served.ask("POST", path, token, body=body)
        assert answer.status in (201, 202), answer
        return answer.json()

    def settled(run: str) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            status = served.ask("GET", f"/api/runs/{run}", token).json()["status"]
            if status not in ("queued", "running"):
                return str(status)
            time.sleep(0.02)
        raise AssertionError("the run does not end")

    thread = post("/api/threads", {"title": f"{mark} title"})["thread_id"]
    plan = json.loads(json.dumps(READ).replace("Look.", f"{mark} objective"))
    settled(
        post(f"/api/threads/{thread}/runs", {"message": f"{mark} said", "plan": plan})["run_id"]
    )
    plan = json.loads(json.dumps(PLAN).replace("Look.", f"{mark} objective"))
    run = post(f"/api/threads/{thread}/runs", {"message": f"{mark} said", "plan": plan})["run_id"]
    assert settled(run) == "waiting"
    [question] = served.ask("GET", f"/api/questions?thread_id={thread}", token).json()["items"]
    history = served.ask("GET", f"/api/threads/{thread}/history", token).json()["items"]
    name, data = f"/api/files?name={mark}.csv", f"{mark},x\n1,2\n".encode()
    brought = served.ask("POST", name, token, body=data)
    assert brought.status == 201, brought
    [made] = served.ask("GET", f"/api/threads/{thread}/files", token).json()["items"]
    checkpoint, file = history[0]["checkpoint_id"], brought.json()["file_id"]
    return Things(thread, run, question["question_id"], checkpoint, file, made["file_id"])
