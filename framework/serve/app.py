"""The ASGI application: routes, middleware, and lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    MissingExtraError,
    require_extra,
)
from capgraph.configs.logger import get_logger
from capgraph.serve.access_log import AccessLogMiddleware
from capgraph.serve.activity import ActivityReader
from capgraph.serve.files import Artifacts, Uploads
from capgraph.serve.forwarded import ForwardedMiddleware
from capgraph.serve.identity import Authenticator, Identity
from capgraph.serve.problems import error_response, problem_response
from capgraph.serve.recorded_runs import RecordedRuns
from capgraph.serve.routes import (
    activity,
    agui,
    api,
    authorization,
    console,
    files,
    health,
    login,
    oidc,
    openai,
    recorded_runs,
)
from capgraph.serve.runs import Runs
from capgraph.serve.security import SecurityMiddleware, serve_settings
from capgraph.serve.status import StatusReader
from capgraph.serve.threads import Threads
from capgraph.serve.tokens import TokenFile
from capgraph.serve.webhook import Webhook

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings, Settings
    from capgraph.scale.engine import Engine


def create_app(
    graph: Any,
    *,
    settings: Settings | None = None,
    auth: str | Path | Identity | None = None,
    host: str | None = None,
    engine: Engine | None = None,
) -> Starlette:
    """Create an ASGI application that serves a graph over HTTP.

    If the application is mounted inside another application, enter its lifespan there
    (``app.router.lifespan_context(app)``). Otherwise, runs are neither resumed at startup nor
    handed over at shutdown.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        settings: Settings to use instead of the graph's own.
        auth: Path of a token file, or an :class:`~capgraph.serve.identity.Identity`. Without it,
            the only user is ``local``, who logs in with a one-time link (``app.state.link``).
        host: Address that the server listens on; ``None`` behind another server.
        engine: Engine that hands runs to workers, from :func:`capgraph.scale.connect`. Without it,
            runs execute in this process.

    Raises:
        ConfigurationError: The graph has no checkpointer or was not made by ``build_graph``.

    >>> from capgraph import build_graph
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> app = create_app(build_graph([], checkpointer=InMemorySaver()))
    >>> app.url_path_for("thread", id="1")
    '/api/threads/1'
    """
    services = getattr(graph, "services", None)
    if services is None or not graph.checkpointer:
        raise ConfigurationError(
            "The graph cannot be served: it has no checkpointer or was not made by build_graph.",
            fix="Pass checkpointer= to build_graph, for example InMemorySaver().",
        )
    serve = serve_settings(settings or services.settings)
    log = graph.persistence.open_run_log()
    threads = Threads(graph, log, is_shared=auth is None and not serve.authenticates_users)
    identity: Identity
    if auth is None or isinstance(auth, (str, Path)):
        tokens = TokenFile(Path(auth)) if auth is not None else None
        identity = Authenticator(serve, tokens, serve.base_url or "", graph.persistence.values)
    else:
        identity = auth
    find_current = getattr(identity, "current", None)
    runs = Runs(graph, threads, log, serve, engine, find_current)
    recorded = RecordedRuns(graph, threads, serve, find_current)
    has_provider = serve.oidc is not None and isinstance(identity, Authenticator)
    login_routes: list[BaseRoute] = []
    if isinstance(identity, Authenticator):
        login_routes += login.routes(identity, oidc=has_provider)
        if serve.oidc is not None:
            login_routes += oidc.routes(identity, serve.oidc, serve)

    authorizations = authorization.find_authorizations(services)
    uses_https = (serve.base_url or "").startswith("https://")
    login_routes += authorization.routes(runs, authorizations, serve, uses_https=uses_https)

    uploads = _uploads(serve, services, has_login=auth is not None)
    artifacts = Artifacts(graph, threads, serve.downloads)
    protocols, contexts = protocol_routes(graph, runs, threads, serve, uploads, artifacts)
    if serve.webhook is not None:
        contexts.append(Webhook(graph, threads, log, serve).run)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if uploads is not None:
            await asyncio.to_thread(uploads.create_folder)
        await graph.warm_up()
        maintenance = asyncio.create_task(runs.maintain())
        ready, shutdown = asyncio.Event(), asyncio.Event()

        async def hold_contexts() -> None:
            # A task group must be exited by the task that entered it. The lifespan itself may be
            # exited by another task, for example in a test or in an outer application.
            try:
                async with contextlib.AsyncExitStack() as stack:
                    for open_context in contexts:
                        await stack.enter_async_context(open_context())
                    ready.set()
                    await shutdown.wait()
            finally:
                ready.set()

        contexts_task = asyncio.create_task(hold_contexts())
        await ready.wait()
        try:
            if not contexts_task.done():
                yield
        finally:
            maintenance.cancel()
            await asyncio.wait([maintenance])
            await runs.drain()
            shutdown.set()
            await contexts_task

    handlers: dict[Any, Any] = dict.fromkeys((CapgraphError, Exception), _handle_error)
    registry = CollectorRegistry()
    activity_reader = ActivityReader(graph, threads, serve.admin_roles)
    app = Starlette(
        routes=[
            *files.routes(uploads, artifacts),
            *recorded_runs.routes(recorded, serve),
            *api.routes(runs, threads, uploads),
            *activity.routes(activity_reader, StatusReader(graph, threads, serve)),
            *agui.routes(runs, threads, serve),
            *openai.routes(runs, serve),
            *health.routes(runs, services.settings.name, registry),
            *console.routes(oidc=has_provider),
            *protocols,
            *login_routes,
        ],
        middleware=[
            Middleware(ForwardedMiddleware, serve),
            Middleware(AccessLogMiddleware, registry),
            *_cors_middleware(serve),
            Middleware(
                SecurityMiddleware,
                serve,
                identity,
                host=host,
                style_hashes=[login.STYLE_HASH],
                upload_paths=[files.UPLOADS_PATH],
            ),
        ],
        exception_handlers=handlers | dict.fromkeys((404, 405), _handle_http_error),
        lifespan=lifespan,
    )
    app.state.runs, app.state.threads = runs, threads
    app.state.max_connections = serve.max_connections
    app.state.link = identity.link if isinstance(identity, Authenticator) else None
    return app


def _uploads(serve: ServeSettings, services: Any, *, has_login: bool) -> Uploads | None:
    """Create the service for file uploads, or return ``None`` if uploads are disabled."""
    if serve.uploads is None:
        return None
    uploads = Uploads(serve.uploads, services.registry)
    if has_login or serve.authenticates_users:
        uploads.check_isolation(services.settings.data_folders)
    return uploads


def _cors_middleware(settings: ServeSettings) -> list[Middleware]:
    """Return the CORS middleware, which lets pages from the allowed origins read responses.

    It wraps the security middleware, because preflight requests carry no token and pages must
    be able to read rejections. Responses to other origins get no CORS headers.
    """
    if not settings.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id", "retry-after", "www-authenticate"],
        )
    ]


def protocol_routes(
    graph: Any,
    runs: Runs,
    threads: Threads,
    settings: ServeSettings,
    uploads: Uploads | None,
    artifacts: Artifacts,
) -> tuple[list[BaseRoute], list[Callable[[], AbstractAsyncContextManager[None]]]]:
    """Return the routes and lifespan contexts of the protocols whose extras are installed."""
    routes: list[BaseRoute] = []
    contexts = []
    for extra, module in (("mcp", "mcp.server"), ("a2a", "a2a.server.routes")):
        try:
            require_extra(module, extra)
        except MissingExtraError as exc:
            if extra == "mcp" and settings.mcp.tools:
                raise
            get_logger("serve", "app").warning("/%s is not served. Fix: %s", extra, exc.fix)
            continue
        route_module = importlib.import_module(f"capgraph.serve.routes.{extra}")
        new_routes, open_context = route_module.endpoint(
            runs, threads, graph.services, settings, uploads, artifacts
        )
        routes += new_routes
        contexts.append(open_context)
    return routes, contexts


async def _handle_error(_: Request, error: Exception) -> Response:
    return error_response(error)


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "CG-NOT-FOUND", 405: "CG-METHOD"}[error.status_code]
    return problem_response(error.status_code, code, str(error.detail), headers=error.headers)
