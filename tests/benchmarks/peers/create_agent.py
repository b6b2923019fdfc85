"""LangChain's ``create_agent``: the model is asked before every tool call."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from capgraph.testing import ModelCall, ScriptedModel
from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted, follow, look


@tool(TOOL, description=DESCRIPTION)
async def advance(value: int) -> int:
    return follow(value)


def tools_of(work: Work) -> list[Any]:
    return [advance, *(tool(name, description=text)(look) for name, text in work.other_tools())]


def script(work: Work) -> ScriptedModel:
    """Return a model that reads the last result and calls the tool with it."""
    tools = json.dumps([convert_to_openai_tool(each) for each in tools_of(work)])

    def answer(call: ModelCall) -> AIMessage:
        last = call.messages[-1]
        known = int(str(last.content)) if isinstance(last, ToolMessage) else None
        value = work.decide(known)
        if value is None:
            message = AIMessage(content=str(known or 0))
        else:
            asked = {"name": TOOL, "args": {"value": value}, "id": f"call_{value}"}
            message = AIMessage(content="", tool_calls=[asked])
        if work.tally is not None:
            work.tally.note([tools, *map(written, call.messages)], written(message))
        return message

    return ScriptedModel(responses=answer)


def written(message: Any) -> str:
    calls = [
        [call["id"], call["name"], call["args"]] for call in getattr(message, "tool_calls", [])
    ]
    return counted(message.content) + (json.dumps(calls) if calls else "")


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the agent; keep threads in SQLite when there is a folder."""

    def runner(saver: Any) -> Run:
        agent = create_agent(script(work), tools_of(work), checkpointer=saver)

        async def run() -> int:
            out = await agent.ainvoke(
                {"messages": [("user", work.request)]},
                {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 10_000},
                durability="sync" if saver else None,
            )
            return int(out["messages"][-1].content)

        return run

    if folder is None:
        yield runner(None)
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite")) as saver:
            yield runner(saver)
