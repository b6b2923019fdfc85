"""The tools of the desk as capabilities, for every form of the application with capgraph."""

from capgraph import capability_node
from ferry_support.desk import SAFE, SENSITIVE

CAPABILITIES = [
    *map(capability_node, SAFE),
    *map(capability_node(effect="once", requires_approval=True), SENSITIVE),
]
BY_NAME = {capability.capability_spec.name: capability for capability in CAPABILITIES}
