"""Microsoft Agent Framework, an agent: the model is asked before every tool call.

An agent of this framework can keep its conversation after every model call; its workflows keep
checkpoints, which is the next module.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    Message,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer

from tests.benchmarks.peers import DESCRIPTION, TOOL, Run, Work, counted, follow, look


@tool(name=TOOL, description=DESCRIPTION)
async def advance(value: int) -> int:
    return follow(value)


class ScriptedClient(BaseChatClient):
    """Reads the last result and calls the tool with it."""

    def __init__(self, *, work: Work, **options: Any) -> None:
        super().__init__(**options)
        self.work = work

    async def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> ChatResponse:
        last = messages[-1].contents[-1]
        known = int(str(last.result)) if last.type == "function_result" else None
        value = self.work.decide(known)
        if value is None:
            content = Content.from_text(str(known or 0))
        else:
            content = Content.from_function_call(f"call_{value}", TOOL, arguments={"value": value})
        message = Message("assistant", [content])
        if self.work.tally is not None:
            forms = [
                json.dumps([t.name, t.description, t.parameters()])
                for t in options.get("tools") or [advance]
            ]
            self.work.tally.note([*forms, *map(written, messages)], written(message))
        return ChatResponse(messages=[message])


class ScriptedToolClient(
    FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, ScriptedClient
):
    """The same in the layers that the framework's own clients have; the first calls the tools."""


def written(message: Message) -> str:
    text = ""
    for content in message.contents:
        if content.type == "function_call":
            text += json.dumps([[content.call_id, content.name, content.arguments]])
        elif content.type == "function_result":
            text += counted(content.result)
        else:
            text += content.text
    return text


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the agent; keep each conversation in a file when there is a folder."""
    limits: Any = {"max_iterations": work.steps + 10}
    client = ScriptedToolClient(work=work, function_invocation_configuration=limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the provider is marked as experimental
        kept = [FileHistoryProvider(folder)] if folder else None
    agent = Agent(
        client,
        tools=[
            advance,
            *(tool(name=name, description=text)(look) for name, text in work.other_tools()),
        ],
        context_providers=kept,
        require_per_service_call_history_persistence=folder is not None,
    )

    async def run() -> int:
        session = agent.create_session() if folder else None
        return int((await agent.run(work.request, session=session)).text)

    yield run
