"""The same graph on many workers: what asks for turns, the engines that carry orders, workers."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.scale.advance import Report as Report
    from framework.scale.client import Client as Client
    from framework.scale.client import ThreadStatus as ThreadStatus
    from framework.scale.client import connect as connect
    from framework.scale.client import open_engine as open_engine
    from framework.scale.engine import Engine as Engine
    from framework.scale.engine import Handler as Handler
    from framework.scale.order import StepOrder as StepOrder
    from framework.scale.order import TurnOrder as TurnOrder
    from framework.scale.schedules import Schedule as Schedule
    from framework.scale.worker import Worker as Worker
    from framework.scale.worker import list_workers as list_workers

__getattr__, __dir__ = contents(__name__)
