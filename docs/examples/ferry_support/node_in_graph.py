"""The second way: a graph of your own stays, and a capgraph graph is one of its nodes."""

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from ferry_support.whole import support_agent


def front_desk(model: Any, checkpointer: Any) -> Any:
    """Return a graph that answers thanks itself and leaves the rest to the support desk."""
    builder = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [AIMessage("You are welcome.")]})
    # True: the desk keeps its results in the thread of this graph, from turn to turn.
    builder.add_node("desk", support_agent(model, True))
    builder.add_conditional_edges(START, choose, ["reply", "desk"])
    builder.add_edge("reply", END)
    builder.add_edge("desk", END)
    return builder.compile(checkpointer=checkpointer)


def choose(state: MessagesState) -> str:
    """Return the node for the last message."""
    return "reply" if "thank" in state["messages"][-1].text.lower() else "desk"
