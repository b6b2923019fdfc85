"""What a graph cannot be built of is said when it is built, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import Registry, build_graph
from capgraph.base import CapabilityError, RegistryError
from tests.support.toys import Reading, capability


def test_every_problem_of_a_registry_stands_in_one_error() -> None:
    registry = Registry(infrastructure=["capgraph.infrastructure.router"])
    registry.register(capability("router", requires=["MISSING"]))
    with pytest.raises(RegistryError) as info:
        build_graph(registry)
    for part in ("'respond'", "'router' is named like", "'MISSING'"):
        assert part in str(info.value)


def test_given_and_optional_types_need_no_provider() -> None:
    registry = Registry(provided_types=["A"])
    registry.register(capability("a", requires=["A", ("B", "optional"), "READING"]))
    registry.declare_provided(Reading)
    assert "a" in build_graph(registry).get_graph().nodes


def test_a_graph_has_a_node_for_everything_and_draws_itself() -> None:
    registry = Registry()
    registry.register(capability("a"))
    graph = build_graph(registry)
    assert {*registry.infrastructure, "a"} <= set(graph.get_graph().nodes)
    assert "router" in graph.get_graph().draw_mermaid()


def test_a_guide_that_fails_stops_the_build_and_is_named() -> None:
    def guide(self: Any) -> Any:
        return self.nothing_of_the_kind

    registry = Registry()
    registry.register(capability("weather", _create_classifier_guide=guide))
    with pytest.raises(RegistryError, match=r"guides of .*'weather'.*nothing_of_the_kind"):
        build_graph(registry)
    with pytest.raises(CapabilityError, match="nothing_of_the_kind"):
        registry.candidates()
