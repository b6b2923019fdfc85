"""A real A2A agent, of `a2a-sdk`, for tests: what it does depends on what it is told."""

from __future__ import annotations

import asyncio
from typing import Any

from a2a.helpers import new_data_part, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette


class Agent(AgentExecutor):
    """Greets; asks, fails, refuses or waits when it is told to."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.go_on = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        self.told.append(text)
        if text == "hold":
            await self.go_on.wait()
        if text == "quick":
            await event_queue.enqueue_event(new_text_message("at once"))
            return
        task = context.current_task
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def message(said: str) -> Any:
            return updater.new_agent_message([new_text_part(said)])

        await updater.start_work(message("looking"))
        if text == "fail":
            await updater.failed(message("the line is dead"))
        elif text == "refuse":
            await updater.reject(message("not my trade"))
        elif text in ("ask", "which day?"):
            await updater.requires_input(message("which city?"))
        elif text == "Rome":
            await updater.requires_input(message("which day?"))
        elif text == "data":
            await updater.add_artifact([new_data_part({"celsius": 21.5})])
            await updater.complete()
        else:
            if text == "wait":
                await self.go_on.wait()
            await updater.add_artifact([new_text_part(f"done: {text}")])
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def app(agent: Agent, url: str, *, streaming: bool = True) -> Starlette:
    card = AgentCard(
        name="Greeter",
        description="Greets people.",
        version="1",
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        skills=[AgentSkill(id="greet", name="greet", description="Say hello.", tags=["x"])],
    )
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
    return Starlette(
        routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
    )
