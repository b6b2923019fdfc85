"""LangChain's ``create_agent``: the model is asked after every tool call."""

from __future__ import annotations

import uuid
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.benchmarks.local_model.cases import Domain
from tests.benchmarks.local_model.chat_model import chat_model
from tests.benchmarks.local_model.systems import INSTRUCTIONS, MAX_ROUNDS, Ask, Messages, Reply


def prepare(domain: Domain, url: str, _: str = "") -> Ask:
    """Build the agent; approvals are granted."""
    approvals: dict[str, Any] = dict.fromkeys(domain.approvals, True)
    agent = create_agent(
        chat_model(url),
        tools=list(domain.tools),
        system_prompt=INSTRUCTIONS,
        middleware=[HumanInTheLoopMiddleware(interrupt_on=approvals)] if approvals else [],
        checkpointer=InMemorySaver(),
    )

    async def ask(messages: Messages) -> Reply:
        config: Any = {
            "configurable": {"thread_id": uuid.uuid4().hex},
            "recursion_limit": 2 * MAX_ROUNDS,
        }
        given: Any = {"messages": list(messages)}
        while True:
            out = await agent.ainvoke(given, config)
            interrupts = out.get("__interrupt__")
            if not interrupts:
                return Reply(str(out["messages"][-1].content))
            count = len(interrupts[0].value["action_requests"])
            given = Command(resume={"decisions": [{"type": "approve"}] * count})

    return ask
