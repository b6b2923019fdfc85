"""The world of a simulation: a database, workers, people, and what may never happen.

What is simulated is everything around the code that is tried: time, processes, the database and its
connections, the threads of hearts. The graph, ``advance``, the leases, the run log, the journal and
the ledger are the real ones.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.base.errors import PersistenceError
from capgraph.configs.settings import load_settings
from capgraph.langgraph_compat import INTERRUPT
from capgraph.pipeline import Capacity
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import advance
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.database import StatementResult
from capgraph.stores.leases import Leases
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import LoggedRun, RunLog
from capgraph.stores.schema import migration_steps
from capgraph.stores.sqlite import SqliteTables
from capgraph.stores.threads import open_questions
from tests.simulation.loop import HEART, PROCESS, Process, VirtualLoop

TTL = 10.0
PATIENCE = 30.0
LAST = 3000.0
"""A turn that has not ended by then is lost."""


class Broken(AssertionError):
    """Something happened that may never happen."""


# --- what the turns do ----------------------------------------------------------------------

WORLD: contextvars.ContextVar[World] = contextvars.ContextVar("world")


class Slip(CapabilityContext):
    text: str


class Where(BaseModel):
    thread: str = ""
    turn: int = 0
    pause: float = 0.0


class _Step(BaseCapability):
    provides = ["SLIP"]
    requires: ClassVar[list[Any]] = [("SLIP", "many")]
    Parameters = Where

    async def execute(self) -> Slip:
        world, at = WORLD.get(), self.parameters
        key = (at.thread, at.turn, self.step["context_key"])
        world.begins(key, self.name)
        await asyncio.sleep(at.pause)
        world.acts(key)
        await asyncio.sleep(at.pause)
        return Slip(text="/".join(map(str, key)))


@capability_node
class Look(_Step):
    """Changes nothing."""

    name = "look"
    description = "Look"
    requires: ClassVar[list[Any]] = []


@capability_node
class Pay(_Step):
    """Acts once."""

    name = "pay"
    description = "Pay"
    effect = "once"


@capability_node
class Book(_Step):
    """Acts on what knows its keys."""

    name = "book"
    description = "Book"
    effect = "idempotent"


STEPS = {"a": ("look",), "b": ("pay", "a"), "c": ("book", "a"), "d": ("pay", "b", "c")}
"""Each step's capability, and the steps that it builds on."""


def plan_of(thread: str, turn: int, rng: random.Random) -> dict[str, Any]:
    """Return the plan of a turn."""
    steps = []
    for key, (capability, *needs) in STEPS.items():
        pause = rng.choice((0.0, 0.05, 0.5, 2.0, TTL / 2))
        steps.append(
            {
                "context_key": f"{key}{turn}",
                "capability": capability,
                "inputs": [{"SLIP": f"{need}{turn}"} for need in needs],
                "parameters": {"thread": thread, "turn": turn, "pause": pause},
            }
        )
    return {"steps": steps}


@functools.cache
def base_graph(number: int) -> Any:
    """Build the graph of one process of each world: what it keeps in memory is its own."""
    registry = Registry()
    for item in (Slip, Look, Pay, Book):
        registry.register(item)
    settings = load_settings(scale={"lease_seconds": TTL})
    capacity = Capacity()
    return build_graph(registry, checkpointer=InMemorySaver(), settings=settings, capacity=capacity)


def graph_on(saver: Any, number: int) -> Any:
    """Return the graph of a process on its saver."""
    base = base_graph(number)
    return base.copy({"checkpointer": saver})


# --- the database ---------------------------------------------------------------------------


class Database:
    """What all processes share. Connections to it are lost, before and after it did something."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows = sqlite3.connect(":memory:", isolation_level=None)
        self.saved = InMemorySaver()
        self.has_tables = False
        self.away_until = 0.0
        self.ahead = 0.0
        self.loses = 0.0

    def now(self) -> float:
        """Tell its clock."""
        return 1e9 + self.world.loop.moment + self.ahead

    def reaches(self, process: Worker) -> bool:
        """Tell whether a process has a connection."""
        return self.world.loop.moment >= max(self.away_until, process.cut_until)

    async def use(self, what: str, call: Callable[[], Any]) -> Any:
        """Do one operation, again and again while the connection is lost, as the savers do."""
        process = PROCESS.get()
        if process is None:
            return await call()
        assert isinstance(process, Worker)
        rng, loop = self.world.rng, self.world.loop
        end, delay = loop.moment + PATIENCE, 0.05
        while True:
            if process.over:
                raise PersistenceError("The world is over.", fix="None.")
            await asyncio.sleep(rng.uniform(0.0005, 0.02))
            self.world.happen(process, what)
            # What happened to the process takes hold here.
            await asyncio.sleep(0)
            if self.reaches(process):
                found = await call()
                self.world.check()
                self.world.happen(process, f"{what} done")
                await asyncio.sleep(0)
                if rng.random() >= self.loses and self.reaches(process):
                    return found
            if loop.moment + delay > end:
                raise PersistenceError("The database was away.", fix="Bring it back.")
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)


class SimRows(SqliteTables):
    """Rows of the simulated database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        for step in migration_steps(0) if not database.has_tables else ():
            self._execute_now(*step)
        database.has_tables = self._is_prepared = True

    async def relaxed_durability(self) -> SimRows:
        """Return these rows."""
        return self

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one statement over a connection that may be lost."""
        what = " ".join(statement.split()[:4])

        async def execute() -> StatementResult:
            return self._execute_now(statement, values)

        found: StatementResult = await self._database.use(what, execute)
        return found

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one statement for a heart."""
        process = PROCESS.get()
        assert isinstance(process, Worker)
        if process.over or not self._database.reaches(process):
            raise PersistenceError("The database is away.", fix="Bring it back.")
        found = self._execute_now(statement, values)
        self._database.world.note(process, "beats")
        return found

    def _execute_now(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        text = statement.format(now=repr(self._database.now()), **self.placeholders)
        conn = self._database.rows
        before = conn.total_changes
        try:
            found = conn.execute(text, values).fetchall()
        except sqlite3.Error as exc:
            raise PersistenceError(f"The database refused: {exc}.", fix="Look at it.") from exc
        return conn.total_changes - before, found


class SimLeases(Leases):
    """The leases of one process; its heart is a task that goes on while the others are blocked."""

    def __init__(self, tables: SimRows, saver: SimSaver, process: Worker) -> None:
        super().__init__(tables, saver)
        self._process = process
        self._task: asyncio.Task[None] | None = None

    def valid(self) -> Iterator[str]:
        """Name the threads that this process may act on."""
        for thread, lease in self._leases.items():
            if lease.is_acquired and not lease.is_lost and self._is_fresh(lease):
                yield thread

    async def identity(self) -> tuple[str, str]:
        return self._process.machine, self._process.name

    async def _is_alive(self, process: str) -> bool:
        return self._process.world.workers[process].alive

    def _now(self) -> float:
        return self._process.world.loop.moment

    def _start_heartbeats(self) -> None:
        if self._task is None or self._task.done():
            place = contextvars.copy_context()
            place.run(HEART.set, True)
            loop = self._process.world.loop
            self._task = loop.create_task(self._live_on(), context=place)

    async def _live_on(self) -> None:
        while self._leases:
            await asyncio.sleep(self.heartbeat_seconds * self._process.world.rng.uniform(1, 1.1))
            self._send_heartbeats()


class SimSaver(BaseSaver, InMemorySaver):
    """The saver of one process."""

    def __init__(self, database: Database, process: Worker | None, leases: type[SimLeases]) -> None:
        super().__init__()
        self._database = database
        shared = database.saved
        self.storage, self.writes, self.blobs = shared.storage, shared.writes, shared.blobs
        rows = SimRows(database)
        self.persistence = Persistence(self, rows)
        if process is not None:
            self.persistence.leases = leases(rows, self, process)

    async def run_operation(self, verb: str, operation: Callable[[], Any]) -> Any:
        """Do an operation over a connection that may be lost."""
        return await self._database.use(verb, operation)

    async def is_interrupted(self, thread_id: str) -> bool:
        """Tell whether a thread's latest checkpoint was interrupted."""

        async def look() -> bool:
            found = InMemorySaver.get_tuple(self, thread_config(thread_id))
            writes = (found.pending_writes if found is not None else None) or ()
            return any(channel == INTERRUPT for _, channel, _ in writes)

        asked: bool = await self.run_operation("read", look)
        return asked

    async def aget_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        """Read what was written to channels since they were last saved as a whole."""
        read = InMemorySaver.aget_delta_channel_history
        return await self.run_operation(
            "read", lambda: read(self, config=config, channels=channels)
        )

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote; the results of steps are finished with that."""
        super().put_writes(config, writes, task_id, task_path)
        for _, value in writes:
            update = value.get("update") if isinstance(value, Mapping) else None
            if isinstance(update, Mapping):
                thread = config["configurable"]["thread_id"]
                results = update.get("execution_step_results") or {}
                keys = {(thread, key) for key in results if results[key].get("success")}
                # What is still on its way when its sender loses the thread is not missed.
                if self._database.world.holds(PROCESS.get(), thread):
                    self._database.world.finished |= keys


# --- processes ------------------------------------------------------------------------------


class Worker(Process):
    """A process that looks for open runs and goes on with them."""

    def __init__(self, world: World, name: str, machine: str) -> None:
        super().__init__(name, machine)
        self.world = world
        self.cut_until = 0.0
        saver = SimSaver(world.database, self, world.leases)
        self.leases: SimLeases = saver.persistence.leases
        self.graph = graph_on(saver, len(world.workers))
        self.log = Persistence.of(saver).open_run_log()
        self.tasks: set[asyncio.Task[Any]] = set()
        place = contextvars.copy_context()
        place.run(PROCESS.set, self)
        self.start(self._work(), place)

    def start(self, work: Any, place: contextvars.Context | None = None) -> None:
        """Begin a task of this process."""
        task = self.world.loop.create_task(work, context=place)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _work(self) -> None:
        rng, busy = self.world.rng, Counter[str]()

        async def order(thread: str) -> None:
            try:
                await advance(self.graph, TurnJob(thread, ""), log=self.log)
            except PersistenceError as exc:
                self.world.note(self, f"left {thread}: {exc}")
            finally:
                busy[thread] -= 1

        while not self.over:
            with suppress(PersistenceError):
                runs = await self.log.unfinished_runs()
                threads = list(dict.fromkeys(run.thread_id for run in runs))
                rng.shuffle(threads)
                for thread in threads:
                    # An engine hands an order over at least once, now and then more often.
                    if busy[thread] < (2 if rng.random() < 0.05 else 1):
                        busy[thread] += 1
                        self.start(order(thread))
            await asyncio.sleep(rng.choice((0.2, 2.0, 5.0)))


# --- the world ------------------------------------------------------------------------------


class World:
    """Everything that a seed chooses, and everything that came of it.

    Args:
        seed: Chooses.
        calm: Whether nothing goes wrong.
        leases: What takes the place of the leases, to see whether a mistake in them is found.
    """

    def __init__(
        self, seed: int, *, calm: bool = False, leases: type[SimLeases] = SimLeases
    ) -> None:
        self.seed, self.leases = seed, leases
        self.choices = random.Random(f"choices {seed}")
        self.rng = random.Random(f"delays {seed}")
        self.loop = VirtualLoop()
        self.trace: list[str] = []
        self.count = 0
        self.database = Database(self)
        self.workers: dict[str, Worker] = {}
        self.begun: Counter[tuple[str, int, str]] = Counter()
        self.acted: Counter[tuple[str, int, str]] = Counter()
        self.agreed: Counter[tuple[str, int, str]] = Counter()
        self.finished: set[tuple[str, str]] = set()
        self.broken: list[str] = []
        names = [f"t{n}" for n in range(self.choices.choice((1, 1, 2)))]
        turns = {name: self.choices.choice((1, 1, 2)) for name in names}
        self.runs = [
            LoggedRun(
                f"{name}-{turn}",
                name,
                "",
                created_at=float(turn),
                request={
                    "message": "Do it",
                    "plan": plan_of(name, turn, self.choices),
                    "caller": {},
                },
            )
            for name in names
            for turn in range(turns[name])
        ]
        self.threads = names
        self.machines = self.choices.choice((["m0", "m0"], ["m0", "m1"], ["m0", "m0", "m1"]))
        self.faults = {} if calm else self._faults()
        if not calm:
            self.database.loses = self.choices.choice((0.0, 0.0, 0.02, 0.1))

    def _faults(self) -> dict[int, tuple[str, float]]:
        choices, faults = self.choices, {}
        last = 130 * len(self.runs)
        for _ in range(choices.choice((1, 1, 2, 3, 5))):
            kind = choices.choice(
                ("kill", "kill", "freeze", "freeze", "block", "away", "cut", "jump")
            )
            seconds = TTL * choices.choice((0.2, 0.9, 1.1, 1.6, 2.5, 4.0))
            faults[choices.randrange(last)] = kind, seconds
        return faults

    # --- what happens ---------------------------------------------------------------------

    def note(self, process: Process | None, what: str) -> None:
        """Write down what happened."""
        name = "" if process is None else process.name
        self.trace.append(f"{self.loop.moment:9.3f} {name:6} {what}")

    def happen(self, process: Worker, what: str) -> None:
        """Pass an instant of a process; it may be one at which something goes wrong."""
        self.count += 1
        self.note(process, what)
        kind, seconds = self.faults.pop(self.count, ("", 0.0))
        if not kind:
            return
        self.note(process, f"--- {kind} {seconds:g}")
        later = functools.partial(self.loop.call_later, seconds, context=contextvars.Context())
        if kind == "kill":
            process.alive, process.stopped = False, True
            later(self._begin, process.machine)
        elif kind in {"freeze", "block"}:
            setattr(process, "stopped" if kind == "freeze" else "blocked", True)
            later(self._wake, process)
        elif kind == "away":
            self.database.away_until = self.loop.moment + seconds
        elif kind == "cut":
            process.cut_until = self.loop.moment + seconds
        else:
            self.database.ahead += self.rng.choice((-1, 1)) * seconds * 10

    def _begin(self, machine: str) -> None:
        name = f"w{len(self.workers)}"
        place = contextvars.Context()
        place.run(WORLD.set, self)
        self.workers[name] = place.run(Worker, self, name, machine)

    def _wake(self, process: Worker) -> None:
        if process.alive:
            process.stopped = process.blocked = False
            self.note(process, "--- goes on")
            self.loop.release(process)

    # --- what may never happen --------------------------------------------------------------

    def begins(self, key: tuple[str, int, str], capability: str) -> None:
        """See a step begin."""
        process = PROCESS.get()
        if process is not None and process.over:
            return
        thread, _, name = key
        self.note(process, f"*** begins {key}")
        self.begun[key] += 1
        if not self.holds(process, thread):
            self._break(f"{key} begins where the lease is not")
        if (thread, name) in self.finished:
            self._break(f"{key} had finished and begins again")
        if capability == "pay" and self.begun[key] > 1 + self.agreed[key]:
            self._break(f"{key} begins {self.begun[key]} times, agreed {self.agreed[key]}")

    def holds(self, process: Process | None, thread: str) -> bool:
        """Tell whether a process has a thread."""
        found = self.database.rows.execute(
            "SELECT process FROM capgraph_leases WHERE thread_id = ?", (thread,)
        ).fetchall()
        return process is not None and found == [(process.name,)]

    def acts(self, key: tuple[str, int, str]) -> None:
        """See the effect of a step."""
        process = PROCESS.get()
        if process is None or not process.over:
            self.note(process, f"*** acts {key}")
            self.acted[key] += 1

    def check(self) -> None:
        """Look whether two may act on one thread."""
        threads = Counter(
            thread for one in self.workers.values() if one.alive for thread in one.leases.valid()
        )
        for thread, count in threads.items():
            if count > 1:
                self._break(f"{count} processes run {thread}")

    def _break(self, what: str) -> None:
        self.note(None, f"!!! {what}")
        self.broken.append(what)

    # --- from beginning to end --------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Live until all runs have ended; returns what the threads say then.

        Raises:
            Broken: Something happened that may never happen.
        """
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(lambda *_: None)
        clock = SimpleNamespace(monotonic=self.loop.time, time=lambda: 1e9 + self.loop.moment)
        with ExitStack() as patches:
            for module in ("stops", "run_log", "waits"):
                patches.enter_context(mock.patch(f"capgraph.stores.{module}.time", clock))
            try:
                return self.loop.run_until_complete(self._live())
            finally:
                self._clear()
                asyncio.set_event_loop(None)

    async def _live(self) -> dict[str, Any]:
        saver = SimSaver(self.database, None, self.leases)
        desk, log = graph_on(saver, -1), Persistence.of(saver).open_run_log()
        for run in self.runs:
            await log.create(run, is_local=False)
        for machine in self.machines:
            self._begin(machine)
        while True:
            await asyncio.sleep(1.0)
            if self.broken:
                raise Broken(self.broken[0])
            open_ = await log.unfinished_runs()
            asked = await self._people(saver, log, open_)
            if not asked and not open_:
                break
            if self.loop.moment > LAST:
                raise Broken(f"turns were lost: {[run.run_id for run in open_]}, {asked}")
        return await self._told(desk, log)

    async def _people(self, saver: Any, log: RunLog, open_: list[LoggedRun]) -> list[str]:
        """Answer what is asked where nothing goes on."""
        asked = []
        for thread in self.threads:
            found = await saver.aget_tuple(
                {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            )
            questions = open_questions(found) if found is not None else {}
            mine = [run for run in open_ if run.thread_id == thread]
            going = any(run.status != "queued" or "answers" in run.request for run in mine)
            if not questions or going:
                continue
            answers = {key: self._answer(thread, value) for key, value in questions.items()}
            name = f"{thread}-answer-{self.count}-{len(self.trace)}"
            self.note(None, f"somebody answers {thread}: {[*answers.values()]}")
            request = {"answers": answers, "caller": {}}
            await log.create(
                LoggedRun(name, thread, "", created_at=100 + self.loop.moment, request=request),
                is_local=False,
            )
            asked.append(name)
        return asked

    def _answer(self, thread: str, question: Any) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for entry in question["steps"]:
            name = entry["context_key"]
            key = (thread, int(name[1:]), name)
            if self.acted[key]:
                text = "/".join(map(str, key))
                answers[name] = {"decision": "done", "outputs": {"SLIP": {"text": text}}}
            else:
                self.agreed[key] += 1
                answers[name] = {"decision": "rerun"}
        return answers

    async def _told(self, desk: Any, log: RunLog) -> dict[str, Any]:
        """Return what everybody can see when all is over; questions and their answers left out."""
        told: dict[str, Any] = {}
        for thread in self.threads:
            values = (await desk.aget_state({"configurable": {"thread_id": thread}})).values
            runs = await log.thread_runs(thread, 100)
            for run in runs:
                await self._heard(log, run)
            told[thread] = {
                "messages": [message.content for message in values["messages"]],
                "contexts": values["capability_context_data"],
                "ends": sorted(run.status for run in runs if run.status != "waiting"),
            }
        return told

    async def _heard(self, log: RunLog, run: LoggedRun) -> None:
        """Listen to a run: it ends once, and its end is the last that it tells."""
        heard = [
            json.loads(text)["type"] async for page in log.follow(run.run_id) for _, text in page
        ]
        ends = [place for place, kind in enumerate(heard) if kind in {"RUN_FINISHED", "RUN_ERROR"}]
        if ends != [len(heard) - 1]:
            raise Broken(f"{run.run_id} does not end with its end: {heard}")

    def _clear(self) -> None:
        """Let every task come to an end of which nobody hears."""
        for worker in self.workers.values():
            worker.over = True
            self.loop.release(worker)
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        with suppress(RuntimeError):
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.database.rows.close()


def live(seed: int, *, leases: type[SimLeases] = SimLeases) -> World:
    """Live through a seed, and compare with what comes of it when nothing goes wrong.

    Raises:
        Broken: Something happened that may never happen; the seed is named.
    """
    world = World(seed, leases=leases)
    shape = tuple(run.run_id for run in world.runs)
    if shape not in _UNDISTURBED:
        _UNDISTURBED[shape] = World(seed, calm=True).run()
    try:
        if (found := world.run()) != _UNDISTURBED[shape]:
            raise Broken(f"{found}\nis not what it would have been, {_UNDISTURBED[shape]}")
    except AssertionError as exc:
        story = "\n".join(world.trace)
        raise Broken(
            f"seed {seed}: {exc}\n{story}\nAgain: SEED={seed} SEEDS=1 pytest tests/simulation"
        ) from exc
    return world


_UNDISTURBED: dict[tuple[str, ...], dict[str, Any]] = {}
