"""Finding everything that is wrong with a plan, before it runs."""

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
    condition_errors,
    describe_condition,
    iter_comparisons,
    value_kind,
)
from capgraph.planning.graph_algorithms import reachable_from
from capgraph.planning.name_matching import closest_name
from capgraph.planning.parameters import parameter_errors
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
from capgraph.planning.waits import SIGNAL, WAIT_FIELDS, wait_errors, wait_references

DEFAULT_MAX_STEPS = 1000
"""Longest plan that is accepted when no limit is given."""

_REFERENCE = 'write {"$from": "context_key.field"} with an earlier step and a field that fits'
_NEAR = 10  # comparing names is slow; a plan of inventions must not make it slower


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

    >>> from capgraph.base import CapabilitySpec, Requirement
    >>> from capgraph.planning import StaticCatalog
    >>> catalog = StaticCatalog.from_model(
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
    """Return a plan as it was read, with its problems; as :func:`check_plan`."""
    steps, problems = _read_steps(plan, max_steps)
    chosen = None if active is None else frozenset(active)
    checker = _Checker(PlanView(steps, catalog, available, chosen), problems)
    if isinstance(plan, dict):
        checker.bounds(plan)
    if steps:
        checker.run()
    problems.sort(key=lambda problem: -1 if problem.step is None else problem.step)
    return checker.view, problems


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
    """Collects the problems of the steps, field by field."""

    def __init__(self, view: PlanView, problems: list[Problem]) -> None:
        self.view = view
        self.problems = problems
        # What is read from a later step: the reader, where it says so, and the supplier.
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
        mended: Any = NO_CORRECTION,
    ) -> None:
        key = None if step is None else self.view.keys[step]
        self.problems.append(make_problem(code, step, key, value, cause, remedy, path, mended))

    def run(self) -> None:
        for index, step in enumerate(self.view.steps):
            if not isinstance(step, dict):
                self.add(codes.SHAPE, index, step, "is not an object", "write each step as one", ())
                continue
            for name, check in _FIELDS.items():
                check(self, index, step.get(name), name)
            self._strangers(index, step, _FIELDS)
        self._order()
        self._closing()

    def bounds(self, plan: dict[str, Any]) -> None:
        """Check what the plan says of itself: what it may use up, and nothing that does not exist."""
        self._strangers(None, {k: v for k, v in plan.items() if k not in _OURS}, _OF_PLAN)
        self._seconds(None, plan.get("deadline"), "deadline")
        budget = plan.get("budget")
        fix = f"write an object of numbers above 0 for: {', '.join(BUDGET_NAMES)}"
        if budget is not None and not isinstance(budget, dict):
            self.add(codes.SHAPE, None, budget, "is no budget", fix, ("budget",))
        for name, value in budget.items() if isinstance(budget, dict) else ():
            if name not in BUDGET_NAMES or not _is_positive(value):
                self.add(
                    codes.SHAPE, None, value, "is no limit of a budget", fix, ("budget", str(name))
                )

    def _strangers(self, index: int | None, given: dict[str, Any], known: Collection[str]) -> None:
        cause = f"is no field of a {'plan' if index is None else 'step'}"
        for name in sorted(given.keys() - set(known), key=preview)[:_NEAR]:
            shown = name if isinstance(name, str) else preview(name)
            near = closest_name(shown, known) or closest_match(shown, known)
            remedy = f"write {near!r}" if near else f"use only: {', '.join(sorted(known))}"
            self.add(codes.SHAPE, index, given[name], cause, remedy, (shown,))

    def _key(self, index: int, key: object, _: str) -> None:
        if key is None or key == "":
            self.add(codes.MISSING_KEY, index, key, "the step has no context_key")
        elif not is_context_key(key):
            cause = f"a context_key is text of at most {MAX_KEY_LENGTH} letters, digits, '_', '.',"
            self.add(codes.MALFORMED_KEY, index, key, f"{cause} ':' and '-'")
        if isinstance(key, str) and (places := self.view.positions.get(key)) and places[0] != index:
            cause = f"step {places[0] + 1} has the same context_key"
            self.add(codes.DUPLICATE_KEY, index, key, cause)

    def _text(self, index: int, value: object, name: str) -> None:
        if value is not None and not isinstance(value, str):
            self.add(codes.SHAPE, index, value, "is not text", "write it as text", (name,))

    def _capability(self, index: int, name: object, _: str) -> None:
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
            cause = "is a node of the framework, which runs on its own"
            self.add(codes.INFRASTRUCTURE_STEP, index, name, cause)
        elif name not in TERMINAL_STEPS:
            self.names_compared += 1
            known = [*catalog.capabilities, *sorted(TERMINAL_STEPS)]
            near = closest_name(name, known) if self.names_compared <= _NEAR else None
            cause = "no capability of this name is registered"
            like = near or (closest_match(name, known) if self.names_compared <= _NEAR else None)
            remedy = f"use {like!r}" if like else ""
            mended = near or NO_CORRECTION
            self.add(codes.UNKNOWN_CAPABILITY, index, name, cause, remedy, mended=mended)

    def _inputs(self, index: int, inputs: object, _: str) -> None:
        given: dict[str, set[str]] = {}
        if inputs is not None and not isinstance(inputs, list):
            self.add(codes.MALFORMED_INPUT, index, inputs, "is not a list of objects")
        contract, places = self.view.contracts[index], self.view.positions
        alias = element_name(self.view.steps[index])
        wants = contract.need_by_label if contract is not None else {}
        for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
            if type(entry) is not dict or not entry:
                cause = "is not an object {type: context_key}"
                self.add(codes.MALFORMED_INPUT, index, entry, cause, path=("inputs", number))
                continue
            for label, key in entry.items():
                if type(label) is not str or type(key) is not str:
                    cause = "does not pair a context type with one context_key"
                elif key in (keys := given.setdefault(label, set())):
                    cause = "is given a second time"
                else:
                    keys.add(key)
                    if key == alias:
                        self._element(index, ("inputs", number, label), key)
                        continue
                    first = places.get(key, (index,))[0]
                    if first >= index or not self.view.step_provides(
                        first, wants.get(label, label)
                    ):
                        self._resolve(index, StepRead(("inputs", number, label), label, key))
                    continue
                path = ("inputs", number, label if type(label) is str else preview(label))
                self.add(codes.MALFORMED_INPUT, index, key, cause, path=path)
        if contract is not None:
            self._cardinality(index, contract, given)

    def _element(self, index: int, path: Path, alias: str) -> None:
        """Check an input that is an element of the list over which the step runs."""
        if not self.view.accepts_element(index, str(path[-1])):
            cause = f"an element of the list is {self.view.element_shape(index)}, and no {path[-1]}"
            self.add(codes.TYPE_MISMATCH, index, alias, cause, path=path)

    def _resolve(self, index: int, read: StepRead) -> None:
        """Find what an input reads."""
        view, need = self.view, self.view.need_of(index, read.label)
        found = view.positions.get(read.key, ())
        place = view.source_of(index, read) if found else None
        if place is not None and place < index:
            return
        if place is not None:
            self.forward.append((index, read, place))
            return
        if view.is_stored(need, read.key):
            return  # in the plan's order, a key that is stored already is what is read
        code, kind = codes.TYPE_MISMATCH, need.removesuffix(MANY_SUFFIX)
        if found:
            supplied = view.contracts[found[0]]
            types = supplied.spec.provides if supplied is not None else ()
            cause = f"step {found[0] + 1} supplies {join_names(types)}, not {kind}"
            if kind in types:
                cause = f"step {found[0] + 1} runs over a list and supplies several {kind}, not one"
        elif stored := view.stored_types(read.key):
            cause = f"the stored context of this name is of type {join_names(stored)}, not {kind}"
        else:
            code = codes.NO_SUPPLIER
            cause = "no step and no stored context has this context_key"
        remedy = self._like(index, read) or view.supply_hint(need)
        self.add(code, index, read.key, cause, remedy, read.path)

    def _like(self, index: int, read: StepRead) -> str:
        """Return how to write an input whose type or key is near to one that exists."""
        view, contract = self.view, self.view.contracts[index]
        self.names_compared += 1
        if self.names_compared > _NEAR:
            return ""
        if contract is not None and read.label not in contract.requirements and read.label != FROM:
            like = closest_name(read.label, contract.requirements) or closest_match(
                read.label, contract.requirements
            )
            return f"use {like!r} for {read.label!r}" if like else ""
        if read.key in view.positions or view.stored_types(read.key):
            return ""
        stored = (key for keys in view.available.values() for key in keys)
        like = closest_match(read.key, [*view.positions, *stored])
        return f"use {like!r}" if like else ""

    def _cardinality(
        self, index: int, contract: CapabilityContract, given: dict[str, set[str]]
    ) -> None:
        for label, need in contract.requirements.items():
            count = len(given.get(label, ()))
            told = label if need.role is None else f"{label} ({need.type})"
            if count == 0 and need.cardinality != "optional":
                cause = f"{contract.spec.name!r} requires {told} and the step has no such input"
                remedy = self.view.supply_hint(contract.need_by_label[label])
                self.add(codes.MISSING_INPUT, index, label, cause, remedy)
            elif count > 1 and need.cardinality != "many":
                cause = f"{contract.spec.name!r} takes one {told} and the step names {count}"
                self.add(codes.TOO_MANY_INPUTS, index, label, cause)

    def _output(self, index: int, expected: object, name: str) -> None:
        if expected is not None and not isinstance(expected, str):
            cause = "is not the name of a context type"
            self.add(codes.SHAPE, index, expected, cause, "name one type, or leave it out", (name,))
        if (contract := self.view.contracts[index]) is None:
            return
        provides = contract.spec.provides
        if isinstance(expected, str) and expected not in provides:
            cause = f"{contract.spec.name!r} provides {join_names(provides)}"
        elif expected is None and len(provides) > 1:
            cause = f"{contract.spec.name!r} provides several: {join_names(provides)}"
        else:
            return
        remedy = "name one of them" if provides else "leave expected_output out"
        mended = NO_CORRECTION if len(provides) > 1 else provides[0] if provides else None
        self.add(codes.UNDECLARED_OUTPUT, index, expected, cause, remedy, mended=mended)

    def _parameters(self, index: int, parameters: object, name: str) -> None:
        contract = self.view.contracts[index]
        model = contract.spec.parameters if contract is not None else None
        if not parameters and (parameters is None or parameters == {}) and model is None:
            return
        owner = contract.spec.name if contract is not None else "the capability"
        key = self.view.keys[index]
        for fault in parameter_errors(model, parameters, owner):
            self.problems.append(replace(fault, step=index, context_key=preview_key(key)))
        target = None if model is None else Shape.from_model(model, "validation")
        for path, text in iter_references(parameters):
            if not text:
                cause = "no step is named: a reference is an object of this one key and a text"
                self.add(codes.PARAMETER, index, FROM, cause, _REFERENCE, (name, *path))
                continue
            found = self._found(index, (name, *path), text, codes.PARAMETER, _REFERENCE)
            wanted = None if target is None else target.at_path(path)
            if found is not None and wanted is not None and not found.is_compatible_with(wanted):
                cause = f"it is {found} and the parameter is {wanted}"
                self.add(codes.PARAMETER, index, text, cause, _REFERENCE, (name, *path))

    def _found(
        self, index: int, path: Path, text: str, code: str, remedy: str = ""
    ) -> Shape | None:
        """Check who supplies what stands at a path; return its shape, where that is known."""
        view = self.view
        read = next((read for read in view.reads[index] if read.path == path), None)
        place = view.source_of(index, read) if read is not None else None
        if read is not None and place is not None and place >= index:
            self.forward.append((index, read, place))
            return None
        if read is not None and place is None and not view.stored_types(read.key):
            cause = "no step and no stored context has this context_key"
            self.add(code, index, text, cause, remedy, path)
            return None
        # Without a reader it means the element of a list, or what comes with an event.
        key = text.partition(".")[0] if read is None else read.key
        of_list = key == element_name(view.steps[index])
        unread = [view.element_shape(index)] if of_list else None
        results = unread if read is None else view.result_shapes(index, read)
        if results is None:
            return None  # of unknown type: what stands there is read when the step runs
        fields = reference_fields(text, key)
        found = [shape for result in results if (shape := result.at_path(fields)) is not None]
        if len(found) == 1:
            return found[0]
        known = sorted({name for result in results for name in result.field_names})
        what = ".".join(map(str, fields))
        cause = f"the result has no {what!r}; "
        cause += (
            f"its fields are {join_names(known)}" if known else f"it is one value, {key!r} alone"
        )
        cause = "several results of that step have it" if found else cause
        self.add(code, index, text, cause, remedy, path)
        return None

    def _for_each(self, index: int, each: object, name: str) -> None:
        if each is None:
            return
        given = each if isinstance(each, dict) else {}
        of, alias = given.get("of"), given.get("as", "item")
        mode = given.get("on_failure", "stop")
        if not isinstance(of, str) or not of or given.keys() - {"of", "as", "on_failure"}:
            self.add(codes.FOR_EACH, index, each, "does not say over which list", path=(name,))
            return
        if not is_context_key(alias) or "." in str(alias):
            cause = "is no name of an element"
            self.add(codes.FOR_EACH, index, alias, cause, path=(name, "as"))
        elif alias in self.view.positions or self.view.stored_types(str(alias)):
            cause = "is the context_key of a result"
            self.add(codes.FOR_EACH, index, alias, cause, "take another name", (name, "as"))
        elif alias == SIGNAL and self.view.steps[index].get("wait_for") is not None:
            cause = "means what comes with the event"
            self.add(codes.FOR_EACH, index, alias, cause, "take another name", (name, "as"))
        if mode not in ("stop", "collect"):
            remedy = "write 'stop' or 'collect'"
            self.add(codes.FOR_EACH, index, mode, "is unknown", remedy, (name, "on_failure"))
        found = self._found(index, (name, "of"), of, codes.FOR_EACH)
        if found is not None and not {form.json_type for form in found.alternatives()} & {
            "array",
            None,
        }:
            self.add(codes.FOR_EACH, index, of, f"it is {found}, not a list", path=(name, "of"))

    def _when(self, index: int, condition: object, name: str) -> None:
        if condition is None:
            return
        faults = list(condition_errors(condition))
        for where, value, cause in faults:
            self.add(codes.CONDITION, index, value, cause, path=(name, *where))
        for where, one in iter_comparisons(condition) if not faults else ():
            path = (name, *where, "of")
            found = self._found(index, path, one["of"], codes.CONDITION)
            kinds = (
                {_KINDS.get(str(form.json_type)) for form in found.alternatives()}
                if found
                else {None}
            )
            if None not in kinds and value_kind(one["than"]) not in kinds:
                cause = f"it is {found}, so {describe_condition(one)!r} cannot be compared"
                self.add(codes.CONDITION, index, one["of"], cause, path=path)

    def _switch(self, index: int, value: object, name: str) -> None:
        if value is not None and not isinstance(value, bool):
            self.add(codes.SHAPE, index, value, "is not a boolean", "write true or false", (name,))

    def _seconds(self, index: int | None, value: object, name: str) -> None:
        if value is not None and not _is_positive(value):
            remedy = "give seconds as a number above 0"
            self.add(codes.SHAPE, index, value, "is no number of seconds", remedy, (name,))

    def _wait(self, index: int, given: object, name: str) -> None:
        if given is None:
            return
        for where, value, cause in wait_errors(name, given):
            self.add(codes.SHAPE, index, value, cause, "correct it", (name, *where))
        for path, text in wait_references({name: given}):
            self._found(index, path, text, codes.SHAPE, _REFERENCE)

    def _order(self) -> None:
        if not self.forward:
            return
        waits, readers = dict(enumerate(self.view.sources)), self.view.readers
        told: dict[int, set[int]] = {}
        for index, read, place in self.forward:
            if place in told.get(index, ()):
                continue
            ahead, behind = reachable_from([index], waits), reachable_from([index], readers)
            circle = ahead & behind
            if place in circle:
                told |= dict.fromkeys(circle, circle)
                names = join_names([str(self.view.keys[one]) for one in sorted(circle)])
                cause = "these steps wait for each other" if len(circle) > 1 else "waits for itself"
                self.add(codes.CYCLE, min(circle), names, cause)
                continue
            cause = f"step {place + 1} runs after step {index + 1}"
            remedy = f"put step {place + 1} first"
            self.add(codes.LATER_STEP, index, read.key, cause, remedy, read.path)

    def _closing(self) -> None:
        last = len(self.view.steps) - 1
        for index, step in enumerate(self.view.steps):
            name = step.get("capability") if isinstance(step, dict) else None
            closing = isinstance(name, str) and name in TERMINAL_STEPS
            for field in _OF_WORK.intersection(step if closing else ()):
                if (name, field) == (RESPOND, "look_again"):
                    continue
                if step[field] not in (None, False):
                    cause, remedy = "the closing step always runs", f"leave {field!r} out"
                    self.add(codes.SHAPE, index, step[field], cause, remedy, (field,))
            if closing and index != last:
                cause = f"{name!r} ends the turn and steps follow it"
                self.add(codes.TERMINAL_STEP_NOT_LAST, index, name, cause)
            elif index == last and not closing:
                cause = "the last step does not answer the request"
                self.add(codes.NO_TERMINAL_STEP, None, name, cause)


def _is_positive(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]


_FIELDS: dict[str, Callable[[_Checker, int, Any, str], None]] = {
    "context_key": _Checker._key,
    "capability": _Checker._capability,
    "task_objective": _Checker._text,
    "success_criteria": _Checker._text,
    "inputs": _Checker._inputs,
    "expected_output": _Checker._output,
    "parameters": _Checker._parameters,
    "when": _Checker._when,
    "for_each": _Checker._for_each,
    "optional": _Checker._switch,
    "timeout": _Checker._seconds,
    "look_again": _Checker._switch,
    "wait_until": _Checker._wait,
    "wait_for": _Checker._wait,
}
"""What checks each field of a step; there are no other fields."""

_OURS = frozenset({"stamp", METADATA_KEY})
_OF_PLAN = ExecutionPlan.__annotations__.keys() - _OURS

_OF_WORK = frozenset({"when", "for_each", "optional", "timeout", "look_again", *WAIT_FIELDS})
"""Fields that a closing step cannot have, except ``look_again`` before an answer."""

_KINDS = {
    **dict.fromkeys(("integer", "number"), "number"),
    "string": "text",
    "boolean": "boolean",
    "null": "nothing",
    "array": "list",
    "object": "object",
}
"""Types of JSON schemas as conditions name what they compare."""
