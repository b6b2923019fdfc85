"""Fallbacks for capabilities that cannot be called at the moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from capgraph.base import CapabilitySpec
from capgraph.planning.catalog import Available, may_auto_include


def find_unprovided_types(
    name: str, other_names: Iterable[str], specs: Mapping[str, CapabilitySpec], available: Available
) -> list[str]:
    """Return the context types that no capability would provide if one were removed.

    A type still counts as provided if an earlier result is stored and another capability reads
    it.

    Args:
        name: Name of the capability to leave out.
        other_names: Names of the other capabilities in use.
        specs: Declarations by capability name.
        available: Stored context keys by type.

    >>> read = CapabilitySpec("read", "Read it.", provides=("LEVEL",))
    >>> guess = CapabilitySpec("guess", "Guess it.", provides=("LEVEL",))
    >>> find_unprovided_types("read", ["guess"], {"read": read, "guess": guess}, {})
    []
    """
    others = [specs[other] for other in other_names]
    spec = specs[name]
    if not spec.provides:
        return [] if spec.always_active else [name]
    read = {requirement.type for other in others for requirement in other.requires}
    provided = {kind for other in others for kind in other.provides}
    # An earlier result that another capability reads is better than no plan.
    stored = {kind for kind in read if available.get(kind)}
    return [kind for kind in spec.provides if kind not in provided | stored]


def find_fallbacks(
    active: Collection[str],
    unavailable: Collection[str],
    specs: Mapping[str, CapabilitySpec],
    available: Available,
) -> list[str]:
    """Choose fallbacks that provide the same context types as unavailable capabilities.

    Args:
        active: Names of the selected capabilities.
        unavailable: Names of the capabilities that cannot be called.
        specs: Declarations by capability name. Their order breaks ties.
        available: Stored context keys by type.

    >>> read = CapabilitySpec("read", "Read it.", provides=("LEVEL",))
    >>> guess = CapabilitySpec("guess", "Guess it.", provides=("LEVEL",))
    >>> find_fallbacks(["read"], ["read"], {"read": read, "guess": guess}, {})
    ['guess']
    """
    callable_names = [name for name in active if name in specs and name not in unavailable]
    found: list[str] = []
    for name in (name for name in active if name in unavailable):
        for kind in find_unprovided_types(name, [*callable_names, *found], specs, available):
            makers = (n for n, s in specs.items() if kind in s.provides and may_auto_include(s))
            found += [maker for maker in makers if maker not in unavailable][:1]
    return found
