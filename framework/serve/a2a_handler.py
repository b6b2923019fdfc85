"""Handler of A2A requests: a task is a turn, including its questions and answers.

Tasks are derived from the run log, so they survive a restart.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from a2a.helpers import new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from capgraph.base.errors import CapgraphError, LimitError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.scale.agui_events import describe_progress
from capgraph.serve.a2a_push import PushNotifications
from capgraph.serve.a2a_tasks import (
    COMPLETED_STATUSES,
    RUNNING_STATES,
    answer_chunk,
    build_history,
    build_status,
    build_task,
    data_artifacts,
    ended_task,
    file_artifact,
    input_required_task,
    read_files,
    read_parts,
)
from capgraph.serve.files import Artifacts, Uploads
from capgraph.serve.problems import (
    AnswerRefusedError,
    ConflictError,
    NotFoundError,
    public_message_line,
)
from capgraph.serve.runs import Run, Runs, Turn
from capgraph.serve.threads import Threads

_DEFAULT_PAGE_SIZE = 50
_POLL_SECONDS = 0.5
"""Pause between checks of whether a suspended task continues."""

TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert capgraph errors raised in the ``with`` block to A2A protocol errors."""
    try:
        yield
    except NotFoundError as exc:
        raise TaskNotFoundError from exc
    except AnswerRefusedError as exc:
        raise InvalidParamsError(public_message_line(exc), {"problems": exc.problems}) from exc
    except (ThreadBusyError, LimitError, PersistenceError, ConflictError) as exc:
        raise UnsupportedOperationError(public_message_line(exc)) from exc
    except CapgraphError as exc:
        raise InvalidParamsError(public_message_line(exc)) from exc


class TaskHandler(RequestHandler):
    """Handler for A2A requests, which processes each task as a turn of a thread.

    A task has the ID of the run that started its turn.

    Attributes:
        push: Push notification service, or ``None`` if it is disabled.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        uploads: The users' uploads, or ``None`` to reject files.
        artifacts: Files that steps produced.
    """

    def __init__(
        self,
        runs: Runs,
        threads: Threads,
        uploads: Uploads | None,
        artifacts: Artifacts | None,
    ) -> None:
        self._runs, self._threads = runs, threads
        self._uploads, self._artifacts = uploads, artifacts
        self.push: PushNotifications | None = None

    # --- send -----------------------------------------------------------------------------

    @validate_request_params
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        """Start a task, or answer the open question of an existing task.

        The call waits until the run ends, unless the client requests an immediate return.
        """
        validate_history_length(params.configuration)
        with _translate_errors():
            task_id, run = await self._start_or_answer(params, _caller(context))
            if isinstance(run, Task):
                return run
            if not params.configuration.return_immediately:
                await self._runs.wait_for_end(_caller(context), run.run_id)
            task = await self._get_task(context, task_id)
            return apply_history_length(task, params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[TaskEvent]:
        """Start a task or answer the open question of one, and stream the task's updates."""
        with _translate_errors():
            task_id, run = await self._start_or_answer(params, _caller(context))
            if isinstance(run, Task):
                yield run
                return
            turn = await self._runs.get_turn(_caller(context), task_id)
            yield await self._get_task(context, task_id)
            async with aclosing(self._updates(context, turn)) as events:
                async for event in events:
                    yield event

    async def _start_or_answer(
        self, params: SendMessageRequest, caller: Caller
    ) -> tuple[str, Run | Task]:
        message, configuration = params.message, params.configuration
        has_push = configuration.HasField("task_push_notification_config")
        if has_push:
            self._get_push().check(configuration.task_push_notification_config)
        files = await read_files(message, caller, self._uploads)
        if message.task_id:
            task_id, outcome = await self._answer(message, caller)
        else:
            texts, data = read_parts(message)
            run = await self._runs.start(
                caller,
                message.context_id or uuid.uuid4().hex,
                message="\n".join([*texts, *(json.dumps(one, ensure_ascii=False) for one in data)]),
                message_id=message.message_id,
                context=files,
            )
            task_id, outcome = run.run_id, run
        if has_push:
            await self._add_push(configuration, caller, task_id)
        return task_id, outcome

    async def _answer(self, message: Message, caller: Caller) -> tuple[str, Run | Task]:
        turn = await self._runs.get_turn(caller, message.task_id)
        if message.context_id and message.context_id != turn.run.thread_id:
            raise InvalidParamsError("The task belongs to another context than the message.")
        question = await self._open_question(caller, turn.run)
        if question is None:
            raise UnsupportedOperationError(
                f"The task has no open question: its status is {turn.run.status!r}."
                " Fix: start another task in its context."
            )
        texts, data = read_parts(message)
        answer = data[0] if data else "\n".join(texts)
        if (
            isinstance(answer, dict)
            and [*answer] == ["answer"]
            and "answer" not in _step_keys(question)
        ):
            answer = answer["answer"]  # the format of the JSON API
        try:
            run = await self._runs.answer(
                caller, question["question_id"], answer, message_id=message.message_id
            )
        except AnswerRefusedError as exc:
            # The question stays open; the client sees what is wrong with the answer.
            return message.task_id, input_required_task(turn, question, exc.problems)
        return message.task_id, run

    async def _open_question(self, caller: Caller, run: Run) -> dict[str, Any] | None:
        if run.status != "waiting":
            return None
        questions = await self._runs.list_questions(caller, run.thread_id)
        return questions[0] if questions else None

    # --- read -----------------------------------------------------------------------------

    async def _get_task(self, context: ServerCallContext, task_id: str) -> Task:
        """Return one of the caller's tasks with its status, artifacts, and message history."""
        caller = _caller(context)
        turn = await self._runs.get_turn(caller, task_id)
        task = await self._current_task(caller, turn)
        if turn.run.status in COMPLETED_STATUSES:
            latest = await self._runs.latest_turn(caller, turn.run.thread_id)
            if latest is not None and latest.turn_id == task_id:
                await self._add_artifacts(task, caller, turn, context.state["base_url"])
        questions: dict[str, list[dict[str, Any]]] = {}
        answered = [run_id for run_id, request in turn.requests][:-1]
        for run_id in answered:
            outcome = (await self._runs.wait_for_end(caller, run_id)).get("outcome") or {}
            interrupts = outcome.get("interrupts") or ()
            questions[run_id] = [one["metadata"]["capgraph"] for one in interrupts]
        task.history.extend(build_history(turn, questions))
        return task

    async def _current_task(self, caller: Caller, turn: Turn) -> Task:
        """Return a turn's task without history and with the answer as its only artifact."""
        if turn.is_active:
            return build_task(turn, RUNNING_STATES[turn.run.status])
        if (question := await self._open_question(caller, turn.run)) is not None:
            return input_required_task(turn, question)
        return ended_task(turn, await self._runs.wait_for_end(caller, turn.run.run_id))

    async def _add_artifacts(self, task: Task, caller: Caller, turn: Turn, base_url: str) -> None:
        """Add the files and structured data from a thread's last turn to a task's artifacts."""
        thread_id = turn.run.thread_id
        artifacts = []
        if self._artifacts is not None:
            artifacts = [
                await file_artifact(stored, thread_id, base_url)
                for stored in await self._artifacts.list_artifacts(caller, thread_id)
                if stored.step is not None and stored.path is not None
            ]
        artifacts += data_artifacts(await self._threads.state(caller, thread_id))
        # The answer comes last, because it is about the other artifacts.
        artifacts += task.artifacts
        task.ClearField("artifacts")
        task.artifacts.extend(artifacts)

    async def _updates(self, context: ServerCallContext, turn: Turn) -> AsyncGenerator[TaskEvent]:
        """Yield updates from a task's latest run until the run reaches its final status."""
        task_id, thread_id = turn.turn_id, turn.run.thread_id
        appends = False
        events = self._runs.events(_caller(context), turn.run.run_id)
        async with aclosing(events) as run_events:
            async for _, event in run_events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    yield answer_chunk(turn, event["delta"], append=appends)
                    appends = True
                elif event["type"] == "TEXT_MESSAGE_START":
                    appends = False
                elif (progress := describe_progress(event)) and progress[1]:
                    parts = [new_text_part(progress[1])]
                    status = build_status(turn, TaskState.TASK_STATE_WORKING, parts)
                    yield TaskStatusUpdateEvent(
                        task_id=task_id, context_id=thread_id, status=status
                    )
        task = await self._get_task(context, task_id)
        for artifact in task.artifacts:
            yield TaskArtifactUpdateEvent(
                task_id=task_id, context_id=thread_id, artifact=artifact, last_chunk=True
            )
        yield TaskStatusUpdateEvent(task_id=task_id, context_id=thread_id, status=task.status)

    async def _subscribe(
        self, context: ServerCallContext, task_id: str
    ) -> AsyncGenerator[TaskEvent]:
        """Yield a task and then its updates until the task ends, even across user questions."""
        caller = _caller(context)
        seen, state = None, None
        while True:
            turn = await self._runs.get_turn(caller, task_id)
            if seen is None:
                task = await self._get_task(context, task_id)
                state = task.status.state
                yield task
            if turn.run.run_id != seen and (seen is not None or turn.is_active):
                async with aclosing(self._updates(context, turn)) as updates:
                    async for event in updates:
                        if isinstance(event, TaskStatusUpdateEvent):
                            state = event.status.state
                        yield event
            elif not turn.is_active and turn.run.status != "waiting":
                task = await self._get_task(context, task_id)
                if task.status.state != state:
                    yield TaskStatusUpdateEvent(
                        task_id=task_id, context_id=task.context_id, status=task.status
                    )
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)
            seen = turn.run.run_id

    async def follow_task(self, caller: Caller, task_id: str) -> AsyncGenerator[TaskEvent]:
        """Yield a task and its updates until the task ends, for delivery as push notifications."""
        context = ServerCallContext(state={"caller": caller, "base_url": ""})
        async with aclosing(self._subscribe(context, task_id)) as events:
            async for event in events:
                yield event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return one of the caller's tasks with at most the requested length of history."""
        validate_history_length(params)
        with _translate_errors():
            return apply_history_length(await self._get_task(context, params.id), params)

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return a page of the caller's tasks, most recently updated first."""
        validate_history_length(params)
        size = params.page_size or _DEFAULT_PAGE_SIZE
        validate_page_size(size)
        cursor = decode_list_tasks_cursor(params.page_token) if params.page_token else None
        if params.page_token and cursor is None:
            raise InvalidParamsError("The page token is unknown. Fix: use one from a response.")
        with _translate_errors():
            turns = await self._matching_turns(params, _caller(context))
            keys = [ListTasksCursor(int(turn.updated_at * 1e9), turn.turn_id) for turn in turns]
            start = 0
            if cursor is not None:
                start = sum(key.sort_key() >= cursor.sort_key() for key in keys)
            page = slice(start, start + size)
            tasks = [
                apply_history_length(await self._get_task(context, turn.turn_id), params)
                for turn in turns[page]
            ]
        if not params.include_artifacts:
            for task in tasks:
                task.ClearField("artifacts")
        has_more = len(turns) > start + size
        return ListTasksResponse(
            tasks=tasks,
            next_page_token=encode_list_tasks_cursor(keys[page][-1]) if has_more else "",
            page_size=size,
            total_size=len(turns),
        )

    async def _matching_turns(self, params: ListTasksRequest, caller: Caller) -> list[Turn]:
        """Return the caller's turns that match a request's filters, most recently updated first."""
        after = params.status_timestamp_after
        earliest = after.ToMilliseconds() if params.HasField("status_timestamp_after") else 0
        turns = [
            turn
            for turn in await self._runs.list_turns(caller)
            if params.context_id in ("", turn.run.thread_id)
            and int(turn.updated_at * 1000) >= earliest
        ]
        if params.status:
            tasks = {turn.turn_id: await self._current_task(caller, turn) for turn in turns}
            turns = [turn for turn in turns if tasks[turn.turn_id].status.state == params.status]
        return sorted(turns, key=lambda turn: (turn.updated_at, turn.turn_id), reverse=True)

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[TaskEvent]:
        """Stream the updates of a task that has not ended."""
        with _translate_errors():
            run = (await self._runs.get_turn(_caller(context), params.id)).run
            if run.status not in (*RUNNING_STATES, "waiting"):
                raise UnsupportedOperationError(f"The task is over: its status is {run.status!r}.")
            async with aclosing(self._subscribe(context, params.id)) as events:
                async for event in events:
                    yield event

    @validate_request_params
    async def on_cancel_task(
        self, params: CancelTaskRequest, context: ServerCallContext
    ) -> Task | None:
        """Cancel a task that is running or waiting for an answer, and return the task."""
        caller = _caller(context)
        with _translate_errors():
            run = (await self._runs.get_turn(caller, params.id)).run
            if run.status not in (*RUNNING_STATES, "waiting"):
                raise TaskNotCancelableError
            run = await self._runs.stop(caller, run.run_id)
            await self._runs.wait_for_end(caller, run.run_id)
            return await self._get_task(context, params.id)

    # --- push notifications ---------------------------------------------------------------

    def _get_push(self) -> PushNotifications:
        if self.push is None:
            raise PushNotificationNotSupportedError
        return self.push

    async def _add_push(
        self, configuration: SendMessageConfiguration, caller: Caller, task_id: str
    ) -> None:
        config = TaskPushNotificationConfig()
        config.CopyFrom(configuration.task_push_notification_config)
        config.task_id = task_id
        await self._get_push().add(config, caller)

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Store a push notification configuration, which receives the updates of a task."""
        push = self._get_push()
        with _translate_errors():
            await self._runs.get_turn(_caller(context), params.task_id)
            return await push.add(params, _caller(context))

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return one of a task's push notification configurations by its ID."""
        for config in await self._list_push(params.task_id, context):
            if config.id == params.id:
                return config
        raise TaskNotFoundError

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return all push notification configurations of a task."""
        configs = await self._list_push(params.task_id, context)
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a push notification configuration of a task."""
        await self._list_push(params.task_id, context)
        await self._get_push().remove(params.task_id, params.id)

    async def _list_push(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        push = self._get_push()
        with _translate_errors():
            await self._runs.get_turn(_caller(context), task_id)
            return await push.get_info_for_dispatch(task_id)

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        """Reject requests for an extended agent card, because all clients receive the same card."""
        raise ExtendedAgentCardNotConfiguredError


def _caller(context: ServerCallContext) -> Caller:
    caller: Caller = context.state["caller"]
    return caller


def _step_keys(question: Mapping[str, Any]) -> list[str]:
    return [step["context_key"] for step in question.get("steps") or ()]
