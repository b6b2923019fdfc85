"""What one needs to test capabilities, plans and whole agents without a model or a wait."""

from framework.testing.clock import FakeClock
from framework.testing.faults import (
    FaultScript,
    FaultyCapability,
    with_faults,
)
from framework.testing.models import ModelCall, ScriptedModel
from framework.testing.network import NetworkRefusedError, loopback_only
from framework.testing.plans import assert_plan
from framework.testing.run import CapabilityRun, run_capability

__all__ = [
    "CapabilityRun",
    "FakeClock",
    "FaultScript",
    "FaultyCapability",
    "ModelCall",
    "NetworkRefusedError",
    "ScriptedModel",
    "assert_plan",
    "loopback_only",
    "run_capability",
    "with_faults",
]
