"""Stage ``reserve``: slots of the process and of the capability, held only while a try runs."""

from __future__ import annotations

from typing import Any

from framework.base.errors import CapabilityError, ErrorSeverity
from framework.base.ports import Attempt, Question
from framework.pipeline.job import STOPPED, Inner, Job


async def reserve(job: Job, attempt: Attempt, inner: Inner) -> Any:
    """Wait for a slot, holding nothing meanwhile.

    An attempt inside another one runs in that one's slot of the process; it takes only its own
    capability's.

    Raises:
        CapabilityError: A capability at its limit asks for itself, which would wait for ever.
        LimitError: The turn has no tries left.
    """
    spec, limits = job.spec, job.runner.limits
    inside = 0
    outer = job.outer
    while outer is not None:
        inside += outer.spec.name == spec.name
        outer = outer.outer
    if spec.max_parallel is not None and inside >= spec.max_parallel:
        raise CapabilityError(
            f"{spec.name!r} asks for itself inside its own step {attempt.key!r}, and all of its"
            f" {spec.max_parallel} slot(s) are taken by the steps around it.",
            fix="Raise max_parallel of the capability, or do the inner work without asking for it.",
            severity=ErrorSeverity.FATAL,
        )
    job.door.budget.take_attempt()
    whole = limits.max_parallel if job.outer is None else None
    if whole is None and spec.max_parallel is None:
        result = await inner(job, attempt)
    else:
        capacity = job.runner.capacity
        await capacity.take(spec.name, spec.max_parallel, whole)
        try:
            stopped = job.door.stopping() or job.door.draining()
            result = STOPPED if stopped else await inner(job, attempt)
        finally:
            capacity.give_back(spec.name, whole)
    if result is STOPPED or isinstance(result, Question):
        # What a person decides about is bounded by the person.
        job.door.budget.give_back_attempt()
    return result
