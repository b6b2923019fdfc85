"""Stage ``acquire``: hold concurrency slots of the process and the capability during an attempt."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from capgraph.base.ports import ApprovalRequest, Attempt
from capgraph.pipeline.step_execution import STOPPED, NextStage, StepExecution


async def acquire(execution: StepExecution, attempt: Attempt, call_next: NextStage) -> Any:
    """Wait for a concurrency slot, run the inner stages, and release the slot.

    A nested execution shares its outer execution's process slot, so it acquires only a
    capability slot.

    Raises:
        CapabilityError: Waiting would cause a deadlock, because the steps that hold the slots
            are waiting for this attempt.
        LimitError: The turn has no attempts left.
    """
    spec, outer, sender = execution.spec, execution.outer, execution.config.dispatcher
    shared_slot: AbstractAsyncContextManager[Any] = nullcontext()
    if sender is not None and spec.max_parallel is not None:
        # The shared slot is held during the short wait for a slot of this process.
        shared_slot = sender.slot(spec.name, spec.max_parallel)
    async with shared_slot:
        execution.context.budget.count_attempt()
        process_limit = execution.config.limits.max_parallel if outer is None else None
        outer_slot = outer.slot if outer is not None else None
        if process_limit is None and spec.max_parallel is None:
            execution.slot = outer_slot
            result = await call_next(execution, attempt)
        else:
            capacity = execution.config.capacity
            execution.slot = await capacity.acquire(
                spec.name, spec.max_parallel, process_limit, outer_slot
            )
            try:
                stopped = execution.should_stop() or execution.context.control.is_draining()
                if not stopped:
                    execution.mark_started()
                result = STOPPED if stopped else await call_next(execution, attempt)
            finally:
                capacity.release(execution.slot)
        if result is STOPPED or isinstance(result, ApprovalRequest):
            # An attempt that waits for a person does not count.
            execution.context.budget.uncount_attempt()
        return result
