"""Read-only routes: effects, usage, audit, budgets, limits, and the agent itself."""

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
    TEXT,
    Operation,
    object_schema,
    page_schema,
)
from capgraph.serve.routes.api import page_response, query_int
from capgraph.serve.status import StatusReader
from capgraph.serve.threads import to_json_safe


def routes(activity: ActivityReader, status: StatusReader) -> list[Operation]:
    """Return the read-only routes for recorded activity and the agent's status.

    Args:
        activity: Reader of recorded activity.
        status: Reader of the agent's status.
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
        Operation("GET", "/api/effects", effects, "List effects and their approvers",
                  page_schema(EFFECT), query={"thread_id": NAME, **PAGE_QUERY}),
        Operation("GET", "/api/usage", usage, "Get the usage of model calls", page_schema(ANY),
                  query={"by": {"enum": ["model", "day", "user", "step"]}, "thread_id": NAME}),
        Operation("GET", "/api/audit", audit, "List audit records", page_schema(ANY),
                  query={"limit": COUNT, "after": COUNT}),
        Operation("GET", "/api/audit/verify", verify, "Verify the audit log",
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

    async def agent(request: Request) -> Response:
        return JSONResponse(status.describe_agent(caller_of(request)))

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
        Operation("GET", "/api/budgets", budgets, "List budgets and remaining amounts",
                  page_schema(ANY), query={"thread_id": NAME}),
        Operation("GET", "/api/limits", limits,
                  "List used slots and open circuit breakers", page_schema(ANY)),
        Operation("GET", "/api/capabilities", capabilities, "List the agent's capabilities",
                  page_schema(ANY)),
        Operation("GET", "/api/agent", agent, "Get the agent's name, description, and examples",
                  object_schema({"name": TEXT, "description": TEXT,
                                 "examples": {"type": "array", "items": TEXT}})),
        Operation("GET", "/api/graph", graph, "Get the nodes and edges of the graph",
                  object_schema({"nodes": {"type": "array"}, "edges": {"type": "array"}})),
        Operation("GET", "/api/findings", findings,
                  "List the findings of 'capgraph check'", page_schema(ANY)),
        Operation("GET", "/api/workers", workers, "List live workers", page_schema(ANY)),
        Operation("GET", "/api/evaluations", evaluations,
                  "List evaluation runs", page_schema(ANY)),
    ]  # fmt: skip
