"""The first way: the loop stays, capgraph governs its tools.

The model still decides after each result. Approvals, effects, limits, permissions, and the audit are
capgraph's: a question shows checked parameters, and an effect is not repeated after a crash.
"""

from typing import Any

from langchain.agents import create_agent

from capgraph import bind
from capgraph.adapters import as_tool
from ferry_support.capabilities import CAPABILITIES
from ferry_support.desk import SYSTEM_PROMPT


def governed_loop(model: Any, checkpointer: Any) -> Any:
    """Return the loop of `loop.py` over governed tools."""
    services = bind(CAPABILITIES)
    tools = [as_tool(capability, services) for capability in CAPABILITIES]
    return create_agent(model, tools, system_prompt=SYSTEM_PROMPT, checkpointer=checkpointer)
