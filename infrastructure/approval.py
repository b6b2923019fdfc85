"""Asks a person before risky steps run. Does nothing else, so resuming never repeats work."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langgraph.config import get_config
from langgraph.types import interrupt

from framework.approvals.apply_answers import apply_answers, ending, plan_rejected
from framework.approvals.questions import (
    PLAN,
    Answer,
    new_steps,
    plan_question,
    question_for,
    read_answers,
)
from framework.base import (
    BaseInfrastructureNode,
    ConfigurationError,
    ExecutionPlan,
    infrastructure_node,
)
from framework.engine import Services
from framework.engine.routing import route
from framework.state import AgentState
from framework.stores import Rule, add_rule, list_rules, matching_rule
from framework.telemetry import ApprovalAsked, emit
from infrastructure.orchestrator import accepted


@infrastructure_node
class ApprovalNode(BaseInfrastructureNode):
    """One interrupt for the plan, or for every step of a wave that needs a decision."""

    name = "approval"
    description = "Approval by a person"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, runtime: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Ask until the answer can be used, and write the decisions.

        Raises:
            ConfigurationError: Nothing would keep the question until it is answered.
        """
        configurable = get_config().get("configurable") or {}
        store, thread = getattr(runtime, "store", None), configurable.get("thread_id")
        if state.get("control_is_awaiting_validation"):
            _need_saver(configurable)
            answer = _ask(plan_question(state, services), state, services, store)[PLAN]
            return _decide_plan(answer, state, services)
        keys = route(state, services.registry, services.limits).steps
        rules = await _ruled(keys, state, services, store, thread)
        asked = [key for key in keys if key not in rules]
        answers: dict[str, Answer] = {}
        if asked:
            _need_saver(configurable)
            answers = _ask(question_for(asked, state, services), state, services, store)
            await _remember(answers, state, store, thread)
        return apply_answers(answers, state, services, rules)


def _ask(
    question: dict[str, Any], state: AgentState, services: Services, store: Any
) -> dict[str, Answer]:
    emit(ApprovalAsked(steps=question["steps"]))
    problems: list[str] = []
    while True:
        given = interrupt({**question, "problems": problems} if problems else question)
        answers, problems = read_answers(given, question, services, state)
        if store is None and any(answer.remember for answer in answers.values()):
            problems.append("Nothing can be remembered: the graph was built without a store.")
        if not problems:
            return answers


def _decide_plan(answer: Answer, state: AgentState, services: Services) -> dict[str, Any]:
    over = {"control_is_awaiting_validation": False, "control_validation_context": None}
    given = {PLAN: answer}
    payload = {"approved_payload": {PLAN: answer.model_dump(mode="json")}}
    if answer.decision == "reject":
        rejected = ending(given, {PLAN: answer.reason}, {PLAN: PLAN}, state, services)
        return {**over, **payload, **rejected, "approval_decisions": plan_rejected(answer, state)}
    update: dict[str, Any] = {
        **over,
        **payload,
        **ending(given, {}, {}, state, services),
        "approval_decisions": {PLAN: {"decision": answer.decision}},
    }
    if answer.decision == "edit":
        shown = state["planning_execution_plan"]
        plan = ExecutionPlan(steps=new_steps(answer))
        update |= accepted(plan, [], shown, state, services, author="approval")
    return {**update, **over}


async def _ruled(
    keys: tuple[str, ...],
    state: AgentState,
    services: Services,
    store: Any,
    thread: str | None,
) -> dict[str, str]:
    """Return the steps that a standing rule approves, with its id."""
    pending = state.get("execution_pending_approvals") or {}
    plain = [key for key in keys if (pending.get(key) or {}).get("kind") == "step"]
    if store is None or not plain:
        return {}
    rules = await list_rules(store, expired=False)
    now = datetime.fromtimestamp(services.clock.now(), UTC)
    found = {key: matching_rule(rules, pending[key]["capability"], thread, now) for key in plain}
    return {key: rule.id for key, rule in found.items() if rule is not None}


async def _remember(
    answers: Mapping[str, Answer], state: AgentState, store: Any, thread: str | None
) -> None:
    pending = state.get("execution_pending_approvals") or {}
    plan = (state["planning_execution_plan"] or {}).get("stamp") or {}
    for key, answer in answers.items():
        if answer.remember is None:
            continue
        only_here = answer.remember.scope == "thread"
        # The same answer, read again after a restart, makes the same rule.
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"{thread}/{plan.get('id')}/{key}")
        rule = Rule(
            id=name.hex,
            capability=pending[key]["capability"],
            thread_id=thread if only_here else None,
            expires_at=answer.remember.until,
            reason=answer.reason,
        )
        await add_rule(store, rule)


def _need_saver(configurable: Mapping[str, Any]) -> None:
    if configurable.get("__pregel_checkpointer") is None:
        raise ConfigurationError(
            "A person has to decide, and nothing would keep the question until then.",
            fix="Give build_graph a checkpointer, or set approvals.steps to 'none'.",
        )
