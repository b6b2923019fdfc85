"""Approval requests, decisions about them, and standing rules that replace them."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.approvals.decisions import ApprovalDecision as ApprovalDecision
    from capgraph.approvals.decisions import DecisionProblem as DecisionProblem
    from capgraph.approvals.decisions import parse_decisions as parse_decisions
    from capgraph.approvals.requests import ACTED_BEFORE as ACTED_BEFORE
    from capgraph.approvals.requests import PLAN as PLAN
    from capgraph.approvals.requests import RESULT as RESULT
    from capgraph.approvals.requests import STEP as STEP
    from capgraph.approvals.requests import UNKNOWN_OUTCOME as UNKNOWN_OUTCOME
    from capgraph.approvals.requests import build_request as build_request
    from capgraph.approvals.requests import decision_schema as decision_schema
    from capgraph.approvals.requests import describe_question as describe_question
    from capgraph.approvals.requests import is_approval_request as is_approval_request
    from capgraph.approvals.requests import plan_request as plan_request
    from capgraph.approvals.requests import request_entry as request_entry
    from capgraph.approvals.requests import step_request as step_request
    from capgraph.approvals.standing_rules import StandingRule as StandingRule
    from capgraph.approvals.standing_rules import add_rule as add_rule
    from capgraph.approvals.standing_rules import list_rules as list_rules
    from capgraph.approvals.standing_rules import load_active_rules as load_active_rules
    from capgraph.approvals.standing_rules import revoke_rule as revoke_rule

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.approvals.decisions": ("ApprovalDecision", "DecisionProblem", "parse_decisions"),
        "capgraph.approvals.requests": (
            "ACTED_BEFORE",
            "PLAN",
            "RESULT",
            "STEP",
            "UNKNOWN_OUTCOME",
            "decision_schema",
            "is_approval_request",
            "plan_request",
            "request_entry",
            "build_request",
            "describe_question",
            "step_request",
        ),
        "capgraph.approvals.standing_rules": (
            "StandingRule",
            "add_rule",
            "list_rules",
            "revoke_rule",
            "load_active_rules",
        ),
    },
)
