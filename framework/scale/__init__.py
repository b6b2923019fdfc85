"""The same graph on many workers: what asks for turns, the engines that carry orders, workers."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy import lazy_exports

if TYPE_CHECKING:
    from capgraph.scale.advance import Report as Report
    from capgraph.scale.client import Client as Client
    from capgraph.scale.client import ThreadStatus as ThreadStatus
    from capgraph.scale.client import connect as connect
    from capgraph.scale.client import open_engine as open_engine
    from capgraph.scale.engine import Engine as Engine
    from capgraph.scale.engine import Handler as Handler
    from capgraph.scale.order import StepOrder as StepOrder
    from capgraph.scale.order import TurnOrder as TurnOrder
    from capgraph.scale.schedules import Schedule as Schedule
    from capgraph.scale.worker import Worker as Worker
    from capgraph.scale.worker import list_workers as list_workers

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.scale.advance": ("Report",),
        "capgraph.scale.client": ("Client", "ThreadStatus", "connect", "open_engine"),
        "capgraph.scale.engine": ("Engine", "Handler"),
        "capgraph.scale.order": ("StepOrder", "TurnOrder"),
        "capgraph.scale.schedules": ("Schedule",),
        "capgraph.scale.worker": ("Worker", "list_workers"),
    },
)
