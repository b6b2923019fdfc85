"""Doing without a capability that cannot be called now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from capgraph.base import CapabilitySpec
from capgraph.planning.catalog import Available, may_auto_include


def unprovided_types(
    name: str, other_names: Iterable[str], specs: Mapping[str, CapabilitySpec], available: Available
) -> list[str]:
    """Name what nobody brings without a capability: types, or itself when it gives none.

    Args:
        name: The capability.
        other_names: Those that take part.
        specs: What each declares.
        available: Stored context keys by type.

    >>> read = CapabilitySpec("read", "Read it.", provides=("LEVEL",))
    >>> guess = CapabilitySpec("guess", "Guess it.", provides=("LEVEL",))
    >>> unprovided_types("read", ["guess"], {"read": read, "guess": guess}, {})
    []
    """
    there = [specs[other] for other in other_names]
    spec = specs[name]
    if not spec.provides:
        return [] if spec.always_active else [name]
    # Of what another one reads there may be an older result, which is better than no plan.
    read = {need.type for other in there for need in other.requires}
    given = {kind for other in there for kind in other.provides}
    stored = {kind for kind in read if available.get(kind)}
    return [kind for kind in spec.provides if kind not in given | stored]


def fallback_capabilities(
    active: Collection[str],
    unavailable: Collection[str],
    specs: Mapping[str, CapabilitySpec],
    available: Available,
) -> list[str]:
    """Name what can be planned in place of capabilities that cannot be called.

    Args:
        active: What was chosen.
        unavailable: What cannot be called.
        specs: What each declares; their order breaks ties.
        available: Stored context keys by type.

    >>> read = CapabilitySpec("read", "Read it.", provides=("LEVEL",))
    >>> guess = CapabilitySpec("guess", "Guess it.", provides=("LEVEL",))
    >>> fallback_capabilities(["read"], ["read"], {"read": read, "guess": guess}, {})
    ['guess']
    """
    there = [name for name in active if name in specs and name not in unavailable]
    found: list[str] = []
    for name in (name for name in active if name in unavailable):
        for kind in unprovided_types(name, [*there, *found], specs, available):
            makers = (n for n, s in specs.items() if kind in s.provides and may_auto_include(s))
            found += [maker for maker in makers if maker not in unavailable][:1]
    return found
