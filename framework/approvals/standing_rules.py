"""Standing rules: stored approvals that also apply to later steps."""

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
_TIMEOUT_SECONDS = 10.0
_PAGE_SIZE = 1000
_FIX_UNKNOWN = "Use the ID of an existing rule. 'capgraph approvals list' shows them."


class StandingRule(BaseModel):
    """Stored approval that lets a capability run without a new approval request.

    Attributes:
        id: ID of the rule.
        capability: Name of the capability.
        thread_id: Thread to which the rule applies. None means all threads.
        user_id: User to whom the rule applies. None means all users.
        expires_at: Expiry time with time zone. None means that the rule does not expire.
        created_at: Creation time.
        reason: Reason that the approver gave.
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
        """Scope of the rule: ``thread`` or ``everywhere``."""
        return "everywhere" if self.thread_id is None else "thread"

    def covers(
        self, capability: str, thread_id: str | None, now: datetime, user_id: str | None = None
    ) -> bool:
        """Return True if the rule approves a step.

        Args:
            capability: Name of the step's capability.
            thread_id: ID of the thread.
            now: Current time.
            user_id: ID of the caller.

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
        return self.expires_at is None or now < _add_timezone(self.expires_at)


async def add_rule(store: BaseStore, rule: StandingRule) -> StandingRule:
    """Store a standing approval rule, replacing any rule with the same ID."""
    await store.aput(NAMESPACE, rule.id, rule.model_dump(mode="json"))
    return rule


async def list_rules(store: BaseStore, *, include_expired: bool = True) -> list[StandingRule]:
    """Return all standing approval rules, oldest first.

    Args:
        store: LangGraph store that contains the rules.
        include_expired: True to include expired rules.

    Raises:
        ValidationError: The store contains a rule that cannot be parsed.
    """
    rules = await _read_rules(store)
    now = datetime.now(UTC)
    return [
        r
        for r in rules
        if include_expired or r.expires_at is None or now < _add_timezone(r.expires_at)
    ]


async def revoke_rule(store: BaseStore, rule_id: str) -> None:
    """Delete a standing approval rule, so that the steps it covered require approval again.

    Raises:
        ValidationError: The rule does not exist.
    """
    if await store.aget(NAMESPACE, rule_id) is None:
        raise ValidationError(f"The standing rule {rule_id!r} does not exist.", fix=_FIX_UNKNOWN)
    await store.adelete(NAMESPACE, rule_id)


@dataclass(frozen=True, slots=True)
class ActiveRules:
    """Standing approval rules that have not expired.

    Attributes:
        rules: Active rules, oldest first.
        problem: Reason why some rules could not be read, or an empty string. The steps that
            these rules cover require approval.
        now: Time at which the rules were read.
    """

    rules: tuple[StandingRule, ...] = ()
    problem: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def find_rule(self, pending: Mapping[str, Any], view: TurnView) -> StandingRule | None:
        """Return the first standing rule that approves a pending request, or None.

        A rule can replace an approval that a capability declares. It cannot replace an approval
        that a policy requires or that only certain people may give.
        """
        if pending.get("kind") != STEP or pending.get("reason") or restricts_approvers(pending):
            return None
        arguments = (pending["capability"], view.thread_id, self.now, view.caller.user_id)
        return next((rule for rule in self.rules if rule.covers(*arguments)), None)


async def load_active_rules(store: BaseStore | None, now: float) -> ActiveRules:
    """Load the standing approval rules that have not expired, skipping unreadable rules.

    Args:
        store: LangGraph store that contains the rules, or None.
        now: Current time in seconds since the epoch.
    """
    moment = datetime.fromtimestamp(now, UTC)
    if store is None:
        return ActiveRules(now=moment)
    unreadable: list[str] = []
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            rules = await _read_rules(store, unreadable)
    except Exception as exc:  # a store may raise anything; without rules, approval is required
        problem = f"Standing rules cannot be read: {exc or 'the store does not respond'}"
        get_logger("framework", "approval").warning("%s", problem)
        return ActiveRules(problem=problem, now=moment)
    problem = f"Standing rules cannot be read: {', '.join(unreadable)}." if unreadable else ""
    return ActiveRules(tuple(rules), problem, moment)


async def _read_rules(store: BaseStore, unreadable: list[str] | None = None) -> list[StandingRule]:
    rules: list[StandingRule] = []
    offset = 0
    while True:
        page = await store.asearch(NAMESPACE, limit=_PAGE_SIZE, offset=offset)
        offset += len(page)
        for item in page:
            try:
                rules.append(StandingRule.model_validate(item.value))
            except PydanticValidationError as exc:
                if unreadable is None:
                    raise ValidationError(
                        f"Cannot read the standing rule {item.key!r}: {exc.error_count()} of its "
                        "fields are invalid.",
                        fix=f"Delete it: revoke_rule(store, {item.key!r}).",
                    ) from exc
                unreadable.append(item.key)
        if len(page) < _PAGE_SIZE:
            return sorted(rules, key=lambda rule: rule.created_at)


def _add_timezone(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
