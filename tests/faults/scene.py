"""The agent whose process is killed: steps that act on a folder outside of it.

Run as a program it is a zygote: it imports everything once and forks a child for each line on its
input, so that hundreds of processes can be killed in little time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

from langgraph.types import Command
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.selection import Selection
from capgraph.stores import open_saver

FOLDER = Path()
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "scene"}}
ROWS = 5
EFFECTS = {
    False: (("pay", "pay2", "pay3", "tell"), ("book", "book2")),
    True: (
        (*(f"pay[{n}]" for n in range(ROWS)), "tell"),
        tuple(f"book[{n}]" for n in range(ROWS)),
    ),
}
"""What acts once and what knows its keys, without and with steps that run over a list."""


class Slip(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return f"Slip {self.text}."


class Batch(CapabilityContext):
    rows: list[str]


class Nonce(BaseModel):
    nonce: str = ""
    pause: float = 0.004


def append(name: str, line: str) -> None:
    """Act on the world outside: one line, written at once."""
    handle = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


def lines(name: str) -> list[str]:
    """Read what was done outside."""
    try:
        return (FOLDER / name).read_text().splitlines()
    except FileNotFoundError:
        return []


class _Step(BaseCapability):
    provides = ["SLIP"]
    requires = [("SLIP", "many")]
    Parameters = Nonce

    async def execute(self) -> Slip:
        key = self.step["context_key"]
        await asyncio.sleep(self.parameters.pause)
        INSTANTS.pass_one()
        self.act(key)
        INSTANTS.pass_one()
        await asyncio.sleep(self.parameters.pause)
        return Slip(text=key)

    def act(self, key: str) -> None:
        """Do what the step is for."""


@capability_node
class Pay(_Step):
    """Acts once."""

    name = "pay"
    description = "Pay"
    effect = "once"

    def act(self, key: str) -> None:
        append("once", f"{key} {self.parameters.nonce}")


@capability_node
class Tell(Pay):
    """Acts once, when a person agrees."""

    name = "tell"
    description = "Tell"
    requires_approval = True


@capability_node
class Book(_Step):
    """Acts on a system that knows its keys."""

    name = "book"
    description = "Book"
    effect = "idempotent"

    def act(self, key: str) -> None:
        name = hashlib.sha256(self.idempotency_key.encode()).hexdigest()[:24]
        with contextlib.suppress(FileExistsError):
            os.close(os.open(FOLDER / f"booked-{key}-{name}", os.O_CREAT | os.O_EXCL))


@capability_node
class Think(_Step):
    """Changes nothing; the first try fails."""

    name = "think"
    description = "Think"

    def act(self, key: str) -> None:
        if self.attempt == 1 and key in ("think2", "think2[3]"):
            raise CapabilityError("Not yet.", severity=ErrorSeverity.RETRIABLE)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Try again soon."""
        return {"max_attempts": 40, "delay_seconds": 0.01, "backoff_factor": 1.0}


@capability_node
class Begin(_Step):
    """Changes nothing and needs nothing."""

    name = "begin"
    description = "Begin"
    requires: list[Any] = []


@capability_node
class Fetch(_Step):
    """Gives a list."""

    name = "fetch"
    description = "Fetch"
    provides = ["BATCH"]
    requires: list[Any] = []

    async def execute(self) -> Any:
        await super().execute()
        return Batch(rows=[f"row {n % 3}" for n in range(ROWS)])


def _each(key: str, capability: str) -> dict[str, Any]:
    found = _step(key, capability, "begin")
    found["parameters"]["nonce"] = {"$from": "row"}
    return {**found, "for_each": {"of": "batch.rows", "as": "row"}}


def _step(key: str, capability: str, *inputs: str) -> dict[str, Any]:
    # A plan that is made again is another plan: an effect that ran ahead of its plan shows.
    parameters = {"nonce": secrets.token_hex(4), "pause": PAUSE}
    return {
        "context_key": key,
        "capability": capability,
        "task_objective": f"Do {key}",
        "inputs": [{"SLIP": name} for name in inputs],
        "parameters": parameters,
    }


class Planner:
    """Plans the same work in ever new words."""

    can_correct = False
    chooses_parameters = True
    writes_with_model = False

    async def plan(self, request: Any) -> Any:
        """Write the plan."""
        if EACH:
            over = [_each("pay", "pay"), _each("think2", "think"), _each("book", "book")]
            tell = _step("tell", "tell", "pay", "think2", "book")
            return {"steps": [_step("begin", "begin"), _step("batch", "fetch"), *over, tell]}
        steps = [
            _step("begin", "begin"),
            _step("pay", "pay", "begin"),
            _step("book", "book", "begin"),
            _step("think2", "think", "begin"),
            _step("pay2", "pay", "pay", "book"),
            _step("tell", "tell", "think2"),
            _step("book2", "book", "tell"),
            _step("pay3", "pay", "book2", "pay2"),
        ]
        return {"steps": steps}


class Selector:
    """Chooses everything."""

    async def select(self, task: str, candidates: Any, **_: Any) -> Selection:
        """Choose."""
        return Selection(tuple(item.name for item in candidates))


class Instants:
    """Counts the moments between two instructions that matter, and dies at one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.passed = 0
        self._fatal = fatal

    def pass_one(self) -> None:
        """Pass an instant."""
        self.passed += 1
        if self.passed == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


INSTANTS = Instants(None)
GOVERNED = EACH = False
LAG = 0.02
PAUSE = 0.004


def watch(saver: Any) -> None:
    """Make the moments before and after each use of the database instants."""
    for name in ("aput", "aput_writes", "aget_tuple"):
        method = getattr(type(saver), name)

        def watched(method: Any, name: str) -> Any:
            @functools.wraps(method)
            async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                INSTANTS.pass_one()
                if name == "aput" and not args[0]["configurable"].get("checkpoint_ns"):
                    # Checkpoints are saved in the background: let them lag behind the steps.
                    await asyncio.sleep(LAG)
                result = await method(self, *args, **kwargs)
                INSTANTS.pass_one()
                return result

            return call

        if not hasattr(method, "__wrapped__"):
            setattr(type(saver), name, watched(method, name))


def person(question: dict[str, Any]) -> dict[str, Any]:
    """Answer like somebody who looks at the outside world first."""
    answers: dict[str, Any] = {}
    for entry in question["steps"]:
        key = entry["context_key"]
        if entry["kind"] == "unknown_outcome":
            append("asked", key)
            happened = any(line.split()[0] == key for line in lines("once"))
            done = {"decision": "done", "outputs": {"SLIP": {"text": key}}}
            answers[key] = done if happened else {"decision": "rerun"}
        else:
            answers[key] = {"decision": "approve"}
    return answers


def governed() -> dict[str, Any]:
    """Return all that can stand around an effect, as an operator's keywords."""
    from capgraph.behaviors import (
        CircuitBreakerBehavior,
        GuardrailBehavior,
        PatternGuardrail,
        RateLimitBehavior,
        RetryBehavior,
        TimeoutBehavior,
    )
    from capgraph.governance import (
        Budget,
        PermissionMode,
        PermissionPolicy,
        RolePermissionConfig,
    )

    role = RolePermissionConfig("runner", PermissionMode.WORKSPACE_WRITE)
    return {
        "behaviors": [
            RateLimitBehavior(calls_per_second=500, burst=500),
            CircuitBreakerBehavior(failure_threshold=100),
            RetryBehavior(max_retries=40, base_delay=0.01, backoff_factor=1),
            TimeoutBehavior(60),
            GuardrailBehavior(guardrails=[PatternGuardrail(["forbidden"])]),
        ],
        "permissions": PermissionPolicy([role]),
        "budget": Budget(steps=STEPS_ALLOWED, per="turn"),
        "audit": True,
    }


STEPS_ALLOWED = 500
"""More than the steps and all their tries; what is left says what was counted."""


def make_graph(saver: Any, **options: Any) -> Any:
    """Build the agent."""
    registry = Registry()
    for item in (Slip, Begin, Pay, Tell, Book, Think, Fetch):
        registry.register(item)
    settings = load_settings(limits={"max_attempts": 50})
    return build_graph(
        registry,
        checkpointer=saver,
        settings=settings,
        planner=Planner(),
        selector=Selector(),
        **options,
    )


async def go_on(graph: Any) -> dict[str, Any]:
    """Bring the thread to its end from wherever it stands."""
    while True:
        state = await graph.aget_state(CONFIG)
        if not state.values and not state.tasks:
            given: Any = {"messages": [("user", "Do all of it")]}
        elif state.interrupts:
            given = Command(resume={i.id: person(i.value) for i in state.interrupts})
        elif state.tasks:
            # Not state.next: it leaves out tasks whose results are saved and not yet applied.
            given = None
        else:
            return dict(state.values)
        async for event in graph.astream(given, CONFIG, stream_mode="custom"):
            if event.get("event_type") == "step_finished":
                append("reported", event["context_key"])
            elif event.get("event_type") == "retry":
                append("retried", f"{event.get('context_key')} {event.get('message')}")


async def accounts(saver: Any) -> dict[str, Any]:
    """Read what the audit and the budget say of the thread."""
    from capgraph.stores.persistence import Persistence
    from capgraph.telemetry.audit_log import AuditTable

    rows = Persistence.of(saver).tables
    assert rows is not None
    trail = AuditTable(rows)
    thread = CONFIG["configurable"]["thread_id"]
    records = [json.loads(line) for line in await trail.aread_lines()]
    effects = [r for r in records if r["kind"].startswith("effect") and thread in json.dumps(r)]
    return {"valid": bool(await trail.averify()), "effects": [r["data"] for r in effects]}


async def run(url: str) -> None:
    """Run the thread and leave the result in the folder."""
    found: dict[str, Any] = {}
    async with open_saver(url) as saver:
        watch(saver)
        values = await go_on(make_graph(saver, **(governed() if GOVERNED else {})))
        if GOVERNED:
            found = await accounts(saver)
    outcome = dict(values["execution_outcome"])
    left = outcome.pop("budget_left", {})
    result = {
        **found,
        "answer": values["messages"][-1].content,
        "messages": len(values["messages"]),
        "outcome": outcome,
        "budget_left": left,
        "contexts": values["capability_context_data"],
        "instants": INSTANTS.passed,
    }
    (FOLDER / "result.tmp").write_text(json.dumps(result))
    os.replace(FOLDER / "result.tmp", FOLDER / "result")


def child(order: dict[str, Any]) -> None:
    """Do what one line asked for; never returns."""
    global FOLDER, INSTANTS, PAUSE, GOVERNED, EACH
    FOLDER = Path(order["folder"])
    CONFIG["configurable"]["thread_id"] = order.get("thread", "scene")
    INSTANTS = Instants(order.get("fatal"))
    GOVERNED, EACH = bool(order.get("governed")), bool(order.get("each"))
    CONFIG["configurable"]["role"] = "runner"
    PAUSE = order.get("pause", PAUSE)
    log = os.open(FOLDER / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if order.get("file_limit"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], resource.RLIM_INFINITY))
    if order.get("clock"):
        real = time.time
        time.time = lambda: real() + order["clock"]
        real_ns = time.time_ns
        time.time_ns = lambda: real_ns() + int(order["clock"] * 1e9)
    try:
        if "solver" in order:
            from tests.faults import solvers

            asyncio.run(solvers.run(order["url"], order["solver"]))
        else:
            asyncio.run(run(order["url"]))
    except BaseException as exc:
        (FOLDER / "failure").write_text(f"{type(exc).__name__}: {exc}")
        print(f"{type(exc).__name__}: {exc}", flush=True)
        os._exit(3)
    os._exit(0)


def main() -> None:
    """Fork a child for each line."""
    from tests.faults import solvers  # noqa: F401 - children import nothing

    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(0)
            child(order)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    # Capabilities are looked up by module: the same one must serve zygote and test.
    from tests.faults import scene

    scene.main()
