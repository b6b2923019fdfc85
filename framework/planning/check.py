"""Validation of plans: :func:`check_plan` reports every problem before a plan runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from capgraph.base.plan import BUDGET_NAMES, METADATA_KEY, ExecutionPlan
from capgraph.configs.suggestions import closest_match
from capgraph.planning import problems as codes
from capgraph.planning.catalog import (
    MANY_SUFFIX,
    RESPOND,
    TERMINAL_STEPS,
    Available,
    Catalog,
    is_active,
)
from capgraph.planning.conditions import (
    describe_condition,
    iter_comparisons,
    iter_condition_errors,
    value_kind,
)
from capgraph.planning.graph_algorithms import reachable_from
from capgraph.planning.name_matching import closest_name
from capgraph.planning.parameters import find_parameter_errors
from capgraph.planning.plan_access import MAX_KEY_LENGTH, is_context_key
from capgraph.planning.plan_view import CapabilityContract, PlanView, join_names
from capgraph.planning.problems import (
    NO_CORRECTION,
    Path,
    Problem,
    make_problem,
    preview,
    preview_key,
)
from capgraph.planning.references import (
    FROM,
    StepRead,
    element_name,
    iter_references,
    reference_fields,
)
from capgraph.planning.schema_shapes import Shape
from capgraph.planning.waits import SIGNAL, WAIT_FIELDS, iter_wait_errors, wait_references

DEFAULT_MAX_STEPS = 1000
"""Maximum number of steps when no limit is passed."""

_REFERENCE = 'write {"$from": "context_key.field"} with an earlier step and a matching field'
_MAX_COMPARED_NAMES = 10  # comparing unknown names with known ones is slow


def check_plan(
    plan: object,
    catalog: Catalog,
    available: Available | None = None,
    *,
    active: Collection[str] | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> list[Problem]:
    """Validate a plan and return its problems.

    This is a pure function: it performs no I/O and does not modify its arguments. Malformed plans are
    reported as problems, not as exceptions.

    Args:
        plan: Plan to validate, or any other JSON value.
        catalog: Capabilities that the plan may use, usually the registry.
        available: Stored context keys by context type, such as ``capability_context_data``.
        active: Names of the selected capabilities. ``None`` allows all.
        max_steps: Maximum number of steps.

    Returns:
        The problems in step order. An empty list means that the plan can run.

    >>> from capgraph.base import CapabilitySpec, Requirement
    >>> from capgraph.planning import StaticCatalog
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
    return analyze_plan(plan, catalog, available or {}, active, max_steps)[1]


def analyze_plan(
    plan: object,
    catalog: Catalog,
    available: Available,
    active: Collection[str] | None,
    max_steps: int,
) -> tuple[PlanView, list[Problem]]:
    """Validate a plan, and return its index and its problems.

    See :func:`check_plan` for the arguments.
    """
    steps, problems = _extract_steps(plan, max_steps)
    chosen = None if active is None else frozenset(active)
    checker = _PlanChecker(PlanView(steps, catalog, available, chosen), problems)
    if isinstance(plan, dict):
        checker.check_plan_fields(plan)
    if steps:
        checker.run()
    problems.sort(key=lambda problem: -1 if problem.step is None else problem.step)
    return checker.view, problems


def _extract_steps(plan: object, max_steps: int) -> tuple[list[Any], list[Problem]]:
    """Extract the steps of a plan, and the problems that concern the plan as a whole."""

    def plan_problem(code: str, value: object, cause: str, *details: Any) -> list[Problem]:
        return [make_problem(code, None, None, value, cause, *details)]

    if not isinstance(plan, dict):
        cause, remedy = "a plan must be an object", 'write {"steps": [...]}'
        return [], plan_problem(codes.SHAPE, plan, cause, remedy, ())
    steps = plan.get("steps", [])
    if not isinstance(steps, list):
        cause, remedy = "steps must be a list", "write a list of steps"
        return [], plan_problem(codes.SHAPE, steps, cause, remedy, ("steps",))
    if not steps:
        return [], plan_problem(codes.EMPTY, steps, "the plan has no steps")
    if len(steps) > max_steps:
        cause = f"the plan has {len(steps)} steps and the limit is {max_steps}"
        return steps, plan_problem(codes.TOO_LONG, len(steps), cause)
    return steps, []


class _PlanChecker:
    """Plan validator that collects problems instead of raising errors."""

    def __init__(self, view: PlanView, problems: list[Problem]) -> None:
        self.view = view
        self.problems = problems
        # Reads of later steps: index of the reader, the read, and index of the supplier.
        self.forward: list[tuple[int, StepRead, int]] = []
        self.names_compared = 0

    def add(
        self,
        code: str,
        step: int | None,
        value: object,
        cause: str,
        remedy: str = "",
        path: Path | None = None,
        corrected_value: Any = NO_CORRECTION,
    ) -> None:
        key = None if step is None else self.view.keys[step]
        self.problems.append(
            make_problem(code, step, key, value, cause, remedy, path, corrected_value)
        )

    def run(self) -> None:
        for index, step in enumerate(self.view.steps):
            if not isinstance(step, dict):
                cause, remedy = "a step must be an object", "write each step as an object"
                self.add(codes.SHAPE, index, step, cause, remedy, ())
                continue
            for name, check in _STEP_CHECKS.items():
                check(self, index, step.get(name), name)
            self._check_unknown_fields(index, step, _STEP_CHECKS)
        self._check_order()
        self._check_terminal_step()

    def check_plan_fields(self, plan: dict[str, Any]) -> None:
        """Check the top-level fields of a plan, such as its deadline and its budget.

        Unknown fields are reported as problems.
        """
        self._check_unknown_fields(
            None, {k: v for k, v in plan.items() if k not in _FRAMEWORK_FIELDS}, _PLAN_FIELDS
        )
        self._check_seconds(None, plan.get("deadline"), "deadline")
        budget = plan.get("budget")
        remedy = f"write an object of numbers above 0 for: {', '.join(BUDGET_NAMES)}"
        if budget is not None and not isinstance(budget, dict):
            self.add(codes.SHAPE, None, budget, "is not a budget", remedy, ("budget",))
        for name, value in budget.items() if isinstance(budget, dict) else ():
            if name not in BUDGET_NAMES or not _is_positive(value):
                path = ("budget", str(name))
                self.add(codes.SHAPE, None, value, "is not a budget limit", remedy, path)

    def _check_unknown_fields(
        self, index: int | None, fields: dict[str, Any], known_names: Collection[str]
    ) -> None:
        cause = f"is not a field of a {'plan' if index is None else 'step'}"
        for name in sorted(fields.keys() - set(known_names), key=preview)[:_MAX_COMPARED_NAMES]:
            name_text = name if isinstance(name, str) else preview(name)
            similar = closest_name(name_text, known_names) or closest_match(name_text, known_names)
            remedy = (
                f"write {similar!r}" if similar else f"use only: {', '.join(sorted(known_names))}"
            )
            self.add(codes.SHAPE, index, fields[name], cause, remedy, (name_text,))

    def _check_key(self, index: int, key: object, _: str) -> None:
        if key is None or key == "":
            self.add(codes.MISSING_KEY, index, key, "the step has no context_key")
        elif not is_context_key(key):
            cause = f"a context_key must be at most {MAX_KEY_LENGTH} letters, digits, '_', '.', ':'"
            self.add(codes.MALFORMED_KEY, index, key, f"{cause}, or '-'")
        if isinstance(key, str) and (places := self.view.positions.get(key)) and places[0] != index:
            cause = f"step {places[0] + 1} has the same context_key"
            self.add(codes.DUPLICATE_KEY, index, key, cause)

    def _check_text(self, index: int, value: object, name: str) -> None:
        if value is not None and not isinstance(value, str):
            self.add(codes.SHAPE, index, value, "must be text", "write a string", (name,))

    def _check_capability(self, index: int, name: object, _: str) -> None:
        catalog, contract = self.view.catalog, self.view.contracts[index]
        if contract is not None:
            if not is_active(contract.spec.name, contract.spec, self.view.active):
                cause = "the capability was not selected for this request"
                self.add(codes.INACTIVE_CAPABILITY, index, name, cause)
        elif not isinstance(name, str) or not name:
            remedy = "name a registered capability"
            cause = "the step names no capability"
            self.add(codes.SHAPE, index, name, cause, remedy, ("capability",))
        elif name in catalog.infrastructure and name not in TERMINAL_STEPS:
            cause = "is an infrastructure node, which the framework runs itself"
            self.add(codes.INFRASTRUCTURE_STEP, index, name, cause)
        elif name not in TERMINAL_STEPS:
            self.names_compared += 1
            known = [*catalog.capabilities, *sorted(TERMINAL_STEPS)]
            corrected_name = (
                closest_name(name, known) if self.names_compared <= _MAX_COMPARED_NAMES else None
            )
            cause = "no capability with this name is registered"
            similar = corrected_name or (
                closest_match(name, known) if self.names_compared <= _MAX_COMPARED_NAMES else None
            )
            remedy = f"use {similar!r}" if similar else ""
            corrected_value = corrected_name or NO_CORRECTION
            self.add(
                codes.UNKNOWN_CAPABILITY,
                index,
                name,
                cause,
                remedy,
                corrected_value=corrected_value,
            )

    def _check_inputs(self, index: int, inputs: object, _: str) -> None:
        keys_by_label: dict[str, set[str]] = {}
        if inputs is not None and not isinstance(inputs, list):
            self.add(codes.MALFORMED_INPUT, index, inputs, "is not a list of objects")
        contract, places = self.view.contracts[index], self.view.positions
        alias = element_name(self.view.steps[index])
        type_by_label = contract.type_by_label if contract is not None else {}
        for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
            if type(entry) is not dict or not entry:
                cause = "is not an object {type: context_key}"
                self.add(codes.MALFORMED_INPUT, index, entry, cause, path=("inputs", number))
                continue
            for label, key in entry.items():
                if type(label) is not str or type(key) is not str:
                    cause = "must map a context type to one context_key"
                elif key in (keys := keys_by_label.setdefault(label, set())):
                    cause = "is a duplicate of an earlier input"
                else:
                    keys.add(key)
                    if key == alias:
                        self._check_element_input(index, ("inputs", number, label), key)
                        continue
                    first = places.get(key, (index,))[0]
                    if first >= index or not self.view.step_provides(
                        first, type_by_label.get(label, label)
                    ):
                        self._check_input_source(
                            index, StepRead(("inputs", number, label), label, key)
                        )
                    continue
                path = ("inputs", number, label if type(label) is str else preview(label))
                self.add(codes.MALFORMED_INPUT, index, key, cause, path=path)
        if contract is not None:
            self._check_cardinality(index, contract, keys_by_label)

    def _check_element_input(self, index: int, path: Path, alias: str) -> None:
        """Check a step input that reads the current element of a ``for_each`` list."""
        if not self.view.accepts_element(index, str(path[-1])):
            cause = f"an element of the list is {self.view.element_shape(index)}, not {path[-1]}"
            remedy = f"use a list of {path[-1]}, or another input"
            self.add(codes.TYPE_MISMATCH, index, alias, cause, remedy, path)

    def _check_input_source(self, index: int, read: StepRead) -> None:
        """Report a problem if neither an earlier step nor a stored context supplies an input."""
        view, input_type = self.view, self.view.type_of_input(index, read.label)
        positions = view.positions.get(read.key, ())
        position = view.source_of(index, read) if positions else None
        if position is not None and position < index:
            return
        if position is not None:
            self.forward.append((index, read, position))
            return
        if view.is_stored(input_type, read.key):
            return  # a stored context takes precedence over a later step
        code, kind = codes.TYPE_MISMATCH, input_type.removesuffix(MANY_SUFFIX)
        if positions:
            supplied = view.contracts[positions[0]]
            types = supplied.spec.provides if supplied is not None else ()
            cause = f"step {positions[0] + 1} supplies {join_names(types)}, not {kind}"
            if kind in types:
                cause = f"step {positions[0] + 1} runs for each element and supplies several {kind}, not one"
        elif stored := view.stored_types(read.key):
            cause = f"the stored context with this key has type {join_names(stored)}, not {kind}"
        else:
            code = codes.NO_SUPPLIER
            cause = "no step or stored context has this context_key"
        remedy = self._suggest_similar_name(index, read) or view.supply_hint(input_type)
        self.add(code, index, read.key, cause, remedy, read.path)

    def _suggest_similar_name(self, index: int, read: StepRead) -> str:
        """Suggest the most similar input name or context key, or return an empty string."""
        view, contract = self.view, self.view.contracts[index]
        self.names_compared += 1
        if self.names_compared > _MAX_COMPARED_NAMES:
            return ""
        if contract is not None and read.label not in contract.requirements and read.label != FROM:
            similar = closest_name(read.label, contract.requirements) or closest_match(
                read.label, contract.requirements
            )
            return f"use {similar!r} for {read.label!r}" if similar else ""
        if read.key in view.positions or view.stored_types(read.key):
            return ""
        stored = (key for keys in view.available.values() for key in keys)
        similar = closest_match(read.key, [*view.positions, *stored])
        return f"use {similar!r}" if similar else ""

    def _check_cardinality(
        self, index: int, contract: CapabilityContract, keys_by_label: dict[str, set[str]]
    ) -> None:
        for label, requirement in contract.requirements.items():
            count = len(keys_by_label.get(label, ()))
            shown = label if requirement.role is None else f"{label} ({requirement.type})"
            if count == 0 and requirement.cardinality != "optional":
                cause = f"{contract.spec.name!r} requires {shown}, and the step has no such input"
                remedy = self.view.supply_hint(contract.type_by_label[label])
                self.add(codes.MISSING_INPUT, index, label, cause, remedy)
            elif count > 1 and requirement.cardinality != "many":
                cause = f"{contract.spec.name!r} takes one {shown}, and the step names {count}"
                self.add(codes.TOO_MANY_INPUTS, index, label, cause)

    def _check_output(self, index: int, expected: object, name: str) -> None:
        if expected is not None and not isinstance(expected, str):
            cause = "is not the name of a context type"
            self.add(codes.SHAPE, index, expected, cause, "name one type, or leave it out", (name,))
        if (contract := self.view.contracts[index]) is None:
            return
        provides = contract.spec.provides
        if isinstance(expected, str) and expected not in provides:
            cause = f"{contract.spec.name!r} provides {join_names(provides)}"
        elif expected is None and len(provides) > 1:
            cause = f"{contract.spec.name!r} provides several types: {join_names(provides)}"
        else:
            return
        remedy = "name one of them" if provides else "leave expected_output out"
        corrected_value = NO_CORRECTION if len(provides) > 1 else provides[0] if provides else None
        self.add(
            codes.UNDECLARED_OUTPUT, index, expected, cause, remedy, corrected_value=corrected_value
        )

    def _check_parameters(self, index: int, parameters: object, name: str) -> None:
        contract = self.view.contracts[index]
        model = contract.spec.parameters if contract is not None else None
        if not parameters and (parameters is None or parameters == {}) and model is None:
            return
        owner = contract.spec.name if contract is not None else "the capability"
        key = self.view.keys[index]
        for fault in find_parameter_errors(model, parameters, owner):
            self.problems.append(replace(fault, step=index, context_key=preview_key(key)))
        target = None if model is None else Shape.from_model(model, "validation")
        for path, text in iter_references(parameters):
            if not text:
                cause = "a reference must be an object with this single key and a string value"
                self.add(codes.PARAMETER, index, FROM, cause, _REFERENCE, (name, *path))
                continue
            actual = self._check_reference(index, (name, *path), text, codes.PARAMETER, _REFERENCE)
            expected = None if target is None else target.at_path(path)
            if (
                actual is not None
                and expected is not None
                and not actual.is_compatible_with(expected)
            ):
                cause = f"the value is {actual}, but the parameter is {expected}"
                self.add(codes.PARAMETER, index, text, cause, _REFERENCE, (name, *path))

    def _check_reference(
        self, index: int, path: Path, text: str, code: str, remedy: str = ""
    ) -> Shape | None:
        """Check a step's reference to a result, written as ``{"$from": "key.field"}``.

        Returns:
            The JSON schema of the referenced value, or ``None`` if it is unknown or the reference
            is invalid.
        """
        view = self.view
        read = next((read for read in view.reads[index] if read.path == path), None)
        place = view.source_of(index, read) if read is not None else None
        if read is not None and place is not None and place >= index:
            self.forward.append((index, read, place))
            return None
        if read is not None and place is None and not view.stored_types(read.key):
            cause = "no step or stored context has this context_key"
            self.add(code, index, text, cause, remedy, path)
            return None
        # A path without a read refers to the list element or to the data of an awaited event.
        key = text.partition(".")[0] if read is None else read.key
        of_list = key == element_name(view.steps[index])
        element_shapes = [view.element_shape(index)] if of_list else None
        results = element_shapes if read is None else view.result_shapes(index, read)
        if results is None:
            return None  # a result of unknown type is checked when the step runs
        fields = reference_fields(text, key)
        shapes = [shape for result in results if (shape := result.at_path(fields)) is not None]
        if len(shapes) == 1:
            return shapes[0]
        known = sorted({name for result in results for name in result.field_names})
        field_name = ".".join(map(str, fields))
        hint = f"its fields are {join_names(known)}" if known else f"refer to it as {key!r}"
        cause = f"the result has no field {field_name!r}; {hint}"
        cause = "several results of that step have this field" if shapes else cause
        self.add(code, index, text, cause, remedy, path)
        return None

    def _check_for_each(self, index: int, each: object, name: str) -> None:
        if each is None:
            return
        fields = each if isinstance(each, dict) else {}
        of, alias = fields.get("of"), fields.get("as", "item")
        mode = fields.get("on_failure", "stop")
        if not isinstance(of, str) or not of or fields.keys() - {"of", "as", "on_failure"}:
            self.add(codes.FOR_EACH, index, each, "does not name a list", path=(name,))
            return
        if not is_context_key(alias) or "." in str(alias):
            cause = "is not a valid element name"
            self.add(codes.FOR_EACH, index, alias, cause, path=(name, "as"))
        elif alias in self.view.positions or self.view.stored_types(str(alias)):
            cause = "is the context_key of a result"
            self.add(codes.FOR_EACH, index, alias, cause, "use another name", (name, "as"))
        elif alias == SIGNAL and self.view.steps[index].get("wait_for") is not None:
            cause = "is reserved for the data of the awaited event"
            self.add(codes.FOR_EACH, index, alias, cause, "use another name", (name, "as"))
        if mode not in ("stop", "collect"):
            remedy = "write 'stop' or 'collect'"
            self.add(codes.FOR_EACH, index, mode, "is not a mode", remedy, (name, "on_failure"))
        shape = self._check_reference(index, (name, "of"), of, codes.FOR_EACH)
        if shape is not None and not {form.json_type for form in shape.alternatives()} & {
            "array",
            None,
        }:
            self.add(codes.FOR_EACH, index, of, f"is {shape}, not a list", path=(name, "of"))

    def _check_condition(self, index: int, condition: object, name: str) -> None:
        if condition is None:
            return
        faults = list(iter_condition_errors(condition))
        for path_in_condition, value, cause in faults:
            self.add(codes.CONDITION, index, value, cause, path=(name, *path_in_condition))
        for path_in_condition, comparison in iter_comparisons(condition) if not faults else ():
            path = (name, *path_in_condition, "of")
            shape = self._check_reference(index, path, comparison["of"], codes.CONDITION)
            kinds = (
                {_VALUE_KINDS.get(str(form.json_type)) for form in shape.alternatives()}
                if shape
                else {None}
            )
            if None not in kinds and value_kind(comparison["than"]) not in kinds:
                cause = f"is {shape}, so {describe_condition(comparison)!r} cannot be evaluated"
                self.add(codes.CONDITION, index, comparison["of"], cause, path=path)

    def _check_boolean(self, index: int, value: object, name: str) -> None:
        if value is not None and not isinstance(value, bool):
            self.add(codes.SHAPE, index, value, "must be a boolean", "write true or false", (name,))

    def _check_seconds(self, index: int | None, value: object, name: str) -> None:
        if value is not None and not _is_positive(value):
            remedy = "write a number of seconds above 0"
            self.add(codes.SHAPE, index, value, "is not a positive number", remedy, (name,))

    def _check_wait(self, index: int, wait: object, name: str) -> None:
        if wait is None:
            return
        for path_in_wait, value, cause in iter_wait_errors(name, wait):
            remedy = "write a moment, a duration, or an event key"
            self.add(codes.SHAPE, index, value, cause, remedy, (name, *path_in_wait))
        for path, text in wait_references({name: wait}):
            self._check_reference(index, path, text, codes.SHAPE, _REFERENCE)

    def _check_order(self) -> None:
        if not self.forward:
            return
        sources, readers = dict(enumerate(self.view.sources)), self.view.readers
        reported_cycles: dict[int, set[int]] = {}
        for index, read, supplier in self.forward:
            if supplier in reported_cycles.get(index, ()):
                continue
            upstream, downstream = (
                reachable_from([index], sources),
                reachable_from([index], readers),
            )
            cycle = upstream & downstream
            if supplier in cycle:
                reported_cycles |= dict.fromkeys(cycle, cycle)
                names = join_names([str(self.view.keys[one]) for one in sorted(cycle)])
                cause = "these steps wait for each other" if len(cycle) > 1 else "waits for itself"
                self.add(codes.CYCLE, min(cycle), names, cause)
                continue
            cause = f"step {supplier + 1} runs after step {index + 1}"
            remedy = f"put step {supplier + 1} first"
            self.add(codes.LATER_STEP, index, read.key, cause, remedy, read.path)

    def _check_terminal_step(self) -> None:
        last = len(self.view.steps) - 1
        for index, step in enumerate(self.view.steps):
            name = step.get("capability") if isinstance(step, dict) else None
            closing = isinstance(name, str) and name in TERMINAL_STEPS
            for field in _WORK_FIELDS.intersection(step if closing else ()):
                if (name, field) == (RESPOND, "look_again"):
                    continue
                if step[field] not in (None, False):
                    cause, remedy = "a terminal step always runs", f"leave {field!r} out"
                    self.add(codes.SHAPE, index, step[field], cause, remedy, (field,))
            if closing and index != last:
                cause = f"{name!r} ends the turn, but steps follow it"
                self.add(codes.TERMINAL_STEP_NOT_LAST, index, name, cause)
            elif index == last and not closing:
                cause = "the last step does not answer the request"
                self.add(codes.NO_TERMINAL_STEP, None, name, cause)


def _is_positive(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]


_STEP_CHECKS: dict[str, Callable[[_PlanChecker, int, Any, str], None]] = {
    "context_key": _PlanChecker._check_key,
    "capability": _PlanChecker._check_capability,
    "task_objective": _PlanChecker._check_text,
    "success_criteria": _PlanChecker._check_text,
    "inputs": _PlanChecker._check_inputs,
    "expected_output": _PlanChecker._check_output,
    "parameters": _PlanChecker._check_parameters,
    "when": _PlanChecker._check_condition,
    "for_each": _PlanChecker._check_for_each,
    "optional": _PlanChecker._check_boolean,
    "timeout": _PlanChecker._check_seconds,
    "look_again": _PlanChecker._check_boolean,
    "wait_until": _PlanChecker._check_wait,
    "wait_for": _PlanChecker._check_wait,
}
"""Check for each field of a step. Any other field is unknown."""

_FRAMEWORK_FIELDS = frozenset({"stamp", METADATA_KEY})
_PLAN_FIELDS = ExecutionPlan.__annotations__.keys() - _FRAMEWORK_FIELDS

_WORK_FIELDS = frozenset({"when", "for_each", "optional", "timeout", "look_again", *WAIT_FIELDS})
"""Fields that a terminal step cannot have, except ``look_again`` on ``respond``."""

_VALUE_KINDS = {
    **dict.fromkeys(("integer", "number"), "number"),
    "string": "text",
    "boolean": "boolean",
    "null": "nothing",
    "array": "list",
    "object": "object",
}
"""JSON schema type to the kind of value that conditions compare."""
