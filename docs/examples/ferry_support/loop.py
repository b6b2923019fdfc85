"""The support desk as a plain LangGraph loop: a model, a tool, the result, the model again.

`create_agent` brings the loop, its middleware asks a person before a sensitive tool runs.
"""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import StructuredTool

from ferry_support.desk import SAFE, SENSITIVE, SYSTEM_PROMPT


def support_loop(model: Any, checkpointer: Any) -> Any:
    """Return the loop over all tools."""
    return create_agent(
        model,
        [as_tool(body) for body in [*SAFE, *SENSITIVE]],
        system_prompt=SYSTEM_PROMPT,
        middleware=[HumanInTheLoopMiddleware({body.__name__: True for body in SENSITIVE})],
        checkpointer=checkpointer,
    )


def as_tool(body: Any) -> StructuredTool:
    """Make a tool whose errors the model reads; without that, they end the run."""
    return StructuredTool.from_function(body, handle_tool_error=True)
