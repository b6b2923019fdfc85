"""Runs every step of a plan that can run, each as soon as its inputs exist.

Each step is one LangGraph task that bears its capability's name: it streams, is traced and is
saved by itself the moment it finishes, without waiting for the superstep. Task identities follow
the order of the calls, so the calls are made in the plan's order: when a step can run, it is
called together with all before it, which wait for their inputs inside. What stands further on is
not called yet, so a long plan costs no more per step than a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.errors import GraphBubbleUp, GraphInterrupt

from framework.base.budget import TurnBudget
from framework.base.errors import InfrastructureError
from framework.base.plan import PlannedStep
from framework.base.ports import Attempt, Failure, Question, StepRecord
from framework.engine.services import Services
from framework.pipeline.failures import clear_failure, raise_failure
from framework.pipeline.job import Door
from framework.pipeline.run_config import current_runtime
from framework.pipeline.state_update import Writes, applied, combined, last_result, to_state
from framework.planning import CLOSING, dependencies
from framework.state import TurnView, fold_context
from framework.telemetry.metered import counting

_BY_TYPE = ("capability_context_data", "capability_context_labels")
_ENDS_THE_TURN = frozenset({"CG-LIMIT", "CG-STOPPED"})
_RUN: ContextVar[PlanRun | None] = ContextVar("capgraph_plan_run", default=None)
Envelope = dict[str, Any]
"""What LangGraph saves with a step's task: ``key`` and ``update``, and where there is one
``question``, ``failure``, or ``plan`` with its author (``by``)."""


@dataclass(slots=True)
class Pass:
    """What a pass over a plan changed.

    Attributes:
        writes: Channel writes, in order.
        state: The state as it is after them.
        draining: Whether the process is to stop, so that the next pass belongs to another.
        proposed: The plans that capabilities proposed, each with the name of its author.
    """

    writes: Writes = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    draining: bool = False
    proposed: list[tuple[Any, str]] = field(default_factory=list)


async def run_ready_steps(view: TurnView, services: Services) -> Pass:
    """Run every step that can run now and return the state's changes.

    Raises:
        FatalExecutionError: A step failed with severity FATAL.
        GraphBubbleUp: A step interrupted itself; all that did not need it has run.
    """
    run = PlanRun(view, services)
    with counting(run.budget, services.limits.max_model_calls):
        found = await run.run()
    schema = services.runner.schema
    writes = combined((write for entry in found for write in entry["update"].items()), schema)
    state = applied(view.state, writes, schema)
    questions = {entry["key"]: entry["question"] for entry in found if "question" in entry}
    failures = {
        entry["key"]: Failure.from_state(entry["failure"]) for entry in found if "failure" in entry
    }
    more: dict[str, Any] = {
        "planning_current_step_index": _current_index(state),
        "runtime_info": {
            **(view.state.get("runtime_info") or {}),
            "seconds_used": run.seconds_used,
        },
        "control_budget": run.budget.to_plain(),
    }
    for entry in found:
        for key, record in entry["update"].get("execution_step_results", {}).items():
            more["execution_last_result"] = last_result(record, failures.get(key))
    if questions:
        more["execution_pending_approvals"] = {**view.pending, **questions}
    if failures:
        more |= raise_failure(list(failures.values()))
    elif view.failure:
        more |= clear_failure()
    proposals = [(entry["plan"], entry["by"]) for entry in found if "plan" in entry]
    writes += list(more.items())
    return Pass(writes, {**state, **more}, run.drain_requested(), proposals)


class PlanRun:
    """One pass over a plan: all that can run without another decision of the router.

    Args:
        view: The turn when the router was entered.
        services: Shared dependencies.
    """

    def __init__(self, view: TurnView, services: Services) -> None:
        self._services = services
        self._plan_id = view.plan_id
        # Steps see what earlier steps of this pass wrote; only the two outer levels are copied.
        self._state = {
            **view.state,
            **{name: fold_context(view.state.get(name), ()) for name in _BY_TYPE},
            "execution_step_results": dict(view.results),
        }
        self._view = TurnView(self._state, thread_id=view.thread_id, caller=view.caller)
        self._ledger = services.ledger(self._view)
        self._failures = dict(view.attempts)
        self._ended = view.done | view.skipped
        self._needs = dependencies(view.plan)
        self._pending = self._runnable(view)
        self._places = {step["context_key"]: n for n, (_, step) in enumerate(self._pending)}
        self._readers: dict[str, list[str]] = {}
        for key in self._places:
            for name in self._needs[key]:
                self._readers.setdefault(name, []).append(key)
        self._settled = {key: asyncio.Event() for key in self._places}
        self._called = 0
        self._found: list[Envelope | None] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._stopping = False
        self._control = getattr(current_runtime(), "control", None)
        self._signals: list[GraphBubbleUp] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._began = services.clock.monotonic()
        self._used = view.seconds_used
        self.budget = TurnBudget.from_plain(view.budget)

    def _runnable(self, view: TurnView) -> list[tuple[int, PlannedStep]]:
        """Return the steps that can end in this pass: nothing undecided stands before them."""
        blocked = set(view.pending)
        chosen = []
        for index, step in enumerate(view.steps):
            key = step["context_key"]
            if step["capability"] in CLOSING or key in self._ended:
                continue
            if key in blocked or self._needs[key] & blocked:
                blocked.add(key)
                continue
            chosen.append((index, step))
        return chosen

    async def run(self) -> list[Envelope]:
        """Run the steps and return when none can start any more: what each left, in plan order.

        Raises:
            FatalExecutionError: A step failed with severity FATAL.
            GraphBubbleUp: A step interrupted itself; all that did not need it has run.
        """
        token = _RUN.set(self)
        try:
            self._call_ready(self._places)
            if self._watchers:
                await self._over.wait()
        finally:
            _RUN.reset(token)
            for watcher in self._watchers:
                watcher.cancel()
        if self._error is not None:
            raise self._error
        if self._signals:
            raise _one_signal(self._signals)
        return [entry for entry in self._found if entry is not None]

    def _call_ready(self, keys: Iterable[str]) -> None:
        """Call those of some steps that can run, with all before them that are not called yet."""
        ready = [self._places[key] for key in keys if self._needs[key] <= self._ended]
        while self._called <= max(ready, default=-1):
            index, step = self._pending[self._called]
            call = self._services.step_tasks[step["capability"]](_payload(index, step))
            self._found.append(None)
            watcher = asyncio.create_task(self._watch(self._called, step["context_key"], call))
            self._watchers.add(watcher)
            self._called += 1

    async def _watch(self, place: int, key: str, call: Any) -> None:
        try:
            self._found[place] = self._collect(key, await call)
        except GraphBubbleUp as signal:
            # Steps that do not need this one go on; the signal is raised when they are through.
            self._signals.append(signal)
        except BaseException as exc:
            # The run is over: what runs is stopped and nothing else starts.
            self._stopping = True
            self._error = self._error or exc
            for running in self._running:
                running.cancel()
        finally:
            # Whatever happened, nobody may wait for this step for ever.
            self._settled[key].set()
            self._watchers.discard(asyncio.current_task())
            if not self._watchers:
                self._over.set()

    def _collect(self, key: str, envelope: Envelope | None) -> Envelope | None:
        # A step that finished before a restart comes back here without its body having run, so
        # this is the place where others learn that it is done.
        if not envelope:
            return None
        if envelope.get("key") != key:
            raise InfrastructureError(
                f"The saved result of another step came back for {key!r}.",
                fix="Start a new thread; this one was saved by a graph with other steps.",
            )
        update = envelope["update"]
        record = update.get("execution_step_results", {}).get(key, {})
        if "failure" in envelope:
            self._stopping = True
        elif record.get("success") or record.get("skipped"):
            self._merge(update)
            self._ended.add(key)
            self._call_ready(self._readers.get(key, ()))
        return envelope

    def _merge(self, update: Mapping[str, Any]) -> None:
        for name, value in update.items():
            if name in _BY_TYPE:
                for kind, entries in value.items():
                    self._state[name].setdefault(kind, {}).update(entries)
            elif name == "execution_step_results":
                self._state[name].update(value)
            elif name not in self._services.runner.schema.reduced:
                self._state[name] = value

    async def step(self, payload: Mapping[str, Any]) -> Envelope | None:
        """Wait for the inputs of a step, then have it run; what comes back can be saved."""
        index = payload["step_index"]
        step = self._view.steps[index]
        key = step["context_key"]
        for needed in self._needs[key]:
            if needed in self._settled:
                await self._settled[needed].wait()
        if not self._needs[key] <= self._ended:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await self._run_step(index, step)
        finally:
            self._running.discard(task)

    async def _run_step(self, index: int, step: PlannedStep) -> Envelope | None:
        key = step["context_key"]
        attempt = Attempt(
            capability=step["capability"],
            step=step,
            key=key,
            index=index,
            total=len(self._view.steps),
            objective=self._view.objective_of(step),
        )
        door = Door(
            view=self._view,
            ledger=self._ledger,
            plan_keys=self._needs,
            failures=self._failures.get(key, 0),
            seconds_left=self._seconds_left,
            stopping=self._is_stopping,
            draining=self.drain_requested,
            budget=self.budget,
        )
        result = await self._services.runner.run(attempt, door)
        if result is None:
            return None
        if isinstance(result, Question):
            return {"key": key, "update": {}, "question": result.to_state()}
        return _envelope(_let_go(result) if step.get("optional") else result, self._plan_id)

    def _is_stopping(self) -> bool:
        return self._stopping

    def drain_requested(self) -> bool:
        """Whether the process is to stop: what runs may end, nothing else begins."""
        return bool(self._control is not None and self._control.drain_requested)

    @property
    def seconds_used(self) -> float:
        """Seconds that the steps of this turn have taken; waiting for a person does not count."""
        return self._used + self._services.clock.monotonic() - self._began

    def _seconds_left(self) -> float | None:
        limit = self._services.limits.run_timeout_seconds
        return None if limit is None else limit - self.seconds_used


def _envelope(record: StepRecord, plan: str) -> Envelope:
    """Return a record in the form that LangGraph saves with the step's task."""
    found: Envelope = {"key": record.key, "update": to_state(record, plan)}
    if record.error is not None and record.skipped is None:
        found["failure"] = record.error.to_state()
    if record.plan is not None:
        found |= {"plan": record.plan, "by": record.capability}
    return found


def _let_go(record: StepRecord) -> StepRecord:
    """Return the record of a step without which the plan goes on, whatever it failed of.

    What ends the turn ends it all the same, and a try that was cut short is none.
    """
    error = record.error
    if error is None or not error.final or error.metadata.get("code") in _ENDS_THE_TURN:
        return record
    return replace(record, skipped=error.message)


def _one_signal(signals: list[GraphBubbleUp]) -> GraphBubbleUp:
    """Return one signal for those of several steps: all their questions at once."""
    interrupts = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    others = [signal for signal in signals if not isinstance(signal, GraphInterrupt)]
    if others:
        return others[0]
    # A question inside a graph that a step calls comes out of its task and of its node.
    asked = {item.id: item for signal in interrupts for item in signal.args[0]}
    return GraphInterrupt(tuple(asked.values()))


def _payload(index: int, step: PlannedStep) -> dict[str, Any]:
    return {
        "context_key": step["context_key"],
        "step_index": index,
        "task_objective": step.get("task_objective"),
        "parameters": step.get("parameters"),
    }


async def run_step_task(payload: dict[str, Any]) -> Envelope | None:
    """Body of every step's LangGraph task."""
    run = _RUN.get()
    if run is None:
        raise RuntimeError(
            "A step task was called outside of a plan's run. Fix: let the router node call it."
        )
    return await run.step(payload)


def _current_index(state: Mapping[str, Any]) -> int:
    results = state.get("execution_step_results") or {}
    steps = state["planning_execution_plan"].get("steps") or []
    for index, step in enumerate(steps):
        if step["capability"] in CLOSING or not (results.get(step["context_key"]) or {}).get(
            "success"
        ):
            return index
    return len(steps)
