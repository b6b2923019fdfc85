"""AG-UI 1.0: each request is one run, streamed as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError as PydanticError
from starlette.requests import Request
from starlette.responses import Response

from capgraph.base.errors import CapgraphError
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.scale.agui_events import EventTranslator
from capgraph.serve.agui_input import AguiRequest, read_request
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import ANY, NAME, TEXT, Operation, object_schema
from capgraph.serve.problems import (
    AnswerRefusedError,
    BadRequestError,
    NotFoundError,
    public_message_line,
)
from capgraph.serve.routes.api import read_json_body
from capgraph.serve.runs import INSTRUCTIONS_ID, Run, Runs, Turn
from capgraph.serve.sse import EventPages, event_stream
from capgraph.serve.threads import Threads
from capgraph.stores.run_log import TERMINAL_EVENTS

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

_REPEATABLE_STATUSES = frozenset({"failed", "stopped", "cancelled"})
"""Outcomes of a turn after which the same message starts another one."""


def routes(runs: Runs, threads: Threads, settings: ServeSettings) -> list[Operation]:
    """Return the route that serves the AG-UI protocol.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        settings: Settings of the server.
    """
    handler = _Handler(runs, threads, stops=settings.agui.stop_on_disconnect)

    async def run(request: Request) -> Response:
        from ag_ui.core import RunAgentInput

        try:
            run_input = RunAgentInput.model_validate(await read_json_body(request))
        except PydanticError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadRequestError(
                f"Invalid RunAgentInput: {where or 'body'}: {first['msg']}.",
                fix="See the AG-UI protocol.",
            ) from exc
        return event_stream(await handler.start(caller_of(request), run_input))

    items = {"type": "array", "items": ANY}
    body = object_schema(
        {"threadId": NAME, "runId": NAME, "messages": items},
        resume=items,
        tools=items,
        context=items,
        state=ANY,
        forwardedProps=ANY,
    )
    media = "text/event-stream"
    return [Operation("POST", "/agui", run, "Run over AG-UI", TEXT, body=body, media_type=media)]


class _Handler:
    """Handler for AG-UI requests.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        stops: True to stop a run when its client disconnects.
    """

    def __init__(self, runs: Runs, threads: Threads, *, stops: bool) -> None:
        self._runs, self._threads, self._stops = runs, threads, stops
        self._stopping: set[asyncio.Task[Any]] = set()

    async def start(self, caller: Caller, run_input: RunAgentInput) -> EventPages:
        """Start a run, resume one with answers, or attach to an existing one. Return its events."""
        thread_id = run_input.thread_id
        state = await self._thread_state(caller, thread_id)
        request = read_request(run_input, state, self._runs.shared_keys)
        ids = thread_id, run_input.run_id
        if request.answers:
            try:
                run = await self._runs.answer_all(
                    caller, request.answers, thread_id=thread_id, client_tools=request.tools
                )
            except AnswerRefusedError as exc:
                questions = await self._runs.list_questions(caller, thread_id)
                return _invalid_answer_events(*ids, questions, exc.problems)
            return self._client_events(caller, run, ids, await self._follow(caller, run))
        turn = await self._runs.latest_turn(caller, thread_id)
        if turn is None or not _attaches_to_last_run(turn, request):
            run = await self._start_run(caller, thread_id, request)
            return self._client_events(caller, run, ids, await self._follow(caller, run))
        pages = self._attach(caller, turn, state)
        if turn.is_active and request.message not in (None, turn.message):
            pages = self._follow_then_start(caller, thread_id, request, pages)
        return self._client_events(caller, turn.run, ids, pages)

    async def _thread_state(self, caller: Caller, thread_id: str) -> Mapping[str, Any]:
        try:
            return await self._threads.state(caller, thread_id)
        except NotFoundError:
            return {}

    async def _start_run(self, caller: Caller, thread_id: str, request: AguiRequest) -> Run:
        return await self._runs.start(
            caller,
            thread_id,
            message=request.message,
            message_id=request.message_id,
            instructions=request.instructions,
            history=request.history,
            plan=request.plan,
            context=request.context_data,
            state=request.state,
            client_tools=request.tools,
        )

    async def _follow(self, caller: Caller, run: Run) -> EventPages:
        return await self._runs.follow(caller, run.run_id)

    async def _attach(self, caller: Caller, turn: Turn, state: Mapping[str, Any]) -> EventPages:
        """Yield a thread's messages, then the events of a run that a different request started."""
        messages = [
            {name: message[name] for name in ("id", "role", "content")}
            for message in state.get("messages") or ()
            if message["role"] in ("user", "assistant", "system")
            and message["id"] != INSTRUCTIONS_ID
        ]
        if turn.is_active:
            # The events contain the answer of the active turn.
            while messages and messages[-1]["role"] == "assistant":
                messages.pop()
            if turn.message is not None and [one["content"] for one in messages[-1:]] != [
                turn.message
            ]:
                identifier = turn.message_id or turn.run.run_id
                messages.append({"id": identifier, "role": "user", "content": turn.message})
        snapshot = json.dumps({"type": "MESSAGES_SNAPSHOT", "messages": messages})
        async with aclosing(await self._follow(caller, turn.run)) as pages:
            async for page in pages:
                texts = [text for _, text in page if turn.is_active or not _is_message(text)]
                if texts and _kind(texts[0]) == "RUN_STARTED":
                    texts.insert(1, snapshot)
                yield [(0, text) for text in texts]

    async def _follow_then_start(
        self, caller: Caller, thread_id: str, request: AguiRequest, pages: EventPages
    ) -> EventPages:
        """Yield the events of an active run, and then those of a new run for the client's message.

        The client sees both as one run.
        """
        async with aclosing(pages):
            async for page in pages:
                yield [(n, text) for n, text in page if _kind(text) not in TERMINAL_EVENTS]
        try:
            run = await self._start_run(caller, thread_id, request)
        except CapgraphError as exc:
            error = {"type": "RUN_ERROR", "message": public_message_line(exc), "code": exc.code}
            yield [(0, json.dumps(error))]
            return
        async with aclosing(await self._follow(caller, run)) as following:
            async for page in following:
                yield [(n, text) for n, text in page if _kind(text) != "RUN_STARTED"]

    async def _client_events(
        self, caller: Caller, run: Run, ids: tuple[str, str], pages: EventPages
    ) -> EventPages:
        """Number the events of a response and replace the server's run ID with the client's.

        The server's run ID is added to the event metadata.
        """
        number, has_ended = 0, False
        try:
            async with aclosing(pages):
                async for page in pages:
                    events = []
                    for _, text in page:
                        number, kind = number + 1, _kind(text)
                        has_ended = has_ended or kind in TERMINAL_EVENTS
                        if kind in ("RUN_STARTED", "RUN_FINISHED"):
                            text = _rename_run(text, run.run_id, ids[1])
                        events.append((number, text))
                    yield events
        finally:
            if self._stops and not has_ended:
                # The response is being cancelled, so the stop needs a task of its own.
                task = asyncio.create_task(self._stop_latest(caller, ids[0]))
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)

    async def _stop_latest(self, caller: Caller, thread_id: str) -> None:
        turn = await self._runs.latest_turn(caller, thread_id)
        if turn is not None and turn.is_active:
            await self._runs.stop(caller, turn.run.run_id)


def _attaches_to_last_run(turn: Turn, request: AguiRequest) -> bool:
    """Return True if a request attaches to the thread's last run instead of starting a new run."""
    if request.plan is not None:
        return False
    is_same = (request.message_id, request.message) == (turn.message_id, turn.message)
    return (
        turn.is_active
        or request.message is None
        or (is_same and turn.run.status not in _REPEATABLE_STATUSES)
    )


def _kind(text: str) -> str:
    """Return the type of a serialized event."""
    return text[len('{"type":') : 60].lstrip().split('"', 2)[1]


def _is_message(text: str) -> bool:
    return _kind(text).startswith("TEXT_MESSAGE")


def _rename_run(text: str, run_id: str, client_run_id: str) -> str:
    event = json.loads(text)
    metadata = event.get("metadata") or {}
    capgraph_metadata = {**metadata.get("capgraph", {}), "run_id": run_id}
    return json.dumps(
        {**event, "runId": client_run_id, "metadata": {**metadata, "capgraph": capgraph_metadata}}
    )


async def _invalid_answer_events(
    thread_id: str,
    run_id: str,
    questions: Sequence[Mapping[str, Any]],
    problems: list[dict[str, str]],
) -> EventPages:
    """Yield AG-UI events that report an invalid answer to the client.

    The events form a run that ends immediately. Its questions stay open.
    """
    translator = EventTranslator(thread_id, run_id)
    result = {"thread_id": thread_id, "status": "waiting"}
    metadata = {"capgraph": {"problems": problems}}
    asked_again = [{**question, "problems": problems} for question in questions]
    events = [
        *translator.start_events({}, {}),
        *translator.end_events(result, asked_again, metadata=metadata),
    ]
    yield [(seq, json.dumps(event, default=str)) for seq, event in enumerate(events, start=1)]
