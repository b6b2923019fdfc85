"""Validation of the registry when a graph is built."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from capgraph import Registry, bind, build_graph, open_graph
from capgraph.base import CapabilityError, ConfigurationError, PlanError, RegistryError
from capgraph.base.plan import load_execution_plan_from_file
from capgraph.configs.errors import UnknownOptionError
from tests.support.toys import Reading, capability


def test_one_error_lists_every_problem_of_a_registry() -> None:
    registry = Registry(infrastructure=["capgraph.infrastructure.router"])
    registry.register(capability("router", requires=["MISSING"]))
    with pytest.raises(RegistryError) as info:
        build_graph(registry)
    for part in ("'respond'", "'router' is reserved", "'MISSING'"):
        assert part in str(info.value)


def test_provided_and_optional_types_need_no_provider() -> None:
    registry = Registry(provided_types=["A"])
    registry.register(capability("a", requires=["A", ("B", "optional"), "READING"]))
    registry.declare_provided(Reading)
    assert "a" in build_graph(registry).get_graph().nodes


def test_a_graph_has_all_nodes_and_can_be_drawn() -> None:
    registry = Registry()
    registry.register(capability("a"))
    graph = build_graph(registry)
    assert {*registry.infrastructure, "a"} <= set(graph.get_graph().nodes)
    assert "router" in graph.get_graph().draw_mermaid()


def test_a_failing_guide_stops_the_build_and_is_named() -> None:
    def guide(self: Any) -> Any:
        return self.nothing_of_the_kind

    registry = Registry()
    registry.register(capability("weather", _create_classifier_guide=guide))
    with pytest.raises(RegistryError, match=r"guides of .*'weather'.*nothing_of_the_kind"):
        build_graph(registry)
    with pytest.raises(CapabilityError, match="nothing_of_the_kind"):
        registry.candidates()


@pytest.mark.parametrize("settings", [{"model": "x"}, "capgraph.yml", dict])
async def test_settings_of_another_type_are_refused(settings: Any) -> None:
    for build in (build_graph, bind):
        with pytest.raises(ConfigurationError, match="expected a Settings object"):
            build([capability("look")], settings=settings)
    with pytest.raises(ConfigurationError, match="expected a Settings object"):
        async with open_graph([capability("look")], settings=settings):
            pass


def test_bind_refuses_a_synchronous_saver() -> None:
    saver = SqliteSaver(sqlite3.connect(":memory:"))
    try:
        with pytest.raises(ConfigurationError, match="SqliteSaver"):
            bind([capability("look")], checkpointer=saver)
    finally:
        saver.conn.close()


async def test_a_misspelled_argument_of_open_graph_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOptionError, match="Write 'settings'"):
        async with open_graph([capability("look")], setting=None):
            pass


def test_a_misspelled_field_of_a_plan_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    graph = build_graph([capability("look")])
    plan: Any = {"stpes": []}
    out = graph.invoke({"messages": [("user", "go")], "planning_execution_plan": plan})
    assert out["execution_outcome"]["status"] == "failed"
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    with pytest.raises(PlanError, match="Write 'steps'"):
        load_execution_plan_from_file(file)


def test_a_file_may_contain_only_a_list_of_steps(tmp_path: Path) -> None:
    step = {"context_key": "a", "capability": "look"}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps([step]))
    assert load_execution_plan_from_file(file) == {"steps": [step]}
