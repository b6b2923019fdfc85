"""The desk as specialists with capgraph: agents with tools of their own, which a checked plan calls."""

from typing import Any

from capgraph import bind, build_graph
from capgraph.adapters import agent_capability
from capgraph.agents import ReActAgent
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
    agent = ReActAgent(model, tools=tools, system_prompt=SYSTEM_PROMPT, services=bind(tools))
    return agent_capability(agent, name=desk, description=ABOUT[desk])


def specialists(model: Any, checkpointer: Any) -> Any:
    """Return the front desk, whose plan gives each task to the specialist for it."""
    own = [BY_NAME[body.__name__] for body in (my_bookings, read_rules, file_complaint)]
    return build_graph(
        [*own, *(specialist(desk, model) for desk in DESKS)],
        model,
        checkpointer,
        settings=load_settings(planning={"mode": "look"}),
        system_prompt=SYSTEM_PROMPT,
    )
