"""Repairs of the data flow: who reads from whom, and in which order."""

from __future__ import annotations

from typing import Any

from framework.planning import problems as codes
from framework.planning.catalog import CLOSING, may_pull_in
from framework.planning.draft import Draft
from framework.planning.graphs import reachable_from, stable_order
from framework.planning.names import closest_name
from framework.planning.problems import Problem
from framework.planning.reading import capability_of, is_key, links_of, make_key
from framework.planning.view import PlanView

_MAX_DEPTH = 20  # of producers that need producers


class _Flow:
    """Who can still supply whom, kept up to date while links are added."""

    def __init__(self, view: PlanView) -> None:
        self.view = view
        self.readers: dict[int, list[int]] = {}
        for index, step in enumerate(view.steps):
            for context_type, key in links_of(step):
                place = view.resolve(index, context_type, key)
                if place is not None:
                    self.connect(place, index)

    def connect(self, supplier: int, reader: int) -> None:
        self.readers.setdefault(supplier, []).append(reader)

    def suppliers(self, index: int, context_type: str) -> list[int]:
        """Steps that could supply a type to a step without making a circle."""
        behind = reachable_from([index], self.readers)
        return [place for place in self.view.by_type.get(context_type, ()) if place not in behind]

    def only_supplier(self, index: int, context_type: str) -> str | None:
        """Return the key that can only be meant: a step before, else stored, else a later step."""
        steps = self.suppliers(index, context_type)
        before = [place for place in steps if place < index]
        stored = list(self.view.available.get(context_type, ()))
        if before or (steps and not stored):
            chosen = before or steps
            key = self.view.keys[chosen[0]] if len(chosen) == 1 else None
            return key if key is not None and len(self.view.places[key]) == 1 else None
        return stored[0] if len(stored) == 1 and not steps else None

    def link(self, index: int, context_type: str, key: str) -> None:
        place = self.view.resolve(index, context_type, key)
        if place is not None:
            self.connect(place, index)


def mend_links(draft: Draft, problems: list[Problem]) -> bool:
    """Correct or add inputs that can only mean one supplier."""
    wanted = (codes.NO_SUPPLIER, codes.TYPE_MISMATCH, codes.MISSING_INPUT)
    faults = [problem for problem in problems if problem.code in wanted]
    if not faults:
        return False
    flow = _Flow(draft.view())
    changed = False
    emptied: set[int] = set()
    for problem in faults:
        assert problem.step is not None
        if problem.code == codes.MISSING_INPUT:
            changed |= _add_link(draft, flow, problem)
        else:
            changed |= _correct_link(draft, flow, problem, emptied)
    for index in emptied:
        draft.steps[index]["inputs"] = [entry for entry in draft.inputs_of(index) if entry != {}]
    return changed


def _add_link(draft: Draft, flow: _Flow, problem: Problem) -> bool:
    index, context_type = _step_of(problem), str(problem.value)
    if any(named == context_type for named, _ in links_of(draft.steps[index])):
        return False  # a repair of this round supplied it already
    key = flow.only_supplier(index, context_type)
    if key is None:
        return False
    inputs = draft.inputs_of(index)
    inputs.append({context_type: key})
    flow.link(index, context_type, key)
    draft.note(
        problem.code,
        index,
        ("inputs", len(inputs) - 1, context_type),
        None,
        key,
        "the only supplier of the type",
    )
    return True


def _correct_link(draft: Draft, flow: _Flow, problem: Problem, emptied: set[int]) -> bool:
    index = _step_of(problem)
    number, context_type = int(problem.path[1]), str(problem.path[2])
    inputs = draft.inputs_of(index)
    key = inputs[number].get(context_type)
    if not isinstance(key, str):
        return False
    new_type, new_key, reason = _meant(flow, index, context_type, key)
    if (new_type, new_key) == (context_type, key):
        return False
    entry = {name: value for name, value in inputs[number].items() if name != context_type}
    if new_type is not None and new_key is not None:
        if new_type in entry or (new_type, new_key) in links_of(draft.steps[index]):
            return False
        entry[new_type] = new_key
        flow.link(index, new_type, new_key)
    inputs[number] = entry
    if not entry:
        emptied.add(index)
    after = f"{new_type}: {new_key}" if new_key is not None else "nothing"
    draft.note(
        problem.code,
        index,
        ("inputs", number, context_type),
        f"{context_type}: {key}",
        after,
        reason,
    )
    return True


def _meant(
    flow: _Flow, index: int, context_type: str, key: str
) -> tuple[str | None, str | None, str]:
    """Decide what a wrong input can only mean; unchanged when that is not certain."""
    view = flow.view
    contract, step = view.contracts[index], view.steps[index]
    if contract is None and capability_of(step) not in CLOSING:
        return context_type, key, ""  # nobody knows what an unknown capability takes
    needed = contract is not None and context_type in contract.requires
    if not needed:
        types = _types_of(view, index, key)
        if contract is not None:
            present = {named for named, _ in links_of(step)}
            types = {name for name in types if name in contract.requires and name not in present}
        if len(types) == 1:
            return types.pop(), key, "the only type of this context that fits"
    if needed or contract is None:
        names = [view.keys[place] for place in flow.suppliers(index, context_type)]
        names += list(view.available.get(context_type, ()))
        exists = key in view.places or view.stored_as(key)
        near = None if exists else closest_name(key, [name for name in names if name is not None])
        if near is not None:
            return context_type, near, "the only supplier of the type with a near name"
        only = flow.only_supplier(index, context_type)
        if only is not None:
            return context_type, only, "the only supplier of the type"
    if not needed and not _can_exist(view, context_type):
        return None, None, "the capability does not need it and nothing here supplies it"
    return context_type, key, ""


def _types_of(view: PlanView, index: int, key: str) -> set[str]:
    places = [place for place in view.places.get(key, ()) if place != index]
    found: set[str] = set(view.stored_as(key)) if not places else set()
    for place in places:
        supplied = view.supplies[place] or frozenset()
        expected = view.steps[place].get("expected_output")
        found |= {expected} if expected in supplied and view.contracts[index] is None else supplied
    return found


def _can_exist(view: PlanView, context_type: str) -> bool:
    return bool(
        context_type in view.makers
        or context_type in view.by_type
        or view.available.get(context_type)
        or context_type in view.catalog.given
    )


def insert_producer(draft: Draft, problems: list[Problem]) -> bool:
    """Plan the one capability that can supply what an input needs; one at a time.

    The plan is read again after each, for others may need the same.
    """
    wanted = (codes.MISSING_INPUT, codes.NO_SUPPLIER, codes.TYPE_MISMATCH)
    faults = [problem for problem in problems if problem.code in wanted]
    if not faults:
        return False
    flow = _Flow(draft.view())
    for problem in faults:
        index = _step_of(problem)
        context_type = str(
            problem.value if problem.code == codes.MISSING_INPUT else problem.path[2]
        )
        contract = flow.view.contracts[index]
        if contract is not None and context_type not in contract.requires:
            continue
        if contract is None and capability_of(draft.steps[index]) not in CLOSING:
            continue
        if flow.view.by_type.get(context_type) or flow.view.available.get(context_type):
            continue
        chain = _Producers(draft, flow, index)
        key = _key_for(draft, problem, context_type)
        if chain.supply(context_type, key) and len(draft.steps) + len(chain.new) <= draft.max_steps:
            _insert(draft, problem, context_type, key, chain.new)
            return True
    return False


def _key_for(draft: Draft, problem: Problem, context_type: str) -> str:
    """Keep the name that the input uses already, if nothing else has it."""
    taken = draft.keys()
    if problem.code == codes.NO_SUPPLIER and is_key(problem.value) and problem.value not in taken:
        return str(problem.value)
    return make_key(context_type, taken)


def _insert(
    draft: Draft, problem: Problem, context_type: str, key: str, new: list[dict[str, Any]]
) -> None:
    index = _step_of(problem)
    inputs = draft.inputs_of(index)
    if problem.code == codes.MISSING_INPUT:
        inputs.append({context_type: key})
    else:
        inputs[int(problem.path[1])][context_type] = key
    names = ", ".join(step["capability"] for step in new)
    draft.note(
        problem.code,
        index,
        ("inputs",),
        f"no {context_type}",
        f"{context_type}: {key}, from {names}",
        "the only capability that supplies it",
    )
    draft.steps[index:index] = new


class _Producers:
    """The steps to add so that one input is supplied."""

    def __init__(self, draft: Draft, flow: _Flow, index: int) -> None:
        self.draft = draft
        self.flow = flow
        self.index = index
        self.new: list[dict[str, Any]] = []
        self.taken = draft.keys()
        self.made: dict[str, str] = {}
        self.open = [str(capability_of(draft.steps[index]))]

    def supply(self, context_type: str, key: str | None = None) -> bool:
        """Add the steps that supply a type; ``False`` when that is not certain or possible."""
        makers = [
            name for name in self.flow.view.makers.get(context_type, ()) if name != self.open[0]
        ]
        if len(makers) != 1 or makers[0] in self.open or len(self.open) > _MAX_DEPTH:
            return False
        spec = self.draft.catalog.capabilities[makers[0]]
        if not may_pull_in(spec):
            return False
        key = key or make_key(context_type, self.taken)
        self.taken.add(key)
        self.open.append(spec.name)
        inputs = []
        for need in spec.requires:
            source = self._source(need.type, need.cardinality == "optional")
            if source is not None:
                inputs.append({need.type: source})
            elif need.cardinality != "optional":
                return False
        self.open.pop()
        self.made[context_type] = key
        objective = self.draft.steps[self.index].get("task_objective")
        self.new.append(
            {
                "context_key": key,
                "capability": spec.name,
                "task_objective": objective
                if isinstance(objective, str) and objective
                else f"Provide {context_type}.",
                "success_criteria": f"{context_type} is available as {key!r}.",
                "expected_output": context_type,
                "parameters": None,
                "inputs": inputs,
            }
        )
        return True

    def _source(self, context_type: str, optional: bool) -> str | None:
        if context_type in self.made:
            return self.made[context_type]
        view = self.flow.view
        exists = view.by_type.get(context_type)
        if exists or (view.available.get(context_type) and not optional):
            return self.flow.only_supplier(self.index, context_type)
        if optional or not self.supply(context_type):
            return None
        return self.made[context_type]


def mend_order(draft: Draft, problems: list[Problem]) -> bool:
    """Put suppliers before their readers, leaving everything else where it is."""
    found = {problem.code for problem in problems}
    if codes.LATER_STEP not in found or codes.CYCLE in found:
        return False
    view = draft.view()
    before: dict[int, set[int]] = {index: set() for index in range(len(draft.steps))}
    for index, step in enumerate(draft.steps):
        for context_type, key in links_of(step):
            place = view.resolve(index, context_type, key)
            if place is not None:
                before[index].add(place)
            # What reads the stored context must do so before a step of that name replaces it.
            for later in view.places.get(key, ()) if place is None else ():
                if later > index:
                    before[later].add(index)
        if capability_of(step) in CLOSING:
            before[index].update(set(before) - {index})
    order = stable_order(before)
    if order is None or order == list(range(len(order))):
        return False
    names = [str(key) for key in view.keys]
    draft.steps[:] = [draft.steps[place] for place in order]
    draft.note(
        codes.LATER_STEP,
        None,
        ("steps",),
        " > ".join(names),
        " > ".join(names[place] for place in order),
        "suppliers come first",
    )
    return True


def _step_of(problem: Problem) -> int:
    assert problem.step is not None
    return problem.step
