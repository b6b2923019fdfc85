"""Tests of plan repair: repaired problems, ambiguous problems, and reports."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from capgraph.base import CapabilitySpec, Requirement
from capgraph.planning import Repair, StaticCatalog, check_plan, repair_plan

pytestmark = pytest.mark.row("B48")


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    days: int = 1
    share: float = 0.5
    quiet: bool = False
    zip_code: str = ""
    columns: list[str] = []


CATALOG = StaticCatalog.of(
    CapabilitySpec("locate", "Find the place.", provides=("PLACE",)),
    CapabilitySpec("time_range", "Find the time.", provides=("TIME_RANGE",), parameters=Options),
    CapabilitySpec(
        "fetch",
        "Fetch.",
        provides=("DATA",),
        requires=(Requirement("PLACE"), Requirement("TIME_RANGE", "optional")),
    ),
    CapabilitySpec("average", "Average.", provides=("MEAN",), requires=(Requirement("DATA"),)),
    CapabilitySpec(
        "compare", "Compare.", provides=("DIFFERENCE",), requires=(Requirement("MEAN", "many"),)
    ),
    CapabilitySpec("describe", "Describe.", provides=("MEAN_TEXT", "RANGE_TEXT")),
    CapabilitySpec("book", "Book.", provides=("BOOKING",), effect="once"),
    CapabilitySpec("mail", "Mail.", requires=(Requirement("BOOKING"),)),
    infrastructure={"router", "respond", "clarify"},
)


def step(key: str | None, capability: str, *inputs: dict[str, str], **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"capability": capability, **more}
    if key is not None:
        made["context_key"] = key
    if inputs:
        made["inputs"] = list(inputs)
    return made


ANSWER = step("answer", "respond")


def mend(*steps: Any, stored: Any = None, **options: Any) -> tuple[list[Any], list[str], list[str]]:
    plan = {"steps": list(steps)}
    before = copy.deepcopy(plan)
    repaired = repair_plan(plan, CATALOG, stored, **options)
    assert plan == before
    assert repaired.problems == check_plan(repaired.plan, CATALOG, stored, **options)
    return (
        repaired.plan["steps"],
        [repair.code for repair in repaired.repairs],
        [problem.code for problem in repaired.problems],
    )


def keys(steps: list[Any]) -> list[str]:
    return [made["context_key"] for made in steps]


def test_an_inserted_producer_also_inserts_its_own_producers() -> None:
    steps, repairs, left = mend(step("mean", "average", task_objective="How warm?"), ANSWER)
    assert (repairs, left) == (["CG-P16"], [])
    assert [(s["context_key"], s["capability"]) for s in steps] == [
        ("place", "locate"), ("data", "fetch"), ("mean", "average"), ("answer", "respond"),
    ]  # fmt: skip
    assert steps[1]["inputs"] == [{"PLACE": "place"}]
    assert steps[1]["task_objective"] == "How warm?"


def test_an_inserted_producer_reads_existing_results() -> None:
    steps, _, left = mend(
        step("when", "time_range"), step("where", "locate"), step("mean", "average"), ANSWER
    )
    assert left == []
    assert steps[2]["inputs"] == [{"PLACE": "where"}, {"TIME_RANGE": "when"}]


def test_one_inserted_producer_serves_several_readers() -> None:
    steps, repairs, left = mend(
        step("place", "locate"), step("a", "average"), step("b", "average"), ANSWER
    )
    assert left == []
    assert keys(steps) == ["place", "data", "a", "b", "answer"]
    assert repairs == ["CG-P16", "CG-P16"]


def test_an_inserted_producer_gets_the_key_that_inputs_use() -> None:
    steps, _, left = mend(
        step("place", "locate"), step("mean", "average", {"DATA": "readings"}), ANSWER
    )
    assert left == []
    assert keys(steps) == ["place", "readings", "mean", "answer"]


def test_a_capability_with_effects_is_never_inserted() -> None:
    assert mend(step("mail", "mail"), ANSWER)[1:] == ([], ["CG-P16"])


def test_an_unselected_capability_is_never_inserted() -> None:
    _, repairs, left = mend(step("mean", "average"), ANSWER, active=["average", "fetch"])
    assert (repairs, left) == ([], ["CG-P16"])


def test_an_answer_past_the_limit_is_a_problem() -> None:
    assert mend(step("place", "locate"), max_steps=2)[1:] == (["CG-P08"], [])
    assert mend(step("place", "locate"), max_steps=1)[1:] == (["CG-P08"], ["CG-P03"])


def test_an_inserted_producer_does_not_break_the_limit() -> None:
    assert mend(step("mean", "average"), ANSWER, max_steps=3)[1:] == ([], ["CG-P16"])


@pytest.mark.parametrize(
    ("steps", "stored", "link"),
    [
        # a step before
        ([step("p", "locate"), step("d", "fetch")], {"PLACE": ["old"]}, {"PLACE": "p"}),
        # nothing in the plan, one stored
        ([step("d", "fetch")], {"PLACE": ["old"]}, {"PLACE": "old"}),
        # only a step that comes too late
        ([step("d", "fetch"), step("p", "locate")], None, {"PLACE": "p"}),
        # a name that means nothing, and one that is nearly right
        ([step("p", "locate"), step("d", "fetch", {"PLACE": "ghost"})], None, {"PLACE": "p"}),
        (
            [step("oslo", "locate"), step("bergen", "locate"), step("d", "fetch", {"PLACE": "bregen"})],
            None,
            {"PLACE": "bergen"},
        ),
        # the right name under a wrong type
        ([step("p", "locate"), step("d", "fetch", {"LOCATION": "p"})], None, {"PLACE": "p"}),
        # a step of another type
        (
            [step("p", "locate"), step("m", "average", {"DATA": "x"}), step("d", "fetch", {"PLACE": "m"})],
            {"DATA": ["x"]},
            {"PLACE": "p"},
        ),
    ],
)  # fmt: skip
def test_an_input_with_one_possible_supplier_is_corrected(
    steps: Any, stored: Any, link: Any
) -> None:
    made, _, left = mend(*steps, ANSWER, stored=stored)
    assert left == []
    assert next(s for s in made if s["context_key"] == "d")["inputs"] == [link]
    assert len(made) == len(steps) + 1


@pytest.mark.parametrize(
    ("steps", "stored", "left"),
    [
        # two suppliers before
        ([step("p", "locate"), step("q", "locate"), step("d", "fetch")], None, ["CG-P16"]),
        # two stored
        ([step("d", "fetch")], {"PLACE": ["a", "b"]}, ["CG-P16"]),
        # one stored, one later
        ([step("d", "fetch"), step("p", "locate")], {"PLACE": ["a"]}, ["CG-P16"]),
        # names that differ by a number are different things
        (
            [step("p1", "locate"), step("p2", "locate"), step("d", "fetch", {"PLACE": "p3"})],
            None,
            ["CG-P13"],
        ),
        # a circle
        (
            [step("p", "locate", {"DATA": "d"}), step("d", "fetch", {"PLACE": "p"})],
            None,
            ["CG-P18"],
        ),
        ([step("r", "router")], None, ["CG-P06"]),
        ([step("c", "clarify"), step("p", "locate")], None, ["CG-P07"]),
        ([step("x", "teleport")], None, ["CG-P04"]),
        ([step("x", "describe", expected_output="MEAN")], None, ["CG-P20"]),
        ([step("t", "time_range", parameters={"days": "many"})], None, ["CG-P19"]),
        ([step("t", "time_range", parameters={"depth": 1})], None, ["CG-P19"]),
    ],
)
def test_ambiguous_problems_are_not_repaired(steps: Any, stored: Any, left: Any) -> None:
    made, repairs, remaining = mend(*steps, ANSWER, stored=stored)
    assert remaining == left
    assert repairs == []
    assert made == [*steps, ANSWER]


def test_an_input_without_reader_or_supplier_is_removed() -> None:
    made, repairs, left = mend(step("p", "locate", {"MOOD": "good"}), ANSWER)
    assert (made[0]["inputs"], repairs, left) == ([], ["CG-P13"], [])


def test_a_cycle_through_a_wrong_input_is_repaired() -> None:
    made, _, left = mend(
        step("mean", "average", {"DATA": "d"}), step("d", "fetch", {"PLACE": "mean"}), ANSWER
    )
    assert left == []
    assert keys(made) == ["place", "d", "mean", "answer"]


def test_order_is_restored_and_nothing_else_moves() -> None:
    steps = [
        step("mean", "average", {"DATA": "data"}),
        step("when", "time_range"),
        step("data", "fetch", {"PLACE": "place"}),
        step("place", "locate"),
        ANSWER,
    ]
    made, repairs, left = mend(*steps)
    assert keys(made) == ["when", "place", "data", "mean", "answer"]
    assert (repairs, left) == (["CG-P14"], [])
    assert all(any(one is made_step or one == made_step for one in steps) for made_step in made)


def test_reordering_keeps_the_readers_of_a_stored_context() -> None:
    """A step that reads a stored context stays before the step that replaces it."""
    made, _, left = mend(
        step("old", "fetch", {"PLACE": "home"}),
        step("home", "locate"),
        step("mean", "average", {"DATA": "new"}),
        step("new", "fetch", {"PLACE": "home"}),
        ANSWER,
        stored={"PLACE": ["home"]},
    )
    assert left == []
    assert keys(made) == ["old", "home", "new", "mean", "answer"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Time Range", "time_range"),
        ("TimeRangeCapability", "time_range"),
        ("time-rang", "time_range"),
        ("Respond", "respond"),
        ("describ", "describe"),
        ("lokate", "locate"),
    ],
)
def test_names(name: str, meant: str) -> None:
    made, _, _ = mend(step("a", name))
    assert made[0]["capability"] == meant


def test_two_similar_names_are_ambiguous() -> None:
    catalog = StaticCatalog.of(CapabilitySpec("read_csv", "R."), CapabilitySpec("read_tsv", "R."))
    plan = {"steps": [step("a", "read_xsv"), ANSWER]}
    assert repair_plan(plan, catalog).repairs == ()


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("days", "5", 5),
        ("days", 5.0, 5),
        ("days", "5.0", 5),
        ("share", "0.25", 0.25),
        ("quiet", "True", True),
        ("quiet", "false", False),
        ("zip_code", 94110, "94110"),
        ("columns", '["a", "b"]', ["a", "b"]),
    ],
)
def test_parameters_are_converted_without_loss(name: str, value: Any, meant: Any) -> None:
    made, repairs, left = mend(step("t", "time_range", parameters={name: value}), ANSWER)
    assert made[0]["parameters"] == {name: meant}
    assert type(made[0]["parameters"][name]) is type(meant)
    assert (repairs, left) == (["CG-P19"], [])


@pytest.mark.parametrize(
    ("name", "value"),
    [("days", "05"), ("days", 5.5), ("days", "5.5"), ("zip_code", 5.5), ("columns", "a"),
     ("days", "5 days"), ("days", None), ("share", "0.1000000000000000055511151")],
)  # fmt: skip
def test_lossy_parameter_conversions_are_not_made(name: str, value: Any) -> None:
    steps = (step("t", "time_range", parameters={name: value}), ANSWER)
    made, repairs, _ = mend(*steps)
    assert (made, repairs) == (list(steps), [])


def test_all_parameters_as_text() -> None:
    made, _, left = mend(step("t", "time_range", parameters='{"days": "4"}'), ANSWER)
    assert (made[0]["parameters"], left) == ({"days": 4}, [])


def test_missing_malformed_and_duplicate_keys_are_repaired() -> None:
    made, repairs, left = mend(
        step(None, "locate"),
        step("my data!", "fetch", {"PLACE": "nowhere"}),
        step("x", "average", {"DATA": "my data!"}),
        step("x", "time_range"),
        step(7, "time_range"),  # type: ignore[arg-type]
        step("", "respond"),
    )
    assert left == []
    assert keys(made) == ["place", "my_data", "x", "x_2", "7", "user_response"]
    assert made[2]["inputs"] == [{"DATA": "my_data"}]
    assert made[1]["inputs"] == [{"PLACE": "place"}]
    assert sorted(repairs) == ["CG-P09", "CG-P09", "CG-P10", "CG-P10", "CG-P11", "CG-P13"]


def test_duplicate_keys_are_renamed_according_to_their_readers() -> None:
    made, _, left = mend(
        step("x", "locate"),
        step("x", "fetch", {"PLACE": "x"}),
        step("m", "average", {"DATA": "x"}),
        ANSWER,
    )
    assert left == []
    assert keys(made) == ["x", "x_2", "m", "answer"]
    assert made[1]["inputs"] == [{"PLACE": "x"}]
    assert made[2]["inputs"] == [{"DATA": "x_2"}]


def test_ambiguous_duplicate_keys_are_not_renamed() -> None:
    steps = (
        step("x", "locate", task_objective="Oslo"),
        step("x", "locate", task_objective="Bergen"),
        step("d", "fetch", {"PLACE": "x"}),
        ANSWER,
    )
    assert mend(*steps) == (list(steps), [], ["CG-P11"])


def test_a_duplicate_step_is_removed() -> None:
    made, _, left = mend(step("p", "locate"), step("p", "locate"), ANSWER)
    assert (keys(made), left) == (["p", "answer"], [])


@pytest.mark.parametrize(
    "inputs",
    [
        {"PLACE": "p"},
        [{"PLACE": ["p"]}],
        [{"PLACE": "p"}, {"PLACE": "p"}, None, {}],
        {"PLACE": ["p", "p"]},
    ],
)
def test_inputs_in_another_form(inputs: Any) -> None:
    made, _, left = mend(
        step("p", "locate"), step("d", "fetch", inputs=inputs) | {"inputs": inputs}, ANSWER
    )
    assert (made[1]["inputs"], left) == ([{"PLACE": "p"}], [])


def links(steps: list[Any], index: int) -> Any:
    return steps[index].get("inputs")


def test_inputs_may_be_step_numbers_or_result_keys() -> None:
    two = [{"capability": "average"}, {"capability": "average"}]
    stored = {"DATA": ["old", "new"]}
    steps, codes, left = mend(
        {**two[0], "inputs": ["old"]},
        {**two[1], "inputs": ["new"]},
        {"capability": "compare", "inputs": ["1", 2]},
        stored=stored,
    )
    assert left == []
    assert links(steps, 0) == [{"DATA": "old"}]
    assert links(steps, 2) == [{"MEAN": "mean"}, {"MEAN": "mean_2"}]
    assert codes.count("CG-P12") == 3


@pytest.mark.parametrize("named", ["0", "3", "9", "nobody", "-1", "²", True, None, 10**30])
def test_an_unknown_input_is_not_repaired(named: Any) -> None:
    _, _, left = mend(
        {"capability": "average", "inputs": [{"DATA": "old"}]},
        {"capability": "describe", "expected_output": "MEAN_TEXT"},
        {"capability": "compare", "inputs": ["1", named]},
        stored={"DATA": ["old"]},
    )
    assert left == ([] if named is None else ["CG-P12"])


@pytest.mark.parametrize(("named", "link"), [("old", {"DATA": "old"}), (5, 5), (False, False)])
def test_inputs_without_a_list_become_one_entry(named: Any, link: Any) -> None:
    steps, _, left = mend({"capability": "average", "inputs": named}, stored={"DATA": ["old"]})
    assert steps[0]["inputs"][0] == link
    assert left == ([] if named == "old" else ["CG-P12"])


def test_a_bare_input_of_an_unused_type_is_not_repaired() -> None:
    _, _, left = mend({"capability": "locate"}, {"capability": "average", "inputs": ["1"]})
    assert "CG-P12" in left


def test_outputs() -> None:
    made, _, left = mend(
        step("p", "locate", expected_output="WHERE"),
        step("n", "mail", {"BOOKING": "b"}, expected_output="RECEIPT"),
        step("d", "describe"),
        step("answer", "respond", {"RANGE_TEXT": "d"}),
        stored={"BOOKING": ["b"]},
    )
    assert left == []
    assert [s.get("expected_output") for s in made[:3]] == ["PLACE", None, "RANGE_TEXT"]


def test_the_respond_step_comes_last_and_reads_unread_results() -> None:
    made, repairs, left = mend(step("p", "locate"), step("d", "fetch", {"PLACE": "p"}))
    assert (repairs, left) == (["CG-P08"], [])
    assert made[-1]["capability"] == "respond"
    assert made[-1]["inputs"] == [{"DATA": "d"}]
    made, repairs, left = mend(ANSWER, step("p", "locate"))
    assert (keys(made), repairs, left) == (["p", "answer"], ["CG-P07"], [])
    assert mend()[:2] == ([{**mend()[0][0]}], ["CG-P02"])


def test_malformed_input_is_returned_with_its_problems() -> None:
    for garbage in (None, "steps", 3, {"steps": 4}, {"steps": ["fetch"]}, ["fetch"]):
        repaired = repair_plan(garbage, CATALOG)
        assert not repaired.ok
        assert repaired.repairs == ()
        assert repaired.problems == check_plan(garbage, CATALOG)


def test_other_fields_of_a_plan_are_kept() -> None:
    plan = {"steps": [step("p", "locate")], "stamp": {"version": 2}}
    assert repair_plan(plan, CATALOG).plan["stamp"] == {"version": 2}


def test_a_repair_describes_its_change() -> None:
    repaired = repair_plan({"steps": [step("d", "Fetch", {"PLACE": "home"}), ANSWER]}, CATALOG)
    assert [str(repair) for repair in repaired.repairs] == [
        "[CG-P04] 'd', capability: 'Fetch' became 'fetch' (the only similar registered name)",
        "[CG-P13] 'd', inputs: 'no PLACE' became 'PLACE: home, from locate' (the only capability"
        " that supplies it)",
    ]
    assert repaired.repairs[0] == Repair(
        code="CG-P04",
        context_key="d",
        field="capability",
        before="'Fetch'",
        after="'fetch'",
        reason="the only similar registered name",
    )


def test_a_reversed_plan_of_a_thousand_steps_is_repaired() -> None:
    catalog = StaticCatalog.of(
        CapabilitySpec("start", "S.", provides=("T",)),
        CapabilitySpec("next", "N.", provides=("T",), requires=(Requirement("T", "many"),)),
    )
    steps = [step("k0", "start")]
    steps += [step(f"k{n}", "next", {"T": f"k{n - 1}"}) for n in range(1, 999)]
    repaired = repair_plan({"steps": [*reversed(steps)]}, catalog)
    assert repaired.ok
    assert repaired.plan["steps"][:-1] == steps
