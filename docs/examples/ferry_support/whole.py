"""The whole support desk with capgraph: a checked plan in place of the loop."""

from typing import Any, Literal

from capgraph import build_graph
from capgraph.configs.settings import load_settings
from ferry_support.capabilities import CAPABILITIES
from ferry_support.desk import SYSTEM_PROMPT


def support_agent(
    model: Any, checkpointer: Any = None, mode: Literal["plan", "look", "auto"] = "look"
) -> Any:
    """Return the desk, which plans a request as a whole, or looks at results and plans on."""
    settings = load_settings(planning={"mode": mode})
    return build_graph(
        CAPABILITIES, model, checkpointer, settings=settings, system_prompt=SYSTEM_PROMPT
    )
