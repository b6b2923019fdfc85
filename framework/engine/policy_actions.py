"""Actions of policy rules on a turn, within the limits of the turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from capgraph.base.errors import ErrorSeverity, StoppedError
from capgraph.base.ports import Failure, StepRecord
from capgraph.base.turn_budget import TurnBudget
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.plan_acceptance import request_plan_review
from capgraph.engine.services import Services
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.governance.policies import (
    PhaseContext,
    PolicyAction,
    PolicyActionData,
    PolicyEngine,
    PolicyRule,
)
from capgraph.governance.quality_gate import QualityGateError, QualityLevel
from capgraph.governance.recovery import (
    RecoveryContext,
    RecoveryStep,
    aattempt_recovery,
    classify_failure,
)
from capgraph.helpers.async_calls import maybe_await
from capgraph.pipeline.failures import clear_failure_update, failure_update
from capgraph.pipeline.retry_policy import backoff_delay
from capgraph.planning import TERMINAL_STEPS
from capgraph.state import TurnView
from capgraph.telemetry import PolicyActionApplied, emit
from capgraph.telemetry.usage_recorder import usage_totals


async def consult_policies(
    view: TurnView, services: Services, *, has_failed: bool, is_completed: bool
) -> tuple[dict[str, Any], bool]:
    """Evaluate all policy rules for the current turn and run the actions of matching rules.

    Args:
        view: Current state of the turn.
        services: Services of the graph.
        has_failed: True if a step failed and cannot be retried or replanned.
        is_completed: True if all steps have ended.

    Returns:
        The state update, and True if the router must choose the next node again.
    """
    turn = _PolicyActionRunner(view, services)
    ctx = await _create_phase_context(view, services, failed=has_failed, over=is_completed)
    for engine in services.policy_engines:
        rules: Sequence[PolicyRule] = await maybe_await(engine.matching(ctx))
        for rule in rules:
            name = f"policy:{rule.name}"
            used = view.failed_attempts.get(name, 0)
            if used >= engine.max_uses_per_turn:
                continue
            turn.update["control_attempts"] = {
                **turn.update.get("control_attempts", {}),
                name: used + 1,
            }
            for action in rule.actions:
                await turn.act(engine, rule, action)
    return turn.update, turn.needs_routing


async def govern_node(
    record: StepRecord,
    view: TurnView,
    services: Services,
    budget: TurnBudget,
    started_at: float,
    rerun: Callable[[int], Awaitable[StepRecord]],
) -> tuple[StepRecord, Failure | None]:
    """Run the actions of matching policy rules after a capability node in a custom graph.

    The node may be run again if an action requests a retry.

    Args:
        record: Record of the node's step.
        view: State of the graph.
        services: Services of the graph.
        budget: Counters of the node execution.
        started_at: Start time of the node execution.
        rerun: Function that runs the step again. Its argument is the number of failures so far.

    Returns:
        The final record of the step, and the failure if a rule stopped the node.
    """
    acted: dict[str, int] = {}
    while True:
        error = record.error
        step = {"context_key": record.key, "capability": record.capability}
        state: dict[str, Any] = {
            **view.state,
            "planning_execution_plan": {"steps": [step]},
            "execution_step_results": {record.key: record.to_state_entry()},
            "execution_start_time": started_at,
            "control_attempts": acted,
            "control_budget": budget.to_plain(),
            **(clear_failure_update() if error is None else failure_update([error])),
        }
        update, needs_routing = await consult_policies(
            services.view(state), services, has_failed=error is not None, is_completed=error is None
        )
        acted = {**acted, **update.get("control_attempts", {})}
        for name, number in update.get("control_budget", {}).items():
            setattr(budget, name, number)
        if update.get("control_is_killed"):
            reason, code = str(update["control_kill_reason"]), {"code": StoppedError.code}
            origin: Any = {"capability": record.capability, "key": record.key}
            return record, Failure(ErrorSeverity.CRITICAL, reason, metadata=code, **origin)
        if error is None or not needs_routing:
            return record, None
        if skipped := update.get("execution_step_results"):
            return replace(record, error=None, skipped=skipped[record.key]["error"]), None
        record = await rerun(error.attempts)


async def _create_phase_context(
    view: TurnView, services: Services, *, failed: bool, over: bool
) -> PhaseContext:
    work_steps = [step for step in view.steps if step["capability"] not in TERMINAL_STEPS]
    info = view.failure if failed else None
    failures = [info, *(info.get("other_failures") or [])] if info is not None else []
    read = [Failure.from_state(entry) for entry in failures]
    levels = [r["quality"] for r in view.results.values() if r.get("quality") is not None]
    low = any(failure.metadata.get("code") == QualityGateError.code for failure in read)
    started_at = view.state.get("execution_start_time") or services.clock.now()
    started_at += view.waited_seconds or 0.0
    return PhaseContext(
        phase=view.task,
        quality_level=QualityLevel(min(levels)) if levels else None,
        # Without a checked result, no quality is below the level.
        gate_score=0 if low else min(levels, default=max(QualityLevel)),
        completed_roles={
            s["capability"] for s in work_steps if s["context_key"] in view.succeeded_keys
        },
        failed_roles={failure.capability or failure.node or "" for failure in read},
        all_roles={step["capability"] for step in work_steps},
        elapsed_seconds=max(0.0, services.clock.now() - started_at),
        retry_exhausted_scenarios={classify_failure(failure).value for failure in read},
        phase_completed=over,
        total_cost_usd=await _compute_turn_cost(view, services),
    )


async def _compute_turn_cost(view: TurnView, services: Services) -> float | None:
    """Return the cost of the turn's model calls, or ``None`` if the total cannot be determined.

    The total is unknown if a price or a call is missing from the usage records.
    """
    if not view.budget.get("model_calls"):
        return 0.0
    rows = services.journal().tables
    if rows is None:
        return None
    await services.budget_policy.recorder.aflush()
    totals = await usage_totals(rows, thread_id=view.thread_id, turn_id=view.turn_id)
    costs = [total.cost_usd for total in totals]
    return None if None in costs or not costs else sum(cost for cost in costs if cost is not None)


_PLAN_ACTIONS = {PolicyAction.RETRY_PHASE, PolicyAction.ESCALATE, PolicyAction.STORE_GATE_FEEDBACK}


class _PolicyActionRunner:
    """Executor of policy actions, which collects the resulting state update for one turn.

    Attributes:
        update: State update that results from the actions run so far.
        needs_routing: True if the router must choose the next node again.
    """

    def __init__(self, view: TurnView, services: Services) -> None:
        self._view, self._services = view, services
        self._failure = Failure.from_state(view.failure) if view.failure is not None else None
        self.update: dict[str, Any] = {}
        self.needs_routing = False

    async def act(self, engine: PolicyEngine, rule: PolicyRule, action: PolicyActionData) -> None:
        """Run one action of a matching policy rule and emit the result as an event."""
        ways: dict[PolicyAction, Callable[..., Any]] = {
            PolicyAction.ADVANCE_PHASE: self._advance,
            PolicyAction.RETRY_AGENT: self._retry,
            PolicyAction.RETRY_PHASE: self._replan,
            PolicyAction.RECOVER_ONCE: self._recover,
            PolicyAction.ESCALATE: self._escalate,
            PolicyAction.STORE_GATE_FEEDBACK: self._store_feedback,
            PolicyAction.GENERATE_HANDOFF: lambda *_: "",
            PolicyAction.NOTIFY: lambda *_: "",
            PolicyAction.ABORT_PHASE: self._stop,
        }
        params = action.params or {}
        if action.action in _PLAN_ACTIONS and not self._view.has_turn:
            obstacle = "A custom graph has no plan that a rule could change."
        else:
            obstacle = await maybe_await(ways[action.action](engine, rule, params))
        details = dict(params)
        if action.action is PolicyAction.GENERATE_HANDOFF:
            details["handoff"] = describe_outcome(self._view.state)
        reason = str(params.get("message") or (self._failure.message if self._failure else ""))
        emit(
            PolicyActionApplied(
                rule=rule.name,
                action=action.action.value,
                message=obstacle or reason,
                params=details or None,
                done=not obstacle,
            )
        )

    def _advance(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        info = self._view.failure or {}
        keys = {e.get("context_key") for e in (info, *(info.get("other_failures") or []))}
        steps = [
            (index, step)
            for index, step in enumerate(self._view.steps)
            if step["context_key"] in keys and step["context_key"] not in self._view.succeeded_keys
        ]
        if not steps:
            return "No failed step can be skipped."
        self.update["execution_step_results"] = {
            step["context_key"]: StepRecord(
                step["context_key"],
                step["capability"],
                index,
                self._view.step_objective(step),
                skipped=f"The rule {rule.name!r} skipped the step: {info['user_message']}",
            ).to_state_entry()
            for index, step in steps
        }
        self._clear_failure(extra_attempts=0)
        return ""

    def _retry(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        failure = self._failure
        if failure is None:
            return "No failed step can be retried."
        if failure.metadata.get("effect_done"):
            return "The effect is done and must not be repeated."
        if failure.metadata.get("code") == "CG-LIMIT":
            return "The run reached a limit, which no rule can exceed."
        if params.get("switch_model"):
            self._count_action("model_switches")
        if params.get("smaller_context"):
            self._count_action("context_cuts")
        self._clear_failure(
            extra_attempts=1 + len((self._view.failure or {}).get("other_failures") or [])
        )
        return ""

    def _replan(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        message = str(params.get("message") or f"The rule {rule.name!r} requests another plan.")
        failure = self._failure or Failure(ErrorSeverity.REPLANNING, message, node="router")
        if failure.metadata.get("effect_done"):
            return "The effect is done, and another plan cannot change its result."
        self.update |= failure_update([replace(failure, severity=ErrorSeverity.REPLANNING)])
        self.needs_routing = True
        return ""

    async def _recover(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        if self._failure is None:
            return "No failed step can be recovered."
        clock = self._services.clock
        cap = self._services.limits.max_retry_delay_seconds
        actions: dict[RecoveryStep | str, Callable[[], Any]] = {
            RecoveryStep.RETRY_WITH_BACKOFF: lambda: clock.sleep(backoff_delay(1, cap=cap)),
            RecoveryStep.RETRY_WITH_SMALLER_CONTEXT: lambda: self._count_action("context_cuts"),
            RecoveryStep.RESTART_AGENT: lambda: None,  # a retry restarts the agent
        }
        if engine.models:
            actions[RecoveryStep.SWITCH_PROVIDER] = lambda: self._count_action("model_switches")
        result = await aattempt_recovery(classify_failure(self._failure), RecoveryContext(actions))
        if not result.recovered_steps:
            return result.reason
        return self._retry(engine, rule, {})

    async def _escalate(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        view = self._view
        open_steps = [
            s for s in view.steps if s["context_key"] not in view.succeeded_keys | view.skipped_keys
        ]
        if all(step["capability"] in TERMINAL_STEPS for step in open_steps):
            return "The plan has no steps left for a person to decide about."
        if not self._services.journal().is_durable:
            return "A person cannot be asked: the graph has no saver to store the question."
        message = str(params.get("message") or f"The rule {rule.name!r} requests a review.")
        problems = [message, *([self._failure.message] if self._failure else [])]
        digest, ledger = plan_digest(view.plan), self._services.ledger(view)
        self.update |= await request_plan_review(view.plan, digest, problems, ledger)
        self._clear_failure(extra_attempts=1)
        return ""

    def _store_feedback(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        message = params.get("message") or (self._failure.message if self._failure else "")
        if not message:
            return "There is no feedback for the next plan."
        failure = self._failure or Failure(ErrorSeverity.REPLANNING, "", node="router")
        self.update["control_last_error"] = replace(failure, message=str(message)).to_state()
        return ""

    def _stop(self, engine: PolicyEngine, rule: PolicyRule, params: Any) -> str:
        why = params.get("message") or (self._failure.message if self._failure else "")
        self.update["control_is_killed"] = True
        self.update["control_kill_reason"] = " ".join(
            text for text in (f"The rule {rule.name!r} stopped the turn.", str(why)) if text
        )
        self.needs_routing = True
        return ""

    def _count_action(self, name: str) -> None:
        counters = self.update.setdefault("control_budget", {})
        counters[name] = counters.get(name, self._view.budget.get(name, 0)) + 1

    def _clear_failure(self, *, extra_attempts: int) -> None:
        """Remove the current failure from the turn and allow additional step attempts."""
        self.needs_routing = True
        if self._failure is None:
            return
        self.update |= clear_failure_update()
        allowed = int(self._view.budget.get("allowed_attempts", 0))
        if extra_attempts and allowed and self._services.limits.max_turn_attempts is None:
            self.update.setdefault("control_budget", {})["allowed_attempts"] = (
                allowed + extra_attempts
            )
