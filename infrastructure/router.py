"""Node that carries out routing decisions: it runs ready steps or hands over to another node."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from langgraph.types import Command

from capgraph.base import (
    BaseInfrastructureNode,
    ErrorSeverity,
    FatalExecutionError,
    PlanError,
    PolicyError,
    infrastructure_node,
)
from capgraph.base.ports import Failure, RetryRule
from capgraph.configs.streaming import get_streamer
from capgraph.engine import Services
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.dialogues import HANDOFF_STAMP, settle_dialogue
from capgraph.engine.plan_acceptance import (
    accept_plan,
    may_need_review,
    plan_labels,
    prepare_plan,
    reserve_plan_budget,
)
from capgraph.engine.ready_queue import run_ready_steps
from capgraph.engine.routing import ACCEPT, FATAL, RUN, Route, route
from capgraph.engine.turn_outcome import waiting_outcome
from capgraph.engine.turn_suspension import clear_wait, create_wake_update, pending_waits
from capgraph.engine.undo import finish_undo, offer_undo
from capgraph.governance.budget import BudgetExceededError
from capgraph.pipeline.failures import (
    classify_failure,
    clear_failure_update,
    create_refusal_failure,
    failure_update,
)
from capgraph.pipeline.middleware import find_last_of_type
from capgraph.pipeline.retry_policy import next_attempt
from capgraph.pipeline.state_update import Writes, apply_writes, merge_writes
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.plan_access import plan_stamp
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import Reclassify, Replan, emit


@infrastructure_node(quiet=True)
class RouterNode(BaseInfrastructureNode):
    """Node that runs the steps of the plan and uses ``route`` to choose the next node."""

    name = "router"
    description = "Routing"

    @staticmethod
    async def execute(state: AgentState, services: Services, **_: Any) -> Command[Any]:
        """Run the steps of the plan until the turn must continue in a different node.

        Raises:
            FatalExecutionError: A failure was classified as FATAL.
        """
        run = _RouterRun(services, dict(state))
        routing_count = int(state.get("control_routing_count") or 0)
        if (
            run.pending_waits
            and not run.view.resumed_keys
            and (resume_update := await create_wake_update(run.view, services))
        ):
            return Command(update=resume_update, goto="router")
        while True:
            routing_count += 1
            decision = route(run.state, services.registry, services.limits)
            if decision.target == FATAL:
                raise FatalExecutionError(
                    f"{decision.reason}. Execution terminated due to system-level failure."
                )
            if decision.target == ACCEPT:
                await run.accept_plan()
                continue
            run.record_dead_end(decision)
            if await run.apply_policies(decision):
                continue
            if decision.target == "error" and await run.offer_undo():
                continue
            if decision.target != RUN:
                break
            if await run.is_review_open():
                decision = Route("approval", "A person must review the plan first.")
                run.write({"control_is_awaiting_validation": True})
                break
            if decision.failures:
                await _wait_before_retry(run.view, decision, services)
            if await run.run_steps():
                # LangGraph stops between supersteps; a resumed run continues here.
                decision = Route("router", "The superstep is over.")
                break
        if decision.failures:
            await _wait_before_retry(run.view, decision, services)
        await run.record_waits(decision)
        run.write(_create_handover_update(decision, run.view))
        run.write({"control_routing_count": routing_count, "control_next_node": decision.target})
        return Command(
            update=merge_writes(run.writes, services.runner_config.schema), goto=decision.target
        )


class _RouterRun:
    """One execution of the router node, with the state updates written so far."""

    def __init__(self, services: Services, state: dict[str, Any]) -> None:
        self.services = services
        self.state = state
        self.writes: Writes = []

    @property
    def view(self) -> TurnView:
        return self.services.view(self.state)

    def write(self, update: dict[str, Any]) -> None:
        self.writes += list(update.items())
        self.state = apply_writes(
            self.state, list(update.items()), self.services.runner_config.schema
        )

    def record_dead_end(self, decision: Route) -> None:
        """Record why routing ended the turn, if no failure explains the reason."""
        is_explained = self.view.failure is not None or self.state.get("control_is_killed")
        if decision.target == "error" and not is_explained:
            error = PlanError(
                decision.reason,
                fix="Check custom nodes that write the plan.",
                severity=ErrorSeverity.CRITICAL,
            )
            self.write(failure_update([create_refusal_failure("router", error)]))

    async def apply_policies(self, decision: Route) -> bool:
        """Apply the rules of the policy engines.

        Returns True if the next node must be chosen again.
        """
        engines, killed = self.services.policy_engines, self.state.get("control_is_killed")
        if not engines or killed or decision.target == "approval":
            return False
        from capgraph.engine.policy_actions import consult_policies  # only needed with rules

        view = self.view
        has_failed = decision.target == "error" and view.failure is not None
        is_over = decision.target in TERMINAL_STEPS and bool(view.steps)
        update, again = await consult_policies(
            view, self.services, has_failed=has_failed, is_completed=is_over
        )
        self.write(update)
        return again

    @property
    def pending_waits(self) -> dict[str, Any]:
        """Pending waits by context key."""
        return pending_waits(self.view)

    async def record_waits(self, decision: Route) -> None:
        """Record that the turn is suspended, or remove the record when the wait ends."""
        if decision.target == "approval" and not decision.steps and self.pending_waits:
            info = {"waits_since": self.services.clock.now()}
            outcome = {"execution_outcome": waiting_outcome(self.state, self.pending_waits)}
            self.write(
                {**outcome, "runtime_info": {**(self.state.get("runtime_info") or {}), **info}}
            )
        if decision.target in (*TERMINAL_STEPS, "error") and self.view.waited_seconds is not None:
            await clear_wait(self.services)

    async def run_steps(self) -> bool:
        """Run all steps that are ready. Returns True if the LangGraph superstep is over."""
        try:
            async with reserve_plan_budget(self.view, self.services):
                done = await run_ready_steps(self.view, self.services)
        except BudgetExceededError as exc:
            self.write(failure_update([create_refusal_failure("router", exc)]))
            return False
        before = self.view
        self.writes += done.writes
        self.state = done.state
        self.write(
            settle_dialogue(before, self.view, can_answer=self.services.can_answer_directly(before))
        )
        if done.proposed_plans:
            await self._accept_proposal(done.proposed_plans)
        return done.ends_superstep

    async def _accept_proposal(self, proposed: list[tuple[Any, str]]) -> None:
        authors = ", ".join(author for _, author in proposed)
        info = self.view.failure
        failure = Failure.from_state(info) if info is not None else None
        if failure is not None and failure.severity is not ErrorSeverity.RETRIABLE:
            text = f"Ignored the plan of {authors}: {failure.message}"
            get_streamer("framework", "router").warning(text)
        elif len(proposed) > 1:
            self._refuse(
                PlanError(
                    f"Several concurrent steps proposed a plan: {authors}.",
                    fix="Let only one capability of a plan propose the next plan.",
                    severity=ErrorSeverity.REPLANNING,
                ),
                self.view,
            )
        else:
            await self.accept_plan(*proposed[0])

    async def accept_plan(self, plan: Any = None, author: str = "") -> None:
        """Validate a plan and make it the current plan.

        If the plan is invalid, the failure is written to the state instead.

        Args:
            plan: Plan to validate. Defaults to the plan in the state.
            author: Name of the author of the plan.
        """
        view = self.view
        proposed = plan if plan is not None else view.state.get("planning_execution_plan")
        stamp = plan_stamp(proposed)
        is_handoff = HANDOFF_STAMP in stamp
        author = author or (
            "caller" if "brought" in stamp else "dialogue" if is_handoff else "state"
        )
        previous = view.plan if plan is not None else None
        try:
            self._count_plan(plan is not None, author, is_handoff=is_handoff)
            labels = plan_labels(author, view, self.services)
            checked = await prepare_plan(proposed, view, self.services, None, labels, author=author)
            update = await accept_plan(
                checked, view, self.services, author=author, previous=previous
            )
        except (PlanError, PolicyError) as exc:
            self._refuse(exc, view)
            return
        self.write(update)

    def _count_plan(self, is_proposed: bool, author: str, *, is_handoff: bool) -> None:
        """Count a new plan toward the plan limit of this turn.

        A handoff plan counts toward ``max_looks`` instead, because it responds to a result.

        Raises:
            PlanError: The turn has reached its limit on plans or reviews.
        """
        view, limits = self.view, self.services.limits
        if is_handoff:
            counter, setting, limit = "looks", "max_looks", limits.max_looks
            is_new = is_proposed
        else:
            counter, setting = "plans", "max_planning_attempts"
            limit = max(limits.max_planning_attempts, 1)
            # The orchestrator counts its own plans; plans of other authors are counted here.
            accepted = view.state.get("control_plans_created_count", 0)
            is_new = is_proposed or view.budget.get(counter, 0) <= accepted
        count = view.budget.get(counter, 0) + is_new
        if is_new:
            self.write({"control_budget": {counter: count}})
        if count > limit:
            raise PlanError(
                f"The plan from {author!r} exceeds the limit for this turn, "
                f"limits.{setting}={limit}.",
                fix=f"Raise limits.{setting}, or propose fewer plans.",
                severity=ErrorSeverity.CRITICAL,
                facts={"author": author, "setting": setting, "limit": limit},
            )

    def _refuse(self, exc: PlanError | PolicyError, view: TurnView) -> None:
        failure = classify_failure(
            RouterNode, exc, {"current_state": view.state}, node="orchestrator"
        )
        self.write({**failure_update([failure]), "planning_execution_plan": None})

    async def offer_undo(self) -> bool:
        """Offer to undo completed side effects before a failed turn ends.

        Returns True if the turn continues with the offer.
        """
        undo = self.state.get("control_undo") or {}
        if undo.get("open"):
            self.write(finish_undo(self.view))
        elif not self.state.get("control_is_killed"):
            self.write(await offer_undo(self.view, self.services))
            return bool((self.state.get("control_undo") or {}).get("open"))
        return False

    async def is_review_open(self) -> bool:
        view = self.view
        if not may_need_review(view, self.services):
            return False
        agreements = self.services.ledger(view).approvals
        return await agreements.is_review_open(plan_digest(view.plan))


def _create_handover_update(decision: Route, view: TurnView) -> dict[str, Any]:
    """Create the state update that hands a failure over to the node that handles it.

    The current error entry is removed, so that a new failure in the handling node does not
    replace the original reason.
    """
    info = view.failure
    if info is None and decision.target == "orchestrator" and decision.steps:
        emit(Replan(reason=decision.reason, plans_made=len(view.state["planning_history"])))
        return {"control_last_error": None}
    if info is None or decision.failures:
        return {}
    severity = Failure.from_state(info).severity
    reason = info.get("user_message") or decision.reason
    if decision.target == "orchestrator" and severity is ErrorSeverity.REPLANNING:
        made = view.state.get("control_plans_created_count", 0)
        emit(Replan(reason=decision.reason, plans_made=made))
        return {**clear_failure_update(), "control_last_error": dict(info)}
    if decision.target == "classifier" and severity is ErrorSeverity.RECLASSIFICATION:
        emit(Reclassify(reason=decision.reason))
        origin = info.get("capability_name") or info.get("node_name") or ""
        return {
            **clear_failure_update(),
            "control_last_error": dict(info),
            "control_reclassification_reason": reason,
            "control_reclassification_count": view.state.get("control_reclassification_count", 0)
            + 1,
            "planning_excluded": {**view.excluded_capabilities, origin: reason or "it did not fit"},
        }
    return {}


async def _wait_before_retry(view: TurnView, decision: Route, services: Services) -> None:
    info = view.failure or {}
    limits, node = (
        services.limits,
        services.registry.infrastructure.get(info.get("node_name") or ""),
    )
    rule = find_last_of_type(node.behaviors, RetryRule) if node is not None else None
    retry = next_attempt(Failure.from_state(info), decision.failures, limits, rule)
    if retry is None:
        return
    remaining = retry.delay - _seconds_since(info.get("timestamp"), services)
    retry = retry._replace(delay=min(retry.delay, max(0.0, remaining)))
    name = info.get("node_name") or info.get("capability_name") or ""
    emit(retry.event(name, decision.reason, info.get("context_key")))
    await services.clock.sleep(retry.delay)


def _seconds_since(timestamp: str | None, services: Services) -> float:
    """Return the seconds that have passed since a failure.

    A restarted run uses the result to wait only for the rest of the retry delay.
    """
    try:
        failed = datetime.fromisoformat(timestamp or "").timestamp()
    except ValueError:
        return 0.0
    return max(0.0, services.clock.now() - failed)
