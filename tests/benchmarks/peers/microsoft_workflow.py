"""Microsoft Agent Framework, a workflow: model and tool as two executors, checkpointed.

A workflow keeps a checkpoint after every superstep, which an agent's own loop does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_framework import (
    Content,
    Executor,
    FileCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from tests.benchmarks.peers import Run, Work
from tests.benchmarks.peers.microsoft_agent import ScriptedClient, advance


@dataclass
class ToolCall:
    call_id: str
    value: int


@dataclass
class ToolResult:
    call_id: str
    result: int


class Model(Executor):
    """Keeps the conversation and asks the model."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__("model")
        self.client = client
        self.messages: list[Message] = []

    @handler
    async def begin(self, request: str, ctx: WorkflowContext[ToolCall, str]) -> None:
        self.messages = []
        await self.ask(Message("user", [request]), ctx)

    @handler
    async def go_on(self, returned: ToolResult, ctx: WorkflowContext[ToolCall, str]) -> None:
        content = Content.from_function_result(returned.call_id, result=str(returned.result))
        await self.ask(Message("tool", [content]), ctx)

    async def ask(self, message: Message, ctx: WorkflowContext[ToolCall, str]) -> None:
        self.messages.append(message)
        response = await self.client.get_response(self.messages, options={"tools": [advance]})
        self.messages += response.messages
        content = response.messages[-1].contents[-1]
        if content.type == "function_call":
            arguments: Any = content.parse_arguments()
            await ctx.send_message(ToolCall(str(content.call_id), arguments["value"]))
        else:
            await ctx.yield_output(response.text)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": [message.to_dict() for message in self.messages]}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.messages = [Message.from_dict(message) for message in state["messages"]]


class Tool(Executor):
    """Calls the tool."""

    @handler
    async def call(self, called: ToolCall, ctx: WorkflowContext[ToolResult]) -> None:
        contents = await advance.invoke(arguments={"value": called.value})
        await ctx.send_message(ToolResult(called.call_id, int(str(contents[0].text))))


@asynccontextmanager
async def prepare(work: Work, folder: Path | None) -> AsyncIterator[Run]:
    """Build the workflow; keep checkpoints in files when there is a folder."""
    names = [f"{cls.__module__}:{cls.__qualname__}" for cls in (ToolCall, ToolResult)]
    storage = FileCheckpointStorage(folder, allowed_checkpoint_types=names) if folder else None

    async def run() -> int:
        model, tool = Model(ScriptedClient(work=work)), Tool("tool")
        workflow = (
            WorkflowBuilder(
                max_iterations=2 * work.steps + 10,
                name="bench",
                start_executor=model,
                checkpoint_storage=storage,
                output_from=[model],
            )
            .add_edge(model, tool)
            .add_edge(tool, model)
            .build()
        )
        result = await workflow.run(work.request)
        return int(result.get_outputs()[-1])

    yield run
