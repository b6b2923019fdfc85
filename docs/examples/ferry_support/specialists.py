"""The desk as specialists with capgraph: agents with their own tools, each of which keeps its dialogue."""

from typing import Any

from capgraph import bind, build_graph
from capgraph.adapters import agent_capability
from capgraph.agents import Memory, ReActAgent, handoff_tool
from capgraph.configs.settings import load_settings
from ferry_support.capabilities import BY_NAME
from ferry_support.desk import DESKS, SYSTEM_PROMPT, file_complaint, my_bookings, read_rules

ABOUT = {
    "tickets": "Searches, books, and changes sailings and their cabins.",
    "lodging": "Searches and books inns on the islands, and cancels orders.",
    "outings": "Rents bicycles and books guided tours on the islands.",
}


def specialist(desk: str, model: Any) -> Any:
    """Return the agent of one desk as a capability."""
    tools = [BY_NAME[body.__name__] for body in DESKS[desk]]
    others = [handoff_tool(other, about) for other, about in ABOUT.items() if other != desk]
    agent = ReActAgent(
        model,
        tools=[*tools, *others, handoff_tool()],
        system_prompt=f"{SYSTEM_PROMPT} You are the {desk} desk; hand over what is not yours.",
        memory=Memory(tools=True),
        services=bind(tools),
    )
    return agent_capability(agent, name=desk, description=ABOUT[desk], keeps_dialogue=True)


def specialists(model: Any, checkpointer: Any) -> Any:
    """Return the front desk, whose plan gives the passenger to a specialist."""
    own = [BY_NAME[body.__name__] for body in (my_bookings, read_rules, file_complaint)]
    return build_graph(
        [*own, *(specialist(desk, model) for desk in DESKS)],
        model,
        checkpointer,
        settings=load_settings(planning={"mode": "look"}),
        system_prompt=SYSTEM_PROMPT,
    )
