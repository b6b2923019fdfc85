"""AG-UI 1.0: each request is one run, streamed as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError as PydanticError
from starlette.requests import Request
from starlette.responses import Response

from capgraph.base.errors import ValidationError
from capgraph.base.ports import Caller
from capgraph.scale.agui_events import EventTranslator, to_interrupt
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import ANY, NAME, TEXT, Operation, object_schema
from capgraph.serve.problems import AnswerRefusedError, BadRequestError
from capgraph.serve.routes.api import read_json_body
from capgraph.serve.runs import Runs
from capgraph.serve.sse import EventPages, event_stream

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

_RUN_EVENT_TYPES = ('"RUN_STARTED"', '"RUN_FINISHED"')


def routes(runs: Runs) -> list[Operation]:
    """Return the route of AG-UI."""

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
        return event_stream(await _start_run(runs, caller_of(request), run_input))

    body = object_schema(
        {"threadId": NAME, "runId": NAME, "messages": {"type": "array", "items": ANY}},
        resume={"type": "array", "items": ANY},
    )
    media = "text/event-stream"
    return [Operation("POST", "/agui", run, "Run over AG-UI", TEXT, body=body, media_type=media)]


async def _start_run(runs: Runs, caller: Caller, run_input: RunAgentInput) -> EventPages:
    """Start the requested run, or resume one with answers, and return its events."""
    if run_input.resume:
        answers = {entry.interrupt_id: _resume_answer(entry) for entry in run_input.resume}
        try:
            run = await runs.answer_all(caller, answers, thread_id=run_input.thread_id)
        except AnswerRefusedError as exc:
            return _refusal_events(runs, caller, run_input, exc.problems)
    else:
        props = run_input.forwarded_props if isinstance(run_input.forwarded_props, dict) else {}
        options = props.get("capgraph")
        options = options if isinstance(options, dict) else {}
        message = _last_user_message(run_input)
        run = await runs.start(
            caller,
            run_input.thread_id,
            message=message,
            plan=options.get("plan"),
            context=options.get("context"),
        )
    return _rename_run(await runs.follow(caller, run.run_id), run.run_id, run_input.run_id)


def _resume_answer(entry: Any) -> Any:
    return entry.payload if entry.status == "resolved" else "reject"


def _last_user_message(run_input: RunAgentInput) -> str | None:
    """Return the text of the last message if the user sent it."""
    message = run_input.messages[-1] if run_input.messages else None
    if message is None or message.role != "user":
        return None
    if isinstance(message.content, str):
        return message.content
    unsupported = sorted({part.type for part in message.content if part.type != "text"})
    if unsupported:
        raise ValidationError(
            f"The message contains unsupported parts: {', '.join(unsupported)}.",
            fix="Send text parts only.",
        )
    return "\n".join(part.text for part in message.content if part.type == "text")


async def _rename_run(
    pages: AsyncIterator[list[tuple[int, str]]], run_id: str, client_run_id: str
) -> AsyncIterator[list[tuple[int, str]]]:
    """Replace the run ID with the client's. The server's ID is added to the metadata."""
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield [
                (
                    seq,
                    _rename_event(text, run_id, client_run_id)
                    if text.startswith(_RUN_EVENT_PREFIXES)
                    else text,
                )
                for seq, text in page
            ]


_RUN_EVENT_PREFIXES = tuple(f'{{"type":{kind}' for kind in _RUN_EVENT_TYPES)


def _rename_event(text: str, run_id: str, client_run_id: str) -> str:
    event = json.loads(text)
    metadata = event.get("metadata") or {}
    capgraph_metadata = {**metadata.get("capgraph", {}), "run_id": run_id}
    return json.dumps(
        {**event, "runId": client_run_id, "metadata": {**metadata, "capgraph": capgraph_metadata}}
    )


async def _refusal_events(
    runs: Runs, caller: Caller, run_input: RunAgentInput, problems: list[dict[str, str]]
) -> AsyncIterator[list[tuple[int, str]]]:
    """Yield the events of a run that ends because of an invalid answer. Questions stay open."""
    translator = EventTranslator(run_input.thread_id, run_input.run_id)
    questions = await runs.list_questions(caller, run_input.thread_id)
    interrupts = [to_interrupt({**question, "problems": problems}) for question in questions]
    result = {"thread_id": run_input.thread_id, "status": "waiting"}
    metadata = {"capgraph": {"problems": problems}}
    events = [
        *translator.start_events({}, {}),
        *translator.end_events(result, interrupts, metadata=metadata),
    ]
    yield [(seq, json.dumps(event, default=str)) for seq, event in enumerate(events, start=1)]
