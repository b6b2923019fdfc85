"""The desk as specialists in plain LangGraph: a loop for each, which hand the passenger over.

A specialist keeps the conversation until it hands back, so the graph keeps who is talking in a key of its state.
"""

from typing import Any, NotRequired

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from ferry_support.desk import (
    DESKS,
    SENSITIVE,
    SYSTEM_PROMPT,
    file_complaint,
    my_bookings,
    read_rules,
)
from ferry_support.loop import as_tool

FRONT = "front"
TOOLS = {FRONT: [my_bookings, read_rules, file_complaint], **DESKS}


class State(MessagesState):
    """The conversation, and the desk that has it."""

    desk: NotRequired[str]


def hand_over(desk: str) -> BaseTool:
    """Return the tool with which a loop hands the passenger over to a desk."""

    @tool(f"transfer_to_{desk}", description=f"Hand the passenger over to the {desk} desk.")
    def transfer(runtime: ToolRuntime) -> Command[Any]:
        asked = next(m for m in reversed(runtime.state["messages"]) if isinstance(m, AIMessage))
        told = ToolMessage(f"The {desk} desk takes over.", tool_call_id=runtime.tool_call_id)
        update = {"desk": desk, "messages": [asked, told]}
        return Command(goto=desk, update=update, graph=Command.PARENT)

    return transfer


def specialist(desk: str, model: Any) -> Any:
    """Return the loop of one desk, which can hand over to each other desk."""
    others = [other for other in TOOLS if other != desk]
    return create_agent(
        model,
        [*map(as_tool, TOOLS[desk]), *map(hand_over, others)],
        system_prompt=f"{SYSTEM_PROMPT} You are the {desk} desk; hand over what is not yours.",
        middleware=[HumanInTheLoopMiddleware({body.__name__: True for body in SENSITIVE})],
        name=desk,
    )


def specialists_loop(model: Any, checkpointer: Any) -> Any:
    """Return the graph of all desks."""
    builder = StateGraph(State)
    for desk in TOOLS:
        builder.add_node(desk, specialist(desk, model))
    builder.add_conditional_edges(START, talking, [*TOOLS])
    return builder.compile(checkpointer=checkpointer)


def talking(state: State) -> str:
    """Return the desk that has the conversation."""
    return state.get("desk", FRONT)
