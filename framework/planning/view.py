"""A plan read against a catalog: who supplies what, and under which name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from framework.base import CapabilityContext, CapabilitySpec
from framework.planning.catalog import CLOSING, Available, Catalog, is_active


@dataclass(frozen=True, slots=True)
class Contract:
    """A capability's declaration in the form that inner loops read fastest."""

    spec: CapabilitySpec
    provides: frozenset[str]
    requires: dict[str, str]


class PlanView:
    """What the steps of one plan supply and are called.

    Attributes:
        steps: The steps as they stand in the plan; not all need be objects.
        keys: Each step's context key, or ``None`` when it has none that is text.
        places: The positions of the steps of each key.
        contracts: Each step's capability, or ``None`` when it has no known one.
        supplies: The context types of each step's result; ``None`` when the capability is not
            known, which fits every type: one fault is not reported again as another.
    """

    def __init__(
        self,
        steps: list[Any],
        catalog: Catalog,
        available: Available,
        active: Collection[str] | None,
    ) -> None:
        self.steps = steps
        self.catalog = catalog
        self.available = available
        self.active = active
        self.keys: list[str | None] = []
        self.places: dict[str, list[int]] = {}
        self.contracts: list[Contract | None] = []
        self.supplies: list[frozenset[str] | None] = []
        known: dict[str, Contract] = {}
        for index, step in enumerate(steps):
            fields = step if isinstance(step, dict) else {}
            key = fields.get("context_key")
            usable = key if isinstance(key, str) and key else None
            self.keys.append(usable)
            if usable is not None:
                self.places.setdefault(usable, []).append(index)
            self._read_capability(fields, known)

    def _read_capability(self, step: dict[str, Any], known: dict[str, Contract]) -> None:
        name = step.get("capability")
        contract = None
        supplied: frozenset[str] | None = None
        if isinstance(name, str):
            contract = known.get(name)
            if contract is None and (spec := self.catalog.capabilities.get(name)) is not None:
                contract = known[name] = Contract(
                    spec,
                    frozenset(spec.provides),
                    {need.type: need.cardinality for need in spec.requires},
                )
            if contract is not None:
                supplied = contract.provides
            elif name in CLOSING or name in self.catalog.infrastructure:
                supplied = frozenset()
        self.contracts.append(contract)
        self.supplies.append(supplied)

    def fits(self, place: int, context_type: str) -> bool:
        """Tell whether a step's result can be of a type."""
        supplied = self.supplies[place]
        return supplied is None or context_type in supplied

    def resolve(self, index: int, context_type: str, key: str) -> int | None:
        """Find the step that an input reads; ``None`` for a stored context or for nothing.

        A plan is read in its order: the nearest step before, else what is stored already, and
        only then a step that comes too late.
        """
        fitting = [place for place in self.places.get(key, ()) if self.fits(place, context_type)]
        if before := [place for place in fitting if place < index]:
            return before[-1]
        if not fitting or key in self.available.get(context_type, ()):
            return None
        return fitting[0]

    @cached_property
    def context_types(self) -> dict[str, type[CapabilityContext]]:
        """Classes of the context types, as far as the capabilities name them."""
        specs = self.catalog.capabilities.values()
        return {kind.CONTEXT_TYPE: kind for spec in specs for kind in spec.context_types}

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """Positions of the steps that supply each type."""
        found: dict[str, list[int]] = {}
        for place, supplied in enumerate(self.supplies):
            for context_type in supplied or ():
                found.setdefault(context_type, []).append(place)
        return found

    @cached_property
    def makers(self) -> dict[str, list[str]]:
        """Names of the usable capabilities that provide each type."""
        found: dict[str, list[str]] = {}
        for name, spec in self.catalog.capabilities.items():
            if is_active(name, spec, self.active):
                for context_type in dict.fromkeys(spec.provides):
                    found.setdefault(context_type, []).append(name)
        return found

    def stored_as(self, key: str) -> list[str]:
        """Name the context types under which a key is stored."""
        return [name for name, keys in self.available.items() if key in keys]

    def how_to_get(self, context_type: str) -> str:
        """Say where a context of a type could come from."""
        places = self.by_type.get(context_type, [])[:6]
        keys = [key for place in places if (key := self.keys[place]) is not None]
        keys += [key for key in self.available.get(context_type, ()) if key not in keys]
        if keys:
            return f"name one that supplies {context_type}: {listing(keys)}"
        if context_type in self.catalog.given:
            return f"{context_type} comes from the caller, who supplied none: ask for it"
        if makers := self.makers.get(context_type):
            return f"plan a step before it that supplies {context_type}: {listing(makers)}"
        return f"nothing here supplies {listing([context_type])}: plan without it"


def listing(names: Collection[str]) -> str:
    """Write out a few names and count the rest.

    >>> listing(["a", "b"]), listing([]), listing([*"abcdefg"])
    ('a, b', 'nothing', 'a, b, c, d, e and 2 more')
    """
    ordered = sorted(names) if isinstance(names, (set, frozenset)) else list(names)
    shown = [name if len(name) <= 60 else name[:57] + "..." for name in ordered[:5]]
    rest = len(ordered) - len(shown)
    return (", ".join(shown) or "nothing") + (f" and {rest} more" if rest else "")
