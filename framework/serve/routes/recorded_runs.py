"""Comparison and replay of recorded runs, and read-only links with their page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from capgraph.configs.safe_text import escape_control_characters
from capgraph.configs.settings import ServeSettings
from capgraph.serve.identity import caller_of
from capgraph.serve.links import server_url
from capgraph.serve.openapi import ANY, NAME, TEXT, Operation, object_schema, page_schema
from capgraph.serve.page_style import inline_style
from capgraph.serve.problems import BadRequestError, NotFoundError
from capgraph.serve.recorded_runs import RecordedRuns
from capgraph.serve.routes.api import THREAD_PATH, page_response, query_int, read_json_body
from capgraph.serve.security import SHARED_PREFIX

_MAX_TEXT = 20_000
_STYLE, _STYLE_HASH = inline_style("""
body{background:var(--sheet);color:var(--text);margin:0 auto;max-width:56rem;padding:1.5rem 1rem;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}p{margin:.3rem 0}
.quiet{color:var(--quiet);font-size:.9rem}.text{white-space:pre-wrap}
ol{list-style:none;margin:0;padding:0}li{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem;margin:.5rem 0}
.done{color:var(--good)}.failed{color:var(--bad)}.partly{color:var(--ask)}
pre{white-space:pre-wrap;margin:.3rem 0;font-size:.85rem;max-height:24rem;overflow:auto}
summary{cursor:pointer;color:var(--quiet)}
""")
_PAGE_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src '{_STYLE_HASH}';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-robots-tag": "noindex, nofollow",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style>{style}</style></head><body><main>{body}</main></body></html>
"""
_MARKS = {"done": "✓", "failed": "✗", "partly done": "!", "not run": "–"}

LINK = object_schema(
    {"link_id": TEXT, "turn": {"type": "integer"}, "expires_at": {"type": "number"}}
)
TURN = {"type": ["integer", "null"], "minimum": 1}


def routes(recorded: RecordedRuns, settings: ServeSettings) -> list[BaseRoute]:
    """Return the routes for recorded runs and for links that share them.

    Args:
        recorded: Recorded runs of the users' threads.
        settings: Settings of the server.
    """
    return [
        *_run_routes(recorded),
        *_link_routes(recorded, settings),
        _shared_page(recorded),
    ]


def _run_routes(recorded: RecordedRuns) -> list[Operation]:
    async def list_runs(request: Request) -> Response:
        found = await recorded.list_runs(caller_of(request), request.path_params["id"])
        return page_response((found, None))

    async def compare(request: Request) -> Response:
        thread = request.path_params["id"]
        other = request.query_params.get("other") or thread
        first = thread, query_int(request, "turn", 0) or None
        second = other, query_int(request, "other_turn", 0) or None
        return JSONResponse(await recorded.compare(caller_of(request), first, second))

    async def replay(request: Request) -> Response:
        turn = _number(await read_json_body(request), "turn", int)
        found = await recorded.replay(caller_of(request), request.path_params["id"], turn)
        return JSONResponse(found)

    difference = object_schema({"part": TEXT, "name": TEXT, "recorded": {}, "replayed": {}})
    result = object_schema(
        {
            "same": {"type": "boolean"},
            "differences": {"type": "array", "items": difference},
            "unrecorded": {"type": "array", "items": TEXT},
            "ran": {"type": "array", "items": TEXT},
            "recorded": ANY,
            "replayed": ANY,
        }
    )
    number = {"type": "integer", "minimum": 0}
    return [
        Operation("GET", f"{THREAD_PATH}/recorded", list_runs, "List the recorded runs of a thread",
                  page_schema(object_schema({"turn": number, "at": {"type": "number"},
                                             "request": TEXT, "status": TEXT}))),
        Operation("GET", f"{THREAD_PATH}/compare", compare, "Compare two recorded runs", result,
                  query={"turn": number, "other": NAME, "other_turn": number}),
        Operation("POST", f"{THREAD_PATH}/replay", replay,
                  "Replay a recorded run with the server's code", result,
                  body=object_schema({}, turn=TURN)),
    ]  # fmt: skip


def _link_routes(recorded: RecordedRuns, settings: ServeSettings) -> list[Operation]:
    async def create(request: Request) -> Response:
        body = await read_json_body(request)
        link = await recorded.create_link(
            caller_of(request),
            request.path_params["id"],
            _number(body, "turn", int),
            _number(body, "days", float),
        )
        url = f"{server_url(settings, request)}{SHARED_PREFIX}{link.pop('token')}"
        return JSONResponse({**link, "url": url}, 201)

    async def list_links(request: Request) -> Response:
        found = await recorded.list_links(caller_of(request), request.path_params["id"])
        return page_response((found, None))

    async def revoke(request: Request) -> Response:
        parameters = request.path_params
        await recorded.revoke_link(caller_of(request), parameters["id"], parameters["link"])
        return Response(status_code=204)

    created = {**LINK, "properties": {**LINK["properties"], "url": TEXT}}
    return [
        Operation("GET", f"{THREAD_PATH}/links", list_links, "List the links to runs of a thread",
                  page_schema(LINK)),
        Operation("POST", f"{THREAD_PATH}/links", create, "Create a read-only link to a run",
                  created, 201,
                  body=object_schema({}, turn=TURN, days={"type": "number",
                                                          "exclusiveMinimum": 0})),
        Operation("DELETE", f"{THREAD_PATH}/links/{{link}}", revoke, "Revoke a link", None, 204),
    ]  # fmt: skip


def _number(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    is_number = isinstance(value, int if kind is int else (int, float))
    if value is not None and (isinstance(value, bool) or not is_number):
        raise BadRequestError(f"The field {name!r} is not a number.", fix="Send a number.")
    return value


def _shared_page(recorded: RecordedRuns) -> Route:
    async def page(request: Request) -> Response:
        try:
            run = await recorded.open_link(request.path_params["token"])
        except NotFoundError as exc:
            body = f'<h1>Link not available</h1><p role="alert">{html.escape(str(exc))}</p>'
            return _page("Link not available", body, 404)
        return _page(run["agent"], "".join(_render(run)))

    return Route(f"{SHARED_PREFIX}{{token}}", page, methods=["GET"])


def _page(title: str, body: str, status: int = 200) -> Response:
    text = _PAGE.format(title=html.escape(title), style=_STYLE, body=body)
    return HTMLResponse(text, status, headers=_PAGE_HEADERS)


def _render(run: Mapping[str, Any]) -> Iterable[str]:
    """Yield the HTML of a read-only page that shows a run.

    The page contains no scripts and no forms.
    """
    at = datetime.fromtimestamp(run["at"], UTC)
    yield f"<h1>{_text(run['agent'])}</h1>"
    yield f'<p class="quiet">Read-only view of a run · {at:%Y-%m-%d %H:%M} UTC</p>'
    yield f'<h2>Request</h2><p class="text" data-testid="request">{_text(run["request"])}</p>'
    reason = f": {_text(run['reason'])}" if run["reason"] else ""
    yield f'<h2>Outcome</h2><p data-testid="outcome">{_text(run["status"])}{reason}</p>'
    yield f'<p class="quiet">{_describe_cost(run["cost"])}</p>'
    yield '<h2>Plan</h2><ol data-testid="steps">'
    for step in run["steps"]:
        status = {True: "done", False: "failed"}.get(step.get("success", ""), "not run")
        errors = [step["error"]] if step.get("error") else step["failed_elements"]
        status = "partly done" if step["failed_elements"] else status
        yield f"<li><strong>{_text(step['context_key'])}</strong> {_text(step['capability'])}"
        yield f' <span class="{status.partition(" ")[0]}">{_MARKS[status]} {status}</span>'
        yield f'<p class="quiet">{_text(step["task_objective"])}</p>'
        for error in errors:
            yield f'<p class="failed text">{_text(error)}</p>'
        if step.get("gave"):
            output = json.dumps(step["gave"], indent=2, ensure_ascii=False)
            yield f"<details><summary>Output</summary><pre>{_text(output)}</pre></details>"
        yield "</li>"
    yield f'</ol><h2>Answer</h2><p class="text" data-testid="answer">{_text(run["answer"])}</p>'


def _describe_cost(cost: Mapping[str, Any]) -> str:
    tokens = cost["input_tokens"] + cost["output_tokens"]
    price = "unknown price" if cost["cost_usd"] is None else f"${cost['cost_usd']:.4g}"
    return f"{cost['model_calls']} model calls, {tokens:,} tokens, {price}"


def _text(value: object) -> str:
    """Escape untrusted text for HTML, including invisible characters."""
    text = str(value or "")
    cut = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    lines = cut.replace("\r\n", "\n").split("\n")
    return html.escape("\n".join(escape_control_characters(line) for line in lines))
