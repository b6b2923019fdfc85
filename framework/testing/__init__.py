"""What one needs to test capabilities, plans and whole agents without a model or a wait."""

from configs.lazy import contents
from framework.testing.clock import FakeClock as FakeClock
from framework.testing.faults import FaultScript as FaultScript
from framework.testing.faults import FaultyCapability as FaultyCapability
from framework.testing.faults import with_faults as with_faults
from framework.testing.models import ModelCall as ModelCall
from framework.testing.models import ScriptedModel as ScriptedModel
from framework.testing.run import CapabilityRun as CapabilityRun
from framework.testing.run import run_capability as run_capability

__getattr__, __dir__ = contents(__name__)
