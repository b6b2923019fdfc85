"""Two specialists that keep a dialogue, with scripted models: for tests in this and in other processes."""

import os
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from capgraph import bind, capability_node
from capgraph.adapters import agent_capability
from capgraph.agents import Memory, ReActAgent, handoff_tool
from capgraph.testing import ModelCall, ScriptedModel

OTHER = {"tickets": "lodging", "lodging": "tickets"}
EXAMPLES = {"tickets": "I need a ticket for the ferry.", "lodging": "I need a hotel room."}


@capability_node(effect="once", requires_approval=True)
def book(item: str) -> str:
    """Book an item."""
    with open(os.environ["TOY_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{item}\n")
    return f"booked {item}"


def call_tool(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"{name}-1"}])


def answer(desk: str, call: ModelCall) -> BaseMessage | str:
    """Answer the last message: with a tool call for some words, else with the number of messages heard."""
    last = call.messages[-1]
    if last.type == "tool":
        return f"{desk} {last.text}"
    text = str(last.text)
    if {"tickets": "hotel", "lodging": "ticket"}[desk] in text:
        return call_tool(f"transfer_to_{OTHER[desk]}", task=text)
    if "planner" in text:
        return call_tool("hand_back", task=text)
    if text == "crash":
        raise ValueError("the model is broken")
    if text.startswith("book"):
        return call_tool("book", item=text.split()[1])
    return f"{desk} heard {sum(m.type == 'human' for m in call.messages)}"


def specialist(desk: str, *, as_loop: bool = False, **options: Any) -> Any:
    """Return the specialist of a desk, as an agent of capgraph or as a loop of LangChain."""
    model = ScriptedModel(responses=lambda call: answer(desk, call))
    tools = [handoff_tool(OTHER[desk]), handoff_tool()]
    if as_loop:
        from langchain.agents import create_agent

        agent: Any = create_agent(model, tools, name=desk)
    else:
        agent = ReActAgent(
            model, tools=[book, *tools], memory=Memory(tools=True), services=bind([book])
        )
    options = {"keeps_dialogue": True, "examples": [EXAMPLES[desk]], **options}
    return agent_capability(agent, desk, description=f"Serves the {desk} desk.", **options)


@capability_node(examples=["What time is it?"])
def clock() -> str:
    """Read the time."""
    return "noon"


tickets, lodging = specialist("tickets"), specialist("lodging")
