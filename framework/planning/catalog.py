"""Catalogs: what planning knows about capabilities, and which types satisfy which inputs.

A *need* is a context type as text, with ``*`` appended if an input takes many values of the type.
"""

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
"""Infrastructure nodes that end a turn. A plan names one of them, as its last step."""

Available = Mapping[str, Collection[str]]
"""Stored context keys by context type. ``capability_context_data`` has this form."""


class Catalog(Protocol):
    """Capabilities, infrastructure nodes, and provided types that a plan is validated against.

    :class:`~capgraph.registry.Registry` and :class:`StaticCatalog` implement it.
    """

    @property
    def capabilities(self) -> Mapping[str, CapabilitySpec]:
        """The capabilities by name. Their order breaks ties."""

    @property
    def infrastructure(self) -> Collection[str]:
        """Names of the infrastructure nodes."""

    @property
    def provided_types(self) -> Collection[str]:
        """Context types that the caller supplies."""


@dataclass(frozen=True)
class StaticCatalog:
    """Catalog with a fixed list of capabilities.

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
        """Return a catalog of capability declarations, in the given order."""
        return cls(
            {spec.name: spec for spec in specs},
            frozenset(infrastructure),
            frozenset(provided_types),
        )


MANY_SUFFIX = "*"
"""Suffix of a need for many values of a type. Single values and a list of the type both satisfy it."""


def required_need(need: Requirement) -> str:
    """Return the need of an input.

    >>> required_need(Requirement("READING", "many"))
    'READING*'
    """
    return need.type + MANY_SUFFIX if need.cardinality == "many" else need.type


def provided_needs(types: Iterable[str], list_item_types: Mapping[str, str]) -> list[str]:
    """Return every need that results of the given types satisfy.

    Args:
        types: The context types of the results.
        list_item_types: Item type of each context type that is a list of contexts.

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
    """Return every need that a capability satisfies."""
    return provided_needs(spec.provides, list_item_types(spec.context_types))


def available_contexts(available: Available, catalog: Catalog) -> dict[str, list[str]]:
    """Return the keys of the stored contexts by the needs that they satisfy."""
    items = list_item_types(kind for s in catalog.capabilities.values() for kind in s.context_types)
    found: dict[str, list[str]] = {}
    for kind, keys in available.items():
        for need in provided_needs([kind], items) if keys else ():
            found.setdefault(need, []).extend(keys)
    return found


def is_active(name: str, spec: CapabilitySpec, active: Collection[str] | None) -> bool:
    """Return True if a capability was selected, is always active, or no selection was made."""
    return active is None or name in active or spec.always_active


def may_auto_include(spec: CapabilitySpec) -> bool:
    """Return True if a capability can be planned without having been selected.

    It must be harmless, and none of its parameters may be required: types alone do not determine them.
    """
    return is_harmless(spec) and not required_parameters(spec.parameters)


def is_harmless(spec: CapabilitySpec) -> bool:
    """Return True if a capability has no effect, or requires approval."""
    return spec.effect == "none" or bool(spec.requires_approval)
