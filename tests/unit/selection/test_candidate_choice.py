"""Tests of selection by descriptions alone: siblings, opposites, further needs, and parameters."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from capgraph import BaseCapability, Registry, capability_node
from capgraph.selection import Candidate, LexicalSelector

GREENHOUSE = (
    Candidate("open_window", "Opens a window of the greenhouse."),
    Candidate("close_window", "Closes a window of the greenhouse."),
    Candidate("start_pump", "Starts the pump that waters the beds of the greenhouse."),
    Candidate("stop_pump", "Stops the pump that waters the beds of the greenhouse."),
    Candidate("order_seeds", "Orders packets of seeds from the catalogue of a shop."),
    Candidate("list_harvest", "Lists what was harvested, with weights in kilograms."),
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Open the window of the greenhouse", {"open_window"}),
        ("Please close the greenhouse window", {"close_window"}),
        ("Start the pump for the beds", {"start_pump"}),
        ("Order two packets of seeds from the catalogue", {"order_seeds"}),
        ("Close the window and order packets of seeds", {"close_window", "order_seeds"}),
        (
            "Stop the pump that waters the beds, then list the weights harvested in kilograms",
            {"stop_pump", "list_harvest"},
        ),
    ],
)
async def test_siblings_of_the_requested_capability_are_not_chosen(
    request_: str, expected: set[str]
) -> None:
    selection = await LexicalSelector().select(request_, GREENHOUSE)
    assert set(selection.names) == expected


async def test_examples_that_two_capabilities_share_still_choose_both() -> None:
    shared = ("Chart the rain of last week", "Plot how much it rained", "Draw last week's rain")
    both = (
        Candidate("rain_data", "Reads the rain gauge.", positives=shared),
        Candidate("plotting", "Plots values as a chart.", positives=shared),
        *GREENHOUSE,
    )
    selection = await LexicalSelector().select("Plot last week's rain", both)
    assert set(selection.names) == {"rain_data", "plotting"}


async def test_an_excluded_sibling_does_not_block_others() -> None:
    selection = await LexicalSelector().select(
        "Open the window of the greenhouse", GREENHOUSE, excluded={"open_window": "it is stuck"}
    )
    assert "open_window" not in selection.names


async def test_parameter_texts_are_compared() -> None:
    bare = Candidate("make_drink", "Prepares what a guest asks for.")
    with_parameters = Candidate(
        "make_drink",
        "Prepares what a guest asks for.",
        parameters=("milk Kind of milk oat soy almond", "temperature How hot it is served"),
    )
    request = "One with oat milk, served very hot"
    selector = LexicalSelector()
    assert not (await selector.select(request, [bare, *GREENHOUSE])).names
    assert (await selector.select(request, [with_parameters, *GREENHOUSE])).names == ("make_drink",)


class Size(BaseModel):
    litres: float = Field(description="How much goes into it")


class Drink(BaseModel):
    milk: Literal["oat", "soy"] = Field("oat", description="Kind of milk")
    cup: Size | None = None
    extras: list[Size] = Field(default_factory=list)


@capability_node
class MakeDrink(BaseCapability):
    name = "make_drink"
    description = "Prepares a drink"
    Parameters = Drink

    async def execute(self) -> dict[str, str]:
        return {}


def test_candidates_contain_parameter_texts() -> None:
    registry = Registry()
    registry.register(MakeDrink)
    (candidate,) = (c for c in registry.candidates() if c.name == "make_drink")
    assert "milk Kind of milk oat soy" in candidate.parameters
    assert "litres How much goes into it" in candidate.parameters
