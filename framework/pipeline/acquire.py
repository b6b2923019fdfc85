"""Stage ``acquire``: slots of the process and of the capability, held only while a try runs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from capgraph.base.ports import ApprovalRequest, Attempt
from capgraph.pipeline.step_execution import STOPPED, NextStage, StepExecution


async def acquire(job: StepExecution, attempt: Attempt, inner: NextStage) -> Any:
    """Wait for a slot, holding nothing meanwhile.

    An attempt inside another one runs in that one's slot of the process; it takes only its own
    capability's.

    Raises:
        CapabilityError: The wait would never end: who holds the slots waits for this attempt.
        LimitError: The turn has no tries left.
    """
    spec, outer, sender = job.spec, job.outer, job.config.dispatcher
    shared: AbstractAsyncContextManager[Any] = nullcontext()
    if sender is not None and spec.max_parallel is not None:
        # Held while a slot of this process is waited for: that wait is short, and by itself.
        shared = sender.slot(spec.name, spec.max_parallel)
    async with shared:
        job.context.budget.count_attempt()
        whole = job.config.limits.max_parallel if outer is None else None
        around = outer.slot if outer is not None else None
        if whole is None and spec.max_parallel is None:
            job.slot = around
            result = await inner(job, attempt)
        else:
            capacity = job.config.capacity
            job.slot = await capacity.take(spec.name, spec.max_parallel, whole, around)
            try:
                stopped = job.should_stop() or job.context.control.is_draining()
                if not stopped:
                    job.mark_started()
                result = STOPPED if stopped else await inner(job, attempt)
            finally:
                capacity.release(job.slot)
        if result is STOPPED or isinstance(result, ApprovalRequest):
            # What a person decides about is bounded by the person.
            job.context.budget.uncount_attempt()
        return result
