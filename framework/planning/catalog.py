"""What planning needs to know about the capabilities at hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from capgraph.base import CapabilitySpec, Requirement
from capgraph.base.value_context import LIST_SUFFIX, list_item_types
from capgraph.planning.parameters import required_parameters

RESPOND = "respond"
CLARIFY = "clarify"
TERMINAL_STEPS = frozenset({RESPOND, CLARIFY})
"""Infrastructure nodes that a plan may name, once, as its last step."""

Available = Mapping[str, Collection[str]]
"""Stored context keys by context type; ``capability_context_data`` itself is one."""


class Catalog(Protocol):
    """The capabilities, node names and given types that a plan is read against.

    The registry is one; :class:`StaticCatalog` is another.
    """

    @property
    def capabilities(self) -> Mapping[str, CapabilitySpec]:
        """The capabilities by name; their order breaks ties."""

    @property
    def infrastructure(self) -> Collection[str]:
        """Names of the infrastructure nodes."""

    @property
    def provided_types(self) -> Collection[str]:
        """Context types that the caller supplies."""


@dataclass(frozen=True)
class StaticCatalog:
    """A catalog that is written down instead of discovered.

    Attributes:
        capabilities: The capabilities by name.
        infrastructure: Names of the infrastructure nodes.
        provided_types: Context types that the caller supplies.

    >>> from capgraph.base import CapabilitySpec
    >>> catalog = StaticCatalog.of(CapabilitySpec("fetch", "Fetch it.", provides=("DATA",)))
    >>> sorted(catalog.capabilities)
    ['fetch']
    """

    capabilities: Mapping[str, CapabilitySpec]
    infrastructure: Collection[str] = field(default=TERMINAL_STEPS)
    provided_types: Collection[str] = ()

    @classmethod
    def of(
        cls,
        *specs: CapabilitySpec,
        provided_types: Iterable[str] = (),
        infrastructure: Iterable[str] = TERMINAL_STEPS,
    ) -> StaticCatalog:
        """Build a catalog from descriptions, kept in the order given."""
        return cls(
            {spec.name: spec for spec in specs},
            frozenset(infrastructure),
            frozenset(provided_types),
        )


MANY_SUFFIX = "*"
"""Marks a need of many of a type, which a list of that type meets as well as single ones."""


def required_need(need: Requirement) -> str:
    """Name what an input needs, as :func:`supplied` names what there is.

    >>> required_need(Requirement("READING", "many"))
    'READING*'
    """
    return need.type + MANY_SUFFIX if need.cardinality == "many" else need.type


def provided_needs(types: Iterable[str], list_item_types: Mapping[str, str]) -> list[str]:
    """Name every need that results of some types can meet.

    Args:
        types: The context types of the results.
        list_item_types: The types of the items of those that are lists of contexts.

    >>> provided_needs(["READINGS"], {"READINGS": "READING"})
    ['READINGS', 'READINGS*', 'READING*']
    >>> provided_needs(["READING[]"], {})
    ['READING[]', 'READING[]*', 'READING*']
    """
    found = []
    for kind in types:
        item = (
            kind.removesuffix(LIST_SUFFIX)
            if kind.endswith(LIST_SUFFIX)
            else list_item_types.get(kind)
        )
        found += [kind, kind + MANY_SUFFIX, *([] if item is None else [item + MANY_SUFFIX])]
    return found


def needs_provided_by(spec: CapabilitySpec) -> list[str]:
    """Name every need that a capability can meet."""
    return provided_needs(spec.provides, list_item_types(spec.context_types))


def available_contexts(available: Available, catalog: Catalog) -> dict[str, list[str]]:
    """Return the keys of the stored contexts by the needs that they meet."""
    items = list_item_types(kind for s in catalog.capabilities.values() for kind in s.context_types)
    found: dict[str, list[str]] = {}
    for kind, keys in available.items():
        for need in provided_needs([kind], items) if keys else ():
            found.setdefault(need, []).extend(keys)
    return found


def is_active(name: str, spec: CapabilitySpec, active: Collection[str] | None) -> bool:
    """Tell whether a capability may be used: selected, always active, or no selection made."""
    return active is None or name in active or spec.always_active


def may_auto_include(spec: CapabilitySpec) -> bool:
    """Tell whether a capability may be planned although nobody asked for it.

    One that changes the world is only planned by whoever selected it, unless a person must
    agree before it runs; one whose parameters must be chosen cannot be planned by types alone.
    """
    return is_harmless(spec) and not required_parameters(spec.parameters)


def is_harmless(spec: CapabilitySpec) -> bool:
    """Return whether a capability has no effect, or a person must approve it first."""
    return spec.effect == "none" or bool(spec.requires_approval)
