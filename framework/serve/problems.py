"""Errors of the server as problem details (``application/problem+json``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    LimitError,
    PersistenceError,
    PolicyError,
    StoppedError,
    ThreadBusyError,
    ValidationError,
)
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_secrets

_DATABASE_URL = re.compile(r" '\w+://[^']*'")
"""Database URLs, which clients must not see."""


class BadRequestError(ValidationError):
    """Raised if an HTTP request is malformed.

    Attributes:
        param: Name of the invalid parameter, for clients of OpenAI's API.

    >>> error_response(BadRequestError("The body is no JSON.")).status_code
    400
    """

    param: str | None = None


class TooLargeError(ValidationError):
    """Raised if an HTTP request exceeds a size limit."""

    code = "CG-TOO-LARGE"


class NotFoundError(CapgraphError):
    """Raised if a resource does not exist or belongs to another user.

    The response does not reveal which of the two applies.

    >>> NotFoundError("The thread 'a' does not exist.").code
    'CG-NOT-FOUND'
    """

    code = "CG-NOT-FOUND"


class ConflictError(CapgraphError):
    """Raised if a request conflicts with the current state, such as a repeated answer."""

    code = "CG-CONFLICT"


class AnswerRefusedError(ValidationError):
    """Raised if an answer does not fit its question. The question stays open.

    Args:
        problems: Problems found, each with a dotted ``path`` and a ``message``.

    >>> AnswerRefusedError([{"path": "open.parameters.litres", "message": "is text"}]).problems
    [{'path': 'open.parameters.litres', 'message': 'is text'}]
    """

    code = "CG-ANSWER"

    def __init__(self, problems: list[dict[str, str]]) -> None:
        details = " ".join(f"{one['path'] or 'answer'}: {one['message']}" for one in problems)
        super().__init__(
            f"The answer is invalid. {details}", fix="Correct the answer and send it again."
        )
        self.problems = problems


_STATUS_CODES: tuple[tuple[type[CapgraphError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (BadRequestError, 400),
    (TooLargeError, 413),
    (ThreadBusyError, 409),
    (PersistenceError, 503),
    (LimitError, 429),
    (PolicyError, 403),
    (StoppedError, 409),
    (ValidationError, 422),
    (ConfigurationError, 500),
)


def openai_error(message: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Return an error object in the format of the OpenAI API."""
    kind = "capgraph_error" if param is None else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def problem_response(
    status: int,
    code: str,
    detail: str,
    fix: str | None = None,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
    **extra: Any,
) -> JSONResponse:
    """Return an HTTP error response whose JSON body contains problem details.

    Args:
        status: HTTP status.
        code: Error code, which the documentation describes.
        detail: Message that names the cause and the invalid value.
        fix: Action that resolves the problem.
        headers: Additional response headers.
        param: Name of the invalid parameter.
        **extra: Additional members of the body.
    """
    detail = mask_secrets(detail, MAX_MESSAGE_CHARS)
    body = {
        "type": f"errors/{code}",
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        **({"fix": fix} if fix else {}),
        # Clients of OpenAI's API read the error from here.
        "error": openai_error(f"{detail} {fix or ''}".strip(), code, param),
        **extra,
    }
    return JSONResponse(body, status, dict(headers or {}), media_type="application/problem+json")


def public_message(exc: CapgraphError) -> tuple[str, str | None]:
    """Return the message and fix of an error for clients, without internal details.

    >>> public_message(PersistenceError("The database 'sqlite:////srv/t.db' is unavailable."))
    ('The database is unavailable.', None)
    """
    if isinstance(exc, ThreadBusyError):
        return "The thread has an active run.", "Wait until that run ends or asks a question."
    texts = [_DATABASE_URL.sub("", mask_secrets(text or "")) for text in (exc.message, exc.fix)]
    return texts[0], texts[1] or None


def public_message_line(exc: CapgraphError) -> str:
    """Return an error's public message and fix on one line, for plain-text protocols."""
    message, fix = public_message(exc)
    return str(CapgraphError(message, fix=fix))


def error_response(exc: Exception) -> JSONResponse:
    """Convert an exception to an HTTP error response.

    Unexpected exceptions are logged, but their details are not sent to the client.

    >>> import json
    >>> response = error_response(PersistenceError("The database 'sqlite:////t.db' is unavailable."))
    >>> response.status_code, json.loads(response.body)["detail"]
    (503, 'The database is unavailable.')
    """
    if isinstance(exc, AnswerRefusedError):
        return problem_response(422, exc.code, *public_message(exc), problems=exc.problems)
    if isinstance(exc, CapgraphError):
        status = next((number for kind, number in _STATUS_CODES if isinstance(exc, kind)), 500)
        if status < 500 or isinstance(exc, PersistenceError):
            param = getattr(exc, "param", None)
            return problem_response(status, exc.code, *public_message(exc), param=param)
    get_logger("serve", "request").error("A request failed", exc_info=exc)
    return problem_response(500, "CG-000", "Internal server error.", "See the server log.")
