"""What a person is asked, how an answer is read, and what was agreed to for good."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.approvals.answers import Answer as Answer
    from framework.approvals.answers import AnswerProblem as AnswerProblem
    from framework.approvals.answers import read_answers as read_answers
    from framework.approvals.questions import ACTED as ACTED
    from framework.approvals.questions import PLAN as PLAN
    from framework.approvals.questions import RESULT as RESULT
    from framework.approvals.questions import STEP as STEP
    from framework.approvals.questions import UNKNOWN as UNKNOWN
    from framework.approvals.questions import answer_schema as answer_schema
    from framework.approvals.questions import is_approval as is_approval
    from framework.approvals.questions import plan_question as plan_question
    from framework.approvals.questions import question_entry as question_entry
    from framework.approvals.questions import question_of as question_of
    from framework.approvals.questions import question_text as question_text
    from framework.approvals.questions import step_question as step_question
    from framework.approvals.rules import Rule as Rule
    from framework.approvals.rules import add_rule as add_rule
    from framework.approvals.rules import list_rules as list_rules
    from framework.approvals.rules import revoke_rule as revoke_rule
    from framework.approvals.rules import standing_rules as standing_rules

__getattr__, __dir__ = contents(__name__)
