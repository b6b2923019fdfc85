"""Capabilities that fail on purpose, to test what the agent does then."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, ClassVar, cast

from capgraph.base import BaseCapability, capability_node

Fault = BaseException | type[BaseException] | float | None
"""An exception to raise, a delay in seconds before the real work, or ``None`` for no fault."""


class FaultScript:
    """What the calls of one capability meet, in order; after the last entry nothing more.

    Attributes:
        calls: How many calls there were.
    """

    def __init__(self, faults: tuple[Fault, ...], *, forever: Fault = None) -> None:
        self._faults = faults
        self._forever = forever
        self.calls: int = 0

    async def apply_next(self) -> None:
        """Count a call and do what stands for it."""
        place, self.calls = self.calls, self.calls + 1
        fault = self._faults[place] if place < len(self._faults) else self._forever
        if fault is None:
            return
        if isinstance(fault, (int, float)):
            await asyncio.sleep(fault)
            return
        raise fault


class FaultyCapability(BaseCapability):
    """What :func:`with_faults` returns: the capability that was given, and its script.

    Attributes:
        faults: The script; counts the calls.
    """

    faults: ClassVar[FaultScript]


def with_faults(
    capability: type[Any], *faults: Fault, forever: Fault = None
) -> type[FaultyCapability]:
    """Return a capability that meets faults before it does its work.

    It has the name and the declarations of the original, so it can be registered in its place.
    The attribute ``faults`` counts the calls. Each returned class has a script of its own.

    Args:
        capability: A decorated capability of any form.
        *faults: What the first, second … call meets: an exception, seconds to wait, or ``None``.
        forever: What all later calls meet.

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
    made = capability_node(type(original.__name__, (original,), namespace))
    return cast("type[FaultyCapability]", made)
