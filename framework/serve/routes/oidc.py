"""Login with OpenID Connect: authorization code flow with PKCE, state, and nonce."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capgraph.base import require_extra
from capgraph.base.ports import Caller
from capgraph.configs.errors import CapgraphError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import OidcSettings, ServeSettings
from capgraph.serve.identity import Authenticator, stored_user_id
from capgraph.serve.links import server_url
from capgraph.serve.routes.login import login_page, start_session

_COOKIE = "capgraph_login"
_PATH = "/login/oidc"
_SECONDS = 600
_TIMEOUT_SECONDS = 10


class LoginFailedError(CapgraphError):
    """Raised if a login at the OpenID Connect provider fails."""

    code = "CG-LOGIN"


def routes(
    authenticator: Authenticator, settings: OidcSettings, serve: ServeSettings
) -> list[Route]:
    """Return the routes for login at an OpenID Connect provider.

    The login state is stored in a signed cookie, so any server process with the same
    ``serve.session_secret`` can complete the login.

    Args:
        authenticator: Authenticator whose sessions store the logins.
        settings: Settings of the provider.
        serve: Settings of the server.

    Raises:
        MissingExtraError: The extra ``oidc`` is not installed.
    """
    for module in ("authlib", "itsdangerous"):
        require_extra(module, "oidc")
    secret = settings.client_secret
    client = register_client(
        "provider",
        client_id=settings.client_id,
        client_secret=secret.get_secret_value() if secret else None,
        scope=" ".join(settings.scopes),
        server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
    )

    def callback_url(request: Request) -> str:
        return f"{server_url(serve, request)}{_PATH}/callback"

    async def start_login(request: Request) -> Response:
        try:
            await _check_issuer(client, settings)
            redirect: Response = await client.authorize_redirect(request, callback_url(request))
        except Exception as exc:
            get_logger("serve", "oidc").warning("The OpenID provider did not answer: %s", exc)
            alert = (
                f"The login provider {settings.issuer!r} is unavailable. Check serve.oidc.issuer."
            )
            return login_page(request, alert, 502, oidc=True)
        return redirect

    async def finish_login(request: Request) -> Response:
        try:
            caller = _caller(await _claims(client, request, settings), settings)
        except LoginFailedError as exc:
            return login_page(request, str(exc), 401, oidc=True)
        finally:
            request.session.clear()
        return await start_session(request, authenticator, caller)

    cookie = session_cookie(_COOKIE, serve, https_only=authenticator.uses_https)
    return [
        Route(_PATH, start_login, methods=["GET"], middleware=[cookie]),
        Route(f"{_PATH}/callback", finish_login, methods=["GET"], middleware=[cookie]),
    ]


def session_cookie(name: str, serve: ServeSettings, *, https_only: bool) -> Middleware:
    """Create the middleware that stores the state of a redirect in a signed cookie.

    Args:
        name: Name of the cookie.
        serve: Settings of the server, whose secret signs the cookie.
        https_only: True if browsers send the cookie over HTTPS only.
    """
    # Requires itsdangerous, a dependency of this extra only.
    from starlette.middleware.sessions import SessionMiddleware

    secret = serve.session_secret
    return Middleware(
        SessionMiddleware,
        secret_key=secret.get_secret_value() if secret else secrets.token_urlsafe(32),
        session_cookie=name,
        max_age=_SECONDS,
        # Browsers drop strict cookies when the provider's site redirects back.
        same_site="lax",
        https_only=https_only,
    )


def register_client(
    name: str, *, client_secret: str | None, scope: str | None, **options: Any
) -> Any:
    """Create an authlib client for an OAuth authorization server, which uses PKCE.

    Certificates are loaded in advance, because requests must not read files on the event loop.

    Args:
        name: Name of the client.
        client_secret: Client secret; None for a public client.
        scope: Requested scopes, separated by spaces.
        **options: Client ID, and URLs of the authorization server.
    """
    import httpx
    from authlib.integrations.starlette_client import OAuth
    from joserfc import jwk, jwt  # noqa: F401 - preloaded, because importing reads files

    return OAuth().register(
        name,
        client_secret=client_secret,
        **options,
        client_kwargs={
            **({} if scope is None else {"scope": scope}),
            "code_challenge_method": "S256",
            "token_endpoint_auth_method": None if client_secret else "none",
            "timeout": _TIMEOUT_SECONDS,
            "verify": httpx.create_ssl_context(),
        },
    )


async def _check_issuer(client: Any, settings: OidcSettings) -> None:
    metadata = await client.load_server_metadata()
    if metadata.get("issuer") != settings.issuer:
        client.server_metadata = {}  # read again at the next login
        raise LoginFailedError(f"The issuer of the provider is {metadata.get('issuer')!r}.")


async def _claims(client: Any, request: Request, settings: OidcSettings) -> Mapping[str, Any]:
    from authlib.integrations.base_client.errors import MismatchingStateError

    try:
        await _check_issuer(client, settings)
        # A provider may change its keys at any time, also under the same key id.
        await client.fetch_jwk_set(force=True)
        token = await client.authorize_access_token(
            request,
            leeway=30,
            claims_options={
                "iss": {"essential": True, "value": settings.issuer},
                "aud": {"essential": True, "value": settings.client_id},
            },
        )
        claims: Mapping[str, Any] = token["userinfo"]
    except MismatchingStateError as exc:
        raise LoginFailedError(
            "The login was started in another browser or has expired.",
            fix="Log in again at /login.",
        ) from exc
    except Exception as exc:
        get_logger("serve", "oidc").warning("A login failed: %s", exc)
        raise LoginFailedError("The OpenID Connect provider did not confirm the login.") from exc
    return claims


def _caller(claims: Mapping[str, Any], settings: OidcSettings) -> Caller:
    claim = claims.get(settings.user_claim)
    name = stored_user_id(claim, fold_case=settings.fold_case) if isinstance(claim, str) else None
    if name is None:
        raise LoginFailedError(
            f"The claim {settings.user_claim!r} of the provider is missing or invalid.",
            fix="Set serve.oidc.user_claim.",
        )

    def read(claim: str | None) -> str | None:
        found = claims.get(claim) if claim else None
        found = found[0] if isinstance(found, list) and len(found) == 1 else found
        return found if isinstance(found, str) else None

    return Caller(name, read(settings.role_claim), read(settings.tenant_claim), authenticated=True)
