"""LlamaIndex workflows: an agent loop of two steps that send each other events.

The package holds no model and no agent, so the conversation is kept by hand in the run's store, as
its guide to agents from scratch does. To keep a run, its guide has the caller write a snapshot of
the context whenever a step has ended; an SQLite table receives them here.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StepState, StepStateChanged, StopEvent

from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted

TOOLS = [{"name": TOOL, "description": DESCRIPTION, "parameters": {"value": {"type": "integer"}}}]


async def advance(value: int) -> int:
    return value + 1


class Asked(StartEvent):
    request: str


class ToolCalled(Event):
    value: int


class ToolReturned(Event):
    result: int


def model(work: Work, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Read the last result and call the tool with it."""
    last = messages[-1]
    known = int(last["content"]) if last["role"] == "tool" else None
    value = work.decide(known)
    if value is None:
        said: dict[str, Any] = {"role": "assistant", "content": str(known)}
    else:
        said = {
            "role": "assistant",
            "content": "",
            "calls": [[f"call_{value}", TOOL, {"value": value}]],
        }
    if work.tally is not None:
        work.tally.note([json.dumps(TOOLS), *map(written, messages)], written(said))
    return said


def written(message: dict[str, Any]) -> str:
    calls = message.get("calls")
    return counted(message["content"]) + (json.dumps(calls) if calls else "")


class Loop(Workflow):
    """Asks the model, calls the tool, asks again."""

    def __init__(self, work: Work) -> None:
        super().__init__(timeout=None)
        self.work = work

    @step
    async def begin(self, ctx: Context, event: Asked) -> ToolCalled | StopEvent:
        return await self.ask(ctx, {"role": "user", "content": event.request})

    @step
    async def call_tool(self, ctx: Context, event: ToolCalled) -> ToolReturned:
        return ToolReturned(result=await advance(event.value))

    @step
    async def go_on(self, ctx: Context, event: ToolReturned) -> ToolCalled | StopEvent:
        return await self.ask(ctx, {"role": "tool", "content": str(event.result)})

    async def ask(self, ctx: Context, message: dict[str, Any]) -> ToolCalled | StopEvent:
        messages = [*await ctx.store.get("messages", default=[]), message]
        said = model(self.work, messages)
        await ctx.store.set("messages", [*messages, said])
        if "calls" in said:
            return ToolCalled(value=said["calls"][0][2]["value"])
        return StopEvent(result=said["content"])


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the workflow; keep a snapshot after each step when there is a folder."""
    workflow = Loop(work)
    database = sqlite3.connect(folder / "runs.sqlite") if folder else None
    if database is not None:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, context TEXT)")

    async def run() -> int:
        handler = workflow.run(start_event=Asked(request=work.request))
        if database is not None:
            thread = uuid.uuid4().hex
            async for event in handler.stream_events(expose_internal=True):
                if (
                    isinstance(event, StepStateChanged)
                    and event.step_state == StepState.NOT_RUNNING
                ):
                    snapshot = json.dumps(handler.ctx.to_dict())
                    with database:
                        database.execute("REPLACE INTO runs VALUES (?, ?)", (thread, snapshot))
        return int(await handler)

    try:
        yield run
    finally:
        if database is not None:
            database.close()
