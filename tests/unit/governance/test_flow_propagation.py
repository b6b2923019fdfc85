"""Information flow against a written model: what a label reaches is what a path leads to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.governance import InformationFlow
from capgraph.governance.information_flow import context_type_labels
from capgraph.state import TurnView

LABELS = ("untrusted", "secret", "own")
RULES: dict[str, Any] = {"own": ("effect", "outside")}
BARRIERS = {"untrusted": {"effect"}, "secret": {"outside"}, "own": {"effect", "outside"}}


@dataclass(frozen=True)
class Node:
    """One step with a capability of its own."""

    reads: tuple[int, ...]
    of_type: frozenset[str]
    of_capability: frozenset[str]
    removes: frozenset[str]
    effect: bool
    outside: bool
    input: bool


_some = st.frozensets(st.sampled_from(LABELS), max_size=2)


@st.composite
def plans(draw: Any) -> list[Node]:
    nodes = []
    for place in range(draw(st.integers(1, 7))):
        earlier = st.integers(0, place - 1) if place else st.nothing()
        reads = tuple(sorted(draw(st.sets(earlier, max_size=3)))) if place else ()
        flags = [draw(st.booleans()) for _ in range(3)]
        nodes.append(Node(reads, draw(_some), draw(_some), draw(_some), *flags))
    return nodes


def reached(nodes: list[Node], words: frozenset[str]) -> list[set[str]]:
    """The model: walk every path from where a label begins, until a step takes it off."""
    readers = {
        place: [n for n, node in enumerate(nodes) if place in node.reads]
        for place in range(len(nodes))
    }
    found: list[set[str]] = [set() for _ in nodes]
    for label in LABELS:
        begins = [n for n, node in enumerate(nodes) if label in node.of_type | node.of_capability]
        walk = [reader for place in begins for reader in readers[place]]
        walk += range(len(nodes)) if label in words else []
        while walk:
            place = walk.pop()
            if label in found[place]:
                continue
            found[place].add(label)
            if label not in nodes[place].removes:
                walk += readers[place]
    return found


def house(nodes: list[Node]) -> Registry:
    registry = Registry()
    for place, node in enumerate(nodes):
        kind = type(CapabilityContext)(
            f"T{place}",
            (CapabilityContext,),
            {"__annotations__": {"value": int}, "__module__": __name__, "labels": node.of_type},
        )
        body = {
            "name": f"c{place}",
            "description": "One of the plan.",
            "provides": [kind],
            "requires": [(f"T{n}", "optional") for n in node.reads],
            "Parameters": type(BaseModel)(
                "Parameters",
                (BaseModel,),
                {"__annotations__": {"of": Any}, "of": None, "__module__": __name__},
            ),
            "labels": node.of_capability,
            "removes_labels": node.removes,
            "effect": "idempotent" if node.effect else "none",
            "sends_externally": node.outside,
            "execute": _executes(kind),
            "_create_orchestrator_guide": lambda _self: None,
            "_create_classifier_guide": lambda _self: None,
        }
        registry.register(capability_node(type(f"C{place}", (BaseCapability,), body)))
    return registry


def _executes(kind: type[CapabilityContext]) -> Any:
    async def execute(self: Any) -> Any:
        return kind(value=1)

    return execute


def plan_of(nodes: list[Node]) -> dict[str, Any]:
    steps = []
    for place, node in enumerate(nodes):
        named = {"context_key": f"s{place}", "capability": f"c{place}", "task_objective": "go"}
        if node.input:
            named |= {"inputs": [{f"T{n}": f"s{n}"} for n in node.reads], "parameters": None}
        else:
            references = [{"$from": f"s{n}.value"} for n in node.reads]
            named |= {"inputs": [], "parameters": {"of": references}}
        steps.append(named)
    answer = {"context_key": "answer", "capability": "respond", "task_objective": "Answer."}
    return {"steps": [*steps, answer]}


@pytest.mark.row("I2")
@given(plans(), _some)
@settings(max_examples=150, deadline=None)
def test_a_plan_is_refused_for_what_a_path_leads_to_and_for_nothing_else(
    nodes: list[Node], words: frozenset[str]
) -> None:
    flow = InformationFlow(labels=RULES).bind(house(nodes), lambda: True)
    plan: Any = plan_of(nodes)
    if words:
        plan["stamp"] = {"labels": dict.fromkeys(words, "what was read")}
    verdict = asyncio.run(flow.review(plan, TurnView({})))
    wanted = {
        (label, f"s{place}")
        for place, labels in enumerate(reached(nodes, words))
        for label in labels
        if ("effect" in BARRIERS[label] and nodes[place].effect)
        or ("outside" in BARRIERS[label] and nodes[place].outside)
    }
    told = {
        (p.split("'")[1], p.split("would reach step '")[1].split("'")[0]) for p in verdict.problems
    }
    assert told == wanted
    assert verdict.decision == ("ask" if wanted else "allow")


@pytest.mark.row("I3")
@given(plans())
@settings(max_examples=25, deadline=None)
def test_executed_steps_record_the_labels_of_the_model(nodes: list[Node]) -> None:
    harmless = [
        Node(n.reads, n.of_type, n.of_capability, n.removes, False, False, n.input) for n in nodes
    ]
    graph = build_graph(house(harmless), policies=InformationFlow())
    out = asyncio.run(
        graph.ainvoke({"messages": [("user", "go")], "planning_execution_plan": plan_of(harmless)})
    )
    kept = out.get("capability_context_labels") or {}
    for place, labels in enumerate(reached(harmless, frozenset())):
        node = harmless[place]
        wanted = (labels - node.removes) | node.of_type | node.of_capability
        assert set(kept.get(f"T{place}", {}).get(f"s{place}", {})) == wanted


@pytest.mark.row("I1")
def test_a_type_has_the_labels_of_the_types_inside_it() -> None:
    class Letter(CapabilityContext):
        labels = ("untrusted",)
        text: str

    class Pile(CapabilityContext):
        letters: dict[str, list[Letter]]

    @capability_node
    async def letters() -> list[Letter]:
        """Reads letters."""
        return []

    @capability_node
    async def pile() -> Pile:
        """Reads a pile."""
        return Pile(letters={})

    registry = Registry()
    for item in (letters, pile):
        registry.register(item)
    found = context_type_labels(registry)
    assert found["PILE"] == ("untrusted",)
    assert found["LETTERS"] == ("untrusted",)
