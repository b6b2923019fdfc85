"""What a new user meets in the first hour: little to write, and plain words where it goes wrong."""

from __future__ import annotations

import ast
import asyncio
import base64
import dataclasses
import datetime
import os
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy
import pandas
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from pydantic import BaseModel, PlainSerializer, PlainValidator, SecretStr
from typing_extensions import TypedDict

from capgraph import (
    AskAgain,
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityContext,
    ErrorClassification,
    ErrorSeverity,
    Registry,
    build_graph,
    capability_node,
    infrastructure_node,
)
from capgraph.base import (
    AttemptNumber,
    ConfigurationError,
    IdempotencyKey,
    Progress,
    RegistryError,
    StepContext,
    StepSettings,
    ValidationError,
)
from capgraph.planning import check_plan, dependencies, repair_plan
from capgraph.selection import Selection
from capgraph.testing import ScriptedModel, run_capability
from tests.support.doors import message_and_reason
from tests.support.openai_server import give, openai_server, say
from tests.support.typed import Read

ROOT = Path(__file__).parents[2]


class Reading(CapabilityContext):
    metres: float


class Keyed(CapabilityContext):
    cells: Any


@dataclasses.dataclass(slots=True)
class Odd:
    x: Any


@dataclasses.dataclass
class Stats:
    minimum: float
    maximum: float


class Report(BaseModel):
    title: str


class Row(TypedDict):
    name: str


class Everything:
    async def select(self, task: str, candidates: Any, **_: Any) -> Any:
        return Selection(tuple(candidate.name for candidate in candidates))


def plan(*steps: dict[str, Any]) -> dict[str, Any]:
    listed = [
        {"context_key": step["capability"], "task_objective": "Do it", **step} for step in steps
    ]
    return {"steps": [*listed, {"context_key": "answer", "capability": "respond"}]}


async def run_plan(graph: Any, *steps: dict[str, Any]) -> dict[str, Any]:
    given = {"messages": [("user", "Do it")], "planning_execution_plan": plan(*steps)}
    out: dict[str, Any] = await graph.ainvoke(given)
    return out


def text_of(out: dict[str, Any]) -> str:
    return str(out["messages"][-1].content)


# --- plain values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (str, "full", "full"),
        (float, 2.5, 2.5),
        (list[int], [1, 2], [1, 2]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Stats, Stats(1, 5), {"minimum": 1.0, "maximum": 5.0}),
        (Report, Report(title="Levels"), {"title": "Levels"}),
        (Row, {"name": "north"}, {"name": "north"}),
        (float | None, None, None),
        (list[Reading], [Reading(metres=1)], [{"metres": 1.0}]),
    ],
)
async def test_a_function_returns_a_plain_value(kind: Any, value: Any, kept: Any) -> None:
    async def tank_level():
        """Read the tank."""
        return value

    tank_level.__annotations__["return"] = kind
    graph = build_graph([capability_node(tank_level)])
    out = await run_plan(graph, {"capability": "tank_level"})
    assert out["capability_context_data"] == {"TANK_LEVEL": {"tank_level": {"value": kept}}}


async def test_without_a_model_a_plain_value_is_the_answer() -> None:
    @capability_node(examples=["how full is the tank?"])
    def tank_level() -> float:
        """Read the water level of the tank."""
        return 2.5

    out = await build_graph([tank_level]).ainvoke({"messages": [("user", "How full is the tank?")]})
    assert text_of(out) == "tank level: 2.5"


async def test_a_value_of_another_type_than_declared_fails_the_step() -> None:
    @capability_node
    def tank_level() -> float:
        """Read the tank."""
        return "leaking"  # type: ignore[return-value]

    out = await run_plan(build_graph([tank_level]), {"capability": "tank_level"})
    error = out["execution_step_results"]["tank_level"]
    assert not error["success"]
    assert "TANK_LEVEL" in str(error)


def test_a_value_that_cannot_be_kept_is_refused_when_the_function_is_decorated() -> None:
    async def lock() -> threading.Event:
        """Give a lock."""
        return threading.Event()

    with pytest.raises(ValidationError, match=r"'lock' returns Event"):
        capability_node(lock)


# --- synchronous functions --------------------------------------------------------------------------


async def test_sync_functions_and_methods_run_in_a_thread() -> None:
    seen: list[str] = []

    @capability_node
    def read(progress: Progress) -> str:
        """Read it."""
        progress("reading", 0.5)
        seen.append(threading.current_thread().name)
        return "read"

    @capability_node
    class Write(BaseCapability):
        name = "write"
        description = "Write it."
        provides = ["RECEIPT"]

        def execute(self) -> dict[str, Any]:
            self.progress("writing", 0.5)
            seen.append(threading.current_thread().name)
            return {"RECEIPT": {"to": "disk"}}

    graph = build_graph([read, Write])
    given = {
        "messages": [("user", "Do it")],
        "planning_execution_plan": plan({"capability": "read"}, {"capability": "write"}),
    }
    told = [
        part["message"]
        async for part in graph.astream(given, stream_mode="custom")
        if part["event_type"] == "step_progress"
    ]
    assert sorted(told) == ["reading", "writing"]
    assert len(seen) == 2
    assert all(name.startswith("capgraph-sync") for name in seen)


async def test_a_stop_iteration_of_a_sync_function_fails_its_step() -> None:
    @capability_node
    def first() -> int:
        """Take the first."""
        return next(iter([]))

    out = await run_plan(build_graph([first]), {"capability": "first"})
    assert not out["execution_step_results"]["first"]["success"]


async def test_once_inside_a_sync_method_is_refused_and_not_forgotten() -> None:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay."

        def execute(self) -> dict[str, Any]:
            self.once("transfer", dict)
            return {}

    with pytest.raises(ValidationError, match="async def"):
        await run_capability(Pay)


@pytest.mark.parametrize(
    ("act", "told"),
    [(object, "The result of part 'sent'"), ("send()", "not callable")],
)
async def test_what_once_cannot_keep_or_call_is_told(act: Any, told: str) -> None:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay."

        async def execute(self) -> dict[str, Any]:
            await self.once("sent", act)
            await self.once("sent", act)
            return {}

    graph = build_graph([Pay], checkpointer=InMemorySaver())
    out = await run_plan(
        graph.with_config({"configurable": {"thread_id": "1"}}), {"capability": "pay"}
    )
    assert out["execution_outcome"]["status"] == "failed"
    assert told in text_of(out)


# --- options and injection ----------------------------------------------------------------------------


async def test_the_function_form_has_what_classes_have() -> None:
    seen: list[Any] = []

    @capability_node(max_attempts=2, delay_seconds=0)
    async def fetch(
        step: StepContext,
        attempt: AttemptNumber,
        key: IdempotencyKey,
        settings: StepSettings,
        runtime: Runtime[Any],
        progress: Progress,
        days: int = 3,
    ) -> int:
        """Fetch it."""
        progress("fetching")
        seen.append((attempt, key == step.idempotency_key, dict(settings), runtime is not None))
        raise ConnectionError("gone")

    out = await run_plan(build_graph([fetch]), {"capability": "fetch"})
    assert seen == [(1, True, {}, True), (2, True, {}, True)]
    assert list(fetch.Parameters.model_fields) == ["days"]  # type: ignore[union-attr]
    assert not out["execution_step_results"]["fetch"]["success"]


async def test_classify_error_of_a_function() -> None:
    def told(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        return ErrorClassification(ErrorSeverity.CRITICAL, f"{context['capability']} is shut")

    @capability_node(classify_error=told)
    async def fetch() -> int:
        """Fetch it."""
        raise ConnectionError("gone")

    out = await run_plan(build_graph([fetch]), {"capability": "fetch"})
    assert "fetch is shut" in text_of(out)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("client", threading.Event),
        ("levels", list[Reading] | None),
        ("_hidden", int),
        ("model_config", int),
    ],
)
def test_what_cannot_be_injected_names_function_and_parameter(name: str, kind: Any) -> None:
    scope: dict[str, Any] = {}
    exec(f"async def fetch({name}):\n    'Fetch it.'", scope)
    scope["fetch"].__annotations__[name] = kind
    with pytest.raises(ValidationError, match=f"{name}.*fetch|fetch.*{name}"):
        capability_node(scope["fetch"])


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"delay_seconds": -1}])
def test_a_retry_option_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    async def fetch() -> int:
        """Fetch it."""
        return 1

    with pytest.raises(ValidationError, match=next(iter(options))):
        capability_node(fetch, **options)


class Deps:
    station = "roof"


async def test_a_runtime_brings_what_the_caller_handed_over() -> None:
    @capability_node
    def where(runtime: Runtime[Deps]) -> str:
        """Say where."""
        return runtime.context.station

    graph = build_graph([where], context_schema=Deps)
    given: Any = {
        "messages": [("user", "x")],
        "planning_execution_plan": plan({"capability": "where"}),
    }
    assert text_of(await graph.ainvoke(given, context=Deps())) == "roof"


async def test_a_capability_by_itself_is_given_a_context() -> None:
    @capability_node
    def greet(runtime: Runtime[str]) -> str:
        """Greet."""
        return f"Hello, {runtime.context}."

    run = await run_capability(greet, context="Ada")
    assert run.output.value == "Hello, Ada."


def test_one_type_twice_is_no_result() -> None:
    def both() -> tuple[Reading, Reading]:
        """Read both."""
        raise AssertionError

    with pytest.raises(ValidationError, match=r"'both' returns .* contains a type twice"):
        capability_node(both)


async def test_a_sync_function_that_takes_too_long_is_left_behind() -> None:
    go_on, ended = threading.Event(), threading.Event()

    @capability_node(timeout_seconds=0.2, max_attempts=1)
    def slow() -> str:
        """Take its time."""
        go_on.wait(60)
        ended.set()
        return "late"

    out = await run_plan(build_graph([slow]), {"capability": "slow"})
    assert "time limit of 0.2 s" in text_of(out)
    assert not ended.is_set()
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 60)


async def test_a_sync_function_asks_a_person() -> None:
    @capability_node
    def ask() -> str:
        """Ask a person."""
        return f"You said {interrupt('Which one?')}."

    graph = build_graph([ask], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    given: Any = {
        "messages": [("user", "x")],
        "planning_execution_plan": plan({"capability": "ask"}),
    }
    out = await graph.ainvoke(given, config)
    assert out["__interrupt__"][0].value == "Which one?"
    out = await graph.ainvoke(Command(resume="the left"), config)
    assert text_of(out) == "You said the left."


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (bytes, b"\xff", "field 'value' is of type bytes.*'utf-8' codec can't decode"),
        (dict, {1: "x", "1": "y"}, "dictionary key 1 of type int"),
        (Odd, Odd({(1, 2): "x"}), r"field 'value': the dictionary key \(1, 2\)"),
        (Odd, Odd(SecretStr("x")), "field 'x' is a secret"),
        (Reading, None, "returned None instead of READING"),
        (dict, {(1, 2): "x"}, r"dictionary key \(1, 2\) of type tuple"),
        (Any, object(), "field 'value' is of type object"),
        (Any, pandas.DataFrame({"a": [1]}), "field 'value' is of type DataFrame"),
        (Keyed, Keyed(cells={(1, 2): "x"}), r"field 'cells': the dictionary key \(1, 2\)"),
    ],
)
async def test_a_value_that_cannot_be_kept_fails_the_step_by_type(
    kind: Any, value: Any, told: str
) -> None:
    async def odd():
        """Give something odd."""
        return value

    odd.__annotations__["return"] = kind
    out = await run_plan(build_graph([capability_node(odd)]), {"capability": "odd"})
    assert re.search(told, text_of(out)), text_of(out)
    assert "new thread" not in text_of(out)


FRAME = Annotated[
    pandas.DataFrame,
    PlainValidator(lambda v: v if isinstance(v, pandas.DataFrame) else pandas.DataFrame(v)),
    PlainSerializer(lambda frame: frame.to_dict("list")),
]
PAIRS = Annotated[
    dict[tuple[int, int], str],
    PlainValidator(lambda v: v if isinstance(v, dict) else {(a, b): c for a, b, c in v}),
    PlainSerializer(lambda pairs: [[*key, value] for key, value in pairs.items()]),
]
RAW = Annotated[
    bytes,
    PlainValidator(lambda v: v if isinstance(v, bytes) else base64.b64decode(v)),
    PlainSerializer(lambda raw: base64.b64encode(raw).decode()),
]


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (FRAME, pandas.DataFrame({"a": [1]}), {"a": [1]}),
        (PAIRS, {(1, 2): "x"}, [[1, 2, "x"]]),
        (RAW, b"\xff\x00", "/wA="),
        (bytes, b"text", "text"),
        (Any, numpy.array([1.5, 2.0]), [1.5, 2.0]),
        (float, numpy.float64(3), 3.0),
        (datetime.datetime, pandas.Timestamp("2026-01-02"), "2026-01-02T00:00:00"),
    ],
)
async def test_a_value_is_kept_by_the_serializer_that_its_type_declares(
    kind: Any, value: Any, kept: Any
) -> None:
    async def odd():
        """Give something odd."""
        return value

    odd.__annotations__["return"] = kind
    out = await run_plan(build_graph([capability_node(odd)]), {"capability": "odd"})
    assert out["capability_context_data"] == {"ODD": {"odd": {"value": kept}}}


async def test_a_table_goes_from_step_to_step_by_reference() -> None:
    @capability_node
    def table() -> FRAME:
        """Make a table."""
        return pandas.DataFrame({"a": [1, 2]})

    @capability_node
    def rows(frame: FRAME) -> int:
        """Count rows."""
        return len(frame)

    taken = {"capability": "rows", "parameters": {"frame": {"$from": "table"}}}
    out = await run_plan(build_graph([table, rows]), {"capability": "table"}, taken)
    assert out["capability_context_data"]["ROWS"] == {"rows": {"value": 2}}


async def test_what_stands_for_an_argument_that_is_not_given() -> None:
    @capability_node
    def read(
        progress: Progress | None = None,
        attempt: AttemptNumber | None = None,
        reading: Reading = Reading(metres=7),  # noqa: B008
        copy: str = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> str:
        """Read."""
        return f"{callable(progress)} {attempt} {reading.metres} {copy}"

    assert text_of(await run_plan(build_graph([read]), {"capability": "read"})) == "True 1 7.0 None"


def test_a_type_without_a_form_is_refused_with_the_way_to_write_it() -> None:
    async def table() -> pandas.DataFrame:
        """Give a table."""
        return pandas.DataFrame()

    with pytest.raises(ValidationError, match=r"'table' returns DataFrame.*PlainValidator"):
        capability_node(table)


# --- references and asking again ------------------------------------------------------------------------


@capability_node
def stats() -> Stats:
    """Give statistics of the week."""
    return Stats(1, 5)


@capability_node
def label() -> str:
    """Name the week."""
    return "week 7"


@capability_node
def warn(level: float, notes: list[str] | None = None) -> str:
    """Warn of a level."""
    return f"Level {level} {notes}"


async def test_a_parameter_refers_to_a_result() -> None:
    graph = build_graph([stats, label, warn])
    given = {"level": {"$from": "stats.maximum"}, "notes": [{"$from": "label"}, "high"]}
    steps = [{"capability": "stats"}, {"capability": "label"}, {"capability": "warn"}]
    out = await run_plan(graph, *steps[:2], {**steps[2], "parameters": given})
    kept = out["capability_context_data"]["WARN"]["warn"]["value"]
    assert kept == "Level 5.0 ['week 7', 'high']"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("label", "the value is string, but the parameter is number"),
        ("stats", "the value is object, but the parameter is number"),
        ("stats.mean", "no field 'mean'; its fields are maximum, minimum"),
        ("label.value", "no field 'value'; refer to it as 'label'"),
        ("nothing.at_all", "no step or stored context"),
        ("", "a reference must be an object"),
        (5, "a reference must be an object"),
    ],
)
def test_a_reference_is_checked_before_the_plan_runs(text: Any, told: str) -> None:
    registry = Registry()
    for item in (stats, label, warn):
        registry.register(item)
    steps = [{"capability": "stats"}, {"capability": "label"}, {"capability": "warn"}]
    steps[2]["parameters"] = {"level": {"$from": text}}  # type: ignore[assignment]
    [problem] = check_plan(plan(*steps), registry)
    assert (problem.step, problem.field) == (2, "parameters.level")
    assert told in problem.cause
    assert problem.code == "CG-P19"


def test_a_reference_to_itself_and_to_a_later_step_are_told_as_of_inputs() -> None:
    registry = Registry().with_(stats, warn)
    own = {"capability": "warn", "parameters": {"level": {"$from": "warn"}}}
    [problem] = check_plan(plan(own), registry)
    assert (problem.code, problem.cause) == ("CG-P18", "waits for itself")
    later = {"capability": "warn", "parameters": {"level": {"$from": "stats.maximum"}}}
    [problem] = check_plan(plan(later, {"capability": "stats"}), registry)
    assert (problem.code, problem.field) == ("CG-P14", "parameters.level")
    mended = repair_plan(plan(later, {"capability": "stats"}), registry)
    assert mended.ok
    assert [step["context_key"] for step in mended.plan["steps"]] == ["stats", "warn", "answer"]


def test_repair_keeps_references_right_when_it_renames_and_inserts() -> None:
    registry = Registry().with_(stats, label, warn)
    steps = [
        {"capability": "stats", "context_key": "this week!"},
        {"capability": "label", "context_key": "x"},
        {"capability": "stats", "context_key": "x", "parameters": {}},
        {
            "capability": "warn",
            "parameters": {"level": {"$from": "this week!.maximum"}, "notes": [{"$from": "x"}]},
        },
    ]
    mended = repair_plan(plan(*steps[:2], steps[3]), registry)
    assert mended.ok, mended.problems
    assert mended.plan["steps"][2]["parameters"] == {
        "level": {"$from": "this_week.maximum"},
        "notes": [{"$from": "x"}],
    }
    # Which of two steps of one name a reference means is not guessed.
    assert "CG-P11" in [p.code for p in repair_plan(plan(*steps), registry).problems]


async def test_a_key_with_dots_is_referred_to() -> None:
    graph = build_graph([stats, warn])
    given = {"level": {"$from": "seattle.daily.maximum"}}
    steps = [{"capability": "stats", "context_key": "seattle.daily"}, {"capability": "warn"}]
    out = await run_plan(graph, steps[0], {**steps[1], "parameters": given})
    assert out["capability_context_data"]["WARN"]["warn"]["value"] == "Level 5.0 None"


# --- two inputs of one type, and lists of contexts ------------------------------------------------


@capability_node(examples=["measure upstream"])
def upstream() -> Reading:
    """Measure the level upstream."""
    return Reading(metres=1.0)


@capability_node(examples=["measure downstream"])
def downstream() -> Reading:
    """Measure the level downstream."""
    return Reading(metres=4.0)


@capability_node(examples=["how much did the level change?"])
def change(old: Reading, new: Reading) -> float:
    """Tell how much the level changed."""
    return new.metres - old.metres


@capability_node(examples=["read all gauges"])
def gauges() -> list[Reading]:
    """Read all gauges."""
    return [Reading(metres=1.0), Reading(metres=4.0)]


@capability_node(examples=["what is the highest level?"])
def highest(readings: list[Reading]) -> float:
    """Tell the highest level."""
    return max(reading.metres for reading in readings)


MEASURED = ({"capability": "upstream"}, {"capability": "downstream"})


@pytest.mark.parametrize(
    ("old", "new", "told"), [("upstream", "downstream", 3.0), ("downstream", "upstream", -3.0)]
)
async def test_two_inputs_of_one_type_go_by_their_roles(old: str, new: str, told: float) -> None:
    graph = build_graph([upstream, downstream, change])
    step = {"capability": "change", "inputs": [{"old": old}, {"new": new}]}
    out = await run_plan(graph, *MEASURED, step)
    assert out["capability_context_data"]["CHANGE"]["change"] == {"value": told}


def test_roles_are_checked_like_types() -> None:
    registry = Registry().with_(upstream, downstream, change, stats)
    step = {"capability": "change", "inputs": [{"old": "upstream"}, {"new": "stats"}]}
    steps = [*MEASURED, {"capability": "stats"}, step]
    [problem] = check_plan(plan(*steps), registry)
    assert (problem.code, problem.field) == ("CG-P15", "inputs[1].new")
    assert problem.cause == "step 3 supplies STATS, not READING"
    step["inputs"] = [{"READING": "upstream"}]
    found = check_plan(plan(*steps), registry)
    assert [p.cause for p in found] == [
        "'change' requires old (READING), and the step has no such input",
        "'change' requires new (READING), and the step has no such input",
    ]


def test_the_last_open_role_can_only_mean_what_is_left() -> None:
    registry = Registry().with_(upstream, downstream, change)
    step = {"capability": "change", "inputs": [{"old": "downstream"}]}
    mended = repair_plan(plan(*MEASURED, step), registry)
    assert mended.ok
    assert mended.plan["steps"][2]["inputs"] == [{"old": "downstream"}, {"new": "upstream"}]
    both_open = repair_plan(plan(*MEASURED, {"capability": "change"}), registry)
    assert [problem.code for problem in both_open.problems] == ["CG-P16", "CG-P16"]


async def test_a_model_names_the_roles_in_their_order() -> None:
    steps = [*MEASURED, {"capability": "change", "inputs": ["2", "1"]}]
    model = ScriptedModel(responses=[{"steps": steps}, "It fell by 3 m."])
    graph = build_graph([upstream, downstream, change], model=model)
    out = await graph.ainvoke({"messages": [("user", "From downstream to upstream?")]})
    assert out["capability_context_data"]["CHANGE"]["change"] == {"value": -3.0}
    assert "Needs old: READING, new: READING." in model.calls[0].prompt


async def test_offline_roles_are_filled_in_the_order_of_their_suppliers() -> None:
    graph = build_graph([upstream, downstream, change], selector=Everything())
    out = await graph.ainvoke({"messages": [("user", "How much did it change?")]})
    assert out["capability_context_data"]["CHANGE"]["change"] == {"value": 3.0}
    out = await build_graph([upstream, change], selector=Everything()).ainvoke(
        {"messages": [("user", "How much did it change?")]}
    )
    assert (
        "requires 2 inputs of type READING (old, new), but 1 are available"
        in message_and_reason(out)
    )


@capability_node(examples=["compare the level with others"])
def above(base: Reading, others: list[Reading], floor: Reading | None = None) -> list[float]:
    """Tell by how much others are above a level."""
    return [other.metres - base.metres for other in others]


async def test_one_many_and_optional_inputs_of_one_type() -> None:
    assert [str(need) for need in above.capability_spec.requires] == [  # type: ignore[attr-defined]
        "base: READING", "others: READING (many)", "floor: READING (optional)",
    ]  # fmt: skip
    step = {"capability": "above", "inputs": [{"base": "upstream"}, {"others": "gauges"}]}
    steps = [MEASURED[0], {"capability": "gauges"}, step]
    out = await run_plan(build_graph([upstream, gauges, above]), *steps)
    assert out["capability_context_data"]["ABOVE"]["above"] == {"value": [0.0, 3.0]}
    graph = build_graph([upstream, downstream, above], selector=Everything())
    out = await graph.ainvoke({"messages": [("user", "Compare them")]})
    found = out["planning_execution_plan"]["steps"][2]["inputs"]
    assert found == [
        {"base": "reading"}, {"others": "reading"}, {"others": "reading_2"}, {"floor": "reading_2"},
    ]  # fmt: skip


async def test_roles_of_a_class_and_in_a_test_of_one_step() -> None:
    @capability_node
    class Change(BaseCapability):
        name = "change_of"
        description = "Tell how much the level changed."
        requires = [(Reading, "one", "old"), (Reading, "one", "new")]
        provides = ["DIFFERENCE"]

        async def execute(self) -> dict[str, Any]:
            return {"DIFFERENCE": {"m": self.inputs["new"].metres - self.inputs["old"].metres}}

    given = {"old": Reading(metres=1), "new": Reading(metres=3)}
    assert (await run_capability(Change, inputs=given)).contexts["DIFFERENCE"] == {"m": 2.0}  # type: ignore[arg-type]
    twice = type("Twice", (BaseCapability,), {**vars(Change), "requires": [Reading, Reading]})
    with pytest.raises(
        ValidationError, match=r"contains READING more than once.*Give each entry a role"
    ):
        capability_node(twice)


@pytest.mark.parametrize("inputs", [[{"READING": "gauges"}], ["1"], None])
async def test_a_list_of_contexts_feeds_who_takes_many(inputs: Any) -> None:
    step = {"capability": "highest"} | ({"inputs": inputs} if inputs else {})
    out = await run_plan(build_graph([gauges, highest]), {"capability": "gauges"}, step)
    assert out["capability_context_data"]["HIGHEST"]["highest"] == {"value": 4.0}


async def test_a_list_joins_single_ones_and_is_planned_without_a_model() -> None:
    both = [{"READING": "gauges"}, {"READING": "upstream"}]
    steps = ({"capability": "gauges"}, MEASURED[0], {"capability": "highest", "inputs": both})
    graph = build_graph([gauges, upstream, highest])
    out = await run_plan(graph, *steps)
    assert out["capability_context_data"]["HIGHEST"]["highest"] == {"value": 4.0}
    out = await build_graph([gauges, highest]).ainvoke(
        {"messages": [("user", "What is the highest level?")]}
    )
    assert text_of(out) == "highest: 4.0"


def test_a_list_is_not_one_context() -> None:
    registry = Registry().with_(gauges, change)
    step = {"capability": "change", "inputs": [{"old": "gauges"}, {"new": "gauges"}]}
    found = check_plan(plan({"capability": "gauges"}, step), registry)
    assert {problem.code for problem in found} == {"CG-P15"}


def test_a_reference_makes_a_step_wait() -> None:
    steps = [{"capability": "stats"}, {"capability": "label"}, {"capability": "warn"}]
    steps[2]["parameters"] = {"level": {"$from": "stats.maximum"}}  # type: ignore[assignment]
    assert dependencies(plan(*steps))["warn"] == {"stats"}  # type: ignore[arg-type]


async def test_ask_again_goes_back_to_the_planner() -> None:
    @capability_node
    async def channel(name: str) -> float:
        """Read a channel."""
        if name != "T1":
            raise AskAgain(f"There is no channel {name!r}; there are T1 to T6.")
        return 3.5

    asked: list[Any] = []

    class Planner:
        can_correct = True

        async def plan(self, request: Any) -> Any:
            asked.append(request.failure)
            name = "T7" if len(asked) == 1 else "T1"
            return plan({"capability": "channel", "parameters": {"name": name}})

    graph = build_graph([channel], planner=Planner(), selector=Everything())
    out = await graph.ainvoke({"messages": [("user", "Read T7")]})
    assert out["capability_context_data"]["CHANNEL"]["channel"] == {"value": 3.5}
    assert asked[0] is None
    assert "there are T1 to T6" in str(asked[1])


# --- plain words ------------------------------------------------------------------------------------------


def test_a_langchain_tool_a_graph_and_a_bare_function_are_refused_by_what_they_are() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def bare() -> str:
        """Bare."""
        return ""

    for item, told in (
        (add, r"'add' is a LangChain tool.*tool_capability\(add\)"),
        (build_graph([]), r"is a LangGraph graph.*graph_capability\("),
        (bare, "'bare' is a function without a decorator"),
    ):
        with pytest.raises(RegistryError, match=told):
            build_graph([item])


def test_a_model_without_a_provider_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match=r"'gpt-5-mini' .* has no provider.*openai:gpt-5"):
        build_graph([label], model="gpt-5-mini")


async def test_a_retried_failure_is_not_logged_as_unhandled(caplog: Any) -> None:
    tries: list[int] = []

    @capability_node(delay_seconds=0)
    def flaky() -> str:
        """Work in the end."""
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("gone")
        return "there"

    out = await run_plan(build_graph([flaky]), {"capability": "flaky"})
    assert out["execution_step_results"]["flaky"]["success"]
    assert "Unhandled" not in caplog.text
    assert "step flaky failed (retriable): gone" in caplog.text


@capability_node(effect="once", examples=["pay the bill"])
def pay(amount: int = 100) -> str:
    """Pay the bill."""
    return f"Paid {amount}."


@capability_node(examples=["read a channel"])
def channel(name: str) -> str:
    """Read a channel."""
    return f"Channel {name}."


def test_once_without_a_saver_and_parameters_nobody_fills_are_warned_of(caplog: Any) -> None:
    build_graph([pay, channel])
    assert "'pay' has effect='once', but there is no saver" in caplog.text
    assert re.search(r"'channel'.*name.*planning without a model", caplog.text)
    caplog.clear()
    build_graph([pay], checkpointer=InMemorySaver())
    assert caplog.text == ""


async def test_parameters_from_fills_what_the_task_says() -> None:
    def read(task: str) -> dict[str, Any]:
        return {"name": found.group()} if (found := re.search(r"T\d", task)) else {}

    @capability_node(examples=["read a channel"], parameters_from=read)
    def told(name: str) -> str:
        """Read a channel."""
        return f"Channel {name}."

    graph = build_graph([told])
    out = await graph.ainvoke({"messages": [("user", "Read a channel: T7")]})
    assert text_of(out) == "Channel T7."
    out = await graph.ainvoke({"messages": [("user", "Read a channel")]})
    assert "the parameters name" in message_and_reason(out)


async def test_offline_an_effect_with_default_parameters_is_asked_about() -> None:
    graph = build_graph([pay], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"messages": [("user", "Pay the bill")]}, config)
    [question] = out["__interrupt__"]
    assert "All parameters are defaults" in str(question.value)
    assert question.value["steps"][0]["parameters"] == {"amount": 100}
    out = await graph.ainvoke(Command(resume="yes"), config)
    assert text_of(out) == "Paid 100."


async def test_an_effect_of_a_brought_plan_is_not_asked_about() -> None:
    out = await run_plan(build_graph([pay], checkpointer=None), {"capability": "pay"})
    assert out["capability_context_data"]["PAY"]["pay"] == {"value": "Paid 100."}


# --- nodes of one's own, and what else was met ------------------------------------------------------


async def test_a_node_of_ones_own_stands_where_it_says() -> None:
    seen: list[str] = []

    def node(name: str, **where: str) -> Any:
        async def execute(state: Any, **_: Any) -> dict[str, Any]:
            seen.append(name)
            return {}

        told = {"name": name, "description": "Watch.", "execute": staticmethod(execute)}
        return infrastructure_node(type(name, (BaseInfrastructureNode,), {**told, **where}))

    nodes = (
        node("first", before="classifier"),
        node("ready", before="respond"),
        node("last", after="respond"),
    )
    out = await build_graph(Registry().with_(label, *nodes)).ainvoke({"messages": [("user", "Hi")]})
    assert seen == ["first", "ready", "last"]
    assert text_of(out)
    with pytest.raises(RegistryError, match=r"'lost'.*never run.*task_extraction, classifier"):
        Registry().register(node("lost"))


async def test_without_a_thread_a_kept_graph_says_what_is_missing() -> None:
    graph = build_graph([label], checkpointer=InMemorySaver())
    with pytest.raises(ValidationError, match="thread_id is missing"):
        await graph.ainvoke({"messages": [("user", "Name the week")]})


async def test_a_returned_type_keeps_its_summary_without_being_registered() -> None:
    class Depth(CapabilityContext):
        metres: float

        def get_summary(self) -> str:
            return f"It is {self.metres} m deep."

    @capability_node(examples=["how deep is it?"])
    def depth() -> Depth:
        """Measure the depth."""
        return Depth(metres=3)

    out = await build_graph([depth]).ainvoke({"messages": [("user", "How deep is it?")]})
    assert text_of(out) == "It is 3.0 m deep."

    @capability_node(examples=["how deep is it?"])
    def depths() -> list[Depth]:
        """Measure all depths."""
        return [Depth(metres=3), Depth(metres=4)]

    out = await build_graph([depths]).ainvoke({"messages": [("user", "How deep is it?")]})
    assert text_of(out) == "It is 3.0 m deep.\nIt is 4.0 m deep."


async def test_a_class_that_the_registry_does_not_know_is_told_when_it_is_returned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Depth(CapabilityContext):
        metres: float

    @capability_node
    class Sound(BaseCapability):
        name = "sound"
        description = "Measure the depth"
        provides = ["DEPTH"]

        async def execute(self) -> Depth:
            return Depth(metres=3)

    given: Any = {"steps": [{"context_key": "d", "capability": "sound"}]}
    for items, told in (([Sound], True), ([Sound, Depth], False)):
        caplog.clear()
        graph = build_graph(items)
        await graph.ainvoke({"messages": [("user", "How deep?")], "planning_execution_plan": given})
        assert ("declare provides = [Depth]" in caplog.text) is told


def test_check_warns_of_parameters_that_nobody_fills(tmp_path: Path) -> None:
    (tmp_path / "first_hour_toys.py").write_text(
        "from capgraph import capability_node\n\n\n"
        "@capability_node\n"
        "def channel(name: str) -> str:\n"
        '    """Read a channel."""\n'
        "    return name\n"
    )
    (tmp_path / "agent.yml").write_text("modules: [first_hour_toys]\n")
    done = python(tmp_path, "-m", "capgraph", "check", "--config", "agent.yml", "--json")
    assert re.search(r"'channel'.*name.*planning without a model", done.stdout)


def test_a_data_class_may_be_a_capability() -> None:
    assert Read(unit="km").unit == "km"  # that a type checker takes it is looked at by `make lint`


# --- names ------------------------------------------------------------------------------------------------


def test_packages_with_the_names_of_our_folders_do_not_disturb(tmp_path: Path) -> None:
    for name in ("framework", "capabilities", "infrastructure", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "test_mine.py").write_text(
        "import framework, capabilities, infrastructure, configs\n"
        "def test_mine():\n"
        "    assert framework.MINE and capabilities.MINE and infrastructure.MINE and configs.MINE\n"
        "def test_fixture(registry):\n"
        "    registry.discover('capgraph.capabilities.memory')\n"
        "    assert registry.infrastructure\n"
    )
    code = f"import sys, pytest; sys.path.insert(0, {str(tmp_path)!r});"
    code += "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'capgraph_pytest']))"
    done = python(tmp_path, "-c", code)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    code = "import capgraph_pytest, sys; print([m for m in sys.modules if m.split('.')[0] == 'capgraph'])"
    assert python(tmp_path, "-c", code).stdout == "[]\n"


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )


# --- the two-tool agent ---------------------------------------------------------------------------------

COMPARISON = ROOT / "docs" / "comparison"
README_AGENT = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]


def lines_and_concepts(code: str) -> tuple[int, set[str]]:
    imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names}
    return sum(bool(line.strip()) for line in code.splitlines()), names


def formatted(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "88", "-"],
        input=code,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_the_first_agent_of_the_readme_is_short() -> None:
    lines, concepts = lines_and_concepts(formatted(README_AGENT))
    assert lines <= 13
    assert len(concepts) <= 2


@pytest.mark.parametrize("file", sorted(COMPARISON.glob("*.py")), ids=lambda file: str(file.stem))
def test_the_page_counts_each_file_as_it_is(file: Path) -> None:
    code = file.read_text()
    assert formatted(code) == code
    lines, concepts = lines_and_concepts(code)
    [row] = [
        row
        for row in (COMPARISON / "index.md").read_text().splitlines()
        if row.startswith(f"| `{file.name}`")
    ][:1]
    named = ", ".join(f"`{name}`" for name in sorted(concepts))
    assert row == f"| `{file.name}` | {lines} | {len(concepts)}: {named} |"


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("with_capgraph.py", "langchain_openai"),
        ("with_create_agent.py", "langchain_openai"),
        ("with_pydantic_ai.py", "pydantic_ai"),
    ],
)
def test_the_same_agent_runs_in_each(file: str, module: str, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip(module)
    steps = [{"context_key": "a", "capability": "tank_level", "task_objective": "Read it"}]
    with openai_server() as server:
        server.on("Choice", give({"reason": "It fits.", "capabilities": ["tank_level"]}))
        server.on("ExecutionPlan", give({"steps": steps}))
        server.on("tank_level", give({}), say("It holds 2.5 m.", as_text=True))
        server.on("text", say("It holds 2.5 m."))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        _run(file)
        assert any("2.5" in str(body["messages"][1:]) for body in server.asked())
    assert capsys.readouterr().out == "It holds 2.5 m.\n"


@pytest.mark.parametrize(
    "file", sorted(COMPARISON.glob("team_*.py")), ids=lambda file: str(file.stem)
)
def test_the_same_team_runs_in_each(file: Path, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("langchain_openai")
    work = [("gauge", "How full is the tank?"), ("weather", "Will it rain?")]
    split = {"subtasks": [{"agent": name, "subtask": text} for name, text in work]}
    with openai_server() as server:
        server.on("Subtasks", give(split)).on("Answer", give({"answer": "No: 2.5 m, no rain."}))
        chosen = [{"member": "gauge"}, {"member": "weather"}]
        chosen.append({"member": "nobody", "answer": "No: 2.5 m, no rain."})
        server.on("Next", *(give(one) for one in chosen))
        server.on(
            "ask_gauge", give({"request": "How full?"}), say("No: 2.5 m, no rain.", as_text=True)
        )
        server.on("tank_level", give({}), say("It holds 2.5 m.", as_text=True))
        server.on("rain_tomorrow", give({}), say("No rain.", as_text=True))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        _run(file.name)
        assert any("It holds 2.5 m." in str(body["messages"]) for body in server.asked())
    assert capsys.readouterr().out == "No: 2.5 m, no rain.\n"


def _run(file: str) -> None:
    # pydantic-ai's run_sync makes a loop where there is none, and leaves it open.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        runpy.run_path(str(COMPARISON / file))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
