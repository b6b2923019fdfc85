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
from capgraph.engine.thread_lease import lend
from capgraph.graph.turns import DRAIN_SECONDS, Turn, TurnEnd, step_states, thread_values
from capgraph.pipeline.run_config import configurable_of
from capgraph.scale.order import TurnOrder
from capgraph.scale.translate import Translator, interrupt_of
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.leases import Lease
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import ENDS, LoggedRun, RunLog
from capgraph.stores.threads import open_questions
from capgraph.stores.waits import open_waits

_READS = 3
"""So often a thread that cannot be read is given back: a worker of another version may know how."""
MARK = 24
"""So long is the part of a question's name that tells it from others of its thread."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an order.

    Attributes:
        thread: The thread.
        ended: How each run ended that was gone on with.
        left: Whether there is more to do at once, which another worker has to do.
    """

    thread: str
    ended: Mapping[str, str]
    left: bool = False


async def advance(graph: Any, order: TurnOrder, *, log: RunLog | None = None) -> Report:
    """Do what the open runs of a thread ask for; see :meth:`Runner.advance`.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        order: Names the thread.
        log: Where its runs are; beside the graph's threads when not given.

    >>> from capgraph import build_graph
    >>> from capgraph.scale.advance import advance
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> async def main():
    ...     graph = build_graph([], checkpointer=InMemorySaver())
    ...     log = graph.persistence.open_run_log()
    ...     await log.open(LoggedRun("r", "t", "", request={"message": "Sing", "caller": {}}))
    ...     first = await advance(graph, TurnOrder("t", "r"), log=log)
    ...     again = await advance(graph, TurnOrder("t", "r"), log=log)
    ...     return list(first.ended), list(again.ended)
    >>> asyncio.run(main())
    (['r'], [])
    """
    return await Runner(graph, log or graph.persistence.open_run_log()).advance(order)


class Runner:
    """Runs what stands in the log, in this process.

    Attributes:
        draining: Whether nothing else begins here.
        ended: How many runs ended here, by how.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        log: Where the runs are.
        at_once: So many go on at the same time.
    """

    def __init__(self, graph: Any, log: RunLog, *, at_once: int = 1000) -> None:
        self._graph, self._log = graph, log
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._slots = asyncio.Semaphore(at_once)
        self._turns: dict[str, Turn] = {}
        self._stopped: set[str] = set()
        self._unread: Counter[str] = Counter()
        self.draining: bool = False
        self.ended: Counter[str] = Counter()

    async def advance(self, order: TurnOrder) -> Report:
        """Do what the open runs of a thread ask for, one after the other.

        A run that somebody left comes first, then answers and events. A further message waits until
        the turn before it has ended, also while a person is asked. Without open runs nothing
        happens, so an order may come twice or late.

        Raises:
            ThreadBusyError: Somebody else runs the thread.
            PersistenceError: The database is away, or the lease was lost; nothing was ended.
        """
        ended: dict[str, str] = {}
        while not self.draining:
            try:
                lease = await self._persistence.leases.take(order.thread)
            except ThreadBusyError:
                if not await self._log.open_of(order.thread):
                    break  # there is nothing to wait for
                raise
            run, alone = None, True
            try:
                run, alone = await self._next(order.thread)
            finally:
                if run is None:
                    await self._persistence.leases.release(lease)
            if run is None:
                break
            if (status := await self.run(run, lease, frees_first=False)) is not None:
                ended[run.run_id] = status
                if alone:
                    break  # whatever was asked for meanwhile has an order of its own
            if not await self._log.open_of(order.thread):
                break
        left = self.draining and bool(await self._log.open_of(order.thread))
        return Report(order.thread, ended, left)

    async def _next(self, thread: str) -> tuple[LoggedRun | None, bool]:
        """Return what to go on with, and whether nothing else was asked for."""
        runs = await self._log.open_of(thread)
        alone = len(runs) < 2
        for run in runs:
            if run.status != "queued":
                return run, alone
        busy: Collection[Any] = ()
        try:
            asked = runs and await self._may_be_asked(thread)
            found = await self._saver.aget_tuple(thread_config(thread)) if asked else None
        except PersistenceError as exc:
            if not exc.unreadable:
                raise
        else:
            busy = (found is not None and (open_questions(found) or open_waits(found))) or ()
        ready = [
            run for run in runs if not run.is_new_turn or not busy or run.request.get("abandon")
        ]
        return min(ready, key=lambda run: run.is_new_turn, default=None), alone

    async def _may_be_asked(self, thread: str) -> bool:
        # What a long thread holds is read by the run itself, and once is enough.
        return not isinstance(self._saver, BaseSaver) or await self._saver.is_asked(thread)

    def run(
        self, run: LoggedRun, lease: Lease, *, frees_first: bool = True
    ) -> Coroutine[Any, Any, str | None]:
        """Run one run of the log; it returns how the run ended, ``None`` when somebody has to go on.

        It can be stopped from this moment on.

        Args:
            run: The run.
            lease: That of its thread; it is given back.
            frees_first: Whether that is before anybody hears of the end, so that whoever does may ask
                the thread again at once.

        Raises:
            PersistenceError: The database is away, or the lease was lost.
        """
        caller = Caller(**run.request["caller"])
        config: dict[str, Any] = {
            "metadata": {"run_id": run.run_id},
            "configurable": {"thread_id": run.thread_id, **configurable_of(caller)},
        }
        with suppress(ValueError):
            # Traces, events and the audit call the run as whoever asked for it does.
            config["run_id"] = uuid.UUID(run.run_id)
        turn = self._turns[run.run_id] = Turn(self._graph, config)
        return self._work(run, lease, turn, frees_first)

    def stop(self, run_id: str) -> bool:
        """Cancel a run of this process; tells whether it is one."""
        turn = self._turns.get(run_id)
        if turn is None:
            return False
        if run_id not in self._stopped:
            self._stopped.add(run_id)
            turn.stop()
        return True

    async def look(self) -> None:
        """Stop what was stopped from elsewhere."""
        if self._turns:
            for run_id in await self._log.stopping():
                self.stop(run_id)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Begin nothing else; what runs comes to a point from which another process goes on."""
        self.draining = True
        for turn in self._turns.values():
            turn.drain(seconds)

    async def _work(
        self, run: LoggedRun, lease: Lease, turn: Turn, frees_first: bool
    ) -> str | None:
        translator = Translator(run.thread_id.removeprefix(run.owner), run.run_id)
        try:
            try:
                async with self._slots:
                    with lend(lease):
                        end = await self._run_turn(run, turn, translator)
                    if end is not None:
                        # Whoever has lost the thread does not say how the run of another ended.
                        await self._persistence.leases.confirm(run.thread_id, ask=False)
                if end is not None and not frees_first:
                    return await self._end(run, end, translator)
            finally:
                await self._persistence.leases.release(lease)
            return await self._end(run, end, translator) if end is not None else None
        except PersistenceError as exc:
            if exc.unreadable:
                self._unread[run.run_id] += 1
            if not exc.unreadable or (not frees_first and self._unread[run.run_id] < _READS):
                # Whoever starts next goes on with it: it stands in the log as not ended.
                get_logger("scale", "advance").error("The run %s was left: %s", run.run_id, exc)
                raise
            self._unread.pop(run.run_id)
            return await self._end(run, TurnEnd(run.thread_id, error=exc), translator)
        except Exception as exc:
            get_logger("scale", "advance").error("The run %s failed", run.run_id, exc_info=exc)
            broken = InfrastructureError("The server failed.", fix="Its log has the cause.")
            return await self._end(run, TurnEnd(run.thread_id, error=broken), translator)
        finally:
            self._turns.pop(run.run_id, None)
            self._stopped.discard(run.run_id)
            self._log.leave(run.run_id)

    async def _run_turn(self, run: LoggedRun, turn: Turn, translator: Translator) -> TurnEnd | None:
        if self.draining:
            return None
        told, may = await self._log.take_up(run)
        if told and told[-1]["type"] in ENDS:
            # The process ended between the last event and the word of it.
            status = (told[-1].get("result") or {}).get("status", "failed")
            await self._log.end(run.run_id, status)
            return None
        if why := run.request.get("unreadable"):
            raise PersistenceError(why[0], fix=why[1], unreadable=True)
        values = {} if run.is_new_turn else await thread_values(self._graph, run.thread_id)
        begun = (
            translator.taken_up(told) if told else translator.started(values, step_states(values))
        )
        self._log.tell(run.run_id, begun, translator.shortened)
        if not may:
            return await stopped(self._graph, run.thread_id)
        given, over = await self._input(run, again=bool(told) or run.status != "queued")

        def tell(event: dict[str, Any]) -> None:
            self._log.tell(run.run_id, translator.event(event), translator.shortened)

        end = await (turn.read() if over else turn.run(given, tell))
        if isinstance(end.error, PersistenceError):
            raise end.error  # nothing that can be trusted was ended
        if run.run_id in self._stopped and end.status == "cancelled":
            return await stopped(self._graph, run.thread_id)
        return None if end.status == "drained" else end

    async def _input(self, run: LoggedRun, *, again: bool) -> tuple[Any, bool]:
        """Return what the graph begins with, and whether nothing of it is left to do."""
        from langgraph.types import Command

        request = run.request
        found = None
        if again or "answers" in request:
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
        return given_of(request), False

    async def _is_unfinished(self, thread: str) -> bool:
        snapshot = await self._graph.aget_state(thread_config(thread))
        return bool(snapshot.tasks) and not snapshot.interrupts

    async def _end(self, run: LoggedRun, end: TurnEnd, translator: Translator) -> str:
        if end.error is not None:
            await self._persistence.waits.put_off(run.thread_id)
        asked = [question_of(run.thread_id, key, value) for key, value in end.questions.items()]
        result = {**end.as_data(), "thread_id": translator.thread_id}
        result.pop("questions", None)
        # Where a file lies concerns nobody who asks: it is had by reference.
        result["files"] = [PurePath(one).name for one in end.files]
        shown = [{**one, "thread_id": translator.thread_id} for one in asked]
        told = translator.finished(result, [interrupt_of(q) for q in shown])
        self._log.tell(run.run_id, told, translator.shortened)
        await self._log.end(run.run_id, end.status)
        self.ended[end.status] += 1
        return end.status


async def stopped(graph: Any, thread: str) -> TurnEnd:
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
    return TurnEnd(thread, status="stopped", outcome=outcome)


def question_of(thread: str, interrupt_id: str, value: Any) -> dict[str, Any]:
    """Return a question with a name that holds for this very question, and no other of its task."""
    asked = dict(value) if isinstance(value, Mapping) else {"value": value}
    same = {name: asked[name] for name in asked if name != "problems"}
    text = json.dumps([interrupt_id, same], sort_keys=True, default=repr)
    mark = hashlib.sha256(text.encode()).hexdigest()[:MARK]
    name = base64.urlsafe_b64encode(thread.encode()).decode().rstrip("=")
    return {**asked, "question_id": f"{mark}-{name}", "interrupt_id": interrupt_id}


def given_of(request: Mapping[str, Any]) -> dict[str, Any]:
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
