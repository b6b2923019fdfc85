"""The tools of the desk as capabilities, for every form of the application with capgraph."""

from capgraph.adapters import tool_capability
from ferry_support.desk import SAFE, SENSITIVE

CAPABILITIES = [
    *(tool_capability(body) for body in SAFE),
    *(tool_capability(body, effect="once", requires_approval=True) for body in SENSITIVE),
]
BY_NAME = {capability.capability_spec.name: capability for capability in CAPABILITIES}
