"""pydantic-ai: the model is asked before every tool call.

The package keeps no checkpoints itself; it leaves durable runs to Temporal, DBOS and Prefect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic_ai import Agent, RequestUsage, UsageLimits
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted, follow, look


def script(work: Work) -> FunctionModel:
    """Return a model that reads the last result and calls the tool with it."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        known = int(last.content) if isinstance(last, ToolReturnPart) else None
        value = work.decide(known)
        part = (
            TextPart(str(known or 0))
            if value is None
            else ToolCallPart(TOOL, {"value": value}, f"call_{value}")
        )
        # With a usage of its own the model does not estimate one by reading all messages.
        response = ModelResponse(parts=[part], usage=RequestUsage(input_tokens=1, output_tokens=1))
        if work.tally is not None:
            tools = [
                json.dumps([t.name, t.description, t.parameters_json_schema])
                for t in info.function_tools
            ]
            work.tally.note([*tools, *map(written, messages)], written(response))
        return response

    return FunctionModel(answer)


def written(message: ModelRequest | ModelResponse) -> str:
    text = ""
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            text += json.dumps([[part.tool_call_id, part.tool_name, part.args]])
        else:
            text += counted(part.content)
    return text


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the agent."""
    agent = Agent(script(work))

    @agent.tool_plain(name=TOOL, description=DESCRIPTION)
    async def advance(value: int) -> int:
        return follow(value)

    for name, text in work.other_tools():
        agent.tool_plain(name=name, description=text)(look)

    async def run() -> int:
        result = await agent.run(work.request, usage_limits=UsageLimits(request_limit=None))
        return int(result.output)

    yield run
