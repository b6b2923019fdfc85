"""What a person is asked, how an answer is read, and what was agreed to for good."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy import lazy_exports

if TYPE_CHECKING:
    from capgraph.approvals.answers import Answer as Answer
    from capgraph.approvals.answers import AnswerProblem as AnswerProblem
    from capgraph.approvals.answers import read_answers as read_answers
    from capgraph.approvals.questions import ACTED as ACTED
    from capgraph.approvals.questions import PLAN as PLAN
    from capgraph.approvals.questions import RESULT as RESULT
    from capgraph.approvals.questions import STEP as STEP
    from capgraph.approvals.questions import UNKNOWN as UNKNOWN
    from capgraph.approvals.questions import answer_schema as answer_schema
    from capgraph.approvals.questions import is_approval as is_approval
    from capgraph.approvals.questions import plan_question as plan_question
    from capgraph.approvals.questions import question_entry as question_entry
    from capgraph.approvals.questions import question_of as question_of
    from capgraph.approvals.questions import question_text as question_text
    from capgraph.approvals.questions import step_question as step_question
    from capgraph.approvals.rules import Rule as Rule
    from capgraph.approvals.rules import add_rule as add_rule
    from capgraph.approvals.rules import list_rules as list_rules
    from capgraph.approvals.rules import revoke_rule as revoke_rule
    from capgraph.approvals.rules import standing_rules as standing_rules

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.approvals.answers": ("Answer", "AnswerProblem", "read_answers"),
        "capgraph.approvals.questions": (
            "ACTED",
            "PLAN",
            "RESULT",
            "STEP",
            "UNKNOWN",
            "answer_schema",
            "is_approval",
            "plan_question",
            "question_entry",
            "question_of",
            "question_text",
            "step_question",
        ),
        "capgraph.approvals.rules": (
            "Rule",
            "add_rule",
            "list_rules",
            "revoke_rule",
            "standing_rules",
        ),
    },
)
