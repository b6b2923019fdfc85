"""Puts a question to a person and goes on asking until the answer can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from langgraph.types import interrupt

from framework.langgraph_compat import is_resumed
from framework.telemetry import ApprovalAsked, emit

T = TypeVar("T")


def ask_person(
    question: dict[str, Any],
    read: Callable[[Any], tuple[T, list[str]]],
    problems: list[str] | None = None,
) -> T:
    """Interrupt the running task, which must do nothing else, until an answer has no problems.

    Args:
        question: What is asked.
        read: Reads what was given: the answer, and what is wrong with it.
        problems: What was wrong with an earlier answer.
    """
    if not is_resumed():
        emit(ApprovalAsked(steps=question["steps"]))
    while True:
        given = interrupt({**question, "problems": problems} if problems else question)
        answer, problems = read(given)
        if not problems:
            return answer
