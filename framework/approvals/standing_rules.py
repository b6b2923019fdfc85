"""Standing rules: what a person agreed to once and for all, as data in a LangGraph store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from langgraph.store.base import BaseStore
from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticValidationError

from capgraph.approvals.requests import STEP, restricts_approvers
from capgraph.base.errors import ValidationError
from capgraph.configs.logger import get_logger
from capgraph.state import TurnView

NAMESPACE = ("capgraph", "approval_rules")
_PATIENCE = 10.0
_PAGE = 1000
_FIX_UNKNOWN = "List the rules to see their ids."


class StandingRule(BaseModel):
    """One standing rule: a capability may run without a question.

    Attributes:
        id: Identifies the rule.
        capability: What may run.
        thread_id: The only thread for which it holds; ``None`` for every thread.
        user_id: The only person for whom it holds; ``None`` for everybody.
        expires_at: Until when it holds (with time zone); ``None`` for ever.
        created_at: When it was made.
        reason: Why, in the words of the person.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    capability: str = Field(min_length=1)
    thread_id: str | None = None
    user_id: str | None = None
    expires_at: datetime | None = None
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    reason: str = Field("", max_length=4000)

    @property
    def scope(self) -> Literal["thread", "everywhere"]:
        """Where the rule holds."""
        return "everywhere" if self.thread_id is None else "thread"

    def covers(
        self,
        capability: str,
        thread_id: str | None,
        now: datetime,
        user_id: str | None = None,
    ) -> bool:
        """Tell whether the rule covers a step.

        >>> StandingRule(capability="mail").covers("mail", "7", datetime.now(UTC))
        True
        >>> StandingRule(capability="mail", thread_id="8").covers("mail", "7", datetime.now(UTC))
        False
        """
        if self.capability != capability:
            return False
        if self.thread_id is not None and self.thread_id != thread_id:
            return False
        if self.user_id is not None and self.user_id != user_id:
            return False
        return self.expires_at is None or now < _aware(self.expires_at)


async def add_rule(store: BaseStore, rule: StandingRule) -> StandingRule:
    """Keep a rule; one with the same id is replaced."""
    await store.aput(NAMESPACE, rule.id, rule.model_dump(mode="json"))
    return rule


async def list_rules(store: BaseStore, *, include_expired: bool = True) -> list[StandingRule]:
    """Return the rules, the oldest first.

    Args:
        store: Where they are kept.
        include_expired: Whether to name those too whose time is over.

    Raises:
        ValidationError: What is kept there is no rule.
    """
    rules = await _read(store)
    now = datetime.now(UTC)
    return [
        r for r in rules if include_expired or r.expires_at is None or now < _aware(r.expires_at)
    ]


async def revoke_rule(store: BaseStore, rule_id: str) -> None:
    """Take a rule back; the next step that it covered is asked for again.

    Raises:
        ValidationError: There is no such rule.
    """
    if await store.aget(NAMESPACE, rule_id) is None:
        raise ValidationError(f"There is no standing rule {rule_id!r}.", fix=_FIX_UNKNOWN)
    await store.adelete(NAMESPACE, rule_id)


@dataclass(frozen=True, slots=True)
class ActiveRules:
    """The rules that hold now, and what could not be read of them.

    Attributes:
        rules: The rules, the oldest first.
        problem: Why some or all are missing; a person is asked then, which is the safe side.
    """

    rules: tuple[StandingRule, ...] = ()
    problem: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def find_rule(self, pending: Mapping[str, Any], view: TurnView) -> StandingRule | None:
        """Return the first rule that covers what is asked about a step, or ``None``.

        A rule stands for the agreement that a capability wants; it answers no policy, and where it
        matters who agrees it stands for nobody.
        """
        if pending.get("kind") != STEP or pending.get("reason") or restricts_approvers(pending):
            return None
        where = (pending["capability"], view.thread_id, self.now, view.caller.user_id)
        return next((rule for rule in self.rules if rule.covers(*where)), None)


async def load_active_rules(store: BaseStore | None, now: float) -> ActiveRules:
    """Read the rules that hold, leaving out what cannot be read.

    Args:
        store: Where they are kept; ``None`` for none.
        now: The time, in seconds since the epoch.
    """
    moment = datetime.fromtimestamp(now, UTC)
    if store is None:
        return ActiveRules(now=moment)
    broken: list[str] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            rules = await _read(store, broken)
    except Exception as exc:  # whatever a store raises: without it nothing is agreed to
        problem = f"Standing rules cannot be read: {exc or 'the store does not answer'}"
        get_logger("framework", "approval").warning("%s", problem)
        return ActiveRules(problem=problem, now=moment)
    problem = f"Standing rules cannot be read: {', '.join(broken)}." if broken else ""
    return ActiveRules(tuple(rules), problem, moment)


async def _read(store: BaseStore, broken: list[str] | None = None) -> list[StandingRule]:
    rules: list[StandingRule] = []
    offset = 0
    while True:
        page = await store.asearch(NAMESPACE, limit=_PAGE, offset=offset)
        offset += len(page)
        for item in page:
            try:
                rules.append(StandingRule.model_validate(item.value))
            except PydanticValidationError as exc:
                if broken is None:
                    raise ValidationError(
                        f"The standing rule {item.key!r} cannot be read: {exc.error_count()}"
                        " fields do not fit.",
                        fix=f"Delete it: revoke_rule(store, {item.key!r}).",
                    ) from exc
                broken.append(item.key)
        if len(page) < _PAGE:
            return sorted(rules, key=lambda rule: rule.created_at)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
