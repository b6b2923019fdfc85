"""The router's table, as a table."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from capgraph.base import CapabilitySpec, ErrorSeverity
from capgraph.base.ports import Failure
from capgraph.configs.limits import Limits
from capgraph.engine import Route, route
from capgraph.engine.caller_plan import plan_digest
from capgraph.pipeline.failures import most_severe
from capgraph.planning import StaticCatalog

CATALOG = StaticCatalog.of(
    CapabilitySpec("fetch", "Fetch.", provides=("DATA",)),
    CapabilitySpec("sum", "Add up.", provides=("SUM",)),
    infrastructure=("router", "orchestrator", "classifier", "respond", "clarify", "error"),
)
PLAN = {
    "steps": [
        {"context_key": "a", "capability": "fetch"},
        {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "a"}]},
        {"context_key": "end", "capability": "respond"},
    ]
}
POLICY = {"max_attempts": 3, "delay_seconds": 0.5, "backoff_factor": 1.5}
LIMITS = Limits(max_planning_attempts=2, max_reclassifications=1)


def decided(state: dict[str, Any], catalog: Any, limits: Limits) -> Route:
    """Route a state whose plan was put in force."""
    plan = state.get("planning_execution_plan")
    accepted = {} if plan is None else {"planning_accepted": plan_digest(plan)}
    return route({**accepted, **state}, catalog, limits)


def failed(severity: Any, origin: str, **state: Any) -> dict[str, Any]:
    where: dict[str, Any] = (
        {"capability_name": "fetch", "context_key": "a"}
        if origin == "capability"
        else {"node_name": "classifier"}
    )
    return {
        "task_current_task": "t",
        "planning_active_capabilities": ["fetch", "sum"],
        "planning_execution_plan": PLAN,
        "control_has_error": True,
        "control_error_info": {
            **where,
            "classification": {"severity": severity},
            "retry_policy": POLICY,
            "user_message": "It broke",
        },
        **state,
    }


BELOW, AT = "below its limit", "at its limit"
COUNTS: dict[tuple[str, str], dict[str, Any]] = {
    ("retriable", BELOW): {"control_attempts": {"a": 2, "classifier": 2}},
    ("retriable", AT): {"control_attempts": {"a": 3, "classifier": 3}},
    ("replanning", BELOW): {"control_plans_created_count": 1},
    ("replanning", AT): {"control_plans_created_count": 2},
    ("reclassification", BELOW): {"control_reclassification_count": 0},
    ("reclassification", AT): {"control_reclassification_count": 1},
}
TABLE = [
    ("retriable", BELOW, "capability", Route("capabilities", "It broke", 2, ("a",))),
    ("retriable", BELOW, "node", Route("classifier", "It broke", 2)),
    ("retriable", AT, "capability", Route("error", "It broke")),
    ("retriable", AT, "node", Route("error", "It broke")),
    ("replanning", BELOW, "capability", Route("orchestrator", "It broke")),
    ("replanning", BELOW, "node", Route("orchestrator", "It broke")),
    ("replanning", AT, "capability", Route("error", "It broke")),
    ("replanning", AT, "node", Route("error", "It broke")),
    ("reclassification", BELOW, "capability", Route("classifier", "It broke")),
    ("reclassification", BELOW, "node", Route("classifier", "It broke")),
    ("reclassification", AT, "capability", Route("error", "It broke")),
    ("reclassification", AT, "node", Route("error", "It broke")),
    *[
        ("critical", n, o, Route("error", "It broke"))
        for n in (BELOW, AT)
        for o in ("capability", "node")
    ],
    *[
        ("fatal", n, o, Route("fatal", "It broke"))
        for n in (BELOW, AT)
        for o in ("capability", "node")
    ],
]


@pytest.mark.row("B20", "B47")
@pytest.mark.parametrize(("severity", "count", "origin", "expected"), TABLE)
def test_every_severity(severity: str, count: str, origin: str, expected: Route) -> None:
    state = failed(severity, origin, **COUNTS.get((severity, count), {}))
    before = copy.deepcopy(state)
    assert decided(state, CATALOG, LIMITS) == expected
    assert state == before  # the decision writes nothing


@pytest.mark.parametrize("severity", ["catastrophic", None, "", 5])
@pytest.mark.parametrize("origin", ["capability", "node"])
def test_an_unknown_severity_ends_the_turn(severity: Any, origin: str) -> None:
    assert route(failed(severity, origin), CATALOG, LIMITS).target == "error"


def test_a_failure_without_any_details_ends_the_turn() -> None:
    state = {"control_has_error": True, "control_error_info": {"x": 1}}
    assert decided(state, CATALOG, LIMITS).target == "error"


@pytest.mark.row("B47")
def test_the_first_classification_does_not_count_as_a_repetition() -> None:
    state = failed("reclassification", "capability")
    assert decided(state, CATALOG, Limits(max_reclassifications=1)).target == "classifier"
    assert decided(state, CATALOG, Limits(max_reclassifications=0)).target == "error"


def test_failures_of_the_planner_itself_count_as_plans() -> None:
    state = failed("replanning", "node", control_attempts={"orchestrator": 2})
    state["control_error_info"]["node_name"] = "orchestrator"
    assert decided(state, CATALOG, LIMITS).target == "error"


def test_settings_bound_the_tries_whatever_the_policy_says() -> None:
    state = failed("retriable", "capability", control_attempts={"a": 2})
    state["control_error_info"]["retry_policy"] = {"max_attempts": 1000}
    assert decided(state, CATALOG, Limits(max_attempts=2)).target == "error"


@pytest.mark.row("B46")
@pytest.mark.parametrize(
    ("state", "target"),
    [
        ({"control_is_killed": True, "planning_execution_plan": PLAN}, "error"),
        ({}, "task_extraction"),
        ({"task_current_task": "t"}, "classifier"),
        ({"task_current_task": "t", "planning_active_capabilities": ["fetch"]}, "orchestrator"),
        (
            {
                "task_current_task": "t",
                "planning_active_capabilities": ["fetch"],
                "control_budget": {"plans": LIMITS.max_planning_attempts},
            },
            "error",
        ),
        ({"planning_execution_plan": PLAN}, "capabilities"),
        ({"planning_execution_plan": PLAN, "task_custom_message": "No."}, "respond"),
        ({"planning_execution_plan": {"steps": []}}, "respond"),
    ],
)
def test_the_way_without_a_failure(state: dict[str, Any], target: str) -> None:
    assert decided(state, CATALOG, LIMITS).target == target


def done(*keys: str) -> dict[str, Any]:
    return {key: {"success": True} for key in keys}


def test_only_steps_whose_inputs_exist_run() -> None:
    state = {"planning_execution_plan": PLAN, "execution_step_results": {}}
    assert decided(state, CATALOG, LIMITS).steps == ("a",)
    state["execution_step_results"] = done("a")
    assert decided(state, CATALOG, LIMITS).steps == ("b",)
    state["execution_step_results"] = done("a", "b")
    assert decided(state, CATALOG, LIMITS).target == "respond"


def test_a_plan_that_ends_in_a_question_asks_it() -> None:
    plan = {"steps": [{"context_key": "q", "capability": "clarify"}]}
    assert decided({"planning_execution_plan": plan}, CATALOG, LIMITS).target == "clarify"


def test_a_step_that_waits_for_a_person_is_asked_about_when_nothing_else_can_run() -> None:
    plan = {
        "steps": [
            {"context_key": "a", "capability": "fetch"},
            {"context_key": "b", "capability": "sum"},
        ]
    }
    state: dict[str, Any] = {
        "planning_execution_plan": plan,
        "execution_pending_approvals": {"a": {"kind": "step"}},
    }
    assert decided(state, CATALOG, LIMITS).steps == ("b",)
    state["execution_step_results"] = done("b")
    assert decided(state, CATALOG, LIMITS).target == "approval"


def test_a_plan_that_names_what_is_no_longer_registered_goes_to_a_person() -> None:
    plan = {"steps": [{"context_key": "a", "capability": "invented"}]}
    found = decided({"planning_execution_plan": plan}, CATALOG, LIMITS)
    assert found.target == "approval"
    assert "invented" in found.reason


def test_the_gravest_of_several_failures_decides() -> None:
    entries = [
        Failure(ErrorSeverity(severity), "It broke.", key=key)
        for key, severity in [
            ("a", "retriable"),
            ("b", "replanning"),
            ("c", "critical"),
            ("d", "critical"),
        ]
    ]
    assert most_severe(entries).key == "c"


def test_a_plan_that_nobody_checked_is_checked_first() -> None:
    for accepted in (None, plan_digest({"steps": []})):
        state = {"planning_execution_plan": PLAN, "planning_accepted": accepted}
        assert route(state, CATALOG, LIMITS).target == "accept"


def test_a_step_that_has_no_tries_left_is_not_tried_by_the_router() -> None:
    state = failed("retriable", "capability", control_attempts={"a": 1})
    state["control_error_info"]["final"] = True
    assert decided(state, CATALOG, LIMITS).target == "error"
    state["control_error_info"]["final"] = False
    assert decided(state, CATALOG, LIMITS).target == "capabilities"


@pytest.mark.parametrize(
    ("severity", "budget"),
    [
        ("replanning", {"plans": 2}),
        ("reclassification", {"classifications": 2}),
        ("reclassification", {"plans": 2}),
    ],
)
def test_what_a_turn_has_used_up_counts_whatever_nodes_write(
    severity: str, budget: dict[str, int]
) -> None:
    state = failed(severity, "capability", control_budget=budget)
    assert decided(state, CATALOG, LIMITS).target == "error"
