"""Client for threads that workers run: submit turns, answer questions, stop, and follow events."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
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
from capgraph.scale.agent_rules import AgentRules
from capgraph.scale.engine import Engine
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import RunExecutor, graph_input, mark_stopped
from capgraph.scale.schedules import Schedule, Schedules
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
"""Library, extra, and class of each engine."""
_POLL_SECONDS = 0.2
"""Pause between checks of whether a thread has stopped."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """Status of a thread and its open questions.

    Attributes:
        status: ``queued``, ``running``, or a status of :func:`capgraph.stores.thread_summary`.
        questions: Open questions, keyed by the ID to pass to :meth:`Client.answer`.
    """

    status: str
    questions: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Client that submits turns for execution by workers.

    Args:
        graph: Graph created by ``build_graph``, with a checkpointer.
        log: Log of all runs.
        engine: Engine that delivers jobs to workers.
    """

    def __init__(self, graph: Any, log: RunLog, engine: Engine) -> None:
        self.graph: Any = graph
        self._rules = AgentRules(graph.services)
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
        rules: Mapping[str, Any] | None = None,
    ) -> str:
        """Submit a turn for execution and return its ID once it is stored.

        The turn starts after the thread's current turn ends.

        Args:
            thread: ID of the thread, which is created if it does not exist.
            message: The user's message.
            plan: Plan to run instead of generating one: a mapping with ``steps``.
            caller: User who submits the turn. A string is the user's ID.
            context: Context data, by context type and context key.
            run_id: ID of the turn. Submitting the same ID again has no effect.
            rules: Rules from a schedule that a worker must follow to run the turn. Defaults to the
                rules of this client's graph.

        Returns:
            The ID of the turn.

        Raises:
            ValidationError: The arguments are invalid, or a different thread has a turn with this
                ID.
        """
        if (message is None) == (plan is None):
            raise ValidationError(
                "Exactly one of message and plan is required.", fix="Pass message= or plan=."
            )
        for name, value in (
            ("thread", thread),
            ("message", message or ""),
            ("run_id", run_id or ""),
        ):
            if not isinstance(value, str):
                raise ValidationError(
                    f"The {name} {value!r:.80} is invalid: it must be a string.",
                    fix="Pass a string.",
                )
        if message is not None and not message.strip():
            raise ValidationError("The message is empty.", fix="Pass a non-empty message.")
        if plan is not None and not (
            isinstance(plan, Mapping) and isinstance(plan.get("steps"), list | tuple)
        ):
            raise ValidationError(
                f"The plan must be a mapping with a list of 'steps', not {plan!r:.80}.",
                fix="Pass {'steps': […]}.",
            )
        fields = {"message": message, "plan": plan and dict(plan), "context": context}
        request = {name: value for name, value in fields.items() if value is not None}
        # Reject invalid input before anything is stored.
        validate_input(
            graph_input(request), thread_config(thread), self.graph.services, has_saver=True
        )
        if rules is not None:
            request["agent"] = rules
        run_id = run_id or str(uuid.uuid4())
        await self._enqueue(thread, run_id, request, _as_caller(caller))
        return run_id

    async def schedule(self, schedule: Schedule) -> None:
        """Store a schedule that starts turns under the rules of this client's graph.

        Raises:
            ValidationError: The cron expression is invalid or the message is empty.
            PersistenceError: The database or the engine is unavailable.
        """
        rules = self._rules.describe(schedule.caller)
        await Schedules(self._saver).add(replace(schedule, rules=rules), self.engine)

    async def _enqueue(
        self, thread: str, run_id: str, request: Mapping[str, Any], caller: Caller
    ) -> bool:
        owner = thread.partition("/")[0] + "/" if thread.startswith("@") else ""
        own_agent = {"agent": self._rules.describe(caller)}
        request = {**own_agent, **request, "caller": asdict(caller)}
        run = LoggedRun(run_id, thread, owner, request=request)
        is_new = await self.log.create(run, is_local=False)
        existing = None if is_new else await self.log.get(run_id)
        if existing is not None and existing.thread_id != thread:
            raise ValidationError(
                f"The turn {run_id!r:.80} belongs to the thread {existing.thread_id!r:.80}.",
                fix="Use a unique run_id for each turn.",
            )
        # Known runs are submitted, too: the process that stored one may have died before this.
        try:
            await self.engine.submit(TurnJob(thread, run_id))
        except ValidationError:
            await self.log.finish(run_id, "failed")  # no worker can run it
            raise
        except PersistenceError as exc:
            # The run is stored; a worker submits it when the engine is available again.
            get_logger("scale", "client").warning("Run %s waits for its engine: %s", run_id, exc)
        return is_new

    async def answer(
        self, thread: str, question_id: str, answer: Any, caller: Caller | str | None = None
    ) -> bool:
        """Answer an open question in a thread.

        A worker resumes the turn as soon as one is available.

        Args:
            thread: ID of the thread.
            question_id: ID of the question, as returned by :meth:`status`.
            answer: Value to pass to ``Command(resume={id: value})``.
            caller: Person who answers the question.

        Returns:
            True if the answer was accepted. False if the question is not open or was already
            answered.
        """
        checkpoint = await self._saver.aget_tuple(thread_config(thread))
        if checkpoint is None or question_id not in open_questions(checkpoint):
            return False
        # A question is asked again after an invalid answer, so the attempt is part of the ID.
        attempts = count_resume_values(checkpoint.pending_writes)
        key_parts = [checkpoint.checkpoint["id"], question_id, attempts]
        request = {"answers": {question_id: answer}}
        return await self._enqueue(
            thread, _derive_stable_id(thread, key_parts), request, _as_caller(caller)
        )

    async def signal(
        self, thread: str, key: str, value: Any = None, caller: Caller | str | None = None
    ) -> bool:
        """Send an event to a thread and return True if a step is waiting for it.

        An event that arrives early, even before its turn has started, is stored until the step
        waits for it.

        Raises:
            ValidationError: The key or the value is invalid.
        """
        sender: Any = {"configurable": configurable_for(_as_caller(caller))}
        early = bool(await self.log.open_runs(thread))
        if not early and await self._saver.aget_tuple(thread_config(thread)) is None:
            return False
        if not await send_signal(
            self.graph, thread, key, value, config=sender, run=False, early=early
        ):
            return False
        if (wait := await self._persistence.waits.get(thread)) is not None:
            await self.wake(wait)
        return True

    async def wake(self, due: SuspendedThread, *, keeps_rules: bool = False) -> None:
        """Resume a waiting thread whose time or event has come.

        Args:
            due: Thread to resume.
            keeps_rules: Whether to apply the rules of the turn's last run instead of the rules of
                this process. A worker must not weaken the rules of a turn.
        """
        runs = await self.log.thread_runs(due.thread_id)
        if any(run.is_open and not run.is_new_turn for run in runs):
            return
        last_run = max(
            (run for run in runs if not run.is_open), key=lambda run: run.ended_at, default=None
        )
        # Processes that wake the same thread concurrently derive the same ID.
        run_id = _derive_stable_id(due.thread_id, ["wake", last_run.run_id if last_run else ""])
        agent = last_run.request.get("agent") if last_run is not None and keeps_rules else None
        request = {"agent": agent} if agent is not None else {}
        await self._enqueue(due.thread_id, run_id, request, due.caller)

    async def stop(self, thread: str) -> None:
        """Stop a thread, cancel its running and queued turns, and close its questions and waits.

        Returns when the thread has stopped, and no later than after twice ``scale.lease_seconds``,
        even if its worker is dead. A step that blocks its worker may still be running at that
        point. The next message starts a new turn.

        Raises:
            PersistenceError: The thread does not exist.
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
        """End the stopped runs of a thread that no worker is executing.

        Returns True while a worker still has to end a stopped run.
        """
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
            checkpoint = await self._saver.aget_tuple(thread_config(thread))
            if checkpoint is not None and (open_questions(checkpoint) or open_waits(checkpoint)):
                with share_lease(lease):
                    await mark_stopped(self.graph, thread)
        finally:
            await leases.release(lease)
        return False

    async def status(self, thread: str) -> ThreadStatus:
        """Return the status of a thread and its open questions.

        Raises:
            PersistenceError: The thread does not exist.
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
                f"The thread {thread!r} does not exist.", fix="List the existing threads."
            )
        return ThreadStatus(summary.status, summary.questions)

    async def events(self, thread: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a thread's turns as they are recorded, indefinitely.

        Each event is an AG-UI event as plain data, with ``threadId``, ``runId``, and ``seq``. The
        sequence number is unique within the thread and the same for every reader.

        Args:
            thread: ID of the thread, which may not exist yet.
            after: Sequence number of the last event already received.

        Raises:
            ValidationError: ``after`` is not an integer.
        """
        if not isinstance(after, int):
            raise ValidationError(
                f"The event number {after!r:.80} is invalid: it must be an integer.",
                fix="Pass the 'seq' of the last event received, or 0.",
            )
        async with aclosing(self.log.follow_thread(thread, after)) as pages:
            async for page in pages:
                for seq, run_id, text in page:
                    event = {"threadId": thread, "runId": run_id, **json.loads(text), "seq": seq}
                    if event["type"] in TERMINAL_EVENTS:
                        # The outcome must be readable as soon as the last event is delivered.
                        async with aclosing(self.log.follow(run_id, seq)) as rest:
                            async for _ in rest:
                                pass
                    yield event


@asynccontextmanager
async def open_engine(
    url: str, *, graph: Any, engine: str | None = None, temporal: str | None = None
) -> AsyncIterator[Client]:
    """Open a client that submits turns for execution by workers.

    Args:
        url: URL of the database that stores the threads, regardless of the engine.
        graph: Graph created by ``build_graph`` with the same capabilities as the workers'
            graph. If its checkpointer is missing or uses a different database, a copy with a
            saver on ``url`` is used.
        engine: ``postgres`` or ``temporal``. Defaults to the setting ``scale.engine``.
        temporal: Address of the Temporal server. Defaults to the setting ``scale.temporal``.

    Raises:
        ConfigurationError: The engine does not support the database.
        MissingExtraError: The engine's extra is not installed.
        PersistenceError: The database or the engine is unavailable.
    """
    services = getattr(graph, "services", None)
    if services is None:
        raise ConfigurationError(
            "Workers cannot run this graph, because build_graph did not create it.",
            fix="Pass a graph of build_graph.",
        )
    settings = services.settings
    check_engine(url, engine or settings.scale.engine)
    rows = graph.persistence.tables if graph.persistence is not None else None
    secret = settings.persistence.encryption_key
    is_same_database = rows is not None and rows.is_at(url)
    key = secret.get_secret_value() if secret is not None else None
    async with open_saver(None if is_same_database else url, encryption_key=key) as saver:
        if saver is not None:
            graph = graph.copy(update={"checkpointer": saver})
        job_engine = await connect(
            url, graph.checkpointer, settings.scale, engine=engine, temporal=temporal
        )
        log = graph.persistence.open_run_log()
        try:
            yield Client(graph, log, job_engine)
        finally:
            log.close()
            await job_engine.close()


def check_engine(url: str, name: str) -> None:
    """Check that an engine exists, is installed, and supports the database.

    Args:
        url: URL of the database that stores the threads.
        name: Name of the engine, such as ``postgres``.

    Raises:
        ConfigurationError: The engine is unknown or does not support the database.
        MissingExtraError: The engine's extra is not installed.
    """
    if name not in _ENGINES:
        raise ConfigurationError(
            f"The engine {name!r:.80} is unknown.", fix="Use 'postgres' or 'temporal'."
        )
    if "://" not in url or parse_url(url).kind != "postgres":
        raise ConfigurationError(
            "Workers require a shared database: SQLite is not supported.",
            fix="Use a PostgreSQL database: --db postgresql://…",
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
    """Connect to the engine that delivers jobs to workers.

    Args:
        url: URL of the database that stores the threads.
        saver: Open checkpoint saver on the same database.
        scale_settings: The settings section ``scale``.
        engine: Name of the engine. Defaults to the setting ``scale.engine``.
        temporal: Address of the Temporal server. Defaults to the setting ``scale.temporal``.

    Raises:
        ConfigurationError: The engine is unknown or does not support the database.
        MissingExtraError: The engine's extra is not installed.
        PersistenceError: The engine is unavailable, or the database uses a different encryption
            key.
    """
    name = engine or scale_settings.engine
    check_engine(url, name)
    engine_class = getattr(importlib.import_module(f"capgraph.scale.{name}"), _ENGINES[name][2])
    options, database = {"lease_seconds": scale_settings.lease_seconds}, await _database_id(saver)
    if name == "temporal":
        url, options["database"] = temporal or scale_settings.temporal, database
    connected: Engine = await engine_class.open(url, **options)
    return connected


async def _database_id(saver: Any) -> str:
    """Return the ID of the database, which survives a move to a different server.

    Decrypting the stored proof detects a wrong encryption key here, before the first turn.
    """
    rows: Any = Persistence.of(saver).tables
    new_id = uuid.uuid4().hex[:12]
    await rows.run(
        "INSERT INTO capgraph_database (one, id, proof) VALUES (1, ?, ?)"
        " ON CONFLICT (one) DO NOTHING",
        (new_id, serialize_to_text(saver.serde, new_id)),
    )
    database_id, proof = (await rows.run("SELECT id, proof FROM capgraph_database"))[1][0]
    deserialize_text(saver.serde, proof, "in this database")
    return str(database_id)


def _as_caller(caller: Caller | str | None) -> Caller:
    if not isinstance(caller, Caller | str | None):
        raise ValidationError(
            f"The caller {caller!r:.80} is invalid: it must be a user ID or a Caller.",
            fix="Pass a string or a Caller.",
        )
    return caller if isinstance(caller, Caller) else Caller(caller)


def _derive_stable_id(thread: str, parts: Any) -> str:
    """Derive an ID that is the same in every process that requests the same work."""
    text = json.dumps([thread, parts], default=str)
    return str(uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16]))
