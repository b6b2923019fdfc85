"""Repairs of the data flow between steps: inputs, missing suppliers, and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capgraph.base import CapabilitySpec
from capgraph.base.value_context import list_item_types
from capgraph.planning import problems as codes
from capgraph.planning.catalog import (
    MANY_SUFFIX,
    TERMINAL_STEPS,
    is_harmless,
    may_auto_include,
    required_type,
    satisfied_types,
)
from capgraph.planning.draft import PlanDraft
from capgraph.planning.graph_algorithms import stable_topological_order
from capgraph.planning.name_matching import closest_name
from capgraph.planning.plan_access import is_context_key, make_context_key, step_capability
from capgraph.planning.plan_view import PlanView
from capgraph.planning.problems import Path, Problem
from capgraph.planning.references import StepRead, element_name
from capgraph.planning.step_builders import build_step

_MAX_DEPTH = 20  # of producers that need producers
_OPEN = (codes.NO_SUPPLIER, codes.TYPE_MISMATCH, codes.MISSING_INPUT)


def _find_repairable(draft: PlanDraft, problems: list[Problem]) -> list[tuple[Problem, int, str]]:
    """Return the repairable input problems, each with its step index and input label."""
    may_change = (codes.MISSING_INPUT,) if draft.additions_only else _OPEN
    return [
        (problem, problem.step, str(problem.path[2] if len(problem.path) > 2 else problem.value))
        for problem in problems
        if problem.code in may_change and problem.step is not None
    ]


def repair_links(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Add or correct step inputs for which only one supplier is possible."""
    changed = set()
    for problem, index, label in _find_repairable(draft, problems):
        inputs = draft.steps[index].get("inputs") or []
        key = None if problem.code == codes.MISSING_INPUT else str(problem.value)
        existing = [one for entry in inputs if isinstance(entry, dict) for one in entry.items()]
        if key is not None:
            new_label, new_key, reason = _resolve_input(view, index, label, key)
        elif label in dict(existing):
            continue  # already repaired in this round
        else:
            new_label, new_key = label, view.unique_input(index, label)
            reason = "the only supplier of the type"
            if new_key is None and (new_key := view.unused_element_name(index, label)) is not None:
                reason = "the list element has this type and the step does not use it elsewhere"
        if (new_label, new_key) == (label, key) or (new_label, new_key) in existing:
            continue
        if new_key is not None and new_key != element_name(draft.steps[index]):
            read = StepRead((), new_label, new_key)
            place = view.source_of(index, read)
            if place is not None:
                view.readers.setdefault(place, []).append(index)
            view.reads[index].append(read)
        path = _replace_input(draft, problem, index, label, {new_label: new_key} if new_key else {})
        draft.record(
            problem.code,
            index,
            path,
            _describe_input(label, key),
            _describe_input(new_label, new_key),
            reason,
        )
        changed.add(index)
    for index in changed:
        remaining_inputs = [entry for entry in draft.steps[index]["inputs"] if entry != {}]
        draft.steps[index] = {**draft.steps[index], "inputs": remaining_inputs}
    return bool(changed)


def _replace_input(
    draft: PlanDraft, problem: Problem, index: int, label: str, new_entry: dict[str, str]
) -> Path:
    """Add or replace the step input that a problem refers to, and return the input's path."""
    inputs = list(draft.steps[index].get("inputs") or ())
    number = int(problem.path[1]) if len(problem.path) > 1 else len(inputs)
    entry = inputs[number] if number < len(inputs) else {}
    inputs[number : number + 1] = [{k: v for k, v in entry.items() if k != label} | new_entry]
    draft.steps[index] = {**draft.steps[index], "inputs": inputs}
    return ("inputs", number, label)


def _describe_input(label: str, key: object) -> str:
    return "nothing" if key is None else f"{label}: {key}"


def _resolve_input(view: PlanView, index: int, label: str, key: str) -> tuple[str, str | None, str]:
    """Return the only valid label and context key for an invalid input, with a reason.

    The label and key are returned unchanged if they are ambiguous.
    """
    contract = view.contracts[index]
    if contract is None and step_capability(view.steps[index]) not in TERMINAL_STEPS:
        return label, key, ""  # the inputs of an unknown capability are unknown
    is_declared = contract is not None and label in contract.requirements
    if not is_declared:
        labels = _find_possible_labels(view, index, key)
        if len(labels) == 1:
            return labels.pop(), key, "the only matching type of this context"
    input_type = view.type_of_input(index, label)
    if is_declared or contract is None:
        places = view.possible_suppliers(index, input_type)
        names = [k for p in places if (k := view.keys[p])] + view.stored_by_type.get(input_type, [])
        exists = key in view.positions or view.stored_types(key)
        if not exists and (near := closest_name(key, names)) is not None:
            return label, near, "the only supplier of the type with a similar name"
        if (only := view.unique_input(index, label)) is not None:
            return label, only, "the only supplier of the type"
    known_types = (view.capabilities_by_type, view.steps_by_type, view.stored_by_type)
    known = (
        any(input_type in place for place in known_types)
        or input_type.removesuffix(MANY_SUFFIX) in view.catalog.provided_types
    )
    if not is_declared and not known:
        return label, None, "the capability does not require it and nothing supplies it"
    return label, key, ""


def _find_possible_labels(view: PlanView, index: int, key: str) -> set[str]:
    """Return the labels of the inputs that the result under a context key could supply.

    A label is a context type or a role.
    """
    contract, places = view.contracts[index], [p for p in view.positions.get(key, ()) if p != index]
    if contract is None:
        kinds = set(view.stored_types(key)) if not places else set()
        for place in places:
            expected = view.steps[place].get("expected_output")
            provided = {
                kind for kind in view.supplied_types[place] or () if not kind.endswith(MANY_SUFFIX)
            }
            kinds |= {expected} if expected in provided else provided
        return kinds
    present = {read.label for read in view.reads[index]}
    return {
        label
        for label, input_type in contract.type_by_label.items()
        if label not in present
        if any(
            view.supplied_types[place] is not None and view.step_provides(place, input_type)
            for place in places
        )
        or (not places and view.is_stored(input_type, key))
    }


def insert_producer(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Insert a step that supplies a missing input if exactly one capability can supply it.

    Only one input is repaired per call, because several inputs may need the same new step.
    """
    found = _find_repairable(draft, problems)
    for problem, index, label in found:
        contract, input_type = view.contracts[index], view.type_of_input(index, label)
        if contract is None and step_capability(draft.steps[index]) not in TERMINAL_STEPS:
            continue
        if contract is not None and (
            label not in contract.requirements or view.sibling_inputs(index, label)
        ):
            continue
        if view.steps_by_type.get(input_type) or view.stored_by_type.get(input_type):
            continue
        used_keys = draft.used_keys()
        has_key = problem.code == codes.NO_SUPPLIER and is_context_key(problem.value)
        key = str(problem.value) if has_key and problem.value not in used_keys else None
        new_steps: dict[str, dict[str, Any]] = {}
        is_allowed = is_harmless if draft.open_suppliers else may_auto_include
        if not _add_suppliers(view, index, input_type, key, used_keys, new_steps, (), is_allowed):
            continue
        if len(draft.steps) + len(new_steps) > draft.max_steps:
            continue
        key = new_steps[input_type]["context_key"]
        _replace_input(draft, problem, index, label, {label: key})
        names = ", ".join(step["capability"] for step in new_steps.values())
        after, reason = f"{label}: {key}, from {names}", "the only capability that supplies it"
        draft.record(problem.code, index, ("inputs",), f"no {label}", after, reason)
        draft.steps[index:index] = new_steps.values()
        draft.inserted += [step["context_key"] for step in new_steps.values()]
        return True
    return False


def _add_suppliers(
    view: PlanView,
    index: int,
    input_type: str,
    key: str | None,
    used_keys: set[str],
    new_steps: dict[str, dict[str, Any]],
    ancestors: tuple[str, ...],
    is_allowed: Callable[[CapabilitySpec], bool],
) -> bool:
    """Add the steps that supply a missing input to ``new_steps``.

    Returns False if there is no unique way to supply the input.
    """
    reader_name = step_capability(view.steps[index])
    producers = [
        name for name in view.capabilities_by_type.get(input_type, ()) if name != reader_name
    ]
    if len(producers) != 1 or producers[0] in ancestors or len(ancestors) > _MAX_DEPTH:
        return False
    spec = view.catalog.capabilities[producers[0]]
    if not is_allowed(spec) or len({n.type for n in spec.requires}) < len(spec.requires):
        return False
    items = list_item_types(spec.context_types)
    output = next(kind for kind in spec.provides if input_type in satisfied_types([kind], items))
    key = key or make_context_key(output, used_keys)
    used_keys.add(key)
    inputs = []
    for other in spec.requires:
        kind = required_type(other)
        optional = other.cardinality == "optional"
        source = new_steps[kind]["context_key"] if kind in new_steps else None
        if source is None and (
            view.steps_by_type.get(kind) or (view.stored_by_type.get(kind) and not optional)
        ):
            source = view.unique_supplier(index, kind)
        elif source is None and not optional:
            if not _add_suppliers(
                view, index, kind, None, used_keys, new_steps, (*ancestors, spec.name), is_allowed
            ):
                return False
            source = new_steps[kind]["context_key"]
        if source is not None:
            inputs.append({other.label: source})
        elif not optional:
            return False
    objective = view.steps[index].get("task_objective")
    if not (isinstance(objective, str) and objective):
        objective = f"Provide {output}."
    new_steps[input_type] = dict(build_step(key, spec.name, output, objective, inputs))
    return True


def repair_order(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Reorder steps so that suppliers run before the steps that read their results.

    The original order is kept where possible.
    """
    found = {problem.code for problem in problems}
    if codes.LATER_STEP not in found or codes.CYCLE in found:
        return False
    before = {index: set(places) for index, places in enumerate(view.sources)}
    for index, step in enumerate(draft.steps):
        for read in view.reads[index]:
            # A read of a stored context must happen before a step with that key replaces it.
            if view.source_of(index, read) is None:
                for later in view.positions.get(read.key, ()):
                    if later > index:
                        before[later].add(index)
        if step_capability(step) in TERMINAL_STEPS:
            before[index].update(set(before) - {index})
    order = stable_topological_order(before)
    if order is None or order == list(range(len(order))):
        return False
    names = [str(key) for key in view.keys]
    draft.steps[:] = [draft.steps[place] for place in order]
    old, new = " > ".join(names), " > ".join(names[place] for place in order)
    draft.record(codes.LATER_STEP, None, ("steps",), old, new, "suppliers come first")
    return True
