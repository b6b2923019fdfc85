"""Names, signatures, defaults, string formats and raises that users of the base package rely on."""

from __future__ import annotations

import abc
import dataclasses
import enum
import inspect
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pydantic
import pytest

import capgraph.base as base

NAMES = [
    "BaseCapability",
    "BaseInfrastructureNode",
    "capability_node",
    "infrastructure_node",
    "ErrorSeverity",
    "ErrorClassification",
    "ExecutionError",
    "ExecutionResult",
    "ExecutionRecord",
    "CapabilityMatch",
    "PlannedStep",
    "ExecutionPlan",
    "save_execution_plan_to_file",
    "load_execution_plan_from_file",
    "BaseExample",
    "OrchestratorExample",
    "OrchestratorGuide",
    "ClassifierExample",
    "TaskClassifierGuide",
    "ClassifierActions",
    "ValidationError",
    "CapabilityError",
    "InfrastructureError",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_public(name: str) -> None:
    assert name in base.__all__
    assert getattr(base, name).__doc__


def parameters(function: Any) -> dict[str, Any]:
    return {
        name: "required" if p.default is p.empty else p.default
        for name, p in inspect.signature(function).parameters.items()
        if p.kind is not p.VAR_KEYWORD and name not in {"self", "suggestions"}
    }


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (
            base.ErrorClassification,
            {"severity": "required", "user_message": None, "metadata": None},
        ),
        (
            base.ExecutionError,
            {
                "severity": "required",
                "message": "required",
                "capability_name": None,
                "metadata": None,
            },
        ),
        (
            base.ExecutionResult,
            {
                "success": "required",
                "data": None,
                "error": None,
                "execution_time": None,
                "start_time": None,
                "end_time": None,
            },
        ),
        (
            base.ExecutionRecord,
            {"step": "required", "start_time": "required", "result": "required", "end_time": None},
        ),
        (
            base.OrchestratorExample,
            {
                "step": "required",
                "scenario_description": "required",
                "context_requirements": None,
                "notes": None,
            },
        ),
        (base.ClassifierExample, {"query": "required", "result": "required", "reason": "required"}),
        (base.save_execution_plan_to_file, {"plan": "required", "path": "required"}),
        (base.load_execution_plan_from_file, {"path": "required"}),
        (base.BaseCapability.classify_error, {"exc": "required", "context": "required"}),
        (base.BaseInfrastructureNode.classify_error, {"exc": "required", "context": "required"}),
        (base.BaseCapability.get_retry_policy, {}),
        (base.BaseInfrastructureNode.get_retry_policy, {}),
        (base.BaseInfrastructureNode.execute, {"state": "required"}),
        (base.BaseExample.format_for_prompt, {}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_the_documented_signature(owner: Any, expected: dict[str, Any]) -> None:
    assert parameters(owner) == expected


def test_the_decorators_take_a_class_bare_or_with_the_documented_keyword() -> None:
    quiet = inspect.signature(base.infrastructure_node).parameters["quiet"]
    assert quiet.kind is quiet.KEYWORD_ONLY
    assert quiet.default is False
    first = next(iter(inspect.signature(base.infrastructure_node).parameters.values()))
    assert first.default is None


@pytest.mark.row("B36", "B37")
@pytest.mark.parametrize(
    ("model", "defaults"),
    [
        (base.OrchestratorGuide, {"examples": [], "priority": 0}),
        (base.TaskClassifierGuide, {"examples": [], "actions_if_true": base.ClassifierActions()}),
    ],
)
def test_guides_are_keyword_models_that_need_only_instructions(
    model: type[pydantic.BaseModel], defaults: dict[str, Any]
) -> None:
    made = model(instructions="When asked")
    assert made.model_dump(exclude={"instructions"}) == {
        key: value.model_dump() if isinstance(value, pydantic.BaseModel) else value
        for key, value in defaults.items()
    }
    with pytest.raises(pydantic.ValidationError):
        model()
    with pytest.raises(TypeError):
        model("When asked")  # type: ignore[call-arg]


@pytest.mark.row("B20")
def test_the_severities() -> None:
    assert issubclass(base.ErrorSeverity, enum.Enum)
    assert {level.name: level.value for level in base.ErrorSeverity} == {
        "CRITICAL": "critical",
        "RETRIABLE": "retriable",
        "REPLANNING": "replanning",
        "RECLASSIFICATION": "reclassification",
        "FATAL": "fatal",
    }


@pytest.mark.row("B26", "B27")
def test_fields_of_plans() -> None:
    assert set(get_type_hints(base.PlannedStep)) >= {
        "context_key",
        "capability",
        "task_objective",
        "success_criteria",
        "expected_output",
        "parameters",
        "inputs",
    }
    assert base.PlannedStep.__total__ is False
    assert "steps" in get_type_hints(base.ExecutionPlan)
    assert base.PlannedStep() == {}
    assert base.ExecutionPlan(steps=[]) == {"steps": []}


@pytest.mark.row("B29")
def test_kinds_of_types() -> None:
    for cls in (base.ErrorClassification, base.ExecutionError, base.ExecutionResult):
        assert dataclasses.is_dataclass(cls)
        assert not issubclass(cls, BaseException)
    for cls in (base.CapabilityMatch, base.ClassifierActions, base.OrchestratorGuide):
        assert issubclass(cls, pydantic.BaseModel)
    for cls in (base.BaseCapability, base.BaseInfrastructureNode, base.BaseExample):
        assert isinstance(cls, abc.ABCMeta)
    assert issubclass(base.OrchestratorExample, base.BaseExample)
    assert issubclass(base.ClassifierExample, base.BaseExample)


@pytest.mark.row("B3")
def test_one_exception_tree() -> None:
    for name in (
        "ValidationError",
        "CapabilityError",
        "InfrastructureError",
        "FatalExecutionError",
    ):
        assert issubclass(getattr(base, name), base.CapgraphError)
    assert issubclass(base.ValidationError, ValueError)
    assert issubclass(base.FatalExecutionError, RuntimeError)


@pytest.mark.row("B3")
@pytest.mark.parametrize("name", ["ValidationError", "CapabilityError", "InfrastructureError"])
def test_what_execute_may_raise_is_there_and_means_something(name: str) -> None:
    error = getattr(base, name)
    for owner in (base.BaseCapability, base.BaseInfrastructureNode):
        found = owner.classify_error(error("No query provided"), {"capability": "search"})
        assert found is not None
        assert found.severity is base.ErrorSeverity.CRITICAL
        assert found.user_message == "No query provided"
        again = error("Try later", severity=base.ErrorSeverity.RETRIABLE)
        found = owner.classify_error(again, {"capability": "search"})
        assert found is not None
        assert found.severity is base.ErrorSeverity.RETRIABLE


@pytest.mark.row("B1")
def test_class_attributes_of_a_capability() -> None:
    assert base.BaseCapability.name is None
    assert base.BaseCapability.description is None
    assert base.BaseCapability.provides == []
    assert base.BaseCapability.requires == []
    assert base.BaseInfrastructureNode.name is None
    assert base.BaseInfrastructureNode.description is None


@pytest.mark.row("B5", "B11")
def test_default_policies() -> None:
    capability = base.BaseCapability.get_retry_policy()
    assert capability == {"max_attempts": 3, "delay_seconds": 0.5, "backoff_factor": 1.5}
    node = base.BaseInfrastructureNode.get_retry_policy()
    assert node == {"max_attempts": 2, "delay_seconds": 0.2, "backoff_factor": 1.2}


@pytest.mark.row("B4", "B10")
def test_default_classifications() -> None:
    of_capability = base.BaseCapability.classify_error(
        RuntimeError("boom"), {"capability": "weather"}
    )
    assert of_capability is not None
    assert of_capability.severity is base.ErrorSeverity.CRITICAL
    assert of_capability.user_message == "Unhandled error in weather: boom"
    assert (of_capability.metadata or {})["technical_details"] == "boom"
    of_node = base.BaseInfrastructureNode.classify_error(
        RuntimeError("boom"), {"infrastructure_node": "router"}
    )
    assert of_node is not None
    assert of_node.severity is base.ErrorSeverity.CRITICAL
    assert of_node.user_message == "Infrastructure error in router: boom"


@pytest.mark.row("B8")
def test_repr_of_both_bases() -> None:
    class TaskExtractionNode(base.BaseInfrastructureNode):
        name = "task_extraction"
        description = "Extract"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
            return {}

    class Weather(base.BaseCapability):
        name = "weather"
        description = "Weather"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
            return {}

    assert repr(TaskExtractionNode()) == "<TaskExtractionNode: task_extraction>"
    assert repr(Weather()) == "<Weather: weather>"


@pytest.mark.row("B21")
def test_a_classification_as_prompt_text() -> None:
    found = base.ErrorClassification(
        base.ErrorSeverity.REPLANNING,
        None,
        {"missing_inputs": ["A", "B"], "limits": {"rows": 5}, "hint": "later"},
    )
    assert found.format_for_llm() == (
        "**Previous Execution Error:**\n"
        "- **User Message:** No error message available\n"
        "- **Missing Inputs:** A, B\n"
        '- **Limits:** {\n  "rows": 5\n}\n'
        "- **Hint:** later"
    )


@pytest.mark.row("B30")
def test_an_orchestrator_example_as_prompt_text() -> None:
    example = base.OrchestratorExample(
        step=base.PlannedStep(
            context_key="weather_data",
            capability="weather_retrieval",
            task_objective="Get current weather",
            success_criteria="Weather data retrieved",
            expected_output=None,
            parameters={"units": "metric"},
            inputs=[],
        ),
        scenario_description="When user requests weather information",
        context_requirements={"location": "User location data"},
        notes="Only for today",
    )
    text = (
        "**When user requests weather information**\n"
        "   - Context requirements:\n"
        "     * location: User location data\n"
        "   PlannedStep(\n"
        '       context_key="weather_data",\n'
        '       capability="weather_retrieval",\n'
        '       task_objective="Get current weather",\n'
        '       success_criteria="Weather data retrieved",\n'
        '       parameters={"units": "metric"}\n'
        "   )\n"
        "   - Note: Only for today\n"
    )
    assert example.format_for_prompt() == text
    assert base.OrchestratorExample.format_examples_for_prompt([]) == ""
    assert base.OrchestratorExample.format_examples_for_prompt([example, example]) == (
        f"\n\n**Example Step Planning:**\n\n1. {text}\n2. {text}"
    )


@pytest.mark.row("B33")
def test_a_classifier_example_as_prompt_text() -> None:
    example = base.ClassifierExample("What's the weather like?", True, "Direct weather request")
    line = (
        'User Query: "What\'s the weather like?" -> Expected Output: True'
        " -> Reason: Direct weather request"
    )
    assert example.format_for_prompt() == line
    assert base.ClassifierExample.format_examples_for_prompt([]) == ""
    assert base.ClassifierExample.format_examples_for_prompt([example, example]) == (
        f"  - {line}\n  - {line}"
    )


@pytest.mark.row("B35")
def test_examples_are_joined() -> None:
    one = base.ClassifierExample("a", True, "x")
    two = base.ClassifierExample("b", False, "y")
    texts = [one.format_for_prompt(), two.format_for_prompt()]
    assert base.BaseExample.join([one, two]) == "\n".join(texts)
    assert base.BaseExample.join([one, two], separator=" | ", max_examples=1) == texts[0]
    numbered = base.BaseExample.join([one, two], add_numbering=True)
    assert numbered == f"**Example 1:**\n{texts[0]}\n**Example 2:**\n{texts[1]}"


@pytest.mark.row("B28")
def test_a_plan_file(tmp_path: Path) -> None:
    plan = base.ExecutionPlan(steps=[{"context_key": "größe", "capability": "messen"}])
    path = tmp_path / "new" / "folder" / "plan.json"
    base.save_execution_plan_to_file(plan, path)
    text = path.read_text(encoding="utf-8")
    assert "größe" in text
    assert '\n  "steps": [' in text
    metadata = json.loads(text)["__metadata__"]
    assert metadata["version"] == "1.0"
    assert metadata["serialization_type"] == "execution_plan"
    assert datetime.fromisoformat(metadata["created_at"]).tzinfo is not None
    assert base.load_execution_plan_from_file(str(path)) == plan


@pytest.mark.row("B44", "B45")
def test_documented_state_keys_are_declared() -> None:
    from capgraph.state import STATE_KEYS

    documented = [
        "messages",
        "capability_context_data",
        "agent_control",
        "status_updates",
        "progress_events",
        "task_current_task",
        "task_depends_on_chat_history",
        "task_depends_on_user_memory",
        "planning_active_capabilities",
        "planning_execution_plan",
        "planning_current_step_index",
        "planning_ready_for_execution",
        "execution_step_results",
        "execution_last_result",
        "execution_start_time",
        "execution_total_time",
        "execution_pending_approvals",
        "approval_approved",
        "approved_payload",
        "control_has_error",
        "control_error_info",
        "control_last_error",
        "control_retry_count",
        "control_current_step_retry_count",
        "control_max_retries",
        "control_reclassification_reason",
        "control_reclassification_count",
        "control_plans_created_count",
        "control_is_killed",
        "control_kill_reason",
        "control_is_awaiting_validation",
        "control_next_node",
        "ui_captured_notebooks",
        "ui_captured_figures",
        "ui_launchable_commands",
        "ui_agent_context",
        "runtime_info",
    ]
    assert set(documented) <= STATE_KEYS


def test_helpers_live_where_the_documentation_imports_them_from() -> None:
    from capgraph.configs.logger import get_logger
    from capgraph.configs.streaming import get_streamer
    from capgraph.prompts import get_framework_prompts

    assert list(inspect.signature(get_logger).parameters)[:2] == ["source", "component"]
    assert list(inspect.signature(get_streamer).parameters)[:3] == ["source", "component", "state"]
    assert inspect.signature(get_framework_prompts).parameters["application"].default is None
    logger = get_logger("framework", "x")
    for kind in [
        "info",
        "debug",
        "warning",
        "error",
        "critical",
        "success",
        "key_info",
        "timing",
        "approval",
        "resume",
    ]:
        assert callable(getattr(logger, kind))
    streamer = get_streamer("framework", "x", {})
    for kind in ("status", "success", "warning", "error"):
        getattr(streamer, kind)("said")


@pytest.mark.row("B42")
@pytest.mark.parametrize(
    "kind",
    [
        "orchestrator",
        "task_extraction",
        "response_generation",
        "classification",
        "error_analysis",
        "clarification",
        "memory_extraction",
        "time_range_parsing",
        "python",
    ],
)
def test_the_prompt_provider_has_a_builder_for(kind: str) -> None:
    from capgraph.prompts import get_framework_prompts

    builder = getattr(get_framework_prompts(), f"get_{kind}_prompt_builder")()
    assert callable(builder.get_orchestrator_guide)
    assert callable(builder.get_classifier_guide)


@pytest.mark.row("B42")
def test_an_unknown_prompt_application_is_an_error() -> None:
    from capgraph.prompts import get_framework_prompts

    with pytest.raises(ValueError, match="nowhere"):
        get_framework_prompts("nowhere")


@pytest.mark.row("B24")
def test_records_take_their_end_from_the_result() -> None:
    now = datetime.now(UTC)
    result = base.ExecutionResult(success=True, data=1, start_time=now, end_time=now)
    assert base.ExecutionRecord(step={}, start_time=now, result=result).end_time == now
