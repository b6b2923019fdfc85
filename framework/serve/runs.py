"""Runs of the server: start, follow, answer, stop, and resume after a restart.

Every protocol starts its runs here. A run outlives the request that started it, so a client can
disconnect and later read every event exactly once.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from capgraph.approvals import parse_decisions
from capgraph.approvals.requests import restricts_approvers
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.errors import (
    LimitError,
    PersistenceError,
    ThreadBusyError,
    ValidationError,
)
from capgraph.base.ports import Caller, normalize_user_id
from capgraph.engine.graph_input import validate_input
from capgraph.engine.thread_lease import share_lease
from capgraph.governance.information_flow import UNTRUSTED
from capgraph.graph.signals import signal as send_signal
from capgraph.graph.turn_runner import DRAIN_SECONDS
from capgraph.pipeline.run_config import configurable_for
from capgraph.pipeline.step_execution import LABELS_KEY
from capgraph.scale.agent_rules import AgentRules
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import (
    QUESTION_HASH_LENGTH,
    RunExecutor,
    graph_input,
    identify_question,
    mark_stopped,
)
from capgraph.serve.deliveries import repeat
from capgraph.serve.problems import AnswerRefusedError, ConflictError, NotFoundError
from capgraph.state import TurnView
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.run_log import STOPPING, LoggedRun, RunLog, starts_turn
from capgraph.stores.threads import list_suspended_threads, open_questions

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings
    from capgraph.scale.engine import Engine
    from capgraph.serve.threads import Threads

_POLL_SECONDS = 1.0
_RECOVER_SECONDS = 5.0
_PRUNE_SECONDS = 3600.0
_MAX_LISTED_RUNS = 500
"""Maximum number of runs that are searched for those of a turn."""
INSTRUCTIONS_ID = "client-instructions"
"""ID of the message with a client's instructions. Those of the next request replace it."""
_OWN_ROLES = frozenset({"user", "system", "developer"})
"""Roles of messages that the client's user wrote."""
_MAX_UNLOGGED_THREADS = 50
"""Maximum number of threads checked for questions without a logged run, for example in forks."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run of the graph, as visible to its caller.

    Attributes:
        run_id: ID of the run.
        thread_id: ID of its thread, as the user sees it.
        status: ``queued``, ``running``, or the outcome of the turn.
    """

    run_id: str
    thread_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of a thread, with the run that started it and the runs that resumed it.

    Attributes:
        run: Latest run of the turn.
        requests: ID and request of each run, in order. The first run started the turn.
        created_at: Time of the first request.
        updated_at: Time at which the latest run ended, or was requested if it is active.
        is_active: True if the latest run has not ended.
    """

    run: Run
    requests: Sequence[tuple[str, Mapping[str, Any]]]
    created_at: float
    updated_at: float
    is_active: bool

    @property
    def turn_id(self) -> str:
        """ID of the first run."""
        return self.requests[0][0]

    @property
    def message(self) -> str | None:
        """Text of the user's message that started the turn, or ``None`` if a plan started it."""
        return self.requests[0][1].get("message")

    @property
    def message_id(self) -> str | None:
        """The client's ID of the message."""
        return self.requests[0][1].get("message_id")


class Runs:
    """Service that starts, resumes, follows, and stops runs of a graph for users.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        log: Storage of runs and their events.
        settings: Limits of the server.
        engine: Engine that hands runs to workers. Without it, runs execute in this process.
        current: Function that returns a user with the current role, or ``None`` if the user may no
            longer log in. By default, the role of the last request applies.
    """

    def __init__(
        self,
        graph: Any,
        threads: Threads,
        log: RunLog,
        settings: ServeSettings,
        engine: Engine | None = None,
        current: Callable[[Caller], Awaitable[Caller | None]] | None = None,
    ) -> None:
        self._engine, self._current = engine, current
        self._rules = AgentRules(graph.services)
        self._graph = graph
        self._saver = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._threads = threads
        self._log = log
        self._settings = settings
        self._executor = RunExecutor(graph, log, max_concurrent=settings.max_concurrent_runs)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next_recovery = self._next_pruning = 0.0

    @property
    def is_draining(self) -> bool:
        """True if this process is shutting down and starts no new runs."""
        return self._executor.is_draining

    @property
    def ended_counts(self) -> Mapping[str, int]:
        """Number of runs that have ended in this process, by outcome."""
        return self._executor.ended_counts

    @property
    def shared_keys(self) -> Collection[str]:
        """Application state keys that clients may send."""
        return self._executor.shared_keys

    @property
    def has_chat_model(self) -> bool:
        """True if a chat model is configured for planning or answering."""
        chat_model = self._graph.services.chat_model
        return bool(chat_model("planning") or chat_model("answer"))

    @property
    def active_count(self) -> int:
        """Number of runs that this process is executing."""
        return len(self._tasks)

    # --- start ----------------------------------------------------------------------------

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
        message_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        client_tools: Sequence[Mapping[str, Any]] | None = None,
        answer_schema: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        response_options: Mapping[str, Any] | None = None,
    ) -> Run:
        """Start a run in the background, for a message, a plan, or answers, and return it.

        Args:
            caller: The authenticated caller.
            thread_id: ID of the thread; created if it does not exist.
            message: The user's message.
            plan: Plan to run instead of generating one.
            answers: Answers by interrupt ID.
            context: Context data, by type and key.
            history: Earlier messages that the thread does not contain, each with ``role`` and
                ``content``.
            message_id: The client's ID of the message.
            state: Values of application state keys.
            client_tools: Tools of the client, as arguments of
                :func:`~capgraph.scale.client_tools.client_tool`.
            answer_schema: JSON schema of the answer. Requires a chat model.
            instructions: Instructions of the client for this turn. They replace those of the
                thread's last request; ``None`` keeps them. Requires a chat model.
            response_options: Options of the request that its response repeats.

        Raises:
            ThreadBusyError: The thread has an active run.
            LimitError: The caller has too many active runs.
            ValidationError: The request is empty, or contains data that a caller must not send.
        """
        if message is None and plan is None and answers is None:
            raise ValidationError("The request has no message and no plan.", fix="Send one.")
        if plan is not None and not isinstance(plan, Mapping):
            raise ValidationError(
                f"The plan is of type {type(plan).__name__}: expected an object.",
                fix='Send {"steps": […]}.',
            )
        if message is not None and not message.strip():
            raise ValidationError("The message is empty.", fix="Send a non-empty message.")
        history = await self._with_labels(caller, history or ())
        history[:0] = await self._instruction_messages(caller, thread_id, instructions)
        if not self.has_chat_model and any(one["role"] == "system" for one in history):
            raise ValidationError(
                "The request has instructions or system messages, but no chat model is configured.",
                fix="Remove them, or configure a model.",
                facts={"key": "instructions"},
            )
        fields: dict[str, Any] = {
            "message": message,
            "plan": plan,
            "answers": answers,
            "context": context,
            "history": history or None,
            "message_id": message_id,
            "state": dict(state) if state else None,
            "client_tools": list(client_tools) if client_tools else None,
            "answer_schema": answer_schema,
            "response_options": response_options,
        }
        request = {name: value for name, value in fields.items() if value is not None}
        # A new message instead of an answer cancels the open question.
        request["abandon"] = True
        storage_id = self._threads.storage_id(caller, thread_id)
        if answers is None:
            # Reject invalid input before anything is stored.
            graph = await self._executor.graph_of(storage_id, request)
            validate_input(
                graph_input(request), thread_config(storage_id), graph.services, has_saver=True
            )
        await self._persistence.roles.record(caller)
        return await self._start(caller, storage_id, request)

    async def _start(
        self,
        caller: Caller,
        storage_id: str,
        request: Mapping[str, Any],
        question_ids: Collection[str] = (),
    ) -> Run:
        # A process that shuts down stores the run, and the one that takes over executes it.
        is_handed_over = self.is_draining and self._persistence.tables is not None
        if self.is_draining and not is_handed_over:
            raise PersistenceError("The server is shutting down.", fix="Try again in a moment.")
        owner = self._threads.prefix_of(storage_id)
        if not starts_turn(request):
            await self._record_current_roles(storage_id)
        request = {**request, "caller": asdict(caller)}
        if self._engine is not None:
            request["agent"] = self._rules.describe(caller)
        run = LoggedRun(str(uuid.uuid4()), storage_id, owner, request=request)
        limit = self._settings.max_active_runs_per_user
        if self._engine is not None or is_handed_over:
            if await self._log.open_runs(storage_id):
                raise ThreadBusyError(
                    f"The thread {self._threads.public_id(caller, storage_id)!r} has an active run.",
                    fix="Wait until that run ends or asks a question.",
                )
            await self._check_still_open(storage_id, question_ids)
            await self._log.create(run, is_local=False, max_open=limit)
            if self._engine is not None:
                await self._engine.submit(TurnJob(storage_id, run.run_id))
            return self._public_run(caller, run)
        lease = await self._persistence.leases.acquire(storage_id)
        try:
            # Another answer may have been accepted before the lease was acquired.
            await self._check_still_open(storage_id, question_ids)
            await self._log.create(run, max_open=limit)
        except BaseException:
            await self._persistence.leases.release(lease)
            raise
        self._start_task(run, self._executor.run(run, lease))
        return self._public_run(caller, run)

    async def _with_labels(
        self, caller: Caller, history: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return a client's message history with the data labels that this server recorded.

        Tool results, and answers that the server did not send to this user, are labeled as
        untrusted.
        """
        if self._graph.services.flow is None:
            return list(history)
        owner = self._threads.owner_prefix(caller)
        labeled: list[Mapping[str, Any]] = []
        for message in history:
            labels: Mapping[str, str] | None = {}
            if message.get("role") not in _OWN_ROLES:
                labels = await self._persistence.answer_labels.find(
                    owner, str(message.get("content")), self._graph.services.clock
                )
            if labels is None:
                labels = {UNTRUSTED: "a message of the request that this server did not write"}
            # A client's own metadata must not replace the labels.
            others = {k: v for k, v in message.items() if k != "response_metadata"}
            labeled.append(
                {**others, **({"response_metadata": {LABELS_KEY: labels}} if labels else {})}
            )
        return labeled

    async def _instruction_messages(
        self, caller: Caller, thread_id: str, instructions: str | None
    ) -> list[Mapping[str, Any]]:
        """Return the message that adds, replaces, or removes the client's instructions in a thread."""
        if instructions:
            return [{"role": "system", "content": instructions, "id": INSTRUCTIONS_ID}]
        if instructions is None:
            return []
        try:
            state = await self._threads.state(caller, thread_id)
        except NotFoundError:
            return []
        if any(one["id"] == INSTRUCTIONS_ID for one in state["messages"]):
            return [{"role": "remove", "content": "", "id": INSTRUCTIONS_ID}]
        return []

    async def _record_current_roles(self, storage_id: str) -> None:
        """Record the current roles of the users on whose behalf a turn continues."""
        if self._current is None:
            return
        state = await self._graph.aget_state(thread_config(storage_id))
        view = TurnView(dict(state.values))
        if (owner := view.owner) is None or not owner.authenticated:
            return
        approvals = [entry.get("approvals") or {} for entry in view.pending_approvals.values()]
        users = {owner.user_id, *(user for one in approvals for user in one.get("agreed") or ())}
        for user in users - {None}:
            person = replace(owner, user_id=user)
            current = await self._current(person) or replace(person, role=None)
            await self._persistence.roles.record(current)

    async def _check_still_open(self, storage_id: str, question_ids: Collection[str]) -> None:
        if (
            question_ids
            and not set(question_ids) <= (await self._open_questions(storage_id)).keys()
        ):
            raise ConflictError(
                "The question has already been answered.", fix="List the open questions."
            )

    def _start_task(self, run: LoggedRun, work: Coroutine[Any, Any, Any]) -> None:
        task = self._tasks[run.run_id] = asyncio.create_task(self._run_to_end(run, work))
        task.add_done_callback(lambda _: self._tasks.pop(run.run_id, None))

    async def _run_to_end(self, run: LoggedRun, work: Coroutine[Any, Any, Any]) -> None:
        # The log still lists the run as unfinished, so the next recovery resumes it.
        with suppress(PersistenceError, ThreadBusyError):
            await work

    # --- read -----------------------------------------------------------------------------

    async def get(self, caller: Caller, run_id: str) -> Run:
        """Return one of the caller's runs by its ID.

        Raises:
            NotFoundError: The run does not exist or belongs to another user.
        """
        return self._public_run(caller, await self.get_logged(caller, run_id))

    async def get_logged(self, caller: Caller, run_id: str) -> LoggedRun:
        """Return the log's entry of one of the caller's runs, with its request.

        Raises:
            NotFoundError: The run does not exist or belongs to another user.
        """
        run = await self._log.get(run_id)
        if run is None or run.owner != self._threads.owner_prefix(caller):
            raise NotFoundError("The run does not exist.", fix="Start a run.")
        return run

    async def get_turn(self, caller: Caller, run_id: str) -> Turn:
        """Return one of the caller's turns by the ID of the turn's first run.

        Raises:
            NotFoundError: The run does not exist or is not the first of a turn.
        """
        first = await self.get_logged(caller, run_id)
        runs = await self._log.thread_runs(first.thread_id, _MAX_LISTED_RUNS)
        for turn in self._group_turns(caller, runs):
            if turn.turn_id == run_id:
                return turn
        raise NotFoundError(
            "The run is not the first run of a turn.", fix="Use the first run of the turn."
        )

    async def latest_turn(self, caller: Caller, thread_id: str) -> Turn | None:
        """Return the last turn of a thread, or ``None`` if the thread has no runs."""
        runs = await self._log.thread_runs(self._threads.storage_id(caller, thread_id))
        turns = self._group_turns(caller, runs)
        return turns[-1] if turns else None

    async def list_turns(self, caller: Caller) -> list[Turn]:
        """Return the caller's turns, ordered by start time."""
        prefix = self._threads.owner_prefix(caller)
        return self._group_turns(caller, await self._log.owner_runs(prefix, _MAX_LISTED_RUNS))

    def _group_turns(self, caller: Caller, runs: Sequence[LoggedRun]) -> list[Turn]:
        """Group runs into turns, in the order in which the turns began.

        Args:
            caller: The caller.
            runs: Runs to group, latest first.
        """
        turns: list[list[LoggedRun]] = []
        last_turns: dict[str, list[LoggedRun]] = {}
        for run in reversed(runs):
            if run.is_new_turn or run.thread_id not in last_turns:
                last_turns[run.thread_id] = []
                turns.append(last_turns[run.thread_id])
            last_turns[run.thread_id].append(run)
        return [
            Turn(
                self._public_run(caller, turn[-1]),
                [(run.run_id, run.request) for run in turn],
                turn[0].created_at,
                turn[-1].ended_at or turn[-1].created_at,
                turn[-1].is_open,
            )
            for turn in turns
        ]

    def _public_run(self, caller: Caller, run: LoggedRun) -> Run:
        status = "running" if run.status == STOPPING else run.status
        return Run(run.run_id, self._threads.public_id(caller, run.thread_id), status)

    async def follow(
        self, caller: Caller, run_id: str, after: int = 0
    ) -> AsyncGenerator[list[tuple[int, str]]]:
        """Return an iterator of pages of a run's events as JSON text; see :meth:`events`."""
        await self.get_logged(caller, run_id)
        return self._log.follow(run_id, after)

    async def events(
        self, caller: Caller, run_id: str, after: int = 0
    ) -> AsyncGenerator[tuple[int, dict[str, Any]]]:
        """Yield the numbered events of a run until the run ends.

        Args:
            caller: The caller.
            run_id: ID of the run.
            after: Number of the last event already received.

        Raises:
            NotFoundError: The run does not exist.
        """
        async with aclosing(await self.follow(caller, run_id, after)) as pages:
            async for page in pages:
                for seq, text in page:
                    yield seq, json.loads(text)

    async def wait_for_end(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """Wait until a run ends, and return its last event.

        If the server shuts down first, return the last event until then. The event is empty if the
        run's events were deleted.

        Raises:
            NotFoundError: The run does not exist.
        """
        last_event = "{}"
        async with aclosing(await self.follow(caller, run_id)) as pages:
            async for page in pages:
                last_event = page[-1][1] if page else last_event
        event: dict[str, Any] = json.loads(last_event)
        return event

    async def is_reachable(self) -> bool:
        """Return True if the database responds."""
        try:
            await self._log.get("")
        except PersistenceError:
            return False
        return True

    async def stop(self, caller: Caller, run_id: str) -> Run:
        """Cancel a run, even if it executes in a different process. An ended run is unchanged.

        If the run is waiting for a person or an event, its turn ends with the status stopped.

        Raises:
            NotFoundError: The run does not exist.
            ThreadBusyError: A different run is currently resuming the turn.
        """
        run = await self.get_logged(caller, run_id)
        latest = run.status == "waiting" and await self._log.thread_runs(run.thread_id, 1)
        if latest and latest[0].run_id == run_id:
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
        """Return the open questions in all threads of the caller, or in one thread.

        Raises:
            NotFoundError: The thread does not exist.
        """
        if thread_id is not None:
            threads = [await self._threads.resolve(caller, thread_id)]
        else:
            threads = await self._log.waiting_threads(self._threads.owner_prefix(caller))
            threads += await self._threads.list_recent(caller, _MAX_UNLOGGED_THREADS)
            threads += await self._log.waiting_threads() if self._is_approver(caller) else []
        prefix = self._threads.owner_prefix(caller)
        return [
            {**question, **self._approver_fields(caller, storage_id, question)}
            for storage_id in dict.fromkeys(threads)
            for question in (await self._open_questions(storage_id)).values()
            if storage_id.startswith(prefix) or self._can_decide(caller, storage_id, question)
        ]

    def _is_approver(self, caller: Caller) -> bool:
        """Return True if the caller may be able to approve steps in other users' threads."""
        services = self._graph.services
        if services.permissions is not None:
            return caller.role is not None
        return any(
            ApprovalPolicy.from_declaration(spec.requires_approval).restricts_approvers
            for spec in services.registry.capabilities.values()
            if spec.requires_approval
        )

    def _can_decide(self, caller: Caller, storage_id: str, question: Mapping[str, Any]) -> bool:
        """Return True if the caller may decide on an approval in a different user's thread.

        The approval must require a named person. If permissions are configured, the caller's role
        must permit the capability.
        """
        permissions = self._graph.services.permissions
        steps = question.get("steps")
        if not self._is_approver(caller) or not isinstance(steps, list):
            return False
        return self._threads.is_in_tenant(caller, storage_id) and all(
            restricts_approvers(step)
            and (permissions is None or permissions.outcome(step["capability"], caller).allowed)
            and (
                permissions is None
                or not step["approvals"].get("needs_overseer")
                or permissions.is_overseer(caller)
            )
            for step in steps
        )

    def _approver_fields(
        self, caller: Caller, storage_id: str, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of an approval question that depend on the caller.

        ``can_decide`` and ``has_approved`` describe the caller. ``requester`` is the owner of the
        thread, if that is a different user. ``approver_roles`` lists the roles that may approve.
        """
        permissions = self._graph.services.permissions
        restricted = [one for one in question.get("steps") or () if restricts_approvers(one)]
        is_own = storage_id.startswith(self._threads.owner_prefix(caller))
        person = normalize_user_id(caller.user_id or "")
        has_approved = any(
            person in map(normalize_user_id, map(str, one["approvals"]["agreed"]))
            for one in restricted
        )
        is_excluded = is_own and any(one["approvals"]["not_requester"] for one in restricted)
        fields = {
            "thread_id": self._threads.public_id(caller, storage_id),
            "can_decide": not (has_approved or is_excluded),
            "has_approved": has_approved,
        }
        if restricted and permissions is not None:
            names = {one["capability"] for one in restricted}
            needs_overseer = any(one["approvals"].get("needs_overseer") for one in restricted)
            fields["approver_roles"] = permissions.roles_allowed(
                names, caller.tenant, is_overseer=needs_overseer
            )
        return fields if is_own else {**fields, "requester": self._threads.owner_name(storage_id)}

    async def _open_questions(self, storage_id: str) -> dict[str, dict[str, Any]]:
        """Return the questions of a thread that are waiting for an answer, by question ID."""
        checkpoint = await self._saver.aget_tuple(thread_config(storage_id))
        interrupts = open_questions(checkpoint) if checkpoint is not None else {}
        questions = [identify_question(storage_id, key, value) for key, value in interrupts.items()]
        return {question["question_id"]: question for question in questions}

    async def get_question(self, caller: Caller, question_id: str) -> tuple[str, dict[str, Any]]:
        """Return an open question and the storage ID of its thread.

        Raises:
            NotFoundError: The question does not exist.
            ConflictError: The question is no longer open.
        """
        missing = NotFoundError("The question does not exist.", fix="List the questions.")
        with suppress(ValueError):
            digest, _, encoded_id = question_id.partition("-")
            storage_id = base64.urlsafe_b64decode(
                encoded_id + "=" * (-len(encoded_id) % 4)
            ).decode()
            if len(digest) != QUESTION_HASH_LENGTH or "\0" in storage_id:
                raise missing
            question = (await self._open_questions(storage_id)).get(question_id)
            if not storage_id.startswith(self._threads.owner_prefix(caller)):
                if question is None or not self._can_decide(caller, storage_id, question):
                    raise missing
                return storage_id, question
            await self._threads.resolve(caller, self._threads.public_id(caller, storage_id))
            if question is None:
                raise ConflictError(
                    "The question is closed and no longer accepts answers.",
                    fix="List the open questions.",
                )
            return storage_id, question
        raise missing

    async def answer(
        self, caller: Caller, question_id: str, answer: Any, *, message_id: str | None = None
    ) -> Run:
        """Answer a question and return the run that resumes the turn; see :meth:`answer_all`."""
        return await self.answer_all(caller, {question_id: answer}, message_id=message_id)

    async def answer_all(
        self,
        caller: Caller,
        answers: Mapping[str, Any],
        *,
        thread_id: str | None = None,
        client_tools: Sequence[Mapping[str, Any]] | None = None,
        answer_schema: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        response_options: Mapping[str, Any] | None = None,
    ) -> Run:
        """Answer several questions of one thread and return the run that resumes the turn.

        Args:
            caller: The person who answers.
            answers: Answers by question ID. An approval accepts one decision for all its steps, or
                one decision per step by context key. A capability's own questions accept any value.
            thread_id: ID of the thread, to check that the questions belong to it.
            client_tools: As for :meth:`start`. Defaults to the tools of the turn.
            answer_schema: JSON schema of the answer, which must equal the turn's.
            message_id: The client's ID of the message with the answer.
            response_options: As for :meth:`start`.

        Raises:
            NotFoundError: A question does not exist or belongs to another thread.
            ConflictError: A question has already been answered.
            AnswerRefusedError: An answer is invalid. All questions stay open.
            ThreadBusyError: The thread has an active run.
            ValidationError: The turn requires a different type of answer.
        """
        questions = {name: await self.get_question(caller, name) for name in answers}
        threads = {storage_id for storage_id, _ in questions.values()}
        if thread_id is not None:
            threads.add(self._threads.storage_id(caller, thread_id))
        if len(threads) != 1:
            raise NotFoundError("The question does not exist.", fix="List the questions.")
        (storage_id,) = threads
        request: dict[str, Any] = {"client_tools": list(client_tools)} if client_tools else {}
        services = (await self._executor.graph_of(storage_id, request)).services
        view = TurnView(dict((await self._graph.aget_state(thread_config(storage_id))).values))
        if answer_schema is not None and view.state.get("execution_answer_schema") != answer_schema:
            raise ValidationError(
                "The turn has another type of answer: a turn keeps that of its first request.",
                fix="Send the same type with each request of a turn.",
                facts={"key": "execution_answer_schema"},
            )
        problems = [
            problem
            for name, (_, question) in questions.items()
            if isinstance(question.get("steps"), list)
            for problem in parse_decisions(
                answers[name], question, services.registry, services.limits, view
            )[1]
        ]
        if problems:
            raise AnswerRefusedError([one._asdict() for one in problems])
        await self._persistence.roles.record(caller)
        answers_by_interrupt = {
            question["interrupt_id"]: answers[name] for name, (_, question) in questions.items()
        }
        try:
            request |= {"answers": answers_by_interrupt, "message_id": message_id}
            request |= {"response_options": response_options} if response_options else {}
            return await self._start(caller, storage_id, request, answers.keys())
        except ThreadBusyError:
            await self._check_still_open(storage_id, answers.keys())
            raise

    async def signal(self, caller: Caller, thread_id: str, key: str, value: Any) -> Run | None:
        """Send an event to the steps of a thread that are waiting for it.

        Return the resumed run, or ``None`` if no step is waiting for the event.

        Raises:
            NotFoundError: The thread does not exist.
            ValidationError: The key or the value is invalid.
        """
        storage_id = await self._threads.resolve(caller, thread_id)
        sender: Any = {"configurable": configurable_for(caller)}
        if not await send_signal(self._graph, storage_id, key, value, config=sender, run=False):
            return None
        wait = await self._persistence.waits.get(storage_id)
        return await self._start(wait.caller if wait is not None else caller, storage_id, {})

    # --- maintenance ----------------------------------------------------------------------

    async def recover(self) -> None:
        """Resume abandoned runs under their IDs."""
        for run in reversed(await self._log.unfinished_runs()):
            if run.run_id not in self._tasks:
                order = TurnJob(run.thread_id, run.run_id)
                self._start_task(run, self._executor.advance(order))

    async def maintain(self) -> None:
        """Wake threads whose wait is over and resume abandoned runs, until canceled."""
        await repeat(self._maintain_once, _POLL_SECONDS, "runs", "Maintenance failed: %s")

    async def _maintain_once(self) -> None:
        if self._engine is not None:
            return  # workers do this
        now = time.monotonic()
        await self._executor.apply_stop_requests()
        for wait in await list_suspended_threads(self._saver, now=time.time()):
            with suppress(ThreadBusyError, LimitError):
                await self._start(wait.caller, wait.thread_id, {})
        if now >= self._next_recovery:
            self._next_recovery = now + _RECOVER_SECONDS
            await self.recover()
        if now >= self._next_pruning:
            self._next_pruning = now + _PRUNE_SECONDS
            await self._log.prune(self._settings.keep_runs_days * 86_400)

    async def wait_closed(self) -> None:
        """Wait until this process has handed over all its runs and delivers no more events."""
        await self._log.closing.wait()

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop starting runs and checkpoint the active ones for a different process to resume."""
        self._executor.drain(seconds)
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._log.close()
