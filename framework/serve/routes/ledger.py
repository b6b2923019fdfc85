"""Reading what is kept, and how things stand: effects, usage, the audit, budgets, the agent."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from framework.serve.identity import caller_of
from framework.serve.ledger import Ledger
from framework.serve.routes.api import number_of, page
from framework.serve.standing import Standing
from framework.serve.threads import finite


def routes(ledger: Ledger, standing: Standing) -> list[Route]:
    """Return the routes that only read.

    Args:
        ledger: Reads what is kept.
        standing: Reads how things stand.
    """
    return [*_kept(ledger), *_standing(standing)]


def _kept(ledger: Ledger) -> list[Route]:

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
        Route("/api/effects", effects),
        Route("/api/usage", usage),
        Route("/api/audit", audit),
        Route("/api/audit/verify", verify),
    ]


def _standing(standing: Standing) -> list[Route]:
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
        Route("/api/budgets", budgets),
        Route("/api/limits", limits),
        Route("/api/capabilities", capabilities),
        Route("/api/graph", graph),
        Route("/api/findings", findings),
        Route("/api/workers", workers),
        Route("/api/evaluations", evaluations),
    ]
