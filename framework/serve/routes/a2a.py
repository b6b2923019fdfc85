"""Routes of A2A: the agent card, JSON-RPC, and REST."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from email.utils import formatdate
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.a2a_handler import TaskHandler
from capgraph.serve.a2a_push import PushNotifications
from capgraph.serve.files import Artifacts, Uploads, media_type
from capgraph.serve.identity import caller_of
from capgraph.serve.links import server_url
from capgraph.serve.openapi import server_version
from capgraph.serve.runs import Runs
from capgraph.serve.threads import Threads

_CARD_CACHE = "public, max-age=300"
_PREFIX = "/a2a"


def endpoint(
    runs: Runs,
    threads: Threads,
    services: Services,
    settings: ServeSettings,
    uploads: Uploads | None = None,
    artifacts: Artifacts | None = None,
) -> tuple[list[BaseRoute], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the A2A routes and the context manager to enter while they are served.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        services: Services of the graph. Its capabilities become the skills of the agent card.
        settings: Settings of the server.
        uploads: The users' uploads; ``None`` rejects files.
        artifacts: Files that steps produced.
    """
    template = _build_card(services, settings, uploads)
    started_at = formatdate(usegmt=True)

    async def card(request: Request) -> Response:
        agent_card = AgentCard()
        agent_card.CopyFrom(template)
        for interface in agent_card.supported_interfaces:
            interface.url = f"{server_url(settings, request)}{_PREFIX}"
        (route,) = create_agent_card_routes(agent_card, cache_control=_CARD_CACHE)
        response: Response = await route.endpoint(request)
        response.headers["last-modified"] = started_at
        return response

    handler = TaskHandler(runs, threads, uploads, artifacts)
    push = PushNotifications(services, settings, handler.follow_task)
    handler.push = push if settings.a2a.push_hosts else None
    context = _CallerContextBuilder(settings)
    compatible = {"enable_v0_3_compat": settings.a2a.version_0_3}
    rpc = [
        Route(path, _require_json(route.endpoint), methods=["POST"])
        for path in (_PREFIX, f"{_PREFIX}/")
        for route in create_jsonrpc_routes(handler, path, context, **compatible)
    ]
    # The SDK's REST routes for 0.3 break the connection if a subscription is refused.
    rest = create_rest_routes(handler, context, path_prefix=_PREFIX)
    # The routes of tenants would match every path of the server.
    rest = [route for route in rest if isinstance(route, Route)]
    return [Route(AGENT_CARD_WELL_KNOWN_PATH, card, methods=["GET"]), *rpc, *rest], push.run


def _require_json(endpoint: Any) -> Any:
    """Wrap a JSON-RPC endpoint so that it rejects requests whose content type is not JSON."""

    async def check(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type and not content_type.endswith("json"):
            error = ContentTypeNotSupportedError("The request is not JSON. Fix: send JSON.")
            return JSONResponse(build_error_response(None, error))
        response: Response = await endpoint(request)
        return response

    return check


def _build_card(services: Services, settings: ServeSettings, uploads: Uploads | None) -> AgentCard:
    agent = services.settings
    kinds = uploads.settings.kinds if uploads is not None else ()
    bindings = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON")]
    bindings += [("0.3", "JSONRPC")] if settings.a2a.version_0_3 else []
    return AgentCard(
        name=agent.name,
        description=agent.description or agent.name,
        version=server_version(),
        supported_interfaces=[
            AgentInterface(url=_PREFIX, protocol_binding=binding, protocol_version=version)
            for version, binding in bindings
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=bool(settings.a2a.push_hosts)
        ),
        default_input_modes=list(
            dict.fromkeys(
                ["text/plain", "application/json", *(media_type(f"file{kind}") for kind in kinds)]
            )
        ),
        default_output_modes=["text/plain", "application/json"],
        skills=[
            AgentSkill(
                id=capability.name,
                name=capability.name,
                description=capability.description,
                tags=[capability.effect],
            )
            for capability in services.registry.capabilities.values()
        ],
        security_schemes={
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer")
            )
        },
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
    )


class _CallerContextBuilder(DefaultServerCallContextBuilder):
    """Context builder that passes the authenticated caller to the A2A request handler."""

    def __init__(self, settings: ServeSettings) -> None:
        super().__init__()
        self._settings = settings

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["caller"] = caller_of(request)
        context.state["base_url"] = server_url(self._settings, request)
        return context
