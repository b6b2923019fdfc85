"""Pages on which users authorize the agent to act for them at remote servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capgraph.adapters.authorization import AUTHORIZATION, AUTHORIZATION_PATH, AuthorizationCode
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.configs.errors import CapgraphError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.links import server_url
from capgraph.serve.problems import NotFoundError
from capgraph.serve.routes.login import message_page
from capgraph.serve.routes.oidc import register_client, session_cookie
from capgraph.serve.runs import Runs

_COOKIE = "capgraph_authorization"
_RELOAD = "reload"
_logger = get_logger("serve", "authorization")


def find_authorizations(services: Services) -> dict[str, AuthorizationCode]:
    """Return the authorizations that the capabilities of a graph use, by name.

    Raises:
        ConfigurationError: Two authorizations have the same name.
    """
    found: dict[str, AuthorizationCode] = {}
    for capability in services.registry.capabilities.values():
        credentials = getattr(capability.cls, "credentials", None)
        if not isinstance(credentials, AuthorizationCode):
            continue
        if found.setdefault(credentials.name, credentials) is not credentials:
            raise ConfigurationError(
                f"The authorization {credentials.name!r} is defined twice.",
                fix="Pass one AuthorizationCode to all servers that share it, or rename one.",
            )
    return found


def routes(
    runs: Runs,
    authorizations: Mapping[str, AuthorizationCode],
    serve: ServeSettings,
    *,
    uses_https: bool,
) -> list[Route]:
    """Return the routes on which users authorize the agent.

    The first page identifies the user and redirects to the authorization server. Its callback
    stores the token for the user whom a signed cookie names. A user who sends the link to another
    person therefore does not receive that person's token.

    Args:
        runs: Runs of the served graph.
        authorizations: Authorizations by name.
        serve: Settings of the server.
        uses_https: True if browsers reach the server over HTTPS only.
    """
    if not authorizations:
        return []
    clients = {
        name: register_client(name, **authorization.client_options)
        for name, authorization in authorizations.items()
    }

    async def start(request: Request) -> Response:
        name = _name(request, authorizations)
        caller = request.scope.get("capgraph.caller")
        if caller is None:
            return _ask_to_log_in(request)
        request.session["caller"] = asdict(caller)
        callback = f"{server_url(serve, request)}{AUTHORIZATION_PATH}/{name}/callback"
        redirect: Response = await clients[name].authorize_redirect(request, callback)
        return redirect

    async def finish(request: Request) -> Response:
        from authlib.integrations.base_client.errors import MismatchingStateError, OAuthError

        name = _name(request, authorizations)
        stored_caller = request.session.get("caller")
        if stored_caller is None:
            return _expired_page(request)
        caller = Caller(**stored_caller)
        answer: dict[str, Any] = {"authorized": True}
        try:
            token = await clients[name].authorize_access_token(request)
            await authorizations[name].store_token(caller, token)
        except MismatchingStateError:
            return _expired_page(request)
        except OAuthError as exc:
            answer = {"error": str(exc.error)}
        except Exception as exc:  # from the network, or from the response's format
            _logger.warning("The authorization %r failed: %s", name, type(exc).__name__)
            text = "The authorization server did not return a token. Try again."
            return message_page(request, "Not authorized", text, 502)
        finally:
            request.session.clear()
        await _resume(runs, caller, name, answer)
        if "error" in answer:
            return message_page(request, "Not authorized", "The agent has no access.", 403)
        return message_page(request, "Authorized", "The agent continues. You can close this page.")

    cookie = [session_cookie(_COOKIE, serve, https_only=uses_https)]
    path = f"{AUTHORIZATION_PATH}/{{name}}"
    return [
        Route(path, start, methods=["GET"], middleware=cookie),
        Route(f"{path}/callback", finish, methods=["GET"], middleware=cookie),
    ]


def _name(request: Request, authorizations: Mapping[str, AuthorizationCode]) -> str:
    name = str(request.path_params["name"])
    if name not in authorizations:
        raise NotFoundError("The authorization does not exist.", fix="Use the link of a question.")
    return name


def _ask_to_log_in(request: Request) -> Response:
    """Return a page that reloads itself once, and then asks the user to log in.

    Browsers omit the cookie of the login if a link of another site opened the page.
    """
    if _RELOAD in request.query_params:
        text = "Log in to the agent first. Then open the link again."
        return message_page(request, "Not logged in", text, 401)
    headers = {"refresh": f"0; url=?{_RELOAD}=1"}
    return message_page(request, "Authorize", "One moment.", headers=headers)


def _expired_page(request: Request) -> Response:
    text = "The authorization was started in another browser or has expired. Open the link again."
    return message_page(request, "Not authorized", text, 400)


async def _resume(runs: Runs, caller: Caller, name: str, answer: Mapping[str, Any]) -> None:
    """Answer the user's open questions for an authorization, so that their turns continue."""
    threads: dict[str, dict[str, Any]] = {}
    for question in await runs.list_questions(caller):
        if (question.get("kind"), question.get("name")) == (AUTHORIZATION, name):
            threads.setdefault(question["thread_id"], {})[question["question_id"]] = dict(answer)
    for thread_id, answers in threads.items():
        try:
            await runs.answer_all(caller, answers, thread_id=thread_id)
        except CapgraphError as exc:
            # The token is stored, so that any answer to the question continues the turn.
            _logger.warning("A turn did not continue after its authorization: %s", exc)
