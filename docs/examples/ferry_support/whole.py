"""The third way: the whole support desk with capgraph, a checked plan in place of the loop."""

from typing import Any, Literal

from capgraph import build_graph
from capgraph.configs.settings import load_settings
from ferry_support.capabilities import CAPABILITIES
from ferry_support.desk import SYSTEM_PROMPT

PLANNING = {
    "look": {"mode": "look"},
    "plan": {"mode": "plan", "features": ["references", "look_again"]},
}
"""`look` plans the next steps and looks at their results; `plan` plans a request as a whole, and looks only
after the steps that it marks."""


def support_agent(model: Any, checkpointer: Any, mode: Literal["look", "plan"] = "look") -> Any:
    """Return the desk as a graph."""
    return build_graph(
        CAPABILITIES,
        model,
        checkpointer,
        settings=load_settings(planning=PLANNING[mode]),
        system_prompt=SYSTEM_PROMPT,
    )
