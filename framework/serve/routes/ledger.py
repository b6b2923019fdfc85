"""Reading what is kept, and how things stand: effects, usage, the audit, budgets, the agent."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capgraph.serve.identity import caller_of
from capgraph.serve.ledger import Ledger
from capgraph.serve.openapi import (
    ANY,
    COUNT,
    EFFECT,
    NAME,
    PAGED,
    Operation,
    list_of,
    object_of,
)
from capgraph.serve.routes.api import number_of, page
from capgraph.serve.standing import Standing
from capgraph.serve.threads import finite


def routes(ledger: Ledger, standing: Standing) -> list[Operation]:
    """Return the routes that only read.

    Args:
        ledger: Reads what is kept.
        standing: Reads how things stand.
    """
    return [*_kept(ledger), *_standing(standing)]


def _kept(ledger: Ledger) -> list[Operation]:

    async def effects(request: Request) -> Response:
        asked = request.query_params
        return page(
            await ledger.effects(
                caller_of(request),
                thread_id=asked.get("thread_id") or None,
                limit=number_of(request, "limit", 50),
                after=asked.get("after") or None,
            )
        )

    async def usage(request: Request) -> Response:
        asked = request.query_params
        by, thread = asked.get("by") or "model", asked.get("thread_id") or None
        return page(await ledger.usage(caller_of(request), by, thread))

    async def audit(request: Request) -> Response:
        limit, after = number_of(request, "limit", 50), number_of(request, "after", 0)
        return page(await ledger.audit(caller_of(request), limit=limit, after=after))

    async def verify(request: Request) -> Response:
        return JSONResponse(await ledger.verified(caller_of(request)))

    return [
        Operation("GET", "/api/effects", effects, "List effects and who agreed to them",
                  list_of(EFFECT), query={"thread_id": NAME, **PAGED}),
        Operation("GET", "/api/usage", usage, "Read what calls of models used", list_of(ANY),
                  query={"by": {"enum": ["model", "day", "user", "step"]}, "thread_id": NAME}),
        Operation("GET", "/api/audit", audit, "Read the audit", list_of(ANY),
                  query={"limit": COUNT, "after": COUNT}),
        Operation("GET", "/api/audit/verify", verify, "Check the audit",
                  object_of({"valid": {"type": "boolean"}})),
    ]  # fmt: skip


def _standing(standing: Standing) -> list[Operation]:
    async def budgets(request: Request) -> Response:
        thread = request.query_params.get("thread_id")
        return page((await standing.budgets(caller_of(request), thread), None))

    async def limits(request: Request) -> Response:
        return page((await standing.limits(caller_of(request)), None))

    async def capabilities(request: Request) -> Response:
        return page((standing.capabilities(caller_of(request)), None))

    async def graph(_: Request) -> Response:
        return JSONResponse(standing.graph())

    async def findings(request: Request) -> Response:
        return page((await standing.findings(caller_of(request)), None))

    async def workers(request: Request) -> Response:
        return page((await standing.workers(caller_of(request)), None))

    async def evaluations(request: Request) -> Response:
        return page((finite(await standing.evaluations(caller_of(request))), None))

    return [
        Operation("GET", "/api/budgets", budgets, "Read what may be used up, and what is left",
                  list_of(ANY), query={"thread_id": NAME}),
        Operation("GET", "/api/limits", limits,
                  "Read slots that are taken, and what is out of reach now", list_of(ANY)),
        Operation("GET", "/api/capabilities", capabilities, "List what the agent can do",
                  list_of(ANY)),
        Operation("GET", "/api/graph", graph, "Read the nodes and edges of the graph",
                  object_of({"nodes": {"type": "array"}, "edges": {"type": "array"}})),
        Operation("GET", "/api/findings", findings,
                  "Read what would fail, as 'capgraph check' finds it", list_of(ANY)),
        Operation("GET", "/api/workers", workers, "List the workers that live", list_of(ANY)),
        Operation("GET", "/api/evaluations", evaluations,
                  "Read what evaluations of the agent gave", list_of(ANY)),
    ]  # fmt: skip
