"""Executor of logged runs, for the server and for workers.

A run is stored in the log with its complete request before it executes. Every operation here can
therefore be repeated at any point, by any process with the graph and the database.
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

from langchain_core.runnables import RunnableConfig

from capgraph.base.errors import InfrastructureError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.configs.run_context import override_run_context
from capgraph.engine.thread_lease import share_lease
from capgraph.graph.turn_runner import (
    DRAIN_SECONDS,
    TurnResult,
    TurnRunner,
    load_thread_values,
    step_states,
)
from capgraph.helpers.plain_data import to_plain
from capgraph.pipeline.run_config import configurable_for
from capgraph.scale.agent_rules import AgentRules
from capgraph.scale.agui_events import EventTranslator
from capgraph.scale.client_tools import ClientToolGraphs
from capgraph.scale.jobs import TurnJob
from capgraph.state import STATE_KEYS, StateSchema, TurnView
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.leases import Lease
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import STOPPING, TERMINAL_EVENTS, LoggedRun, RunLog, starts_turn
from capgraph.stores.threads import open_questions
from capgraph.stores.waits import open_waits

_MAX_READ_ATTEMPTS = 3
"""Attempts to read a thread before its run fails; a worker of another version may be able to read
it.
"""
_MAX_TURN_RUNS = 100
"""Maximum number of runs that are searched for the client tools of a turn."""
_HAND_OVER_SECONDS = 2.0
"""Maximum seconds that recording a handover may take, for example while the database is unavailable."""
QUESTION_HASH_LENGTH = 24
"""Length of the hash that distinguishes the questions of a thread."""


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """Result of a job that executes the runs of a thread.

    Attributes:
        thread: Storage ID of the thread.
        statuses: Outcome of each executed run, by run ID.
        has_more: Whether a different worker must continue the thread immediately.
    """

    thread: str
    statuses: Mapping[str, str]
    has_more: bool = False


async def advance(graph: Any, job: TurnJob, *, log: RunLog | None = None) -> AdvanceResult:
    """Execute the open runs of a thread.

    See :meth:`RunExecutor.advance`.

    Args:
        graph: Graph created by ``build_graph``, with a checkpointer.
        job: Job that identifies the thread.
        log: Run log. Defaults to the run log in the graph's database.

    >>> from capgraph import build_graph
    >>> from capgraph.scale.run_executor import advance
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> async def main():
    ...     graph = build_graph([], checkpointer=InMemorySaver())
    ...     log = graph.persistence.open_run_log()
    ...     await log.create(LoggedRun("r", "t", "", request={"message": "Sing", "caller": {}}))
    ...     first = await advance(graph, TurnJob("t", "r"), log=log)
    ...     again = await advance(graph, TurnJob("t", "r"), log=log)
    ...     return list(first.statuses), list(again.statuses)
    >>> asyncio.run(main())
    (['r'], [])
    """
    return await RunExecutor(graph, log or graph.persistence.open_run_log()).advance(job)


class RunExecutor:
    """Executor that runs logged runs in this process.

    Attributes:
        is_draining: Whether new runs are prevented from starting.
        shared_keys: Application state keys that clients may send.
        ended_counts: Number of runs that have ended, by outcome.

    Args:
        graph: Graph created by ``build_graph``, with a checkpointer.
        log: Run log.
        max_concurrent: Maximum number of concurrent runs.
        checks_rules: Whether to leave a run to other processes if the client that submitted it
            has more capabilities or stricter rules than this process.
    """

    def __init__(
        self, graph: Any, log: RunLog, *, max_concurrent: int = 1000, checks_rules: bool = False
    ) -> None:
        self._rules = AgentRules(graph.services) if checks_rules else None
        self._graph, self._log = graph, log
        self._tool_graphs = ClientToolGraphs(graph)
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._slots = asyncio.Semaphore(max_concurrent)
        self._turns: dict[str, TurnRunner] = {}
        self._stopped: set[str] = set()
        schema: StateSchema = graph.services.runner_config.schema
        self.shared_keys: list[str] = sorted(schema.caller_keys - STATE_KEYS)
        self._read_failures: Counter[str] = Counter()
        self.is_draining: bool = False
        self.ended_counts: Counter[str] = Counter()

    async def advance(self, job: TurnJob) -> AdvanceResult:
        """Execute the open runs of a thread, one after the other.

        Abandoned runs are executed first, followed by answers and events. A new message waits until
        the previous turn has ended. A job for a thread without open runs has no effect, so jobs may
        be duplicated or late.

        Raises:
            ThreadBusyError: A different process is running the thread.
            PersistenceError: The database is unavailable, the lease was lost, or a different worker
                must execute the run. No run was ended.
        """
        ended: dict[str, str] = {}
        while not self.is_draining:
            try:
                lease = await self._persistence.leases.acquire(job.thread)
            except ThreadBusyError:
                if not await self._log.open_runs(job.thread):
                    break  # nothing is left to run
                raise
            run, is_alone = None, True
            try:
                next_run, is_alone = await self._next_run(job.thread)
                if next_run is not None and self._rules is not None:
                    _check_rules(next_run, self._rules)
                run = next_run
            finally:
                if run is None:
                    await self._persistence.leases.release(lease)
            if run is None:
                break
            if (status := await self.run(run, lease, release_first=False)) is not None:
                ended[run.run_id] = status
                if is_alone:
                    break  # later requests have jobs of their own
            if not await self._log.open_runs(job.thread):
                break
        has_more = self.is_draining and bool(await self._log.open_runs(job.thread))
        return AdvanceResult(job.thread, ended, has_more)

    async def _next_run(self, thread: str) -> tuple[LoggedRun | None, bool]:
        """Return the run of a thread to execute next, and whether it is the only open run."""
        runs = await self._log.open_runs(thread)
        is_alone = len(runs) < 2
        for run in runs:
            if run.status != "queued":
                return run, is_alone
        open_items: Collection[Any] = ()
        try:
            may_be_busy = runs and await self._may_have_questions(thread)
            checkpoint = (
                await self._saver.aget_tuple(thread_config(thread)) if may_be_busy else None
            )
        except PersistenceError as exc:
            if not exc.is_unreadable:
                raise
        else:
            open_items = (
                checkpoint is not None and (open_questions(checkpoint) or open_waits(checkpoint))
            ) or ()
        ready = [
            run
            for run in runs
            if not run.is_new_turn or not open_items or run.request.get("abandon")
        ]
        return min(ready, key=lambda run: run.is_new_turn, default=None), is_alone

    async def _may_have_questions(self, thread: str) -> bool:
        # The run itself reads the thread; reading a long one twice would be slow.
        return not isinstance(self._saver, BaseSaver) or await self._saver.is_interrupted(thread)

    def run(
        self, run: LoggedRun, lease: Lease, *, release_first: bool = True
    ) -> Coroutine[Any, Any, str | None]:
        """Execute a run and return its outcome.

        Returns ``None`` if a different process must continue the run. The run can be stopped as
        soon as this method has been called.

        Args:
            run: Run to execute.
            lease: Lease of the run's thread. The executor releases it.
            release_first: Whether to release the lease before the last event is delivered, so that
                clients can send the next message immediately.

        Raises:
            PersistenceError: The database is unavailable or the lease was lost.
        """
        caller = Caller(**run.request["caller"])
        config: RunnableConfig = {
            "metadata": {"run_id": run.run_id},
            "configurable": {"thread_id": run.thread_id, **configurable_for(caller)},
        }
        with suppress(ValueError):
            # Traces, events, and the audit log use the same run ID as the client.
            config["run_id"] = uuid.UUID(run.run_id)
        turn = self._turns[run.run_id] = TurnRunner(self._graph, config)
        return self._execute(run, lease, turn, release_first)

    def stop(self, run_id: str) -> bool:
        """Cancel a run, or return False if this process is not executing it."""
        turn = self._turns.get(run_id)
        if turn is None:
            return False
        if run_id not in self._stopped:
            self._stopped.add(run_id)
            turn.stop()
        return True

    async def graph_of(self, thread: str, request: Mapping[str, Any]) -> Any:
        """Return the graph for a request, extended with the client tools of its turn.

        Args:
            thread: Storage ID of the thread.
            request: Request to run. If it resumes a turn, the client tools of the turn's earlier
                requests also apply.

        Raises:
            ValidationError: A client tool is invalid.
        """
        tools = request.get("client_tools")
        if tools is None and not starts_turn(request):
            for run in await self._log.thread_runs(thread, _MAX_TURN_RUNS):
                tools = run.request.get("client_tools")
                if tools is not None or run.is_new_turn:
                    break
        return await self._tool_graphs.get(tools)

    def shared_state(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of the graph state that is shared with clients.

        This part consists of the keys that the application declares in ``CallerInput``.
        """
        return {
            name: to_plain(values[name], lenient=True)
            for name in self.shared_keys
            if name in values
        }

    async def apply_stop_requests(self) -> None:
        """Cancel the runs in this process that other processes have requested to stop."""
        if self._turns:
            for run_id in await self._log.stopping_run_ids():
                self.stop(run_id)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop starting runs, and checkpoint active runs for other processes to resume."""
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
                        # Without the lease, this process must not end a run of another one.
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
                # The log still lists the run as unfinished, so it will be resumed.
                get_logger("scale", "advance").error("Run %s was suspended: %s", run.run_id, exc)
                raise
            self._read_failures.pop(run.run_id)
            return await self._finish(run, TurnResult(run.thread_id, error=exc), translator)
        except Exception as exc:
            get_logger("scale", "advance").error("Run %s failed", run.run_id, exc_info=exc)
            error = InfrastructureError("Internal server error.", fix="See the server log.")
            return await self._finish(run, TurnResult(run.thread_id, error=error), translator)
        finally:
            self._turns.pop(run.run_id, None)
            self._stopped.discard(run.run_id)
            self._log.release(run.run_id)

    async def _run_turn(
        self, run: LoggedRun, turn: TurnRunner, translator: EventTranslator
    ) -> TurnResult | None:
        if self.is_draining:
            return None
        events, may_continue = await self._log.claim(run)
        end = None
        try:
            end = await self._run_claimed(run, turn, translator, events, may_continue)
        finally:
            if end is None:
                # This process survives, so the run is not to blame.
                with suppress(PersistenceError, TimeoutError):
                    async with asyncio.timeout(_HAND_OVER_SECONDS):
                        await self._log.hand_over(run.run_id)
        return end

    async def _run_claimed(
        self,
        run: LoggedRun,
        turn: TurnRunner,
        translator: EventTranslator,
        recorded: list[dict[str, Any]],
        may_continue: bool,
    ) -> TurnResult | None:
        if recorded and recorded[-1]["type"] in TERMINAL_EVENTS:
            # A process died after writing the last event but before recording the outcome.
            status = (recorded[-1].get("result") or {}).get("status", "failed")
            await self._log.finish(run.run_id, status)
            return None
        if reason := run.request.get("unreadable"):
            raise PersistenceError(reason[0], fix=reason[1], is_unreadable=True)
        if run.starts >= self._graph.services.settings.scale.max_losses:
            return await self._end_poison_run(run, translator, recorded)
        values = {} if run.is_new_turn else await load_thread_values(self._graph, run.thread_id)
        first_events = (
            translator.takeover_events(recorded)
            if recorded
            else translator.start_events(values, step_states(values))
        )
        self._log.append_events(run.run_id, first_events, translator.shorten)
        if not may_continue:
            return await mark_stopped(self._graph, run.thread_id)
        run_input, is_over = await self._next_input(
            run, is_resumed=bool(recorded) or run.status != "queued"
        )

        turn.graph = await self.graph_of(run.thread_id, run.request)

        def record(event: dict[str, Any]) -> None:
            self._log.append_events(run.run_id, translator.translate(event), translator.shorten)

        def record_state(values: Mapping[str, Any]) -> None:
            events = translator.state_events(self.shared_state(values))
            self._log.append_events(run.run_id, events, translator.shorten)

        record_values = record_state if self.shared_keys else None
        # A turn may start long after it was submitted or scheduled.
        opener = TurnView(values).owner if values else Caller(**run.request["caller"])
        current = None if opener is None else await self._persistence.roles.find(opener)
        with override_run_context(current_roles=current):
            end = await (turn.read() if is_over else turn.run(run_input, record, record_values))
        if isinstance(end.error, PersistenceError):
            raise end.error  # the state is uncertain, so the run must be resumed
        if run.run_id in self._stopped and end.status == "cancelled":
            return await mark_stopped(self._graph, run.thread_id)
        return None if end.status == "drained" else end

    async def _end_poison_run(
        self, run: LoggedRun, translator: EventTranslator, recorded: list[dict[str, Any]]
    ) -> TurnResult:
        """Mark a run as failed because every process that started it ended before finishing it."""
        max_losses = self._graph.services.settings.scale.max_losses
        error = InfrastructureError(
            f"The turn was started {run.starts} times, and each time its process ended first.",
            fix="Find the cause in the logs of the workers, then send the request again.",
            facts={"run_id": run.run_id, "starts": run.starts},
        )
        first_events = (
            translator.takeover_events(recorded) if recorded else translator.start_events({}, {})
        )
        self._log.append_events(run.run_id, first_events, translator.shorten)
        outcome = {"status": "failed", "reason": str(error), "code": error.code}
        if run.starts == max_losses:  # later, reading the thread may be what ends the process
            await _end_turn(self._graph, run.thread_id, outcome)
        return TurnResult(run.thread_id, outcome=outcome, error=error)

    async def _next_input(self, run: LoggedRun, *, is_resumed: bool) -> tuple[Any, bool]:
        """Return the graph input for a run, and whether the run has nothing left to do."""
        from langgraph.types import Command

        request = run.request
        checkpoint = None
        if is_resumed or "answers" in request:
            checkpoint = await self._saver.aget_tuple(thread_config(run.thread_id))
        if "answers" in request:
            questions: Collection[str] = (
                open_questions(checkpoint) if checkpoint is not None else ()
            )
            if not request["answers"].keys() <= set(questions):
                # The question has been answered, perhaps by this run before a restart.
                return None, not await self._is_unfinished(run.thread_id)
            return Command(resume=dict(request["answers"])), False
        if not run.is_new_turn:
            return None, False
        if checkpoint is not None and (checkpoint.metadata or {}).get("run_id") == run.run_id:
            return None, not await self._is_unfinished(run.thread_id)
        return graph_input(request), False

    async def _is_unfinished(self, thread: str) -> bool:
        snapshot = await self._graph.aget_state(thread_config(thread))
        return bool(snapshot.tasks) and not snapshot.interrupts

    async def _finish(self, run: LoggedRun, end: TurnResult, translator: EventTranslator) -> str:
        if end.error is not None:
            await self._persistence.waits.postpone(run.thread_id)
        questions = [
            identify_question(run.thread_id, key, value) for key, value in end.questions.items()
        ]
        services = self._graph.services
        if end.answer and services.flow is not None:
            # Clients may send the answer back as history.
            await self._persistence.answer_labels.record(
                run.owner,
                end.answer,
                end.labels,
                services.clock,
                services.settings.serve.keep_runs_days * 86_400,
            )
        result = {**end.to_dict(), "thread_id": translator.thread_id}
        result.pop("questions", None)
        # Clients must not see paths on the server.
        result["files"] = [PurePath(one).name for one in end.files]
        public_questions = [{**one, "thread_id": translator.thread_id} for one in questions]
        events = translator.end_events(result, public_questions)
        self._log.append_events(run.run_id, events, translator.shorten)
        await self._log.finish(run.run_id, end.status)
        self.ended_counts[end.status] += 1
        return end.status


async def mark_stopped(graph: Any, thread: str) -> TurnResult:
    """Mark the current turn of a thread as stopped and close its questions.

    The caller must hold the thread's lease.

    Args:
        graph: Graph created by ``build_graph``, with a checkpointer.
        thread: Storage ID of the thread.
    """
    outcome = {"status": "stopped", "cancelled": True}
    await _end_turn(graph, thread, outcome)
    return TurnResult(thread, status="stopped", outcome=outcome)


def _check_rules(run: LoggedRun, rules: AgentRules) -> None:
    """Raise an error if an agent with these rules is not allowed to execute a run."""
    submitted = run.request.get("agent")
    if submitted is None or run.status == STOPPING:
        return
    caller, is_decision = Caller(**run.request["caller"]), "answers" in run.request
    reason = rules.find_mismatch(submitted, caller, is_decision=is_decision)
    if reason is not None:
        raise PersistenceError(
            f"This worker cannot execute the run {run.run_id!r}, because {reason}.",
            fix="Start all workers with the configuration of the client that submits turns.",
            facts={"run_id": run.run_id, "reason": reason},
        )


async def _end_turn(graph: Any, thread: str, outcome: Mapping[str, Any]) -> None:
    # Written as a terminal node, so that no question and no task remains.
    await graph.aupdate_state(thread_config(thread), {"execution_outcome": outcome}, "error")
    waits = graph.persistence.waits
    if (wait := await waits.get(thread)) is not None:
        await waits.drop(wait)


def identify_question(thread: str, interrupt_id: str, value: Any) -> dict[str, Any]:
    """Return a copy of a question with an ID derived from its interrupt and content."""
    question = dict(value) if isinstance(value, Mapping) else {"value": value}
    content = {
        encoded_thread: question[encoded_thread]
        for encoded_thread in question
        if encoded_thread != "problems"
    }
    text = json.dumps([interrupt_id, content], sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()[:QUESTION_HASH_LENGTH]
    encoded_thread = base64.urlsafe_b64encode(thread.encode()).decode().rstrip("=")
    return {**question, "question_id": f"{digest}-{encoded_thread}", "interrupt_id": interrupt_id}


def graph_input(request: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a request that starts a turn to the input of the graph."""
    values: dict[str, Any] = {}
    if "message" in request:
        values["messages"] = [
            *request.get("history", ()),
            {"role": "user", "content": request["message"]},
        ]
    if "plan" in request:
        values["planning_execution_plan"] = request["plan"]
    if "context" in request:
        values["capability_context_data"] = request["context"]
    values |= request.get("state", {})
    if "answer_schema" in request:
        values["execution_answer_schema"] = request["answer_schema"]
    return values
