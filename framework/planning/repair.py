"""Repair of plan problems that have exactly one correct solution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

from capgraph.base import ExecutionPlan
from capgraph.planning import problems as codes
from capgraph.planning.catalog import (
    CLARIFY,
    MANY_SUFFIX,
    RESPOND,
    TERMINAL_STEPS,
    Available,
    Catalog,
)
from capgraph.planning.check import DEFAULT_MAX_STEPS, analyze_plan, check_plan
from capgraph.planning.draft import PlanDraft, RepairedPlan
from capgraph.planning.plan_access import (
    is_context_key,
    is_too_deep,
    make_context_key,
    scalar_text,
    step_capability,
)
from capgraph.planning.plan_view import PlanView
from capgraph.planning.problems import NO_CORRECTION, PROBLEM_KINDS, Problem
from capgraph.planning.references import FROM, StepRead, step_reads
from capgraph.planning.repair_links import insert_producer, repair_links, repair_order
from capgraph.planning.step_builders import build_respond_step

_MAX_ROUNDS = 100

Fixer = Callable[[PlanDraft, PlanView, list[Problem]], bool]


def repair_plan(
    plan: object,
    catalog: Catalog,
    available: Available | None = None,
    *,
    active: Collection[str] | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
    additions_only: bool = False,
    open_suppliers: bool = False,
) -> RepairedPlan:
    """Repair each problem in a plan that has exactly one solution, and report the repairs.

    The arguments are not modified. A step without problems does not change, except for inputs
    that read a renamed step. A valid plan is returned unchanged.

    Args:
        plan: Plan to repair, or any other JSON value.
        catalog: Capabilities that the plan may use, usually the registry.
        available: Stored context keys by type.
        active: Names of the selected capabilities. ``None`` allows all capabilities.
        max_steps: Maximum number of steps.
        additions_only: Whether to keep every name, key, and input in the plan. Missing parts
            are added, values are converted to the declared form, and steps are sorted.
        open_suppliers: Whether to insert the only supplier of a missing input even if the
            supplier has required parameters, which the caller must then set.

    >>> from capgraph.base import CapabilitySpec, Requirement
    >>> from capgraph.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", provides=("MEAN",),
    ...                    requires=(Requirement("DATA"),)),
    ... )
    >>> repaired = repair_plan([{"context_key": "mean", "capability": "Average"}], catalog)
    >>> [step["capability"] for step in repaired.plan["steps"]], repaired.ok
    (['fetch', 'average', 'respond'], True)
    >>> [repair.code for repair in repaired.repairs]
    ['CG-P01', 'CG-P04', 'CG-P16', 'CG-P08']
    """
    wrapped = {"steps": plan} if isinstance(plan, list) else plan
    steps = wrapped.get("steps", []) if isinstance(wrapped, dict) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        problems = check_plan(plan, catalog, available, active=active, max_steps=max_steps)
        unrepaired = plan if isinstance(plan, dict) else {"steps": []}
        return RepairedPlan(cast("ExecutionPlan", unrepaired), (), problems)
    draft = PlanDraft(
        [dict(step) for step in steps],
        catalog,
        available or {},
        max_steps,
        additions_only,
        open_suppliers,
    )
    if wrapped is not plan:
        draft.record(codes.SHAPE, None, ("steps",), "a list", "a plan", "its items are steps")
    for _ in range(_MAX_ROUNDS):
        repaired = {**(wrapped if isinstance(wrapped, dict) else {}), "steps": draft.steps}
        view, problems = analyze_plan(repaired, catalog, draft.available, active, max_steps)
        # Analyze the plan again after each kind of repair: one repair may make another unnecessary.
        if not any(fixer(draft, view, problems) for fixer in _FIXERS):
            break
        if [p.code for p in problems] == [codes.NO_TERMINAL_STEP] and len(draft.steps) <= max_steps:
            problems = []  # the appended respond step is valid
            break
    else:
        problems = check_plan(repaired, catalog, available, active=active, max_steps=max_steps)
    result = cast("ExecutionPlan", repaired)
    return RepairedPlan(result, tuple(draft.repairs), problems, tuple(draft.inserted))


def _find_steps(problems: list[Problem], *kinds: str) -> list[int]:
    """Return the positions of the steps that have a problem of the given kinds."""
    return sorted({p.step for p in problems if p.code in kinds and p.step is not None})


def _repair_inputs(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Rewrite malformed step inputs, such as a bare context key, as ``{type: key}`` objects."""
    code, reason = codes.MALFORMED_INPUT, "the same inputs in the expected form"
    changed = False
    for index in _find_steps(problems, code):
        inputs = draft.steps[index].get("inputs")
        entries = inputs if isinstance(inputs, list) else [inputs]
        written: list[Any] = []
        for entry in entries:
            written += _normalize_entry(view, index, entry, written)
        changed |= draft.replace_value(code, index, ("inputs",), written, reason)
    return changed


def _normalize_entry(
    view: PlanView, index: int, entry: object, earlier_inputs: list[Any]
) -> Iterator[Any]:
    """Yield the normalized inputs for one entry of a step's ``inputs``.

    Inputs that earlier entries already contain are skipped.
    """
    if entry is not None and not isinstance(entry, dict):
        entry = _resolve_bare_input(view, index, scalar_text(entry), earlier_inputs) or entry
    if not isinstance(entry, dict):
        yield from () if entry is None else (entry,)
        return
    seen = []
    for label, value in entry.items():
        for key in value if isinstance(value, list) else [value]:
            name = scalar_text(key)
            link = {label: key if name is None or not isinstance(label, str) else name}
            if link not in earlier_inputs and link not in seen:
                seen.append(link)
                yield link


def _resolve_bare_input(
    view: PlanView, index: int, name: str | None, earlier_inputs: list[Any]
) -> Any:
    """Return the input that a bare context key or step number stands for, or ``None``.

    An ambiguous name returns ``None``. If several inputs have the same type but different
    roles, the first unused input is chosen.
    """
    contract = view.contracts[index]
    if name is None or contract is None:
        return None
    places = view.positions.get(name, [])
    stored = view.stored_types(name)
    if not places and not stored and name.isdecimal() and 1 <= int(name) <= index:
        places = [int(name) - 1]
    key = view.keys[places[0]] if places else name
    used_labels = {label for entry in earlier_inputs if isinstance(entry, dict) for label in entry}
    fitting = [
        label
        for label, input_type in contract.type_by_label.items()
        if (
            any(
                view.supplied_types[p] is not None and view.step_provides(p, input_type)
                for p in places
            )
        )
        or (not places and view.is_stored(input_type, name))
    ]
    if key is None or len(places) > 1 or len({contract.requirements[f].type for f in fitting}) != 1:
        return None
    open_ones = [
        label
        for label in fitting
        if len(fitting) == 1
        or label not in used_labels
        or contract.requirements[label].cardinality == "many"
    ]
    return {open_ones[0]: key} if open_ones else None


def _repair_values(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Replace each invalid value in a plan that has exactly one valid replacement."""
    changed = False
    for problem in problems:
        if problem.corrected_value is not NO_CORRECTION and problem.step is not None:
            reason = PROBLEM_KINDS[problem.code].reason
            changed |= draft.replace_value(
                problem.code, problem.step, problem.path, problem.corrected_value, reason
            )
    return changed


def _remove_duplicates(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Remove plan steps that are exact duplicates of an earlier step."""
    code, reason = codes.DUPLICATE_KEY, "an exact duplicate of an earlier step"
    if draft.additions_only:
        return False
    dropped = []
    for index in _find_steps(problems, code):
        step = draft.steps[index]
        before = [place for place in view.positions[step["context_key"]] if place < index]
        if not is_too_deep(step) and any(step == draft.steps[place] for place in before):
            draft.record(code, index, (), step, "nothing", reason)
            dropped.append(index)
    for index in reversed(dropped):
        del draft.steps[index]
    return bool(dropped)


def _repair_keys(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Assign a new context key to each step whose key is missing, invalid, or a duplicate."""
    changed = False
    for index in _find_steps(problems, codes.MISSING_KEY, codes.MALFORMED_KEY, codes.DUPLICATE_KEY):
        if changed:
            view = PlanView(draft.steps, view.catalog, view.available, view.active)
        old = draft.steps[index].get("context_key")
        if draft.additions_only and old not in (None, ""):
            continue
        places = view.positions.get(old, []) if isinstance(old, str) else []
        shared = len(places) > 1
        if (shared and places[0] == index) or (not shared and is_context_key(old)):
            continue
        meant = _match_readers(view, old) if isinstance(old, str) else {}
        if meant is None:
            continue
        name = _suggest_key(draft, index)
        new = make_context_key(scalar_text(old) or name, draft.used_keys(), name)
        code, reason = (
            (codes.DUPLICATE_KEY, "no input can mean the other step with this key")
            if shared
            else (codes.MALFORMED_KEY if old else codes.MISSING_KEY, "named after its result")
        )
        changed |= draft.replace_value(code, index, ("context_key",), new, reason)
        draft.rename_reads([reader for reader, place in meant.items() if place == index], new)
    return changed


def _match_readers(view: PlanView, key: str) -> dict[tuple[int, StepRead], int] | None:
    """Match each input that reads a context key to the step whose result it means.

    Returns ``None`` if the match is ambiguous for any input.
    """
    meant: dict[tuple[int, StepRead], int] = {}
    places = view.positions.get(key, [])
    for reader, read in [
        (n, r) for n, reads in enumerate(view.reads) for r in reads if r.key == key
    ]:
        input_type = view.type_of_input(reader, read.label)
        fitting = [p for p in places if p != reader and view.step_provides(p, input_type)]
        before = [place for place in fitting if place < reader]
        choice = before if before or view.is_stored(input_type, key) else fitting
        if len(choice) > 1:
            return None
        if choice:
            meant[reader, read] = choice[0]
    return meant


def _suggest_key(draft: PlanDraft, index: int) -> str:
    step = draft.steps[index]
    name = step_capability(step)
    if name == RESPOND:
        return "user_response"
    if name and any(read.key == name for read in _iter_reference_reads(draft)):
        return name  # other steps use this name
    spec = draft.catalog.capabilities.get(name) if name else None
    if spec is not None and len(spec.provides) == 1:
        return spec.provides[0].lower()
    expected = step.get("expected_output")
    if isinstance(expected, str) and expected:
        return expected.lower()
    return name or "step"


def _iter_reference_reads(draft: PlanDraft) -> Iterator[StepRead]:
    """Yield each reference to a result in the plan.

    If the path is unknown, its first part is taken as the context key.
    """
    return (read for step in draft.steps for read in step_reads(step) if read.label == FROM)


def _repair_outputs(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Set the expected output of a step if other steps read only one of its output types."""
    code, changed = codes.UNDECLARED_OUTPUT, False
    for index in _find_steps(problems, code):
        asked = {
            view.type_of_input(reader, read.label).removesuffix(MANY_SUFFIX)
            for reader, reads in enumerate(view.reads)
            for read in reads
            if read.key == view.keys[index] and reader != index
        }
        contract = view.contracts[index]
        choice = asked.intersection(contract.spec.provides) if contract is not None else ()
        for only in choice if len(choice) == 1 else ():
            reason = PROBLEM_KINDS[code].reason
            changed |= draft.replace_value(code, index, ("expected_output",), only, reason)
    return changed


def _move_terminal_step(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Move a misplaced ``respond`` step to the end of the plan."""
    misplaced = _find_steps(problems, codes.TERMINAL_STEP_NOT_LAST)
    names = [step_capability(step) for step in draft.steps]
    if not misplaced or names.count(RESPOND) != 1 or CLARIFY in names:
        return False
    index = misplaced[0]
    was, is_now, reason = index + 1, len(names), "the terminal step comes last"
    draft.record(
        codes.TERMINAL_STEP_NOT_LAST, index, ("steps",), f"step {was}", f"step {is_now}", reason
    )
    draft.steps.append(draft.steps.pop(index))
    return True


def _append_respond_step(draft: PlanDraft, view: PlanView, problems: list[Problem]) -> bool:
    """Append a ``respond`` step to a plan that has no terminal step."""
    missing = [p.code for p in problems if p.code in (codes.EMPTY, codes.NO_TERMINAL_STEP)]
    if not missing or any(step_capability(step) in TERMINAL_STEPS for step in draft.steps):
        return False
    step = build_respond_step(view, draft.used_keys())
    draft.steps.append(dict(step))
    place, reason = len(draft.steps) - 1, "every request gets an answer"
    draft.record(missing[0], place, ("steps",), "no terminal step", RESPOND, reason)
    return True


_FIXERS: tuple[Fixer, ...] = (
    _repair_inputs,
    _repair_values,
    _remove_duplicates,
    _repair_keys,
    _repair_outputs,
    _move_terminal_step,
    repair_links,
    insert_producer,
    repair_order,
    _append_respond_step,
)
