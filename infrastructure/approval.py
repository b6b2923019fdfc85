"""Node that asks a person to approve risky steps or plans.

It does nothing else, so resuming it never repeats work.
"""

from __future__ import annotations

from typing import Any

from langgraph.config import get_config

from capgraph.approvals import PLAN, ApprovalDecision, load_active_rules, plan_request, step_request
from capgraph.base import (
    BaseInfrastructureNode,
    ConfigurationError,
    ExecutionPlan,
    PolicyError,
    infrastructure_node,
)
from capgraph.engine import Services
from capgraph.engine.approval_decisions import (
    apply_answers,
    create_answers_update,
    create_plan_rejection,
)
from capgraph.engine.approval_requests import ask_person, create_answer_reader, save_standing_rules
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.plan_acceptance import accept_plan, prepare_plan
from capgraph.engine.routing import route
from capgraph.engine.turn_suspension import (
    list_wait_details,
    pending_waits,
    register_wait,
    suspend_turn,
)
from capgraph.engine.undo import finish_undo
from capgraph.langgraph_compat import count_available_answers, inherited_saver
from capgraph.state import AgentState, TurnView
from capgraph.telemetry.audit import record_later


@infrastructure_node
class ApprovalNode(BaseInfrastructureNode):
    """Node that pauses the run until a person decides about the plan or its steps."""

    name = "approval"
    description = "Approval by a person"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, runtime: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Ask a person for approval until the answer is valid, then record the decisions.

        Raises:
            ConfigurationError: The graph has no checkpointer to store the question.
        """
        view = services.view(state)
        store = getattr(runtime, "store", None)
        if state.get("control_is_awaiting_validation"):
            _raise_without_saver()
            question = plan_request(view, services.registry)
            parse_answers = create_answer_reader(question, view, services, store)
            problems: list[str] = []
            while True:
                decision = parse_answers(ask_person(question, parse_answers, problems))[0][PLAN]
                try:
                    return await _apply_plan_decision(decision, view, services)
                except PolicyError as exc:
                    problems = [str(exc)]
        keys = route(state, services.registry, services.limits).steps
        if pending_waits(view) and not (keys and count_available_answers()):
            _raise_without_saver("A step waits")
            if resume_update := await register_wait(view, services):
                return resume_update
            if not keys:
                suspend_turn(view)
        rules = await load_active_rules(store, services.clock.now())
        rules_by_key = {
            key: rules.find_rule(view.pending_approvals.get(key) or {}, view) for key in keys
        }
        rule_ids = {key: rule.id for key, rule in rules_by_key.items() if rule is not None}
        open_keys = [key for key in keys if key not in rule_ids]
        answers: dict[str, ApprovalDecision] = {}
        if open_keys:
            _raise_without_saver()
            question = step_request(open_keys, view, services.registry)
            if waits := list_wait_details(view):
                question["waits"] = waits
            if rules.problem:
                question = {**question, "note": rules.problem}
            parse_answers = create_answer_reader(question, view, services, store)
            answers = parse_answers(ask_person(question, parse_answers))[0]
            await save_standing_rules(answers, question, view, store)
        return await apply_answers(answers, view, services, rule_ids)


async def _apply_plan_decision(
    answer: ApprovalDecision, view: TurnView, services: Services
) -> dict[str, Any]:
    digest = plan_digest(view.plan)
    record_later("approval", step=PLAN, question=PLAN, decision=answer.decision, digest=digest)
    cleared = {"control_is_awaiting_validation": False, "control_validation_context": None}
    answers = {PLAN: answer}
    payload = {"approved_payload": {PLAN: answer.model_dump(mode="json")}}
    if answer.decision == "reject" and view.state.get("control_undo"):
        return {**cleared, **payload, **finish_undo(view), "approval_approved": False}
    if answer.decision == "reject":
        rejected = create_answers_update(
            answers, {PLAN: answer.reason}, {PLAN: PLAN}, view, services
        )
        return {
            **cleared,
            **payload,
            **rejected,
            "approval_decisions": create_plan_rejection(answer, view),
        }
    update: dict[str, Any] = {
        **cleared,
        **payload,
        **create_answers_update(answers, {}, {}, view, services),
        "approval_decisions": {PLAN: {"decision": answer.decision}},
    }
    if answer.decision == "edit":
        plan = ExecutionPlan(steps=answer.new_steps)
        checked = await prepare_plan(plan, view, services, active=None, author="approval")
        update |= await accept_plan(checked, view, services, author="approval", previous=view.plan)
    elif answer.decision == "approve":
        agreements = services.ledger(view).approvals
        await agreements.approve(plan_digest(view.plan), PLAN, view.sender, services.clock.now())
    return {**update, **cleared}


def _raise_without_saver(cause: str = "An approval is pending") -> None:
    if inherited_saver(get_config()) is None:
        raise ConfigurationError(
            f"{cause}, but the graph has no checkpointer to store the turn until it resumes.",
            fix="Pass a checkpointer to build_graph, or set approvals.steps to 'none' and use no waiting"
            " steps and no policies that ask.",
        )
