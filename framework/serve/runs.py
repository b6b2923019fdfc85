"""Runs that live on the server: begun, followed, answered, stopped, and gone on with after a restart.

Nothing else on the server starts a run, whatever protocol asks for one. A run belongs to the server
and not to a request: whoever listens may go and come again, and sees every event once.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capgraph.approvals import parse_decisions
from capgraph.approvals.requests import restricts_approvers
from capgraph.base.errors import (
    CapgraphError,
    LimitError,
    PersistenceError,
    ThreadBusyError,
    ValidationError,
)
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.engine.graph_input import validate_input
from capgraph.engine.thread_lease import share_lease
from capgraph.graph.signals import signal as send_signal
from capgraph.graph.turn_runner import DRAIN_SECONDS
from capgraph.pipeline.run_config import configurable_for
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import (
    QUESTION_HASH_LENGTH,
    RunExecutor,
    graph_input,
    identify_question,
    mark_stopped,
)
from capgraph.serve.problems import AnswerRefusedError, ConflictError, NotFoundError
from capgraph.state import TurnView
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import STOPPING, LoggedRun, RunLog
from capgraph.stores.threads import list_suspended_threads, open_questions

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings
    from capgraph.scale.engine import Engine
    from capgraph.serve.threads import Threads

_POLL_SECONDS = 1.0
_RECOVER_SECONDS = 5.0
_PRUNE_SECONDS = 3600.0
_MAX_LISTED_RUNS = 500
"""So many runs are looked through for those of a turn."""
_MAX_UNLOGGED_THREADS = 50
"""So many threads are looked at whose question no run of the server asked: a fork, the command line."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as whoever asked for it sees it.

    Attributes:
        run_id: Names it.
        thread_id: Its thread, as its user calls it.
        status: ``queued``, ``running``, or a word of the turn's outcome.
    """

    run_id: str
    thread_id: str
    status: str


class Runs:
    """The runs of a graph.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        threads: The threads, user by user.
        log: Where runs and their events are kept.
        settings: Bounds.
        engine: Hands runs to workers; without one they go on in this process.
    """

    def __init__(
        self,
        graph: Any,
        threads: Threads,
        log: RunLog,
        settings: ServeSettings,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine
        self._graph = graph
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._threads = threads
        self._log = log
        self._settings = settings
        self._executor = RunExecutor(graph, log, max_concurrent=settings.max_concurrent_runs)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}
        self._next_recovery = self._next_pruning = 0.0

    @property
    def is_draining(self) -> bool:
        """Whether nothing else begins here."""
        return self._executor.is_draining

    @property
    def ended_counts(self) -> Mapping[str, int]:
        """How many runs ended here, by how."""
        return self._executor.ended_counts

    @property
    def active_count(self) -> int:
        """How many runs go on here."""
        return len(self._tasks)

    # --- begin ----------------------------------------------------------------------------

    async def start(
        self,
        caller: Caller,
        thread_id: str,
        *,
        message: str | None = None,
        plan: Any = None,
        answers: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> Run:
        """Begin a run; it goes on by itself when this returns.

        Args:
            caller: Who asks, as the server made sure.
            thread_id: The thread, as the caller calls it; a new one is made.
            message: What is asked.
            plan: A plan to run in place of one that is made.
            answers: Interrupt id to what it is answered with.
            context: Context data, by type and key.
            history: What was said before in a thread that is new: ``role`` and ``content`` each.

        Raises:
            ThreadBusyError: Another run has the thread.
            LimitError: The caller has too many runs under way.
            ValidationError: There is nothing to do, or it is not what a caller may send.
        """
        if message is None and plan is None and answers is None:
            raise ValidationError("There is neither a message nor a plan.", fix="Send one.")
        if plan is not None and not isinstance(plan, Mapping):
            raise ValidationError(f"The plan is {type(plan).__name__}.", fix='Send {"steps": […]}.')
        if message is not None and not message.strip():
            raise ValidationError("The message is empty.", fix="Write something.")
        given: dict[str, Any] = {
            "message": message,
            "plan": plan,
            "answers": answers,
            "context": context,
            "history": list(history) if history else None,
        }
        request = {name: value for name, value in given.items() if value is not None}
        # A person who writes in place of an answer ends what was asked.
        request["abandon"] = True
        kept = self._threads.storage_id(caller, thread_id)
        if answers is None:
            # What the graph would refuse is refused before anything is kept of it.
            validate_input(
                graph_input(request), thread_config(kept), self._graph.services, has_saver=True
            )
        return await self._start(caller, kept, request)

    async def _start(
        self,
        caller: Caller,
        storage_id: str,
        request: Mapping[str, Any],
        question_ids: Collection[str] = (),
    ) -> Run:
        if self.is_draining:
            raise PersistenceError("The server is ending.", fix="Ask again in a moment.")
        owner = self._threads.prefix_of(storage_id)
        under_way = list(self._owners.values()).count(owner)
        if self._engine is not None:
            under_way = sum(
                run.is_open for run in await self._log.owner_runs(owner, _MAX_LISTED_RUNS)
            )
        if under_way >= self._settings.max_active_runs_per_user:
            raise LimitError(
                f"{self._settings.max_active_runs_per_user} of your runs are under way.",
                fix="Wait until one ends, or stop one.",
            )
        run = LoggedRun(
            str(uuid.uuid4()), storage_id, owner, request={**request, "caller": asdict(caller)}
        )
        if self._engine is not None:
            if await self._log.open_runs(storage_id):
                raise ThreadBusyError(
                    f"The thread {self._threads.public_id(caller, storage_id)!r} is being run already.",
                    fix="Wait until that run ends or asks a person.",
                )
            await self._check_still_open(storage_id, question_ids)
            await self._log.create(run, is_local=False)
            await self._engine.submit(TurnJob(storage_id, run.run_id))
            return self._public_run(caller, run)
        lease = await self._persistence.leases.acquire(storage_id)
        try:
            # Before the thread was this one's, somebody else's answer may have been first.
            await self._check_still_open(storage_id, question_ids)
            await self._log.create(run)
        except BaseException:
            await self._persistence.leases.release(lease)
            raise
        self._start_task(run, self._executor.run(run, lease))
        return self._public_run(caller, run)

    async def _check_still_open(self, storage_id: str, question_ids: Collection[str]) -> None:
        if (
            question_ids
            and not set(question_ids) <= (await self._open_questions(storage_id)).keys()
        ):
            raise ConflictError("The question was answered before.", fix="List the open questions.")

    def _start_task(self, run: LoggedRun, work: Coroutine[Any, Any, Any]) -> None:
        self._owners[run.run_id] = run.owner
        task = self._tasks[run.run_id] = asyncio.create_task(self._run_to_end(run, work))
        task.add_done_callback(lambda _: self._forget(run.run_id))

    async def _run_to_end(self, run: LoggedRun, work: Coroutine[Any, Any, Any]) -> None:
        # Whoever looks next goes on with it: it stands in the log as not ended.
        with suppress(PersistenceError, ThreadBusyError):
            await work

    def _forget(self, run_id: str) -> None:
        for known in (self._tasks, self._owners):
            known.pop(run_id, None)

    # --- look -----------------------------------------------------------------------------

    async def get(self, caller: Caller, run_id: str) -> Run:
        """Return a run.

        Raises:
            NotFoundError: There is none, or it is somebody else's.
        """
        return self._public_run(caller, await self._get_own(caller, run_id))

    async def _get_own(self, caller: Caller, run_id: str) -> LoggedRun:
        run = await self._log.get(run_id)
        if run is None or run.owner != self._threads.owner_prefix(caller):
            raise NotFoundError("There is no such run.", fix="Begin one.")
        return run

    async def turn_runs(self, caller: Caller, run_id: str) -> list[Run]:
        """Return the runs of a turn: the one that began it, and those that went on with it.

        Raises:
            NotFoundError: There is no such run, or it began no turn.
        """
        first = await self._get_own(caller, run_id)
        if not first.is_new_turn:
            raise NotFoundError("No turn began with this run.", fix="Name the first run of one.")
        found: list[LoggedRun] = []
        for run in await self._log.thread_runs(first.thread_id, _MAX_LISTED_RUNS):
            found = [run, *found]
            if run.run_id == run_id:
                break
            if run.is_new_turn:
                found = []
        else:
            found = [first]
        return [self._public_run(caller, run) for run in found]

    async def list_first_runs(self, caller: Caller) -> list[Run]:
        """Return the runs that began a turn of the caller's, the latest first."""
        found = await self._log.owner_runs(self._threads.owner_prefix(caller), _MAX_LISTED_RUNS)
        return [self._public_run(caller, run) for run in found if run.is_new_turn]

    def _public_run(self, caller: Caller, run: LoggedRun) -> Run:
        status = "running" if run.status == STOPPING else run.status
        return Run(run.run_id, self._threads.public_id(caller, run.thread_id), status)

    async def follow(
        self, caller: Caller, run_id: str, after: int = 0
    ) -> AsyncIterator[list[tuple[int, str]]]:
        """Return the events of a run as JSON, as many at a time as there are; see :meth:`events`."""
        await self._get_own(caller, run_id)
        return self._log.follow(run_id, after)

    async def events(
        self, caller: Caller, run_id: str, after: int = 0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Yield the events of a run with their numbers; ends after the run's last one.

        Args:
            caller: Who asks.
            run_id: The run.
            after: The number of the last event that is known.

        Raises:
            NotFoundError: There is no such run.
        """
        pages = await self.follow(caller, run_id, after)
        async with aclosing(pages):  # type: ignore[type-var]
            async for page in pages:
                for seq, text in page:
                    yield seq, json.loads(text)

    async def is_reachable(self) -> bool:
        """Tell whether the database answers."""
        try:
            await self._log.get("")
        except PersistenceError:
            return False
        return True

    async def stop(self, caller: Caller, run_id: str) -> Run:
        """Cancel a run, in whichever process it goes on; one that has ended stays as it is.

        A run that waits for a person or an event has nothing left to wait for then.

        Raises:
            NotFoundError: There is no such run.
            ThreadBusyError: What it waited for goes on at this moment.
        """
        run = await self._get_own(caller, run_id)
        last = run.status == "waiting" and await self._log.thread_runs(run.thread_id, 1)
        if last and last[0].run_id == run_id:
            lease = await self._persistence.leases.acquire(run.thread_id)
            try:
                with share_lease(lease):
                    end = await mark_stopped(self._graph, run.thread_id)
                await self._log.finish(run_id, end.status)
            finally:
                await self._persistence.leases.release(lease)
            return await self.get(caller, run_id)
        if not self._executor.stop(run_id):
            await self._log.request_stop(run.thread_id, run_id)
        return self._public_run(caller, run)

    # --- questions ------------------------------------------------------------------------

    async def list_questions(
        self, caller: Caller, thread_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return what a person is asked in the caller's threads, or in one of them.

        Raises:
            NotFoundError: There is no such thread.
        """
        if thread_id is not None:
            threads = [await self._threads.resolve(caller, thread_id)]
        else:
            threads = await self._log.waiting_threads(self._threads.owner_prefix(caller))
            threads += await self._threads.list_recent(caller, _MAX_UNLOGGED_THREADS)
            threads += await self._log.waiting_threads() if caller.role is not None else []
        own = self._threads.owner_prefix(caller)
        return [
            {**question, "thread_id": self._threads.public_id(caller, kept)}
            for kept in dict.fromkeys(threads)
            for question in (await self._open_questions(kept)).values()
            if kept.startswith(own) or self._can_decide(caller, kept, question)
        ]

    def _can_decide(self, caller: Caller, storage_id: str, question: Mapping[str, Any]) -> bool:
        """Tell whether somebody may decide about a question of another user's thread.

        It has to matter who agrees, and the role has to allow what is asked about.
        """
        permissions = self._graph.services.permissions
        steps = question.get("steps")
        if permissions is None or caller.role is None or not isinstance(steps, list):
            return False
        return self._threads.is_in_tenant(caller, storage_id) and all(
            restricts_approvers(step) and permissions.outcome(step["capability"], caller).allowed
            for step in steps
        )

    async def _open_questions(self, storage_id: str) -> dict[str, dict[str, Any]]:
        """Return the open questions of a thread, by what the server calls them."""
        found = await self._saver.aget_tuple(thread_config(storage_id))
        asked = open_questions(found) if found is not None else {}
        questions = [identify_question(storage_id, key, value) for key, value in asked.items()]
        return {question["question_id"]: question for question in questions}

    async def get_question(self, caller: Caller, question_id: str) -> tuple[str, dict[str, Any]]:
        """Return the thread of a question, as the saver calls it, and what is asked.

        Raises:
            NotFoundError: There is no such question.
            ConflictError: It is not open any more.
        """
        missing = NotFoundError("There is no such question.", fix="List the questions.")
        with suppress(ValueError):
            mark, _, name = question_id.partition("-")
            kept = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
            if len(mark) != QUESTION_HASH_LENGTH or "\0" in kept:
                raise missing
            found = (await self._open_questions(kept)).get(question_id)
            if not kept.startswith(self._threads.owner_prefix(caller)):
                if found is None or not self._can_decide(caller, kept, found):
                    raise missing
                return kept, found
            await self._threads.resolve(caller, self._threads.public_id(caller, kept))
            if found is None:
                raise ConflictError(
                    "The question is not open any more.", fix="List the open questions."
                )
            return kept, found
        raise missing

    async def answer(self, caller: Caller, question_id: str, answer: Any) -> Run:
        """Answer a question; the run that goes on is returned. See :meth:`answer_all`."""
        return await self.answer_all(caller, {question_id: answer})

    async def answer_all(
        self, caller: Caller, answers: Mapping[str, Any], *, thread_id: str | None = None
    ) -> Run:
        """Answer questions of one thread together; the run that goes on is returned.

        Args:
            caller: Who answers.
            answers: Each question's answer: one word for all its steps, or a decision for each by
                its context key; whatever it is where a capability asks of its own.
            thread_id: The thread, where the caller names it.

        Raises:
            NotFoundError: There is no such question, or not in this thread.
            ConflictError: It was answered before.
            AnswerRefusedError: It does not fit; nothing was changed.
            ThreadBusyError: The thread is being run.
        """
        asked = {name: await self.get_question(caller, name) for name in answers}
        threads = {kept for kept, _ in asked.values()}
        if thread_id is not None:
            threads.add(self._threads.storage_id(caller, thread_id))
        if len(threads) != 1:
            raise NotFoundError("There is no such question.", fix="List the questions.")
        (kept,) = threads
        services = self._graph.services
        view = TurnView(dict((await self._graph.aget_state(thread_config(kept))).values))
        problems = [
            problem
            for name, (_, question) in asked.items()
            if isinstance(question.get("steps"), list)
            for problem in parse_decisions(
                answers[name], question, services.registry, services.limits, view
            )[1]
        ]
        if problems:
            raise AnswerRefusedError([one._asdict() for one in problems])
        given = {question["interrupt_id"]: answers[name] for name, (_, question) in asked.items()}
        try:
            return await self._start(caller, kept, {"answers": given}, answers.keys())
        except ThreadBusyError:
            await self._check_still_open(kept, answers.keys())
            raise

    async def signal(self, caller: Caller, thread_id: str, key: str, value: Any) -> Run | None:
        """Tell a thread that an event came; returns the run that goes on, if a step waited for it.

        Raises:
            NotFoundError: There is no such thread.
            ValidationError: Key or value cannot be used.
        """
        kept = await self._threads.resolve(caller, thread_id)
        sender: Any = {"configurable": configurable_for(caller)}
        if not await send_signal(self._graph, kept, key, value, config=sender, run=False):
            return None
        known = await self._persistence.waits.get(kept)
        return await self._start(known.caller if known is not None else caller, kept, {})

    # --- life -----------------------------------------------------------------------------

    async def recover(self) -> None:
        """Go on with the runs that nobody goes on with, each under its id."""
        for run in reversed(await self._log.unfinished_runs()):
            if run.run_id not in self._tasks:
                order = TurnJob(run.thread_id, run.run_id)
                self._start_task(run, self._executor.advance(order))

    async def maintain(self) -> None:
        """Wake threads whose moment has come, and take up what other processes left, for ever."""
        while True:
            try:
                await self._maintain_once()
            except CapgraphError as exc:
                get_logger("serve", "runs").warning("Nothing was looked after: %s", exc)
            await asyncio.sleep(_POLL_SECONDS)

    async def _maintain_once(self) -> None:
        if self._engine is not None:
            return  # workers do
        now = time.monotonic()
        await self._executor.apply_stop_requests()
        for one in await list_suspended_threads(self._saver, now=time.time()):
            with suppress(ThreadBusyError, LimitError):
                await self._start(one.caller, one.thread_id, {})
        if now >= self._next_recovery:
            self._next_recovery = now + _RECOVER_SECONDS
            await self.recover()
        if now >= self._next_pruning:
            self._next_pruning = now + _PRUNE_SECONDS
            await self._log.prune(self._settings.keep_runs_days * 86_400)

    async def wait_closed(self) -> None:
        """Wait until what ran has come to a point, and nobody is told anything more."""
        await self._log.closing.wait()

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Begin nothing else; what runs comes to a point from which another process goes on."""
        self._executor.drain(seconds)
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._log.close()
