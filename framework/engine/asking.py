"""Puts a question to a person and goes on asking until the answer can be used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.types import interrupt

from framework.approvals import Answer, Rule, add_rule, read_answers
from framework.engine.services import Services
from framework.langgraph_compat import is_resumed
from framework.state import TurnView
from framework.telemetry import ApprovalAsked, emit

Read = Callable[[Any], tuple[dict[str, Answer], list[str]]]


def reader(
    question: Mapping[str, Any], view: TurnView, services: Services, store: BaseStore | None
) -> Read:
    """Return what reads an answer: the decisions by key, and what is wrong with them."""

    def read(given: Any) -> tuple[dict[str, Answer], list[str]]:
        answers, wrong = read_answers(given, question, services.registry, services.limits, view)
        told = [problem.message for problem in wrong]
        if store is None and any(answer.remember for answer in answers.values()):
            told.append("Nothing can be remembered: the graph was built without a store.")
        return answers, told

    return read


def ask_person(question: dict[str, Any], read: Read, problems: list[str] | None = None) -> Any:
    """Interrupt the running task, which must do nothing else, until an answer has no problems.

    Args:
        question: What is asked.
        read: Reads what was given.
        problems: What was wrong with an earlier answer.

    Returns:
        The answer as it was given.
    """
    if not is_resumed():
        emit(ApprovalAsked(steps=question["steps"]))
    while True:
        given = interrupt({**question, "problems": problems} if problems else question)
        problems = read(given)[1]
        if not problems:
            return given


async def remember(
    answers: Mapping[str, Answer],
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
        rule = Rule(
            id=name.hex,
            capability=capabilities[key],
            thread_id=view.thread_id if answer.remember.scope == "thread" else None,
            user_id=view.caller.user_id,
            expires_at=answer.remember.until,
            reason=answer.reason,
        )
        await add_rule(store, rule)
