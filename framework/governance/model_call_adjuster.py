"""Middleware that applies policy actions to model calls: another model, or a shorter history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, SystemMessage

from capgraph.base.ports import Attempt, CallNext
from capgraph.governance.recovery import smaller_context_budget
from capgraph.telemetry.usage_callback import current_turn_budget

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class ModelCallAdjuster:
    """Middleware that switches the model or shortens the message history of model calls.

    Policy actions of the turn request these changes.

    Args:
        models: Models for ``switch_model``, in order. The last model is used for all further
            switches.

    Raises:
        ConfigurationError: A model cannot be created.
    """

    stage = "call"
    order = 0

    def __init__(self, models: Sequence[Any] = ()) -> None:
        from capgraph.models.roles import chat_models  # imported only if models are used

        self.models: list[BaseChatModel] = [chat_models(model)["answer"] for model in models]

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Apply the model switches and context cuts that policy actions requested for the turn."""
        turn = current_turn_budget()
        inputs = dict(attempt.inputs)
        if turn is not None and turn.model_switches and self.models:
            model = self.models[min(turn.model_switches, len(self.models)) - 1]
            from capgraph.models.roles import without_streaming

            inputs["model"] = without_streaming(model, attempt.capability)
        if turn is not None and turn.context_cuts:
            inputs["messages"] = _drop_oldest(inputs["messages"], turn.context_cuts)
        return await call_next(replace(attempt, inputs=inputs))


def _drop_oldest(messages: Sequence[BaseMessage], cuts: int) -> list[BaseMessage]:
    """Remove the oldest messages from a conversation to shorten a model's context.

    System messages and the last message are kept.
    """
    max_chars = sum(len(str(message.text)) for message in messages)
    for _ in range(cuts):
        max_chars = smaller_context_budget(max_chars)
    remaining = list(messages)
    size = sum(len(str(message.text)) for message in remaining)
    for message in messages[:-1]:
        if size > max_chars and not isinstance(message, SystemMessage):
            remaining.remove(message)
            size -= len(str(message.text))
    return remaining
