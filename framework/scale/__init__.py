"""Distributed execution: clients that submit turns, engines that carry jobs, and workers."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.scale.client import Client as Client
    from capgraph.scale.client import ThreadStatus as ThreadStatus
    from capgraph.scale.client import connect as connect
    from capgraph.scale.client import open_engine as open_engine
    from capgraph.scale.engine import Engine as Engine
    from capgraph.scale.engine import JobHandler as JobHandler
    from capgraph.scale.jobs import StepJob as StepJob
    from capgraph.scale.jobs import TurnJob as TurnJob
    from capgraph.scale.run_executor import AdvanceResult as AdvanceResult
    from capgraph.scale.schedules import Schedule as Schedule
    from capgraph.scale.worker import Worker as Worker
    from capgraph.scale.worker import list_workers as list_workers

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.scale.run_executor": ("AdvanceResult",),
        "capgraph.scale.client": ("Client", "ThreadStatus", "connect", "open_engine"),
        "capgraph.scale.engine": ("Engine", "JobHandler"),
        "capgraph.scale.jobs": ("StepJob", "TurnJob"),
        "capgraph.scale.schedules": ("Schedule",),
        "capgraph.scale.worker": ("Worker", "list_workers"),
    },
)
