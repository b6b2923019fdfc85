"""Mending what has exactly one right answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

from framework.base import ExecutionPlan
from framework.planning import problems as codes
from framework.planning.catalog import CLARIFY, CLOSING, RESPOND, Available, Catalog
from framework.planning.check import DEFAULT_MAX_STEPS, check_plan
from framework.planning.closing import closing_step
from framework.planning.draft import Draft, RepairedPlan
from framework.planning.names import closest_name
from framework.planning.parameters import parameter_faults, replace_at
from framework.planning.problems import Problem
from framework.planning.reading import as_text, capability_of, is_too_deep, links_of, make_key
from framework.planning.repair_links import insert_producer, mend_links, mend_order
from framework.planning.view import PlanView

_MAX_ROUNDS = 100
_MAX_NAMES = 50  # comparing names is slow; a plan of inventions is not worth more

Fixer = Callable[[Draft, list[Problem]], bool]


def repair_plan(
    plan: object,
    catalog: Catalog,
    available: Available | None = None,
    *,
    active: Collection[str] | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> RepairedPlan:
    """Apply every repair that has exactly one right answer, and say which.

    The argument is not changed, nor is any step that has no problem, save for the inputs that
    follow a renamed step. A plan without problems comes back as it is.

    Args:
        plan: The plan; anything that came out of JSON is accepted.
        catalog: The capabilities that may be used, usually the registry.
        available: Stored context keys by type.
        active: Names of the selected capabilities; ``None`` when no selection was made.
        max_steps: The longest plan that is accepted.

    >>> from framework.base import CapabilitySpec, Requirement
    >>> from framework.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", provides=("MEAN",),
    ...                    requires=(Requirement("DATA"),)),
    ... )
    >>> mended = repair_plan([{"context_key": "mean", "capability": "Average"}], catalog)
    >>> [step["capability"] for step in mended.plan["steps"]], mended.ok
    (['fetch', 'average', 'respond'], True)
    >>> [repair.code for repair in mended.repairs]
    ['CG-P01', 'CG-P04', 'CG-P16', 'CG-P08']
    """
    wrapped = {"steps": plan} if isinstance(plan, list) else plan
    steps = wrapped.get("steps", []) if isinstance(wrapped, dict) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        # What is not even a list of objects was not a plan with a fault.
        problems = check_plan(plan, catalog, available, active=active, max_steps=max_steps)
        kept = plan if isinstance(plan, dict) else {"steps": []}
        return RepairedPlan(cast("ExecutionPlan", kept), (), problems)
    chosen = None if active is None else frozenset(active)
    draft = Draft([dict(step) for step in steps], catalog, available or {}, chosen, max_steps)
    if wrapped is not plan:
        draft.note(codes.SHAPE, None, ("steps",), "a list", "a plan", "its items are steps")
    for _ in range(_MAX_ROUNDS):
        problems = check_plan(
            {"steps": draft.steps}, catalog, draft.available, active=chosen, max_steps=max_steps
        )
        # After each kind of repair the plan is read afresh: one repair may settle another.
        if not problems or not any(fixer(draft, problems) for fixer in _FIXERS):
            break
    mended = {**(wrapped if isinstance(wrapped, dict) else {}), "steps": draft.steps}
    problems = check_plan(mended, catalog, available, active=chosen, max_steps=max_steps)
    return RepairedPlan(cast("ExecutionPlan", mended), tuple(draft.repairs), problems)


def _steps(problems: list[Problem], *wanted: str) -> list[int]:
    """Return the steps that have a problem of some kind, each once, in order."""
    return sorted({p.step for p in problems if p.code in wanted and p.step is not None})


def _mend_inputs(draft: Draft, problems: list[Problem]) -> bool:
    """Rewrite inputs that say the same in another form."""
    code, reason = codes.MALFORMED_INPUT, "the same inputs, written as asked"
    changed = False
    for index in _steps(problems, code):
        normal = list(_normal_inputs(draft.steps[index].get("inputs")))
        changed |= draft.set_field(code, index, "inputs", normal, reason)
    return changed


def _normal_inputs(inputs: object) -> Iterator[Any]:
    seen: set[tuple[str, str]] = set()
    for entry in (
        [inputs] if isinstance(inputs, dict) else inputs if isinstance(inputs, list) else ()
    ):
        if not isinstance(entry, dict):
            if entry is not None:
                yield entry
            continue
        for context_type, value in entry.items():
            for key in value if isinstance(value, list) else [value]:
                name = as_text(key)
                if name is None or not isinstance(context_type, str):
                    yield {context_type: key}
                elif (context_type, name) not in seen:
                    seen.add((context_type, name))
                    yield {context_type: name}


def _mend_short_inputs(draft: Draft, problems: list[Problem]) -> bool:
    """Write out inputs that name only a step, by key or number, or a stored result."""
    code, reason = codes.MALFORMED_INPUT, "the only type of this result that fits"
    changed = False
    view = draft.view()
    for index in _steps(problems, code):
        inputs = draft.steps[index].get("inputs")
        if isinstance(inputs, list):
            written = [_written_out(view, index, entry) for entry in inputs]
            changed |= draft.set_field(code, index, "inputs", written, reason)
    return changed


def _written_out(view: PlanView, index: int, entry: object) -> Any:
    name = as_text(entry)
    if name is None:
        return entry
    places = view.places.get(name, [])
    stored = view.stored_as(name)
    if not places and not stored and name.isdecimal() and 1 <= int(name) <= index:
        places = [int(name) - 1]
    key = view.keys[places[0]] if places else name
    types = set(stored) if not places else set(view.supplies[places[0]] or ())
    contract = view.contracts[index]
    if contract is not None:
        types &= contract.requires.keys()
    if key is None or len(places) > 1 or len(types) != 1:
        return entry
    return {types.pop(): key}


def _mend_parameters(draft: Draft, problems: list[Problem]) -> bool:
    """Write values in the one exact form that the capability declares."""
    reason = "the same value in the declared form"
    changed = False
    for index in _steps(problems, codes.PARAMETER):
        step = draft.steps[index]
        spec = draft.catalog.capabilities.get(capability_of(step) or "")
        model, name = (spec.parameters, spec.name) if spec else (None, "")
        for fault in parameter_faults(model, step.get("parameters"), name):
            if fault.mendable:
                step["parameters"] = replace_at(
                    step.get("parameters"), fault.path, fault.replacement
                )
                path = ("parameters", *fault.path)
                draft.note(codes.PARAMETER, index, path, fault.value, fault.replacement, reason)
                changed = True
    return changed


def _mend_names(draft: Draft, problems: list[Problem]) -> bool:
    """Correct capability names that can only be one other name."""
    code, reason = codes.UNKNOWN_CAPABILITY, "the only registered name that is near"
    known = [*draft.catalog.capabilities, *sorted(CLOSING)]
    answers: dict[str, str | None] = {}
    changed = False
    for index in _steps(problems, code):
        name = draft.steps[index]["capability"]
        if name not in answers and len(answers) < _MAX_NAMES:
            answers[name] = closest_name(name, known)
        if answer := answers.get(name):
            changed |= draft.set_field(code, index, "capability", answer, reason)
    return changed


def _mend_copies(draft: Draft, problems: list[Problem]) -> bool:
    """Drop steps that repeat another one exactly, context key included."""
    code, reason = codes.DUPLICATE_KEY, "an exact copy of a step before"
    dropped = []
    places = draft.view().places
    for index in _steps(problems, code):
        step = draft.steps[index]
        before = [place for place in places[step["context_key"]] if place < index]
        if not is_too_deep(step) and any(step == draft.steps[place] for place in before):
            draft.note(code, index, (), step, "nothing", reason)
            dropped.append(index)
    for index in reversed(dropped):
        del draft.steps[index]
    return bool(dropped)


def _mend_keys(draft: Draft, problems: list[Problem]) -> bool:
    """Name steps that have no usable key, and tell apart those that share one."""
    changed = False
    view, taken = draft.view(), draft.keys()
    renamed: dict[tuple[int, str, str], str] = {}
    readers: dict[str, list[tuple[int, str]]] = {}
    for reader, step in enumerate(draft.steps):
        for context_type, key in links_of(step):
            readers.setdefault(key, []).append((reader, context_type))
    for index in _steps(problems, codes.MISSING_KEY, codes.MALFORMED_KEY):
        old = draft.steps[index].get("context_key")
        name = _natural_name(draft, index)
        new = make_key(as_text(old) or name, taken, name)
        taken.add(new)
        if isinstance(old, str) and old:
            if len(view.places[old]) > 1:
                continue  # they are told apart first
            renamed |= {
                (reader, context_type, old): new
                for reader, context_type in readers.get(old, ())
                if view.resolve(reader, context_type, old) == index
            }
        code = codes.MISSING_KEY if old is None or old == "" else codes.MALFORMED_KEY
        changed |= draft.set_field(code, index, "context_key", new, "named after what it supplies")
    draft.rename_inputs(renamed)
    return changed


def _natural_name(draft: Draft, index: int) -> str:
    step = draft.steps[index]
    name = capability_of(step)
    if name == RESPOND:
        return "user_response"
    spec = draft.catalog.capabilities.get(name) if name else None
    if spec is not None and len(spec.provides) == 1:
        return spec.provides[0].lower()
    expected = step.get("expected_output")
    if isinstance(expected, str) and expected:
        return expected.lower()
    return name or "step"


def _mend_duplicates(draft: Draft, problems: list[Problem]) -> bool:
    """Rename steps that share a key, when every input that names it can mean only one."""
    code, reason = codes.DUPLICATE_KEY, "no input can mean the other step of this name"
    changed = False
    for key in sorted({draft.steps[index]["context_key"] for index in _steps(problems, code)}):
        meant = _meant_steps(draft, key)
        if meant is None:
            continue
        renamed = {}
        for place in draft.view().places[key][1:]:
            new = make_key(key, draft.keys())
            changed |= draft.set_field(code, place, "context_key", new, reason)
            renamed.update({link: new for link, step in meant.items() if step == place})
        draft.rename_inputs(renamed)
    return changed


def _meant_steps(draft: Draft, key: str) -> dict[tuple[int, str, str], int] | None:
    """Tell which step each input of a key means; ``None`` when that is not certain of all."""
    view = draft.view()
    meant: dict[tuple[int, str, str], int] = {}
    for reader, step in enumerate(draft.steps):
        for context_type in [kind for kind, named in links_of(step) if named == key]:
            fitting = [p for p in view.places[key] if p != reader and view.fits(p, context_type)]
            before = [place for place in fitting if place < reader]
            choice = before if before or key in view.available.get(context_type, ()) else fitting
            if len(choice) > 1:
                return None
            if choice:
                meant[reader, context_type, key] = choice[0]
    return meant


def _mend_outputs(draft: Draft, problems: list[Problem]) -> bool:
    """Name the output that a step can only mean."""
    code, reason = codes.UNDECLARED_OUTPUT, "the only type that it provides and that is asked for"
    changed = False
    view = draft.view()
    for index in _steps(problems, code):
        contract, key = view.contracts[index], view.keys[index]
        if contract is None:
            continue
        if not contract.provides:
            no_output = "the capability provides no context"
            changed |= draft.set_field(code, index, "expected_output", None, no_output)
            continue
        asked = {
            context_type
            for reader, step in enumerate(draft.steps)
            for context_type, named in links_of(step)
            if named == key and reader != index and context_type in contract.provides
        }
        choice = contract.provides if len(contract.provides) == 1 else asked
        if len(choice) == 1:
            [only] = choice
            changed |= draft.set_field(code, index, "expected_output", only, reason)
    return changed


def _mend_closing_place(draft: Draft, problems: list[Problem]) -> bool:
    """Move the one closing step behind all others."""
    misplaced = _steps(problems, codes.CLOSING_NOT_LAST)
    names = [capability_of(step) for step in draft.steps]
    if not misplaced or names.count(RESPOND) != 1 or CLARIFY in names:
        return False
    index = misplaced[0]
    draft.note(
        codes.CLOSING_NOT_LAST,
        index,
        ("steps",),
        f"step {index + 1}",
        f"step {len(names)}",
        "the answer comes after everything else",
    )
    draft.steps.append(draft.steps.pop(index))
    return True


def _mend_missing_closing(draft: Draft, problems: list[Problem]) -> bool:
    """End the plan with an answer."""
    missing = [p.code for p in problems if p.code in (codes.EMPTY, codes.NO_CLOSING)]
    if not missing or any(capability_of(step) in CLOSING for step in draft.steps):
        return False
    step = closing_step(draft.view(), draft.keys())
    draft.steps.append(dict(step))
    draft.note(
        missing[0],
        len(draft.steps) - 1,
        ("steps",),
        "no closing step",
        RESPOND,
        "every request gets an answer",
    )
    return True


_FIXERS: tuple[Fixer, ...] = (
    _mend_short_inputs,
    _mend_inputs,
    _mend_parameters,
    _mend_names,
    _mend_copies,
    _mend_duplicates,
    _mend_keys,
    _mend_outputs,
    _mend_closing_place,
    mend_links,
    insert_producer,
    mend_order,
    _mend_missing_closing,
)
