"""What a person is asked, how an answer is read, and what was agreed to for good."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.approvals.answers import Answer, AnswerProblem, read_answers
    from framework.approvals.questions import (
        ACTED,
        MISSING,
        PLAN,
        RESULT,
        STEP,
        UNKNOWN,
        answer_schema,
        is_approval,
        plan_question,
        question_entry,
        question_of,
        question_text,
        step_question,
    )
    from framework.approvals.rules import (
        Rule,
        StandingRules,
        add_rule,
        list_rules,
        revoke_rule,
        standing_rules,
    )

__all__ = [
    "ACTED",
    "MISSING",
    "PLAN",
    "RESULT",
    "STEP",
    "UNKNOWN",
    "Answer",
    "AnswerProblem",
    "Rule",
    "StandingRules",
    "add_rule",
    "answer_schema",
    "is_approval",
    "list_rules",
    "plan_question",
    "question_entry",
    "question_of",
    "question_text",
    "read_answers",
    "revoke_rule",
    "standing_rules",
    "step_question",
]

_PARTS = (
    "questions",
    "answers",
    "rules",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
