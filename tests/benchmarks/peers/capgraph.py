"""capgraph: the model is asked for the plan and the answer, never between steps."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, Registry, build_graph, capability_node
from capgraph.configs.settings import load_settings
from capgraph.testing import ModelCall, ScriptedModel
from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted, follow, look


class Value(CapabilityContext):
    """A number."""

    number: int


@capability_node(name=TOOL, description=DESCRIPTION)
async def advance(value: Value | None = None) -> Value:
    """Return the number that follows a number."""
    return Value(number=follow(value.number if value else 0))


def other(name: str, text: str) -> type[BaseCapability]:
    """Return a capability that the work does not need."""

    class Parameters(BaseModel):
        limit: int = 10

    async def execute(self: Any) -> dict[str, Any]:
        return {name.upper(): {"found": await look(self.parameters.limit)}}

    parts = {"description": text, "provides": [name.upper()], "name": name, "execute": execute}
    return capability_node(type(name, (BaseCapability,), {**parts, "Parameters": Parameters}))


class CountedModel(ScriptedModel):
    """Remembers the schemas of structured answers as well, which are part of a prompt."""

    forms: dict[str, str] = {}

    def with_structured_output(self, schema: Any, **options: Any) -> Any:
        tool = convert_to_openai_tool(schema)["function"]
        self.forms[tool["name"]] = json.dumps(tool)
        return super().with_structured_output(schema, **options)


def script(work: Work) -> CountedModel:
    """Return a model that answers as a good one would."""
    answers = {
        "Choice": json.dumps(
            {"reason": "It advances.", "capabilities": [TOOL], "answer": ""}
            if work.steps
            else {"reason": "Small talk.", "capabilities": [], "answer": "0"}
        ),
        "ExecutionPlan": json.dumps(
            {"steps": [planned(n) for n in range(1, work.steps + 1)]}
            if work.steps
            else {"steps": [], "answer": "0"}
        ),
        None: f"The last result is {work.steps}.",
    }

    def answer(call: ModelCall) -> str:
        text = answers[call.schema]
        if work.tally is not None:
            form = model.forms[call.schema] if call.schema else ""
            work.tally.note([*(counted(m.content) for m in call.messages), form], text)
        return text

    model = CountedModel(responses=answer)
    return model


def planned(number: int) -> dict[str, Any]:
    """Return one step of the plan as a model writes it."""
    step: dict[str, Any] = {"capability": TOOL}
    return {**step, "inputs": [str(number - 1)]} if number > 1 else step


@asynccontextmanager
async def prepare(work: Work, folder: Path | None, capability: Any = advance) -> AsyncIterator[Run]:
    """Build the agent; keep threads in SQLite when there is a folder."""
    registry = Registry()
    registry.register(Value)
    registry.register(capability)
    for name, text in work.other_tools():
        registry.register(other(name, text))

    def runner(saver: Any) -> Run:
        graph = build_graph(registry, script(work), saver, settings=load_settings())

        async def run() -> int:
            out = await graph.ainvoke(
                {"messages": [("user", work.request)]},
                {"configurable": {"thread_id": uuid.uuid4().hex}},
                durability="sync" if saver else None,
            )
            if not work.steps:
                return int(out["messages"][-1].content)
            values = out["capability_context_data"]["VALUE"]
            return max(int(value["number"]) for value in values.values())

        return run

    if folder is None:
        yield runner(None)
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite")) as saver:
            yield runner(saver)
