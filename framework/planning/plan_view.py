"""Analysis of a plan against a catalog: which step supplies which input."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from capgraph.base import CapabilityContext, CapabilitySpec, Requirement
from capgraph.base.value_context import LIST_SUFFIX
from capgraph.planning.catalog import (
    MANY_SUFFIX,
    TERMINAL_STEPS,
    Available,
    Catalog,
    available_contexts,
    is_active,
    required_type,
    satisfied_types,
    types_satisfied_by,
)
from capgraph.planning.graph_algorithms import reachable_from
from capgraph.planning.plan_access import step_capability
from capgraph.planning.references import (
    FROM,
    StepRead,
    element_name,
    reference_fields,
    step_reads,
    uses_element,
)
from capgraph.planning.schema_shapes import Shape, result_shape


@dataclass(frozen=True, slots=True)
class CapabilityContract:
    """Precomputed input and output types of a capability.

    An input type is the name of a context type, followed by ``*`` if the input accepts multiple
    values.

    Attributes:
        spec: Declarations of the capability.
        supplied_types: Input types that the capability's results satisfy.
        requirements: Requirements by input label (type or role).
        type_by_label: Input types by input label.
    """

    spec: CapabilitySpec
    supplied_types: frozenset[str]
    requirements: dict[str, Requirement]
    type_by_label: dict[str, str]


class PlanView:
    """Index of a plan's steps by context key, with the results that each step reads.

    Attributes:
        steps: Steps of the plan. A malformed step may have any type.
        keys: Context key of each step, or ``None`` if it is not a string.
        positions: Positions of the steps, by context key.
        contracts: Contract of each step's capability, or ``None`` if the capability is unknown.
        supplied_types: Input types that each step's result satisfies. ``None`` for an unknown
            capability matches every input type, so that the error is not reported twice.
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
        self.positions: dict[str, list[int]] = {}
        self.contracts: list[CapabilityContract | None] = []
        self.supplied_types: list[frozenset[str] | None] = []
        self._shapes: dict[str, Shape] = {}
        contracts_by_name: dict[str, CapabilityContract] = {}
        for index, step in enumerate(steps):
            fields = step if isinstance(step, dict) else {}
            key = fields.get("context_key")
            usable = key if isinstance(key, str) and key else None
            self.keys.append(usable)
            if usable is not None:
                self.positions.setdefault(usable, []).append(index)
            self._add_contract(fields, contracts_by_name)

    def _add_contract(
        self, fields: dict[str, Any], contracts_by_name: dict[str, CapabilityContract]
    ) -> None:
        name = fields.get("capability")
        contract = contracts_by_name.get(name) if isinstance(name, str) else None
        spec = self.catalog.capabilities.get(name) if isinstance(name, str) else None
        if contract is None and spec is not None:
            requirements = {item.label: item for item in spec.requires}
            types = {
                label: required_type(requirement) for label, requirement in requirements.items()
            }
            contract = contracts_by_name[spec.name] = CapabilityContract(
                spec, frozenset(types_satisfied_by(spec)), requirements, types
            )
        supplied_types = contract.supplied_types if contract is not None else None
        if contract is not None and fields.get("for_each"):
            supplied_types = frozenset(satisfied_types(_list_types(contract), {}))
        if isinstance(name, str) and (
            name in TERMINAL_STEPS or name in self.catalog.infrastructure
        ):
            supplied_types = frozenset()
        self.contracts.append(contract)
        self.supplied_types.append(supplied_types)

    @cached_property
    def stored_by_type(self) -> dict[str, list[str]]:
        """Keys of the stored contexts, grouped by the input type that they satisfy."""
        return available_contexts(self.available, self.catalog)

    @cached_property
    def reads(self) -> list[list[StepRead]]:
        """References to results in each step's inputs, parameters, conditions, and lists."""
        known = self.positions.keys() | {key for keys in self.available.values() for key in keys}
        return [list(step_reads(step, known)) for step in self.steps]

    def type_of_input(self, index: int, label: str) -> str:
        """Return the context type that a step's input accepts, given the input's label."""
        contract = self.contracts[index]
        if contract is None:
            # The answer accepts single results and lists of results.
            closing = label != FROM and step_capability(self.steps[index]) in TERMINAL_STEPS
            return label + MANY_SUFFIX if closing else label
        # An undeclared input accepts both as well.
        return contract.type_by_label.get(label, label if label == FROM else label + MANY_SUFFIX)

    def step_provides(self, position: int, input_type: str) -> bool:
        """Return True if a step's result satisfies an input type.

        A reference to a result accepts any type.
        """
        types = self.supplied_types[position]
        return types is None or input_type in types or (input_type == FROM and bool(types))

    def is_stored(self, input_type: str, key: str) -> bool:
        """Return True if a context stored under a key satisfies an input type."""
        return key in (
            self.stored_by_type.get(input_type, ())
            if input_type != FROM
            else self.stored_types(key) and [key]
        )

    def source_of(self, index: int, read: StepRead) -> int | None:
        """Return the position of the step that supplies an input, or ``None``.

        The nearest earlier step takes precedence over a stored context, which takes precedence over
        a later step.

        Args:
            index: Position of the step that reads the input.
            read: The input or reference.
        """
        input_type = self.type_of_input(index, read.label)
        fitting = [
            place
            for place in self.positions.get(read.key, ())
            if self.step_provides(place, input_type)
        ]
        if before := [place for place in fitting if place < index]:
            return before[-1]
        return None if not fitting or self.is_stored(input_type, read.key) else fitting[0]

    @cached_property
    def sources(self) -> list[set[int]]:
        """Positions of the steps that each step depends on, in the order of the plan."""
        found = []
        for index, reads in enumerate(self.reads):
            places = (self.source_of(index, read) for read in reads)
            found.append({place for place in places if place is not None})
        return found

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Positions of the steps that depend on each step.

        A repair that adds an input to a step must update this mapping.
        """
        found: dict[int, list[int]] = {}
        for reader, places in enumerate(self.sources):
            for place in places:
                found.setdefault(place, []).append(reader)
        return found

    def possible_suppliers(self, index: int, input_type: str) -> list[int]:
        """Return the positions of the steps that can supply an input without creating a cycle."""
        behind = reachable_from([index], self.readers)
        return [place for place in self.steps_by_type.get(input_type, ()) if place not in behind]

    def unique_supplier(
        self, index: int, input_type: str, excluded_keys: Collection[str | None] = ()
    ) -> str | None:
        """Return the only context key that can supply an input, or ``None`` if it is ambiguous.

        Earlier steps take precedence over stored contexts, which take precedence over later steps.

        Args:
            index: Position of the step that reads the input.
            input_type: Type of the input.
            excluded_keys: Keys that must not be used.
        """
        steps = [
            place
            for place in self.possible_suppliers(index, input_type)
            if self.keys[place] not in excluded_keys
        ]
        stored = [
            key for key in self.stored_by_type.get(input_type, ()) if key not in excluded_keys
        ]
        before = [place for place in steps if place < index]
        if before or (steps and not stored):
            chosen = before or steps
            key = self.keys[chosen[0]] if len(chosen) == 1 else None
            return key if key is not None and len(self.positions[key]) == 1 else None
        return stored[0] if len(stored) == 1 and not steps else None

    def unique_input(self, index: int, label: str) -> str | None:
        """Return the only context key that can supply a step's input, or ``None``.

        If several inputs have the same type but different roles, all the others must already be
        supplied.
        """
        named = {read.label: read.key for read in self.reads[index]}
        others = self.sibling_inputs(index, label)
        if not named.keys() >= set(others):
            return None
        return self.unique_supplier(
            index, self.type_of_input(index, label), [named[other] for other in others]
        )

    def sibling_inputs(self, index: int, label: str) -> list[str]:
        """Return the labels of a step's other inputs that have the same type as an input."""
        contract = self.contracts[index]
        if contract is None or label not in contract.requirements:
            return []
        kind = contract.requirements[label].type
        return [
            other for other, n in contract.requirements.items() if n.type == kind and other != label
        ]

    @cached_property
    def context_types(self) -> dict[str, type[CapabilityContext]]:
        """Context classes that the capabilities declare, by type name."""
        specs = self.catalog.capabilities.values()
        return {kind.CONTEXT_TYPE: kind for spec in specs for kind in spec.context_types}

    @cached_property
    def steps_by_type(self) -> dict[str, list[int]]:
        """Positions of the steps whose results satisfy each input type."""
        found: dict[str, list[int]] = {}
        for place, types in enumerate(self.supplied_types):
            for kind in types or ():
                found.setdefault(kind, []).append(place)
        return found

    @cached_property
    def capabilities_by_type(self) -> dict[str, list[str]]:
        """Names of the active capabilities whose results satisfy each input type."""
        found: dict[str, list[str]] = {}
        for name, spec in self.catalog.capabilities.items():
            if is_active(name, spec, self.active):
                for kind in dict.fromkeys(types_satisfied_by(spec)):
                    found.setdefault(kind, []).append(name)
        return found

    def result_types(self, position: int) -> list[str] | None:
        """Return the context types of a step's result, or ``None`` for an unknown capability."""
        contract = self.contracts[position]
        if contract is None or not self.steps[position].get("for_each"):
            return None if contract is None else list(contract.spec.provides)
        return _list_types(contract)

    def result_shapes(self, index: int, read: StepRead) -> list[Shape] | None:
        """Return the JSON schemas of the results that a reference can read, or ``None`` if unknown."""
        place = self.source_of(index, read)
        kinds = self.stored_types(read.key) if place is None else self.result_types(place)
        if kinds is None or any(self.context_class(kind) is None for kind in kinds):
            return None
        return [self.shape_of_type(kind) for kind in kinds]

    def element_shape(self, index: int) -> Shape:
        """Return the JSON schema of the elements in a step's ``for_each`` list.

        An unknown schema is returned as an empty schema.
        """
        for read in self.reads[index]:
            if read.path == ("for_each", "of"):
                fields = reference_fields(self.steps[index]["for_each"]["of"], read.key)
                lists = [one.at_path(fields) for one in self.result_shapes(index, read) or ()]
                found = [one.at_path((0,)) for one in lists if one is not None]
                return next((one for one in found if one is not None), Shape({}))
        return Shape({})

    def accepts_element(self, index: int, label: str) -> bool:
        """Return True if an input can accept an element of its step's ``for_each`` list."""
        context_class = self.context_class(
            self.type_of_input(index, label).removesuffix(MANY_SUFFIX)
        )
        return context_class is None or self.element_shape(index).is_compatible_with(
            result_shape(context_class, "validation")
        )

    def unused_element_name(self, index: int, label: str) -> str | None:
        """Return the name of the ``for_each`` element if an input could read it.

        Returns ``None`` if the element is already used or does not fit the input.

        Args:
            index: Position of the step.
            label: Label of the input.
        """
        step = self.steps[index]
        alias, known = (
            element_name(step),
            {form.json_type for form in self.element_shape(index).alternatives()},
        )
        if alias is None or known != {"object"} or uses_element(step):
            return None
        return alias if self.accepts_element(index, label) else None

    def context_class(self, type_name: str) -> type[CapabilityContext] | None:
        """Return the class of a context type, or of the items if the type is a list.

        Returns ``None`` if no capability declares the class.
        """
        return self.context_types.get(type_name.removesuffix(LIST_SUFFIX))

    def shape_of_type(self, type_name: str) -> Shape:
        """Return the JSON schema of a context type whose class is known."""
        found = self._shapes.get(type_name)
        if found is None:
            whole = result_shape(self.context_types[type_name.removesuffix(LIST_SUFFIX)])
            listed = {"type": "array", "items": whole.schema}
            found = Shape(listed, whole.definitions) if type_name.endswith(LIST_SUFFIX) else whole
            self._shapes[type_name] = found
        return found

    def stored_types(self, key: str) -> list[str]:
        """Return the types of the contexts that are stored under a key."""
        return [name for name, keys in self.available.items() if key in keys]

    def supply_hint(self, input_type: str) -> str:
        """Suggest how to supply a missing input, as text for an error message."""
        kind = input_type.removesuffix(MANY_SUFFIX)
        places = self.steps_by_type.get(input_type, [])[:6]
        keys = [key for place in places if (key := self.keys[place]) is not None]
        keys += [key for key in self.stored_by_type.get(input_type, ()) if key not in keys]
        if keys:
            return f"name one that supplies {kind}: {join_names(keys)}"
        if kind in self.catalog.provided_types:
            return f"{kind} comes from the caller, who supplied none: ask for it"
        if makers := self.capabilities_by_type.get(input_type):
            return f"plan a step before it that supplies {kind}: {join_names(makers)}"
        return f"nothing here supplies {join_names([kind])}: plan without it"


def _list_types(contract: CapabilityContract) -> list[str]:
    return [kind + LIST_SUFFIX for kind in contract.spec.provides]


def join_names(names: Collection[str]) -> str:
    """Join up to five names with commas and append the number of remaining names.

    >>> join_names(["a", "b"]), join_names([]), join_names([*"abcdefg"])
    ('a, b', 'nothing', 'a, b, c, d, e and 2 more')
    """
    ordered = sorted(names) if isinstance(names, (set, frozenset)) else list(names)
    shown = [name if len(name) <= 60 else name[:57] + "..." for name in ordered[:5]]
    rest = len(ordered) - len(shown)
    return (", ".join(shown) or "nothing") + (f" and {rest} more" if rest else "")
