"""Login with a token or the one-time link, and logout."""

from __future__ import annotations

import html
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from capgraph.base.ports import Caller
from capgraph.serve.identity import SESSION_COOKIE, Authenticator
from capgraph.serve.links import thread_query
from capgraph.serve.page_style import inline_style
from capgraph.serve.problems import problem_response
from capgraph.serve.routes.api import read_json_body

_STYLE, STYLE_HASH = inline_style("""
*{box-sizing:border-box}
body{display:grid;min-height:100vh;margin:0;padding:1rem;place-items:center;background:var(--ground);color:var(--text)}
main{width:min(26rem,100%);padding:1.5rem 1.75rem;background:var(--sheet);border:1px solid var(--line);border-radius:.9rem}
h1{font-size:1.4rem;margin:0}
p{margin:.3rem 0 0}
.quiet{color:var(--quiet);font-size:.87rem;margin-top:.8rem}
code{font:.9em ui-monospace,"DejaVu Sans Mono",monospace;background:var(--soft);border-radius:.25rem;padding:0 .25rem}
label{display:block;margin-top:1.1rem;font-weight:600;font-size:.9rem}
input,button,.oidc{display:block;width:100%;margin-top:.3rem;padding:.55rem .7rem;font:inherit;color:inherit;border:1px solid var(--line);border-radius:.5rem}
input{background:var(--ground)}
button,.oidc{margin-top:.8rem;font-weight:600;text-align:center;text-decoration:none;cursor:pointer}
button{background:var(--accent);border-color:var(--accent);color:var(--on-accent)}
.oidc{color:var(--accent)}
:focus-visible{outline:3px solid var(--accent);outline-offset:1px}
[role=alert]{color:var(--bad)}
""")
"""Inline style of the login page, and its hash for the content security policy."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in · capgraph</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style>{style}</style></head>
<body><main><h1>Log in to capgraph</h1>{alert}
<form method="post" action="{prefix}/login{thread}">
<label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus
 aria-describedby="help" data-testid="token-input">
<button type="submit" data-testid="login">Log in</button>
</form>{others}
<p class="quiet" id="help">An access token identifies you to this agent. Ask the agent's operator for a
token. Operators create tokens with <code>capgraph token NAME --auth FILE</code>.</p>
<p class="quiet">A server without <code>--auth</code> has no tokens. Open the login link that
<code>capgraph serve</code> printed when it started.</p>
</main></body></html>
"""
_MESSAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · capgraph</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style>{style}</style></head>
<body><main><h1>{title}</h1><p>{text}</p><a class="oidc" href="{prefix}/">Console</a></main></body></html>
"""
_OIDC = '<a class="oidc" href="{prefix}/login/oidc" data-testid="login-oidc">Log in with your organization</a>'


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


def message_page(
    request: Request,
    title: str,
    text: str,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a page with a message and a link to the console.

    Args:
        request: The request.
        title: Title of the page.
        text: Message of the page.
        status: HTTP status.
        headers: Additional headers of the response.
    """
    title, text = html.escape(title), html.escape(text)
    page = _MESSAGE.format(style=_STYLE, title=title, text=text, prefix=_prefix(request))
    return HTMLResponse(page, status, headers)


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
