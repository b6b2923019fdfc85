"""Asks a person before risky steps run. Does nothing else, so resuming never repeats work."""

from __future__ import annotations

from typing import Any

from langgraph.config import get_config

from capgraph.approvals import PLAN, Answer, plan_question, standing_rules, step_question
from capgraph.base import (
    BaseInfrastructureNode,
    ConfigurationError,
    ExecutionPlan,
    PolicyError,
    infrastructure_node,
)
from capgraph.engine import Services
from capgraph.engine.accept_plan import accept, check
from capgraph.engine.apply_answers import apply_answers, ending, plan_rejected
from capgraph.engine.asking import ask_person, reader, remember
from capgraph.engine.caller_plan import plan_digest
from capgraph.engine.routing import route
from capgraph.engine.undo import closed
from capgraph.engine.waiting import stands, wait_here, waits_in, waits_shown
from capgraph.langgraph_compat import answers_there, lent_saver
from capgraph.state import AgentState, TurnView
from capgraph.telemetry.audit import note


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
            read = reader(question, view, services, store)
            problems: list[str] = []
            while True:
                answers = read(ask_person(question, read, problems))[0]
                try:
                    return await _decide_plan(answers[PLAN], view, services)
                except PolicyError as exc:
                    problems = [str(exc)]
        keys = route(state, services.registry, services.limits).steps
        if waits_in(view) and not (keys and answers_there()):
            _need_saver("A step waits")
            if woken := await stands(view, services):
                return woken
            if not keys:
                wait_here(view)
        rules = await standing_rules(store, services.clock.now())
        found = {key: rules.covering(view.pending.get(key) or {}, view) for key in keys}
        ruled = {key: rule.id for key, rule in found.items() if rule is not None}
        asked = [key for key in keys if key not in ruled]
        given: dict[str, Answer] = {}
        if asked:
            _need_saver()
            question = step_question(asked, view, services.registry)
            if waits := waits_shown(view):
                question["waits"] = waits
            if rules.problem:
                question = {**question, "note": rules.problem}
            read = reader(question, view, services, store)
            given = read(ask_person(question, read))[0]
            await remember(given, question, view, store)
        return await apply_answers(given, view, services, ruled)


async def _decide_plan(answer: Answer, view: TurnView, services: Services) -> dict[str, Any]:
    digest = plan_digest(view.plan)
    note("approval", step=PLAN, question=PLAN, decision=answer.decision, digest=digest)
    over = {"control_is_awaiting_validation": False, "control_validation_context": None}
    given = {PLAN: answer}
    payload = {"approved_payload": {PLAN: answer.model_dump(mode="json")}}
    if answer.decision == "reject" and view.state.get("control_undo"):
        return {**over, **payload, **closed(view), "approval_approved": False}
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
        checked = await check(plan, view, services, active=None, author="approval")
        update |= await accept(checked, view, services, author="approval", previous=view.plan)
    elif answer.decision == "approve":
        agreements = services.ledger(view).agreements
        await agreements.agree(plan_digest(view.plan), PLAN, view.sender, services.clock.now())
    return {**update, **over}


def _need_saver(why: str = "A person has to decide") -> None:
    if lent_saver(get_config()) is None:
        raise ConfigurationError(
            f"{why}, and nothing would keep the turn until then.",
            fix="Give build_graph a checkpointer; or set approvals.steps to 'none', and let no step"
            " wait and no policy ask.",
        )
