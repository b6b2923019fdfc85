"""Runs every step of a plan that can run, each as soon as its inputs exist.

Each step is one LangGraph task that bears its capability's name: it streams, is traced and is
saved by itself the moment it finishes, without waiting for the superstep. Task identities follow
the order of the calls, so the calls are made in the plan's order and each waits for its inputs
inside; calls in the order of completion would be matched to the wrong results after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Overwrite

from framework.base.errors import CapabilityError, InfrastructureError
from framework.base.plan import PlannedStep
from framework.engine.routing import decisive
from framework.engine.services import Services
from framework.pipeline.effects import EffectGuard, Unknown
from framework.pipeline.retry import RetryPolicy, wait_seconds
from framework.pipeline.step import (
    Attempt,
    StepOutcome,
    attempt_step,
    current_runtime,
    failed_outcome,
    run_limit_reached,
)
from framework.planning import CLOSING, dependencies
from framework.state import REDUCED_KEYS, merge_context
from framework.telemetry import Retry, emit

_RUN: ContextVar[PlanRun | None] = ContextVar("capgraph_plan_run", default=None)


@dataclass(slots=True)
class RunResult:
    """What running the ready part of a plan left behind.

    Attributes:
        updates: State updates of the steps, in the plan's order.
        failures: Error entries of the steps that failed for good.
        unknown: Steps whose effect may or may not have happened, with what is known.
    """

    updates: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    unknown: dict[str, dict[str, Any]] = field(default_factory=dict)


class PlanRun:
    """One pass over a plan: all that can run without another decision of the router.

    Args:
        state: The state when the router was entered.
        services: Shared dependencies.
        guard: Keeps effects from happening twice.
    """

    def __init__(self, state: Mapping[str, Any], services: Services, guard: EffectGuard) -> None:
        self._services = services
        self._guard = guard
        self._plan = state["planning_execution_plan"]
        self._steps: list[PlannedStep] = self._plan.get("steps") or []
        # Steps see what earlier steps of this pass wrote; only the two outer levels are copied.
        self._view = {
            **state,
            "capability_context_data": merge_context(state.get("capability_context_data"), {}),
        }
        self._attempts: Mapping[str, int] = state.get("control_attempts") or {}
        results = state.get("execution_step_results") or {}
        self._done = {key for key, record in results.items() if record.get("success")}
        self._skipped = {key for key, record in results.items() if record.get("skipped")}
        self._needs = dependencies(self._plan)
        self._settled: dict[str, asyncio.Event] = {}
        self._succeeded: set[str] = set(self._done)
        self._stopping = False
        self._control = getattr(current_runtime(), "control", None)
        self._signals: list[GraphBubbleUp] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(services.limits.max_parallel)
        self._own_slots = {
            name: asyncio.Semaphore(spec.max_parallel)
            for name, spec in services.registry.capabilities.items()
            if spec.max_parallel
        }
        self._decisions: Mapping[str, Any] = state.get("approval_decisions") or {}
        self._began = services.clock.monotonic()
        self._used = float((state.get("runtime_info") or {}).get("seconds_used") or 0.0)

    def pending(self, waiting: Mapping[str, Any]) -> list[tuple[int, PlannedStep]]:
        """Return the steps that can run in this pass: not done, nothing undecided before them."""
        blocked = set(waiting) | self._skipped
        chosen = []
        for index, step in enumerate(self._steps):
            key = step["context_key"]
            if step["capability"] in CLOSING or key in self._done:
                continue
            if key in blocked or self._needs[key] & blocked:
                blocked.add(key)
                continue
            chosen.append((index, step))
        return chosen

    async def run(self, waiting: Mapping[str, Any]) -> RunResult:
        """Run the steps and return when none can start any more.

        Raises:
            FatalExecutionError: A step failed with severity FATAL.
            GraphBubbleUp: A step interrupted itself; all that did not need it has run.
        """
        pending = self.pending(waiting)
        self._settled = {step["context_key"]: asyncio.Event() for _, step in pending}
        token = _RUN.set(self)
        try:
            calls = [
                self._services.step_tasks[step["capability"]](_payload(index, step))
                for index, step in pending
            ]
            found = await asyncio.gather(
                *(
                    self._watched(step["context_key"], call)
                    for (_, step), call in zip(pending, calls, strict=True)
                )
            )
        finally:
            _RUN.reset(token)
        if self._signals:
            raise _combined(self._signals)
        result = RunResult()
        for envelope in found:
            if not envelope:
                continue
            update = {k: v for k, v in envelope.items() if k not in _OWN_KEYS}
            result.updates.append(update)
            if envelope.get("control_error_info"):
                result.failures.append(envelope["control_error_info"])
            result.unknown.update(envelope.get("execution_pending_approvals") or {})
        return result

    async def _collect(self, key: str, call: Any) -> dict[str, Any] | None:
        # A step that finished before a restart comes back here without its body having run, so
        # this is the place where others learn that it is done.
        envelope: dict[str, Any] | None = await call
        if envelope and not _is_of(envelope, key):
            raise InfrastructureError(
                f"The saved result of another step came back for {key!r}.",
                fix="Start a new thread; this one was saved by a graph with other steps.",
            )
        if envelope and not envelope.get("control_error_info"):
            record = (envelope.get("execution_step_results") or {}).get(key)
            if record and record.get("success"):
                self._succeeded.add(key)
                self._merge(envelope)
        if envelope and envelope.get("control_error_info"):
            self._stopping = True
        return envelope

    async def _watched(self, key: str, call: Any) -> dict[str, Any] | None:
        try:
            return await self._collect(key, call)
        except GraphBubbleUp as signal:
            # Steps that do not need this one go on; the signal is raised when they are through.
            self._signals.append(signal)
            return None
        except BaseException:
            # The run is over: what runs is stopped and nothing else starts.
            self._stopping = True
            for running in self._running:
                running.cancel()
            raise
        finally:
            # Whatever happened, nobody may wait for this step for ever.
            self._settled[key].set()

    def _merge(self, envelope: Mapping[str, Any]) -> None:
        for name, value in envelope.items():
            if name == "capability_context_data":
                for kind, entries in value.items():
                    self._view[name].setdefault(kind, {}).update(entries)
            elif name == "execution_step_results":
                self._view[name] = _LazyMerge.extend(self._view.get(name), value)
            elif name not in REDUCED_KEYS:
                self._view[name] = value

    async def step(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        """Wait for the inputs of a step, then try it until it succeeds or fails for good."""
        step = self._steps[payload["step_index"]]
        key = step["context_key"]
        for needed in self._needs[key]:
            if needed in self._settled:
                await self._settled[needed].wait()
        if not self._needs[key] <= self._succeeded:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await self._in_slot(payload["step_index"], step)
        finally:
            self._running.discard(task)

    async def _in_slot(self, index: int, step: PlannedStep) -> dict[str, Any] | None:
        own = self._own_slots.get(step["capability"])
        if own is None:
            async with self._slots:
                return await self._tries(index, step)
        async with own, self._slots:
            return await self._tries(index, step)

    def drain_requested(self) -> bool:
        """Whether the process is to stop: what runs may end, nothing else begins."""
        return bool(self._control is not None and self._control.drain_requested)

    async def _tries(self, index: int, step: PlannedStep) -> dict[str, Any] | None:
        if self._stopping or self.drain_requested():
            return None
        key = step["context_key"]
        spec = self._services.registry.capabilities[step["capability"]]
        attempt = Attempt(
            spec,
            step,
            index,
            len(self._steps),
            key,
            idempotency_key=self._guard.key(step, self._plan),
            turn_task=self._view.get("task_current_task") or "",
        )
        failures, wait = await self._guard.earlier_failures(key, self._services.clock.now())
        failures = max(failures, self._attempts.get(key, 0))
        while True:
            if wait is not None:
                await self._services.clock.sleep(wait)
            attempt.number = failures + 1
            attempt.run_seconds_left = self._seconds_left()
            outcome = await self._guarded(attempt)
            if outcome.error is None:
                return outcome.update
            failures += 1
            wait = await self._next_try(attempt, outcome.error, failures)
            if wait is not None and self.drain_requested():
                return None  # the journal holds the attempt and the wait
            if wait is None or self._stopping:
                outcome.error["attempts"] = failures
                # Cut short by another failure, it may have tries left; that one has not.
                outcome.error["final"] = wait is None
                outcome.update["control_attempts"] = {key: failures}
                return outcome.update

    async def _guarded(self, attempt: Attempt) -> StepOutcome:
        if attempt.run_seconds_left is not None and attempt.run_seconds_left <= 0:
            return failed_outcome(attempt, run_limit_reached(attempt), 0.0, self._view)
        decision = self._decisions.get(attempt.key)
        try:
            found = await self._guard.before(attempt, self._plan, decision)
        except CapabilityError as exc:
            return failed_outcome(attempt, exc, 0.0, self._view)
        if found is not None:
            return _settled(attempt, found)
        outcome = await attempt_step(attempt, self._view, self._services)
        instead = await self._guard.after(attempt, self._plan, outcome)
        return outcome if instead is None else _settled(attempt, instead)

    @property
    def seconds_used(self) -> float:
        """Seconds that the steps of this turn have taken; waiting for a person does not count."""
        return self._used + self._services.clock.monotonic() - self._began

    def _seconds_left(self) -> float | None:
        limit = self._services.limits.run_timeout_seconds
        return None if limit is None else limit - self.seconds_used

    async def _next_try(
        self, attempt: Attempt, error: Mapping[str, Any], failures: int
    ) -> float | None:
        classification = error["classification"]
        if classification["severity"] != "retriable":
            return None
        limits = self._services.limits
        policy = RetryPolicy.from_dict(error.get("retry_policy"), limits)
        if failures >= policy.max_attempts:
            return None
        asked = (classification.get("metadata") or {}).get("retry_after_seconds")
        delay = wait_seconds(policy, failures, limits, retry_after=asked)
        left = self._seconds_left()
        if left is not None and delay >= left:
            return None
        await self._guard.failed(attempt.key, failures, delay, self._services.clock.now())
        emit(
            Retry(
                name=attempt.spec.name,
                context_key=attempt.key,
                attempt=failures + 1,
                max_attempts=policy.max_attempts,
                delay=delay,
                message=error.get("user_message") or "",
            )
        )
        return delay


def _combined(signals: list[GraphBubbleUp]) -> GraphBubbleUp:
    """Return one signal for those of several steps: all their questions at once."""
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    others = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if others:
        return others[0]
    return GraphInterrupt(tuple(item for signal in interrupts for item in signal.args[0]))


class _LazyMerge(dict[str, Any]):
    """The results as steps see them: extended in place, never copied step by step."""

    @classmethod
    def extend(cls, current: Any, entries: Mapping[str, Any]) -> _LazyMerge:
        grown = current if isinstance(current, cls) else cls(current or {})
        grown.update(entries)
        return grown


_OWN_KEYS = frozenset({"control_has_error", "control_error_info", "execution_pending_approvals"})


def _settled(attempt: Attempt, found: dict[str, Any] | Unknown) -> StepOutcome:
    if isinstance(found, Unknown):
        return StepOutcome({"execution_pending_approvals": {attempt.key: found.question}})
    return StepOutcome(found)


def _is_of(envelope: Mapping[str, Any], key: str) -> bool:
    """Tell whether a result belongs to a step; after a restart it comes from the saver."""
    names = ("execution_step_results", "execution_pending_approvals")
    return any(key in (envelope.get(name) or {}) for name in names)


def _payload(index: int, step: PlannedStep) -> dict[str, Any]:
    return {
        "context_key": step["context_key"],
        "step_index": index,
        "task_objective": step.get("task_objective"),
        "parameters": step.get("parameters"),
    }


async def run_step_task(payload: dict[str, Any]) -> dict[str, Any] | None:
    """Body of every step's LangGraph task."""
    run = _RUN.get()
    if run is None:
        raise RuntimeError(
            "A step task was called outside of a plan's run. Fix: let the router node call it."
        )
    return await run.step(payload)


def merge_updates(updates: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Bring the updates of several steps into the one update of a node.

    Keys with a reducer keep every write, in the plan's order; of any other key the last counts.
    """
    single: dict[str, Any] = {}
    many: list[tuple[str, Any]] = []
    combined: dict[str, dict[str, Any]] = {}
    contexts: dict[str, dict[str, Any]] = {}
    for update in updates:
        for name, value in update.items():
            if name == "capability_context_data":
                for kind, entries in value.items():
                    contexts.setdefault(kind, {}).update(entries)
            elif name in {"execution_step_results", "control_attempts"}:
                combined.setdefault(name, {}).update(value)
            elif name in REDUCED_KEYS and not isinstance(value, Overwrite):
                many.append((name, value))
            else:
                single[name] = value
    if contexts:
        many.append(("capability_context_data", contexts))
    return [*many, *combined.items(), *single.items()]


def failure_update(failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state update that reports failed steps; the gravest one decides."""
    if not failures:
        return {}
    info = {**decisive(failures)}
    others = [entry for entry in failures if entry["context_key"] != info["context_key"]]
    if others:
        info["other_failures"] = others
    return {
        "control_has_error": True,
        "control_error_info": info,
        "control_retry_count": info.get("attempts", 1),
        "control_current_step_retry_count": info.get("attempts", 1),
    }
