"""What was done to the world in a turn, and what a person agreed to: durable, beside the state.

Every effect has a record under a name of its own: turn, capability, effect key, and a number that
counts equal requests. A step of a plan *claims* a record. Within one plan every step claims one of
its own, so that doing something twice is doing it twice; a later plan of the same turn claims the
records of earlier ones again, in their order, so that nothing is repeated because it was planned
anew. Agreements are records too: what is only in the state could be forged by an update of it.
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
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import (
    CapgraphError,
    ErrorSeverity,
    PersistenceError,
    PolicyError,
    ValidationError,
)
from capgraph.base.plan import plan_key
from capgraph.base.ports import ApprovalRequest, Attempt
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.async_calls import maybe_await
from capgraph.pipeline.approval_records import ApprovalRecords
from capgraph.pipeline.journal import Journal
from capgraph.state.turn_view import TurnView
from capgraph.telemetry.audit import record_now, record_soon

_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class UnknownOutcome(GraphBubbleUp):
    """A part of a step began and nobody knows how it ended.

    Attributes:
        question: What a person is asked; ``None`` when one decided to pass the step over.
    """

    def __init__(self, question: ApprovalRequest | None) -> None:
        super().__init__(question)
        self.question = question

    def __str__(self) -> str:
        return self.question.reason if self.question is not None else "passed over"


class Claim(NamedTuple):
    """The record that a step stands for.

    Attributes:
        name: Name of the record.
        record: What it says; empty for a new one.
        is_new: Whether nobody claimed it before.
        is_own: Whether this very step claimed it before: the run was resumed.
    """

    name: str
    record: Mapping[str, Any]
    is_new: bool
    is_own: bool = False


def compute_digest(content: Any) -> str:
    """Return a short name for plain data.

    >>> compute_digest({"a": 1}) == compute_digest({"a": 2})
    False
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def serialize_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs as plain data."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.model_dump(mode="json") if isinstance(value, CapabilityContext) else value

    return {kind: plain(value) for kind, value in inputs.items()}


def effect_key(spec: CapabilitySpec, attempt: Attempt) -> str:
    """Return what makes an effect the same one.

    These are the parameters that the author names, else all parameters and the inputs' values.
    """
    if spec.effect_key is not None:
        return compute_digest({name: attempt.values.get(name) for name in spec.effect_key})
    return compute_digest([attempt.values, serialize_inputs(attempt.inputs)])


class EffectLedger:
    """The records of one turn.

    Args:
        journal: Durable records of the thread.
        view: The state; what it holds of effects counts where nothing is durable.
        lock: Keeps claims of parallel steps apart.
        visit_id: Tells this visit of a node from others, where no plan tells its steps apart.
        existing_claim: What whoever sent the step here claimed for it: only one process claims in a turn.

    Attributes:
        approvals: What people agreed to.
        visit_id: As given.
        turn_key: What the names of its effects begin with.
    """

    def __init__(
        self,
        journal: Journal,
        view: TurnView,
        lock: asyncio.Lock | None = None,
        *,
        visit_id: str = "",
        existing_claim: Claim | None = None,
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
            self._step_owner,
            lock=self._lock,
        )

    @property
    def is_durable(self) -> bool:
        """Whether records outlive the process."""
        return self.journal.is_durable

    async def read_wait(self, key: str) -> dict[str, Any]:
        """Return since when a step waits, and for what; empty when it does not."""
        return await self._read(f"{self._waits_key}/{compute_digest(key)}")

    async def record_wait(self, key: str, record: dict[str, Any]) -> None:
        """Keep since when a step waits, and for what."""
        await self._write(f"{self._waits_key}/{compute_digest(key)}", record)

    # --- keys -----------------------------------------------------------------------------

    def idempotency_key(self, name: str) -> str:
        """Return the idempotency key of an effect, to hand to the outside system."""
        return f"{self.journal.thread_id or 'thread'}/{name}"

    def step_key(self, attempt: Attempt) -> str:
        """Return a stable key for a step without an effect."""
        return self.idempotency_key(
            f"{self.turn_key}/{attempt.capability}/{self._step_owner(attempt.key)}"
        )

    def _step_owner(self, key: str) -> str:
        return f"{self.visit_id}/{key}" if self.visit_id else key

    # --- effects --------------------------------------------------------------------------

    async def wait_until_saved(self) -> None:
        """Wait until a restart would come back to this plan.

        Raises:
            PersistenceError: The checkpoint is not saved.
        """
        await self.journal.wait_until_saved()

    async def raise_if_stopped(self, *, confirm: bool = False) -> None:
        """Make sure that nobody stopped the run; ``confirm`` before an effect begins.

        Raises:
            StoppedError: Somebody did.
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
        """Find the record that a step stands for, or make one.

        Args:
            spec: The capability.
            attempt: The step, with inputs and parameters.
            plan_id: Which plan, or which run of an agent, the step belongs to.
            claimed_records: Records that other steps of the plan stand for.
            claimed_steps: Keys of those steps, where their results do not name their records.
        """
        if (known := self._existing_claim) is not None:
            return known._replace(record=await self._read(known.name))
        base = f"{self.turn_key}/{spec.name}/{effect_key(spec, attempt)}"
        number, asks = 0, self._step_owner(attempt.key)
        async with self._lock:
            while True:
                number += 1
                name = f"{base}/{number}"
                record = await self._read(name)
                claims = record.get("claims") or {}
                owner = claims.get(plan_id)
                others = {plan_key(step) for step in claims.values()}
                if (
                    owner is None
                    and name not in claimed_records
                    and others.isdisjoint(claimed_steps)
                ):
                    fresh = {**record, "claims": {**claims, plan_id: asks}}
                    fresh.setdefault("status", "claimed")
                    await self._write(name, fresh)
                    return Claim(name, fresh, is_new=not record)
                if owner == asks:
                    return Claim(name, record, is_new=False, is_own=True)

    def evict(self, name: str) -> None:
        """Read the record of an effect anew: another process has written it."""
        self._cache.pop(name, None)

    def has_earlier_effect(
        self, spec: CapabilitySpec, plan_id: str, name: str, claimed_records: set[str]
    ) -> bool:
        """Tell whether the capability acted in an earlier plan of the turn, in another way."""
        return any(
            entry.get("capability") == spec.name
            and entry.get("plan") != plan_id
            and other != name
            and other not in claimed_records
            for other, entry in self._view.effects.items()
        )

    async def record_nested_effect(self, key: str) -> None:
        """Leave word that an attempt inside a step acted once."""
        await self._write(f"{self._waits_key}/inside/{compute_digest(key)}", {"acted": True})

    async def has_nested_effect(self, key: str) -> bool:
        """Tell whether an attempt inside a step acted once, in whatever process."""
        return bool(await self._read(f"{self._waits_key}/inside/{compute_digest(key)}"))

    async def begin_effect(self, name: str) -> int:
        """Leave word that an effect is about to happen; return which run of it this is.

        Raises:
            PersistenceError: It cannot be left, or another process has the thread.
        """
        record = await self._read(name)
        await self.journal.assert_lease_held(query_database=True)
        run = int(record.get("run", 0)) + 1
        # The audit comes first: an effect that nobody could prove does not begin.
        await record_now("effect", effect=name, status="begun", run=run)
        await self._write(name, {**record, "status": "begun", "run": run})
        await self.assert_lease_held()
        return run

    async def assert_lease_held(self) -> None:
        """Make sure that this process still has the thread; what follows begins at once.

        Raises:
            PersistenceError: Another process has it: who was frozen begins nothing.
        """
        await self.journal.assert_lease_held()

    async def end_effect(self, name: str, status: str, **fields: Any) -> None:
        """Leave word how an effect ended: ``finished``, ``record_failure``, ``unknown`` or ``asking``.

        Raises:
            PersistenceError: It cannot be left, or it is not ``finished`` and another process,
                which may have begun it again, has the thread.
        """
        record, done = await self._read(name), status == "finished"
        if not done:
            await self.assert_lease_held()
        try:
            await self._write(name, {**record, "status": status, **fields}, allow_lost_lease=done)
        except (PersistenceError, TypeError, ValueError):
            if "result" not in fields:
                raise
            # What cannot be kept is done all the same; who was cut off and replaced does not say so.
            await self.assert_lease_held()
            await self._write(name, {**record, "status": status, "lost": True})
        await record_soon("effect", effect=name, status=status)

    async def update_effect(self, name: str, **fields: Any) -> None:
        """Put other words into the record of an effect; what it says of its end stays."""
        await self._write(name, {**await self._read(name), **fields})

    def stored_result(self, record: Mapping[str, Any]) -> list[Any]:
        """Return what an effect gave when it was done, as it was let out then.

        Raises:
            ValidationError: Its result could not be kept.
            PolicyError: Guards did not let it out.
        """
        if record.get("withheld"):
            raise PolicyError(
                "Guards did not let its result pass when it was done, so it was not kept.",
                fix="Look at the outside system.",
                severity=ErrorSeverity.CRITICAL,
            )
        if record.get("lost"):
            raise _lost_result_error("The effect")
        found = record.get("result")
        if found is not None:
            return list(found)
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
    ) -> Any:
        """Run a part of a step at most once; see ``BaseCapability.run_once``.

        Args:
            spec: The step's capability.
            attempt: The step.
            key: Names the part.
            function: The part.
            effect: Name of the step's own effect; ``None`` for none.
            plan_keys: Keys of the plan's steps.

        Raises:
            UnknownOutcome: It began in an earlier process and nobody knows how it ended.
            ValidationError: It was done, and its result could not be kept.
        """
        if not callable(function):
            raise ValidationError(
                f"once({key!r}, …) was given {function!r:.80}, which cannot be called.",
                fix="Give the function itself: await self.once('sent', send).",
            )
        name = f"{effect or await self._once_prefix(spec, attempt, plan_keys)}/once/{compute_digest(key)}"
        record = await self._read(name)
        if record.get("status") == "finished":
            if record.get("lost"):
                raise _lost_result_error(f"The part {key!r} of the step")
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
                        f"The part {key!r} of the step had started when its process ended; its"
                        " effect may have happened.",
                        run=run,
                        effect=name,
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
        await self.end_effect(name, "finished", result=result)
        return result

    async def _once_prefix(
        self, spec: CapabilitySpec, attempt: Attempt, plan_keys: Collection[str]
    ) -> str:
        """Return under what name the parts of a step lie that has no effect as a whole.

        They are claimed as effects are: a later plan finds them whatever it calls the step.
        """
        if self.journal.is_remote:  # claims are made where the turn runs
            return f"{self.turn_key}/{attempt.capability}/{self._step_owner(attempt.key)}"
        others = [key for key in plan_keys if key != plan_key(attempt.key)]
        kept = {key for key in others if (self._view.results.get(key) or {}).get("success")}
        return (await self.claim(spec, attempt, self._view.plan_id, (), kept)).name

    # --- decisions ----------------------------------------------------------------------

    async def hold_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a step's result that a person has to agree to before anything uses it."""
        await self._write(f"{self.turn_key}/held/{self._step_owner(key)}", dict(result))

    async def held_result(self, key: str) -> dict[str, Any]:
        """Return the step's result about which a person is asked; empty for none."""
        return await self._read(f"{self.turn_key}/held/{self._step_owner(key)}")

    async def record_outcome(self, effect: str, run: int, decision: Mapping[str, Any]) -> None:
        """Leave word what a person decided about an effect of unknown outcome."""
        await self._write(f"{effect}/decided/{run}", dict(decision))

    async def read_outcome(self, effect: str, run: int) -> dict[str, Any]:
        """Return what a person decided about one run of an effect; empty for nothing."""
        return await self._read(f"{effect}/decided/{run}")

    # --- waits ----------------------------------------------------------------------------

    async def earlier_failures(self, key: str, now: float) -> tuple[int, float | None]:
        """Return how often a step failed in this turn, and how long to wait before the next try."""
        if not self.is_durable:
            return 0, None
        if self._retry_waits is None:
            async with self._lock:
                if self._retry_waits is None:
                    self._retry_waits = await self.journal.read(self._waits_key)
        entry = self._retry_waits.get(key)
        if entry is None:
            return 0, None
        # A clock that was set back must not make the wait longer than it was.
        return entry["failures"], min(max(0.0, entry["until"] - now), entry["delay"])

    async def record_failure(self, key: str, failures: int, delay: float, now: float) -> None:
        """Leave word that a step failed and when it is tried again."""
        entry = {"failures": failures, "until": now + delay, "delay": delay}
        async with self._lock:
            self._retry_waits = {**(self._retry_waits or {}), key: entry}
            await self.journal.write(self._waits_key, self._retry_waits)

    # --- rows -----------------------------------------------------------------------------

    async def _read(self, name: str) -> dict[str, Any]:
        known = self._cache.get(name)
        if known is not None:
            return known
        found = await self.journal.read(name)
        if not found and name in self._view.effects:
            found = _record_from_state(self._view.effects[name])
        if found:
            self._cache[name] = found
        return found

    async def _write(
        self, name: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        await self.journal.write(name, record, allow_lost_lease=allow_lost_lease)
        self._cache[name] = record


def _lost_result_error(subject: str) -> ValidationError:
    return ValidationError(
        f"{subject} was done earlier, and its result could not be kept.",
        fix="Look at the outside system; return plain data from what acts.",
    )


def _record_from_state(entry: Mapping[str, Any]) -> dict[str, Any]:
    claims = {str(entry.get("plan") or ""): entry.get("step")}
    return {"status": "finished", "outputs": entry.get("outputs") or {}, "claims": claims}


def encode_result(result: Any, stored: Sequence[CapabilityContext]) -> list[Any]:
    """Return what a capability gave in a form that can be kept and sorted again."""
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    return [_plain(value) for value in [*values, *stored] if value is not None]


def _plain(value: Any) -> Any:
    if isinstance(value, CapabilityContext):
        return {value.CONTEXT_TYPE: value.model_dump(mode="json")}
    if isinstance(value, Mapping):
        return {
            name: item.model_dump(mode="json") if isinstance(item, CapabilityContext) else item
            for name, item in value.items()
        }
    return value
