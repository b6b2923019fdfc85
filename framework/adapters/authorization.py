"""Access tokens that users grant to the agent, with OAuth's authorization code grant (RFC 6749).

A step without a token asks its user to open a page of the server. That page redirects to the
authorization server, and its callback stores the token and answers the question. The token is not
part of the question, the answer, or the state.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from langgraph.types import interrupt

from capgraph.adapters.credentials import (
    RENEWAL_SECONDS,
    TIMEOUT_SECONDS,
    Credentials,
    current_user,
)
from capgraph.adapters.external_text import is_http_url, sanitize_text
from capgraph.base.errors import (
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    require_extra,
)
from capgraph.base.ports import Caller
from capgraph.base.step_context import StepContext
from capgraph.helpers.clock import SystemClock
from capgraph.helpers.threads import run_in_thread
from capgraph.langgraph_compat import count_consumed_answers
from capgraph.stores.atomic_values import FOREVER
from capgraph.stores.persistence import open_values

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client

AUTHORIZATION = "authorization"
"""Kind of the question that asks a user for an authorization."""
AUTHORIZATION_PATH = "/authorize"
"""Path of the server's authorization pages."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MIN_KEY_LENGTH = 16
_QUESTION_KEY = "capgraph:authorization:{}"
"""Key of the step's record of a question, by the question's number."""


class AuthorizationRequiredError(CapabilityError):
    """Raised if a user must authorize the agent before the agent can act for the user."""

    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class AuthorizationCode:
    """Credentials that each user grants on a page of the authorization server, with PKCE.

    ``capgraph serve`` and ``create_app`` serve the authorization of each MCP server and A2A agent
    with these credentials. The redirect URI that the authorization server must allow is
    ``https://HOST/authorize/NAME/callback``.

    Args:
        name: Name of the authorization, which is part of its URLs.
        authorization_url: URL of the authorization endpoint.
        token_url: URL of the token endpoint.
        client_id: Client ID of the agent.
        client_secret: Client secret; None for a public client.
        scope: Requested scopes, separated by spaces.
        resource: URL of the service for which the token is meant (RFC 8707).
        base_url: Public URL of the capgraph server, for links in questions. By default, links are
            paths on the server.
        store: URL of a database for the tokens, as in :func:`~capgraph.stores.open_values`, which
            all processes share. By default, tokens are stored in memory.
        encryption_key: Secret that encrypts the tokens in the database.

    Raises:
        ConfigurationError: A name, a URL, or the encryption key is invalid.
        MissingExtraError: The extra ``oidc`` is not installed.

    >>> AuthorizationCode("mail", authorization_url="https://login.example/authorize",
    ...                   token_url="https://login.example/token", client_id="agent")
    AuthorizationCode('mail')
    """

    def __init__(
        self,
        name: str,
        *,
        authorization_url: str,
        token_url: str,
        client_id: str,
        client_secret: str | None = None,
        scope: str | None = None,
        resource: str | None = None,
        base_url: str | None = None,
        store: str | None = None,
        encryption_key: str | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"The name of the authorization is {name!r:.80}: expected at most 64 letters,"
                " digits, '-', and '_'.",
                fix="Choose another name.",
            )
        for key, url in (("authorization_url", authorization_url), ("token_url", token_url)):
            if not is_http_url(url):
                raise ConfigurationError(
                    f"{key} is {url!r:.200}: expected an HTTP URL.",
                    fix="Pass the URL of the endpoint.",
                )
        if store is not None and len(encryption_key or "") < _MIN_KEY_LENGTH:
            raise ConfigurationError(
                "encryption_key is missing or too short: tokens in a database must be encrypted.",
                fix=f"Pass a secret of at least {_MIN_KEY_LENGTH} characters.",
            )
        for module in ("authlib", "itsdangerous"):
            require_extra(module, "oidc")
        self.name = name
        self.url: str = f"{(base_url or '').rstrip('/')}{AUTHORIZATION_PATH}/{name}"
        self._resource = {} if resource is None else {"resource": resource}
        self._client_id, self._client_secret, self._scope = client_id, client_secret, scope
        self._authorization_url, self._token_url = authorization_url, token_url
        self._tokens, self._clock = open_values(store), SystemClock()
        self._cipher: Any = None
        if encryption_key is not None:
            from cryptography.fernet import Fernet

            digest = hashlib.sha256(encryption_key.encode()).digest()
            self._cipher = Fernet(base64.urlsafe_b64encode(digest))

    def __repr__(self) -> str:
        return f"AuthorizationCode({self.name!r})"

    @property
    def client_options(self) -> dict[str, Any]:
        """Options with which authlib registers the OAuth client, without those of its requests."""
        return {
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            "authorize_url": self._authorization_url,
            "authorize_params": self._resource,
            "access_token_url": self._token_url,
            "access_token_params": self._resource,
            "scope": self._scope,
        }

    async def get_token(self, caller: Caller, *, rejected: str | None = None) -> str:
        """Return a user's stored access token, or refresh an expired or rejected one.

        See :meth:`Credentials.get_token` for the parameters.

        Raises:
            AuthorizationRequiredError: The user has not granted a token, or the token is no longer
                valid.
            CapabilityError: The token endpoint is unavailable.
        """
        token = await self._read(caller)
        if token is None:
            raise self._create_error()
        expires_at = token.get("expires_at") or FOREVER
        if token["access_token"] != rejected and time.time() < expires_at - RENEWAL_SECONDS:
            return str(token["access_token"])
        renewed = await self._refresh(token)
        if renewed is None:
            current = await self._read(caller)
            if current is not None and current["access_token"] != token["access_token"]:
                return str(current["access_token"])  # another step refreshed the token
            await self._write(caller, None)
            raise self._create_error()
        await self.store_token(caller, {**token, **renewed})
        return str(renewed["access_token"])

    def _create_error(self) -> AuthorizationRequiredError:
        return AuthorizationRequiredError(
            f"The user has not authorized the agent to use {self.name!r}.",
            fix=f"Open {self.url} and confirm.",
            facts={"authorization": self.name, "url": self.url},
        )

    async def store_token(self, caller: Caller, token: Mapping[str, Any]) -> None:
        """Store the token that a user granted.

        Args:
            caller: The authenticated user.
            token: Response of the token endpoint, with ``expires_at`` in place of ``expires_in``.
        """
        names = ("access_token", "refresh_token", "expires_at")
        await self._write(caller, {name: token[name] for name in names if token.get(name)})

    async def _refresh(self, token: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a new token, or ``None`` if the authorization server refuses to issue one."""
        import httpx
        from authlib.integrations.base_client.errors import OAuthError

        if "refresh_token" not in token:
            return None
        try:
            async with await run_in_thread(self._create_client) as client:
                renewed: Mapping[str, Any] = await client.refresh_token(
                    self._token_url, refresh_token=token["refresh_token"], **self._resource
                )
        except OAuthError:
            return None
        except (httpx.HTTPError, ValueError) as exc:
            raise CapabilityError(
                f"The token endpoint {self._token_url} did not refresh a token"
                f" ({type(exc).__name__}).",
                fix="Check that it is running.",
                severity=ErrorSeverity.RETRIABLE,
            ) from None  # the cause may contain the request, with the user's token
        return renewed

    def _create_client(self) -> AsyncOAuth2Client:
        # Called in a thread, because certificates are read from files.
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self._client_id,
            self._client_secret,
            token_endpoint_auth_method=None if self._client_secret else "none",
            timeout=TIMEOUT_SECONDS,
        )

    # --- storage --------------------------------------------------------------------------

    def _key(self, caller: Caller) -> str:
        user = hashlib.sha256(json.dumps([caller.tenant, caller.user_id]).encode()).hexdigest()
        return f"user-token:{self.name}:{user}"

    async def _read(self, caller: Caller) -> dict[str, Any] | None:
        key = self._key(caller)
        text = (await self._tokens.aread(key, self._clock))[0].get(key)
        if text is not None and self._cipher is not None:
            from cryptography.fernet import InvalidToken

            try:
                text = self._cipher.decrypt(text).decode()
            except InvalidToken:  # encrypted with an earlier key
                return None
        return None if text is None else json.loads(text)

    async def _write(self, caller: Caller, token: Mapping[str, Any] | None) -> None:
        text = None if token is None else json.dumps(token)
        if text is not None and self._cipher is not None:
            text = self._cipher.encrypt(text.encode()).decode()
        await self._tokens.achange(self._key(caller), lambda *_: (text, FOREVER, None), self._clock)


async def authorize_step(
    credentials: Credentials, subject: str, step: StepContext, *, is_started: bool = False
) -> int:
    """Check that a step's user has a token, and ask the user to grant a missing one.

    Call this function before any other question of the step. It repeats the questions that the
    step asked in earlier runs, because LangGraph matches answers to questions by their order.

    Args:
        credentials: Provider of the tokens.
        subject: Name of the remote server for messages, such as ``The MCP server x``.
        step: The step.
        is_started: True if the request was sent in an earlier run, so that no token is needed.

    Returns:
        The number of questions that the user answered.

    Raises:
        CapabilityError: The run has no authenticated user, or the user has no token.
    """
    user = current_user(subject)
    number = 0
    while True:
        question = await find_record(step, _QUESTION_KEY.format(number))
        if question is not None:
            _check_granted(subject, interrupt(question))
        elif is_started:
            return number
        else:
            try:
                await credentials.get_token(user)
                return number
            except AuthorizationRequiredError as exc:
                await ask_for_authorization(exc, subject, step, number)
        number += 1


async def ask_for_authorization(
    error: AuthorizationRequiredError, subject: str, step: StepContext, number: int
) -> None:
    """Ask a step's user to grant a token that is missing or that the server rejected.

    Args:
        error: The error that the missing or rejected token caused.
        subject: Name of the remote server for messages, such as ``The MCP server x``.
        step: The step.
        number: Number of earlier questions for an authorization that the user answered.

    Raises:
        AuthorizationRequiredError: The step asked other questions before.
        CapabilityError: The user refused the authorization.
    """
    if count_consumed_answers() > number:
        raise error  # the answers belong to questions that the step must not skip
    question = _build_question(subject, error)
    await step.once(_QUESTION_KEY.format(number), partial(dict, question))
    _check_granted(subject, interrupt(question))


def _build_question(subject: str, error: AuthorizationRequiredError) -> dict[str, Any]:
    name, url = error.facts["authorization"], error.facts["url"]
    return {
        "kind": AUTHORIZATION,
        "name": name,
        "message": f"{subject} requires your authorization. Open {url} and confirm.",
        "url": url,
    }


async def find_record(step: StepContext, key: str) -> Any:
    """Return a result that the step recorded with ``once`` in an earlier run, or ``None``."""

    def find_nothing() -> None:
        raise _NotRecordedError("The result is not recorded.")

    with suppress(_NotRecordedError):
        return await step.once(key, find_nothing)
    return None


class _NotRecordedError(CapabilityError):
    """Raised by :func:`find_record` if the step has not recorded the result."""


def _check_granted(subject: str, answer: Any) -> None:
    """Raise an error if the answer to a question refuses the authorization."""
    details = answer if isinstance(answer, Mapping) else {}
    reason = details.get("error") or details.get("action") or answer
    is_refusal = "error" in details or reason in (None, False, "reject", "decline", "cancel")
    if is_refusal:
        raise CapabilityError(
            f"{subject} was not authorized: {sanitize_text(str(reason), 200)}.",
            fix="Repeat the request, and confirm the authorization.",
            severity=ErrorSeverity.CRITICAL,
        )
