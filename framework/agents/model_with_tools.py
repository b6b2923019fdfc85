"""One call of an agent's model: with tools where it knows them, else by a protocol in text."""

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
from capgraph.engine.run_scope import enclosing_services
from capgraph.models.calls import call_model, raise_if_incomplete
from capgraph.models.roles import RoleModel
from capgraph.models.wrapped_model import is_wrapped
from capgraph.telemetry.usage_callback import role_tag

if TYPE_CHECKING:
    from capgraph.agents.base import BaseAgent

_MODEL_CONFIG: Any = {"tags": [role_tag("agent")], "run_name": "agent"}


def supports_tools(model: Any) -> bool:
    """Tell whether a model can be given tools."""
    method = getattr(type(model), "bind_tools", None)
    return method is not BaseChatModel.bind_tools and hasattr(model, "bind_tools")


def get_role_model(agent: BaseAgent) -> RoleModel:
    """Return an agent's model, with the model middleware of its services, or of the run around."""
    services = agent.services or next(iter(enclosing_services()), None)
    if services is None:
        return RoleModel("agent", agent.model)
    runner, limit = services.runner, services.limits.step_timeout_seconds
    shared = () if is_wrapped(agent.model) else runner.model_middleware
    return RoleModel("agent", agent.model, limit, shared, services.clock)


class ModelWithTools:
    """An agent's model with its tools.

    Args:
        agent: The agent.
        tools: What its model may call: tools, and the form of the answer.
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
        """Ask for the next message.

        Args:
            messages: What was said.
            system_prompt: What the model is told first.

        Returns:
            A message with calls of tools, or with text; of what could not be read
            ``additional_kwargs["mark_unreadable"]`` says why.

        Raises:
            ModelError: The call failed, or the model refused or was cut off; the cause is chained.
        """
        told = [*to_text_messages(messages, system_prompt, self._text_instructions)]
        role = get_role_model(self._agent)

        async def send(attempt: Attempt) -> Any:
            model = attempt.inputs["model"]  # another one where something stands in for it
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

        return await call_model(role, told, send, read)


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
    """Return an agent's model.

    Raises:
        ConfigurationError: There is none.
    """
    if not hasattr(model, "ainvoke"):
        raise ConfigurationError(
            f"{type(agent).__name__} got {model!r} as its model.",
            fix="Give a LangChain chat model.",
        )
    return model
