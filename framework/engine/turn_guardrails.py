"""Guards at the two ends of a turn: what a person sends, and the message that ends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    messages_from_dict,
    messages_to_dict,
)
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
    """Look at what was sent for a turn: new messages, and data of the caller's.

    Args:
        view: The state before the turn.
        services: Shared dependencies.
        guard: The graph's guards.

    Returns:
        The update: rewritten messages and data, refused messages without their words, which would
        stand in later prompts; why the turn is refused, where it is; and why a person has to agree
        to its plan.
    """
    problem: PolicyError | None = None
    asks: list[str] = []
    messages: list[AnyMessage] = []
    new = list(view.messages)[int(view.turn.get("messages") or 0) :]
    people = [message for message in view.messages if message.type == "human"]
    for message in [*new, *(m for m in people[-1:] if m not in new)]:
        if message.type == "ai" or not (text := str(message.text)):
            continue
        try:
            passed, wanted = await guard.check_message(text)
            asks += wanted
        except PolicyError as exc:
            problem, passed = problem or exc, _WITHHELD
        if passed != text:
            messages.append(replace_text(message, passed))
    update: dict[str, Any] = {"messages": messages} if messages else {}
    # Whatever stands there before the first turn was brought; later a caller may send some types.
    known = view.contexts if not view.turn else services.registry.provided_types
    brought = {kind: dict(view.contexts[kind]) for kind in known if view.contexts.get(kind)}
    if brought and problem is None:
        try:
            found, wanted = await guard.check_context(brought)
            asks += wanted
        except PolicyError as exc:
            return update, exc, asks
        changed = {kind: found[kind] for kind in found if found[kind] != brought.get(kind)}
        for kind, entries in changed.items():
            for key, data in entries.items():
                load_context(kind, key, data, services.registry.context_types)
        if changed:
            update["capability_context_data"] = changed
    return update, problem, asks


def replace_text(message: Any, text: str) -> Any:
    """Return a message with other words; its images and files stay."""
    blocks = message.content if isinstance(message.content, list) else []
    others = [b for b in blocks if isinstance(b, dict) and b.get("type") != "text"]
    content = [{"type": "text", "text": text}, *others] if others else text
    return message.model_copy(update={"content": content})


class AnswerGuard:
    """A node that ends a turn, as far as guards look at it; without guards everything passes.

    Args:
        node: Name of the node.
        view: The turn.
        services: Shared dependencies.
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
        """Have the node say nothing before its message was looked at."""
        return work if self._guard is None else partial(self._run, work)

    async def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        assert self._services is not None
        # What a person was asked about is what is said when the answer comes.
        if draft := await self._services.journal().read(self._draft):
            self._has_draft = True
            self._withheld_events = [TurnFinished(outcome=draft.get("execution_outcome") or {})]
            return {**draft, "messages": messages_from_dict(draft["messages"])}
        with suppress_message_stream(), buffer_answer_events(self._withheld_events):
            return await work()

    async def guard_update(self, update: Any) -> Any:
        """Look at the message that ends the turn, and say then what the node would have said.

        Raises:
            PolicyError: The message must not be given.
        """
        if self._guard is None:
            return update
        pairs = update.update if isinstance(update, Command) else update
        found = dict(pairs.items() if isinstance(pairs, Mapping) else pairs or ())
        said = found.get("messages")
        several: list[Any] = list(said) if isinstance(said, (list, tuple)) else [said]
        texts: list[str] = []
        for place, message in enumerate(several):
            if not isinstance(message, BaseMessage) or not (text := str(message.text)):
                continue
            try:
                passed = await self._guard_text(text, self._guard)
            except GraphBubbleUp:
                await self._save_draft(found, several)
                raise
            if passed != text:
                several[place] = replace_text(message, passed)
                if found.get("execution_answer") is not None:
                    found["execution_answer"] = _parse_answer(passed, self._services)
            texts.append(passed)
        if self._has_draft:  # a fork of the turn writes an answer of its own
            await self._save_draft({}, [])
        self._emit(
            texts, (event for event in self._withheld_events if isinstance(event, TurnFinished))
        )
        if not texts:
            return update
        found["messages"] = several
        return replace(update, update=found) if isinstance(update, Command) else found

    async def _save_draft(self, found: Mapping[str, Any], messages: Sequence[BaseMessage]) -> None:
        assert self._services is not None
        draft = {**found, "messages": messages_to_dict(messages)} if messages else {}
        await self._services.journal().write(self._draft, draft)

    async def _guard_text(self, text: str, guard: TurnGuardrail) -> str:
        try:
            return await guard.check_answer(text, node=self._node)
        except PolicyError:
            reported = self._view.failure or {}
            if self._node != "error" or not is_guardrail_refusal(reported):
                raise
            # What guards say of themselves is the operator's own words.
            return str(reported.get("user_message"))

    def emit_replacement(self, text: str, outcome: dict[str, Any]) -> None:
        """Say what stands in the place of a message that could not be given."""
        if self._guard is not None:
            self._emit([text], [TurnFinished(outcome=outcome)])

    def _emit(self, texts: Iterable[str], ends: Iterable[TurnFinished]) -> None:
        for event in (*(AnswerToken(text=text) for text in texts), *ends):
            emit(event)


def is_guardrail_refusal(failure: Mapping[str, Any]) -> bool:
    """Tell whether a failure is what guards said."""
    metadata = (failure.get("classification") or {}).get("metadata") or {}
    return metadata.get("code") == REFUSED_BY_GUARDS


def _parse_answer(text: str, services: Services | None) -> Any:
    """Read a rewritten answer of a form."""
    assert services is not None
    assert services.answer_type is not None
    try:
        return services.answer_type.model_validate(json.loads(text)).model_dump(mode="json")
    except (ValueError, PydanticValidationError) as exc:
        raise PolicyError(
            "A guard rewrote the answer, and what it gave is not of the form asked for.",
            fix="Have it keep the form, or refuse.",
        ) from exc
