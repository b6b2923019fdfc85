"""Ready queue: run each step of a plan as soon as its inputs exist.

Each step is one LangGraph task with the name of its capability. The task is streamed, traced, and
saved separately as soon as it finishes. LangGraph identifies tasks by the order of their calls, so
the calls follow the plan's order: a ready step is called together with all earlier steps, which
wait for their inputs inside their tasks. Later steps are not called yet, so a long plan costs no
more per step than a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp, GraphInterrupt

from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import PlannedStep, element_key, plan_key
from capgraph.base.ports import ApprovalRequest, Attempt, Failure, StepRecord
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.engine.for_each import ForEachRun, collects_failures
from capgraph.engine.graph_input import QUESTION_OWNERS_KEY
from capgraph.engine.model_replies import is_model_written
from capgraph.engine.routing import due_reviews
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import (
    Envelope,
    check_envelope_key,
    envelope_of,
    mark_observed,
    merge_interrupts,
    skip_optional_failure,
)
from capgraph.langgraph_compat import add_callbacks, count_available_answers
from capgraph.pipeline.failures import clear_failure_update, failure_update
from capgraph.pipeline.retry_policy import declared_max_attempts
from capgraph.pipeline.run_config import current_runtime, restore_turn_caller
from capgraph.pipeline.state_update import (
    MERGED_BY_KEY,
    MERGED_BY_TYPE,
    Writes,
    apply_writes,
    last_result,
    merge_writes,
)
from capgraph.pipeline.step_execution import AttemptContext, StepResult, TurnControl
from capgraph.planning import TERMINAL_STEPS, dependencies
from capgraph.state import TurnView
from capgraph.state.turn_view import RESUMED_KEY
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK, charge_to
from capgraph.telemetry.event_dispatcher import event_context
from capgraph.telemetry.usage_callback import count_model_calls


class PlanPassResult(NamedTuple):
    """Result of one router pass that ran all ready steps of a plan.

    Attributes:
        writes: State writes in order.
        state: State after the writes.
        ends_superstep: True if the superstep must end, because the process is shutting down or a
            long list continues in the next superstep.
        proposed_plans: Plans that capabilities proposed, each with the name of its author.
    """

    writes: Writes
    state: dict[str, Any]
    ends_superstep: bool
    proposed_plans: list[tuple[Any, str]]


async def run_ready_steps(view: TurnView, services: Services) -> PlanPassResult:
    """Run all steps of the current plan that are ready and return the resulting state changes.

    Raises:
        FatalExecutionError: A step failed with severity FATAL.
        GraphBubbleUp: A step raised an interrupt. All independent steps have run.
    """
    run = PlanRun(view, services)
    with ExitStack() as stack:
        stack.enter_context(count_model_calls(run.budget, services.limits.max_model_calls))
        if view.plan.get("budget"):
            stack.enter_context(charge_to(services.spending(view, includes_plan_budget=True)))
            stack.enter_context(add_callbacks(BUDGET_CALLBACK))
        envelopes = await run.run()
    entries = [copy for envelope in envelopes for copy in (*envelope.get("copies", ()), envelope)]
    schema = services.runner_config.schema
    writes = merge_writes((write for entry in entries for write in entry["update"].items()), schema)
    state = apply_writes(view.state, writes, schema)
    questions = {entry["key"]: entry["question"] for entry in entries if "question" in entry}
    failures = {
        entry["key"]: Failure.from_state(entry["failure"])
        for entry in entries
        if "failure" in entry
    }
    ran = {entry["key"] for entry in envelopes}
    woken = [key for key in view.resumed_keys if plan_key(key) not in ran]
    woken += [entry["key"] for entry in envelopes if entry.get("more")]
    updates: dict[str, Any] = {
        "planning_current_step_index": _find_current_index(state),
        "runtime_info": {
            **(view.state.get("runtime_info") or {}),
            "seconds_used": run.seconds_used,
            RESUMED_KEY: woken,
        },
        "control_budget": run.budget.to_plain(),
    }
    for entry in entries:
        for key, record in entry["update"].get("execution_step_results", {}).items():
            updates["execution_last_result"] = last_result(record, failures.get(key))
    if questions:
        pending = {**view.pending_approvals, **questions}
        # Sort by plan order, and the copies of a step by list order.
        order = {key: index for index, key in enumerate(view.steps_by_key)}
        keys = sorted(pending, key=lambda k: (order[plan_key(k)], len(k), k))
        updates["execution_pending_approvals"] = {key: pending[key] for key in keys}
    if failures:
        updates |= failure_update(list(failures.values()))
    elif view.failure:
        updates |= clear_failure_update()
    proposals = [(entry["plan"], entry["by"]) for entry in entries if "plan" in entry]
    writes += list(updates.items())
    over = run.is_draining() or any(envelope.get("more") for envelope in envelopes)
    return PlanPassResult(writes, {**state, **updates}, over, proposals)


class PlanRun:
    """Execution of all plan steps that can run without another routing decision.

    Args:
        view: State of the turn at the start of the router.
        services: Services of the graph.
    """

    def __init__(self, view: TurnView, services: Services) -> None:
        self._services = services
        self._plan_id = view.plan_id
        # Steps see the writes of earlier steps in this pass. Only the two outer levels are copied.
        self._state = {
            **view.state,
            **{name: dict(view.state.get(name) or {}) for name in MERGED_BY_KEY},
            **{
                name: {
                    kind: dict(entries) for kind, entries in (view.state.get(name) or {}).items()
                }
                for name in MERGED_BY_TYPE
            },
        }
        self._view = TurnView(
            self._state, thread_id=view.thread_id, caller=view.caller, sender=view.sender
        )
        self._ledger = services.ledger(self._view)
        self._failures = dict(view.failed_attempts)
        self._ended = view.succeeded_keys | view.skipped_keys
        self._needs = dependencies(view.plan)
        # Include known copies, since an effect or an approval belongs to one copy.
        self._keys = {*self._needs, *(k for k in view.results if plan_key(k) in self._needs)}
        self._pending = self._find_runnable_steps(view)
        self._for_each_runs: dict[str, ForEachRun] = {}
        self._places = {step["context_key"]: n for n, (_, step) in enumerate(self._pending)}
        self._readers: dict[str, list[str]] = {}
        for key in self._places:
            for name in self._needs[key]:
                self._readers.setdefault(name, []).append(key)
        self._settled_events = {key: asyncio.Event() for key in self._places}
        self._called = 0
        self._envelopes: list[Envelope | None] = []
        self._calls: dict[asyncio.Future[Any], int] = {}
        self._completed_calls: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        self._error: BaseException | None = None
        self._stopping = self._review_due = False
        self._control = getattr(current_runtime(), "control", None)
        self._signals: dict[int, GraphBubbleUp] = {}
        self._asked: dict[str, str] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._began = services.clock.monotonic()
        self._used = view.seconds_used
        self.budget: TurnBudget = TurnBudget.from_plain(view.budget)
        self._turn_control = TurnControl(
            self._compute_seconds_left, self._should_stop, self.is_draining, can_wait=True
        )

    def _find_runnable_steps(self, view: TurnView) -> list[tuple[int, PlannedStep]]:
        """Return the runnable steps of a plan, with their positions in the plan.

        Steps that wait for a decision, and steps that depend on them, are omitted.
        """
        blocked = view.suspended_keys
        chosen = []
        for index, step in enumerate(view.steps):
            key = step["context_key"]
            if step["capability"] in TERMINAL_STEPS or key in self._ended:
                continue
            if key in blocked or self._needs[key] & blocked:
                blocked.add(key)
                continue
            chosen.append((index, step))
        return chosen

    async def run(self) -> list[Envelope]:
        """Run plan steps until no more can start and return their results in plan order.

        Raises:
            FatalExecutionError: A step failed with severity FATAL.
            GraphBubbleUp: A step raised an interrupt. All independent steps have run.
        """
        try:
            with override_run_context(plan_run=self):
                self._start_ready_steps(self._places)
                while self._calls:
                    call = await self._completed_calls.get()
                    self._handle_result(self._calls.pop(call), call)
        finally:
            for call in self._calls:
                call.cancel()
        if self._error is not None:
            raise self._error
        if self._signals:
            await self._services.journal().write(QUESTION_OWNERS_KEY, self._asked)
            raise merge_interrupts([self._signals[index] for index in sorted(self._signals)])
        return [entry for entry in self._envelopes if entry is not None]

    def _start_ready_steps(self, keys: Iterable[str]) -> None:
        """Start the LangGraph tasks of ready steps and of all earlier steps not yet started."""
        ready = [self._places[key] for key in keys if self._needs[key] <= self._ended]
        while self._called <= max(ready, default=-1):
            index, step = self._pending[self._called]
            call = self._services.step_tasks[step["capability"]](_create_payload(index, step))
            call.add_done_callback(self._completed_calls.put_nowait)
            self._calls[call] = self._called
            self._envelopes.append(None)
            self._called += 1

    def _handle_result(self, place: int, call: asyncio.Future[Any]) -> None:
        """Process the result of a finished step task and start the steps that have become ready."""
        key = self._pending[place][1]["context_key"]
        try:
            self._envelopes[place] = self._collect_envelope(
                key, check_envelope_key(key, call.result())
            )
        except GraphBubbleUp as signal:
            # Independent steps continue. The signal is raised when they have finished.
            self._signals[place] = signal
        except BaseException as exc:
            # The run has failed: cancel running steps and start no others.
            self._stopping = True
            self._error = self._error or exc
            for running in self._running:
                running.cancel()
        finally:
            # Wake all dependent steps, also after an error.
            self._settled_events[key].set()

    def _collect_envelope(self, key: str, envelope: Envelope | None) -> Envelope | None:
        # The result of a step that finished before a restart arrives here without its body having
        # run, so dependent steps are released here.
        if not envelope:
            return None
        for copy in envelope.get("copies", ()):
            self._apply_update(copy["update"])
        update = envelope["update"]
        record = update.get("execution_step_results", {}).get(key, {})
        if "failure" in envelope:
            self._stopping = True
        elif record.get("success") or record.get("skipped"):
            self._apply_update({**update, "execution_last_result": last_result(record, None)})
            self._ended.add(key)
            self._review_due |= bool(due_reviews([self._view.steps_by_key[key]], {key: record}))
            self._start_ready_steps(self._readers.get(key, ()))
        return envelope

    def _apply_update(self, update: Mapping[str, Any]) -> None:
        """Make a step's state update visible to later steps.

        If the update stops the turn, no further steps are started.
        """
        self._stopping |= bool(update.get("control_is_killed"))
        for name, value in update.items():
            if name in MERGED_BY_TYPE:
                for kind, entries in value.items():
                    self._state[name].setdefault(kind, {}).update(entries)
            elif name in MERGED_BY_KEY:
                self._state[name].update(value)
            else:
                schema = self._services.runner_config.schema
                self._state[name] = apply_writes(
                    {name: self._state.get(name)}, [(name, value)], schema
                )[name]

    async def run_step(self, payload: Mapping[str, Any]) -> Envelope | None:
        """Wait until a step's dependencies have finished, run the step, and return its result.

        The result is a serializable envelope, or ``None`` if the step cannot run in this pass.
        """
        index = payload["step_index"]
        step = self._view.steps[index]
        key = step["context_key"]
        for needed in self._needs[key]:
            if needed in self._settled_events:
                await self._settled_events[needed].wait()
        if not self._needs[key] <= self._ended:
            return None
        if "element" not in payload and self._must_wait_for_review():
            return None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with restore_turn_caller():
                if "element" in payload:
                    attempt, work = self._run_copy(self._for_each_runs[key], payload["element"])
                else:
                    attempt = self._view.create_attempt(step["capability"], step, index=index)
                    if step.get("for_each"):
                        return await self._run_for_each_step(
                            attempt, self._create_attempt_context(key)
                        )
                    work = self._services.runner.run(attempt, self._create_attempt_context(key))
                try:
                    return self._to_envelope(await work, attempt)
                except GraphInterrupt as signal:
                    self._asked |= {question.id: attempt.key for question in signal.args[0]}
                    raise
        finally:
            self._running.discard(task)

    def _create_attempt_context(
        self, key: str, stops: Callable[[bool], bool] | None = None
    ) -> AttemptContext:
        return AttemptContext(
            view=self._view,
            ledger=self._ledger,
            plan_keys=self._keys,
            failures=self._failures.get(key, 0),
            control=self._turn_control
            if stops is None
            else replace(self._turn_control, should_stop=stops),
            budget=self.budget,
        )

    def _should_stop(self, has_started: bool) -> bool:
        return self._stopping or self._must_wait_for_review(has_started)

    def _must_wait_for_review(self, has_started: bool = False) -> bool:
        """Return True if a step must wait until the planner has reviewed the remaining plan.

        A step that has received a person's decision has already started, so it does not wait.
        """
        return self._review_due and not has_started and not count_available_answers()

    def _to_envelope(self, result: StepResult, attempt: Attempt) -> Envelope | None:
        if result is None:
            return None
        if isinstance(result, ApprovalRequest):
            return {"key": attempt.key, "update": {}, "question": result.to_state()}
        return self._create_envelope(result, attempt)

    def _create_envelope(self, record: StepRecord, attempt: Attempt) -> Envelope:
        optional = attempt.step.get("optional") and attempt.element is None
        collected = attempt.element is not None and collects_failures(attempt.step)
        if (
            record.error is not None
            and not optional
            and self._is_failure_observed(attempt, record.error)
        ):
            record = mark_observed(record, attempt)
        return envelope_of(
            skip_optional_failure(record) if optional or collected else record, self._plan_id
        )

    def _is_failure_observed(self, attempt: Attempt, failure: Failure) -> bool:
        """Return True if the planner will review a step's failure instead of the turn failing."""
        spec = self._services.registry.capabilities.get(attempt.capability)
        if spec is None or attempt.step.get("for_each"):
            return False
        if spec.on_error != "observe":
            replans = failure.severity is ErrorSeverity.REPLANNING
            if not replans or self._services.settings.planning.mode == "plan":
                return False
        undoing = bool(self._view.state.get("control_undo"))
        return not undoing and is_model_written("orchestrator", self._services)

    async def _run_for_each_step(
        self, attempt: Attempt, context: AttemptContext
    ) -> Envelope | None:
        """Run a ``for_each`` step with a separate LangGraph task for each list element."""
        elements = await self._services.runner.list_elements(attempt, context)
        if isinstance(elements, StepRecord):
            return self._create_envelope(elements, attempt)
        task = self._services.step_tasks[attempt.capability]
        payload = _create_payload(attempt.index, attempt.step)

        def call(number: int) -> Awaitable[Envelope | None]:
            name = element_key(attempt.key, number)
            called: Awaitable[Envelope | None] = task(
                {**payload, "context_key": name, "element": number}
            )
            return called

        spec = self._services.registry.capabilities[attempt.capability]
        copies = ForEachRun(
            attempt, elements, spec, self._view, call=call, merge=self._apply_update
        )
        self._for_each_runs[attempt.key] = copies
        self._keys.update(map(copies.key, range(len(elements))))
        limits = self._services.limits
        if limits.max_turn_attempts is None:
            self.budget.allow_more_attempts(declared_max_attempts(spec.cls, limits) * len(elements))
        window = 2 * min(limits.max_parallel, spec.max_parallel or limits.max_parallel)
        with event_context(**self._view.event_ids, step_id=attempt.key):
            envelopes = await copies.run(window)
            record = copies.record()
        if record is None:
            return {"key": attempt.key, "update": {}, "copies": envelopes, "more": copies.has_more}
        copy_envelopes = (
            envelopes if record.error or spec.effect != "none" else copies.without_collected_data()
        )
        return {**self._create_envelope(record, attempt), "copies": copy_envelopes}

    def _run_copy(self, copies: ForEachRun, number: int) -> tuple[Attempt, Awaitable[StepResult]]:
        attempt = copies.attempt_at(number)
        stops = lambda _begun: self._stopping or copies.is_stopped  # noqa: E731
        return attempt, self._services.runner.run(
            attempt, self._create_attempt_context(attempt.key, stops)
        )

    def is_draining(self) -> bool:
        """Return True if the process is shutting down, so that no further steps may start."""
        return bool(self._control is not None and self._control.drain_requested)

    @property
    def seconds_used(self) -> float:
        """Total run time of this turn's steps in seconds, excluding time spent on decisions."""
        return self._used + self._services.clock.monotonic() - self._began

    def _compute_seconds_left(self) -> float | None:
        limit, deadline = self._services.limits.run_timeout_seconds, self._view.plan.get("deadline")
        if limit is None or (deadline is not None and deadline < limit):
            limit = deadline
        return None if limit is None else limit - self.seconds_used


def _create_payload(index: int, step: PlannedStep) -> dict[str, Any]:
    return {
        "context_key": step["context_key"],
        "step_index": index,
        "task_objective": step.get("task_objective"),
        "parameters": step.get("parameters"),
    }


def run_step_task(payload: dict[str, Any]) -> Awaitable[Envelope | None]:
    """Run a plan step in its LangGraph task and return an awaitable of its result."""
    run: PlanRun | None = run_context().plan_run
    if run is None:
        raise RuntimeError(
            "A step task must be called inside a plan run. Fix: call it from the router node."
        )
    return run.run_step(payload)


def _find_current_index(state: Mapping[str, Any]) -> int:
    results = state.get("execution_step_results") or {}
    steps = state["planning_execution_plan"].get("steps") or []
    for index, step in enumerate(steps):
        if step["capability"] in TERMINAL_STEPS or not (results.get(step["context_key"]) or {}).get(
            "success"
        ):
            return index
    return len(steps)
