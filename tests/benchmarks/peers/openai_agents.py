"""openai-agents: the model is asked before every tool call."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted


@function_tool(name_override=TOOL, description_override=DESCRIPTION)
async def advance(value: int) -> int:
    return value + 1


class Script(Model):
    """Reads the last result and calls the tool with it.

    The package's own ``ScriptedModel`` copies the whole conversation twice for each call, so that
    tests can look at it; that would be charged to the framework here.
    """

    def __init__(self, work: Work) -> None:
        self.work = work

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        last = input[-1] if isinstance(input, list) else {}
        known = int(last["output"]) if last.get("type") == "function_call_output" else None
        value = self.work.decide(known)
        item = said(str(known)) if value is None else called(value)
        if self.work.tally is not None:
            forms = [json.dumps([t.name, t.description, t.params_json_schema]) for t in tools]
            items = input if isinstance(input, list) else [{"content": input}]
            self.work.tally.note([*forms, *map(written, items)], written(item.model_dump()))
        return ModelResponse(output=[item], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("The benchmark does not stream.")


def called(value: int) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call",
        call_id=f"call_{value}",
        name=TOOL,
        arguments=json.dumps({"value": value}),
    )


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="said", type="message", role="assistant", status="completed", content=[part]
    )


def written(item: dict[str, Any]) -> str:
    if item.get("type") == "function_call":
        return json.dumps([[item["call_id"], item["name"], json.loads(item["arguments"])]])
    content = item.get("output", item.get("content"))
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return counted(content)


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the agent; keep each conversation in an SQLite session when there is a folder."""
    agent = Agent(name="bench", model=Script(work), tools=[advance])
    quiet = RunConfig(tracing_disabled=True)

    async def run() -> int:
        session = SQLiteSession(uuid.uuid4().hex, folder / "sessions.sqlite") if folder else None
        try:
            result = await Runner.run(
                agent, work.request, max_turns=work.steps + 10, session=session, run_config=quiet
            )
        finally:
            if session is not None:
                session.close()
        return int(result.final_output)

    yield run
