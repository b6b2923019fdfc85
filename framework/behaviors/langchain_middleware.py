"""Adapter that applies LangChain's agent middleware to the model calls of a role."""

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
_FIX = "Use a middleware that wraps single model calls."


def adapt_middleware(item: Any, location: str) -> Any:
    """Wrap LangChain agent middleware in an adapter for model calls.

    Other items are returned unchanged.

    Args:
        item: Behavior, or middleware from ``langchain.agents``.
        location: Name of the list that contains the item, for error messages.

    Raises:
        ConfigurationError: The middleware needs an agent's tools, loop, or state, or it has
            only synchronous methods.
    """
    types = sys.modules.get(
        "langchain.agents.middleware.types"
    )  # loaded if the item is a middleware
    if types is None or not isinstance(item, types.AgentMiddleware):
        return item
    base, name = types.AgentMiddleware, type(item).__name__

    def is_overridden(method: str) -> bool:
        return getattr(type(item), method) is not getattr(base, method)

    unsupported = [method for method in _AGENT_HOOKS if is_overridden(method)]
    unsupported += sorted(
        set(item.state_schema.__annotations__) - set(types.AgentState.__annotations__)
    )
    if unsupported or not any(
        is_overridden(method) for method in (*_MODEL_HOOKS, *(m[1:] for m in _MODEL_HOOKS))
    ):
        raise ConfigurationError(
            f"Cannot use the middleware {name} in {location}: it requires an agent ({', '.join(unsupported) or 'no model call'}), "
            "but a model role supports only model calls.",
            fix=_FIX,
        )
    blocking = [
        method[1:]
        for method in _MODEL_HOOKS
        if is_overridden(method[1:]) and not is_overridden(method)
    ]
    if blocking:
        raise ConfigurationError(
            f"The middleware {name} in {location} has only the synchronous methods {', '.join(blocking)}.",
            fix=f"Add {', '.join(f'a{method}' for method in blocking)}.",
        )
    return _MiddlewareAdapter(item)


class _MiddlewareAdapter:
    """Adapter that runs LangChain agent middleware around each model call, at the ``call`` stage."""

    stage = "call"

    def __init__(self, middleware: Any) -> None:
        self._middleware = middleware

    def __repr__(self) -> str:
        return f"{type(self._middleware).__name__}()"

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run the hooks of the LangChain middleware around a single model call."""
        from langchain.agents.middleware import ModelRequest, ModelResponse

        middleware, runtime = self._middleware, current_runtime()
        messages = _merge_messages(
            [], [message.model_copy() for message in attempt.inputs["messages"]]
        )
        messages = self._apply_update(
            messages, await middleware.abefore_model({"messages": messages}, runtime)
        )
        answers_and_outputs: list[tuple[BaseMessage, Any]] = []

        async def handler(request: Any) -> Any:
            if request.tools or request.model_settings or request.response_format is not None:
                raise ConfigurationError(
                    f"{self!r} changed the tools, model_settings, or response_format of a"
                    " request, which are fixed for a role.",
                    fix=_FIX,
                )
            system = [request.system_message] if request.system_message is not None else []
            inputs = {"model": request.model, "messages": [*system, *request.messages]}
            output = await call_next(replace(attempt, inputs={**attempt.inputs, **inputs}))
            message = output["raw"] if isinstance(output, dict) else output
            message = message if message is not None else AIMessage("")
            answers_and_outputs.append((message, output))
            return ModelResponse(result=[message])

        system_message = (
            messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        )
        request: Any = ModelRequest(
            model=attempt.inputs["model"],
            messages=cast("Any", messages[1:] if system_message is not None else messages),
            system_message=system_message,
            state=cast("Any", {"messages": messages}),
            runtime=runtime,
        )
        has_wrapper = type(middleware).awrap_model_call is not _import_base_class().awrap_model_call
        response = await (
            middleware.awrap_model_call(request, handler) if has_wrapper else handler(request)
        )
        answer = _find_answer(response)
        conversation = [*messages, answer]
        conversation = self._apply_update(
            conversation, await middleware.aafter_model({"messages": conversation}, runtime)
        )
        answers = [message for message in conversation if isinstance(message, AIMessage)]
        answer = answers[-1] if answers else answer
        # An unchanged answer keeps the parsed output of the provider.
        return next(
            (output for message, output in answers_and_outputs if message is answer), answer
        )

    def _apply_update(self, messages: list[BaseMessage], update: Any) -> list[BaseMessage]:
        changes = update or {}
        if unknown := sorted(changes.keys() - {"messages"}):
            raise ConfigurationError(
                f"{self!r} returned updates to {unknown}, which are available only in an agent.",
                fix=_FIX,
            )
        return _merge_messages(messages, changes["messages"]) if "messages" in changes else messages


def _import_base_class() -> Any:
    from langchain.agents.middleware import AgentMiddleware

    return AgentMiddleware


def _find_answer(response: Any) -> AIMessage:
    response = getattr(response, "model_response", response)
    messages = getattr(response, "result", [response])
    return next(message for message in reversed(messages) if isinstance(message, AIMessage))


def _merge_messages(messages: list[BaseMessage], new_messages: Sequence[Any]) -> list[BaseMessage]:
    merged: Any = add_messages(list(messages), list(new_messages))  # type: ignore[arg-type]
    return list(merged)
