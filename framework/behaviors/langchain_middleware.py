"""LangChain's agent middlewares around the calls of a model's role, as they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.graph.message import add_messages

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Attempt, CallNext
from capgraph.pipeline.run_config import current_runtime

_MODEL_HOOKS = ("abefore_model", "awrap_model_call", "aafter_model")
_AGENT_HOOKS = ("before_agent", "after_agent", "wrap_tool_call", "awrap_tool_call")
_FIX = "Give the role a middleware that works on single model calls."


def adapt_middleware(item: Any, location: str) -> Any:
    """Return what stands around a role's calls for an agent middleware; other items as they are.

    Args:
        item: A behaviour, or a middleware of ``langchain.agents``.
        location: Names the list that holds it.

    Raises:
        ConfigurationError: The middleware needs an agent: its tools, its loop or its state; or it
            has only synchronous methods.
    """
    types = sys.modules.get("langchain.agents.middleware.types")  # whoever has one has loaded it
    if types is None or not isinstance(item, types.AgentMiddleware):
        return item
    base, name = types.AgentMiddleware, type(item).__name__

    def own(method: str) -> bool:
        return getattr(type(item), method) is not getattr(base, method)

    needs = [method for method in _AGENT_HOOKS if own(method)]
    needs += sorted(set(item.state_schema.__annotations__) - set(types.AgentState.__annotations__))
    if needs or not any(own(method) for method in (*_MODEL_HOOKS, *(m[1:] for m in _MODEL_HOOKS))):
        raise ConfigurationError(
            f"{name} in {location} is about an agent ({', '.join(needs) or 'no model call'}), and a"
            " role is none.",
            fix=_FIX,
        )
    blocking = [method[1:] for method in _MODEL_HOOKS if own(method[1:]) and not own(method)]
    if blocking:
        raise ConfigurationError(
            f"{name} in {location} has {', '.join(blocking)} and no asynchronous form of it.",
            fix=f"Write {', '.join(f'a{method}' for method in blocking)}.",
        )
    return _MiddlewareAdapter(item)


class _MiddlewareAdapter:
    """One agent middleware at the stage ``call`` of model calls."""

    stage = "call"

    def __init__(self, middleware: Any) -> None:
        self._middleware = middleware

    def __repr__(self) -> str:
        return f"{type(self._middleware).__name__}()"

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run the middleware's methods around one call."""
        from langchain.agents.middleware import ModelRequest, ModelResponse

        middleware, runtime = self._middleware, current_runtime()
        messages = _merge_messages(
            [], [message.model_copy() for message in attempt.inputs["messages"]]
        )
        messages = self._apply_update(
            messages, await middleware.abefore_model({"messages": messages}, runtime)
        )
        given: list[tuple[BaseMessage, Any]] = []

        async def handler(request: Any) -> Any:
            if request.tools or request.model_settings or request.response_format is not None:
                raise ConfigurationError(
                    f"{self!r} sets tools, model_settings or response_format, which the call of a"
                    " role has of its own.",
                    fix=_FIX,
                )
            system = [request.system_message] if request.system_message is not None else []
            asked = {"model": request.model, "messages": [*system, *request.messages]}
            found = await call_next(replace(attempt, inputs={**attempt.inputs, **asked}))
            message = found["raw"] if isinstance(found, dict) else found
            message = message if message is not None else AIMessage("")
            given.append((message, found))
            return ModelResponse(result=[message])

        first = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        request: Any = ModelRequest(
            model=attempt.inputs["model"],
            messages=cast("Any", messages[1:] if first is not None else messages),
            system_message=first,
            state=cast("Any", {"messages": messages}),
            runtime=runtime,
        )
        wraps = type(middleware).awrap_model_call is not _middleware_base().awrap_model_call
        response = await (
            middleware.awrap_model_call(request, handler) if wraps else handler(request)
        )
        answer = _find_answer(response)
        told = [*messages, answer]
        told = self._apply_update(told, await middleware.aafter_model({"messages": told}, runtime))
        answers = [message for message in told if isinstance(message, AIMessage)]
        answer = answers[-1] if answers else answer
        # What came out unchanged keeps what the provider made of it.
        return next((found for message, found in given if message is answer), answer)

    def _apply_update(self, messages: list[BaseMessage], update: Any) -> list[BaseMessage]:
        found = update or {}
        if unknown := sorted(found.keys() - {"messages"}):
            raise ConfigurationError(f"{self!r} gave {unknown}, which only an agent has.", fix=_FIX)
        return _merge_messages(messages, found["messages"]) if "messages" in found else messages


def _middleware_base() -> Any:
    from langchain.agents.middleware import AgentMiddleware

    return AgentMiddleware


def _find_answer(response: Any) -> AIMessage:
    response = getattr(response, "model_response", response)
    found = getattr(response, "result", [response])
    return next(message for message in reversed(found) if isinstance(message, AIMessage))


def _merge_messages(messages: list[BaseMessage], new_messages: Sequence[Any]) -> list[BaseMessage]:
    merged: Any = add_messages(list(messages), list(new_messages))  # type: ignore[arg-type]
    return list(merged)
