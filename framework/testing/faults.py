"""Fault injection for tests: capabilities that fail or stall on purpose."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, ClassVar, cast

from capgraph.base import BaseCapability, capability_node

Fault = BaseException | type[BaseException] | float | None
"""Exception to raise, delay in seconds before the call, or ``None`` for no fault."""


class FaultScript:
    """Sequence of faults for the calls of one capability. ``forever`` applies to all later calls.

    Attributes:
        calls: Number of calls so far.
    """

    def __init__(self, faults: tuple[Fault, ...], *, forever: Fault = None) -> None:
        self._faults = faults
        self._forever = forever
        self.calls: int = 0

    async def apply_next(self) -> None:
        """Count a call, and apply its fault: raise the exception or wait for the delay."""
        index, self.calls = self.calls, self.calls + 1
        fault = self._faults[index] if index < len(self._faults) else self._forever
        if fault is None:
            return
        if isinstance(fault, (int, float)):
            await asyncio.sleep(fault)
            return
        raise fault


class FaultyCapability(BaseCapability):
    """Capability with injected faults, created by :func:`with_faults`.

    Attributes:
        faults: Faults and number of calls.
    """

    faults: ClassVar[FaultScript]


def with_faults(
    capability: type[Any], *faults: Fault, forever: Fault = None
) -> type[FaultyCapability]:
    """Return a capability that applies faults before it calls the original one.

    It has the name and declarations of the original, so it can be registered in its place. Each
    returned class has its own faults and call counter.

    Args:
        capability: Decorated capability in any form.
        *faults: Faults of the first calls, in order: an exception, a delay in seconds, or ``None``.
        forever: Fault of all later calls.

    >>> from capgraph.base import CapabilityContext, capability_node
    >>> from capgraph.testing import run_capability
    >>> class Reading(CapabilityContext):
    ...     value: float
    >>> @capability_node
    ... async def measure() -> Reading:
    ...     '''Measure once.'''
    ...     return Reading(value=1.0)
    >>> flaky = with_faults(measure, ConnectionError("line is down"))
    >>> async def try_twice():
    ...     try:
    ...         await run_capability(flaky)
    ...     except ConnectionError as exc:
    ...         print(exc)
    ...     return (await run_capability(flaky)).output
    >>> asyncio.run(try_twice())
    line is down
    Reading(value=1.0)
    >>> flaky.faults.calls
    2
    """
    script = FaultScript(faults, forever=forever)
    original: Any = capability
    execute = original.execute

    @functools.wraps(execute)
    async def faulty(*args: Any, **kwargs: Any) -> Any:
        await script.apply_next()
        return await execute(*args, **kwargs)

    static = isinstance(inspect.getattr_static(original, "execute"), staticmethod)
    namespace = {
        "execute": staticmethod(faulty) if static else faulty,
        "faults": script,
        "__annotations__": {"faults": ClassVar[FaultScript]},
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    faulty_class = capability_node(type(original.__name__, (original,), namespace))
    return cast("type[FaultyCapability]", faulty_class)
