"""The tools of the desk as capabilities, for every form of the application with capgraph."""

from typing import Any

from capgraph import capability_node
from ferry_support.desk import SAFE, SENSITIVE

acting = capability_node(effect="once", requires_approval=True)
CAPABILITIES: list[Any] = [
    *(capability_node(body) for body in SAFE),
    *(acting(body) for body in SENSITIVE),
]
BY_NAME = {capability.capability_spec.name: capability for capability in CAPABILITIES}
