"""Access tokens of the users for whom remote tools and agents act.

A token is sent only to its server. It is not part of the state, so a process that resumes a run
requests a new token.
"""

from __future__ import annotations

import inspect
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, runtime_checkable

from capgraph.adapters.external_text import is_http_url, sanitize_text
from capgraph.base.errors import (
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    require_extra,
)
from capgraph.base.ports import Caller
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.helpers.threads import run_in_thread
from capgraph.pipeline.run_config import current_caller

SubjectToken = Callable[[Caller], str | Awaitable[str]]
"""Function that returns the token that identifies a user to the authorization server."""
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPE_PREFIX = "urn:ietf:params:oauth:token-type:"
TIMEOUT_SECONDS = 15.0
_SUBJECT_SECONDS = 60
"""Lifetime of a signed subject token."""
_DEFAULT_SECONDS = 300.0
"""Lifetime of an access token whose response does not contain ``expires_in``."""
RENEWAL_SECONDS = 30.0
"""Seconds before its expiry at which a token is renewed."""
_MAX_USERS = 10_000
"""Maximum number of users whose token is cached. The oldest entry is evicted first."""
_MAX_MASKED_TOKENS = 4
"""Number of a user's latest tokens that are masked in texts from the server."""


@runtime_checkable
class Credentials(Protocol):
    """Protocol for providers of access tokens that remote tools and agents accept.

    Pass an implementation to ``mcp_capabilities`` or ``remote_capability``.
    """

    async def get_token(self, caller: Caller, *, rejected: str | None = None) -> str:
        """Return an access token for a user.

        Args:
            caller: The authenticated user.
            rejected: Token that the server rejected, which must not be returned again.

        Raises:
            CapabilityError: The user has no token.
        """


class UserAuth:
    """HTTP authentication that adds a user's access token to each request.

    A subclass also inherits from the class ``Auth`` of its HTTP library.

    Args:
        credentials: Provider of the user's tokens.
        user: The authenticated user.
    """

    def __init__(self, credentials: Credentials, user: Caller) -> None:
        self._credentials, self._user = credentials, user
        self._tokens: deque[str] = deque(maxlen=_MAX_MASKED_TOKENS)

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Add the user's token to a request, and retry once with a new token if it is rejected."""
        token = await self._credentials.get_token(self._user)
        response = yield self._with_token(request, token)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            token = await self._credentials.get_token(self._user, rejected=token)
            yield self._with_token(request, token)

    def _with_token(self, request: Any, token: str) -> Any:
        if token not in self._tokens:
            self._tokens.append(token)
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    def mask(self, value: Any) -> Any:
        """Mask the user's current and previous tokens in a value returned by the server."""
        if isinstance(value, Mapping):
            return {self.mask(name): self.mask(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.mask(item) for item in value]
        if isinstance(value, str):
            for token in self._tokens:
                value = value.replace(token, "***")
        return value


def current_user(subject: str) -> Caller:
    """Return the authenticated user on whose behalf the current step runs.

    Args:
        subject: Name of the remote server for the error message, such as ``The MCP server x``.

    Raises:
        CapabilityError: The run has no authenticated user.
    """
    caller = current_caller()
    if not (caller.authenticated and caller.user_id):
        raise CapabilityError(
            f"{subject} requires user credentials, but the run has no authenticated user.",
            fix="Serve the agent with a login.",
            severity=ErrorSeverity.CRITICAL,
        )
    return caller


def signed_subject(
    key: str, *, issuer: str, audience: str, algorithm: str = "ES256", key_id: str | None = None
) -> SubjectToken:
    """Create a function that signs a JWT with the user's ID as its subject.

    The authorization server must trust the key. No per-user state is stored, so the credentials
    are also available to background runs and workers.

    Args:
        key: Private key as PEM text.
        issuer: Issuer (``iss``) of the JWT.
        audience: Audience (``aud``) of the JWT, such as the URL of the token endpoint.
        algorithm: Signature algorithm.
        key_id: ID of the key for the ``kid`` header.

    Raises:
        ConfigurationError: The key is not valid for the algorithm.
        MissingExtraError: PyJWT is not installed.
    """
    require_extra("jwt", "mcp")

    def sign(caller: Caller) -> str:
        import jwt

        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": issuer,
            "sub": caller.user_id,
            "aud": audience,
            "iat": now,
            "exp": now + _SUBJECT_SECONDS,
            "jti": uuid.uuid4().hex,
        }
        if caller.tenant is not None:
            claims["tenant"] = caller.tenant
        return jwt.encode(claims, key, algorithm, {"kid": key_id} if key_id else None)

    try:
        sign(Caller("check"))
    except Exception as exc:  # from the key's format, the algorithm's name, or the library
        # The text of the exception may contain the key.
        raise ConfigurationError(
            f"The signing key is not valid for the algorithm {algorithm!r} ({type(exc).__name__}).",
            fix="Pass a private key as PEM text, and its algorithm.",
        ) from None
    return sign


class TokenExchange:
    """Credentials that exchange a user's token for an access token (RFC 8693).

    Tokens are cached in memory until shortly before they expire.

    Args:
        token_url: URL of the token endpoint.
        client_id: Client ID of the agent.
        subject_token: Function that returns a user's own token; see :func:`signed_subject`.
        client_secret: Client secret. None for a public client.
        subject_type: Type of the user's own token: ``jwt``, ``access_token``, or ``id_token``.
        audience: Service for which the token is meant.
        resource: URL of that service.
        scope: Requested scopes, separated by spaces.

    Raises:
        ConfigurationError: The URL is not an HTTP URL.

    >>> TokenExchange("https://login.example/token", client_id="agent", subject_token=lambda caller: "")
    TokenExchange('https://login.example/token')
    """

    def __init__(
        self,
        token_url: str,
        *,
        client_id: str,
        subject_token: SubjectToken,
        client_secret: str | None = None,
        subject_type: str = "jwt",
        audience: str | None = None,
        resource: str | None = None,
        scope: str | None = None,
    ) -> None:
        if not is_http_url(token_url):
            raise ConfigurationError(
                f"token_url is {token_url!r:.200}: expected an HTTP URL.",
                fix="Pass the URL of the token endpoint.",
            )
        self._url, self._client_id, self._client_secret = token_url, client_id, client_secret
        self._subject_token = subject_token
        optional = {"audience": audience, "resource": resource, "scope": scope}
        self._form = {
            "grant_type": _GRANT,
            "subject_token_type": f"{_TYPE_PREFIX}{subject_type}",
            "requested_token_type": f"{_TYPE_PREFIX}access_token",
            **{name: value for name, value in optional.items() if value is not None},
            **({} if client_secret else {"client_id": client_id}),
        }
        self._tokens: BoundedDict[tuple[str | None, str | None], tuple[str, float]] = BoundedDict(
            _MAX_USERS
        )

    def __repr__(self) -> str:
        return f"TokenExchange({self._url!r})"

    async def get_token(self, caller: Caller, *, rejected: str | None = None) -> str:
        """Return a cached access token for a user, or exchange a signed JWT for a new token.

        See :meth:`Credentials.get_token` for the parameters.
        """
        user = (caller.tenant, caller.user_id)
        token, expires_at = self._tokens.get(user, ("", 0.0))
        if time.monotonic() < expires_at and token != rejected:
            return token
        response = await self._exchange(caller)
        token = str(response["access_token"])
        seconds = float(response.get("expires_in") or _DEFAULT_SECONDS)
        self._tokens[user] = token, time.monotonic() + max(0.0, seconds - RENEWAL_SECONDS)
        return token

    async def _exchange(self, caller: Caller) -> dict[str, Any]:
        import httpx

        subject = self._subject_token(caller)
        if inspect.isawaitable(subject):
            subject = await subject
        secret = self._client_secret
        auth = httpx.BasicAuth(self._client_id, secret) if secret else None
        # Created in a thread, because certificates are read from files.
        make = partial(httpx.AsyncClient, timeout=TIMEOUT_SECONDS, auth=auth)
        try:
            async with await run_in_thread(make) as http:
                form = {**self._form, "subject_token": subject}
                reply = await http.post(self._url, data=form)
                content = reply.json()
        except (httpx.HTTPError, ValueError) as exc:
            raise CapabilityError(
                f"The token endpoint {self._url} did not return a token ({type(exc).__name__}).",
                fix="Check that it is running.",
                severity=ErrorSeverity.RETRIABLE,
            ) from None  # the cause may contain the request, with the user's token
        if reply.is_success and isinstance(content, dict) and content.get("access_token"):
            return content
        error = content.get("error") if isinstance(content, dict) else None
        reason = sanitize_text(str(error or f"HTTP status {reply.status_code}"), 200)
        raise CapabilityError(
            f"The token endpoint {self._url} refused to issue a token for the user: {reason}.",
            fix="Allow the client to exchange tokens, and give the user access.",
            severity=ErrorSeverity.CRITICAL,
        )
