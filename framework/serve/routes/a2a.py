"""A2A 1.x server: a task is a turn, including its questions and answers.

Tasks are derived from the run log, so they survive a restart.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from typing import Any

from a2a.helpers import new_data_part, new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    HTTPAuthSecurityScheme,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SecurityRequirement,
    SecurityScheme,
    SendMessageRequest,
    StringList,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import validate_page_size
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from capgraph.approvals import describe_question, is_approval_request
from capgraph.base.errors import CapgraphError, LimitError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.helpers.plain_data import to_plain
from capgraph.serve.identity import caller_of
from capgraph.serve.links import server_url
from capgraph.serve.openapi import server_version
from capgraph.serve.problems import (
    AnswerRefusedError,
    ConflictError,
    NotFoundError,
    public_message_line,
)
from capgraph.serve.runs import Run, Runs
from capgraph.serve.threads import Threads

_COMPLETED_STATUSES = frozenset({"completed", "partial"})
_RUNNING_STATES = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "stopping": TaskState.TASK_STATE_WORKING,
}
_ANSWER = "answer"
_DEFAULT_PAGE_SIZE = 50


def endpoint(
    runs: Runs, threads: Threads, services: Services, settings: ServeSettings
) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the routes of A2A, and the context manager to enter while they are served.

    Args:
        runs: The runs.
        threads: The threads.
        services: Services of the graph. Its capabilities become the skills of the agent card.
        settings: Settings of the server.
    """
    template = _build_card(services)

    async def card(request: Request) -> Response:
        agent_card = AgentCard()
        agent_card.CopyFrom(template)
        agent_card.supported_interfaces[0].url = f"{server_url(settings, request)}/a2a"
        return JSONResponse(agent_card_to_dict(agent_card))

    rpc = create_jsonrpc_routes(_TaskHandler(runs), "/a2a", _CallerContextBuilder())
    return [Route(AGENT_CARD_WELL_KNOWN_PATH, card, methods=["GET"]), *rpc], nullcontext


def _build_card(services: Services) -> AgentCard:
    settings = services.settings
    return AgentCard(
        name=settings.name,
        description=settings.description or settings.name,
        version=server_version(),
        supported_interfaces=[
            AgentInterface(url="/a2a", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[
            AgentSkill(
                id=capability.name,
                name=capability.name,
                description=capability.description,
                tags=[capability.effect],
            )
            for capability in services.registry.capabilities.values()
        ],
        security_schemes={
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer")
            )
        },
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
    )


class _CallerContextBuilder(DefaultServerCallContextBuilder):
    """Builder that passes the authenticated caller to the request handler."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["caller"] = caller_of(request)
        return context


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors as errors of the protocol."""
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


class _TaskHandler(RequestHandler):
    """Handler of tasks. The ID of a task is the ID of the run that started its turn."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    # --- send -----------------------------------------------------------------------------

    @validate_request_params
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        """Start a task or answer its question. Wait for the end unless the client asks not to."""
        with _translate_errors():
            task_id, run = await self._start_or_answer(params, _caller(context))
            if isinstance(run, Task):
                return run
            if not params.configuration.return_immediately:
                await self._wait_for_last_event(_caller(context), run)
            return await self._get_task(_caller(context), task_id)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Start a task or answer its question, and stream its updates."""
        with _translate_errors():
            task_id, run = await self._start_or_answer(params, _caller(context))
            if isinstance(run, Task):
                yield run
                return
            async with aclosing(self._stream_events(_caller(context), task_id, run)) as events:
                async for event in events:
                    yield event

    async def _start_or_answer(
        self, params: SendMessageRequest, caller: Caller
    ) -> tuple[str, Run | Task]:
        message = params.message
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        texts = [part.text for part in message.parts if part.HasField("text")]
        data = [MessageToDict(part.data) for part in message.parts if part.HasField("data")]
        if not message.task_id:
            text = "\n".join([*texts, *(json.dumps(one, ensure_ascii=False) for one in data)])
            run = await self._runs.start(
                caller, message.context_id or uuid.uuid4().hex, message=text
            )
            return run.run_id, run
        latest_run = (await self._runs.turn_runs(caller, message.task_id))[-1]
        if message.context_id and message.context_id != latest_run.thread_id:
            raise InvalidParamsError("The task belongs to another context.")
        question = await self._open_question(caller, latest_run)
        if question is None:
            raise UnsupportedOperationError(
                f"The task has no open question: its status is {latest_run.status!r}."
                " Fix: start another task in its context."
            )
        answer = data[0] if data else "\n".join(texts)
        if (
            isinstance(answer, dict)
            and [*answer] == ["answer"]
            and "answer" not in _step_keys(question)
        ):
            answer = answer["answer"]  # the format of the JSON API
        try:
            return message.task_id, await self._runs.answer(caller, question["question_id"], answer)
        except AnswerRefusedError as exc:
            # The question stays open; the client sees what is wrong with the answer.
            return message.task_id, _input_required_task(
                message.task_id, latest_run, question, exc.problems
            )

    async def _open_question(self, caller: Caller, run: Run) -> dict[str, Any] | None:
        if run.status != "waiting":
            return None
        questions = await self._runs.list_questions(caller, run.thread_id)
        return questions[0] if questions else None

    # --- read -----------------------------------------------------------------------------

    async def _wait_for_last_event(self, caller: Caller, run: Run) -> dict[str, Any]:
        """Wait for the end of a run and return its last event."""
        last_event: dict[str, Any] = {}
        async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
            async for _, event in events:
                last_event = event
        return last_event

    async def _get_task(self, caller: Caller, task_id: str) -> Task:
        run = (await self._runs.turn_runs(caller, task_id))[-1]
        if run.status in _RUNNING_STATES:
            return _build_task(task_id, run, _RUNNING_STATES[run.status])
        if (question := await self._open_question(caller, run)) is not None:
            return _input_required_task(task_id, run, question)
        return _ended_task(task_id, run, await self._wait_for_last_event(caller, run))

    async def _stream_events(self, caller: Caller, task_id: str, run: Run) -> AsyncGenerator[Event]:
        yield _build_task(task_id, run, TaskState.TASK_STATE_WORKING)
        appends = False
        async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
            async for _, event in events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    yield _artifact_chunk(task_id, run, event["delta"], append=appends)
                    appends = True
                elif event["type"] == "TEXT_MESSAGE_START":
                    appends = False
                elif text := _progress_text(event):
                    status = _build_status(
                        task_id, run, TaskState.TASK_STATE_WORKING, [new_text_part(text)]
                    )
                    yield TaskStatusUpdateEvent(
                        task_id=task_id, context_id=run.thread_id, status=status
                    )
        task = await self._get_task(caller, task_id)
        for artifact in task.artifacts:
            yield TaskArtifactUpdateEvent(
                task_id=task_id, context_id=run.thread_id, artifact=artifact, last_chunk=True
            )
        yield TaskStatusUpdateEvent(task_id=task_id, context_id=run.thread_id, status=task.status)

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return a task of the caller."""
        with _translate_errors():
            return await self._get_task(_caller(context), params.id)

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return the caller's tasks, the latest first."""
        caller = _caller(context)
        size = params.page_size or _DEFAULT_PAGE_SIZE
        validate_page_size(size)
        with _translate_errors():
            runs = [
                run
                for run in await self._runs.list_first_runs(caller)
                if params.context_id in ("", run.thread_id)
            ]
            task_ids = [run.run_id for run in runs]
            start = task_ids.index(params.page_token) if params.page_token in task_ids else 0
            tasks = [await self._get_task(caller, name) for name in task_ids[start : start + size]]
        if params.status:
            tasks = [task for task in tasks if task.status.state == params.status]
        next_ids = task_ids[start + size : start + size + 1]
        return ListTasksResponse(
            tasks=tasks,
            next_page_token=next_ids[0] if next_ids else "",
            page_size=size,
            total_size=len(task_ids),
        )

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Stream the updates of an active task."""
        with _translate_errors():
            run = (await self._runs.turn_runs(_caller(context), params.id))[-1]
            if run.status not in _RUNNING_STATES:
                raise UnsupportedOperationError(
                    f"The task is not active: its status is {run.status!r}."
                )
            async with aclosing(self._stream_events(_caller(context), params.id, run)) as events:
                async for event in events:
                    yield event

    @validate_request_params
    async def on_cancel_task(
        self, params: CancelTaskRequest, context: ServerCallContext
    ) -> Task | None:
        """Stop a task. A task that waits for an answer ends, too."""
        caller = _caller(context)
        with _translate_errors():
            run = (await self._runs.turn_runs(caller, params.id))[-1]
            if run.status not in (*_RUNNING_STATES, "waiting"):
                raise TaskNotCancelableError
            run = await self._runs.stop(caller, run.run_id)
            await self._wait_for_last_event(caller, run)
            return await self._get_task(caller, params.id)

    # --- unsupported operations -----------------------------------------------------------

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        """Refuse the request: every client gets the same card."""
        raise ExtendedAgentCardNotConfiguredError

    async def _refuse_push(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _refuse_push
    on_get_task_push_notification_config = _refuse_push
    on_list_task_push_notification_configs = _refuse_push
    on_delete_task_push_notification_config = _refuse_push


def _caller(context: ServerCallContext) -> Caller:
    caller: Caller = context.state["caller"]
    return caller


def _progress_text(event: Mapping[str, Any]) -> str:
    match event["type"]:
        case "STEP_STARTED":
            return f"{event['stepName']} started"
        case "STEP_FINISHED":
            return f"{event['stepName']} finished"
        case "ACTIVITY_DELTA":
            changes = {one["path"].rpartition("/")[2]: one["value"] for one in event["patch"]}
            return str(changes.get("message") or "") if "progress" in changes else ""
    return ""


def _build_task(task_id: str, run: Run, state: TaskState, parts: Sequence[Part] = ()) -> Task:
    status = _build_status(task_id, run, state, parts)
    return Task(id=task_id, context_id=run.thread_id, status=status)


def _build_status(task_id: str, run: Run, state: TaskState, parts: Sequence[Part]) -> TaskStatus:
    status = TaskStatus(state=state)
    status.timestamp.GetCurrentTime()
    if parts:
        status.message.CopyFrom(
            Message(
                message_id=uuid.uuid4().hex,
                role=Role.ROLE_AGENT,
                parts=parts,
                task_id=task_id,
                context_id=run.thread_id,
            )
        )
    return status


def _input_required_task(
    task_id: str, run: Run, question: Mapping[str, Any], problems: Sequence[Mapping[str, str]] = ()
) -> Task:
    """Return a task that requires input: a text, and the data of each step."""
    metadata = {"question_id": question["question_id"]}
    if problems:
        metadata["problems"] = [dict(problem) for problem in problems]
    details = [f"{problem['path']}: {problem['message']}" for problem in problems]
    steps = question["steps"] if is_approval_request(question) else [question]
    parts = [
        new_text_part(describe_question({**question, "problems": details})),
        *(new_data_part(to_plain({**step, **metadata}, lenient=True)) for step in steps),
    ]
    return _build_task(task_id, run, TaskState.TASK_STATE_INPUT_REQUIRED, parts)


def _ended_task(task_id: str, run: Run, last_event: Mapping[str, Any]) -> Task:
    result = last_event.get("result") or {}
    answer = str(result.get("answer") or "")
    if run.status == "waiting":  # for a time or an event, not for a person
        return _build_task(task_id, run, TaskState.TASK_STATE_WORKING)
    if run.status in _COMPLETED_STATUSES:
        task = _build_task(task_id, run, TaskState.TASK_STATE_COMPLETED)
        task.artifacts.append(_answer_artifact(answer))
        return task
    # The last event of a stopped task that asked a question is that question.
    if run.status == "stopped" and last_event.get("type") != "RUN_ERROR":
        return _build_task(task_id, run, TaskState.TASK_STATE_CANCELED)
    reason = str(last_event.get("message") or answer or run.status)
    return _build_task(task_id, run, TaskState.TASK_STATE_FAILED, [new_text_part(reason)])


def _step_keys(question: Mapping[str, Any]) -> list[str]:
    return [step["context_key"] for step in question.get("steps") or ()]


def _answer_artifact(text: str) -> Artifact:
    return Artifact(artifact_id=_ANSWER, name=_ANSWER, parts=[new_text_part(text)])


def _artifact_chunk(task_id: str, run: Run, text: str, *, append: bool) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(
        task_id=task_id, context_id=run.thread_id, artifact=_answer_artifact(text), append=append
    )
