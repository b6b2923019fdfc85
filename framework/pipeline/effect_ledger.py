"""Ledger of effects and approvals of a turn, stored next to the checkpoints.

Each effect has a record. Its name consists of the turn, the capability, the effect key, and a
number that distinguishes equal requests. A planned step *claims* a record. Within one plan, each
step claims its own record, so that two equal steps have two effects. The steps of a later plan
claim the records of earlier plans again, in order, so that replanning repeats no effect. Approvals
are stored the same way, because a state update could forge them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp

from capgraph.approvals import UNKNOWN_OUTCOME
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import (
    CapgraphError,
    ErrorSeverity,
    LimitError,
    PersistenceError,
    PolicyError,
    ValidationError,
)
from capgraph.base.plan import plan_key
from capgraph.base.ports import ApprovalRequest, Attempt
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.pipeline.approval_records import ApprovalRecords, Permits
from capgraph.pipeline.journal import Journal
from capgraph.state.turn_view import TurnView
from capgraph.telemetry.audit import record_now, record_soon

_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def outcome_approvals(spec: CapabilitySpec, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the approver fields for a request to resolve an unknown outcome.

    Args:
        spec: Declarations of the capability.
        answer: Stored decision, which may contain the reason why the last answer was rejected.
    """
    policy = ApprovalPolicy.from_declaration(spec.requires_approval)
    if not policy.restricts_approvers:
        return {}
    required = {"needed": policy.approvers, "agreed": answer.get("agreed", [])}
    required["not_requester"] = policy.not_requester
    return required | ({"refused": answer["refused"]} if "refused" in answer else {})


class UnknownOutcome(GraphBubbleUp):
    """Signal that part of a step started in an earlier process and its outcome is unknown.

    Attributes:
        question: Request for a person's decision, or ``None`` if a person decided to skip the
            step.
    """

    def __init__(self, question: ApprovalRequest | None) -> None:
        super().__init__(question)
        self.question = question

    def __str__(self) -> str:
        return self.question.reason if self.question is not None else "passed over"


class Claim(NamedTuple):
    """Claim of a step on an effect record, which no other step can then use.

    Attributes:
        name: Name of the record.
        record: Content of the record. Empty for a new record.
        is_new: True if no step claimed the record before.
        is_own: True if the same step claimed the record before the run was resumed.
    """

    name: str
    record: Mapping[str, Any]
    is_new: bool
    is_own: bool = False


def compute_digest(content: Any) -> str:
    """Compute a short digest of plain data.

    >>> compute_digest({"a": 1}) == compute_digest({"a": 2})
    False
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def serialize_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a step's inputs to plain data."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.model_dump(mode="json") if isinstance(value, CapabilityContext) else value

    return {kind: plain(value) for kind, value in inputs.items()}


def effect_key(spec: CapabilitySpec, attempt: Attempt) -> str:
    """Compute the key that identifies equal effects of a capability.

    The key covers the parameters listed in ``effect_key``, or all parameters and inputs if the
    capability does not declare ``effect_key``.
    """
    if spec.effect_key is not None:
        return compute_digest({name: attempt.values.get(name) for name in spec.effect_key})
    return compute_digest([attempt.values, serialize_inputs(attempt.inputs)])


class EffectLedger:
    """Records of one turn's effects, which prevent that an effect happens twice.

    Args:
        journal: Durable records of the thread.
        view: Current state of the turn. Its effect entries apply if the journal is not durable.
        lock: Lock that serializes the claims of parallel steps.
        visit_id: ID of the node execution, if no plan identifies its steps.
        existing_claim: Claim by the process that dispatched the step, because only one process per turn
            makes claims.

    Attributes:
        approvals: Approvals of the turn.
        visit_id: ID of the node execution, if no plan identifies its steps.
        turn_key: Prefix of the turn's record names.
    """

    def __init__(
        self,
        journal: Journal,
        view: TurnView,
        lock: asyncio.Lock | None = None,
        *,
        visit_id: str = "",
        existing_claim: Claim | None = None,
        permits: Permits | None = None,
        needs_overseer: bool = False,
    ) -> None:
        self.journal = journal
        self._view = view
        self._existing_claim = existing_claim
        turn = view.turn_id or str(view.turn_number)
        safe = turn if _SAFE.fullmatch(turn) else compute_digest(turn)
        self.turn_key: str = "/".join(part for part in (journal.namespace, safe) if part)
        self.visit_id = visit_id
        # A later plan may have another step under the same key.
        self._waits_key = f"{self.turn_key}/waits/{visit_id or view.plan_id}"
        self._cache: dict[str, dict[str, Any]] = {}
        self._retry_waits: dict[str, Any] | None = None
        self._lock = lock or asyncio.Lock()
        self.approvals: ApprovalRecords = ApprovalRecords(
            journal,
            self.turn_key,
            visit_id or view.plan_id,
            self._find_step_owner,
            turn_caller=view.owner if view.has_turn else None,
            approval_scope=view.approval_scope,
            permits=permits,
            needs_overseer=needs_overseer,
            lock=self._lock,
        )

    @property
    def is_durable(self) -> bool:
        """True if the effect records survive the end of the process."""
        return self.journal.is_durable

    async def read_wait(self, key: str) -> dict[str, Any]:
        """Return the stored wait record of a step, or ``{}`` if the step is not waiting."""
        return await self._read(f"{self._waits_key}/{compute_digest(key)}")

    async def record_wait(self, key: str, record: dict[str, Any]) -> None:
        """Store when a step started to wait, and the condition that it is waiting for."""
        await self._write(f"{self._waits_key}/{compute_digest(key)}", record)

    # --- keys -----------------------------------------------------------------------------

    def idempotency_key(self, name: str) -> str:
        """Return the idempotency key of an effect, to send to the external system."""
        return f"{self.journal.thread_id or 'thread'}/{name}"

    def step_key(self, attempt: Attempt) -> str:
        """Return a stable idempotency key for a step without an effect."""
        return self.idempotency_key(
            f"{self.turn_key}/{attempt.capability}/{self._find_step_owner(attempt.key)}"
        )

    def _find_step_owner(self, key: str) -> str:
        return f"{self.visit_id}/{key}" if self.visit_id else key

    # --- effects --------------------------------------------------------------------------

    async def wait_until_saved(self) -> None:
        """Wait until the checkpoint that contains the current plan is saved.

        Raises:
            PersistenceError: The checkpoint was not saved.
        """
        await self.journal.wait_until_saved()

    async def raise_if_stopped(self, *, confirm: bool = False) -> None:
        """Raise an error if a user has stopped the run.

        Args:
            confirm: True to query the database, as required before an effect starts.

        Raises:
            StoppedError: A user stopped the run.
        """
        if self.is_durable:
            await self.journal.raise_if_stopped(self._view.user_ids, confirm=confirm)

    async def claim(
        self,
        spec: CapabilitySpec,
        attempt: Attempt,
        plan_id: str,
        claimed_records: Collection[str],
        claimed_steps: Collection[str] = (),
    ) -> Claim:
        """Claim the effect record of a step, and create the record if it does not exist.

        Args:
            spec: Declarations of the capability.
            attempt: Attempt with inputs and parameters.
            plan_id: ID of the plan or agent run to which the step belongs.
            claimed_records: Names of records that other steps of the plan have claimed.
            claimed_steps: Keys of those steps, if their results do not contain the record names.
        """
        if (existing := self._existing_claim) is not None:
            return existing._replace(record=await self._read(existing.name))
        base = f"{self.turn_key}/{spec.name}/{effect_key(spec, attempt)}"
        number, owner_key = 0, self._find_step_owner(attempt.key)
        async with self._lock:
            while True:
                number += 1
                name = f"{base}/{number}"
                record = await self._read(name)
                claims = record.get("claims") or {}
                claim_owner = claims.get(plan_id)
                claiming_steps = {plan_key(step) for step in claims.values()}
                if (
                    claim_owner is None
                    and name not in claimed_records
                    and claiming_steps.isdisjoint(claimed_steps)
                ):
                    fresh = {**record, "claims": {**claims, plan_id: owner_key}}
                    fresh.setdefault("status", "claimed")
                    await self._write(name, fresh)
                    return Claim(name, fresh, is_new=not record)
                if claim_owner == owner_key:
                    return Claim(name, record, is_new=False, is_own=True)

    def evict(self, name: str) -> None:
        """Remove a record from the cache after another process has written it."""
        self._cache.pop(name, None)

    def has_earlier_effect(
        self, spec: CapabilitySpec, plan_id: str, name: str, claimed_records: set[str]
    ) -> bool:
        """Return True if the capability had a different effect in an earlier plan of the turn.

        Args:
            spec: Declarations of the capability.
            plan_id: ID of the current plan.
            name: Name of the step's effect record.
            claimed_records: Names of records that other steps of the plan have claimed.
        """
        return any(
            entry.get("capability") == spec.name
            and entry.get("plan") != plan_id
            and other != name
            and other not in claimed_records
            for other, entry in self._view.effects.items()
        )

    async def record_nested_effect(self, key: str) -> None:
        """Record that an execution nested inside a step had an effect."""
        await self._write(f"{self._waits_key}/inside/{compute_digest(key)}", {"acted": True})

    async def has_nested_effect(self, key: str) -> bool:
        """Return True if an execution nested inside a step had an effect in any process."""
        return bool(await self._read(f"{self._waits_key}/inside/{compute_digest(key)}"))

    async def begin_effect(self, name: str) -> int:
        """Record the start of an effect, and return the effect's execution number.

        Raises:
            PersistenceError: The record cannot be stored, or another process holds the lease of the
                thread.
        """
        record = await self._read(name)
        await self.journal.assert_lease_held(query_database=True)
        run = int(record.get("run", 0)) + 1
        # Write the audit first: an effect must not start without an audit record.
        await record_now("effect", effect=name, status="begun", run=run)
        await self._write(name, {**record, "status": "begun", "run": run})
        await self.assert_lease_held()
        return run

    async def assert_lease_held(self) -> None:
        """Raise an error if this process no longer holds the thread's lease.

        Raises:
            PersistenceError: Another process holds the lease, for example because this process was
                suspended.
        """
        await self.journal.assert_lease_held()

    async def end_effect(self, name: str, status: str, **fields: Any) -> None:
        """Record that an effect ended as ``finished``, ``failed``, ``unknown``, or ``asking``.

        Raises:
            PersistenceError: The record cannot be stored. For a status other than ``finished``,
                also if another process holds the thread's lease, because that process may have
                started the effect again.
        """
        record, done = await self._read(name), status == "finished"
        if not done:
            await self.assert_lease_held()
        try:
            await self._write(name, {**record, "status": status, **fields}, allow_lost_lease=done)
        except (PersistenceError, TypeError, ValueError):
            if "result" not in fields:
                raise
            # The effect happened even if its result cannot be stored. A process without the lease
            # must not record that.
            await self.assert_lease_held()
            await self._write(name, {**record, "status": status, "lost": True})
        await record_soon("effect", effect=name, status=status)

    async def update_effect(self, name: str, **fields: Any) -> None:
        """Update fields of an effect's record without changing its status."""
        await self._write(name, {**await self._read(name), **fields})

    def stored_result(self, record: Mapping[str, Any]) -> list[Any]:
        """Return the stored result of a completed effect, in the form that ``finalize`` stored.

        Raises:
            ValidationError: The result could not be stored.
            PolicyError: A guardrail withheld the result.
        """
        if record.get("withheld"):
            raise PolicyError(
                "The result of the effect is not available because a guardrail withheld it.",
                fix="check the result in the external system.",
                severity=ErrorSeverity.CRITICAL,
            )
        if record.get("lost"):
            raise _create_lost_result_error("the effect")
        result = record.get("result")
        if result is not None:
            return list(result)
        contexts = self._view.contexts
        outputs = record.get("outputs") or {}
        return [
            {kind: contexts[kind][key]}
            for kind, key in outputs.items()
            if key in contexts.get(kind, {})
        ]

    async def run_once(
        self,
        spec: CapabilitySpec,
        attempt: Attempt,
        key: str,
        function: Callable[[], Any],
        *,
        effect: str | None,
        plan_keys: Collection[str],
        max_result_bytes: int,
    ) -> Any:
        """Run part of a step at most once, as an implementation of ``BaseCapability.once``.

        Args:
            spec: Declarations of the capability.
            attempt: Attempt of the step.
            key: Name of the part, unique within the step.
            function: Function to run.
            effect: Name of the step's effect record, or ``None`` if the step has no effect.
            plan_keys: Context keys of the plan's steps.
            max_result_bytes: Maximum size of the result.

        Raises:
            LimitError: The part finished, but its result is too large to store.
            UnknownOutcome: The part started in an earlier process and its outcome is unknown.
            ValidationError: The part finished, but its result could not be stored.
        """
        if not callable(function):
            raise ValidationError(
                f"Invalid function {function!r:.80} in once({key!r}, …): it is not callable.",
                fix="pass the function itself: await self.once('sent', send).",
            )
        name = f"{effect or await self._claim_once_prefix(spec, attempt, plan_keys)}/once/{compute_digest(key)}"
        record = await self._read(name)
        if record.get("status") == "finished":
            if record.get("lost"):
                raise _create_lost_result_error(f"part {key!r} of the step")
            return record.get("result")
        if record.get("status") == "begun":
            run = int(record["run"])
            answer = await self.read_outcome(name, run)
            if answer.get("decision") == "done":
                return answer.get("outputs")
            if answer.get("decision") == "skip":
                raise UnknownOutcome(None)
            if answer.get("decision") != "rerun":
                raise UnknownOutcome(
                    ApprovalRequest(
                        UNKNOWN_OUTCOME,
                        attempt.capability,
                        f"The process ended while part {key!r} of the step was running. Its effect"
                        " may have happened.",
                        run=run,
                        effect=name,
                        approvals=outcome_approvals(spec, answer),
                    )
                )
        await self.raise_if_stopped(confirm=True)
        await self.begin_effect(name)
        try:
            result = await maybe_await(function())
        except CapgraphError:
            await self.end_effect(name, "failed")
            raise
        except Exception as exc:
            unknown = isinstance(exc, (TimeoutError, ConnectionError))
            await self.end_effect(name, "begun" if unknown else "failed")
            raise
        if exceeds_bytes(result, max_result_bytes):
            await self.end_effect(name, "finished", lost=True)
            raise large_result_error(f"part {key!r} of the step", max_result_bytes)
        await self.end_effect(name, "finished", result=result)
        return result

    async def _claim_once_prefix(
        self, spec: CapabilitySpec, attempt: Attempt, plan_keys: Collection[str]
    ) -> str:
        """Claim a record name prefix for the ``once`` parts of a step without an effect.

        The prefix is claimed like an effect record, so that a later plan finds the parts even if
        the step has a different key.
        """
        if self.journal.is_remote:  # only the process of the turn makes claims
            return f"{self.turn_key}/{attempt.capability}/{self._find_step_owner(attempt.key)}"
        other_keys = [key for key in plan_keys if key != plan_key(attempt.key)]
        succeeded = {
            key for key in other_keys if (self._view.results.get(key) or {}).get("success")
        }
        return (await self.claim(spec, attempt, self._view.plan_id, (), succeeded)).name

    # --- decisions ----------------------------------------------------------------------

    async def hold_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Store a step's result that a person must approve before it is used."""
        await self._write(f"{self.turn_key}/held/{self._find_step_owner(key)}", dict(result))

    async def held_result(self, key: str) -> dict[str, Any]:
        """Return a step's result that is waiting for approval, or ``{}`` if there is none."""
        return await self._read(f"{self.turn_key}/held/{self._find_step_owner(key)}")

    async def record_outcome(self, effect: str, run: int, decision: Mapping[str, Any]) -> None:
        """Store a person's decision about an effect whose outcome is unknown.

        Args:
            effect: Name of the effect record.
            run: Number of the effect's execution.
            decision: Decision as plain data.
        """
        await self._write(self._create_decision_name(effect, run), dict(decision))

    async def read_outcome(self, effect: str, run: int) -> dict[str, Any]:
        """Return a person's decision about an effect's unknown outcome, or ``{}`` if there is none."""
        return await self._read(self._create_decision_name(effect, run))

    def _create_decision_name(self, effect: str, run: int) -> str:
        return f"{effect}/decided/{self.approvals.scope}.{run}"

    # --- waits ----------------------------------------------------------------------------

    async def earlier_failures(self, key: str, now: float) -> tuple[int, float | None]:
        """Return a step's failure count and the remaining delay before its next attempt.

        Args:
            key: Context key of the step.
            now: Current time on the graph's clock.
        """
        if not self.is_durable:
            return 0, None
        if self._retry_waits is None:
            async with self._lock:
                if self._retry_waits is None:
                    self._retry_waits = await self.journal.read(self._waits_key)
        entry = self._retry_waits.get(key)
        if entry is None:
            return 0, None
        # A clock that was set back must not extend the delay.
        return entry["failures"], min(max(0.0, entry["until"] - now), entry["delay"])

    async def record_failure(self, key: str, failures: int, delay: float, now: float) -> None:
        """Record a failed attempt and the time at which the next attempt may start.

        Args:
            key: Context key of the step.
            failures: Number of failed attempts so far.
            delay: Delay before the next attempt, in seconds.
            now: Current time on the graph's clock.
        """
        entry = {"failures": failures, "until": now + delay, "delay": delay}
        async with self._lock:
            self._retry_waits = {**(self._retry_waits or {}), key: entry}
            await self.journal.write(self._waits_key, self._retry_waits)

    # --- records --------------------------------------------------------------------------

    async def _read(self, name: str) -> dict[str, Any]:
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        record = await self.journal.read(name)
        if not record and name in self._view.effects:
            record = _create_record_from_state(self._view.effects[name])
        if record:
            self._cache[name] = record
        return record

    async def _write(
        self, name: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        await self.journal.write(name, record, allow_lost_lease=allow_lost_lease)
        self._cache[name] = record


def large_result_error(subject: str, max_bytes: int) -> LimitError:
    """Create the error for a result that is larger than ``limits.max_result_bytes``."""
    return LimitError(
        f"The result of {subject} is larger than {max_bytes:,} bytes.",
        fix='Return less data, declare large_result = "file", or raise limits.max_result_bytes.',
        facts={"limit": "max_result_bytes", "value": max_bytes},
    )


def _create_lost_result_error(subject: str) -> ValidationError:
    return ValidationError(
        f"The result of {subject} is not available: it could not be stored after the effect.",
        fix="check the external system. Change the capability to return less data, or plain data.",
    )


def _create_record_from_state(entry: Mapping[str, Any]) -> dict[str, Any]:
    claims = {str(entry.get("plan") or ""): entry.get("step")}
    return {"status": "finished", "outputs": entry.get("outputs") or {}, "claims": claims}


def encode_result(result: Any, stored: Sequence[CapabilityContext]) -> list[Any]:
    """Convert a capability's result to plain data that can be stored and normalized later."""
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    return [_to_plain(value) for value in [*values, *stored] if value is not None]


def _to_plain(value: Any) -> Any:
    if isinstance(value, CapabilityContext):
        return {value.CONTEXT_TYPE: value.model_dump(mode="json")}
    if isinstance(value, Mapping):
        return {
            name: item.model_dump(mode="json") if isinstance(item, CapabilityContext) else item
            for name, item in value.items()
        }
    return value
