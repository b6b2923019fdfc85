"""Every error of the server in one form: ``application/problem+json``."""

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
"""Where a database is concerns nobody who asks."""


class BadRequestError(ValidationError):
    """A request that cannot be read.

    >>> error_response(BadRequestError("The body is no JSON.")).status_code
    400
    """


class TooLargeError(ValidationError):
    """More was sent than is taken."""

    code = "CG-TOO-LARGE"


class NotFoundError(CapgraphError):
    """There is no such thing, or it is another user's: nobody is told which.

    >>> NotFoundError("There is no thread 'a'.").code
    'CG-NOT-FOUND'
    """

    code = "CG-NOT-FOUND"


class ConflictError(CapgraphError):
    """What is asked for does not go with how things stand, such as a question answered before."""

    code = "CG-CONFLICT"


class AnswerRefusedError(ValidationError):
    """An answer that does not fit its question, which stays open.

    Args:
        problems: What does not fit: ``path`` (dotted) and ``message``.

    >>> AnswerRefusedError([{"path": "open.parameters.litres", "message": "is text"}]).problems
    [{'path': 'open.parameters.litres', 'message': 'is text'}]
    """

    code = "CG-ANSWER"

    def __init__(self, problems: list[dict[str, str]]) -> None:
        told = " ".join(f"{one['path'] or 'answer'}: {one['message']}" for one in problems)
        super().__init__(f"The answer does not fit. {told}", fix="Answer again.")
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


def openai_error(message: str, code: str) -> dict[str, str]:
    """Return an error as OpenAI's protocol has it."""
    return {"message": message, "type": "capgraph_error", "code": code}


def problem_response(
    status: int,
    code: str,
    detail: str,
    fix: str | None = None,
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> JSONResponse:
    """Return an answer that says what is wrong.

    Args:
        status: HTTP status.
        code: Code of the error, which has a page in the documentation.
        detail: The value and the cause.
        fix: What the reader can do.
        headers: Further headers.
        **extra: Further members.
    """
    detail = mask_secrets(detail, MAX_MESSAGE_CHARS)
    body = {
        "type": f"errors/{code}",
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        **({"fix": fix} if fix else {}),
        # Where the clients of OpenAI's protocol look.
        "error": openai_error(f"{detail} {fix or ''}".strip(), code),
        **extra,
    }
    return JSONResponse(body, status, dict(headers or {}), media_type="application/problem+json")


def public_message(exc: CapgraphError) -> tuple[str, str | None]:
    """Return message and fix of an error for a client: not where a database or a process is.

    >>> public_message(PersistenceError("The database 'sqlite:////srv/t.db' is away."))
    ('The database is away.', None)
    """
    if isinstance(exc, ThreadBusyError):
        return "The thread is being run already.", "Wait until that run ends or asks a person."
    told = [_DATABASE_URL.sub("", mask_secrets(text or "")) for text in (exc.message, exc.fix)]
    return told[0], told[1] or None


def public_message_line(exc: CapgraphError) -> str:
    """Return :func:`public_text` in one line, for protocols whose errors are a text."""
    told, fix = public_message(exc)
    return f"{told} Fix: {fix}" if fix else told


def error_response(exc: Exception) -> JSONResponse:
    """Return the answer for whatever was raised; of what is not ours nothing is told.

    >>> import json
    >>> answer = error_response(PersistenceError("The database 'sqlite:////srv/t.db' is away."))
    >>> answer.status_code, json.loads(answer.body)["detail"]
    (503, 'The database is away.')
    """
    if isinstance(exc, AnswerRefusedError):
        return problem_response(422, exc.code, *public_message(exc), problems=exc.problems)
    if isinstance(exc, CapgraphError):
        status = next((number for kind, number in _STATUS_CODES if isinstance(exc, kind)), 500)
        if status < 500 or isinstance(exc, PersistenceError):
            return problem_response(status, exc.code, *public_message(exc))
    get_logger("serve", "request").error("A request failed", exc_info=exc)
    return problem_response(500, "CG-000", "The server failed.", "Its log has the cause.")
