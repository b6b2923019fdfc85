"""Requests to a person, repeated until the answer is valid."""

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
from capgraph.pipeline.run_config import current_configurable, current_sender
from capgraph.state import TurnView
from capgraph.telemetry import ApprovalRequested, emit
from capgraph.telemetry.audit import record_decision

AnswerReader = Callable[[Any], tuple[dict[str, ApprovalDecision], list[str]]]


def create_answer_reader(
    question: Mapping[str, Any], view: TurnView, services: Services, store: BaseStore | None
) -> AnswerReader:
    """Create a callback that parses the answer to an approval request.

    The callback returns the decisions by context key and a list of validation errors.
    """

    def read(answer_input: Any) -> tuple[dict[str, ApprovalDecision], list[str]]:
        answers, problems = parse_decisions(
            answer_input, question, services.registry, services.limits, view
        )
        messages = [problem.message for problem in problems]
        if store is None and any(answer.remember for answer in answers.values()):
            messages.append("A standing rule cannot be saved: the graph has no store.")
        return answers, messages

    return read


def ask_person(
    question: dict[str, Any], read_answer: AnswerReader, problems: list[str] | None = None
) -> Any:
    """Interrupt the current LangGraph task to ask a person, and repeat until the answer is valid.

    LangGraph restarts the task after each answer, so the task must have no other side effects.

    Args:
        question: Question to ask.
        read_answer: Callback that parses an answer.
        problems: Validation errors of the previous answer.

    Returns:
        The raw answer.
    """
    available = count_available_answers()
    if not available:
        emit(ApprovalRequested(steps=question["steps"]))
    if problems is None:
        # Earlier answers were refused and must stay refused, even if they would be valid now.
        for _ in range(available - 1):
            interrupt(question)
    while True:
        answer = interrupt({**question, "problems": problems} if problems else question)
        problems = read_answer(answer)[1]
        if not problems:
            return answer


async def ask_in_task(
    question: dict[str, Any], read_answer: AnswerReader
) -> tuple[dict[str, ApprovalDecision], Caller]:
    """Ask a person in a separate LangGraph task, and return the decisions and the person.

    The separate task keeps the answers apart from the answers to other interrupts of the
    calling code, so that the question can be asked in the middle of other work.

    Args:
        question: Question to ask.
        read_answer: Callback that parses an answer.
    """
    # A copy of the thread has copies of its tasks, whose answers do not apply there.
    question_id = compute_digest([current_configurable().get("thread_id"), question])

    async def ask() -> Any:
        # Store the person with the answer, because another person may resume the run.
        return [question_id, ask_person(question, read_answer), asdict(current_sender())]

    while True:
        # LangGraph returns answers in the order of the calls. A resumed run may ask fewer questions.
        answered_id, answer, person = await run_as_task("ask a person", ask)
        if answered_id == question_id:
            return read_answer(answer)[0], Caller(**person)


async def ask_about_text(
    services: Services, subject: str, text: Any, reasons: Sequence[str]
) -> Verdict:
    """Ask a person to approve a text, and return the decision as a verdict.

    The text is denied if the question cannot be stored, or if the step runs on a remote worker.
    See ``run_config.request_text_approval``.
    """
    journal = services.journal()
    if not journal.is_durable:
        return Verdict("deny", ["the question cannot be stored: the graph has no checkpointer"])
    if journal.is_remote:
        return Verdict("deny", ["a step on a remote worker cannot ask a person"])
    question = text_request(subject, text, reasons)
    view = services.view({})
    answers, by = await ask_in_task(question, create_answer_reader(question, view, services, None))
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
    """Save a standing rule (automatic approval) for each answer that requests one.

    Without a store, no rules are saved.

    Args:
        answers: Decisions by context key.
        question: Question that was answered.
        view: Current state of the turn.
        store: LangGraph store for the rules, or ``None``.
    """
    capabilities = {step["context_key"]: step["capability"] for step in question["steps"]}
    for key, answer in answers.items():
        if answer.remember is None or store is None:
            continue
        # The same answer yields the same rule when it is read again after a restart.
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
