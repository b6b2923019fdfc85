"""One call of an agent's model: with tools where it knows them, else by a protocol in text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from framework.agents.text_protocol import instructions, read_text, written
from framework.base.ports import Attempt
from framework.models.calls import call_model, check_end
from framework.models.roles import RoleModel
from framework.telemetry.metered import role_tag

_CONFIG: Any = {"tags": [role_tag("agent")], "run_name": "agent"}


def knows_tools(model: Any) -> bool:
    """Tell whether a model can be given tools."""
    method = getattr(type(model), "bind_tools", None)
    return method is not BaseChatModel.bind_tools and hasattr(model, "bind_tools")


class Asker:
    """An agent's model with its tools.

    Args:
        model: A chat model.
        tools: What it may call: tools, and the form of the answer.
        seconds: Time limit of one call.
    """

    def __init__(self, model: Any, tools: Sequence[Any] = (), seconds: float | None = None) -> None:
        self._texts = instructions(tools) if tools and not knows_tools(model) else ""
        self._tools = tools
        bound = model.bind_tools(list(tools)) if tools and not self._texts else model
        self._role = RoleModel("agent", bound, limit_seconds=seconds)

    async def ask(self, messages: Sequence[BaseMessage], system: str = "") -> AIMessage:
        """Ask for the next message.

        Args:
            messages: What was said.
            system: What the model is told first.

        Returns:
            A message with calls of tools, or with text; of what could not be read
            ``additional_kwargs["unreadable"]`` says why.

        Raises:
            ModelError: The call failed, or the model refused or was cut off; the cause is chained.
        """
        told = [*written(messages, system, self._texts)]

        async def send(attempt: Attempt) -> Any:
            return await attempt.inputs["model"].ainvoke(attempt.inputs["messages"], _CONFIG)

        def read(message: AIMessage) -> AIMessage:
            check_end(self._role, message)
            return read_text(message, self._tools) if self._texts else _checked(message)

        return await call_model(self._role, told, send, read)


def _checked(message: AIMessage) -> AIMessage:
    if message.tool_calls or message.invalid_tool_calls or str(message.text).strip():
        return message
    return unreadable(message, "It was empty.")


def unreadable(message: AIMessage, why: str) -> AIMessage:
    """Return a message that says why it cannot be used."""
    known = {**message.additional_kwargs, "unreadable": why}
    return message.model_copy(update={"additional_kwargs": known})
