"""Model calls and prompt tokens of one request, with few and with many registered capabilities."""

from __future__ import annotations

import itertools
import json
from typing import Any

from configs.settings import load_settings
from framework import BaseCapability, Registry, build_graph, capability_node
from framework.base import ClassifierExample, TaskClassifierGuide
from framework.testing import ModelCall
from tests.benchmarks.peers import Tally, counted
from tests.benchmarks.peers.capgraph import CountedModel

REQUEST = "Which invoices of the Paris office are overdue?"
WANTED = "find_overdue_invoices_paris"
_VERBS = (
    "find",
    "list",
    "summarise",
    "compare",
    "archive",
    "check",
    "rank",
    "export",
    "count",
    "plot",
)
_THINGS = (
    "overdue invoices", "open orders", "late deliveries", "energy readings", "sick notes",
    "travel expenses", "support tickets", "server alarms", "sales figures", "stock levels",
)  # fmt: skip
_PLACES = (
    "paris",
    "lyon",
    "berlin",
    "madrid",
    "rome",
    "oslo",
    "vienna",
    "porto",
    "ghent",
    "zurich",
)


def registry_of(count: int) -> Registry:
    """Return a registry of capabilities with names, descriptions and examples of their own."""
    registry = Registry()
    combinations = itertools.product(_THINGS, _PLACES, _VERBS)
    for thing, place, verb in itertools.islice(combinations, count):
        registry.register(capability_node(_capability(verb, thing, place)))
    return registry


def _capability(verb: str, thing: str, place: str) -> type[BaseCapability]:
    name = f"{verb}_{thing.replace(' ', '_')}_{place}"

    class Office(BaseCapability):
        description = f"{verb.capitalize()} the {thing} of the {place.capitalize()} office."
        provides = [name.upper()]

        async def execute(self) -> dict[str, Any]:
            return {name.upper(): {"found": 3}}

        def _create_classifier_guide(self) -> TaskClassifierGuide:
            query = f"Please {verb} the {thing} in {place.capitalize()}"
            example = ClassifierExample(query=query, result=True, reason=f"It is about {thing}.")
            return TaskClassifierGuide(instructions=f"For {thing}.", examples=[example])

    Office.name = name
    return Office


async def model_use(count: int) -> dict[str, Any]:
    """Count the calls and the prompt of one request.

    Args:
        count: Registered capabilities; the one that the request needs is among them.
    """
    tally = Tally()
    answers = {
        "Choice": json.dumps({"reason": "It finds them.", "capabilities": [WANTED]}),
        "ExecutionPlan": json.dumps(
            {
                "steps": [
                    {
                        "context_key": "invoices",
                        "capability": WANTED,
                        "task_objective": "Find them",
                        "expected_output": WANTED.upper(),
                    }
                ]
            }
        ),
        None: "Three invoices are overdue.",
    }
    shown = []

    def answer(call: ModelCall) -> str:
        text = answers[call.schema]
        form = model.forms[call.schema] if call.schema else ""
        tally.note([*(counted(m.content) for m in call.messages), form], text)
        if call.schema == "Choice":
            shown.append(WANTED in call.prompt)
        return text

    model = CountedModel(responses=answer)
    graph = build_graph(registry_of(count), model, settings=load_settings())
    out = await graph.ainvoke({"messages": [("user", REQUEST)]})
    assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
    assert shown == [True], "The shortlist lost the capability that the request needs."
    return {
        "capabilities": count,
        "model_calls": tally.calls,
        "prompt_tokens": tally.prompt_chars // 4,
    }
