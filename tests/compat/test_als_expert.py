"""Promises of the rows of ALS Expert's document."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capgraph import BaseCapability, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import Settings
from capgraph.graph.diagnostics import collect_findings
from capgraph.prompts import get_framework_prompts
from capgraph.state import AgentState, StateSchema
from capgraph.testing import with_faults
from tests.support.toys import Reading, Total, add, capability, measure

BUILDERS = (
    "orchestrator",
    "task_extraction",
    "response_generation",
    "classification",
    "error_analysis",
    "clarification",
    "memory_extraction",
    "time_range_parsing",
    "python",
)


@pytest.mark.row("B6", "B42")
@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("guide", ["orchestrator", "classifier"])
def test_builder_without_a_guide_warns(
    kind: str, guide: str, caplog: pytest.LogCaptureFixture
) -> None:
    builder = getattr(get_framework_prompts(), f"get_{kind}_prompt_builder")()
    with caplog.at_level(logging.WARNING):
        assert getattr(builder, f"get_{guide}_guide")() is None
    assert [record.name for record in caplog.records] == ["capgraph.framework.prompts"]


@pytest.mark.row("B47")
@pytest.mark.parametrize("severity", [ErrorSeverity.RECLASSIFICATION, ErrorSeverity.REPLANNING])
async def test_finished_step_stays_in_the_outcome_after_a_new_choice(
    severity: ErrorSeverity, agent: Any, step: Any
) -> None:
    wrong = CapabilityError("wrong tool", severity=severity)
    plan = [step("a", "measure"), step("b", "add", READING="a")]
    bench = agent(Reading, Total, measure, with_faults(add, forever=wrong), plans=[plan])
    outcome = (await bench.ask())["execution_outcome"]
    assert (outcome["status"], outcome["done"], outcome["missing"]) == ("failed", ["a"], ["b"])


class _ALSState(AgentState, total=False):
    search_results: list[str]
    processing_metadata: dict[str, Any]


@capability_node
class Search(BaseCapability):
    name = "search"
    description = "Search"

    @staticmethod
    async def execute(state: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        await asyncio.sleep(0)  # the other steps could start now
        return {"search_results": ["a", "b"]}


@capability_node
class Process(BaseCapability):
    name = "process"
    description = "Process the results of the search"

    @staticmethod
    async def execute(state: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        found = state["search_results"] or ()
        return {"processing_metadata": {"count": len(found)}}


@capability_node
class Report(BaseCapability):
    name = "report"
    description = "Report the count"
    provides = ["REPORT"]

    @staticmethod
    async def execute(state: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        metadata, last = state.get("processing_metadata"), state["execution_last_result"]
        return {"REPORT": {"metadata": metadata, "last": (last or {}).get("capability")}}


def _plan(*names: str) -> dict[str, Any]:
    return {"steps": [{"context_key": name, "capability": name} for name in names]}


def _request(plan: Mapping[str, Any]) -> Any:
    return {"messages": [("user", "Search.")], "planning_execution_plan": plan}


@pytest.mark.row("B44", "B46")
async def test_steps_hand_over_by_state_keys_in_plan_order() -> None:
    graph = build_graph([Search, Process, Report], state_schema=_ALSState)
    out = await graph.ainvoke(_request(_plan("search", "process", "report")))
    assert out["capability_context_data"]["REPORT"]["report"] == {
        "metadata": {"count": 2},
        "last": "process",
    }
    assert out["execution_outcome"]["status"] == "completed"


@pytest.mark.row("B44")
async def test_a_reducer_applies_before_the_next_step_of_the_plan_reads() -> None:
    def write(state: Mapping[str, Any]) -> dict[str, Any]:
        return {"ui_captured_figures": [len(state["ui_captured_figures"] or ())]}

    kinds = [capability(name, execute=staticmethod(write)) for name in "abc"]
    out = await build_graph(kinds).ainvoke(_request(_plan("a", "b", "c")))
    assert out["ui_captured_figures"] == [0, 1, 2]


_KINDS = st.lists(st.sampled_from(["state", "declared"]), min_size=1, max_size=6)


@pytest.mark.row("B44")
@settings(max_examples=20, deadline=None)
@given(_KINDS)
def test_only_steps_without_declared_inputs_wait_for_their_predecessors(
    kinds: Sequence[str],
) -> None:
    """A declared step starts before any step has ended; a state-based one after all before it."""
    ended: list[str] = []
    seen: dict[str, list[str]] = {}
    started = asyncio.Event()

    def make(name: str, kind: str) -> Any:
        async def run() -> dict[str, Any]:
            seen[name] = list(ended)
            if all(other in seen for other in declared):
                started.set()
            if kind == "declared":
                await asyncio.wait_for(started.wait(), 60)
            ended.append(name)
            return {}

        async def of_state(state: Mapping[str, Any]) -> dict[str, Any]:
            return await run()

        async def of_inputs(self: Any) -> dict[str, Any]:
            return await run()

        execute = staticmethod(of_state) if kind == "state" else of_inputs
        return capability(name, execute=execute)

    names = {f"s{number}": kind for number, kind in enumerate(kinds)}
    declared = [name for name, kind in names.items() if kind == "declared"]
    graph = build_graph([make(*item) for item in names.items()])
    out = asyncio.run(graph.ainvoke(_request(_plan(*names))))
    assert out["execution_outcome"]["status"] == "completed"
    keys = list(names)
    for place, name in enumerate(keys):
        if names[name] == "state":
            assert set(seen[name]) >= set(keys[:place])


@pytest.mark.row("B47")
async def test_a_step_runs_again_after_a_new_plan_put_another_step_before_it() -> None:
    from capgraph.planning import StaticCatalog, carry_over, with_plan_order

    catalog = StaticCatalog.of(*(kind.capability_spec for kind in (Search, Process, Report)))
    first, second = (
        with_plan_order(_plan(*names), catalog)  # type: ignore[arg-type]
        for names in (("search", "report"), ("search", "process", "report"))
    )
    done = {"search": {"success": True}, "report": {"success": True}}
    assert carry_over(first, second, done).rerun == ("process", "report")


@pytest.mark.row("B47")
async def test_a_new_order_does_not_repeat_an_effect(agent: Any, step: Any) -> None:
    ran: list[str] = []

    def make(name: str, **options: Any) -> Any:
        async def execute(state: Mapping[str, Any]) -> dict[str, Any]:
            ran.append(name)
            if ran == ["order", "ship"]:
                raise CapabilityError("wrong address", severity=ErrorSeverity.REPLANNING)
            return {}

        return capability(name, execute=staticmethod(execute), **options)

    kinds = [make("order", effect="once"), make("ship"), make("look_up")]
    plans = [[step(name, name) for name in ("order", "ship")]]
    plans += [[step(name, name) for name in ("look_up", "order", "ship")]]
    outcome = (await agent(*kinds, plans=plans).ask())["execution_outcome"]
    assert (outcome["status"], ran) == ("completed", ["order", "ship", "look_up", "ship"])


@pytest.mark.row("B44")
@pytest.mark.parametrize(
    ("reader", "options", "warns"),
    [
        ("state", {}, False),
        ("state", {"requires": ["OTHER"]}, True),
        ("state", {"requires": ["DONE"]}, False),
        ("self", {}, True),
    ],
)
def test_check_warns_about_state_keys_that_may_be_read_too_early(
    reader: str, options: dict[str, Any], warns: bool
) -> None:
    async def write(state: Mapping[str, Any]) -> dict[str, Any]:
        update = {"search_results": ["a"], "DONE": {"at": 1}}
        del state
        return update

    async def of_state(state: Mapping[str, Any]) -> None:
        state["search_results"]

    async def of_self(self: Any) -> None:
        self.state.get("search_results")

    execute: Any = staticmethod(of_state) if reader == "state" else of_self
    registry = Registry()
    registry.register(capability("write", execute=staticmethod(write), provides=["DONE"]))
    registry.register(capability("read", execute=execute, **options))
    found = collect_findings(
        registry,
        Settings(),
        offline=False,
        has_saver=True,
        schema=StateSchema.from_class(_ALSState),
    )
    assert any("'search_results'" in finding.text for finding in found) is warns


@pytest.mark.row("B44")
@pytest.mark.parametrize("key", ["DONE", "search_results"])
def test_check_warns_about_a_value_that_is_not_in_the_state(key: str) -> None:
    async def write(state: Mapping[str, Any]) -> dict[str, Any]:
        return {"DONE": {"at": 1}, "search_results": ["a"]}

    async def read(state: Mapping[str, Any]) -> None:
        _ = state["DONE"], state["search_results"]

    registry = Registry()
    registry.register(capability("write", execute=staticmethod(write), provides=["DONE"]))
    registry.register(capability("read", execute=staticmethod(read)))
    found = collect_findings(registry, Settings(), offline=False, has_saver=True)
    assert any(repr(key) in finding.text for finding in found)
