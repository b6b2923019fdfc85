"""The agent over A2A 1.x: a task is a turn, from its message over questions and answers to its end.

Nothing of a task is kept beside the log of the runs: what the log keeps, a restart keeps.
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

from capgraph.approvals import is_approval, question_text
from capgraph.base.errors import CapgraphError, LimitError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.base.values import to_plain
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.identity import caller_of
from capgraph.serve.links import base_of
from capgraph.serve.openapi import server_version
from capgraph.serve.problems import (
    AnswerRefusedError,
    ConflictError,
    NotFoundError,
    public_line,
)
from capgraph.serve.runs import Run, Runs
from capgraph.serve.threads import Threads

_FINE = frozenset({"completed", "partial"})
_RUNNING = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "stopping": TaskState.TASK_STATE_WORKING,
}
_ANSWER = "answer"
_PAGE = 50


def endpoint(
    runs: Runs, threads: Threads, services: Services, settings: ServeSettings
) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the routes of A2A, and what has to be entered while they answer.

    Args:
        runs: The runs.
        threads: The threads.
        services: What the graph runs with; its capabilities are the skills of the card.
        settings: How the server answers.
    """
    made = _card(services)

    async def card(request: Request) -> Response:
        shown = AgentCard()
        shown.CopyFrom(made)
        shown.supported_interfaces[0].url = f"{base_of(settings, request)}/a2a"
        return JSONResponse(agent_card_to_dict(shown))

    rpc = create_jsonrpc_routes(_Agent(runs), "/a2a", _WithCaller())
    return [Route(AGENT_CARD_WELL_KNOWN_PATH, card, methods=["GET"]), *rpc], nullcontext


def _card(services: Services) -> AgentCard:
    about = services.settings
    return AgentCard(
        name=about.name,
        description=about.description or about.name,
        version=server_version(),
        supported_interfaces=[
            AgentInterface(url="/a2a", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[
            AgentSkill(id=one.name, name=one.name, description=one.description, tags=[one.effect])
            for one in services.registry.capabilities.values()
        ],
        security_schemes={
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer")
            )
        },
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
    )


class _WithCaller(DefaultServerCallContextBuilder):
    """Hands on who asks, as the shield knows it."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["caller"] = caller_of(request)
        return context


@contextmanager
def _told() -> Iterator[None]:
    """Say what went wrong in the words of the protocol."""
    try:
        yield
    except NotFoundError as exc:
        raise TaskNotFoundError from exc
    except AnswerRefusedError as exc:
        raise InvalidParamsError(public_line(exc), {"problems": exc.problems}) from exc
    except (ThreadBusyError, LimitError, PersistenceError, ConflictError) as exc:
        raise UnsupportedOperationError(public_line(exc)) from exc
    except CapgraphError as exc:
        raise InvalidParamsError(public_line(exc)) from exc


class _Agent(RequestHandler):
    """Tasks as turns. The id of a task is that of the run that began the turn."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    # --- send -----------------------------------------------------------------------------

    @validate_request_params
    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        """Begin a task, or answer the question of one; waits for its end, unless told otherwise."""
        with _told():
            task_id, run = await self._begin(params, _caller(context))
            if isinstance(run, Task):
                return run
            if not params.configuration.return_immediately:
                await self._last(_caller(context), run)
            return await self._task(_caller(context), task_id)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Do the same, and tell how far it is."""
        with _told():
            task_id, run = await self._begin(params, _caller(context))
            if isinstance(run, Task):
                yield run
                return
            async with aclosing(self._followed(_caller(context), task_id, run)) as events:
                async for event in events:
                    yield event

    async def _begin(self, params: SendMessageRequest, caller: Caller) -> tuple[str, Run | Task]:
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
        last = (await self._runs.turn(caller, message.task_id))[-1]
        if message.context_id and message.context_id != last.thread_id:
            raise InvalidParamsError("The task is not of this context.")
        asked = await self._asked(caller, last)
        if asked is None:
            raise UnsupportedOperationError(
                f"The task asks nothing: it is {last.status}. Begin another one in its context."
            )
        answer = data[0] if data else "\n".join(texts)
        if isinstance(answer, dict) and [*answer] == ["answer"] and "answer" not in _keys(asked):
            answer = answer["answer"]  # as the JSON API takes it
        try:
            return message.task_id, await self._runs.answer(caller, asked["question_id"], answer)
        except AnswerRefusedError as exc:
            # The task asks again, and says what did not fit.
            return message.task_id, _asking(message.task_id, last, asked, exc.problems)

    async def _asked(self, caller: Caller, run: Run) -> dict[str, Any] | None:
        if run.status != "waiting":
            return None
        asked = await self._runs.questions(caller, run.thread_id)
        return asked[0] if asked else None

    # --- look -----------------------------------------------------------------------------

    async def _last(self, caller: Caller, run: Run) -> dict[str, Any]:
        """Return the last event of a run, when it has come."""
        found: dict[str, Any] = {}
        async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
            async for _, event in events:
                found = event
        return found

    async def _task(self, caller: Caller, task_id: str) -> Task:
        run = (await self._runs.turn(caller, task_id))[-1]
        if run.status in _RUNNING:
            return _made(task_id, run, _RUNNING[run.status])
        if (asked := await self._asked(caller, run)) is not None:
            return _asking(task_id, run, asked)
        return _ended(task_id, run, await self._last(caller, run))

    async def _followed(self, caller: Caller, task_id: str, run: Run) -> AsyncGenerator[Event]:
        yield _made(task_id, run, TaskState.TASK_STATE_WORKING)
        appends = False
        async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
            async for _, event in events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    yield _piece(task_id, run, event["delta"], append=appends)
                    appends = True
                elif event["type"] == "TEXT_MESSAGE_START":
                    appends = False
                elif text := _progress(event):
                    status = _status(
                        task_id, run, TaskState.TASK_STATE_WORKING, [new_text_part(text)]
                    )
                    yield TaskStatusUpdateEvent(
                        task_id=task_id, context_id=run.thread_id, status=status
                    )
        task = await self._task(caller, task_id)
        for artifact in task.artifacts:
            yield TaskArtifactUpdateEvent(
                task_id=task_id, context_id=run.thread_id, artifact=artifact, last_chunk=True
            )
        yield TaskStatusUpdateEvent(task_id=task_id, context_id=run.thread_id, status=task.status)

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return a task of the caller's."""
        with _told():
            return await self._task(_caller(context), params.id)

    @validate_request_params
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return the caller's tasks, the latest first."""
        caller = _caller(context)
        size = params.page_size or _PAGE
        validate_page_size(size)
        with _told():
            begun = [
                run
                for run in await self._runs.begun(caller)
                if params.context_id in ("", run.thread_id)
            ]
            names = [run.run_id for run in begun]
            place = names.index(params.page_token) if params.page_token in names else 0
            tasks = [await self._task(caller, name) for name in names[place : place + size]]
        if params.status:
            tasks = [task for task in tasks if task.status.state == params.status]
        after = names[place + size : place + size + 1]
        return ListTasksResponse(
            tasks=tasks,
            next_page_token=after[0] if after else "",
            page_size=size,
            total_size=len(names),
        )

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Tell how far a task is that goes on."""
        with _told():
            run = (await self._runs.turn(_caller(context), params.id))[-1]
            if run.status not in _RUNNING:
                raise UnsupportedOperationError(f"The task does not go on: it is {run.status}.")
            async with aclosing(self._followed(_caller(context), params.id, run)) as events:
                async for event in events:
                    yield event

    @validate_request_params
    async def on_cancel_task(
        self, params: CancelTaskRequest, context: ServerCallContext
    ) -> Task | None:
        """Stop the run of a task; one that asks is not gone on with."""
        caller = _caller(context)
        with _told():
            run = (await self._runs.turn(caller, params.id))[-1]
            if run.status not in (*_RUNNING, "waiting"):
                raise TaskNotCancelableError
            run = await self._runs.stop(caller, run.run_id)
            await self._last(caller, run)
            return await self._task(caller, params.id)

    # --- what there is not ----------------------------------------------------------------

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        """Refuse: everybody sees the same card."""
        raise ExtendedAgentCardNotConfiguredError

    async def _no_push(self, params: Any, context: Any) -> Any:
        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _no_push
    on_get_task_push_notification_config = _no_push
    on_list_task_push_notification_configs = _no_push
    on_delete_task_push_notification_config = _no_push


def _caller(context: ServerCallContext) -> Caller:
    caller: Caller = context.state["caller"]
    return caller


def _progress(event: Mapping[str, Any]) -> str:
    match event["type"]:
        case "STEP_STARTED":
            return f"{event['stepName']} began"
        case "STEP_FINISHED":
            return f"{event['stepName']} ended"
        case "ACTIVITY_DELTA":
            told = {one["path"].rpartition("/")[2]: one["value"] for one in event["patch"]}
            return str(told.get("message") or "") if "progress" in told else ""
    return ""


def _made(task_id: str, run: Run, state: TaskState, parts: Sequence[Part] = ()) -> Task:
    status = _status(task_id, run, state, parts)
    return Task(id=task_id, context_id=run.thread_id, status=status)


def _status(task_id: str, run: Run, state: TaskState, parts: Sequence[Part]) -> TaskStatus:
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


def _asking(
    task_id: str, run: Run, asked: Mapping[str, Any], problems: Sequence[Mapping[str, str]] = ()
) -> Task:
    """Return a task that asks: in words, and each step as data with its ``context_key``."""
    about = {"question_id": asked["question_id"]}
    if problems:
        about["problems"] = [dict(one) for one in problems]
    told = [f"{one['path']}: {one['message']}" for one in problems]
    steps = asked["steps"] if is_approval(asked) else [asked]
    parts = [
        new_text_part(question_text({**asked, "problems": told})),
        *(new_data_part(to_plain({**step, **about}, lenient=True)) for step in steps),
    ]
    return _made(task_id, run, TaskState.TASK_STATE_INPUT_REQUIRED, parts)


def _ended(task_id: str, run: Run, end: Mapping[str, Any]) -> Task:
    result = end.get("result") or {}
    answer = str(result.get("answer") or "")
    if run.status == "waiting":  # for something that no person is asked for
        return _made(task_id, run, TaskState.TASK_STATE_WORKING)
    if run.status in _FINE:
        task = _made(task_id, run, TaskState.TASK_STATE_COMPLETED)
        task.artifacts.append(_artifact(answer))
        return task
    # Of a task that asked, the run's last event is its question.
    if run.status == "stopped" and (end.get("outcome") or {}).get("type") != "success":
        return _made(task_id, run, TaskState.TASK_STATE_CANCELED)
    why = str(end.get("message") or answer or run.status)
    return _made(task_id, run, TaskState.TASK_STATE_FAILED, [new_text_part(why)])


def _keys(asked: Mapping[str, Any]) -> list[str]:
    return [step["context_key"] for step in asked.get("steps") or ()]


def _artifact(text: str) -> Artifact:
    return Artifact(artifact_id=_ANSWER, name=_ANSWER, parts=[new_text_part(text)])


def _piece(task_id: str, run: Run, text: str, *, append: bool) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(
        task_id=task_id, context_id=run.thread_id, artifact=_artifact(text), append=append
    )
