"""Puts a question to a person and goes on asking until the answer can be used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.types import interrupt

from capgraph.approvals import ApprovalDecision, StandingRule, add_rule, parse_decisions
from capgraph.approvals.requests import TEXT, text_request
from capgraph.base.ports import Caller, Verdict
from capgraph.engine.services import Services
from capgraph.engine.step_tasks import run_as_task
from capgraph.langgraph_compat import count_available_answers
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.run_config import current_sender
from capgraph.state import TurnView
from capgraph.telemetry import ApprovalRequested, emit
from capgraph.telemetry.audit import record_decision

AnswerReader = Callable[[Any], tuple[dict[str, ApprovalDecision], list[str]]]


def answer_reader(
    question: Mapping[str, Any], view: TurnView, services: Services, store: BaseStore | None
) -> AnswerReader:
    """Return what reads an answer: the decisions by key, and what is wrong with them."""

    def read(given: Any) -> tuple[dict[str, ApprovalDecision], list[str]]:
        answers, wrong = parse_decisions(given, question, services.registry, services.limits, view)
        told = [problem.message for problem in wrong]
        if store is None and any(answer.remember for answer in answers.values()):
            told.append("Nothing can be remembered: the graph was built without a store.")
        return answers, told

    return read


def ask_person(
    question: dict[str, Any], read_answer: AnswerReader, problems: list[str] | None = None
) -> Any:
    """Interrupt the running task, which must do nothing else, until an answer has no problems.

    Args:
        question: What is asked.
        read_answer: Reads what was given.
        problems: What was wrong with an earlier answer.

    Returns:
        The answer as it was given.
    """
    there = count_available_answers()
    if not there:
        emit(ApprovalRequested(steps=question["steps"]))
    if problems is None:
        # Those before the last were refused; what has changed since must not make them count.
        for _ in range(there - 1):
            interrupt(question)
    while True:
        given = interrupt({**question, "problems": problems} if problems else question)
        problems = read_answer(given)[1]
        if not problems:
            return given


async def ask_in_task(
    question: dict[str, Any], read_answer: AnswerReader
) -> tuple[dict[str, ApprovalDecision], Caller]:
    """Ask in a LangGraph task that does nothing else, and return the answers and who gave them.

    So they are never taken for those of the code's own questions, and what they are about may
    stand in the middle of other work.
    """

    async def ask() -> Any:
        # Who answers is kept with the answer: another person's run may come back to it.
        return [
            compute_digest(question),
            ask_person(question, read_answer),
            asdict(current_sender()),
        ]

    while True:
        # LangGraph gives answers back in the order of the calls of one name; a later run may ask
        # less.
        asked, given, who = await run_as_task("ask a person", ask)
        if asked == compute_digest(question):
            return read_answer(given)[0], Caller(**who)


async def ask_about_text(
    services: Services, subject: str, text: Any, reasons: Sequence[str]
) -> Verdict:
    """Ask a person whether words may pass; see :func:`capgraph.pipeline.run_config.ask_about`."""
    journal = services.journal()
    if not journal.is_durable:
        return Verdict("deny", ["nothing would keep the question; give the graph a checkpointer"])
    if journal.is_remote:
        return Verdict("deny", ["nobody can be asked in a step that runs on another worker"])
    question = text_request(subject, text, reasons)
    view = services.view({})
    answers, by = await ask_in_task(question, answer_reader(question, view, services, None))
    answer = answers[subject]
    record_decision(subject, TEXT, answer.decision, by, digest=compute_digest(text))
    if answer.decision == "approve":
        return Verdict("allow")
    return Verdict("deny", [f"a person rejected it: {answer.reason or 'no reason was given'}"])


async def save_standing_rules(
    answers: Mapping[str, ApprovalDecision],
    question: Mapping[str, Any],
    view: TurnView,
    store: BaseStore | None,
) -> None:
    """Make standing rules of the answers that want one."""
    capabilities = {step["context_key"]: step["capability"] for step in question["steps"]}
    for key, answer in answers.items():
        if answer.remember is None or store is None:
            continue
        # The same answer, read again after a restart, makes the same rule.
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"{view.thread_id}/{view.plan_id}/{key}")
        rule = StandingRule(
            id=name.hex,
            capability=capabilities[key],
            thread_id=view.thread_id if answer.remember.scope == "thread" else None,
            user_id=view.sender.user_id,
            expires_at=answer.remember.until,
            reason=answer.reason,
        )
        await add_rule(store, rule)
