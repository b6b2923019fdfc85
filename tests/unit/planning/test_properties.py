"""Property-based tests of planning with valid plans, broken plans, and arbitrary JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from capgraph.base import CapabilitySpec, PlanError, Requirement
from capgraph.planning import (
    PROBLEM_KINDS,
    StaticCatalog,
    carry_over,
    chain_plan,
    check_plan,
    dependencies,
    fingerprints,
    plan_mermaid,
    ready_steps,
    repair_plan,
    requires_closure,
)
from tests.support.sweeps import examples

TYPES = [f"T{number}" for number in range(6)]
QUICK = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = 1
    label: str = ""


@dataclass
class World:
    """A catalog, what is stored, and a plan that is right by construction."""

    catalog: StaticCatalog
    available: dict[str, list[str]]
    steps: list[dict[str, Any]]
    active: list[str] | None = None
    max_steps: int = 1000
    touched: set[int] = field(default_factory=set)

    def check(self) -> list[Any]:
        return check_plan(
            {"steps": self.steps},
            self.catalog,
            self.available,
            active=self.active,
            max_steps=self.max_steps,
        )

    def repair(self) -> Any:
        return repair_plan(
            {"steps": self.steps},
            self.catalog,
            self.available,
            active=self.active,
            max_steps=self.max_steps,
        )

    def work(self) -> list[dict[str, Any]]:
        """Steps that no fault has touched yet, the closing one left out."""
        return [s for s in self.steps if s["capability"] != "respond" and id(s) not in self.touched]

    def spec(self, step: dict[str, Any]) -> CapabilitySpec:
        return self.catalog.capabilities[step["capability"]]


@st.composite
def catalogs(draw: Any) -> StaticCatalog:
    specs = []
    for number in range(draw(st.integers(2, 7))):
        needs = draw(st.lists(st.sampled_from(TYPES), max_size=3, unique=True))
        specs.append(
            CapabilitySpec(
                f"capability_number_{'abcdefgh'[number] * 4}",
                "Does something.",
                provides=tuple(
                    draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True))
                ),
                requires=tuple(
                    Requirement(need, draw(st.sampled_from(["one", "many", "optional"])))
                    for need in needs
                ),
                parameters=draw(st.sampled_from([None, Options])),
            )
        )
    return StaticCatalog.of(*specs, infrastructure={"respond", "clarify", "router"})


@st.composite
def worlds(draw: Any, least: int = 1, twins: bool = True) -> World:
    catalog = draw(catalogs())
    available = {
        kind: [f"stored_{kind.lower()}_{n}" for n in range(draw(st.integers(1, 2)))]
        for kind in draw(st.lists(st.sampled_from(TYPES), max_size=3, unique=True))
    }
    supply = {kind: list(keys) for kind, keys in available.items()}
    steps: list[dict[str, Any]] = []
    for number in range(draw(st.integers(least, 8))):
        able = [
            spec
            for spec in catalog.capabilities.values()
            if all(need.type in supply for need in spec.requires if need.cardinality != "optional")
        ]
        if not able:
            break
        spec = draw(st.sampled_from(able))
        inputs = []
        for need in spec.requires:
            keys = supply.get(need.type, [])
            if not keys or (need.cardinality == "optional" and draw(st.booleans())):
                continue
            most = len(keys) if need.cardinality == "many" else 1
            for key in draw(
                st.lists(st.sampled_from(keys), min_size=1, max_size=most, unique=True)
            ):
                inputs.append({need.type: key})
        key = f"step_{number}"
        steps.append(
            {
                "context_key": key,
                "capability": spec.name,
                "task_objective": f"do {number}",
                "expected_output": draw(st.sampled_from(spec.provides)),
                "parameters": draw(st.sampled_from([None, {}, {"count": 3, "label": "x"}]))
                if twins
                else {"count": number},
                "inputs": inputs,
            }
        )
        for kind in spec.provides:
            supply.setdefault(kind, []).append(key)
    steps.append({"context_key": "answer", "capability": "respond"})
    assume(len(steps) > least)
    return World(catalog, available, steps)


# Each fault changes the world and returns the code that must be found, or None when the plan
# has no place for it. What it relied on is marked as touched, so that a second fault cannot
# undo it.

Fault = Callable[[Any, World], str | None]


def _pick(draw: Any, world: World, steps: list[dict[str, Any]] | None = None) -> Any:
    steps = world.work() if steps is None else steps
    if not steps:
        return None
    step = draw(st.sampled_from(steps))
    world.touched.add(id(step))
    return step


def _on_step(code: str, change: Callable[[dict[str, Any]], object]) -> Fault:
    def fault(draw: Any, world: World) -> str | None:
        step = _pick(draw, world)
        if step is None:
            return None
        change(step)
        return code

    return fault


def _inactive(draw: Any, world: World) -> str | None:
    step = _pick(draw, world)
    if step is None or world.active is not None:
        return None
    world.active = [name for name in world.catalog.capabilities if name != step["capability"]]
    return "CG-P05"


def _infrastructure(draw: Any, world: World) -> str:
    world.steps.insert(0, {"context_key": "routing", "capability": "router"})
    world.touched.add(id(world.steps[0]))
    return "CG-P06"


def _closing_first(draw: Any, world: World) -> str:
    world.steps.insert(0, {"context_key": "early", "capability": "clarify"})
    world.touched.add(id(world.steps[0]))
    return "CG-P07"


def _no_closing(draw: Any, world: World) -> str | None:
    if world.steps[-1].get("capability") != "respond" or len(world.steps) < 2:
        return None
    world.steps.pop()
    return "CG-P08"


def _duplicate(draw: Any, world: World) -> str | None:
    first, second = _pick(draw, world), _pick(draw, world)
    if first is None or second is None:
        return None
    second["context_key"] = first["context_key"]
    return "CG-P11"


def _ancestors(world: World, step: dict[str, Any]) -> set[str]:
    by_key = {s.get("context_key"): s for s in world.steps if isinstance(s, dict)}
    found: set[str] = set()
    work = [step]
    while work:
        for entry in work.pop().get("inputs") or ():
            for key in entry.values() if isinstance(entry, dict) else ():
                if key in by_key and key not in found:
                    found.add(key)
                    work.append(by_key[key])
    return found


def _two_in_order(draw: Any, world: World) -> tuple[Any, Any]:
    order = {id(step): place for place, step in enumerate(world.steps)}
    first, second = _pick(draw, world), _pick(draw, world)
    if first is None or second is None or not isinstance(first.get("inputs"), list):
        return None, None
    return (first, second) if order[id(first)] < order[id(second)] else (second, first)


def _later(draw: Any, world: World) -> str | None:
    first, second = _two_in_order(draw, world)
    if first is None or first["context_key"] in _ancestors(world, second):
        return None
    first["inputs"].append({world.spec(second).provides[0]: second["context_key"]})
    return "CG-P14"


def _cycle(draw: Any, world: World) -> str | None:
    first, second = _two_in_order(draw, world)
    direct = first and any(first["context_key"] in entry.values() for entry in second["inputs"])
    if not direct:
        return None
    first["inputs"].append({world.spec(second).provides[0]: second["context_key"]})
    return "CG-P18"


def _mismatch(draw: Any, world: World) -> str | None:
    first, second = _two_in_order(draw, world)
    if first is None:
        return None
    second["inputs"].append({"NO_SUCH_TYPE": first["context_key"]})
    return "CG-P15"


def _missing_input(draw: Any, world: World) -> str | None:
    steps = [
        step
        for step in world.work()
        if any(need.cardinality != "optional" for need in world.spec(step).requires)
    ]
    step = _pick(draw, world, steps)
    if step is None:
        return None
    needs = [n.type for n in world.spec(step).requires if n.cardinality != "optional"]
    kind = draw(st.sampled_from(needs))
    step["inputs"] = [entry for entry in step["inputs"] if kind not in entry]
    return "CG-P16"


def _too_many(draw: Any, world: World) -> str | None:
    for step in world.work():
        for need in world.spec(step).requires:
            spare = [
                k
                for k in world.available.get(need.type, [])
                if {need.type: k} not in step["inputs"]
            ]
            if need.cardinality == "one" and spare:
                step["inputs"].append({need.type: spare[0]})
                world.touched.add(id(step))
                return "CG-P17"
    return None


def _too_long(draw: Any, world: World) -> str:
    world.max_steps = 1 if len(world.steps) > 2 else 0
    return "CG-P03"


FAULTS: dict[str, Fault] = {
    "shape of a field": _on_step("CG-P01", lambda s: s.update(task_objective=["no"])),
    "shape of capability": _on_step("CG-P01", lambda s: s.update(capability=None)),
    "too long": _too_long,
    "unknown": _on_step("CG-P04", lambda s: s.update(capability="zzz")),
    "inactive": _inactive,
    "infrastructure": _infrastructure,
    "closing first": _closing_first,
    "no closing": _no_closing,
    "missing key": _on_step("CG-P09", lambda s: s.pop("context_key")),
    "malformed key": _on_step("CG-P10", lambda s: s.update(context_key=f"{s['context_key']} !")),
    "duplicate key": _duplicate,
    "malformed inputs": _on_step("CG-P12", lambda s: s.update(inputs="all")),
    "malformed input": _on_step("CG-P12", lambda s: s["inputs"].append({"T0": ["a"]})),
    "no supplier": _on_step("CG-P13", lambda s: s["inputs"].append({"T0": "ghost"})),
    "later": _later,
    "mismatch": _mismatch,
    "missing input": _missing_input,
    "too many": _too_many,
    "cycle": _cycle,
    "own output": _on_step(
        "CG-P18", lambda s: s["inputs"].append({s["expected_output"]: s["context_key"]})
    ),
    "parameter": _on_step("CG-P19", lambda s: s.update(parameters={"count": [1]})),
    "undeclared output": _on_step("CG-P20", lambda s: s.update(expected_output="NOPE")),
    "not plain": _on_step("CG-P21", lambda s: s.update(parameters={"count": float("nan")})),
}


@QUICK
@given(worlds())
def test_a_valid_plan_has_no_problems_and_is_not_changed(world: World) -> None:
    assert world.check() == []
    repaired = world.repair()
    assert (repaired.plan, repaired.repairs) == ({"steps": world.steps}, ())


@pytest.mark.parametrize("name", FAULTS)
@settings(QUICK, max_examples=examples(30))
@given(data=st.data())
def test_each_injected_error_is_found(name: str, data: st.DataObject) -> None:
    world = data.draw(worlds(least=2))
    code = FAULTS[name](data.draw, world)
    assume(code is not None)
    assert code in {problem.code for problem in world.check()}


@settings(QUICK, max_examples=examples(200))
@given(st.data(), st.sampled_from(sorted(FAULTS)), st.sampled_from(sorted(FAULTS)))
def test_two_errors_do_not_hide_each_other(data: st.DataObject, first: str, second: str) -> None:
    world = data.draw(worlds(least=4))
    codes = {FAULTS[first](data.draw, world)}
    codes.add(FAULTS[second](data.draw, world))
    assume(None not in codes)
    assert codes <= {problem.code for problem in world.check()}


@settings(QUICK, max_examples=examples(150))
@given(st.data(), st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=2))
def test_repair_changes_only_what_it_reports(data: st.DataObject, faults: list[str]) -> None:
    world = data.draw(worlds(least=4))
    original = copy.deepcopy(world.steps)
    for name in faults:
        FAULTS[name](data.draw, world)
    faulty = copy.deepcopy(world.steps)
    untouched = {
        step["context_key"]: before
        for step, before in ((s, b) for s in world.steps for b in original if s == b)
        if id(step) not in world.touched and step["capability"] != "respond"
    }
    repaired = world.repair()
    assert repr(world.steps) == repr(faulty), "the argument was changed"
    left = {(problem.code, problem.context_key, problem.field) for problem in repaired.problems}
    for repair in repaired.repairs:
        if repair.context_key is not None:
            assert (repair.code, repair.context_key, repair.field) not in left
    shared = [s.get("context_key") for s in faulty if isinstance(s, dict)]
    after = {step.get("context_key"): step for step in repaired.plan["steps"]}
    renamed = any(r.code in ("CG-P09", "CG-P10", "CG-P11") for r in repaired.repairs)
    for key, step in untouched.items():
        if shared.count(key) == 1:
            same = after[key] | {"inputs": None} == step | {"inputs": None}
            assert same
            assert renamed or after[key]["inputs"] == step["inputs"]
    again = repair_plan(
        repaired.plan,
        world.catalog,
        world.available,
        active=world.active,
        max_steps=world.max_steps,
    )
    assert again.repairs == ()


def _lower_first(steps: list[dict[str, Any]]) -> None:
    steps[0]["capability"] = steps[0]["capability"].upper().replace("_", " ")


REPAIRABLE: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "no closing": lambda steps: steps.pop(),
    "name": _lower_first,
    "key": lambda steps: steps[-2].pop("context_key"),
    "characters of a key": lambda steps: steps[-2].update(context_key="a b/c"),
    "input form": lambda steps: [
        s.update(inputs={k: v for e in s["inputs"] for k, v in e.items()})
        for s in steps
        if s.get("inputs") and len({k for e in s["inputs"] for k in e}) == len(s["inputs"])
    ],
    "copied step": lambda steps: steps.insert(1, copy.deepcopy(steps[0])),
    "closing in front": lambda steps: steps.insert(0, steps.pop()),
}


@pytest.mark.parametrize("name", REPAIRABLE)
@settings(QUICK, max_examples=examples(40))
@given(worlds(least=2))
def test_problems_with_one_solution_are_repaired(name: str, world: World) -> None:
    REPAIRABLE[name](world.steps)
    repaired = world.repair()
    assert repaired.problems == []
    assert [str(repair) for repair in repaired.repairs] or name == "input form"


@QUICK
@given(st.data())
def test_the_order_of_a_shuffled_plan_is_restored(data: st.DataObject) -> None:
    world = data.draw(worlds(least=3))
    right = copy.deepcopy(world.steps)
    world.steps = data.draw(st.permutations(world.steps))
    repaired = world.repair()
    assert repaired.problems == []
    assert sorted(map(repr, repaired.plan["steps"])) == sorted(map(repr, right))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(["a", "b", "answer", "fetch", "respond", "router", "T0", "", "a b"]) | JSON
LIKE_A_STEP = st.fixed_dictionaries(
    {},
    optional={
        "context_key": NAMES,
        "capability": NAMES,
        "task_objective": NAMES,
        "success_criteria": JSON,
        "expected_output": NAMES,
        "parameters": st.dictionaries(st.sampled_from(["count", "label", "x"]), JSON) | JSON,
        "inputs": st.lists(st.dictionaries(st.sampled_from(["T0", "T1"]), NAMES)) | JSON,
    },
)
LIKE_A_PLAN = st.fixed_dictionaries({"steps": st.lists(LIKE_A_STEP | JSON, max_size=6)})
FETCH = StaticCatalog.of(
    CapabilitySpec("fetch", "Fetch.", provides=("T0",), parameters=Options),
    CapabilitySpec("a", "Sum.", provides=("T1",), requires=(Requirement("T0"),)),
    infrastructure={"respond", "clarify", "router"},
)


@settings(QUICK, max_examples=examples(200))
@given(LIKE_A_PLAN | JSON)
def test_checking_repairing_and_drawing_never_raise_on_json(plan: Any) -> None:
    problems = check_plan(plan, FETCH, {"T0": ["a"]}, active=["fetch"])
    for problem in problems:
        json.dumps([str(problem), problem.value], allow_nan=False)
        assert problem.code in PROBLEM_KINDS
        assert len(str(problem)) < 2000
    repaired = repair_plan(plan, FETCH, {"T0": ["a"]}, active=["fetch"])
    for repair in repaired.repairs:
        str(repair)
    if isinstance(plan, dict):
        again = repair_plan(repaired.plan, FETCH, {"T0": ["a"]}, active=["fetch"])
        assert again.repairs == ()
    plan_mermaid(plan)


# Schedules.


@st.composite
def scheduled_plans(draw: Any) -> Any:
    steps: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 14))):
        keys = [step["context_key"] for step in steps]
        reads = draw(st.lists(st.sampled_from(keys), max_size=3, unique=True)) if keys else []
        steps.append({"context_key": f"k{number}", "inputs": [{"T": key} for key in reads]})
    return {"steps": steps}


@QUICK
@given(scheduled_plans())
def test_ready_steps_reach_every_step_in_dependency_order(plan: Any) -> None:
    waits = dependencies(plan)
    done: list[str] = []
    while ready := ready_steps(plan, done):
        assert all(waits[key] <= set(done) for key in ready)
        assert ready_steps(plan, done, started=ready) == []
        done.append(ready[-1])
    assert sorted(done) == sorted(waits)


# Planning without a model.


def _feasible(names: list[str], catalog: StaticCatalog, stored: dict[str, list[str]]) -> bool:
    had, left = set(stored), dict(catalog.capabilities)
    while True:
        now = [
            spec
            for spec in left.values()
            if {n.type for n in spec.requires if n.cardinality != "optional"} <= had
        ]
        if not now:
            return not any(name in left for name in names)
        for spec in now:
            had.update(spec.provides)
            del left[spec.name]


@settings(QUICK, max_examples=examples(150))
@given(st.data())
def test_a_chained_plan_is_valid_minimal_and_deterministic(data: st.DataObject) -> None:
    catalog = data.draw(catalogs())
    stored = {
        kind: [f"old_{kind}"]
        for kind in data.draw(st.lists(st.sampled_from(TYPES), max_size=2, unique=True))
    }
    names = data.draw(
        st.lists(st.sampled_from(sorted(catalog.capabilities)), min_size=1, unique=True)
    )
    if not _feasible(names, catalog, stored):
        with pytest.raises(PlanError, match="requires T"):
            chain_plan("the task", names, catalog, stored)
        return
    plan = chain_plan("the task", names, catalog, stored)
    closure = requires_closure(names, catalog, stored)
    assert check_plan(plan, catalog, stored, active=closure) == []
    used = [step["capability"] for step in plan["steps"]]
    assert used[-1] == "respond"
    assert set(used[:-1]) == set(closure) >= set(names)
    assert len(used) == len(set(used))
    assert plan == chain_plan("the task", names, catalog, stored)
    json.dumps(plan)


# Replacing plans.


@QUICK
@given(st.data())
def test_only_a_changed_step_and_its_readers_run_again(
    data: st.DataObject,
) -> None:
    world = data.draw(worlds(least=3, twins=False))
    old: Any = {"steps": world.steps}
    results = {step["context_key"]: {"success": True} for step in world.steps}
    new = copy.deepcopy(old)
    place = data.draw(st.integers(0, len(world.steps) - 2))
    key = world.steps[place]["context_key"]
    new["steps"][place]["parameters"] = {"count": 99}
    again = {key}
    for other, waits in dependencies(new).items():
        if waits & again:
            again.add(other)
    carried = carry_over(old, new, results)
    assert set(carried.rerun) == again | {"answer"}
    assert set(carried.kept) == set(results) - again - {"answer"}
    before, after = fingerprints(old), fingerprints(new)
    assert before[key] != after[key]
    assert all(before[name] == after[name] for name in carried.kept)


@QUICK
@given(worlds(least=2, twins=False))
def test_renaming_steps_changes_neither_fingerprints_nor_reused_results(world: World) -> None:
    old: Any = {"steps": world.steps}
    keys = {step["context_key"] for step in world.steps}
    new: Any = {"steps": []}
    for step in copy.deepcopy(world.steps):
        step["context_key"] += "_new"
        step["inputs"] = [
            {kind: key + "_new" if key in keys else key for kind, key in entry.items()}
            for entry in step.get("inputs") or []
        ]
        new["steps"].append(step)
    results = {key: {"success": True} for key in keys}
    carried = carry_over(old, new, results)
    assert carried.kept == {f"{key}_new": key for key in keys - {"answer"}}
    renamed = {f"{key}_new": value for key, value in fingerprints(old).items()}
    assert fingerprints(new) == renamed
    assert len(set(renamed.values())) == len(renamed)
