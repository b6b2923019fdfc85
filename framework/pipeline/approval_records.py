"""Approvals of a turn, stored next to its checkpoints where no state update can forge them.

A record belongs to one preview that was shown. It stores each approval with the approver and the
time, so that several people can approve in turn, an approval can expire, and it applies to one
step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.plan import plan_key
from capgraph.base.ports import Caller, normalize_user_id
from capgraph.pipeline.journal import Journal

_ANYBODY = ApprovalPolicy()
Permits = Callable[[str, Caller], Awaitable[bool]]
"""Returns whether the current role of a person permits a capability."""


class ApprovalStatus(NamedTuple):
    """Approval status of a step.

    Attributes:
        is_approved: True if the step may run.
        approvers: User IDs of the approvers, or ``None`` for an anonymous approver.
        expires_at: Expiry time of the approval according to the graph's clock, or ``None`` if
            it does not expire.
        asked_at: Time of the approval request, or ``None`` if the request does not expire.
        refusal: Reason why the last answer was rejected.
    """

    is_approved: bool
    approvers: tuple[str | None, ...] = ()
    expires_at: float | None = None
    asked_at: float | None = None
    refusal: str = ""


class ApprovalRecords:
    """Approvals of one turn, stored in the journal.

    Args:
        journal: Durable records of the thread.
        turn_key: Prefix of the turn's record names.
        plan_id: ID of the current plan.
        owner_of: Function that returns the owner of an approval for a step's context key.
        turn_caller: Caller of the turn, or ``None`` in a custom graph, which has no turns.
        approval_scope: ID to which the turn's approvals belong. A replay of the turn has another ID.
        permits: Predicate whether a person's current role permits a capability, or ``None`` without
            permissions.
        needs_overseer: True if the turn has no known user, so that ``permits`` accepts overseers only.
        lock: Lock that serializes the answers to parallel steps.
    """

    def __init__(
        self,
        journal: Journal,
        turn_key: str,
        plan_id: str,
        owner_of: Callable[[str], str],
        *,
        turn_caller: Caller | None = None,
        approval_scope: str = "",
        permits: Permits | None = None,
        needs_overseer: bool = False,
        lock: asyncio.Lock,
    ) -> None:
        self._journal = journal
        self._turn = turn_key
        self._plan = plan_id
        self._requester = "requester"
        self._owner = owner_of
        self._turn_caller, self._permits = turn_caller, permits
        self.needs_overseer: bool = needs_overseer
        self._lock = lock
        self._rows: dict[str, dict[str, Any]] = {}
        # A copy of the thread and a replay of the turn read the same records, which are no approvals
        # there.
        text = "\0".join(filter(None, (journal.thread_id, approval_scope)))
        self.scope: str = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    async def record_requester(self, caller: Caller, run_id: str = "") -> None:
        """Record the user who started the turn, unless a user is already recorded.

        Args:
            caller: Caller of the turn.
            run_id: ID of the run in a custom graph, which has no turns.
        """
        self._requester = f"requester/{run_id}" if run_id else "requester"
        async with self._lock:
            if not await self._read(self._requester):
                await self._write(self._requester, {"user_id": caller.user_id})

    def policy_for(self, policy: ApprovalPolicy) -> ApprovalPolicy:
        """Return the approval policy for this turn.

        The policy also excludes the requester if the turn has no known user.
        """
        return replace(policy, not_requester=True) if self.needs_overseer else policy

    async def approve(
        self, digest: str, key: str, approver: Caller | None = None, now: float = 0
    ) -> None:
        """Record that a person or a standing rule approved a step.

        Args:
            digest: Digest of the approval preview.
            key: Context key of the step.
            approver: Person who approved, or ``None`` for a standing rule.
            now: Current time on the graph's clock.
        """
        await self.record_approval(digest, key, _ANYBODY, approver or Caller(), now)

    async def is_approved(self, digest: str, key: str, plan_keys: Sequence[str]) -> bool:
        """Return True if a step is approved (see :meth:`status` for the arguments)."""
        return (await self.status(digest, key, plan_keys)).is_approved

    async def record_approval(
        self,
        digest: str,
        key: str,
        policy: ApprovalPolicy,
        approver: Caller,
        now: float,
        *,
        capability: str = "",
        is_edited: bool = False,
    ) -> str:
        """Record one person's approval of a step.

        Args:
            digest: Digest of the approval preview.
            key: Context key of the step.
            policy: Approval policy, which names the required approvers.
            approver: Person who answers.
            now: Current time on the graph's clock.
            capability: Name of the step's capability, which the approver's role must permit.
            is_edited: True if the person changed the step. Under a policy with ``not_requester``, a
                different person must approve it as well.

        Returns:
            The reason why the approval is rejected, or an empty string if it is accepted.
        """
        policy = self.policy_for(policy)
        name, owner = f"agreed/{self.scope}.{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            entry = self._find_step_entry(record, owner)
            votes = _find_valid_votes(entry, policy, now)
            if now >= _compute_question_expiry(entry, policy):
                refused = f"The request expired after {policy.expires_seconds:g} s and was renewed."
                entry = {**entry, "votes": votes, "refused": refused, "asked": now}
            elif refused := await self._find_refusal(digest, votes, policy, approver, capability):
                entry = {**entry, "refused": refused}
            else:
                vote = {
                    "by": approver.user_id,
                    "role": approver.role,
                    "tenant": approver.tenant,
                    "at": now,
                }
                votes = [*votes, {**vote, "authenticated": approver.authenticated}]
                entry = {"votes": votes if policy.restricts_approvers else votes[-1:]}
                if is_edited:
                    # Not bound to the thread: an editor does not approve alone in a fork either.
                    editors = (await self._read(f"edited/{digest}")).get("by", [])
                    await self._write(f"edited/{digest}", {"by": [*editors, approver.user_id]})
            await self._write(name, {**record, owner: entry})
        return refused

    def _find_step_entry(self, record: dict[str, Any], owner: str) -> dict[str, Any]:
        """Return a step's approval entry, unless a step of a different plan used the approval."""
        entry: dict[str, Any] = record.get(owner) or {}
        return entry if entry.get("used", self._plan) == self._plan else {}

    async def _find_refusal(
        self,
        digest: str,
        votes: list[Any],
        policy: ApprovalPolicy,
        approver: Caller,
        capability: str,
    ) -> str:
        if not policy.restricts_approvers:
            return ""
        if approver.user_id is None:
            return (
                "The approver is unknown: the approval policy requires a user. Fix: authenticate"
                " users on the server, or pass configurable={'user_id': '…'}."
            )
        person = normalize_user_id(approver.user_id)
        if policy.not_requester:
            requester = (await self._read(self._requester)).get("user_id")
            turn_caller = self._turn_caller.user_id if self._turn_caller is not None else None
            if person in _normalize_user_ids([requester, turn_caller]):
                return (
                    f"{approver.user_id!r} made the request and cannot approve it; another user"
                    " must."
                )
        if not await self._is_permitted(capability, approver):
            subject = repr(capability or "plan")
            reason = f"does not permit {subject}"
            if self.needs_overseer:
                reason = f"may not approve {subject} in a turn without a known user"
            return f"The role of {approver.user_id!r} {reason}."
        if person in _normalize_user_ids([vote["by"] for vote in votes]):
            return f"{approver.user_id!r} has already approved; another user must approve too."
        return ""

    async def _is_permitted(self, capability: str, person: Caller) -> bool:
        return self._permits is None or await self._permits(capability, person)

    async def status(
        self,
        digest: str,
        key: str,
        plan_keys: Collection[str],
        policy: ApprovalPolicy = _ANYBODY,
        now: float = 0,
        *,
        capability: str = "",
        renew_expired: bool = True,
    ) -> ApprovalStatus:
        """Return the approval status of a step.

        The approval of another step with the same digest applies if that step is no longer in the
        plan, because a new plan may use a new key for the same work. Each approval applies to only
        one step.

        Args:
            digest: Digest of the approval preview.
            key: Context key of the step.
            plan_keys: Context keys of the plan's steps.
            policy: Approval policy, which names the required approvers.
            now: Current time on the graph's clock.
            capability: Name of the step's capability. Approvals of people whose current role does
                not permit the capability are ignored.
            renew_expired: True to renew an expired request immediately. Pass False if an answer may
                be in transit, which :meth:`record_approval` then renews.
        """
        policy = self.policy_for(policy)
        name, owner = f"agreed/{self.scope}.{digest}", self._owner(key)
        async with self._lock:
            record = before = await self._read(name)
            # A request outside the plan is new each time.
            if owner not in record and plan_key(owner) in plan_keys:
                unused_keys = (
                    k for k, e in record.items() if k not in plan_keys and "used" not in e
                )
                if (old := next(unused_keys, None)) is not None:
                    # The approved step is no longer in the plan, so this step inherits its approval.
                    record = {**{k: e for k, e in record.items() if k != old}, owner: record[old]}
            entry = self._find_step_entry(record, owner)
            votes = _find_valid_votes(entry, policy, now)
            if policy.restricts_approvers:
                votes = [
                    v for v in votes if await self._is_permitted(capability, _restore_voter(v))
                ]
            enough = len(votes) >= policy.approvers
            if enough and policy.not_requester:
                editors = _normalize_user_ids((await self._read(f"edited/{digest}")).get("by", ()))
                if not _normalize_user_ids([vote["by"] for vote in votes]) - editors:
                    enough = False
                    refused = "Only people who edited the step approved it; another user must."
                    entry = {**entry, "refused": refused}
            if policy.expires_seconds is not None and not enough:
                known_votes = entry.get("votes") or []
                votes = votes if renew_expired else known_votes
                asked_at = entry.get("asked", now) if len(votes) == len(known_votes) else now
                entry = {**entry, "votes": votes, "asked": asked_at}
                record = {**record, owner: entry}
            if record != before:
                await self._write(name, record)
        expires_at = None
        if policy.expires_seconds is not None and enough:
            expires_at = sorted(v["at"] for v in votes)[-policy.approvers] + policy.expires_seconds
        return ApprovalStatus(
            enough,
            tuple(vote["by"] for vote in votes),
            expires_at,
            entry.get("asked") if policy.expires_seconds is not None else None,
            entry.get("refused", ""),
        )

    async def mark_used(self, digest: str, key: str) -> None:
        """Record that an approved step has finished, so that no other step can use its approval."""
        name, owner = f"agreed/{self.scope}.{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            if owner in record and record[owner].get("used") != self._plan:
                await self._write(name, {**record, owner: {**record[owner], "used": self._plan}})

    async def request_review(self, digest: str, problems: Sequence[str]) -> None:
        """Record that a person must review a plan before it runs."""
        await self._write(f"review/{digest}", {"problems": list(problems)})

    async def is_review_open(self, digest: str) -> bool:
        """Return True if a plan requires a person's review and has not been approved yet."""
        review = await self._read(f"review/{digest}")
        return bool(review) and not await self.is_approved(digest, "plan", ())

    async def _read(self, name: str) -> dict[str, Any]:
        if not self._journal.is_durable:
            return self._rows.get(name, {})
        # A parallel step in a custom graph writes the same records.
        return await self._journal.read(f"{self._turn}/{name}")

    async def _write(self, name: str, record: dict[str, Any]) -> None:
        self._rows[name] = record
        await self._journal.write(f"{self._turn}/{name}", record)


def _normalize_user_ids(user_ids: Collection[str | None]) -> set[str]:
    return {normalize_user_id(user_id) for user_id in user_ids if user_id is not None}


def _restore_voter(vote: Mapping[str, Any]) -> Caller:
    return Caller(
        vote["by"], vote["role"], vote["tenant"], authenticated=bool(vote["authenticated"])
    )


def _find_valid_votes(
    entry: dict[str, Any], policy: ApprovalPolicy, now: float
) -> list[dict[str, Any]]:
    """Return a step's approval votes that have not expired."""
    last = policy.expires_seconds
    return [v for v in entry.get("votes") or () if last is None or now < v["at"] + last]


def _compute_question_expiry(entry: dict[str, Any], policy: ApprovalPolicy) -> float:
    """Return the expiry time of an open approval request, or infinity if it never expires."""
    if policy.expires_seconds is None or entry.get("asked") is None:
        return math.inf
    return float(entry["asked"]) + policy.expires_seconds
