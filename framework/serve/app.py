"""The server as an ASGI application: routes, who may pass, and what lives as long as it does."""

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
from capgraph.serve.identity import Authenticator, Identity
from capgraph.serve.problems import error_response, problem_response
from capgraph.serve.routes import activity, agui, api, console, files, health, login, oidc, openai
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
    """Return an ASGI application that serves a graph to people and to other agents.

    Mounted in another application, its lifespan has to be entered there
    (``app.router.lifespan_context(app)``), so that runs are taken up and handed over.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        settings: All settings; the graph's own when not given.
        auth: The file of tokens, or an :class:`~capgraph.serve.identity.Identity` of one's own.
            Without one there is one user, ``local``, who comes by the one-time link
            (``app.state.link``).
        host: On which address the server listens; ``None`` behind somebody else's server.
        engine: Hands runs to workers, as :func:`capgraph.scale.connect` opens it; without one they
            go on in this process.

    Raises:
        ConfigurationError: The graph has no saver, or was not made by ``build_graph``.

    >>> from capgraph import build_graph
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> app = create_app(build_graph([], checkpointer=InMemorySaver()))
    >>> app.url_path_for("thread", id="1")
    '/api/threads/1'
    """
    services = getattr(graph, "services", None)
    if services is None or not graph.checkpointer:
        raise ConfigurationError(
            "Only a graph of build_graph that keeps its threads can be served.",
            fix="Give build_graph a checkpointer; InMemorySaver() is enough to try.",
        )
    serve = serve_settings(settings or services.settings)
    log = graph.persistence.open_run_log()
    threads = Threads(graph, log, is_shared=auth is None and not serve.authenticates_users)
    runs = Runs(graph, threads, log, serve, engine)
    identity: Identity
    if auth is None or isinstance(auth, (str, Path)):
        tokens = TokenFile(Path(auth)) if auth is not None else None
        identity = Authenticator(serve, tokens, serve.base_url or "", graph.persistence.values)
    else:
        identity = auth
    by_provider = serve.oidc is not None and isinstance(identity, Authenticator)
    entries: list[BaseRoute] = []
    if isinstance(identity, Authenticator):
        entries += login.routes(identity, oidc=by_provider)
        if serve.oidc is not None:
            entries += oidc.routes(identity, serve.oidc, serve)

    uploads = None
    if serve.uploads is not None:
        uploads = Uploads(serve.uploads, services.registry)
        if auth is not None or serve.authenticates_users:
            uploads.check_isolation(services.settings.data_folders)
    made = Artifacts(graph, threads, serve.downloads)
    protocols, entered = protocol_routes(graph, runs, threads, serve)
    if serve.webhook is not None:
        entered.append(Webhook(graph, threads, log, serve).run)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await graph.warm_up()
        looking = asyncio.create_task(runs.maintain())
        ready, ending = asyncio.Event(), asyncio.Event()

        async def live() -> None:
            # What protocols live in has to be left by the task that entered it, whichever task
            # of an outer application or of a test comes to the end of this.
            try:
                async with contextlib.AsyncExitStack() as stack:
                    for one in entered:
                        await stack.enter_async_context(one())
                    ready.set()
                    await ending.wait()
            finally:
                ready.set()

        living = asyncio.create_task(live())
        await ready.wait()
        try:
            if not living.done():
                yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])
            await runs.drain()
            ending.set()
            await living

    handlers: dict[Any, Any] = dict.fromkeys((CapgraphError, Exception), _handle_error)
    registry = CollectorRegistry()
    kept = ActivityReader(graph, threads, serve.admin_roles)
    app = Starlette(
        routes=[
            *files.routes(uploads, made),
            *api.routes(runs, threads, uploads),
            *activity.routes(kept, StatusReader(graph, threads, serve)),
            *agui.routes(runs),
            *openai.routes(runs, serve),
            *health.routes(runs, services.settings.name, registry),
            *console.routes(oidc=by_provider),
            *protocols,
            *entries,
        ],
        middleware=[
            Middleware(AccessLogMiddleware, registry),
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
    app.state.link = identity.link if isinstance(identity, Authenticator) else None
    return app


def protocol_routes(
    graph: Any, runs: Runs, threads: Threads, settings: ServeSettings
) -> tuple[list[BaseRoute], list[Callable[[], AbstractAsyncContextManager[None]]]]:
    """Return the routes of the protocols whose extras are installed, and what they live in."""
    routes: list[BaseRoute] = []
    entered = []
    for extra, module in (("mcp", "mcp.server"), ("a2a", "a2a.server.routes")):
        try:
            require_extra(module, extra)
        except MissingExtraError as exc:
            if extra == "mcp" and settings.mcp.tools:
                raise
            get_logger("serve", "app").warning("/%s is not there: %s", extra, exc.fix)
            continue
        made = importlib.import_module(f"capgraph.serve.routes.{extra}")
        found, lives = made.endpoint(runs, threads, graph.services, settings)
        routes += found
        entered.append(lives)
    return routes, entered


async def _handle_error(_: Request, error: Exception) -> Response:
    return error_response(error)


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "CG-NOT-FOUND", 405: "CG-METHOD"}[error.status_code]
    return problem_response(error.status_code, code, str(error.detail), headers=error.headers)
