"""Catalogs of the capabilities that planning may use, and the matching of results to inputs.

An *input type* is a context type as text, with ``*`` appended if an input takes many values of it.
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
    """Capabilities, nodes, and provided types against which a plan is validated.

    :class:`~capgraph.registry.Registry` and :class:`StaticCatalog` implement it.
    """

    @property
    def capabilities(self) -> Mapping[str, CapabilitySpec]:
        """Capability declarations by name, in the order that breaks ties."""

    @property
    def infrastructure(self) -> Collection[str]:
        """Names of the infrastructure nodes."""

    @property
    def provided_types(self) -> Collection[str]:
        """Context types that the caller supplies."""


@dataclass(frozen=True)
class StaticCatalog:
    """Catalog with a fixed set of capabilities.

    Attributes:
        capabilities: Capability declarations by name.
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
        """Create a catalog from capability declarations, whose order breaks ties."""
        return cls(
            {spec.name: spec for spec in specs},
            frozenset(infrastructure),
            frozenset(provided_types),
        )


MANY_SUFFIX = "*"
"""Suffix of an input type with many values. Single values and a list of the type both satisfy it."""


def required_type(requirement: Requirement) -> str:
    """Return a requirement's input type: its context type, with ``*`` for many values.

    >>> required_type(Requirement("READING", "many"))
    'READING*'
    """
    return requirement.type + MANY_SUFFIX if requirement.cardinality == "many" else requirement.type


def satisfied_types(types: Iterable[str], list_item_types: Mapping[str, str]) -> list[str]:
    """Return the input types that results satisfy. ``*`` marks an input of many values.

    Args:
        types: Context types of the results.
        list_item_types: Item type of each context type that is a list of contexts.

    >>> satisfied_types(["READINGS"], {"READINGS": "READING"})
    ['READINGS', 'READINGS*', 'READING*']
    >>> satisfied_types(["READING[]"], {})
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


def types_satisfied_by(spec: CapabilitySpec) -> list[str]:
    """Return the input types that a capability's outputs satisfy."""
    return satisfied_types(spec.provides, list_item_types(spec.context_types))


def available_contexts(available: Available, catalog: Catalog) -> dict[str, list[str]]:
    """Group the keys of stored contexts by the input types that the contexts satisfy."""
    items = list_item_types(kind for s in catalog.capabilities.values() for kind in s.context_types)
    found: dict[str, list[str]] = {}
    for kind, keys in available.items():
        for input_type in satisfied_types([kind], items) if keys else ():
            found.setdefault(input_type, []).extend(keys)
    return found


def is_active(name: str, spec: CapabilitySpec, active: Collection[str] | None) -> bool:
    """Return True if a plan may use a capability.

    Args:
        name: Name of the capability.
        spec: Declarations of the capability.
        active: Names of the selected capabilities. ``None`` allows every capability.
    """
    return active is None or name in active or spec.always_active


def may_auto_include(spec: CapabilitySpec) -> bool:
    """Return True if a plan may include a capability that was not selected.

    The capability must be harmless and have no required parameters, because context types
    cannot determine the values of parameters.
    """
    return is_harmless(spec) and not required_parameters(spec.parameters)


def is_harmless(spec: CapabilitySpec) -> bool:
    """Return True if a capability has no effect or cannot run without approval."""
    return spec.effect == "none" or bool(spec.requires_approval)
