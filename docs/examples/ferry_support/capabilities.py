"""The tools of the desk as capabilities, for every form of the application with capgraph."""

from typing import Any

from capgraph import capability_node
from ferry_support.desk import SAFE, SENSITIVE

reading = capability_node(on_error="observe")
acting = capability_node(on_error="observe", effect="once", requires_approval=True)
CAPABILITIES: list[Any] = [
    *(reading(body) for body in SAFE),
    *(acting(body) for body in SENSITIVE),
]
BY_NAME = {capability.capability_spec.name: capability for capability in CAPABILITIES}
