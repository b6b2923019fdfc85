"""Guardrails for the input of a turn and for the message that ends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import AnyMessage, BaseMessage, messages_from_dict, messages_to_dict
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import ValidationError as PydanticValidationError

from capgraph.base.errors import PolicyError
from capgraph.base.ports import TurnGuardrail
from capgraph.engine.services import Services
from capgraph.langgraph_compat import suppress_message_stream
from capgraph.pipeline.failures import REFUSED_BY_GUARDS
from capgraph.state import TurnView, load_context
from capgraph.telemetry import AnswerToken, TurnFinished, emit
from capgraph.telemetry.events import buffer_answer_events

CLOSING_NODES = frozenset({"respond", "clarify", "error"})
"""Nodes that end a turn."""
_WITHHELD = "(This message was withheld by a guard.)"


async def guard_input(
    view: TurnView, services: Services, guard: TurnGuardrail
) -> tuple[dict[str, Any], PolicyError | None, list[str]]:
    """Apply the guardrail to a turn's new messages and the context data from the caller.

    Args:
        view: State before the turn.
        services: Services of the graph.
        guard: Guardrail of the graph.

    Returns:
        The state update, the error if the input is blocked, and the reasons to request a review of
        the turn's plan. The update contains rewritten messages and data. It removes the text of
        blocked messages, so that later prompts do not contain it.
    """
    refusal: PolicyError | None = None
    reasons: list[str] = []
    messages: list[AnyMessage] = []
    new = list(view.messages)[int(view.turn.get("messages") or 0) :]
    people = [message for message in view.messages if message.type == "human"]
    for message in [*new, *(m for m in people[-1:] if m not in new)]:
        if message.type == "ai" or not (text := str(message.text)):
            continue
        try:
            checked_text, new_reasons = await guard.check_message(text)
            reasons += new_reasons
        except PolicyError as exc:
            refusal, checked_text = refusal or exc, _WITHHELD
        if checked_text != text:
            messages.append(replace_text(message, checked_text))
    update: dict[str, Any] = {"messages": messages} if messages else {}
    # Before the first turn, all context data comes from the caller; later, only some types do.
    context_types = view.contexts if not view.turn else services.registry.provided_types
    context_data = {
        kind: dict(view.contexts[kind]) for kind in context_types if view.contexts.get(kind)
    }
    if context_data and refusal is None:
        try:
            checked, new_reasons = await guard.check_context(context_data)
            reasons += new_reasons
        except PolicyError as exc:
            return update, exc, reasons
        changed = {
            kind: checked[kind] for kind in checked if checked[kind] != context_data.get(kind)
        }
        for kind, entries in changed.items():
            for key, data in entries.items():
                load_context(kind, key, data, services.registry.context_types)
        if changed:
            update["capability_context_data"] = changed
    return update, refusal, reasons


def replace_text(message: Any, text: str) -> Any:
    """Return a copy of a message with different text, keeping its images and files."""
    blocks = message.content if isinstance(message.content, list) else []
    other_blocks = [b for b in blocks if isinstance(b, dict) and b.get("type") != "text"]
    content = [{"type": "text", "text": text}, *other_blocks] if other_blocks else text
    return message.model_copy(update={"content": content})


class AnswerGuard:
    """Guardrail check for the message of a node that ends a turn.

    Without guardrails, the node's events and its update are unchanged.

    Args:
        node: Name of the node.
        view: Current state of the turn.
        services: Services of the graph.
    """

    def __init__(self, node: str, view: TurnView, services: Services | None) -> None:
        self._node = node
        self._view = view
        self._services = services
        self._guard = services.guard if services is not None and node in CLOSING_NODES else None
        self._withheld_events: list[Any] = []
        self._draft = f"draft/{view.turn_id}/{node}"
        self._has_draft = False

    def withhold_events(self, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Wrap a node function so that its events are withheld until its message is checked."""
        return work if self._guard is None else partial(self._run_withheld, work)

    async def _run_withheld(self, work: Callable[[], Awaitable[Any]]) -> Any:
        assert self._services is not None
        # A message that a person was asked about is restored when the answer arrives.
        if draft := await self._services.journal().read(self._draft):
            self._has_draft = True
            self._withheld_events = [TurnFinished(outcome=draft.get("execution_outcome") or {})]
            return {**draft, "messages": messages_from_dict(draft["messages"])}
        with suppress_message_stream(), buffer_answer_events(self._withheld_events):
            return await work()

    async def guard_update(self, update: Any) -> Any:
        """Check the turn's final message with the guardrail, then emit the withheld events.

        Raises:
            PolicyError: The guardrail blocked the message.
        """
        if self._guard is None:
            return update
        pairs = update.update if isinstance(update, Command) else update
        fields = dict(pairs.items() if isinstance(pairs, Mapping) else pairs or ())
        messages_update = fields.get("messages")
        messages: list[Any] = (
            list(messages_update)
            if isinstance(messages_update, (list, tuple))
            else [messages_update]
        )
        texts: list[str] = []
        for index, message in enumerate(messages):
            if not isinstance(message, BaseMessage) or not (text := str(message.text)):
                continue
            try:
                checked_text = await self._guard_text(text, self._guard)
            except GraphBubbleUp:
                await self._save_draft(fields, messages)
                raise
            if checked_text != text:
                messages[index] = replace_text(message, checked_text)
                if fields.get("execution_answer") is not None:
                    fields["execution_answer"] = self._parse_answer(checked_text)
            texts.append(checked_text)
        if self._has_draft:  # a fork of the turn writes a new answer
            await self._save_draft({}, [])
        self._emit_withheld(
            texts, (event for event in self._withheld_events if isinstance(event, TurnFinished))
        )
        if not texts:
            return update
        fields["messages"] = messages
        return replace(update, update=fields) if isinstance(update, Command) else fields

    async def _save_draft(self, fields: Mapping[str, Any], messages: Sequence[BaseMessage]) -> None:
        assert self._services is not None
        draft = {**fields, "messages": messages_to_dict(messages)} if messages else {}
        await self._services.journal().write(self._draft, draft)

    async def _guard_text(self, text: str, guard: TurnGuardrail) -> str:
        try:
            return await guard.check_answer(text, node=self._node)
        except PolicyError:
            reported = self._view.failure or {}
            if self._node != "error" or not is_guardrail_refusal(reported):
                raise
            # The messages of guardrails were written by the operator.
            return str(reported.get("user_message"))

    def emit_replacement(self, text: str, outcome: dict[str, Any]) -> None:
        """Emit the replacement for a blocked message, together with the outcome of the turn."""
        if self._guard is not None:
            self._emit_withheld([text], [TurnFinished(outcome=outcome)])

    def _parse_answer(self, text: str) -> Any:
        """Parse a structured answer that a guardrail has rewritten."""
        assert self._services is not None
        answer_type = self._services.answer_type_of(self._view.state)
        assert answer_type is not None
        try:
            return answer_type.model_validate(json.loads(text)).model_dump(mode="json")
        except (ValueError, PydanticValidationError) as exc:
            raise PolicyError(
                "A guardrail rewrote the answer, which is no longer a valid "
                f"{answer_type.__name__}.",
                fix="change the guardrail so that it keeps the type or blocks the answer.",
            ) from exc

    def _emit_withheld(self, texts: Iterable[str], ends: Iterable[TurnFinished]) -> None:
        for event in (*(AnswerToken(text=text) for text in texts), *ends):
            emit(event)


def is_guardrail_refusal(failure: Mapping[str, Any]) -> bool:
    """Return True if a failure occurred because a guardrail blocked a message or data."""
    metadata = (failure.get("classification") or {}).get("metadata") or {}
    return metadata.get("code") == REFUSED_BY_GUARDS
