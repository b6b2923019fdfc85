"""Tools for testing capabilities, plans, and agents without a model, a network, or delays."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.testing.clock import FakeClock as FakeClock
    from capgraph.testing.faults import FaultScript as FaultScript
    from capgraph.testing.faults import FaultyCapability as FaultyCapability
    from capgraph.testing.faults import with_faults as with_faults
    from capgraph.testing.models import ModelCall as ModelCall
    from capgraph.testing.models import ScriptedModel as ScriptedModel
    from capgraph.testing.run import CapabilityRun as CapabilityRun
    from capgraph.testing.run import run_capability as run_capability

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.testing.clock": ("FakeClock",),
        "capgraph.testing.faults": ("FaultScript", "FaultyCapability", "with_faults"),
        "capgraph.testing.models": ("ModelCall", "ScriptedModel"),
        "capgraph.testing.run": ("CapabilityRun", "run_capability"),
    },
)
