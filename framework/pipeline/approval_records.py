"""What people agreed to in a turn: records beside the checkpoints, which no state update can make.

One record stands for one thing that was shown. It keeps every answer with whoever gave it and when,
so that several people can agree one after the other, an agreement lapses, and it serves one step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.plan import plan_key
from capgraph.base.ports import Caller
from capgraph.pipeline.journal import Journal

_ANYBODY = ApprovalPolicy()


class ApprovalStatus(NamedTuple):
    """How far people have agreed to a step.

    Attributes:
        is_approved: Whether it may run.
        approvers: Who has agreed; ``None`` for somebody without a name.
        expires_at: When that lapses, by the graph's clock; ``None`` for never.
        asked_at: When the question was put; ``None`` where it does not lapse.
        refusal: Why the last answer did not count.
    """

    is_approved: bool
    approvers: tuple[str | None, ...] = ()
    expires_at: float | None = None
    asked_at: float | None = None
    refusal: str = ""


class ApprovalRecords:
    """The agreements of one turn.

    Args:
        journal: Durable records of the thread.
        turn_key: The turn's own part of their names.
        plan_id: The plan in force.
        owner_of: Tells a step from others of its key.
        lock: Keeps answers to parallel steps apart.
    """

    def __init__(
        self,
        journal: Journal,
        turn_key: str,
        plan_id: str,
        owner_of: Callable[[str], str],
        *,
        lock: asyncio.Lock,
    ) -> None:
        self._journal = journal
        self._turn = turn_key
        self._plan = plan_id
        self._requester = "requester"
        self._owner = owner_of
        self._lock = lock
        self._rows: dict[str, dict[str, Any]] = {}

    async def record_requester(self, caller: Caller, run_id: str = "") -> None:
        """Leave word who asked for the turn, unless that is known.

        Args:
            caller: Who asks.
            run_id: The run, in a graph of one's own, which keeps no turns.
        """
        self._requester = f"requester/{run_id}" if run_id else "requester"
        async with self._lock:
            if not await self._read(self._requester):
                await self._write(self._requester, {"user_id": caller.user_id})

    async def approve(
        self, digest: str, key: str, approver: Caller | None = None, now: float = 0
    ) -> None:
        """Leave word that a person, or a standing rule, agreed to what a digest names."""
        await self.record_approval(digest, key, _ANYBODY, approver or Caller(), now)

    async def is_approved(self, digest: str, key: str, plan_keys: Sequence[str]) -> bool:
        """Tell whether anybody agreed to this step; see :meth:`consent`."""
        return (await self.status(digest, key, plan_keys)).is_approved

    async def record_approval(
        self, digest: str, key: str, policy: ApprovalPolicy, approver: Caller, now: float
    ) -> str:
        """Keep one person's agreement to what a digest names.

        Args:
            digest: Names what was shown.
            key: The step.
            policy: Who has to agree.
            approver: Who answers.
            now: When, by the graph's clock.

        Returns:
            Why the answer does not count, in words; empty when it does.
        """
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            entry = self._step_entry(record, own)
            votes = _valid_votes(entry, policy, now)
            if now >= _question_expiry(entry, policy):
                refused = f"The question lapsed after {policy.expires_seconds:g} s; it is put anew."
                entry = {**entry, "votes": votes, "refused": refused, "asked": now}
            elif refused := await self._refusal(votes, policy, approver):
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
            await self._write(name, {**record, own: entry})
        return refused

    def _step_entry(self, record: dict[str, Any], owner: str) -> dict[str, Any]:
        """Return what is kept of a step; what another plan's step used up counts no more."""
        entry: dict[str, Any] = record.get(owner) or {}
        return entry if entry.get("used", self._plan) == self._plan else {}

    async def _refusal(self, votes: list[Any], policy: ApprovalPolicy, approver: Caller) -> str:
        if not policy.restricts_approvers:
            return ""
        if approver.user_id is None:
            return (
                "It matters who agrees, and the run names nobody. Fix: have a server authenticate"
                " whoever answers, or name them: configurable={'user_id': '…'}."
            )
        if policy.not_requester and approver.user_id == (await self._read(self._requester)).get(
            "user_id"
        ):
            return (
                f"{approver.user_id!r} asked for this and cannot agree to it; somebody else has to."
            )
        if any(vote["by"] == approver.user_id for vote in votes):
            return f"{approver.user_id!r} has agreed already; somebody else has to agree, too."
        return ""

    async def status(
        self,
        digest: str,
        key: str,
        plan_keys: Collection[str],
        policy: ApprovalPolicy = _ANYBODY,
        now: float = 0,
        *,
        renew_expired: bool = True,
    ) -> ApprovalStatus:
        """Tell whether people agreed to this step.

        An agreement given to another step counts when that step has left the plan undone: the same
        work goes by another name. It counts for one step: two that do the same were not agreed to.

        Args:
            digest: Names what is about to run.
            key: The step.
            plan_keys: Keys of the plan's steps.
            policy: Who has to agree.
            now: The time, by the graph's clock.
            renew_expired: Whether a question that lapsed is put anew at once; where an answer to it may be on
                its way, :meth:`vote` does.
        """
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = before = await self._read(name)
            # What is asked for beside the plan, or by a visit, is new each time.
            if own not in record and plan_key(own) in plan_keys:
                free = (k for k, e in record.items() if k not in plan_keys and "used" not in e)
                if (old := next(free, None)) is not None:
                    # The step that had it has left the plan; it is this one's now.
                    record = {**{k: e for k, e in record.items() if k != old}, own: record[old]}
            entry = self._step_entry(record, own)
            votes = _valid_votes(entry, policy, now)
            enough = len(votes) >= policy.approvers
            if policy.expires_seconds is not None and not enough:
                known = entry.get("votes") or []
                votes = votes if renew_expired else known
                asked = entry.get("asked", now) if len(votes) == len(known) else now
                entry = {**entry, "votes": votes, "asked": asked}
                record = {**record, own: entry}
            if record != before:
                await self._write(name, record)
        until = None
        if policy.expires_seconds is not None and enough:
            until = sorted(v["at"] for v in votes)[-policy.approvers] + policy.expires_seconds
        return ApprovalStatus(
            enough,
            tuple(vote["by"] for vote in votes),
            until,
            entry.get("asked") if policy.expires_seconds is not None else None,
            entry.get("refused", ""),
        )

    async def mark_used(self, digest: str, key: str) -> None:
        """Leave word that the step which was agreed to is done: no other one may run on it."""
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            if own in record and record[own].get("used") != self._plan:
                await self._write(name, {**record, own: {**record[own], "used": self._plan}})

    async def request_review(self, digest: str, problems: Sequence[str]) -> None:
        """Leave word that a person has to look at a plan before it runs."""
        await self._write(f"review/{digest}", {"problems": list(problems)})

    async def is_review_open(self, digest: str) -> bool:
        """Tell whether a person has to look at a plan and has not agreed to it."""
        wanted = await self._read(f"review/{digest}")
        return bool(wanted) and not await self.is_approved(digest, "plan", ())

    async def _read(self, name: str) -> dict[str, Any]:
        if not self._journal.is_durable:
            return self._rows.get(name, {})
        # A step beside this one in a graph of one's own writes the same records.
        return await self._journal.read(f"{self._turn}/{name}")

    async def _write(self, name: str, record: dict[str, Any]) -> None:
        self._rows[name] = record
        await self._journal.write(f"{self._turn}/{name}", record)


def _valid_votes(entry: dict[str, Any], policy: ApprovalPolicy, now: float) -> list[dict[str, Any]]:
    """Return the votes that have not lapsed."""
    last = policy.expires_seconds
    return [v for v in entry.get("votes") or () if last is None or now < v["at"] + last]


def _question_expiry(entry: dict[str, Any], policy: ApprovalPolicy) -> float:
    """Return when an open question lapses."""
    if policy.expires_seconds is None or entry.get("asked") is None:
        return math.inf
    return float(entry["asked"]) + policy.expires_seconds
