"""Runs every step of a plan that can run, each as soon as its inputs exist.

Each step is one LangGraph task that bears its capability's name: it streams, is traced and is
saved by itself the moment it finishes, without waiting for the superstep. Task identities follow
the order of the calls, so the calls are made in the plan's order: when a step can run, it is
called together with all before it, which wait for their inputs inside. What stands further on is
not called yet, so a long plan costs no more per step than a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp, GraphInterrupt

from capgraph.base.budget import TurnBudget
from capgraph.base.plan import PlannedStep, copy_key, plan_key
from capgraph.base.ports import Attempt, Failure, Question, StepRecord
from capgraph.configs.run_context import run_context, using
from capgraph.engine.copies import Copies, collects
from capgraph.engine.entry import ASKED
from capgraph.engine.envelopes import Envelope, envelope_of, let_go, observed, one_signal, own
from capgraph.engine.model_replies import is_model_written
from capgraph.engine.routing import due_looks
from capgraph.engine.services import Services
from capgraph.langgraph_compat import answers_there, called_back
from capgraph.pipeline.failures import clear_failure, raise_failure
from capgraph.pipeline.job import Door, Result, TurnControl
from capgraph.pipeline.retry_policy import declared_attempts
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.state_update import Writes, applied, combined, last_result
from capgraph.planning import CLOSING, dependencies
from capgraph.state import TurnView, fold_context
from capgraph.state.turn_view import WOKEN
from capgraph.telemetry.accounts import CASHIER, paying
from capgraph.telemetry.metered import counting
from capgraph.telemetry.sinks import about

_BY_TYPE = ("capability_context_data", "capability_context_labels")


class Pass(NamedTuple):
    """What a pass over a plan changed.

    Attributes:
        writes: Channel writes, in order.
        state: The state as it is after them.
        over: Whether the superstep is over: another process is to go on, or a long list goes on.
        proposed: The plans that capabilities proposed, each with the name of its author.
    """

    writes: Writes
    state: dict[str, Any]
    over: bool
    proposed: list[tuple[Any, str]]


async def run_ready_steps(view: TurnView, services: Services) -> Pass:
    """Run every step that can run now and return the state's changes.

    Raises:
        FatalExecutionError: A step failed with severity FATAL.
        GraphBubbleUp: A step interrupted itself; all that did not need it has run.
    """
    run = PlanRun(view, services)
    with ExitStack() as around:
        around.enter_context(counting(run.budget, services.limits.max_model_calls))
        if view.plan.get("budget"):
            around.enter_context(paying(services.spending(view, planned=True)))
            around.enter_context(called_back(CASHIER))
        left = await run.run()
    found = [one for envelope in left for one in (*envelope.get("copies", ()), envelope)]
    schema = services.equipment.schema
    writes = combined((write for entry in found for write in entry["update"].items()), schema)
    state = applied(view.state, writes, schema)
    questions = {entry["key"]: entry["question"] for entry in found if "question" in entry}
    failures = {
        entry["key"]: Failure.from_state(entry["failure"]) for entry in found if "failure" in entry
    }
    ran = {entry["key"] for entry in left}
    woken = [key for key in view.woken if plan_key(key) not in ran]
    woken += [entry["key"] for entry in left if entry.get("more")]
    more: dict[str, Any] = {
        "planning_current_step_index": _current_index(state),
        "runtime_info": {
            **(view.state.get("runtime_info") or {}),
            "seconds_used": run.seconds_used,
            WOKEN: woken,
        },
        "control_budget": run.budget.to_plain(),
    }
    for entry in found:
        for key, record in entry["update"].get("execution_step_results", {}).items():
            more["execution_last_result"] = last_result(record, failures.get(key))
    if questions:
        pending = {**view.pending, **questions}
        # As in the plan, and the copies of a step as in its list.
        order = {key: place for place, key in enumerate(view.planned)}
        keys = sorted(pending, key=lambda k: (order[plan_key(k)], len(k), k))
        more["execution_pending_approvals"] = {key: pending[key] for key in keys}
    if failures:
        more |= raise_failure(list(failures.values()))
    elif view.failure:
        more |= clear_failure()
    proposals = [(entry["plan"], entry["by"]) for entry in found if "plan" in entry]
    writes += list(more.items())
    over = run.drain_requested() or any(envelope.get("more") for envelope in left)
    return Pass(writes, {**state, **more}, over, proposals)


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
        self._view = TurnView(
            self._state, thread_id=view.thread_id, caller=view.caller, sender=view.sender
        )
        self._ledger = services.ledger(self._view)
        self._failures = dict(view.attempts)
        self._ended = view.done | view.skipped
        self._needs = dependencies(view.plan)
        # With the copies that are known: an effect, or an agreement, of one is not another's.
        self._keys = {*self._needs, *(k for k in view.results if plan_key(k) in self._needs)}
        self._pending = self._runnable(view)
        self._copies: dict[str, Copies] = {}
        self._places = {step["context_key"]: n for n, (_, step) in enumerate(self._pending)}
        self._readers: dict[str, list[str]] = {}
        for key in self._places:
            for name in self._needs[key]:
                self._readers.setdefault(name, []).append(key)
        self._settled = {key: asyncio.Event() for key in self._places}
        self._called = 0
        self._found: list[Envelope | None] = []
        self._calls: dict[asyncio.Future[Any], int] = {}
        self._over: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        self._error: BaseException | None = None
        self._stopping = self._looking = False
        self._control = getattr(current_runtime(), "control", None)
        self._signals: dict[int, GraphBubbleUp] = {}
        self._asked: dict[str, str] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._began = services.clock.monotonic()
        self._used = view.seconds_used
        self.budget: TurnBudget = TurnBudget.from_plain(view.budget)
        self._steering = TurnControl(
            self._seconds_left, self._stops, self.drain_requested, may_wait=True
        )

    def _runnable(self, view: TurnView) -> list[tuple[int, PlannedStep]]:
        """Return the steps that can end in this pass: nothing undecided stands before them."""
        blocked = view.held_up
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
        try:
            with using(plan_run=self):
                self._call_ready(self._places)
                while self._calls:
                    call = await self._over.get()
                    self._take(self._calls.pop(call), call)
        finally:
            for call in self._calls:
                call.cancel()
        if self._error is not None:
            raise self._error
        if self._signals:
            await self._services.journal().write(ASKED, self._asked)
            raise one_signal([self._signals[place] for place in sorted(self._signals)])
        return [entry for entry in self._found if entry is not None]

    def _call_ready(self, keys: Iterable[str]) -> None:
        """Call those of some steps that can run, with all before them that are not called yet."""
        ready = [self._places[key] for key in keys if self._needs[key] <= self._ended]
        while self._called <= max(ready, default=-1):
            index, step = self._pending[self._called]
            call = self._services.step_tasks[step["capability"]](_payload(index, step))
            call.add_done_callback(self._over.put_nowait)
            self._calls[call] = self._called
            self._found.append(None)
            self._called += 1

    def _take(self, place: int, call: asyncio.Future[Any]) -> None:
        """Take up what a call gave, and call what can run now."""
        key = self._pending[place][1]["context_key"]
        try:
            self._found[place] = self._collect(key, own(key, call.result()))
        except GraphBubbleUp as signal:
            # Steps that do not need this one go on; the signal is raised when they are through.
            self._signals[place] = signal
        except BaseException as exc:
            # The run is over: what runs is stopped and nothing else starts.
            self._stopping = True
            self._error = self._error or exc
            for running in self._running:
                running.cancel()
        finally:
            # Whatever happened, nobody may wait for this step for ever.
            self._settled[key].set()

    def _collect(self, key: str, envelope: Envelope | None) -> Envelope | None:
        # A step that finished before a restart comes back here without its body having run, so
        # this is the place where others learn that it is done.
        if not envelope:
            return None
        for copy in envelope.get("copies", ()):
            self._merge(copy["update"])
        update = envelope["update"]
        record = update.get("execution_step_results", {}).get(key, {})
        if "failure" in envelope:
            self._stopping = True
        elif record.get("success") or record.get("skipped"):
            self._merge(update)
            self._ended.add(key)
            self._looking |= bool(due_looks([self._view.planned[key]], {key: record}))
            self._call_ready(self._readers.get(key, ()))
        return envelope

    def _merge(self, update: Mapping[str, Any]) -> None:
        for name, value in update.items():
            if name in _BY_TYPE:
                for kind, entries in value.items():
                    self._state[name].setdefault(kind, {}).update(entries)
            elif name == "execution_step_results":
                self._state[name].update(value)
            elif name not in self._services.equipment.schema.reduced:
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
        if "element" not in payload and self._waits_for_look():
            return None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if "element" in payload:
                attempt, work = self._copy(self._copies[key], payload["element"])
            else:
                attempt = self._view.attempt(step["capability"], step, index=index)
                if step.get("for_each"):
                    return await self._run_each(attempt, self._door(key))
                work = self._services.runner.run(attempt, self._door(key))
            try:
                return self._envelope(await work, attempt)
            except GraphInterrupt as signal:
                self._asked |= {question.id: attempt.key for question in signal.args[0]}
                raise
        finally:
            self._running.discard(task)

    def _door(self, key: str, stops: Callable[[bool], bool] | None = None) -> Door:
        return Door(
            view=self._view,
            ledger=self._ledger,
            plan_keys=self._keys,
            failures=self._failures.get(key, 0),
            control=self._steering if stops is None else replace(self._steering, stops=stops),
            budget=self.budget,
        )

    def _stops(self, begun: bool) -> bool:
        return self._stopping or self._waits_for_look(begun)

    def _waits_for_look(self, begun: bool = False) -> bool:
        """Tell whether a step may not begin, because the rest of the plan is looked at first.

        Where a step asked a person and has the answer, it has begun.
        """
        return self._looking and not begun and not answers_there()

    def _envelope(self, result: Result, attempt: Attempt) -> Envelope | None:
        if result is None:
            return None
        if isinstance(result, Question):
            return {"key": attempt.key, "update": {}, "question": result.to_state()}
        return self._leave(result, attempt)

    def _leave(self, record: StepRecord, attempt: Attempt) -> Envelope:
        optional = attempt.step.get("optional") and attempt.element is None
        collected = attempt.element is not None and collects(attempt.step)
        if record.error is not None and not optional and self._observes(attempt):
            record = observed(record)
        return envelope_of(let_go(record) if optional or collected else record, self._plan_id)

    def _observes(self, attempt: Attempt) -> bool:
        """Return True if the planner is shown a failure of a step, and goes on."""
        spec = self._services.registry.capabilities.get(attempt.capability)
        if spec is None or spec.on_error != "observe" or attempt.step.get("for_each"):
            return False
        looks = self._services.settings.planning.mode != "plan"
        undoing = bool(self._view.state.get("control_undo"))
        return looks and not undoing and is_model_written("orchestrator", self._services)

    async def _run_each(self, attempt: Attempt, door: Door) -> Envelope | None:
        """Run a step for each element of its list; one LangGraph task holds those of the copies."""
        found = await self._services.runner.elements(attempt, door)
        if isinstance(found, StepRecord):
            return self._leave(found, attempt)
        task = self._services.step_tasks[attempt.capability]
        payload = _payload(attempt.index, attempt.step)

        def call(number: int) -> Awaitable[Envelope | None]:
            name = copy_key(attempt.key, number)
            called: Awaitable[Envelope | None] = task(
                {**payload, "context_key": name, "element": number}
            )
            return called

        spec = self._services.registry.capabilities[attempt.capability]
        copies = Copies(attempt, found, spec, self._view, call=call, merge=self._merge)
        self._copies[attempt.key] = copies
        self._keys.update(map(copies.key, range(len(found))))
        limits = self._services.limits
        if limits.max_turn_attempts is None:
            self.budget.allow(declared_attempts(spec.cls, limits) * len(found))
        window = 2 * min(limits.max_parallel, spec.max_parallel or limits.max_parallel)
        with about(**self._view.ids, step_id=attempt.key):
            left = await copies.run(window)
            record = copies.record()
        if record is None:
            return {"key": attempt.key, "update": {}, "copies": left, "more": copies.more}
        kept = left if record.error or spec.effect != "none" else copies.stripped()
        return {**self._leave(record, attempt), "copies": kept}

    def _copy(self, copies: Copies, number: int) -> tuple[Attempt, Awaitable[Result]]:
        attempt = copies.attempt_at(number)
        stops = lambda _begun: self._stopping or copies.stopped  # noqa: E731
        return attempt, self._services.runner.run(attempt, self._door(attempt.key, stops))

    def drain_requested(self) -> bool:
        """Whether the process is to stop: what runs may end, nothing else begins."""
        return bool(self._control is not None and self._control.drain_requested)

    @property
    def seconds_used(self) -> float:
        """Seconds that the steps of this turn have taken; waiting for a person does not count."""
        return self._used + self._services.clock.monotonic() - self._began

    def _seconds_left(self) -> float | None:
        limit, deadline = self._services.limits.run_timeout_seconds, self._view.plan.get("deadline")
        if limit is None or (deadline is not None and deadline < limit):
            limit = deadline
        return None if limit is None else limit - self.seconds_used


def _payload(index: int, step: PlannedStep) -> dict[str, Any]:
    return {
        "context_key": step["context_key"],
        "step_index": index,
        "task_objective": step.get("task_objective"),
        "parameters": step.get("parameters"),
    }


def run_step_task(payload: dict[str, Any]) -> Awaitable[Envelope | None]:
    """Return the work of a step's LangGraph task."""
    run: PlanRun | None = run_context().plan_run
    if run is None:
        raise RuntimeError(
            "A step task was called outside of a plan's run. Fix: let the router node call it."
        )
    return run.step(payload)


def _current_index(state: Mapping[str, Any]) -> int:
    results = state.get("execution_step_results") or {}
    steps = state["planning_execution_plan"].get("steps") or []
    for index, step in enumerate(steps):
        if step["capability"] in CLOSING or not (results.get(step["context_key"]) or {}).get(
            "success"
        ):
            return index
    return len(steps)
