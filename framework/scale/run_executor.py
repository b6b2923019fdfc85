"""What a thread's open runs ask for, done; whoever runs threads for others does it by this code.

A run stands in the log before anybody works on it, with everything that is needed to begin it. So
what is done here may be repeated at any point, by any process that has the graph and the database.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from capgraph.base.errors import InfrastructureError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.engine.thread_lease import share_lease
from capgraph.graph.turn_runner import (
    DRAIN_SECONDS,
    TurnResult,
    TurnRunner,
    load_thread_values,
    step_states,
)
from capgraph.pipeline.run_config import configurable_for
from capgraph.scale.agui_events import EventTranslator, to_interrupt
from capgraph.scale.jobs import TurnJob
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.leases import Lease
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import TERMINAL_EVENTS, LoggedRun, RunLog
from capgraph.stores.threads import open_questions
from capgraph.stores.waits import open_waits

_MAX_READ_ATTEMPTS = 3
"""So often a thread that cannot be read is given back: a worker of another version may know how."""
QUESTION_HASH_LENGTH = 24
"""So long is the part of a question's name that tells it from others of its thread."""


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """What came of an order.

    Attributes:
        thread: The thread.
        statuses: How each run ended that was gone on with.
        has_more: Whether there is more to do at once, which another worker has to do.
    """

    thread: str
    statuses: Mapping[str, str]
    has_more: bool = False


async def advance(graph: Any, job: TurnJob, *, log: RunLog | None = None) -> AdvanceResult:
    """Do what the open runs of a thread ask for; see :meth:`Runner.advance`.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        job: Names the thread.
        log: Where its runs are; beside the graph's threads when not given.

    >>> from capgraph import build_graph
    >>> from capgraph.scale.run_executor import advance
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> async def main():
    ...     graph = build_graph([], checkpointer=InMemorySaver())
    ...     log = graph.persistence.open_run_log()
    ...     await log.open(LoggedRun("r", "t", "", request={"message": "Sing", "caller": {}}))
    ...     first = await advance(graph, TurnJob("t", "r"), log=log)
    ...     again = await advance(graph, TurnJob("t", "r"), log=log)
    ...     return list(first.statuses), list(again.statuses)
    >>> asyncio.run(main())
    (['r'], [])
    """
    return await RunExecutor(graph, log or graph.persistence.open_run_log()).advance(job)


class RunExecutor:
    """Runs what stands in the log, in this process.

    Attributes:
        is_draining: Whether nothing else begins here.
        ended_counts: How many runs ended here, by how.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        log: Where the runs are.
        max_concurrent: So many go on at the same time.
    """

    def __init__(self, graph: Any, log: RunLog, *, max_concurrent: int = 1000) -> None:
        self._graph, self._log = graph, log
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._slots = asyncio.Semaphore(max_concurrent)
        self._turns: dict[str, TurnRunner] = {}
        self._stopped: set[str] = set()
        self._read_failures: Counter[str] = Counter()
        self.is_draining: bool = False
        self.ended_counts: Counter[str] = Counter()

    async def advance(self, job: TurnJob) -> AdvanceResult:
        """Do what the open runs of a thread ask for, one after the other.

        A run that somebody left comes first, then answers and events. A further message waits until
        the turn before it has ended, also while a person is asked. Without open runs nothing
        happens, so an order may come twice or late.

        Raises:
            ThreadBusyError: Somebody else runs the thread.
            PersistenceError: The database is away, or the lease was lost; nothing was ended.
        """
        ended: dict[str, str] = {}
        while not self.is_draining:
            try:
                lease = await self._persistence.leases.acquire(job.thread)
            except ThreadBusyError:
                if not await self._log.open_runs(job.thread):
                    break  # there is nothing to wait for
                raise
            run, alone = None, True
            try:
                run, alone = await self._next_run(job.thread)
            finally:
                if run is None:
                    await self._persistence.leases.release(lease)
            if run is None:
                break
            if (status := await self.run(run, lease, release_first=False)) is not None:
                ended[run.run_id] = status
                if alone:
                    break  # whatever was asked for meanwhile has an order of its own
            if not await self._log.open_runs(job.thread):
                break
        left = self.is_draining and bool(await self._log.open_runs(job.thread))
        return AdvanceResult(job.thread, ended, left)

    async def _next_run(self, thread: str) -> tuple[LoggedRun | None, bool]:
        """Return what to go on with, and whether nothing else was asked for."""
        runs = await self._log.open_runs(thread)
        alone = len(runs) < 2
        for run in runs:
            if run.status != "queued":
                return run, alone
        busy: Collection[Any] = ()
        try:
            asked = runs and await self._may_have_questions(thread)
            found = await self._saver.aget_tuple(thread_config(thread)) if asked else None
        except PersistenceError as exc:
            if not exc.is_unreadable:
                raise
        else:
            busy = (found is not None and (open_questions(found) or open_waits(found))) or ()
        ready = [
            run for run in runs if not run.is_new_turn or not busy or run.request.get("abandon")
        ]
        return min(ready, key=lambda run: run.is_new_turn, default=None), alone

    async def _may_have_questions(self, thread: str) -> bool:
        # What a long thread holds is read by the run itself, and once is enough.
        return not isinstance(self._saver, BaseSaver) or await self._saver.is_interrupted(thread)

    def run(
        self, run: LoggedRun, lease: Lease, *, release_first: bool = True
    ) -> Coroutine[Any, Any, str | None]:
        """Run one run of the log; it returns how the run ended, ``None`` when somebody has to go on.

        It can be stopped from this moment on.

        Args:
            run: The run.
            lease: That of its thread; it is given back.
            release_first: Whether that is before anybody hears of the end, so that whoever does may ask
                the thread again at once.

        Raises:
            PersistenceError: The database is away, or the lease was lost.
        """
        caller = Caller(**run.request["caller"])
        config: dict[str, Any] = {
            "metadata": {"run_id": run.run_id},
            "configurable": {"thread_id": run.thread_id, **configurable_for(caller)},
        }
        with suppress(ValueError):
            # Traces, events and the audit call the run as whoever asked for it does.
            config["run_id"] = uuid.UUID(run.run_id)
        turn = self._turns[run.run_id] = TurnRunner(self._graph, config)
        return self._execute(run, lease, turn, release_first)

    def stop(self, run_id: str) -> bool:
        """Cancel a run of this process; tells whether it is one."""
        turn = self._turns.get(run_id)
        if turn is None:
            return False
        if run_id not in self._stopped:
            self._stopped.add(run_id)
            turn.stop()
        return True

    async def apply_stop_requests(self) -> None:
        """Stop what was stopped from elsewhere."""
        if self._turns:
            for run_id in await self._log.stopping_run_ids():
                self.stop(run_id)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Begin nothing else; what runs comes to a point from which another process goes on."""
        self.is_draining = True
        for turn in self._turns.values():
            turn.drain(seconds)

    async def _execute(
        self, run: LoggedRun, lease: Lease, turn: TurnRunner, release_first: bool
    ) -> str | None:
        translator = EventTranslator(run.thread_id.removeprefix(run.owner), run.run_id)
        try:
            try:
                async with self._slots:
                    with share_lease(lease):
                        end = await self._run_turn(run, turn, translator)
                    if end is not None:
                        # Whoever has lost the thread does not say how the run of another ended.
                        await self._persistence.leases.confirm(run.thread_id, force_query=False)
                if end is not None and not release_first:
                    return await self._finish(run, end, translator)
            finally:
                await self._persistence.leases.release(lease)
            return await self._finish(run, end, translator) if end is not None else None
        except PersistenceError as exc:
            if exc.is_unreadable:
                self._read_failures[run.run_id] += 1
            if not exc.is_unreadable or (
                not release_first and self._read_failures[run.run_id] < _MAX_READ_ATTEMPTS
            ):
                # Whoever starts next goes on with it: it stands in the log as not ended.
                get_logger("scale", "advance").error("The run %s was left: %s", run.run_id, exc)
                raise
            self._read_failures.pop(run.run_id)
            return await self._finish(run, TurnResult(run.thread_id, error=exc), translator)
        except Exception as exc:
            get_logger("scale", "advance").error("The run %s failed", run.run_id, exc_info=exc)
            broken = InfrastructureError("The server failed.", fix="Its log has the cause.")
            return await self._finish(run, TurnResult(run.thread_id, error=broken), translator)
        finally:
            self._turns.pop(run.run_id, None)
            self._stopped.discard(run.run_id)
            self._log.release(run.run_id)

    async def _run_turn(
        self, run: LoggedRun, turn: TurnRunner, translator: EventTranslator
    ) -> TurnResult | None:
        if self.is_draining:
            return None
        told, may = await self._log.claim(run)
        if told and told[-1]["type"] in TERMINAL_EVENTS:
            # The process ended between the last event and the word of it.
            status = (told[-1].get("result") or {}).get("status", "failed")
            await self._log.finish(run.run_id, status)
            return None
        if why := run.request.get("unreadable"):
            raise PersistenceError(why[0], fix=why[1], is_unreadable=True)
        values = {} if run.is_new_turn else await load_thread_values(self._graph, run.thread_id)
        begun = (
            translator.takeover_events(told)
            if told
            else translator.start_events(values, step_states(values))
        )
        self._log.append_events(run.run_id, begun, translator.shorten)
        if not may:
            return await mark_stopped(self._graph, run.thread_id)
        given, over = await self._next_input(run, is_resumed=bool(told) or run.status != "queued")

        def tell(event: dict[str, Any]) -> None:
            self._log.append_events(run.run_id, translator.translate(event), translator.shorten)

        end = await (turn.read() if over else turn.run(given, tell))
        if isinstance(end.error, PersistenceError):
            raise end.error  # nothing that can be trusted was ended
        if run.run_id in self._stopped and end.status == "cancelled":
            return await mark_stopped(self._graph, run.thread_id)
        return None if end.status == "drained" else end

    async def _next_input(self, run: LoggedRun, *, is_resumed: bool) -> tuple[Any, bool]:
        """Return what the graph begins with, and whether nothing of it is left to do."""
        from langgraph.types import Command

        request = run.request
        found = None
        if is_resumed or "answers" in request:
            found = await self._saver.aget_tuple(thread_config(run.thread_id))
        if "answers" in request:
            asked: Collection[str] = open_questions(found) if found is not None else ()
            if not request["answers"].keys() <= set(asked):
                # It was answered before, or this very answer is in the thread already.
                return None, not await self._is_unfinished(run.thread_id)
            return Command(resume=dict(request["answers"])), False
        if not run.is_new_turn:
            return None, False
        if found is not None and (found.metadata or {}).get("run_id") == run.run_id:
            return None, not await self._is_unfinished(run.thread_id)
        return graph_input(request), False

    async def _is_unfinished(self, thread: str) -> bool:
        snapshot = await self._graph.aget_state(thread_config(thread))
        return bool(snapshot.tasks) and not snapshot.interrupts

    async def _finish(self, run: LoggedRun, end: TurnResult, translator: EventTranslator) -> str:
        if end.error is not None:
            await self._persistence.waits.postpone(run.thread_id)
        asked = [
            identify_question(run.thread_id, key, value) for key, value in end.questions.items()
        ]
        result = {**end.to_dict(), "thread_id": translator.thread_id}
        result.pop("questions", None)
        # Where a file lies concerns nobody who asks: it is had by reference.
        result["files"] = [PurePath(one).name for one in end.files]
        shown = [{**one, "thread_id": translator.thread_id} for one in asked]
        told = translator.end_events(result, [to_interrupt(q) for q in shown])
        self._log.append_events(run.run_id, told, translator.shorten)
        await self._log.finish(run.run_id, end.status)
        self.ended_counts[end.status] += 1
        return end.status


async def mark_stopped(graph: Any, thread: str) -> TurnResult:
    """End the turn of a thread whose lease the caller has lent; nothing of it is left to run.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        thread: The thread.
    """
    # Written as a node that ends a turn, so that no question and no step is left.
    outcome = {"status": "stopped", "cancelled": True}
    await graph.aupdate_state(thread_config(thread), {"execution_outcome": outcome}, "error")
    waits = graph.persistence.waits
    if (wait := await waits.of(thread)) is not None:
        await waits.drop(wait)
    return TurnResult(thread, status="stopped", outcome=outcome)


def identify_question(thread: str, interrupt_id: str, value: Any) -> dict[str, Any]:
    """Return a question with a name that holds for this very question, and no other of its task."""
    asked = dict(value) if isinstance(value, Mapping) else {"value": value}
    same = {name: asked[name] for name in asked if name != "problems"}
    text = json.dumps([interrupt_id, same], sort_keys=True, default=repr)
    mark = hashlib.sha256(text.encode()).hexdigest()[:QUESTION_HASH_LENGTH]
    name = base64.urlsafe_b64encode(thread.encode()).decode().rstrip("=")
    return {**asked, "question_id": f"{mark}-{name}", "interrupt_id": interrupt_id}


def graph_input(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a graph is given for a request that opens a turn."""
    given: dict[str, Any] = {}
    if "message" in request:
        given["messages"] = [
            *request.get("history", ()),
            {"role": "user", "content": request["message"]},
        ]
    if "plan" in request:
        given["planning_execution_plan"] = request["plan"]
    if "context" in request:
        given["capability_context_data"] = request["context"]
    return given
