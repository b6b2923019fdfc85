"""Reading what is kept: effects, usage, the audit, capabilities."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from framework.serve.identity import caller_of
from framework.serve.ledger import Ledger
from framework.serve.routes.api import number_of, page


def routes(ledger: Ledger) -> list[Route]:
    """Return the routes that only read.

    Args:
        ledger: Reads it.
    """

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
        by = request.query_params.get("by") or "model"
        return page(await ledger.usage(caller_of(request), by))

    async def audit(request: Request) -> Response:
        limit, after = number_of(request, "limit", 50), number_of(request, "after", 0)
        return page(await ledger.audit(caller_of(request), limit=limit, after=after))

    async def verify(_: Request) -> Response:
        return JSONResponse(await ledger.verified())

    async def capabilities(request: Request) -> Response:
        return page((ledger.capabilities(caller_of(request)), None))

    return [
        Route("/api/effects", effects),
        Route("/api/usage", usage),
        Route("/api/audit", audit),
        Route("/api/audit/verify", verify),
        Route("/api/capabilities", capabilities),
    ]
