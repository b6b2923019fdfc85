"""Classification of errors from model services, for every provider of LangChain."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from capgraph.base import ErrorSeverity, ModelError
from capgraph.base.error_classification import classify_exception, diagnose

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")


def response(status: int, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, request=REQUEST, headers=named)


def limited(**headers: str) -> openai.RateLimitError:
    return openai.RateLimitError("slow down", response=response(429, **headers), body=None)


def midway(code: str) -> openai.APIError:
    return openai.APIError("sorry", REQUEST, body={"code": code, "message": "sorry"})


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (limited(), "rate_limit"),
        (openai.APITimeoutError(REQUEST), "timeout"),
        (openai.APIConnectionError(request=REQUEST), "network"),
        (openai.InternalServerError("x", response=response(500), body=None), "overloaded"),
        (openai.AuthenticationError("x", response=response(401), body=None), "authentication"),
        (openai.PermissionDeniedError("x", response=response(403), body=None), "authentication"),
        (openai.NotFoundError("x", response=response(404), body=None), "bad_input"),
        (
            openai.BadRequestError("context_length_exceeded", response=response(400), body=None),
            "context_too_long",
        ),
        (openai.BadRequestError("x", response=response(400), body=None), "bad_input"),
        (openai.APIStatusError("too large", response=response(413), body=None), "context_too_long"),
        (
            openai.BadRequestError("API key not valid.", response=response(400), body=None),
            "authentication",
        ),
        (midway("server_error"), "overloaded"),
        (midway("rate_limit_exceeded"), "rate_limit"),
        (httpx.ReadTimeout("x"), "timeout"),
        (httpx.ConnectError("x"), "network"),
        (httpx.RemoteProtocolError("x"), "network"),
        (ContextOverflowError("x"), "context_too_long"),
        (ModelRateLimitError("x"), "rate_limit"),
        (ModelAPIError("x"), "overloaded"),
        (ModelConnectionError("x"), "network"),
        (ModelTimeoutError("x"), "timeout"),
        (ModelAuthenticationError("x"), "authentication"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_each_error_is_classified_the_same_inside_a_model_error(
    error: Exception, category: str
) -> None:
    assert diagnose(error).category == category
    wrapped = ModelError("The model failed")
    wrapped.__cause__ = error
    assert diagnose(wrapped).category == category
    severity = classify_exception(wrapped, "x").severity
    passing = category in {"rate_limit", "timeout", "network", "overloaded"}
    assert severity is (ErrorSeverity.RETRIABLE if passing else ErrorSeverity.CRITICAL)


def test_declared_severity_overrides_the_cause() -> None:
    wrapped = ModelError("It refused", severity=ErrorSeverity.CRITICAL)
    wrapped.__cause__ = limited()
    assert classify_exception(wrapped, "x").severity is ErrorSeverity.CRITICAL


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "0.25"}, 0.25),
        ({"retry_after_ms": "1500", "retry_after": "2"}, 1.5),
        ({"retry_after": "-4"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({}, None),
    ],
)
def test_retry_delay_is_read_from_the_response(
    headers: dict[str, Any], seconds: float | None
) -> None:
    assert diagnose(limited(**headers)).retry_after == seconds
    metadata = classify_exception(limited(**headers), "x").metadata or {}
    assert metadata.get("retry_after_seconds") == seconds


def test_retry_delay_is_read_from_google_errors_and_causes() -> None:
    told = "429 RESOURCE_EXHAUSTED. {'details': [{'retryDelay': '7.5s'}]}"
    wrapped = ModelRateLimitError("x")
    wrapped.__cause__ = openai.RateLimitError(told, response=response(429), body=None)
    assert diagnose(wrapped).retry_after == 7.5
