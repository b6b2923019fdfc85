"""The gateway converts typed lines to graph input and switches."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import capability_node
from capgraph.base import ValidationError
from capgraph.infrastructure.gateway import parse_commands, prepare_input
from capgraph.state import merge_by_key
from tests.support.doors import Gauge, answer, question, status
from tests.support.toys import Reading, measure


@pytest.mark.parametrize("command", ["/task:off", "/caps:off", "/approval:off"])
def test_a_command_changes_its_switch_and_no_other(command: str) -> None:
    _, _, off = parse_commands(command)
    _, _, on = parse_commands(command.replace("off", "on"))
    assert list(off) == list(on)
    assert list(off.values()) != list(on.values())
    before = {"planning_mode_enabled": True, "task_extraction_bypass_enabled": False}
    assert merge_by_key(before, off)["planning_mode_enabled"] is True


async def test_switches_reach_the_nodes_and_survive_turns(agent: Any, step: Any) -> None:
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    prepared = await prepare_input(bench.graph, "/caps:off Do it", bench.config())
    await bench.graph.ainvoke(prepared.input, bench.config())
    assert bench.selector.calls == []
    await bench.ask("And again")
    assert bench.selector.calls == []
    prepared = await prepare_input(bench.graph, "/caps:on Do it", bench.config())
    await bench.graph.ainvoke(prepared.input, bench.config())
    assert len(bench.selector.calls) == 1


async def test_approval_off_is_refused_if_callers_may_not_disable_it(agent: Any, step: Any) -> None:
    it = agent(Gauge, plans=[[]], checkpointer=InMemorySaver())
    await it.ask()
    with pytest.raises(ValidationError, match="approval_disabled"):
        await prepare_input(it.graph, "/approval:off", it.config())


async def test_a_switch_with_an_answer_is_refused(agent: Any, step: Any) -> None:
    @capability_node(requires_approval=True)
    async def act() -> Gauge:
        """Act."""
        return Gauge(value=1)

    it = agent(Gauge, act, plans=[[step("a", "act")]], checkpointer=InMemorySaver())
    assert question(await it.ask())
    with pytest.raises(ValidationError, match="unfinished"):
        await prepare_input(it.graph, "/caps:off yes", it.config())
    assert status(await answer(it, "approve")) == "completed"
