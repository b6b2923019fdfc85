"""Tests of planning without a model: included capabilities, order, and inputs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from capgraph.base import CapabilitySpec, PlanError, Requirement
from capgraph.planning import StaticCatalog, chain_plan, check_plan, requires_closure


class Needy(BaseModel):
    city: str
    days: int = 1


def capability(name: str, provides: str = "", requires: str = "", **more: Any) -> CapabilitySpec:
    """Build one from ``"A B"`` and ``"A B? C*"`` (optional, many)."""
    needs = []
    for need in requires.split():
        kind = {"?": "optional", "*": "many"}.get(need[-1], "one")
        needs.append(Requirement(need.rstrip("?*"), kind))  # type: ignore[arg-type]
    return CapabilitySpec(name, name, tuple(provides.split()), tuple(needs), **more)


DATA = StaticCatalog.of(
    capability("time_range", "TIME_RANGE"),
    capability("retrieval", "DATASET", "SOURCE TIME_RANGE?"),
    capability("statistics", "STATISTICS", "DATASET"),
    capability("plotting", "PLOT", "DATASET STATISTICS?"),
    capability("memory", "MEMORY"),
    provided_types={"SOURCE"},
)
FILES = {"SOURCE": ["a.csv", "b.csv"]}


def shape(plan: Any) -> list[str]:
    """Write each step as ``key=capability(inputs)``."""
    return [
        f"{step['context_key']}={step['capability']}"
        f"({', '.join(key for entry in step['inputs'] for key in entry.values())})"
        for step in plan["steps"]
    ]


def chained(catalog: StaticCatalog, names: str, stored: Any = None, **options: Any) -> list[str]:
    plan = chain_plan("the task", names.split(), catalog, stored, **options)
    assert check_plan(plan, catalog, stored) == []
    return shape(plan)


def test_a_question_about_data() -> None:
    assert chained(DATA, "statistics plotting time_range", FILES) == [
        "time_range=time_range()",
        "dataset=retrieval(b.csv, time_range)",
        "statistics=statistics(dataset)",
        "plot=plotting(dataset, statistics)",
        "user_response=respond(plot)",
    ]


def test_every_step_has_an_objective() -> None:
    plan = chain_plan("How hot was it?", ["statistics"], DATA, FILES)
    assert [step["task_objective"] for step in plan["steps"]] == ["How hot was it?"] * 3
    assert plan["steps"][0]["expected_output"] == "DATASET"
    assert plan["steps"][0]["success_criteria"] == "DATASET is available as 'dataset'."


def test_an_optional_input_does_not_include_its_producer() -> None:
    assert chained(DATA, "statistics", FILES)[0] == "dataset=retrieval(b.csv)"


def test_a_stored_result_is_used_until_its_inputs_are_provided_again() -> None:
    stored = {**FILES, "DATASET": ["dataset"], "TIME_RANGE": ["time_range"]}
    assert chained(DATA, "plotting", stored) == [
        "plot=plotting(dataset)",
        "user_response=respond(plot)",
    ]
    assert chained(DATA, "plotting time_range", stored)[:2] == [
        "time_range_2=time_range()",
        "dataset_2=retrieval(b.csv, time_range_2)",
    ]


def test_an_outdated_result_is_better_than_no_plan() -> None:
    stored = {"DATASET": ["dataset"]}
    assert chained(DATA, "statistics time_range", stored)[0] == "statistics=statistics(dataset)"


def test_context_keys_of_the_replaced_plan_are_reused() -> None:
    first = chain_plan("t", ["statistics"], DATA, FILES)
    stored = {**FILES, "DATASET": ["dataset"]}
    names = "retrieval statistics plotting"
    assert chained(DATA, names, stored)[0].startswith("dataset_2=")
    again = chained(DATA, names, stored, previous=first)
    assert [line.split("=")[0] for line in again[:2]] == ["dataset", "statistics"]


def test_an_empty_selection_plans_only_the_answer() -> None:
    assert chained(DATA, "") == ["user_response=respond()"]
    assert chained(DATA, "respond") == ["user_response=respond()"]


def test_a_selected_producer_is_preferred_to_a_cheaper_one() -> None:
    catalog = StaticCatalog.of(
        capability("cheap", "A"), capability("dear", "A", "B"), capability("b", "B"),
        capability("use", "C", "A"),
    )  # fmt: skip
    assert "a=cheap()" in chained(catalog, "use")
    assert chained(catalog, "use dear") == [
        "b=b()", "a=dear(b)", "c=use(a)", "user_response=respond(c)",
    ]  # fmt: skip


def test_the_cost_of_a_producer_includes_its_requirements() -> None:
    catalog = StaticCatalog.of(
        capability("long", "A", "B"), capability("b", "B", "C"), capability("c", "C"),
        capability("short", "A", "D"), capability("d", "D"), capability("use", "", "A"),
    )  # fmt: skip
    assert requires_closure(["use"], catalog) == ("use", "short", "d")


def test_filters_run_between_producers_and_readers_in_selection_order() -> None:
    catalog = StaticCatalog.of(
        capability("read", "DATA"),
        capability("clean", "DATA", "DATA"),
        capability("smooth", "DATA", "DATA"),
        capability("mean", "MEAN", "DATA"),
    )
    assert chained(catalog, "mean smooth clean read") == [
        "data=read()",
        "data_2=smooth(data)",
        "data_3=clean(data_2)",
        "mean=mean(data_3)",
        "user_response=respond(mean)",
    ]


def test_many_takes_all_and_one_takes_the_first_selected() -> None:
    catalog = StaticCatalog.of(
        capability("north", "READING"), capability("south", "READING"),
        capability("compare", "DIFFERENCE", "READING*"), capability("show", "PLOT", "READING"),
    )  # fmt: skip
    assert chained(catalog, "compare south north") == [
        "reading=south()",
        "reading_2=north()",
        "difference=compare(reading, reading_2)",
        "user_response=respond(difference)",
    ]
    assert "plot=show(reading)" in chained(catalog, "show south north")
    stored = {"READING": ["x", "y"]}
    assert chained(catalog, "compare", stored)[0] == "difference=compare(x, y)"
    assert chained(catalog, "show", stored)[0] == "plot=show(y)"


def test_a_cycle_in_the_catalog_is_planned_only_from_an_outside_producer() -> None:
    hen = capability("hen", "EGG", "BIRD")
    egg = capability("hatch", "BIRD", "EGG")
    catalog = StaticCatalog.of(hen, egg)
    with pytest.raises(PlanError, match=r"'hen'.*BIRD.*hatch"):
        chain_plan("t", ["hen"], catalog)
    assert chained(catalog, "hen", {"EGG": ["first"]}) == [
        "bird=hatch(first)",
        "egg=hen(bird)",
        "user_response=respond(egg)",
    ]
    assert requires_closure(["hen"], StaticCatalog.of(hen, egg, capability("shop", "EGG"))) == (
        "hen", "hatch", "shop",
    )  # fmt: skip


def test_optional_inputs_never_create_a_cycle() -> None:
    catalog = StaticCatalog.of(capability("a", "A", "B?"), capability("b", "B", "A"))
    assert chained(catalog, "a b") == ["a=a()", "b=b(a)", "user_response=respond(b)"]


def test_a_capability_with_effects_is_planned_only_if_selected() -> None:
    book = capability("book", "BOOKING", effect="once")
    mail = capability("mail", "", "BOOKING")
    catalog = StaticCatalog.of(book, mail)
    with pytest.raises(PlanError, match=r"'mail'.*BOOKING.*only book"):
        chain_plan("Mail me my booking", ["mail"], catalog)
    assert chained(catalog, "mail book")[:2] == ["booking=book()", "mail=mail(booking)"]
    asked = StaticCatalog.of(
        capability("book", "BOOKING", effect="once", requires_approval=True), mail
    )
    assert chained(asked, "mail")[0] == "booking=book()"


@pytest.mark.parametrize(
    ("names", "stored", "message"),
    [
        ("nobody", None, "The selected capability 'nobody' is not registered."),
        ("statistics", None, "'retrieval' requires SOURCE"),
        ("orphan", None, "'orphan' requires NOTHING: no capability provides it"),
        ("needy", None, "'needy' cannot be planned without a model"),
    ],
)
def test_an_impossible_plan_is_refused(names: str, stored: Any, message: str) -> None:
    catalog = StaticCatalog.of(
        *DATA.capabilities.values(),
        capability("orphan", "", "NOTHING"),
        capability("needy", "N", parameters=Needy),
        provided_types={"SOURCE"},
    )
    with pytest.raises(PlanError) as caught:
        chain_plan("t", names.split(), catalog, stored)
    assert caught.value.message.startswith(message)
    assert caught.value.fix


def test_closure_counts_provided_types_and_ignores_unsatisfiable_needs() -> None:
    assert requires_closure(["plotting", "nobody"], DATA) == ("plotting", "retrieval")
    assert requires_closure(["plotting"], DATA, {"DATASET": ["d"]}) == ("plotting",)
    orphan = StaticCatalog.of(capability("orphan", "", "NOTHING"))
    assert requires_closure(["orphan"], orphan) == ("orphan",)


def test_chaining_scales_to_a_thousand_capabilities() -> None:
    catalog = StaticCatalog.of(
        *(capability(f"c{n}", f"T{n}", f"T{n - 1}" if n % 10 else "") for n in range(1000))
    )
    assert requires_closure(["c999"], catalog) == tuple(f"c{n}" for n in range(999, 989, -1))
