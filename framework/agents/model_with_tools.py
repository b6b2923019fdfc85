"""Calls of an agent's model, with native tool calling or a text protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from capgraph.agents.text_protocol import (
    STOP_SEQUENCES,
    build_instructions,
    contains_call,
    mark_unreadable,
    parse_calls,
    parse_step,
    to_text_messages,
)
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Attempt
from capgraph.engine.run_scope import find_enclosing_services
from capgraph.models.calls import call_model, raise_if_incomplete
from capgraph.models.roles import RoleModel
from capgraph.models.wrapped_model import is_wrapped
from capgraph.telemetry.usage_callback import role_tag

if TYPE_CHECKING:
    from capgraph.agents.base import BaseAgent

_MODEL_CONFIG: Any = {"tags": [role_tag("agent")], "run_name": "agent"}


def supports_tools(model: Any) -> bool:
    """Return True if a model supports tool calling."""
    method = getattr(type(model), "bind_tools", None)
    return method is not BaseChatModel.bind_tools and hasattr(model, "bind_tools")


def get_role_model(agent: BaseAgent) -> RoleModel:
    """Return an agent's model together with the model middleware that applies to it.

    The middleware comes from the agent's services, or else from those of the enclosing run.
    """
    services = agent.services or next(iter(find_enclosing_services()), None)
    if services is None:
        return RoleModel("agent", agent.model)
    runner, limit = services.runner, services.limits.step_timeout_seconds
    shared = () if is_wrapped(agent.model) else runner.model_middleware
    return RoleModel("agent", agent.model, limit, shared, services.clock)


class ModelWithTools:
    """Chat model of an agent, bound to the tools that it may call.

    Args:
        agent: Agent that owns the model.
        tools: Tools that the model may call, including the answer type.
    """

    def __init__(self, agent: BaseAgent, tools: Sequence[Any] = ()) -> None:
        self._agent = agent
        model = agent.model
        self._text_instructions = (
            build_instructions(tools) if tools and not supports_tools(model) else ""
        )
        self._tools = tools
        self._bound_model = self._bind_tools(model)

    def _bind_tools(self, model: Any) -> Any:
        return (
            model.bind_tools(list(self._tools))
            if self._tools and not self._text_instructions
            else model
        )

    async def ask(self, messages: Sequence[BaseMessage], system_prompt: str = "") -> AIMessage:
        """Ask an agent's model for its next message.

        Args:
            messages: The conversation so far.
            system_prompt: Text of the system message.

        Returns:
            A message with tool calls or text. If the message cannot be parsed,
            ``additional_kwargs["unreadable"]`` contains the reason.

        Raises:
            ModelError: The call failed, the model refused, or the answer was truncated.
        """
        prompt = [*to_text_messages(messages, system_prompt, self._text_instructions)]
        role = get_role_model(self._agent)

        async def send(attempt: Attempt) -> Any:
            model = attempt.inputs["model"]  # middleware may replace the model
            bound = self._bound_model if model is role.model else self._bind_tools(model)
            stop = (
                {"stop": list(STOP_SEQUENCES)}
                if self._text_instructions and isinstance(bound, BaseChatModel)
                else {}
            )
            return await bound.ainvoke(attempt.inputs["messages"], _MODEL_CONFIG, **stop)

        def read(message: AIMessage) -> AIMessage:
            raise_if_incomplete(role, message)
            return (
                parse_step(message, self._tools)
                if self._text_instructions
                else _validate_answer(message, self._tools)
            )

        return await call_model(role, prompt, send, read)


def _validate_answer(message: AIMessage, tools: Sequence[Any]) -> AIMessage:
    text = str(message.text)
    if message.tool_calls or message.invalid_tool_calls:
        return message
    if not text.strip():
        return mark_unreadable(message, "It was empty.")
    if calls := parse_calls(text, tools):
        return message.model_copy(update={"content": "", "tool_calls": calls})
    if contains_call(text, tools):
        return mark_unreadable(
            message, "It holds a tool call as text among other words; only real calls are run."
        )
    return message


def require_model(agent: BaseAgent, model: Any) -> Any:
    """Return a model after checking that it is a chat model.

    Raises:
        ConfigurationError: The value is not a chat model.
    """
    if not hasattr(model, "ainvoke"):
        raise ConfigurationError(
            f"{type(agent).__name__} has no model: {model!r} is not a chat model.",
            fix="Pass a LangChain chat model.",
        )
    return model
