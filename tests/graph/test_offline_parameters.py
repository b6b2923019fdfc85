"""Parameters without a model: a value that the request names is read, and a default never hides it."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node


class TankLevel(CapabilityContext):
    """The level of one tank."""

    tank: str
    metres: float = 2.5


class Health(CapabilityContext):
    """The health of one tank."""

    tank: str
    healthy: bool = True


def named_tank(task: str) -> dict[str, Any]:
    return {"tank": found.group()} if (found := re.search(r"T\d+", task)) else {}


@capability_node(examples=["is the tank healthy?"])
def judge(level: TankLevel) -> Health:
    """Judge whether a tank is healthy."""
    return Health(tank=level.tank)


@capability_node(examples=["how full is the tank?"])
def read_level(tank: str = "T1") -> TankLevel:
    """Read the level of a tank."""
    return TankLevel(tank=tank)


@capability_node(name="read_level", parameters_from=named_tank)
def read_level_of_request(tank: str = "T1") -> TankLevel:
    """Read the level of a tank."""
    return TankLevel(tank=tank)


@capability_node(name="read_level", parameters_from=named_tank)
def read_named_level(tank: str) -> TankLevel:
    """Read the level of a tank that the request names."""
    return TankLevel(tank=tank)


class ReadListedLevel(BaseCapability):
    """Read the level of one of the known tanks."""

    name = "read_level"
    description = "Reads the level of a tank"
    provides = (TankLevel,)

    class Parameters(BaseModel):
        tank: Literal["T1", "T2"] = "T1"

    async def execute(self) -> TankLevel:
        return TankLevel(tank=self.parameters.tank)


def ask(text: str, *capabilities: Any) -> dict[str, Any]:
    return dict(build_graph(capabilities).invoke({"messages": [("user", text)]}))


def tank_judged(out: dict[str, Any]) -> str:
    assert out["execution_outcome"]["status"] == "completed", out["messages"][-1].content
    [health] = out["capability_context_data"]["HEALTH"].values()
    return str(health["tank"])


@pytest.mark.parametrize(
    "reader",
    [read_level, read_level_of_request, read_named_level, capability_node(ReadListedLevel)],
    ids=["default", "default and reader", "required and reader", "literal"],
)
def test_an_item_that_the_request_names_is_read_before_it_is_judged(reader: Any) -> None:
    assert tank_judged(ask("Is tank T2 healthy?", reader, judge)) == "T2"


def test_the_producer_that_reads_the_request_replaces_the_one_that_keeps_its_default() -> None:
    @capability_node(examples=["is tank T1 healthy?"])
    def read_usual_level(station: str = "main") -> TankLevel:
        """Read the level of the usual tank."""
        return TankLevel(tank="T1")

    for both in ([read_usual_level, read_named_level], [read_named_level, read_usual_level]):
        out = ask("Is tank T2 healthy?", *both, judge)
        assert tank_judged(out) == "T2"
        assert "read_usual_level" not in str(out["planning_execution_plan"])
    assert (
        tank_judged(ask("Is the tank healthy?", read_usual_level, read_named_level, judge)) == "T1"
    )


def test_a_number_behind_the_name_of_a_parameter_is_its_value() -> None:
    @capability_node
    def read_numbered_level(tank: int = 1) -> TankLevel:
        """Read the level of a tank."""
        return TankLevel(tank=str(tank))

    assert tank_judged(ask("Is tank 2 healthy?", read_numbered_level, judge)) == "2"
    assert tank_judged(ask("Is the tank healthy?", read_numbered_level, judge)) == "1"


def test_of_two_values_neither_is_guessed() -> None:
    out = ask("Are T2 and T3 healthy?", read_level, judge)
    assert out["execution_outcome"]["status"] == "failed"
    assert "T2" in out["messages"][-1].content
    assert "T3" in out["messages"][-1].content
    assert not out["capability_context_data"]


def test_the_outcome_tells_the_defaults_that_nobody_chose() -> None:
    out = ask("Is the tank healthy?", read_level, judge)
    assert tank_judged(out) == "T1"
    [note] = out["execution_outcome"]["notes"]
    assert "read_level" in note
    assert "tank='T1'" in note
    assert "notes" not in ask("Is tank T2 healthy?", read_level, judge)["execution_outcome"]


def test_an_effect_never_takes_a_value_from_the_wording() -> None:
    @capability_node(effect="once", examples=["open valve V1"])
    def open_valve(valve: str = "V1") -> Health:
        """Open a valve."""
        return Health(tank=valve)

    from langgraph.checkpoint.memory import InMemorySaver

    graph = build_graph([open_valve], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    out = graph.invoke({"messages": [("user", "Open valve V2")]}, config)
    [question] = out["__interrupt__"]
    assert question.value["steps"][0]["parameters"] == {"valve": "V1"}


class Site(Enum):
    """A site of the plant."""

    NORTH = "north"
    SOUTH = "south"


@capability_node
def read_site(site: Site = Site.NORTH) -> TankLevel:
    """Read the level of the tank of a site."""
    return TankLevel(tank=site.value)


@capability_node
def read_kind(kind: Literal["rain_water", "water"] = "water") -> TankLevel:
    """Read the level of the tank of a kind."""
    return TankLevel(tank=kind)


@capability_node
def read_unit(unit: Literal["in", "cm"] = "cm") -> TankLevel:
    """Read the level of the tank in a unit."""
    return TankLevel(tank=unit)


@capability_node
def read_any(tank: str) -> TankLevel:
    """Read the level of a tank."""
    return TankLevel(tank=tank)


@capability_node
def read_by_id(tank_id: int) -> TankLevel:
    """Read the level of a tank."""
    return TankLevel(tank=str(tank_id))


@capability_node
def read_main(tank: str = "main") -> TankLevel:
    """Read the level of a tank."""
    return TankLevel(tank=tank)


@pytest.mark.parametrize(
    ("reader", "request_text", "tank"),
    [
        (read_site, "Is the South site healthy?", "south"),
        (read_site, "Is the tank healthy?", "north"),
        (read_kind, "Is the rain water tank healthy?", "rain_water"),
        (read_kind, "Is the water tank healthy?", "water"),
        (read_unit, "Is the tank in Oslo healthy?", "cm"),
        (read_unit, "Is the tank healthy, unit in?", "in"),
        (read_level, "Is tank B-17 healthy?", "B-17"),
        (read_level, "Is tank 'old one' healthy?", "old one"),
        (read_level, "Is tank #2 healthy?", "2"),
        (read_any, "Is tank B-17's level healthy?", "B-17"),
        (read_by_id, "Is tank 4 healthy?", "4"),
        (read_by_id, "Is the tank with tank id 4 healthy?", "4"),
        (read_main, "Is the tank healthy?", "main"),
        (read_main, "Is tank 2 metres high and healthy?", "main"),
    ],
)
def test_a_choice_or_an_identifier_behind_the_name_is_read(
    reader: Any, request_text: str, tank: str
) -> None:
    assert tank_judged(ask(request_text, reader, judge)) == tank


def test_of_two_choices_neither_is_guessed() -> None:
    out = ask("Are the tanks of north and south healthy?", read_site, judge)
    assert out["execution_outcome"]["status"] == "failed"


def test_a_producer_without_parameters_does_not_hide_a_value_that_another_one_reads() -> None:
    @capability_node
    def read_latest_level() -> TankLevel:
        """Read the level that was measured last."""
        return TankLevel(tank="latest")

    for both in ([read_latest_level, read_named_level], [read_named_level, read_latest_level]):
        assert tank_judged(ask("Is T2 healthy?", *both, judge)) == "T2"
        assert tank_judged(ask("Is the tank healthy?", *both, judge)) == "latest"


def test_the_note_on_a_default_shows_the_value_of_an_enum() -> None:
    [note] = ask("Is the tank healthy?", read_site, judge)["execution_outcome"]["notes"]
    assert "site='north'" in note


async def test_the_answer_says_which_value_of_the_request_was_not_recognized() -> None:
    @capability_node(examples=["will it rain tomorrow?"])
    def rain_tomorrow(place: str = "here") -> str:
        """Forecast the rain of tomorrow."""
        return f"No rain {place} tomorrow."

    graph = build_graph([rain_tomorrow])
    paris = await graph.ainvoke({"messages": [("user", "Will it rain in Paris tomorrow?")]})
    assert "Paris" in paris["messages"][-1].content
    assert "place='here'" in paris["messages"][-1].content
    plain = await graph.ainvoke({"messages": [("user", "Will it rain tomorrow?")]})
    assert plain["messages"][-1].content == "No rain here tomorrow."
