"""Classification of exceptions: the return type of ``classify_error`` and its default.

Libraries raise exceptions of their own, often chained. The classification searches the whole chain
and recognizes exceptions by built-in base classes, by attributes such as an HTTP status, and by
headers such as ``Retry-After``.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError as PydanticValidationError

from capgraph.base.errors import (
    CapabilityError,
    CapgraphError,
    ErrorSeverity,
    MissingExtraError,
    ModelError,
    ValidationError,
)
from capgraph.helpers.plain_data import parse_enum, to_plain, validation_messages


@dataclass
class ErrorClassification:
    """Classification of a failure, as returned by ``classify_error``.

    Attributes:
        severity: Severity of the failure, which determines how the turn continues.
        user_message: Message for the user. None means the default message.
        metadata: Technical details for developers and for the next planning prompt.

    Raises:
        ValidationError: The severity is not a valid ``ErrorSeverity`` member or value.

    >>> print(ErrorClassification(
    ...     ErrorSeverity.REPLANNING, "No data", {"missing_inputs": ["A", "B"]}
    ... ).format_for_llm())
    **Previous Execution Error:**
    - **User Message:** No data
    - **Missing Inputs:** A, B
    """

    severity: ErrorSeverity
    user_message: str | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.severity = parse_enum(ErrorSeverity, self.severity, "severity")

    def format_for_llm(self) -> str:
        """Format the error classification as a section of a planning prompt."""
        lines = [
            "**Previous Execution Error:**",
            f"- **User Message:** {self.user_message or 'No error message available'}",
        ]
        for key, value in (self.metadata or {}).items():
            if isinstance(value, (list, tuple)):
                text = ", ".join(str(item) for item in value)
            elif isinstance(value, dict):
                text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
            else:
                text = str(value)
            lines.append(f"- **{key.replace('_', ' ').title()}:** {text}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Convert the error classification to plain data for the graph state."""
        return {
            "severity": self.severity.value,
            "user_message": self.user_message,
            "metadata": to_plain(self.metadata or {}, lenient=True),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ErrorClassification:
        """Create an error classification from the output of :meth:`to_dict`."""
        return cls(
            ErrorSeverity(data["severity"]), data.get("user_message"), data.get("metadata") or {}
        )


Category = Literal[
    "network",
    "timeout",
    "rate_limit",
    "overloaded",
    "authentication",
    "context_too_long",
    "bad_input",
    "programming_error",
    "declared",
    "unknown",
]

_PROGRAMMING = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    SyntaxError,
    NotImplementedError,
    RecursionError,
)
_TRANSIENT: frozenset[Category] = frozenset({"network", "timeout", "rate_limit", "overloaded"})
# LangChain raises these for every provider.
_LANGCHAIN_CATEGORIES: dict[str, Category] = {
    "ModelRateLimitError": "rate_limit",
    "ModelAPIError": "overloaded",
    "ModelConnectionError": "network",
    "ModelTimeoutError": "timeout",
    "ModelAuthenticationError": "authentication",
    "ModelPermissionDeniedError": "authentication",
    "ContextOverflowError": "context_too_long",
}
# Error codes that services send in a stream, after the HTTP status has been sent.
_CODE_CATEGORIES: dict[str, Category] = {
    "server_error": "overloaded",
    "internal_server_error": "overloaded",
    "api_error": "overloaded",
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
}
_MAX_LISTED_ERRORS = 5
# Servers use different statuses and texts: llama.cpp sends 400 "exceeds the available context size"
# or 500 "Context size has been exceeded", Ollama "exceeds the context length".
_CONTEXT = re.compile(r"context[ _](?:length|size|window)", re.IGNORECASE)
_EXCEEDED = re.compile(r"exceed|overflow|longer|greater|too long|only", re.IGNORECASE)
_KEY_MARKERS = ("API key not valid", "API_KEY_INVALID")
_RETRY_INFO = re.compile(r"retryDelay\W{1,9}+([\d.]{1,20}+)s")


class Diagnosis(NamedTuple):
    """Diagnosis of an exception, with its category and underlying cause.

    Attributes:
        category: Category, such as ``network`` or ``programming_error``.
        cause: Exception in the chain of causes that determined the category.
        retry_after: Delay in seconds requested by the server, or None.
    """

    category: Category
    cause: BaseException
    retry_after: float | None = None


def diagnose(exc: BaseException) -> Diagnosis:
    """Determine the category of an exception from its chain of causes.

    >>> diagnose(ConnectionResetError("gone")).category
    'network'
    >>> diagnose(KeyError("speed")).category
    'programming_error'
    """
    for error in iter_causes(exc):
        category = categorize(error)
        if category != "unknown":
            delays = (_requested_delay(each) for each in iter_causes(exc))
            return Diagnosis(category, error, next((s for s in delays if s is not None), None))
    return Diagnosis("unknown", exc)


def classify_exception(
    exc: BaseException, origin: str, *, effect: str = "none"
) -> ErrorClassification:
    """Classify an exception by its type. This is the default for capabilities and nodes.

    Transient errors (network, timeout, rate limit, overload) are RETRIABLE, capgraph's errors have their
    declared severity, and all others are CRITICAL. A transient error of a step with ``effect="once"``
    is CRITICAL, because the step may have had its effect before it failed.

    Args:
        exc: Exception to classify.
        origin: Beginning of the message, such as ``"Unhandled error in weather"``.
        effect: Declared effect of the capability: ``none``, ``idempotent``, or ``once``.

    >>> classify_exception(RuntimeError("broken"), "Unhandled error in weather").user_message
    'Unhandled error in weather: broken'
    """
    found = diagnose(exc)
    metadata: dict[str, Any] = {"technical_details": str(exc), "category": found.category}
    if found.retry_after is not None:
        metadata["retry_after_seconds"] = found.retry_after
    texts = (getattr(error, "person_message", "") for error in iter_causes(exc))
    if sentence := next((text for text in texts if isinstance(text, str) and text), None):
        metadata["person_message"] = sentence
    if found.category == "declared" and isinstance(found.cause, CapgraphError):
        severity = ErrorSeverity(found.cause.severity or ErrorSeverity.CRITICAL)
        if effect == "once" and severity is ErrorSeverity.RETRIABLE and found.cause is not exc:
            severity = ErrorSeverity.CRITICAL
        metadata["code"] = found.cause.code
        return ErrorClassification(severity, str(exc) or type(exc).__name__, metadata)
    severity = ErrorSeverity.CRITICAL
    if found.category in _TRANSIENT and effect != "once":
        severity = ErrorSeverity.RETRIABLE
    text = str(exc) or type(exc).__name__
    if _is_tool_exception(exc):
        return ErrorClassification(severity, text, metadata)  # the author wrote it for a reader
    if isinstance(exc, PydanticValidationError):
        # Pydantic's text has several lines, input values, and a link. The details contain it.
        errors = validation_messages(exc, "value")
        omitted = len(errors) - _MAX_LISTED_ERRORS
        more = f"; and {omitted} more" if omitted > 0 else ""
        listed = "; ".join(errors[:_MAX_LISTED_ERRORS])
        text = f"the data is not a valid {exc.title} ({listed}{more})."
    return ErrorClassification(severity, f"{origin}: {text}", metadata)


def _is_tool_exception(exc: BaseException) -> bool:
    """Return True if an exception is LangChain's ``ToolException``.

    LangChain is not imported for the check.
    """
    module = sys.modules.get("langchain_core.tools.base")
    return module is not None and isinstance(exc, module.ToolException)


def is_self_classified(exc: BaseException) -> bool:
    """Return True if the severity of an exception is determined by a capgraph error.

    A ``CapabilityError``, ``ModelError``, or ``ValidationError`` counts only if it sets
    ``severity``.

    >>> is_self_classified(RuntimeError("broken")), is_self_classified(MissingExtraError("no x"))
    (False, True)
    """
    cause = diagnose(exc).cause
    plain = isinstance(cause, (CapabilityError, ModelError, ValidationError))
    return isinstance(cause, CapgraphError) and not (plain and cause.severity is None)


def iter_causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions in its chain of causes and contexts, each only once."""
    seen: set[int] = set()
    pending: list[BaseException] = [exc]
    while pending:
        error = pending.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        if error.__cause__ is not None:
            pending.append(error.__cause__)
        elif error.__context__ is not None and not error.__suppress_context__:
            pending.append(error.__context__)


def categorize(error: BaseException) -> Category:
    """Return the category of a single exception, ignoring its causes."""
    if isinstance(error, ModelError) and error.severity is None and error.__cause__ is not None:
        return "unknown"  # its cause decides
    if isinstance(error, CapgraphError) and not isinstance(error, MissingExtraError):
        return "declared"
    service_category = _categorize_service_error(error)
    if service_category is not None:
        return service_category
    if isinstance(error, MissingExtraError):
        return "declared"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)) or "Timeout" in type(error).__name__:
        return "timeout"
    if isinstance(error, ConnectionError) or _is_network_type(error):
        return "network"
    if isinstance(error, _PROGRAMMING):
        return "programming_error"
    if isinstance(error, ValueError):
        return "bad_input"
    return "unknown"


def _categorize_service_error(error: BaseException) -> Category | None:
    """Return the category of an error from a remote service, or None for other errors.

    The category depends on the exception type, the HTTP status, or the error code.
    """
    status = _http_status(error)
    codes = [getattr(error, name, None) for name in ("code", "type")]
    is_service_error = status is not None or any(isinstance(code, str) for code in codes)
    if is_service_error and status != 429 and _is_context_overflow(str(error)):
        return "context_too_long"
    for base in type(error).__mro__:
        if base.__name__ in _LANGCHAIN_CATEGORIES:
            return _LANGCHAIN_CATEGORIES[base.__name__]
    if status is not None:
        return _status_category(status, str(error))
    return next(
        (
            _CODE_CATEGORIES[code]
            for code in codes
            if isinstance(code, str) and code in _CODE_CATEGORIES
        ),
        None,
    )


def _is_context_overflow(text: str) -> bool:
    return bool(_CONTEXT.search(text) and _EXCEEDED.search(text))


def _http_status(error: BaseException) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "http_status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 400 <= value <= 599:  # a failed stream has status 200
                return value
    return None


def _status_category(status: int, text: str) -> Category:
    if status == 429:
        return "rate_limit"
    if status in (401, 403):
        return "authentication"
    if status in (408, 504):
        return "timeout"
    if status >= 500:
        return "overloaded"
    if status == 413 or _CONTEXT.search(text):
        return "context_too_long"
    if any(marker in text for marker in _KEY_MARKERS):
        return "authentication"
    return "bad_input"


def _is_network_type(error: BaseException) -> bool:
    # Errors of HTTP clients do not derive from the built-in ConnectionError.
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"APIConnectionError", "NetworkError", "TransportError", "gaierror"})


def _requested_delay(error: BaseException) -> float | None:
    own = getattr(error, "retry_after", None)
    if isinstance(own, (int, float)) and math.isfinite(own):
        return max(0.0, float(own))
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return None
    if (delay := _RETRY_INFO.search(str(error))) is not None:  # Google sends it in the body
        return float(delay[1])
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name)) * unit
        except (TypeError, ValueError):
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after"))
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:  # "-0000" is UTC without a known time zone
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
