"""An unknown capability name is refused with the nearest name, wherever it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capgraph import bind, build_graph, capability_node
from capgraph.configs.errors import CapgraphError
from capgraph.configs.settings import load_settings
from capgraph.graph.diagnostics import collect_settings_findings
from capgraph.planning import Recipe, chain_plan, check_plan
from capgraph.registry import Registry
from capgraph.workflows import load_workflow

WRONG = "tank_levle"


@capability_node
def tank_level() -> float:
    """Read the level."""
    return 2.5


@capability_node
def open_valve() -> str:
    """Open the valve."""
    return "open"


def registry() -> Registry:
    found = Registry()
    found.register(tank_level)
    found.register(open_valve)
    return found


def bind_with(**sections: Any) -> Any:
    return bind(registry(), settings=load_settings(**sections))


def run_workflow(folder: Path) -> Any:
    file = folder / "flow.yml"
    file.write_text(f"kind: dag\nnodes:\n  - id: read\n    agent: {WRONG}\n")
    return load_workflow(file, {"tank_level": tank_level, "open_valve": open_valve})


RECIPE = {
    "name": "look",
    "description": "Look",
    "steps": [{"context_key": "a", "capability": WRONG}],
}
PLACES: dict[str, Callable[[Path], Any]] = {
    "capability": lambda _: registry().capability(WRONG),
    "unregister": lambda _: registry().unregister(WRONG),
    "with_": lambda _: registry().with_(without=[WRONG]),
    "include": lambda _: registry().configure(include=["open_valve", WRONG]),
    "chain_plan": lambda _: chain_plan("Read it", [WRONG], registry()),
    "recipe": lambda _: registry().register(Recipe(**RECIPE)),
    "permissions": lambda _: bind_with(
        permissions={"roles": [{"role": "guest", "mode": "read_only", "denied_tools": [WRONG]}]}
    ),
    "behaviors": lambda _: bind_with(capabilities={WRONG: {"behaviors": [{"use": "retry"}]}}),
    "workflow": run_workflow,
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_name_is_refused_with_the_nearest(place: str, tmp_path: Path) -> None:
    with pytest.raises(CapgraphError) as caught:
        PLACES[place](tmp_path)
    assert WRONG in str(caught.value)
    assert "tank_level'" in str(caught.value)
    assert "open_valve" not in str(caught.value.fix)


def test_a_plan_and_the_findings_name_the_nearest() -> None:
    problems = check_plan({"steps": RECIPE["steps"]}, registry())
    assert any("'tank_level'" in problem.remedy for problem in problems)
    settings = load_settings(capabilities={WRONG: {"unit": "m"}})
    [finding] = collect_settings_findings(settings, registry())
    assert "'tank_level'" in str(finding.fix)


def test_a_graph_of_known_names_is_built() -> None:
    assert build_graph(registry())
