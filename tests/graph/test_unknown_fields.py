"""Context types refuse unknown fields: a sentence for the user, the nearest name for the author."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.registry import Registry


class Gauge(CapabilityContext):
    """A place where a level is read."""

    place: str = "bank"


class TankLevel(CapabilityContext):
    """The level of a tank."""

    metres: float = 1.0
    gauge: Gauge = Gauge()


@capability_node
def read_level() -> TankLevel:
    """Read the level."""
    return TankLevel(metrs=2.0)  # type: ignore[call-arg]


@capability_node
class CopyLevel(BaseCapability):
    name = "copy_level"
    description = "Copies the level"
    provides = (TankLevel,)

    async def execute(self) -> Any:
        return {"TANK_LEVEL": {"metrs": 2}}


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError) as caught:
        TankLevel(metrs=2.0, metres="much")  # type: ignore[call-arg, arg-type]
    assert {error["loc"] for error in caught.value.errors()} == {("metrs",), ("metres",)}
    assert "'metres'" in str(caught.value)
    with pytest.raises(ValidationError, match="'place'") as caught:
        TankLevel.model_validate({"gauge": {"plaec": "bed"}})
    assert caught.value.errors()[0]["loc"] == ("gauge", "plaec")
    with pytest.raises(ValidationError, match="metres, gauge"):
        TankLevel.model_validate_json('{"colour": "blue"}')


def test_an_author_may_allow_more_and_instances_pass_as_they_are() -> None:
    class Loose(CapabilityContext, extra="allow"):
        level: float

    assert Loose(level=1, colour="blue").model_extra == {"colour": "blue"}  # type: ignore[call-arg]
    level = TankLevel(metres=3)
    assert TankLevel.model_validate(level) is level
    assert pickle.loads(pickle.dumps(level)) == level


@pytest.mark.parametrize("name", ["read_level", "copy_level"])
def test_the_user_reads_a_sentence(name: str) -> None:
    graph = build_graph([read_level, CopyLevel])
    out = graph.invoke({"planning_execution_plan": {"steps": [{"capability": name}]}})
    answer = str(out["messages"][-1].content)
    assert "metrs" in answer
    assert "'metres'" in answer
    for raw in ("validation error", "input_value", "https://", "type="):
        assert raw not in answer
    assert out["execution_outcome"]["status"] == "failed"


def test_a_caller_is_told_the_nearest_field() -> None:
    @capability_node
    def judge(level: TankLevel) -> str:
        """Judge the level."""
        return "fine"

    registry = Registry()
    registry.register(judge)
    registry.declare_provided(TankLevel)
    graph = build_graph(registry)
    sent = {"TANK_LEVEL": {"level": {"metrs": 2.0}}}
    with pytest.raises(Exception, match="'metres'"):
        graph.invoke({"messages": [("user", "Judge it")], "capability_context_data": sent})
