"""Finding everything that is wrong with a plan, before it runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from framework.base import CapabilitySpec, PlannedStep
from framework.planning import problems as codes
from framework.planning.catalog import CLOSING, Available, Catalog, is_active
from framework.planning.graphs import circles
from framework.planning.names import closest_name
from framework.planning.parameters import parameter_faults
from framework.planning.problems import Path, Problem, make_problem, preview
from framework.planning.reading import MAX_KEY_LENGTH, is_key
from framework.planning.reference_check import reference_problems
from framework.planning.references import reads_of
from framework.planning.view import Contract, PlanView, listing

DEFAULT_MAX_STEPS = 1000
"""Longest plan that is accepted when no limit is given."""

_FIELDS = frozenset(PlannedStep.__annotations__)
_MAX_SUGGESTIONS = 10  # comparing names is slow; a plan of inventions must not make it slower


def check_plan(
    plan: object,
    catalog: Catalog,
    available: Available | None = None,
    *,
    active: Collection[str] | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> list[Problem]:
    """Find every problem of a plan at once.

    Pure: nothing is read, written or changed, and no value, however odd, makes it raise.

    Args:
        plan: The plan; anything that came out of JSON is accepted.
        catalog: The capabilities that may be used, usually the registry.
        available: Stored context keys by type (``capability_context_data`` fits as it is).
        active: Names of the selected capabilities; ``None`` when no selection was made.
        max_steps: The longest plan that is accepted.

    Returns:
        The problems in step order; empty for a plan that can run.

    >>> from framework.base import CapabilitySpec, Requirement
    >>> from framework.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", provides=("MEAN",),
    ...                    requires=(Requirement("DATA"),)),
    ... )
    >>> plan = {"steps": [
    ...     {"context_key": "mean", "capability": "average", "inputs": [{"DATA": "readings"}]},
    ...     {"context_key": "answer", "capability": "respond"},
    ... ]}
    >>> [(problem.code, problem.field) for problem in check_plan(plan, catalog)]
    [('CG-P13', 'inputs[0].DATA')]
    """
    steps, problems = _read_steps(plan, max_steps)
    chosen = None if active is None else frozenset(active)
    checker = _Checker(PlanView(steps, catalog, available or {}, chosen), problems)
    if steps:
        checker.run()
    return sorted(problems, key=lambda problem: -1 if problem.step is None else problem.step)


def _read_steps(plan: object, max_steps: int) -> tuple[list[Any], list[Problem]]:
    """Take the steps out of whatever a planner wrote."""

    def whole(code: str, value: object, cause: str, *more: Any) -> list[Problem]:
        return [make_problem(code, None, None, value, cause, *more)]

    if not isinstance(plan, dict):
        return [], whole(codes.SHAPE, plan, "a plan is an object", 'write {"steps": [...]}', ())
    steps = plan.get("steps", [])
    if not isinstance(steps, list):
        return [], whole(codes.SHAPE, steps, "is not a list", "give a list of steps", ("steps",))
    if not steps:
        return [], whole(codes.EMPTY, steps, "the plan has no steps")
    if len(steps) > max_steps:
        cause = f"the plan has {len(steps)} steps and the limit is {max_steps}"
        return steps, whole(codes.TOO_LONG, len(steps), cause)
    return steps, []


class _Checker:
    """Collects the problems of the steps, room by room."""

    def __init__(self, view: PlanView, problems: list[Problem]) -> None:
        self.view = view
        self.problems = problems
        # Inputs that name a later step: position, number of the input, type, key, supplier.
        self.forward: list[tuple[int, int, str, str, int]] = []
        self.suggestions = 0

    def add(
        self,
        code: str,
        step: int | None,
        value: object,
        cause: str,
        remedy: str = "",
        path: Path | None = None,
    ) -> None:
        key = None if step is None else self.view.keys[step]
        self.problems.append(make_problem(code, step, key, value, cause, remedy, path))

    def run(self) -> None:
        for index, step in enumerate(self.view.steps):
            if isinstance(step, dict):
                self._check_key(index, step.get("context_key"))
                self._check_step(index, step)
            else:
                self.add(codes.SHAPE, index, step, "is not an object", "write each step as one", ())
        self._check_order()
        self._check_closing()

    def _check_key(self, index: int, key: object) -> None:
        if key is None or key == "":
            self.add(codes.MISSING_KEY, index, key, "the step has no context_key")
        elif not is_key(key):
            cause = f"a context_key is text of at most {MAX_KEY_LENGTH} letters, digits, '_', '.',"
            self.add(codes.MALFORMED_KEY, index, key, f"{cause} ':' and '-'")
        if isinstance(key, str) and (places := self.view.places.get(key)) and places[0] != index:
            cause = f"step {places[0] + 1} has the same context_key"
            self.add(codes.DUPLICATE_KEY, index, key, cause)

    def _check_step(self, index: int, step: dict[str, Any]) -> None:
        def text(name: str, cause: str, remedy: str) -> None:
            value = step.get(name)
            if value is not None and not isinstance(value, str):
                self.add(codes.SHAPE, index, value, cause, remedy, (name,))

        text("task_objective", "is not text", "write it as text")
        text("success_criteria", "is not text", "write it as text")
        text(
            "expected_output",
            "is not the name of a context type",
            "name one type, or leave it out",
        )
        if unknown := step.keys() - _FIELDS:
            self._check_fields(index, step, unknown)
        contract = self.view.contracts[index]
        if contract is None:
            self._check_name(index, step.get("capability"))
        elif not is_active(name := contract.spec.name, contract.spec, self.view.active):
            cause = "the capability was not selected for this request"
            self.add(codes.INACTIVE_CAPABILITY, index, name, cause)
        given = self._check_inputs(index, step.get("inputs"))
        if contract is not None:
            self._check_cardinality(index, contract, given)
            self._check_output(index, contract, step.get("expected_output"))
        spec = contract.spec if contract is not None else None
        self._check_parameters(index, spec, step.get("parameters"))

    def _check_fields(self, index: int, step: dict[str, Any], unknown: Collection[Any]) -> None:
        for field in sorted(unknown, key=preview)[:_MAX_SUGGESTIONS]:
            name = field if isinstance(field, str) else preview(field)
            near = closest_name(name, _FIELDS)
            remedy = f"write {near!r}" if near else f"use only: {', '.join(sorted(_FIELDS))}"
            self.add(codes.SHAPE, index, step[field], "is no field of a step", remedy, (name,))

    def _check_name(self, index: int, name: object) -> None:
        if not isinstance(name, str) or not name:
            remedy = "name a registered capability"
            cause = "the step names no capability"
            self.add(codes.SHAPE, index, name, cause, remedy, ("capability",))
        elif name in CLOSING:
            return
        elif name in self.view.catalog.infrastructure:
            cause = "is a node of the framework, which runs on its own"
            self.add(codes.INFRASTRUCTURE_STEP, index, name, cause)
        else:
            near = None
            if self.suggestions < _MAX_SUGGESTIONS:
                self.suggestions += 1
                near = closest_name(name, [*self.view.catalog.capabilities, *sorted(CLOSING)])
            remedy = f"did you mean {near!r}?" if near else ""
            cause = "no capability of this name is registered"
            self.add(codes.UNKNOWN_CAPABILITY, index, name, cause, remedy)

    def _check_inputs(self, index: int, inputs: object) -> dict[str, set[str]]:
        given: dict[str, set[str]] = {}
        if inputs is None:
            return given
        if not isinstance(inputs, list):
            self.add(codes.MALFORMED_INPUT, index, inputs, "is not a list of objects")
            return given
        places, supplies = self.view.places, self.view.supplies
        for number, entry in enumerate(inputs):
            if type(entry) is not dict or not entry:
                cause = "is not an object {type: context_key}"
                self.add(codes.MALFORMED_INPUT, index, entry, cause, path=("inputs", number))
                continue
            for context_type, key in entry.items():
                if type(context_type) is not str or type(key) is not str:
                    self._bad_input(
                        (index, number, preview(context_type)),
                        key,
                        "does not pair a context type with one context_key",
                    )
                    continue
                keys = given.get(context_type)
                if keys is None:
                    keys = given[context_type] = set()
                elif key in keys:
                    self._bad_input((index, number, context_type), key, "is given a second time")
                    continue
                keys.add(key)
                found = places.get(key)
                if found is not None and found[0] < index:
                    supplied = supplies[found[0]]
                    if supplied is None or context_type in supplied:
                        continue
                self._resolve(index, number, context_type, key)
        return given

    def _bad_input(
        self,
        place: tuple[int, int, str],
        key: object,
        cause: str,
        code: str = codes.MALFORMED_INPUT,
        remedy: str = "",
    ) -> None:
        index, number, context_type = place
        self.add(code, index, key, cause, remedy, ("inputs", number, context_type))

    def _resolve(self, index: int, number: int, context_type: str, key: str) -> None:
        """Read one input that the fast path did not settle."""
        view = self.view
        found = view.places.get(key, [])
        fitting = [place for place in found if view.fits(place, context_type)]
        # In the plan's order, a key that is stored already is what an earlier step reads.
        if any(place < index for place in fitting) or key in view.available.get(context_type, ()):
            return
        if fitting:
            self.forward.append((index, number, context_type, key, fitting[0]))
            return
        code = codes.TYPE_MISMATCH
        if found:
            supplied = view.supplies[found[0]] or frozenset()
            cause = f"step {found[0] + 1} supplies {listing(supplied)}, not {context_type}"
        elif stored := view.stored_as(key):
            kinds = listing(stored)
            cause = f"the stored context of this name is of type {kinds}, not {context_type}"
        else:
            code = codes.NO_SUPPLIER
            cause = "no step and no stored context has this context_key"
        remedy = view.how_to_get(context_type)
        self._bad_input((index, number, context_type), key, cause, code, remedy)

    def _check_cardinality(
        self, index: int, contract: Contract, given: dict[str, set[str]]
    ) -> None:
        name = contract.spec.name
        for context_type, cardinality in contract.requires.items():
            count = len(given.get(context_type, ()))
            if count == 0 and cardinality != "optional":
                cause = f"{name!r} requires {context_type} and the step has no such input"
                remedy = self.view.how_to_get(context_type)
                self.add(codes.MISSING_INPUT, index, context_type, cause, remedy)
            elif count > 1 and cardinality != "many":
                cause = f"{name!r} takes one {context_type} and the step names {count}"
                self.add(codes.TOO_MANY_INPUTS, index, context_type, cause)

    def _check_output(self, index: int, contract: Contract, expected: object) -> None:
        provides = listing(contract.provides)
        if isinstance(expected, str) and expected not in contract.provides:
            cause = f"{contract.spec.name!r} provides {provides}"
        elif expected is None and len(contract.provides) > 1:
            cause = f"{contract.spec.name!r} provides several: {provides}"
        else:
            return
        remedy = "name one of them" if contract.provides else "leave expected_output out"
        self.add(codes.UNDECLARED_OUTPUT, index, expected, cause, remedy)

    def _check_parameters(
        self, index: int, spec: CapabilitySpec | None, parameters: object
    ) -> None:
        model = spec.parameters if spec is not None else None
        if not parameters and (parameters is None or parameters == {}) and model is None:
            return
        name = spec.name if spec is not None else "the capability"
        for fault in parameter_faults(model, parameters, name):
            path = ("parameters", *fault.path)
            self.add(fault.code, index, fault.value, fault.cause, fault.remedy, path)
        for where, text, cause, remedy in reference_problems(self.view, index, model, parameters):
            self.add(codes.PARAMETER, index, text, cause, remedy, where)

    def _check_order(self) -> None:
        if not self.forward:
            return
        places = self.view.places
        edges: dict[int, set[int]] = {}
        for index, step in enumerate(self.view.steps):
            edges[index] = {places[key][0] for _, key in reads_of(step) if key in places}
        for index, _, _, _, place in self.forward:
            edges[index].add(place)
        circle: dict[int, int] = {}
        for group in circles(edges):
            first = min(group)
            circle.update(dict.fromkeys(group, first))
            names = listing([str(self.view.keys[place]) for place in sorted(group)])
            cause = "these steps wait for each other" if len(group) > 1 else "waits for itself"
            self.add(codes.CYCLE, first, names, cause)
        for index, number, context_type, key, place in self.forward:
            if circle.get(index, -1) != circle.get(place, -2):
                cause = f"step {place + 1} runs after step {index + 1}"
                remedy = f"put step {place + 1} first"
                spot = (index, number, context_type)
                self._bad_input(spot, key, cause, codes.LATER_STEP, remedy)

    def _check_closing(self) -> None:
        last = len(self.view.steps) - 1
        for index, step in enumerate(self.view.steps):
            name = step.get("capability") if isinstance(step, dict) else None
            closing = isinstance(name, str) and name in CLOSING
            if closing and index != last:
                cause = f"{name!r} ends the turn and steps follow it"
                self.add(codes.CLOSING_NOT_LAST, index, name, cause)
            elif index == last and not closing:
                cause = "the last step does not answer the request"
                self.add(codes.NO_CLOSING, None, name, cause)
