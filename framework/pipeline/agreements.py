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


class Consent(NamedTuple):
    """How far people have agreed to a step.

    Attributes:
        enough: Whether it may run.
        agreed: Who has agreed; ``None`` for somebody without a name.
        until: When that lapses, by the graph's clock; ``None`` for never.
        asked: When the question was put; ``None`` where it does not lapse.
        refused: Why the last answer did not count.
    """

    enough: bool
    agreed: tuple[str | None, ...] = ()
    until: float | None = None
    asked: float | None = None
    refused: str = ""


class Agreements:
    """The agreements of one turn.

    Args:
        journal: Durable records of the thread.
        turn: The turn's own part of their names.
        plan: The plan in force.
        owner: Tells a step from others of its key.
        lock: Keeps answers to parallel steps apart.
    """

    def __init__(
        self,
        journal: Journal,
        turn: str,
        plan: str,
        owner: Callable[[str], str],
        *,
        lock: asyncio.Lock,
    ) -> None:
        self._journal = journal
        self._turn = turn
        self._plan = plan
        self._requester = "requester"
        self._owner = owner
        self._lock = lock
        self._rows: dict[str, dict[str, Any]] = {}

    async def opened_by(self, caller: Caller, run: str = "") -> None:
        """Leave word who asked for the turn, unless that is known.

        Args:
            caller: Who asks.
            run: The run, in a graph of one's own, which keeps no turns.
        """
        self._requester = f"requester/{run}" if run else "requester"
        async with self._lock:
            if not await self._read(self._requester):
                await self._write(self._requester, {"user_id": caller.user_id})

    async def agree(self, digest: str, key: str, by: Caller | None = None, now: float = 0) -> None:
        """Leave word that a person, or a standing rule, agreed to what a digest names."""
        await self.vote(digest, key, _ANYBODY, by or Caller(), now)

    async def agreed(self, digest: str, key: str, others: Sequence[str]) -> bool:
        """Tell whether anybody agreed to this step; see :meth:`consent`."""
        return (await self.consent(digest, key, others)).enough

    async def vote(
        self, digest: str, key: str, policy: ApprovalPolicy, by: Caller, now: float
    ) -> str:
        """Keep one person's agreement to what a digest names.

        Args:
            digest: Names what was shown.
            key: The step.
            policy: Who has to agree.
            by: Who answers.
            now: When, by the graph's clock.

        Returns:
            Why the answer does not count, in words; empty when it does.
        """
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            entry = self._entry(record, own)
            votes = _holding(entry, policy, now)
            if now >= _end(entry, policy):
                refused = f"The question lapsed after {policy.expires_seconds:g} s; it is put anew."
                entry = {**entry, "votes": votes, "refused": refused, "asked": now}
            elif refused := await self._refusal(votes, policy, by):
                entry = {**entry, "refused": refused}
            else:
                vote = {"by": by.user_id, "role": by.role, "tenant": by.tenant, "at": now}
                votes = [*votes, {**vote, "authenticated": by.authenticated}]
                entry = {"votes": votes if policy.personal else votes[-1:]}
            await self._write(name, {**record, own: entry})
        return refused

    def _entry(self, record: dict[str, Any], own: str) -> dict[str, Any]:
        """Return what is kept of a step; what another plan's step used up counts no more."""
        entry: dict[str, Any] = record.get(own) or {}
        return entry if entry.get("used", self._plan) == self._plan else {}

    async def _refusal(self, votes: list[Any], policy: ApprovalPolicy, by: Caller) -> str:
        if not policy.personal:
            return ""
        if by.user_id is None:
            return (
                "It matters who agrees, and the run names nobody. Fix: have a server authenticate"
                " whoever answers, or name them: configurable={'user_id': '…'}."
            )
        if policy.not_requester and by.user_id == (await self._read(self._requester)).get(
            "user_id"
        ):
            return f"{by.user_id!r} asked for this and cannot agree to it; somebody else has to."
        if any(vote["by"] == by.user_id for vote in votes):
            return f"{by.user_id!r} has agreed already; somebody else has to agree, too."
        return ""

    async def consent(
        self,
        digest: str,
        key: str,
        others: Collection[str],
        policy: ApprovalPolicy = _ANYBODY,
        now: float = 0,
        *,
        anew: bool = True,
    ) -> Consent:
        """Tell whether people agreed to this step.

        An agreement given to another step counts when that step has left the plan undone: the same
        work goes by another name. It counts for one step: two that do the same were not agreed to.

        Args:
            digest: Names what is about to run.
            key: The step.
            others: Keys of the plan's steps.
            policy: Who has to agree.
            now: The time, by the graph's clock.
            anew: Whether a question that lapsed is put anew at once; where an answer to it may be on
                its way, :meth:`vote` does.
        """
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = before = await self._read(name)
            # What is asked for beside the plan, or by a visit, is new each time.
            if own not in record and plan_key(own) in others:
                free = (k for k, e in record.items() if k not in others and "used" not in e)
                if (old := next(free, None)) is not None:
                    # The step that had it has left the plan; it is this one's now.
                    record = {**{k: e for k, e in record.items() if k != old}, own: record[old]}
            entry = self._entry(record, own)
            votes = _holding(entry, policy, now)
            enough = len(votes) >= policy.approvers
            if policy.expires_seconds is not None and not enough:
                known = entry.get("votes") or []
                votes = votes if anew else known
                asked = entry.get("asked", now) if len(votes) == len(known) else now
                entry = {**entry, "votes": votes, "asked": asked}
                record = {**record, own: entry}
            if record != before:
                await self._write(name, record)
        until = None
        if policy.expires_seconds is not None and enough:
            until = sorted(v["at"] for v in votes)[-policy.approvers] + policy.expires_seconds
        return Consent(
            enough,
            tuple(vote["by"] for vote in votes),
            until,
            entry.get("asked") if policy.expires_seconds is not None else None,
            entry.get("refused", ""),
        )

    async def use(self, digest: str, key: str) -> None:
        """Leave word that the step which was agreed to is done: no other one may run on it."""
        name, own = f"agreed/{digest}", self._owner(key)
        async with self._lock:
            record = await self._read(name)
            if own in record and record[own].get("used") != self._plan:
                await self._write(name, {**record, own: {**record[own], "used": self._plan}})

    async def want_review(self, digest: str, problems: Sequence[str]) -> None:
        """Leave word that a person has to look at a plan before it runs."""
        await self._write(f"review/{digest}", {"problems": list(problems)})

    async def review_open(self, digest: str) -> bool:
        """Tell whether a person has to look at a plan and has not agreed to it."""
        wanted = await self._read(f"review/{digest}")
        return bool(wanted) and not await self.agreed(digest, "plan", ())

    async def _read(self, name: str) -> dict[str, Any]:
        if not self._journal.durable:
            return self._rows.get(name, {})
        # A step beside this one in a graph of one's own writes the same records.
        return await self._journal.read(f"{self._turn}/{name}")

    async def _write(self, name: str, record: dict[str, Any]) -> None:
        self._rows[name] = record
        await self._journal.write(f"{self._turn}/{name}", record)


def _holding(entry: dict[str, Any], policy: ApprovalPolicy, now: float) -> list[dict[str, Any]]:
    """Return the votes that have not lapsed."""
    last = policy.expires_seconds
    return [v for v in entry.get("votes") or () if last is None or now < v["at"] + last]


def _end(entry: dict[str, Any], policy: ApprovalPolicy) -> float:
    """Return when an open question lapses."""
    if policy.expires_seconds is None or entry.get("asked") is None:
        return math.inf
    return float(entry["asked"]) + policy.expires_seconds
