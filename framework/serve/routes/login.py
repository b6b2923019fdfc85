"""Login with a token or the one-time link, and logout."""

from __future__ import annotations

import base64
import hashlib
import html
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from capgraph.base.ports import Caller
from capgraph.serve.identity import SESSION_COOKIE, Authenticator
from capgraph.serve.links import thread_query
from capgraph.serve.problems import problem_response
from capgraph.serve.routes.api import read_json_body

_STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{display:grid;min-height:100vh;margin:0;place-items:center}
main{width:min(26rem,90vw)}
code{font-size:.9em;white-space:nowrap}
label,input,button,a{display:block;width:100%;box-sizing:border-box;margin:.5rem 0}
input,button{font:inherit;padding:.6rem;border-radius:.4rem;border:1px solid GrayText}
[role=alert]{color:#b00020}
@media(prefers-color-scheme:dark){[role=alert]{color:#ff8a80}}
"""
STYLE_HASH = f"sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}"
"""Hash of the login page's inline style, for the content security policy."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in</title>
<meta name="viewport" content="width=device-width,initial-scale=1">
<style>{style}</style></head>
<body><main><h1>Log in</h1>{alert}
<form method="post" action="{prefix}/login{thread}">
<p>A token identifies you to this agent. Its operator creates it with
<code>capgraph token NAME --auth FILE</code>; without <code>--auth</code>, <code>capgraph serve</code>
prints a link that logs you in.</p>
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus
 data-testid="token-input">
<button type="submit" data-testid="login">Log in</button>
</form>{others}</main></body></html>
"""
_OIDC = '<a href="{prefix}/login/oidc" data-testid="login-oidc">Log in with your organization</a>'


def login_page(
    request: Request,
    message: str = "",
    status: int = 200,
    *,
    oidc: bool = False,
    thread: str | None = None,
) -> Response:
    """Return the login page, which works without JavaScript.

    Args:
        request: The request.
        message: Message to show as an alert.
        status: HTTP status.
        oidc: True to show a link to the OpenID Connect provider.
        thread: Thread that the console opens after the login.
    """
    alert = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    prefix = _prefix(request)
    text = _PAGE.format(
        style=_STYLE,
        alert=alert,
        others=_OIDC.format(prefix=prefix) if oidc else "",
        prefix=prefix,
        thread=_thread_query(thread),
    )
    return HTMLResponse(text, status)


def routes(authenticator: Authenticator, *, oidc: bool = False) -> list[Route]:
    """Return the routes for user login and logout.

    Args:
        authenticator: Authenticator for users, which stores their sessions.
        oidc: True if an OpenID Connect provider is configured.
    """

    async def get(request: Request) -> Response:
        link = request.query_params.get("link")
        if link is None or request.method == "HEAD":  # link previews must not use it up
            return login_page(request, oidc=oidc, thread=request.query_params.get("thread"))
        thread = request.query_params.get("thread")
        caller = authenticator.redeem_link(link)
        if caller is None and request.scope.get("capgraph.caller") is not None:
            return RedirectResponse(
                f"{_prefix(request)}/{_thread_query(thread)}", 303
            )  # already logged in
        if caller is None:
            alert = "This link is invalid or has been used. Restart the server to get a new one."
            return login_page(request, alert, 401, oidc=oidc)
        return await start_session(request, authenticator, caller, thread=thread)

    async def post(request: Request) -> Response:
        thread = request.query_params.get("thread")
        submitted = await _read_token(request)
        owner = await authenticator.authenticate_token(submitted.strip())
        if owner is None:
            alert = "The token is invalid or has expired."
            return login_page(request, alert, 401, oidc=oidc, thread=thread)
        caller, token_hash = owner
        return await start_session(request, authenticator, caller, token_hash, thread=thread)

    async def logout(request: Request) -> Response:
        await authenticator.sessions.close(request.cookies.get(SESSION_COOKIE, ""))
        answer = RedirectResponse(f"{_prefix(request)}/", 303)
        answer.delete_cookie(
            SESSION_COOKIE, path=_prefix(request) or "/", httponly=True, samesite="strict"
        )
        return answer

    return [
        Route("/login", get, methods=["GET"]),
        Route("/login", post, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


async def start_session(
    request: Request,
    authenticator: Authenticator,
    caller: Caller,
    token: str | None = None,
    *,
    thread: str | None = None,
) -> Response:
    """Start a login session and redirect the browser to the console.

    If ``thread`` is given, the console opens that thread.
    """
    answer = RedirectResponse(f"{_prefix(request)}/{_thread_query(thread)}", 303)
    answer.set_cookie(
        SESSION_COOKIE,
        await authenticator.sessions.open(caller, token),
        max_age=int(authenticator.sessions.seconds),
        path=_prefix(request) or "/",
        httponly=True,
        samesite="strict",
        secure=authenticator.uses_https or request.url.scheme == "https",
    )
    return answer


def _prefix(request: Request) -> str:
    """Return the path prefix at which the server is mounted, or an empty string."""
    return str(request.scope.get("root_path") or "")


def _thread_query(thread: str | None) -> str:
    return thread_query(thread) if thread else ""


async def _read_token(request: Request) -> str:
    if request.headers.get("content-type", "").startswith("application/json"):
        token = (await read_json_body(request)).get("token")
        return token if isinstance(token, str) else ""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    return fields.get("token", [""])[0]


def not_found(_: Request) -> Response:
    """Return a 404 response."""
    return problem_response(404, "CG-NOT-FOUND", "The page does not exist.")
