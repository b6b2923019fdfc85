"""Standing rules: what a person agreed to once and for all, as data in a LangGraph store."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from langgraph.store.base import BaseStore
from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from framework.base.errors import ValidationError

NAMESPACE = ("capgraph", "approval_rules")
_PAGE = 1000
_FIX_UNKNOWN = "List the rules to see their ids."


class Rule(BaseModel):
    """One standing rule: a capability may run without a question.

    Attributes:
        id: Identifies the rule.
        capability: What may run.
        thread_id: The only thread for which it holds; ``None`` for every thread.
        expires_at: Until when it holds (with time zone); ``None`` for ever.
        created_at: When it was made.
        reason: Why, in the words of the person.
    """

    model_config = ConfigDict(extra="forbid")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    capability: str = Field(min_length=1)
    thread_id: str | None = None
    expires_at: datetime | None = None
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    reason: str = Field("", max_length=4000)

    @property
    def scope(self) -> Literal["thread", "everywhere"]:
        """Where the rule holds."""
        return "everywhere" if self.thread_id is None else "thread"

    def holds(self, capability: str, thread_id: str | None, now: datetime) -> bool:
        """Tell whether the rule covers a step.

        >>> Rule(capability="mail").holds("mail", "7", datetime.now(UTC))
        True
        >>> Rule(capability="mail", thread_id="8").holds("mail", "7", datetime.now(UTC))
        False
        """
        if self.capability != capability:
            return False
        if self.thread_id is not None and self.thread_id != thread_id:
            return False
        return self.expires_at is None or now < _aware(self.expires_at)


async def add_rule(store: BaseStore, rule: Rule) -> Rule:
    """Keep a rule; one with the same id is replaced."""
    await store.aput(NAMESPACE, rule.id, rule.model_dump(mode="json"))
    return rule


async def list_rules(store: BaseStore, *, expired: bool = True) -> list[Rule]:
    """Return the rules, the oldest first.

    Args:
        store: Where they are kept.
        expired: Whether to name those too whose time is over.

    Raises:
        ValidationError: What is kept there is no rule.
    """
    rules: list[Rule] = []
    while True:
        page = await store.asearch(NAMESPACE, limit=_PAGE, offset=len(rules))
        for item in page:
            try:
                rules.append(Rule.model_validate(item.value))
            except PydanticValidationError as exc:
                raise ValidationError(
                    f"The standing rule {item.key!r} cannot be read: {exc.error_count()} fields"
                    " do not fit.",
                    fix=f"Delete it: revoke_rule(store, {item.key!r}).",
                ) from exc
        if len(page) < _PAGE:
            break
    now = datetime.now(UTC)
    kept = [r for r in rules if expired or r.expires_at is None or now < _aware(r.expires_at)]
    return sorted(kept, key=lambda rule: rule.created_at)


async def revoke_rule(store: BaseStore, rule_id: str) -> None:
    """Take a rule back; the next step that it covered is asked for again.

    Raises:
        ValidationError: There is no such rule.
    """
    if await store.aget(NAMESPACE, rule_id) is None:
        raise ValidationError(f"There is no standing rule {rule_id!r}.", fix=_FIX_UNKNOWN)
    await store.adelete(NAMESPACE, rule_id)


def matching_rule(
    rules: Iterable[Rule], capability: str, thread_id: str | None, now: datetime
) -> Rule | None:
    """Return the first rule that covers a step, or ``None``."""
    return next((rule for rule in rules if rule.holds(capability, thread_id, now)), None)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
