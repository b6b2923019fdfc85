"""Reading what is kept, and how things stand: effects, usage, the audit, budgets, the agent."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capgraph.serve.activity import ActivityReader
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import (
    ANY,
    COUNT,
    EFFECT,
    NAME,
    PAGE_QUERY,
    Operation,
    object_schema,
    page_schema,
)
from capgraph.serve.routes.api import page_response, query_int
from capgraph.serve.status import StatusReader
from capgraph.serve.threads import to_json_safe


def routes(activity: ActivityReader, status: StatusReader) -> list[Operation]:
    """Return the routes that only read.

    Args:
        activity: Reads what is kept.
        status: Reads how things stand.
    """
    return [*_activity_routes(activity), *_status_routes(status)]


def _activity_routes(activity: ActivityReader) -> list[Operation]:

    async def effects(request: Request) -> Response:
        asked = request.query_params
        return page_response(
            await activity.list_effects(
                caller_of(request),
                thread_id=asked.get("thread_id") or None,
                limit=query_int(request, "limit", 50),
                after=asked.get("after") or None,
            )
        )

    async def usage(request: Request) -> Response:
        asked = request.query_params
        by, thread = asked.get("by") or "model", asked.get("thread_id") or None
        return page_response(await activity.list_usage(caller_of(request), by, thread))

    async def audit(request: Request) -> Response:
        limit, after = query_int(request, "limit", 50), query_int(request, "after", 0)
        return page_response(
            await activity.list_audit_records(caller_of(request), limit=limit, after=after)
        )

    async def verify(request: Request) -> Response:
        return JSONResponse(await activity.verify_audit(caller_of(request)))

    return [
        Operation("GET", "/api/effects", effects, "List effects and who agreed to them",
                  page_schema(EFFECT), query={"thread_id": NAME, **PAGE_QUERY}),
        Operation("GET", "/api/usage", usage, "Read what calls of models used", page_schema(ANY),
                  query={"by": {"enum": ["model", "day", "user", "step"]}, "thread_id": NAME}),
        Operation("GET", "/api/audit", audit, "Read the audit", page_schema(ANY),
                  query={"limit": COUNT, "after": COUNT}),
        Operation("GET", "/api/audit/verify", verify, "Check the audit",
                  object_schema({"valid": {"type": "boolean"}})),
    ]  # fmt: skip


def _status_routes(status: StatusReader) -> list[Operation]:
    async def budgets(request: Request) -> Response:
        thread = request.query_params.get("thread_id")
        return page_response((await status.list_budgets(caller_of(request), thread), None))

    async def limits(request: Request) -> Response:
        return page_response((await status.list_limits(caller_of(request)), None))

    async def capabilities(request: Request) -> Response:
        return page_response((status.list_capabilities(caller_of(request)), None))

    async def graph(_: Request) -> Response:
        return JSONResponse(status.describe_graph())

    async def findings(request: Request) -> Response:
        return page_response((await status.list_findings(caller_of(request)), None))

    async def workers(request: Request) -> Response:
        return page_response((await status.list_workers(caller_of(request)), None))

    async def evaluations(request: Request) -> Response:
        return page_response(
            (to_json_safe(await status.list_evaluations(caller_of(request))), None)
        )

    return [
        Operation("GET", "/api/budgets", budgets, "Read what may be used up, and what is left",
                  page_schema(ANY), query={"thread_id": NAME}),
        Operation("GET", "/api/limits", limits,
                  "Read slots that are taken, and what is out of reach now", page_schema(ANY)),
        Operation("GET", "/api/capabilities", capabilities, "List what the agent can do",
                  page_schema(ANY)),
        Operation("GET", "/api/graph", graph, "Read the nodes and edges of the graph",
                  object_schema({"nodes": {"type": "array"}, "edges": {"type": "array"}})),
        Operation("GET", "/api/findings", findings,
                  "Read what would fail, as 'capgraph check' finds it", page_schema(ANY)),
        Operation("GET", "/api/workers", workers, "List the workers that live", page_schema(ANY)),
        Operation("GET", "/api/evaluations", evaluations,
                  "Read what evaluations of the agent gave", page_schema(ANY)),
    ]  # fmt: skip
