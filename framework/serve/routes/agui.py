"""AG-UI 1.0: one request is one run, told as server-sent events."""

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
from capgraph.scale.translate import Translator, interrupt_of
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import ANY, NAME, TEXT, Operation, object_of
from capgraph.serve.problems import AnswerRefusedError, BadRequestError
from capgraph.serve.routes.api import body_of
from capgraph.serve.runs import Runs
from capgraph.serve.streams import Pages, stream

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

_OF_THE_RUN = ('"RUN_STARTED"', '"RUN_FINISHED"')


def routes(runs: Runs) -> list[Operation]:
    """Return the route of AG-UI.

    Args:
        runs: The runs.
    """

    async def run(request: Request) -> Response:
        from ag_ui.core import RunAgentInput

        try:
            given = RunAgentInput.model_validate(await body_of(request))
        except PydanticError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadRequestError(
                f"The body is no RunAgentInput: {where or 'it'}: {first['msg']}.",
                fix="See the AG-UI protocol.",
            ) from exc
        return stream(await _begun(runs, caller_of(request), given))

    body = object_of(
        {"threadId": NAME, "runId": NAME, "messages": {"type": "array", "items": ANY}},
        resume={"type": "array", "items": ANY},
    )
    media = "text/event-stream"
    return [Operation("POST", "/agui", run, "Run over AG-UI", TEXT, body=body, media=media)]


async def _begun(runs: Runs, caller: Caller, given: RunAgentInput) -> Pages:
    """Begin what is asked for, and return what is told of it."""
    if given.resume:
        answers = {entry.interrupt_id: _answer(entry) for entry in given.resume}
        try:
            run = await runs.answer_all(caller, answers, thread_id=given.thread_id)
        except AnswerRefusedError as exc:
            return _refused(runs, caller, given, exc.problems)
    else:
        props = given.forwarded_props if isinstance(given.forwarded_props, dict) else {}
        more = props.get("capgraph")
        more = more if isinstance(more, dict) else {}
        message = _message(given)
        run = await runs.start(
            caller,
            given.thread_id,
            message=message,
            plan=more.get("plan"),
            context=more.get("context"),
        )
    return _named(await runs.follow(caller, run.run_id), run.run_id, given.run_id)


def _answer(entry: Any) -> Any:
    return entry.payload if entry.status == "resolved" else "reject"


def _message(given: RunAgentInput) -> str | None:
    """Return what the user said last."""
    last = given.messages[-1] if given.messages else None
    if last is None or last.role != "user":
        return None
    if isinstance(last.content, str):
        return last.content
    others = sorted({part.type for part in last.content if part.type != "text"})
    if others:
        raise ValidationError(
            f"The message holds parts of the type {', '.join(others)}.", fix="Send text."
        )
    return "\n".join(part.text for part in last.content if part.type == "text")


async def _named(
    pages: AsyncIterator[list[tuple[int, str]]], run_id: str, asked: str
) -> AsyncIterator[list[tuple[int, str]]]:
    """Call the run as the client does; what the server calls it stands beside."""
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield [
                (seq, _renamed(text, run_id, asked) if text.startswith(_BEGINS) else text)
                for seq, text in page
            ]


_BEGINS = tuple(f'{{"type":{kind}' for kind in _OF_THE_RUN)


def _renamed(text: str, run_id: str, asked: str) -> str:
    event = json.loads(text)
    metadata = event.get("metadata") or {}
    ours = {**metadata.get("capgraph", {}), "run_id": run_id}
    return json.dumps({**event, "runId": asked, "metadata": {**metadata, "capgraph": ours}})


async def _refused(
    runs: Runs, caller: Caller, given: RunAgentInput, problems: list[dict[str, str]]
) -> AsyncIterator[list[tuple[int, str]]]:
    """Tell of a run that ended before it began: the questions are open as they were."""
    told = Translator(given.thread_id, given.run_id)
    asked = await runs.questions(caller, given.thread_id)
    interrupts = [interrupt_of({**question, "problems": problems}) for question in asked]
    result = {"thread_id": given.thread_id, "status": "waiting"}
    metadata = {"capgraph": {"problems": problems}}
    events = [
        *told.started({}, {}),
        *told.finished(result, interrupts, metadata=metadata),
    ]
    yield [(seq, json.dumps(event, default=str)) for seq, event in enumerate(events, start=1)]
