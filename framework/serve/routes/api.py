"""The JSON API: threads, runs, questions, and signals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capgraph.base.ports import Caller
from capgraph.configs.suggestions import suggest_fix
from capgraph.helpers.data_size import exceeds_depth
from capgraph.serve.files import Uploads
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import (
    ANY,
    NAME,
    PAGE_QUERY,
    QUESTION,
    RUN,
    TEXT,
    TEXT_OR_NULL,
    THREAD_DATA,
    Operation,
    object_schema,
    page_schema,
)
from capgraph.serve.problems import BadRequestError, NotFoundError
from capgraph.serve.runs import Runs
from capgraph.serve.sse import event_stream, parse_last_event_id
from capgraph.serve.threads import Threads

_MAX_DEPTH = 100
"""Maximum nesting of a JSON body. Deeper data cannot be stored."""
THREAD_PATH = "/api/threads/{id:path}"
"""Path of a thread. Thread IDs may contain slashes, so its subpaths are routed first."""


async def read_json_body(request: Request) -> dict[str, Any]:
    """Parse a request body as a JSON object. An empty body is treated as an empty object.

    Raises:
        BadRequestError: The body is not a JSON object.
    """
    raw = await request.body()
    try:
        document = json.loads(raw, parse_int=_parse_int) if raw.strip() else {}
        # Lone surrogates and infinite numbers cannot be stored or returned.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        if exceeds_depth(document, _MAX_DEPTH):
            raise ValueError(f"the JSON document is nested more than {_MAX_DEPTH} levels deep")
    except (ValueError, RecursionError) as exc:
        raise BadRequestError(
            f"The request body is not valid JSON: {exc}.", fix="Send a JSON object."
        ) from exc
    if not isinstance(document, dict):
        raise BadRequestError("The body is not a JSON object.", fix='Send {"…": …}.')
    return document


def _parse_int(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"the integer {text[:40]} does not fit in 64 bits")
    return number


def _text_field(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequestError(
            f"The field {name!r} is of type {type(value).__name__}: it must be text.",
            fix="Send a string.",
        )
    return value


def query_int(request: Request, name: str, default: int) -> int:
    """Parse a query parameter as a non-negative integer.

    Raises:
        BadRequestError: The parameter is not a number.
    """
    value = request.query_params.get(name) or str(default)
    if not (value.isascii() and value.isdecimal()) or len(value) > 15:
        raise BadRequestError(
            f"The query parameter {name}={value[:40]!r} is invalid: it must be a number.",
            fix="Send a non-negative integer.",
        )
    return int(value)


_RUN_FIELDS = ("message", "plan", "context", "files")


def page_response(page_of_items: tuple[list[dict[str, Any]], str | None]) -> Response:
    """Return a JSON response with a page of items and the cursor of the next page."""
    items, next_cursor = page_of_items
    return JSONResponse({"items": items, "next": next_cursor})


def routes(runs: Runs, threads: Threads, uploads: Uploads | None = None) -> list[Operation]:
    """Return the routes of the JSON API below ``/api``.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        uploads: The users' uploads; ``None`` if uploads are disabled.
    """
    return [*_thread_routes(runs, threads), *_run_routes(runs, threads, uploads)]


def _thread_routes(runs: Runs, threads: Threads) -> list[Operation]:
    async def create(request: Request) -> Response:
        title = _text_field(await read_json_body(request), "title") or ""
        thread_id = await threads.create(caller_of(request), title)
        return JSONResponse({"thread_id": thread_id}, 201)

    async def listed(request: Request) -> Response:
        parameters = request.query_params
        return page_response(
            await threads.list_page(
                caller_of(request),
                query=parameters.get("query", ""),
                outcome=parameters.get("outcome", ""),
                limit=query_int(request, "limit", 50),
                after=parameters.get("after") or None,
            )
        )

    async def get(request: Request) -> Response:
        return JSONResponse(await threads.get(caller_of(request), request.path_params["id"]))

    async def patch(request: Request) -> Response:
        title = _text_field(await read_json_body(request), "title")
        if title is None:
            raise BadRequestError("The field 'title' is missing.", fix='Send {"title": "…"}.')
        found = await threads.rename(caller_of(request), request.path_params["id"], title)
        return JSONResponse(found)

    async def delete(request: Request) -> Response:
        await threads.delete(caller_of(request), request.path_params["id"])
        return Response(status_code=204)

    async def fork(request: Request) -> Response:
        checkpoint = _text_field(await read_json_body(request), "checkpoint_id")
        found = await threads.fork(caller_of(request), request.path_params["id"], checkpoint)
        return JSONResponse({"thread_id": found}, 201)

    async def history(request: Request) -> Response:
        return page_response(
            await threads.history(
                caller_of(request),
                request.path_params["id"],
                limit=query_int(request, "limit", 50),
                after=request.query_params.get("after") or None,
            )
        )

    async def state(request: Request) -> Response:
        checkpoint = request.query_params.get("checkpoint_id") or None
        thread = request.path_params["id"]
        return JSONResponse(await threads.state(caller_of(request), thread, checkpoint))

    created, title = object_schema({"thread_id": TEXT}), {"type": "string", "maxLength": 200}
    return [
        Operation("POST", "/api/threads", create, "Create a thread", created, 201,
                  body=object_schema({}, title=title)),
        Operation("GET", "/api/threads", listed, "List threads, the most recently saved first",
                  page_schema(THREAD_DATA), query={"query": TEXT, "outcome": TEXT, **PAGE_QUERY}),
        Operation("POST", f"{THREAD_PATH}/fork", fork, "Fork a thread",
                  created, 201, body=object_schema({}, checkpoint_id=NAME)),
        Operation("GET", f"{THREAD_PATH}/history", history, "List the checkpoints of a thread",
                  page_schema(object_schema({"checkpoint_id": TEXT})), query=PAGE_QUERY),
        Operation("GET", f"{THREAD_PATH}/state", state, "Get the state of a thread or of a checkpoint", ANY,
                  query={"checkpoint_id": NAME}),
        Operation("GET", THREAD_PATH, get, "Get a thread with its messages", THREAD_DATA,
                  name="thread"),
        Operation("PATCH", THREAD_PATH, patch, "Rename a thread", THREAD_DATA,
                  body=object_schema({"title": title})),
        Operation("DELETE", THREAD_PATH, delete, "Delete a thread", None, 204),
    ]  # fmt: skip


async def _read_context(caller: Caller, body: Mapping[str, Any], uploads: Uploads | None) -> Any:
    """Return the context data of a request, including the uploaded files that the body names."""
    file_ids, context = body.get("files") or [], body.get("context")
    if not isinstance(file_ids, list) or not all(isinstance(one, str) for one in file_ids):
        raise BadRequestError("'files' is not a list of IDs.", fix='Send {"files": ["…"]}.')
    if not file_ids:
        return context
    if uploads is None:
        raise NotFoundError("The file does not exist.", fix="List the files.")
    if not isinstance(context or {}, dict):
        raise BadRequestError("'context' is not an object.", fix='Send {"context": {…}}.')
    return {**(context or {}), **await uploads.to_context(caller, file_ids)}


def _run_routes(runs: Runs, threads: Threads, uploads: Uploads | None) -> list[Operation]:
    async def start(request: Request) -> Response:
        caller, thread = caller_of(request), request.path_params["id"]
        body = await read_json_body(request)
        await threads.resolve(caller, thread)
        if unknown := sorted(body.keys() - set(_RUN_FIELDS)):
            raise BadRequestError(
                f"The request body contains the unknown field {unknown[0]!r}.",
                fix=suggest_fix(unknown[0], candidates=_RUN_FIELDS),
            )
        run = await runs.start(
            caller,
            thread,
            message=_text_field(body, "message"),
            plan=body.get("plan"),
            context=await _read_context(caller, body, uploads),
        )
        return JSONResponse(asdict(run), 202)

    async def get(request: Request) -> Response:
        return JSONResponse(asdict(await runs.get(caller_of(request), request.path_params["id"])))

    async def stop(request: Request) -> Response:
        run = await runs.stop(caller_of(request), request.path_params["id"])
        return JSONResponse(asdict(run), 202)

    async def events(request: Request) -> Response:
        caller, run_id = caller_of(request), request.path_params["id"]
        after = parse_last_event_id(request.headers.get("last-event-id"))
        return event_stream(await runs.follow(caller, run_id, after))

    async def questions(request: Request) -> Response:
        thread = request.query_params.get("thread_id") or None
        return page_response((await runs.list_questions(caller_of(request), thread), None))

    async def answer(request: Request) -> Response:
        body = await read_json_body(request)
        if "answer" not in body:
            raise BadRequestError(
                "The field 'answer' is missing.", fix='Send {"answer": "approve"}.'
            )
        run = await runs.answer(caller_of(request), request.path_params["id"], body["answer"])
        return JSONResponse(asdict(run), 202)

    async def signal(request: Request) -> Response:
        value = (await read_json_body(request)).get("value")
        parameters = request.path_params
        run = await runs.signal(caller_of(request), parameters["id"], parameters["key"], value)
        result = {"waited": run is not None, "run_id": run.run_id if run is not None else None}
        return JSONResponse(result, 202)

    return [
        Operation("POST", f"{THREAD_PATH}/runs", start, "Start a run", RUN, 202,
                  body=object_schema({}, message=TEXT, plan=ANY, context=ANY,
                                 files={"type": "array", "items": TEXT})),
        Operation("POST", f"{THREAD_PATH}/signals/{{key}}", signal, "Send an event to a thread",
                  object_schema({"waited": {"type": "boolean"}, "run_id": TEXT_OR_NULL}), 202,
                  body=object_schema({}, value={})),
        Operation("GET", "/api/runs/{id}", get, "Get a run", RUN),
        Operation("POST", "/api/runs/{id}/stop", stop, "Stop a run", RUN, 202),
        Operation("GET", "/api/runs/{id}/events", events, "Follow a run; Last-Event-ID resumes",
                  TEXT, media_type="text/event-stream"),
        Operation("GET", "/api/questions", questions, "List open questions",
                  page_schema(QUESTION), query={"thread_id": NAME}),
        Operation("POST", "/api/questions/{id}", answer, "Answer a question", RUN, 202,
                  body=object_schema(
                      {"answer": {"description": "approve (or yes), reject (or no), or"
                                  " {context_key: {decision, …}}"}})),
    ]  # fmt: skip
