"""Stage ``acquire``: slots of the process and of the capability, held only while a try runs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from capgraph.base.ports import Attempt, Question
from capgraph.pipeline.job import STOPPED, Inner, Job


async def acquire(job: Job, attempt: Attempt, inner: Inner) -> Any:
    """Wait for a slot, holding nothing meanwhile.

    An attempt inside another one runs in that one's slot of the process; it takes only its own
    capability's.

    Raises:
        CapabilityError: The wait would never end: who holds the slots waits for this attempt.
        LimitError: The turn has no tries left.
    """
    spec, outer, sender = job.spec, job.outer, job.equipment.sender
    shared: AbstractAsyncContextManager[Any] = nullcontext()
    if sender is not None and spec.max_parallel is not None:
        # Held while a slot of this process is waited for: that wait is short, and by itself.
        shared = sender.slot(spec.name, spec.max_parallel)
    async with shared:
        job.door.budget.take_attempt()
        whole = job.equipment.limits.max_parallel if outer is None else None
        around = outer.slot if outer is not None else None
        if whole is None and spec.max_parallel is None:
            job.slot = around
            result = await inner(job, attempt)
        else:
            capacity = job.equipment.capacity
            job.slot = await capacity.take(spec.name, spec.max_parallel, whole, around)
            try:
                stopped = job.stopping() or job.door.control.draining()
                if not stopped:
                    job.begin()
                result = STOPPED if stopped else await inner(job, attempt)
            finally:
                capacity.give_back(job.slot)
        if result is STOPPED or isinstance(result, Question):
            # What a person decides about is bounded by the person.
            job.door.budget.give_back_attempt()
        return result
