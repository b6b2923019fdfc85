"""Orders over a real Temporal server: each reaches a worker, at least once, one for each thread."""

from __future__ import annotations

import ast
import asyncio
import base64
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from croniter import croniter
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, ScheduleBackfill, WorkflowHistory
from temporalio.worker import Replayer

from capgraph.base.errors import ConfigurationError, PersistenceError, ValidationError
from capgraph.scale import temporal, temporal_workflows
from capgraph.scale.engine import Engine
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.temporal import TemporalEngine
from tests.support.scripted_orders import LEASE_SECONDS, Scripted
from tests.support.sweeps import sample
from tests.support.temporal_server import Server

pytestmark = [pytest.mark.service, pytest.mark.may_block]
ROOT = Path(__file__).parents[3]
_HANDED_ON = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
HISTORIES = Path(__file__).parent / "histories"


@pytest.fixture
async def engine(temporal_server: Server) -> TemporalEngine:
    return await TemporalEngine.open(temporal_server.address, lease_seconds=LEASE_SECONDS)


@pytest.fixture
async def client(temporal_server: Server, engine: TemporalEngine) -> Client:
    return await Client.connect(temporal_server.address)


@pytest.fixture
def thread() -> str:
    return uuid.uuid4().hex


class Notes(list[str]):
    """What workers of this process did."""

    async def until(self, *lines: str) -> None:
        """Wait until each line was written as often as it is named."""
        async with asyncio.timeout(60):
            while any(self.count(line) < lines.count(line) for line in lines):
                await asyncio.sleep(0.02)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@asynccontextmanager
async def serving(
    engine: Engine, worker: Scripted, queues: tuple[str, ...] = ("turns",), concurrency: int = 4
) -> AsyncIterator[Scripted]:
    ready = asyncio.Event()
    work = asyncio.create_task(
        engine.serve(
            worker,
            queues,
            worker_id=worker.name,
            concurrency=concurrency,
            draining=worker.draining,
            ready=ready,
        )
    )
    try:
        await asyncio.wait_for(ready.wait(), 60)
        yield worker
    finally:
        worker.draining.set()
        await work


async def test_jobs_of_a_thread_run_sequentially(
    engine: TemporalEngine, notes: Notes, thread: str
) -> None:
    async with serving(engine, Scripted("w", notes.append)) as worker:
        await engine.submit(TurnJob(thread, "hold1"))
        await notes.until(f"w begins {thread} hold1")
        for run in ("r2", "r3", "r2"):
            await engine.submit(TurnJob(thread, run))
        worker.go.set()
        await notes.until(f"w ends {thread} r3")
        await engine.submit(TurnJob(thread, "after"))
        await notes.until(f"w ends {thread} after")
    runs = ["hold1", "r2", "r3", "after"]
    # An order that is done while another one comes may be done again, which finds nothing to do.
    done = list(dict.fromkeys(notes))
    assert done == [f"w {did} {thread} {run}" for run in runs for did in ("begins", "ends")]
    assert worker.most == 1


async def test_idle_thread_has_no_workflow(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    async with serving(engine, Scripted("w", notes.append)):
        await engine.submit(TurnJob(thread, "r"))
        handle = client.get_workflow_handle(f"capgraph/{thread}")
        await handle.result()
        history = await handle.fetch_history()
    assert notes[-1] == f"w ends {thread} r"
    # Whoever looked at it did it, which the server has no activity of.
    assert not [one for one in history.events if one.event_type == _HANDED_ON]


async def test_concurrency_applies_across_queues(
    engine: TemporalEngine, notes: Notes, thread: str
) -> None:
    queues = (f"a{thread}", f"b{thread}")
    for number in range(6):
        order = StepJob(f"{number}-{thread}", queues[number % 2], "ref", "token")
        await engine.enqueue_step(order)
    async with asyncio.timeout(60):
        while not dict.fromkeys(queues, 3).items() <= (await engine.count_waiting()).items():
            await asyncio.sleep(0.2)  # the server counts every few seconds
    async with serving(engine, Scripted("w", notes.append), queues, concurrency=1) as worker:
        ends = (f"w ends {queues[number % 2]} {number}-{thread}" for number in range(6))
        await notes.until(*ends)
    assert worker.most == 1


async def test_duplicate_step_job_runs_once(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    order = StepJob(f"hold-{thread}", f"gpu{thread}", "ref", "token")
    await engine.enqueue_step(order)
    async with serving(engine, Scripted("w", notes.append), (order.queue,)) as worker:
        await notes.until(f"w begins {order.queue} {order.id}")
        await engine.enqueue_step(order)
        worker.go.set()
        await notes.until(f"w ends {order.queue} {order.id}")
        await client.get_activity_handle(order.id).result()
    assert len(notes) == 2


async def test_failed_job_is_retried_without_exposing_its_error(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    async with serving(engine, Scripted("w", notes.append)):
        await engine.submit(TurnJob(thread, "fail1"))
        await engine.submit(TurnJob(thread, "r2"))
        await notes.until(f"w ends {thread} fail1", f"w ends {thread} r2")
        handle = client.get_workflow_handle(f"capgraph/{thread}")
        await handle.result()
        history = (await handle.fetch_history()).to_json()
    assert "secret" not in history
    assert base64.b64encode(b'"ValueError"').decode() in history


async def test_second_attempt_waits_for_the_lease(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    worker = Scripted("w", notes.append)
    worker.busy = 4
    async with serving(engine, worker):
        await engine.submit(TurnJob(thread, "busy"))
        handle = client.get_workflow_handle(f"capgraph/{thread}")
        await handle.result()
        events = (await handle.fetch_history()).events
    tries = [one.activity_task_started_event_attributes.attempt for one in events]
    # The first is given back, as somebody may have the thread for long; the second waits a while.
    assert max(tries) == 2
    assert notes.count(f"w begins {thread} busy") == 5


async def test_drained_worker_hands_over_its_job(
    engine: TemporalEngine, notes: Notes, thread: str
) -> None:
    second = Scripted("b", notes.append)
    second.go.set()
    async with serving(engine, Scripted("a", notes.append)):
        await engine.submit(TurnJob(thread, "hold"))
        await notes.until(f"a begins {thread} hold")
    async with serving(engine, second):
        await notes.until(f"b ends {thread} hold")
    assert notes[1] == f"a fails {thread} hold InterruptedError"


async def test_worker_can_drain_longer_than_a_lease(
    engine: TemporalEngine, notes: Notes, thread: str
) -> None:
    first, second = Scripted("a", notes.append), Scripted("b", notes.append)
    draining = asyncio.Event()
    ready = asyncio.Event()
    work = asyncio.create_task(
        engine.serve(first, ["turns"], worker_id="a", concurrency=1, draining=draining, ready=ready)
    )
    await ready.wait()
    await engine.submit(TurnJob(thread, "hold"))
    await notes.until(f"a begins {thread} hold")
    draining.set()
    async with serving(engine, second):
        await asyncio.sleep(2 * LEASE_SECONDS)
        first.go.set()
        await work
    assert notes == [f"a begins {thread} hold", f"a ends {thread} hold"]


async def test_cancelled_worker_hands_over_its_job(
    engine: TemporalEngine, notes: Notes, thread: str
) -> None:
    first, second = Scripted("a", notes.append), Scripted("b", notes.append)
    second.go.set()
    ready = asyncio.Event()
    work = asyncio.create_task(
        engine.serve(
            first, ["turns"], worker_id="a", concurrency=1, draining=first.draining, ready=ready
        )
    )
    await ready.wait()
    await engine.submit(TurnJob(thread, "hold"))
    await notes.until(f"a begins {thread} hold")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await notes.until(f"a fails {thread} hold CancelledError")
    async with serving(engine, second):
        await notes.until(f"b ends {thread} hold")


@pytest.mark.parametrize("how", sample(["deleted", "terminated", "cancelled"], 1))
async def test_terminating_a_workflow_does_not_stop_the_turn(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str, how: str
) -> None:
    name = f"capgraph/{thread}"
    handle = client.get_workflow_handle(name)
    async with serving(engine, Scripted("w", notes.append)) as worker:
        await engine.submit(TurnJob(thread, "hold"))
        await notes.until(f"w begins {thread} hold")
        if how == "deleted":
            await client.workflow_service.delete_workflow_execution(
                DeleteWorkflowExecutionRequest(
                    namespace="default", workflow_execution=WorkflowExecution(workflow_id=name)
                )
            )
        elif how == "terminated":
            await handle.terminate()
        else:
            await handle.cancel()
        await asyncio.sleep(1.5 * LEASE_SECONDS)  # the server has said that it is of no use
        worker.go.set()
        await notes.until(f"w ends {thread} hold")
        await engine.submit(TurnJob(thread, "next"))
        await notes.until(f"w ends {thread} next")
    assert not [line for line in notes if "fails" in line]


async def test_schedule_triggers_turns(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    await engine.schedule(thread, "30 7 * * *")
    moment = datetime(2026, 3, 4, 7, 30, tzinfo=UTC)
    minute = timedelta(minutes=1)
    async with serving(engine, Scripted("w", notes.append)) as worker:
        await client.get_schedule_handle(f"capgraph/{thread}").backfill(
            ScheduleBackfill(moment - minute, moment + minute)
        )
        await notes.until(f"w moment {thread}")
    assert worker.moments == [(thread, moment.timestamp())]
    for _ in range(2):
        await engine.unschedule(thread)
    assert thread not in [one.id async for one in await client.list_schedules()]
    with pytest.raises(ValidationError, match="rejected the request: Invalid schedule"):
        await engine.schedule("x", "never")
    with pytest.raises(ValidationError, match=r"rejected the request: .* length"):
        await engine.submit(TurnJob("long" * 1000, "r"))


async def test_cron_semantics_are_preserved(
    engine: TemporalEngine, client: Client, thread: str
) -> None:
    # Either of the two days, not one that is both.
    await engine.schedule(thread, "0 7 13 * fri")
    found = (await client.get_schedule_handle(f"capgraph/{thread}").describe()).info
    times = croniter("0 7 13 * fri", datetime.now(UTC))
    assert found.next_action_times == [times.get_next(datetime) for _ in found.next_action_times]
    await engine.unschedule(thread)
    with pytest.raises(ValidationError, match="as a comment"):
        await engine.schedule(thread, "0 7 * * mon#1")


async def test_resubmission_signals_only_lost_jobs(
    engine: TemporalEngine, client: Client, notes: Notes, thread: str
) -> None:
    order = TurnJob(thread, "hold")
    handle = client.get_workflow_handle(f"capgraph/{thread}")
    async with serving(engine, Scripted("w", notes.append)) as worker:
        await engine.submit(order, is_resubmission=True)
        await notes.until(f"w begins {thread} hold")
        for _ in range(3):
            await engine.submit(order, is_resubmission=True)
        worker.go.set()
        await handle.result()
        history = await handle.fetch_history()
        assert not [one for one in history.events if one.event_type == _SIGNALED]
        await engine.submit(order, is_resubmission=True)
        await notes.until(*[f"w ends {thread} hold"] * 2)


async def test_databases_on_one_server_have_separate_jobs(
    temporal_server: Server, notes: Notes, thread: str
) -> None:
    one, other = [
        await TemporalEngine.open(
            temporal_server.address, lease_seconds=LEASE_SECONDS, database=name + thread
        )
        for name in "ab"
    ]
    turn, step = TurnJob(thread, "hold"), StepJob(f"hold-{thread}", "gpu", "ref", "token")
    queues = ("turns", "gpu")
    async with serving(one, Scripted("a", notes.append), queues) as first:
        for engine in (one, other):
            await engine.submit(turn)
            await engine.enqueue_step(step)
        await notes.until(f"a begins {thread} hold", f"a begins gpu {step.id}")
        async with serving(other, Scripted("b", notes.append), queues) as second:
            await notes.until(f"b begins gpu {step.id}")
            # The thread's own workflow is at work for the other one; this one's order goes by itself.
            await notes.until(f"b begins {thread} hold")
            second.go.set()
            await notes.until(f"b ends {thread} hold", f"b ends gpu {step.id}")
        first.go.set()
        await notes.until(f"a ends {thread} hold", f"a ends gpu {step.id}")
    assert len(notes) == 8


async def test_jobs_without_a_worker_wait(engine: TemporalEngine, thread: str) -> None:
    await engine.submit(TurnJob(thread, "r"))
    async with asyncio.timeout(60):
        while not (await engine.count_waiting()).get(
            "turns"
        ):  # the server counts every few seconds
            await asyncio.sleep(0.2)


async def test_unavailable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal, "_CONNECT_TIMEOUT", timedelta(seconds=0.5))
    with pytest.raises(PersistenceError, match=r"'127\.0\.0\.1:9' is unavailable"):
        await TemporalEngine.open("127.0.0.1:9", lease_seconds=LEASE_SECONDS)
    for address in ("host:x", "host"):
        with pytest.raises(ConfigurationError, match=f"'{address}'"):
            await TemporalEngine.open(address, lease_seconds=LEASE_SECONDS)


# --- processes ----------------------------------------------------------------------------


class Crew:
    """Worker processes that write into one file."""

    def __init__(self, address: str, file: Path) -> None:
        self._address = address
        self._file = file
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            command = (sys.executable, "-m", "tests.support.scripted_orders", self._address, name)
            self._processes[name] = subprocess.Popen((*command, str(self._file)), cwd=ROOT)
        await self.until(*(f"{name} ready" for name in names))

    def send(self, name: str, what: signal.Signals) -> None:
        self._processes[name].send_signal(what)

    @property
    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    async def until(self, *lines: str) -> None:
        async with asyncio.timeout(90):
            while not set(lines) <= set(self.lines):
                await asyncio.sleep(0.05)

    async def who(self, line: str) -> str:
        """Return which worker was first to write a line."""
        async with asyncio.timeout(90):
            while True:
                for one in self.lines:
                    name, _, rest = one.partition(" ")
                    if rest == line:
                        return name
                await asyncio.sleep(0.05)

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def crew(temporal_server: Server, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(temporal_server.address, tmp_path / "notes")
    yield crew
    crew.end()


@dataclass
class Scene:
    server: Server
    engine: TemporalEngine
    client: Client
    crew: Crew
    thread: str


def other(name: str) -> str:
    return "b" if name == "a" else "a"


async def killed(scene: Scene) -> None:
    """A killed worker's orders are taken over."""
    engine, crew, thread = scene.engine, scene.crew, scene.thread
    await crew.start("a", "b")
    await engine.submit(TurnJob(thread, "hold"))
    first = await crew.who(f"begins {thread} hold")
    crew.send(first, signal.SIGKILL)
    second = other(first)
    await crew.until(f"{second} begins {thread} hold")
    crew.send(second, signal.SIGUSR1)
    await crew.until(f"{second} ends {thread} hold")


async def frozen(scene: Scene) -> None:
    """A frozen worker that wakes up disturbs nobody."""
    engine, crew, thread = scene.engine, scene.crew, scene.thread
    await crew.start("a", "b")
    await engine.submit(TurnJob(thread, "hold"))
    first = await crew.who(f"begins {thread} hold")
    crew.send(first, signal.SIGSTOP)
    second = other(first)
    await crew.until(f"{second} begins {thread} hold")
    crew.send(first, signal.SIGCONT)
    await asyncio.sleep(LEASE_SECONDS)  # it hears that the order is not its own any more
    crew.send(second, signal.SIGUSR1)
    await crew.until(f"{second} ends {thread} hold")
    await scene.client.get_workflow_handle(f"capgraph/{thread}").result()
    crew.send(first, signal.SIGUSR1)  # its lease, not the engine, says what it may still do
    await crew.until(f"{first} ends {thread} hold")
    await engine.submit(TurnJob(thread, "next"))
    await crew.who(f"ends {thread} next")
    assert not [line for line in crew.lines if "fails" in line]


async def blocked(scene: Scene) -> None:
    """A worker whose loop is blocked keeps its order."""
    engine, crew, thread = scene.engine, scene.crew, scene.thread
    await crew.start("a", "b")
    await engine.submit(TurnJob(thread, "block"))
    await scene.client.get_workflow_handle(f"capgraph/{thread}").result()
    assert len([line for line in crew.lines if line.endswith("block")]) == 2


async def server_away(scene: Scene) -> None:
    """A server that is away for a while loses nothing."""
    engine, crew, thread = scene.engine, scene.crew, scene.thread
    await crew.start("a")
    await engine.submit(TurnJob(thread, "hold"))
    await crew.until(f"a begins {thread} hold")
    scene.server.stop()
    later = asyncio.create_task(engine.submit(TurnJob(f"{thread}2", "r")))
    try:
        await asyncio.sleep(2 * LEASE_SECONDS)
    finally:
        scene.server.start()
    await later
    await crew.until(f"a ends {thread}2 r")
    crew.send("a", signal.SIGUSR1)
    await engine.submit(TurnJob(thread, "next"))
    await crew.until(f"a ends {thread} hold", f"a ends {thread} next")
    assert not [line for line in crew.lines if "fails" in line]


async def told_to_end(scene: Scene) -> None:
    """A worker that is told to end goes when its orders are handed on."""
    engine, crew, thread = scene.engine, scene.crew, scene.thread
    await crew.start("a", "b")
    await engine.submit(TurnJob(thread, "hold"))
    first = await crew.who(f"begins {thread} hold")
    crew.send(first, signal.SIGTERM)
    second = other(first)
    crew.send(second, signal.SIGUSR1)
    await crew.until(f"{first} gone", f"{second} ends {thread} hold")


@pytest.mark.parametrize(
    "play",
    sample([killed, frozen, blocked, server_away, told_to_end], 1),
    ids=lambda play: play.__name__,
)
async def test_process_failures_lose_no_job(
    play: Callable[[Scene], Awaitable[None]],
    temporal_server: Server,
    engine: TemporalEngine,
    client: Client,
    crew: Crew,
    thread: str,
) -> None:
    await play(Scene(temporal_server, engine, client, crew, thread))


# --- what Temporal replays ----------------------------------------------------------------


def test_workflow_module_imports_nothing_of_the_project() -> None:
    tree = ast.parse(Path(temporal_workflows.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - {"temporalio"} <= sys.stdlib_module_names


@pytest.mark.parametrize("file", sorted(HISTORIES.glob("*.json")), ids=lambda file: file.stem)
async def test_recorded_histories_replay(file: Path) -> None:
    history = WorkflowHistory.from_json("capgraph/recorded", file.read_text())
    workflows = [temporal_workflows.ThreadWorkflow, temporal_workflows.ScheduleWorkflow]
    await Replayer(workflows=workflows).replay_workflow(history)
