"""Errors in capability classes and when they are reported."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import pydantic
import pytest

from capgraph import build_graph
from capgraph.base import (
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityContext,
    CapabilityMatch,
    ClassifierExample,
    ErrorClassification,
    ErrorSeverity,
    ExecutionError,
    ExecutionRecord,
    ExecutionResult,
    OrchestratorExample,
    PlanError,
    PlannedStep,
    ValidationError,
    capability_node,
    infrastructure_node,
    load_execution_plan_from_file,
    save_execution_plan_to_file,
)
from capgraph.testing import run_capability


class Reading(CapabilityContext):
    value: float


def make(**attributes: Any) -> type[BaseCapability]:
    async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    namespace = {"name": "made", "description": "Made", "execute": staticmethod(execute)}
    return type("Made", (BaseCapability,), {**namespace, **attributes})


# --- lists, creation, static-ness ------------------------------------------------------------------


@pytest.mark.row("B1")
def test_lists_are_not_shared_between_classes() -> None:
    one, two = make(), make()
    one.provides.append("A")
    one.requires.append("B")  # type: ignore[attr-defined]
    assert two.provides == BaseCapability.provides == []
    assert two.requires == BaseCapability.requires == []
    child = type("Child", (one,), {})
    child.provides.append("C")
    assert one.provides == ["A"]


@pytest.mark.row("B2")
@pytest.mark.parametrize("missing", ["name", "description"])
def test_creating_a_capability_without_an_attribute_is_the_documented_error(missing: str) -> None:
    with pytest.raises(NotImplementedError, match=missing):
        make(**{missing: None})()


@pytest.mark.row("B2")
def test_creating_a_capability_without_execute_is_the_documented_error() -> None:
    class Empty(BaseCapability):
        name = "empty"
        description = "Empty"

    with pytest.raises(NotImplementedError, match="execute"):
        Empty()


def test_missing_lists_become_empty() -> None:
    made = make(provides=None, requires=None)
    assert (made.provides, made.requires) == ([], [])


@pytest.mark.row("B2")
@pytest.mark.parametrize("kind", [capability_node, infrastructure_node])
def test_a_static_execute_without_the_decorator_is_found_at_decoration(kind: Any) -> None:
    base = BaseCapability if kind is capability_node else BaseInfrastructureNode

    class Forgot(base):  # type: ignore[misc, valid-type]
        name = "forgot"
        description = "Forgot @staticmethod"

        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[misc]
            return {}

    with pytest.raises(ValueError, match="staticmethod"):
        kind(Forgot)


@pytest.mark.parametrize("kind", [capability_node, infrastructure_node])
def test_a_class_method_is_refused(kind: Any) -> None:
    base = BaseCapability if kind is capability_node else BaseInfrastructureNode

    class Wrong(base):  # type: ignore[misc, valid-type]
        name = "wrong"
        description = "Class method"

        @classmethod
        async def execute(cls, state: Any, **kwargs: Any) -> dict[str, Any]:
            return {}

    with pytest.raises(ValueError, match="staticmethod"):
        kind(Wrong)


def test_an_instance_method_with_unknown_arguments_is_refused() -> None:
    class Wrong(BaseCapability):
        name = "wrong"
        description = "Takes too much"

        async def execute(self, place: str) -> dict[str, Any]:
            return {}

    with pytest.raises(ValueError, match="place"):
        capability_node(Wrong)


@pytest.mark.row("B9", "B12")
@pytest.mark.parametrize(
    "missing", ["name", "description", "execute", "classify_error", "get_retry_policy"]
)
@pytest.mark.parametrize("kind", [capability_node, infrastructure_node])
def test_the_decorators_name_the_missing_attribute(kind: Any, missing: str) -> None:
    async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    attributes: dict[str, Any] = {
        "name": "plain",
        "description": "Plain",
        "execute": staticmethod(execute),
        "classify_error": staticmethod(lambda exc, context: None),
        "get_retry_policy": staticmethod(dict),
    }
    assert kind(type("Plain", (), dict(attributes))).langgraph_node
    del attributes[missing]
    with pytest.raises(ValueError, match=missing):
        kind(type("Plain", (), attributes))


@pytest.mark.parametrize("empty", ["", "  ", None, 5])
def test_an_empty_name_is_the_first_reported_error(empty: Any) -> None:
    with pytest.raises(ValueError, match="name="):
        capability_node(make(name=empty))


@pytest.mark.row("B12")
def test_an_inherited_abstract_execute_does_not_pass_the_check() -> None:
    class Abstract(BaseInfrastructureNode):
        name = "abstract"
        description = "Abstract"

    with pytest.raises(ValueError, match="execute"):
        infrastructure_node(Abstract)


@pytest.mark.row("B12")
def test_the_decorator_returns_the_same_class_with_a_described_node() -> None:
    cls = make()
    decorated = capability_node(cls)
    assert decorated is cls
    node = decorated.langgraph_node  # type: ignore[attr-defined]
    assert (node.name, node.capability_name, node.description) == ("made", "made", "Made")
    assert node.original_class is cls
    assert node.error_classifier is cls.classify_error


# --- the node by itself ------------------------------------------------------------------------------


@pytest.mark.row("B13")
async def test_a_node_passes_the_arguments_in_the_signature() -> None:
    seen: dict[str, Any] = {}

    async def narrow(state: Any, step: Any, logger: Any) -> dict[str, Any]:
        seen.update(step=step, logger=logger)
        return {}

    async def wide(state: Any, **kwargs: Any) -> dict[str, Any]:
        seen.update(kwargs)
        return {}

    await capability_node(make(execute=staticmethod(narrow))).langgraph_node({})  # type: ignore[attr-defined]
    assert set(seen) == {"step", "logger"}
    await capability_node(make(execute=staticmethod(wide))).langgraph_node({})  # type: ignore[attr-defined]
    assert {"step", "context", "runtime", "logger", "streamer"} <= set(seen)


@pytest.mark.row("B3")
@pytest.mark.parametrize("result", [5, "text", [1]])
async def test_an_invalid_result_is_an_error(result: Any) -> None:
    async def execute(state: Any, **kwargs: Any) -> Any:
        return result

    update = await capability_node(make(execute=staticmethod(execute))).langgraph_node({})  # type: ignore[attr-defined]
    assert update["control_has_error"] is True
    assert type(result).__name__ in update["control_error_info"]["user_message"] or isinstance(
        result, list
    )


@pytest.mark.row("B15")
async def test_a_failure_is_recorded_as_plain_data_and_counted() -> None:
    async def execute(state: Any, **kwargs: Any) -> Any:
        raise OSError("disk is full")

    node = capability_node(make(execute=staticmethod(execute))).langgraph_node  # type: ignore[attr-defined]
    update = await node({"control_retry_count": 1})
    assert json.loads(json.dumps(update)) == update
    assert update["control_retry_count"] == 2
    info = update["control_error_info"]
    assert set(info) >= {
        "capability_name",
        "classification",
        "retry_policy",
        "original_error",
        "user_message",
        "execution_time",
        "timestamp",
    }
    assert info["capability_name"] == "made"
    assert update["execution_last_result"]["success"] is False
    assert update["execution_step_results"]["0_made"]["success"] is False


@pytest.mark.row("B13")
async def test_success_advances_the_step_index_and_clears_the_error() -> None:
    plan = {"steps": [{"context_key": "key", "capability": "made", "task_objective": "Do"}]}
    update = await capability_node(make()).langgraph_node(  # type: ignore[attr-defined]
        {"planning_execution_plan": plan, "control_has_error": True, "control_retry_count": 2}
    )
    assert update["planning_current_step_index"] == 1
    assert (update["control_has_error"], update["control_error_info"]) == (False, None)
    assert update["control_retry_count"] == update["control_current_step_retry_count"] == 0
    record = update["execution_step_results"]["key"]
    assert record["task_objective"] == "Do"
    assert record["step_index"] == 0
    assert record["success"] is True
    assert record["execution_time"] >= 0
    assert record["timestamp"].endswith("+00:00"), "a timestamp without its zone"


async def test_the_result_of_a_node_is_not_changed_in_place() -> None:
    result = {"task_current_task": "t"}

    class Node(BaseInfrastructureNode):
        name = "some_node"
        description = "Some"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return result

    update = await infrastructure_node(Node).langgraph_node({})  # type: ignore[attr-defined]
    assert result == {"task_current_task": "t"}
    assert update == result


@pytest.mark.row("B18")
async def test_a_node_that_succeeds_clears_its_own_error() -> None:
    class Node(BaseInfrastructureNode):
        name = "some_node"
        description = "Some"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return {}

    update = await infrastructure_node(Node).langgraph_node(  # type: ignore[attr-defined]
        {"control_has_error": True, "control_error_info": {"node_name": "some_node"}}
    )
    assert update["control_has_error"] is False
    assert update["control_error_info"] is None


@pytest.mark.row("B18")
async def test_a_failing_node_counts_its_failures() -> None:
    class Node(BaseInfrastructureNode):
        name = "some_node"
        description = "Some"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            raise ConnectionError("gone")

    node = infrastructure_node(Node).langgraph_node  # type: ignore[attr-defined]
    update = await node({"control_attempts": {"some_node": 1}})
    assert update["control_attempts"] == {"some_node": 2}
    assert update["control_retry_count"] == 2


@pytest.mark.row("B18")
async def test_a_node_logs_its_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    class Node(BaseInfrastructureNode):
        name = "some_node"
        description = "Some work"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            return {}

    with caplog.at_level("INFO", logger="capgraph"):
        await infrastructure_node(Node).langgraph_node({})  # type: ignore[attr-defined]
    assert caplog.messages[0] == "Starting Some work"
    assert caplog.messages[1].startswith("Completed Some work in 0.")
    assert caplog.messages[1].endswith("s")


# --- forms -------------------------------------------------------------------------------------------


async def test_all_forms_create_the_same_kind_of_node() -> None:
    class Place(CapabilityContext):
        name: str

    class Old(BaseCapability):
        name = "old"
        description = "Static"
        provides = ["READING"]
        requires = ["PLACE"]

        @staticmethod
        async def execute(state: Any, context: Any, **kwargs: Any) -> Any:
            return {"value": float(len(context["PLACE"].name))}

    class New(BaseCapability):
        name = "new"
        description = "Instance"
        provides = ["READING"]
        requires = ["PLACE"]

        async def execute(self) -> Reading:
            return Reading(value=len(self.inputs["PLACE"].name))

    @capability_node
    async def function(place: Place) -> Reading:
        """Function."""
        return Reading(value=len(place.name))

    for cls in (capability_node(Old), capability_node(New), function):
        run = await run_capability(cls, inputs={Place: Place(name="Rome")})
        value = run.output["value"] if isinstance(run.output, dict) else run.output.value
        assert value == 4
        assert cls.capability_spec.provides == ("READING",)  # type: ignore[attr-defined]
        assert [need.type for need in cls.capability_spec.requires] == ["PLACE"]  # type: ignore[attr-defined]
        assert callable(cls.langgraph_node)  # type: ignore[attr-defined]


async def test_properties_and_methods_of_the_instance_form() -> None:
    class Settings(pydantic.BaseModel):
        factor: int = 2

    class Rich(BaseCapability):
        name = "rich"
        description = "Uses every helper"
        provides = ["READING"]
        requires = [("READING", "many"), ("OTHER", "optional")]
        Parameters = Settings

        async def execute(self) -> None:
            self.logger.info("working")
            self.progress("half", 0.5)
            assert self.inputs["OTHER"] is None
            assert self.task == "Sum"
            assert self.attempt == 2
            assert self.config == {"unit": "K"}
            assert self.idempotency_key
            assert self.step["capability"] == "rich"
            assert self.state["task_current_task"] == "whole"
            assert self.chat_model() is None
            total = sum(reading.value for reading in self.inputs["READING"])
            self.store(Reading(value=total * self.parameters.factor))

    run = await run_capability(
        capability_node(Rich),
        inputs={"READING": [Reading(value=1), {"value": 2}]},
        parameters={"factor": 10},
        task="Sum",
        state={"task_current_task": "whole"},
        config={"unit": "K"},
        attempt=2,
    )
    assert run.output.value == 30
    assert run.progress == [("half", 0.5)]


async def test_one_instance_does_not_serve_two_runs() -> None:
    seen: list[int] = []

    class Own(BaseCapability):
        name = "own"
        description = "Is new for each run"

        async def execute(self) -> None:
            seen.append(id(self))
            kept.append(self)

    kept: list[Any] = []
    cls = capability_node(Own)
    await run_capability(cls)
    await run_capability(cls)
    assert len(set(seen)) == 2


def test_a_property_used_outside_a_step_raises_an_error_with_a_fix() -> None:
    with pytest.raises(ValidationError, match=r"run_capability"):
        make()().inputs  # noqa: B018


async def test_inputs_and_parameters_are_validated() -> None:
    class Limits(pydantic.BaseModel):
        n: int

    @capability_node
    async def take(reading: Reading, n: int) -> Reading:
        """Take."""
        return reading

    with pytest.raises(ValidationError, match="READING"):
        await run_capability(take, parameters={"n": 1})
    with pytest.raises(ValidationError, match="n 'many'"):
        await run_capability(take, inputs={Reading: Reading(value=1)}, parameters={"n": "many"})
    with pytest.raises(ValidationError, match="value"):
        await run_capability(take, inputs={Reading: {"valu": 1}}, parameters={"n": 1})


async def test_an_undecorated_class_is_refused_by_the_test_kit() -> None:
    with pytest.raises(ValidationError, match="capability_node"):
        await run_capability(make())


# --- guides --------------------------------------------------------------------------------------------


def test_guides_are_created_once_even_if_they_are_none_and_from_two_threads() -> None:
    calls: list[str] = []

    def guide(self: Any) -> None:
        calls.append("made")

    capability = make(_create_orchestrator_guide=guide)()
    assert capability.orchestrator_guide is None
    threads = [threading.Thread(target=lambda: capability.orchestrator_guide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["made"]


@pytest.mark.row("B7")
def test_default_guides_are_none() -> None:
    assert make()().orchestrator_guide is None
    assert make()().classifier_guide is None


def test_capability_classes_are_not_kept_alive() -> None:
    reference = weakref.ref(capability_node(make()))
    gc.collect()
    assert reference() is None


# --- results ---------------------------------------------------------------------------------------------


@pytest.mark.row("B23")
def test_data_and_error_are_mutually_exclusive() -> None:
    error = ExecutionError(ErrorSeverity.CRITICAL, "x")
    with pytest.raises(ValidationError, match="success=False and no data"):
        ExecutionResult(success=False, data=1, error=error)
    with pytest.raises(ValidationError, match="success=False and no data"):
        ExecutionResult(success=True, error=error)


@pytest.mark.row("B24")
def test_a_record_cannot_be_changed() -> None:
    from datetime import UTC, datetime

    record = ExecutionRecord({}, datetime.now(UTC), ExecutionResult(success=True))
    with pytest.raises(AttributeError):
        record.end_time = datetime.now(UTC)  # type: ignore[misc]


@pytest.mark.row("B25")
@pytest.mark.parametrize("lax", ["yes", 1, "true", None])
def test_a_match_must_be_a_boolean(lax: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        CapabilityMatch(is_match=lax)


def test_a_severity_may_be_a_value_and_must_exist() -> None:
    assert ErrorClassification("fatal").severity is ErrorSeverity.FATAL  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="'odd'"):
        ErrorClassification("odd")  # type: ignore[arg-type]


# --- examples ------------------------------------------------------------------------------------------------


@pytest.mark.row("B30")
def test_every_non_empty_field_of_a_step_is_written() -> None:
    step = PlannedStep(
        context_key="a", capability="b", task_objective='Say "hi",\nthen go,', parameters={}
    )
    text = OrchestratorExample(step, "Scenario").format_for_prompt()
    assert '       task_objective="Say \\"hi\\",\\nthen go,"\n   )\n' in text
    assert "parameters" not in text
    assert "inputs" not in text


@pytest.mark.row("B31")
def test_a_set_and_other_values_are_written() -> None:
    step: Any = {"parameters": {"x"}, "expected_output": 5}
    text = OrchestratorExample(step, "S").format_for_prompt()
    assert 'parameters=["x"]' in text
    assert "expected_output=5" in text


@pytest.mark.row("B33")
def test_quotes_in_a_query_cannot_end_it() -> None:
    text = ClassifierExample('He said "go"\nnow', True, "r").format_for_prompt()
    assert text == 'User Query: "He said \\"go\\" now" -> Expected Output: True -> Reason: r'


@pytest.mark.row("B34")
def test_the_order_of_examples_is_reproducible_and_does_not_use_the_global_generator() -> None:
    examples = [ClassifierExample(str(n), True, "r") for n in range(9)]
    state = random.getstate()
    one = ClassifierExample.format_examples_for_prompt(examples, rng=7)
    assert one == ClassifierExample.format_examples_for_prompt(examples, rng=7)
    assert one == ClassifierExample.format_examples_for_prompt(examples, rng=random.Random(7))
    ClassifierExample.format_examples_for_prompt(examples)
    assert random.getstate() == state
    assert [example.query for example in examples] == [str(n) for n in range(9)]


@pytest.mark.row("B35")
def test_zero_examples_means_none() -> None:
    assert ClassifierExample.join([ClassifierExample("a", True, "r")], max_examples=0) == ""


# --- plan files ------------------------------------------------------------------------------------------------


@pytest.mark.row("B28")
def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_execution_plan_to_file({"steps": []}, path)
    before = path.read_bytes()
    with pytest.raises(PlanError, match="not valid JSON data"):
        save_execution_plan_to_file({"steps": [{"parameters": {"x": object()}}]}, path)  # type: ignore[dict-item, list-item, typeddict-item]
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.row("B28")
@pytest.mark.parametrize("plan", [{}, {"steps": []}, {"stamp": {"id": "1"}, "steps": []}])
def test_an_empty_plan_is_read_back_as_an_empty_plan(tmp_path: Path, plan: Any) -> None:
    save_execution_plan_to_file(plan, tmp_path / "plan.json")
    assert load_execution_plan_from_file(tmp_path / "plan.json") == {"steps": []}


@pytest.mark.row("B28")
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "no list of steps"),
        ({"steps": None}, "no list of steps"),
        ({"steps": [], "extra": 1}, "extra"),
        ({"steps": [{"task_objective": "\ud800"}]}, "not valid JSON data"),
    ],
)
def test_a_plan_that_could_not_be_read_back_is_not_written(
    tmp_path: Path, plan: Any, words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        save_execution_plan_to_file(plan, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.row("B28")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no list of steps"),
        ('{"steps": 5}', "no list of steps"),
        ('{"steps": [], "more": 1}', "more"),
        (
            '{"steps": [], "__metadata__": {"version": "9.0", "serialization_type": "execution_plan"}}',
            "9.0",
        ),
        (
            '{"steps": [], "__metadata__": {"version": "1.0", "serialization_type": "recipe"}}',
            "recipe",
        ),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_file_without_a_plan_is_refused_with_the_reason(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PlanError, match=words) as info:
        load_execution_plan_from_file(path)
    assert "Fix:" in str(info.value)


def test_a_missing_plan_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_execution_plan_from_file(tmp_path / "none.json")


@pytest.mark.parametrize("form", ["data class", "own initialiser"])
async def test_a_class_with_its_own_initializer_runs(form: str) -> None:
    class Read(BaseCapability):
        name = "read"
        description = "Read the level"
        provides = ("LEVEL",)
        unit: str = "m"

        async def execute(self) -> dict[str, Any]:
            return {"LEVEL": {"unit": self.unit}}

    class Own(Read):
        def __init__(self) -> None:
            self.unit = "m"

    made = capability_node(dataclasses.dataclass(Read) if form == "data class" else Own)
    plan = {"steps": [{"context_key": "a", "capability": "read", "task_objective": "Read"}]}
    given = {"messages": [("user", "read the level")], "planning_execution_plan": plan}
    out = await build_graph([made]).ainvoke(given)
    assert out["capability_context_data"]["LEVEL"]["a"] == {"unit": "m"}
