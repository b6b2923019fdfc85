"""Asks a person before risky steps run. Does nothing else, so resuming never repeats work."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langgraph.config import get_config

from framework.approvals import (
    PLAN,
    STEP,
    Answer,
    Rule,
    StandingRules,
    add_rule,
    plan_question,
    read_answers,
    standing_rules,
    step_question,
)
from framework.base import (
    BaseInfrastructureNode,
    ConfigurationError,
    ExecutionPlan,
    PolicyError,
    infrastructure_node,
)
from framework.engine import Services
from framework.engine.accept_plan import accept, check
from framework.engine.apply_answers import apply_answers, ending, plan_rejected
from framework.engine.asking import ask_person
from framework.engine.caller_plan import plan_digest
from framework.engine.routing import route
from framework.langgraph_compat import lent_saver
from framework.state import AgentState, TurnView


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
        view = services.view(state)
        store = getattr(runtime, "store", None)
        if state.get("control_is_awaiting_validation"):
            _need_saver()
            question = plan_question(view, services.registry)
            answers: dict[str, Answer] = {}
            problems: list[str] = []
            while not answers or problems:
                answers = _ask(question, view, services, store, problems)
                answer = answers[PLAN]
                try:
                    return await _decide_plan(answer, view, services)
                except PolicyError as exc:
                    problems = [str(exc)]
        keys = route(state, services.registry, services.limits).steps
        rules = await standing_rules(store, services.clock.now())
        ruled = _ruled(keys, view, rules)
        asked = [key for key in keys if key not in ruled]
        given: dict[str, Answer] = {}
        if asked:
            _need_saver()
            question = step_question(asked, view, services.registry)
            if rules.problem:
                question = {**question, "note": rules.problem}
            given = _ask(question, view, services, store)
            await _remember(given, view, store)
        return await apply_answers(given, view, services, ruled)


def _ask(
    question: dict[str, Any],
    view: TurnView,
    services: Services,
    store: Any,
    problems: list[str] | None = None,
) -> dict[str, Answer]:
    def read(given: Any) -> tuple[dict[str, Answer], list[str]]:
        answers, wrong = read_answers(given, question, services.registry, services.limits, view)
        if store is None and any(answer.remember for answer in answers.values()):
            wrong.append("Nothing can be remembered: the graph was built without a store.")
        return answers, wrong

    return ask_person(question, read, problems)


async def _decide_plan(answer: Answer, view: TurnView, services: Services) -> dict[str, Any]:
    over = {"control_is_awaiting_validation": False, "control_validation_context": None}
    given = {PLAN: answer}
    payload = {"approved_payload": {PLAN: answer.model_dump(mode="json")}}
    if answer.decision == "reject":
        rejected = ending(given, {PLAN: answer.reason}, {PLAN: PLAN}, view, services)
        return {**over, **payload, **rejected, "approval_decisions": plan_rejected(answer, view)}
    update: dict[str, Any] = {
        **over,
        **payload,
        **ending(given, {}, {}, view, services),
        "approval_decisions": {PLAN: {"decision": answer.decision}},
    }
    if answer.decision == "edit":
        plan = ExecutionPlan(steps=answer.new_steps)
        checked = await check(plan, view, services, active=None)
        update |= await accept(checked, view, services, author="approval", previous=view.plan)
    elif answer.decision == "approve":
        await services.ledger(view).agree(plan_digest(view.plan), PLAN)
    return {**update, **over}


def _ruled(keys: tuple[str, ...], view: TurnView, rules: StandingRules) -> dict[str, str]:
    """Return the steps that a standing rule approves, with its id."""
    found = {
        key: rules.covering(asked["capability"], view.thread_id, view.caller.user_id)
        for key in keys
        if (asked := view.pending.get(key) or {}).get("kind") == STEP and not asked.get("reason")
    }
    return {key: rule.id for key, rule in found.items() if rule is not None}


async def _remember(answers: Mapping[str, Answer], view: TurnView, store: Any) -> None:
    for key, answer in answers.items():
        if answer.remember is None:
            continue
        only_here = answer.remember.scope == "thread"
        # The same answer, read again after a restart, makes the same rule.
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"{view.thread_id}/{view.plan_id}/{key}")
        rule = Rule(
            id=name.hex,
            capability=view.pending[key]["capability"],
            thread_id=view.thread_id if only_here else None,
            user_id=view.caller.user_id,
            expires_at=answer.remember.until,
            reason=answer.reason,
        )
        await add_rule(store, rule)


def _need_saver() -> None:
    if lent_saver(get_config()) is None:
        raise ConfigurationError(
            "A person has to decide, and nothing would keep the question until then.",
            fix="Give build_graph a checkpointer, or set approvals.steps to 'none'.",
        )
