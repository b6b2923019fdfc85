"""Threads that workers run, as a program of one's own sees them: ask, answer, stop, follow."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from capgraph.base.errors import (
    ConfigurationError,
    PersistenceError,
    ThreadBusyError,
    ValidationError,
    require_extra,
)
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.engine.graph_input import validate_input
from capgraph.engine.thread_lease import share_lease
from capgraph.graph.signals import signal as send_signal
from capgraph.langgraph_compat import count_resume_values
from capgraph.pipeline.run_config import configurable_for
from capgraph.scale.engine import Engine
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import RunExecutor, graph_input, mark_stopped
from capgraph.stores.database import open_saver, parse_url
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import STOPPING, TERMINAL_EVENTS, LoggedRun, RunLog
from capgraph.stores.serialization import deserialize_text, serialize_to_text
from capgraph.stores.threads import open_questions, thread_summary
from capgraph.stores.waits import SuspendedThread, open_waits

_ENGINES = {
    "postgres": ("procrastinate", "workers", "PostgresEngine"),
    "temporal": ("temporalio", "temporal", "TemporalEngine"),
}
"""Name of an engine to the library, the extra and the class."""
_POLL_SECONDS = 0.2
"""How often whoever stops a thread looks whether it is."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """How far a thread is.

    Attributes:
        status: ``queued``, ``running``, or what :func:`capgraph.stores.thread_summary` calls it.
        questions: What a person is asked, by the id that an answer names.
    """

    status: str
    questions: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Asks for turns of threads that workers run.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        log: What the threads are asked for.
        engine: Hands orders to workers.
    """

    def __init__(self, graph: Any, log: RunLog, engine: Engine) -> None:
        self.graph: Any = graph
        self.log: RunLog = log
        self.engine: Engine = engine
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence

    async def submit(
        self,
        thread: str,
        message: str | None = None,
        *,
        plan: Mapping[str, Any] | None = None,
        caller: Caller | str | None = None,
        context: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Ask for a turn; it is kept when this returns, and begins when the turn before has ended.

        Args:
            thread: The thread; a new one is made.
            message: What is asked.
            plan: A plan to run in place of one that is made: a mapping with ``steps``.
            caller: Who asks; text is the person's name.
            context: Context data, by type and key.
            run_id: Names the turn; one of this name that was asked for before is the same one.

        Returns:
            The turn's id.

        Raises:
            ValidationError: There is nothing to do, it is not what a caller may send, or another
                thread has a turn of this name.
        """
        if (message is None) == (plan is None):
            raise ValidationError(
                "Exactly one of message and plan has to be given.", fix="Give one of them."
            )
        for what, given_as in (
            ("thread", thread),
            ("message", message or ""),
            ("name of a turn", run_id or ""),
        ):
            if not isinstance(given_as, str):
                raise ValidationError(f"{given_as!r:.80} is no {what}.", fix="Give text.")
        if message is not None and not message.strip():
            raise ValidationError("The message is empty.", fix="Write something.")
        if plan is not None and not (
            isinstance(plan, Mapping) and isinstance(plan.get("steps"), list | tuple)
        ):
            raise ValidationError(
                f"The plan {plan!r:.80} has no 'steps'.", fix="Give it a list of steps."
            )
        given = {"message": message, "plan": plan and dict(plan), "context": context}
        request = {name: value for name, value in given.items() if value is not None}
        # What the graph would refuse is refused before anything is kept of it.
        validate_input(
            graph_input(request), thread_config(thread), self.graph.services, has_saver=True
        )
        run_id = run_id or str(uuid.uuid4())
        await self._enqueue(thread, run_id, request, _as_caller(caller))
        return run_id

    async def _enqueue(
        self, thread: str, run_id: str, request: Mapping[str, Any], caller: Caller
    ) -> bool:
        owner = thread.partition("/")[0] + "/" if thread.startswith("@") else ""
        run = LoggedRun(run_id, thread, owner, request={**request, "caller": asdict(caller)})
        new = await self.log.create(run, is_local=False)
        known = None if new else await self.log.get(run_id)
        if known is not None and known.thread_id != thread:
            raise ValidationError(
                f"{run_id!r:.80} is a turn of the thread {known.thread_id!r:.80}.",
                fix="Give each turn a name of its own.",
            )
        # Also for one that is known: whoever opened it may have ended before it was handed over.
        try:
            await self.engine.submit(TurnJob(thread, run_id))
        except ValidationError:
            await self.log.finish(run_id, "failed")  # nobody could ever run it
            raise
        except PersistenceError as exc:
            # It is kept all the same: a worker hands it over when the engine is there again.
            get_logger("scale", "client").warning("%s waits for its engine: %s", run_id, exc)
        return new

    async def answer(
        self, thread: str, question_id: str, answer: Any, caller: Caller | str | None = None
    ) -> bool:
        """Answer what a person is asked; a worker goes on with it, now or when one lives again.

        Args:
            thread: The thread.
            question_id: Id of the interrupt, as :meth:`status` names it.
            answer: What ``Command(resume={id: value})`` takes.
            caller: Who answers.

        Returns:
            Whether it was taken: one to a question that is not open, or that somebody has answered
            already, changes nothing.
        """
        found = await self._saver.aget_tuple(thread_config(thread))
        if found is None or question_id not in open_questions(found):
            return False
        # The same question is asked again when an answer did not fit; what is saved tells which.
        tried = count_resume_values(found.pending_writes)
        asked = [found.checkpoint["id"], question_id, tried]
        request = {"answers": {question_id: answer}}
        return await self._enqueue(thread, _stable_id(thread, asked), request, _as_caller(caller))

    async def signal(
        self, thread: str, key: str, value: Any = None, caller: Caller | str | None = None
    ) -> bool:
        """Tell a thread that an event came; returns whether a step waited for it.

        What comes before a step waits for it is kept for it, also before its turn has begun.

        Raises:
            ValidationError: Key or value cannot be used.
        """
        sender: Any = {"configurable": configurable_for(_as_caller(caller))}
        early = bool(await self.log.open_runs(thread))
        if not early and await self._saver.aget_tuple(thread_config(thread)) is None:
            return False
        if not await send_signal(
            self.graph, thread, key, value, config=sender, run=False, early=early
        ):
            return False
        if (known := await self._persistence.waits.get(thread)) is not None:
            await self.wake(known)
        return True

    async def wake(self, due: SuspendedThread) -> None:
        """Let a thread that waits for a time or an event look whether it can go on."""
        runs = await self.log.thread_runs(due.thread_id)
        if any(run.is_open and not run.is_new_turn for run in runs):
            return
        last = max(
            (run for run in runs if not run.is_open), key=lambda run: run.ended_at, default=None
        )
        # Whoever looks at the same moment gives it the same name.
        name = _stable_id(due.thread_id, ["wake", last.run_id if last else ""])
        await self._enqueue(due.thread_id, name, {}, due.caller)

    async def stop(self, thread: str) -> None:
        """Cancel what runs of a thread, wherever it does, and what waits or is asked; it is ``mark_stopped``.

        Returns when that is so, also where its worker is dead: within twice ``scale.lease_seconds``.
        A step that goes on all the same, as it blocks its worker, is waited for no longer. A further
        message begins a new turn.

        Raises:
            PersistenceError: There is no such thread.
        """
        await self.status(thread)
        await self.log.request_stop(thread)
        await self._persistence.step_results.cancel_thread(thread)
        lease_seconds = self.graph.services.settings.scale.lease_seconds
        until = time.monotonic() + 2 * lease_seconds
        while await self._finish_stopping(thread):
            if time.monotonic() > until:
                break
            await asyncio.sleep(_POLL_SECONDS)

    async def _finish_stopping(self, thread: str) -> bool:
        """End what nobody runs; tells whether a worker has something to end."""
        leases = self._persistence.leases
        runner = RunExecutor(self.graph, self.log)
        stopping = [run for run in await self.log.open_runs(thread) if run.status == STOPPING]
        try:
            for run in stopping:
                await runner.run(run, await leases.acquire(thread))
            lease = await leases.acquire(thread)
        except ThreadBusyError:
            return bool(stopping)
        try:
            found = await self._saver.aget_tuple(thread_config(thread))
            if found is not None and (open_questions(found) or open_waits(found)):
                with share_lease(lease):
                    await mark_stopped(self.graph, thread)
        finally:
            await leases.release(lease)
        return False

    async def status(self, thread: str) -> ThreadStatus:
        """Say how far a thread is, and what a person is asked.

        Raises:
            PersistenceError: There is no such thread.
        """
        runs = await self.log.open_runs(thread)
        summary = await thread_summary(self._saver, thread)
        if any(run.status != "queued" for run in runs):
            return ThreadStatus("running")
        if runs and (
            summary is None or summary.status != "waiting" or not all(r.is_new_turn for r in runs)
        ):
            return ThreadStatus("queued")
        if summary is None:
            raise PersistenceError(
                f"There is no thread {thread!r}.", fix="List the threads to see which there are."
            )
        return ThreadStatus(summary.status, summary.questions)

    async def events(self, thread: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield what the turns of a thread tell, as it is told; it stays open.

        Each is an event of AG-UI as plain data, with ``threadId``, ``runId`` and ``seq``, its number
        in the thread: the same for whoever reads it, whenever.

        Args:
            thread: The thread; it may begin later.
            after: The number of the last event that is known.

        Raises:
            ValidationError: That is no number.
        """
        if not isinstance(after, int):
            raise ValidationError(
                f"{after!r:.80} is no number of an event.",
                fix="Give the 'seq' of the last one that is known, or 0.",
            )
        async with aclosing(self.log.follow_thread(thread, after)) as pages:  # type: ignore[type-var]
            async for page in pages:
                for seq, run_id, text in page:
                    event = {"threadId": thread, "runId": run_id, **json.loads(text), "seq": seq}
                    if event["type"] in TERMINAL_EVENTS:
                        # Who hears of the end may ask at once how the run ended.
                        async with aclosing(self.log.follow(run_id, seq)) as rest:  # type: ignore[type-var]
                            async for _ in rest:
                                pass
                    yield event


@asynccontextmanager
async def open_engine(
    url: str, *, graph: Any, engine: str | None = None, temporal: str | None = None
) -> AsyncIterator[Client]:
    """Open what asks workers for turns.

    Args:
        url: The database of the threads, for both engines.
        graph: A graph of ``build_graph``, made of the same capabilities as that of the workers. One
            whose saver is another database, or that has none, is used with a saver of this one.
        engine: ``postgres`` or ``temporal``; the settings' ``scale.engine`` when not given.
        temporal: Address of Temporal; the settings' ``scale.temporal`` when not given.

    Raises:
        ConfigurationError: The engine does not go with the database.
        MissingExtraError: The engine's extra is not installed.
        PersistenceError: The database or the engine cannot be reached.
    """
    services = getattr(graph, "services", None)
    if services is None:
        raise ConfigurationError(
            "Workers can only run a graph of build_graph.", fix="Give build_graph's graph."
        )
    settings = services.settings
    check_engine(url, engine or settings.scale.engine)
    rows = graph.persistence.tables if graph.persistence is not None else None
    secret = settings.persistence.encryption_key
    here = rows is not None and rows.is_at(url)
    key = secret.get_secret_value() if secret is not None else None
    async with open_saver(None if here else url, encryption_key=key) as saver:
        if saver is not None:
            graph = graph.copy(update={"checkpointer": saver})
        carrier = await connect(
            url, graph.checkpointer, settings.scale, engine=engine, temporal=temporal
        )
        log = graph.persistence.open_run_log()
        try:
            yield Client(graph, log, carrier)
        finally:
            log.close()
            await carrier.close()


def check_engine(url: str, name: str) -> None:
    """Make sure that there is such an engine, that it is installed and goes with the database.

    Args:
        url: The database of the threads.
        name: Name of the engine.

    Raises:
        ConfigurationError: It does not.
        MissingExtraError: Its extra is not installed.
    """
    if name not in _ENGINES:
        raise ConfigurationError(
            f"There is no engine {name!r:.80}.", fix="Use 'postgres' or 'temporal'."
        )
    if "://" not in url or parse_url(url).kind != "postgres":
        raise ConfigurationError(
            "Workers need a database that they share over the network, which SQLite is not.",
            fix="Give the address of a PostgreSQL database: --db postgresql://…",
        )
    library, extra, _ = _ENGINES[name]
    require_extra(library, extra)


async def connect(
    url: str,
    saver: Any,
    scale_settings: Any,
    *,
    engine: str | None = None,
    temporal: str | None = None,
) -> Engine:
    """Connect to an engine.

    Args:
        url: The database of the threads.
        saver: An open saver of it.
        scale_settings: The settings' section ``scale_settings``.
        engine: Its name; the settings' one when not given.
        temporal: Address of Temporal; the settings' one when not given.

    Raises:
        ConfigurationError: There is no such engine, or it does not go with the database.
        MissingExtraError: Its extra is not installed.
        PersistenceError: It cannot be reached, or was written with another encryption key.
    """
    name = engine or scale_settings.engine
    check_engine(url, name)
    opened = getattr(importlib.import_module(f"capgraph.scale.{name}"), _ENGINES[name][2])
    more, database = {"lease_seconds": scale_settings.lease_seconds}, await _database_id(saver)
    if name == "temporal":
        url, more["database"] = temporal or scale_settings.temporal, database
    found: Engine = await opened.open(url, **more)
    return found


async def _database_id(saver: Any) -> str:
    """Return what tells this database from others, also when it has moved to another server.

    Who has another encryption key than those before is told so here, before any turn fails by it.
    """
    rows: Any = Persistence.of(saver).tables
    made = uuid.uuid4().hex[:12]
    await rows.run(
        "INSERT INTO capgraph_database (one, id, proof) VALUES (1, ?, ?)"
        " ON CONFLICT (one) DO NOTHING",
        (made, serialize_to_text(saver.serde, made)),
    )
    found, proof = (await rows.run("SELECT id, proof FROM capgraph_database"))[1][0]
    deserialize_text(saver.serde, proof, "in this database")
    return str(found)


def _as_caller(caller: Caller | str | None) -> Caller:
    if not isinstance(caller, Caller | str | None):
        raise ValidationError(f"{caller!r:.80} is nobody.", fix="Give a name, or a Caller.")
    return caller if isinstance(caller, Caller) else Caller(caller)


def _stable_id(thread: str, parts: Any) -> str:
    """Return a name that is the same for whoever asks for the same."""
    text = json.dumps([thread, parts], default=str)
    return str(uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16]))
