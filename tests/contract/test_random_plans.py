"""Random plans with conditions, lists and optional steps against an interpreter of twenty lines,
and the same plans with a fault put in."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from random import Random
from typing import Any

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.configs.settings import load_settings
from capgraph.planning import check_plan
from capgraph.planning.conditions import MISSING, evaluate_condition
from tests.support.one_door import planned, registered
from tests.support.sweeps import SEED, examples

ANSWER = {"context_key": "answer", "capability": "respond"}
SIGNS = (">", ">=", "<", "<=", "==", "!=")


class Num(CapabilityContext):
    value: int
    items: list[int] = []
    name: str = ""


def num(value: int) -> Num:
    return Num(value=value, items=list(range(value % 5)), name=f"n{value}")


@capability_node
async def number(n: int = 3) -> Num:
    """Give a number."""
    return num(n)


@capability_node
async def plus(a: Num, n: int = 1) -> Num:
    """Add to a number."""
    return num(a.value + n)


@capability_node
async def sums(nums: list[Num]) -> Num:
    """Add numbers."""
    return num(sum(one.value for one in nums))


@capability_node
async def maybe(a: Num | None) -> Num:
    """Take a number that need not be there."""
    return num(100 if a is None else a.value)


@capability_node(max_attempts=1)
async def shaky(n: int = 3) -> Num:
    """Fail for every third number."""
    if n % 3 == 0:
        raise ValueError(f"{n} is a third number")
    return num(n)


REGISTRY = [number, plus, sums, maybe, shaky]


# --- making plans -------------------------------------------------------------------------------


def condition(rng: Random, singles: list[str], depth: int = 0) -> dict[str, Any]:
    kind = rng.random()
    if depth < 2 and kind < 0.25:
        return {"not": condition(rng, singles, depth + 1)}
    if depth < 2 and kind < 0.5:
        parts = [condition(rng, singles, depth + 1) for _ in range(rng.randint(1, 3))]
        return {rng.choice(["and", "or"]): parts}
    of, than = rng.choice([("value", rng.randint(0, 9)), ("name", f"n{rng.randint(0, 9)}")])
    return {"of": f"{rng.choice(singles)}.{of}", "is": rng.choice(SIGNS), "than": than}


def make(rng: Random) -> list[dict[str, Any]]:
    """Make a plan that is right by construction."""
    steps: list[dict[str, Any]] = []
    lists: list[str] = []
    singles: list[str] = []
    for place in range(rng.randint(2, 9)):
        names = ["number", "shaky", *(["plus", "maybe"] if singles else [])]
        names += ["sums"] if singles or lists else []
        name, key = rng.choice(names), f"s{place}"
        step: dict[str, Any] = {"context_key": key, "capability": name, "inputs": []}
        element = None
        if singles and name in ("number", "plus", "shaky") and rng.random() < 0.3:
            of = f"{rng.choice(singles)}.items"
            element = {"$from": "item"}
            if lists and rng.random() < 0.4:
                of, element = rng.choice(lists), {"$from": "item.value"}
            step["for_each"] = {
                "of": of,
                "as": "item",
                "on_failure": rng.choice(["stop", "collect"]),
            }
        if name in ("plus", "maybe"):
            step["inputs"] = [{"NUM": rng.choice(singles)}]
        if name == "sums":
            picked = rng.sample([*singles, *lists], rng.randint(1, min(3, len(singles + lists))))
            step["inputs"] = [{"NUM": one} for one in picked]
        if name in ("number", "plus", "shaky"):
            read = {"$from": f"{rng.choice(singles)}.value"} if singles else 2
            step["parameters"] = {"n": element or rng.choice([rng.randint(0, 9), read])}
        if singles and rng.random() < 0.35:
            step["when"] = condition(rng, singles)
        if name == "shaky" or rng.random() < 0.1:
            step["optional"] = True
        steps.append(step)
        (lists if "for_each" in step else singles).append(key)
    return [*steps, ANSWER]


# --- what they mean -----------------------------------------------------------------------------


def at(found: dict[str, Any], path: str) -> Any:
    key, _, field = path.partition(".")
    value = found[key]
    if value is None or isinstance(value, str):
        return MISSING
    if not field:
        return value
    return value[field]


def interpret(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each step comes to: its value, a list of values, ``not needed`` or ``lost``."""
    found: dict[str, Any] = {}
    for step in steps[:-1]:
        found[step["context_key"]] = _one(step, found)
    return found


def _one(step: dict[str, Any], found: dict[str, Any]) -> Any:
    name, parameters = step["capability"], step.get("parameters") or {}
    gone = {key for key, value in found.items() if isinstance(value, str)}
    if when := step.get("when"):
        held = evaluate_condition(when, lambda path: at(found, path))
        if held is False:
            return "not needed"
        if held is None:
            return _hanging(found, {k for k in gone if f"{k}." in repr(when)})
    read = {v["$from"].split(".")[0] for v in parameters.values() if isinstance(v, dict)} - {"item"}
    read |= {step["for_each"]["of"].split(".")[0]} if "for_each" in step else set()
    inputs = [key for entry in step["inputs"] for key in entry.values()]
    needed = read | (set(inputs) if name == "plus" else set())
    if name == "sums" and set(inputs) <= gone:
        needed |= set(inputs)
    if needed & gone:
        return _hanging(found, needed & gone)
    values = [found[key] for key in inputs if key not in gone]
    if "for_each" not in step:
        value = _work(name, parameters, values, found, None)
        return "lost" if value is None else value
    elements = at(found, step["for_each"]["of"])
    got = [_work(name, parameters, values, found, element) for element in elements]
    done = [value for value in got if value is not None]
    failed = len(done) < len(got) and (step["for_each"]["on_failure"] == "stop" or not done)
    return "lost" if failed else done


def _hanging(found: dict[str, Any], keys: set[str]) -> str:
    return "lost" if any(found[key] == "lost" for key in keys) else "not needed"


def _work(name: str, parameters: Any, values: list[Any], found: Any, element: Any) -> Any:
    n = parameters.get("n")
    if isinstance(n, dict):
        path = n["$from"]
        n = at({**found, "item": element}, path) if path != "item" else element
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    if name == "shaky" and n % 3 == 0:
        return None
    value = {
        "number": lambda: n,
        "shaky": lambda: n,
        "plus": lambda: flat[0]["value"] + n,
        "sums": lambda: sum(one["value"] for one in flat),
        "maybe": lambda: flat[0]["value"] if flat else 100,
    }[name]()
    return num(value).model_dump(mode="json")


# --- the two together ---------------------------------------------------------------------------


def came_to(out: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    data = out["capability_context_data"]
    found = {}
    for step in steps[:-1]:
        key = step["context_key"]
        record = out["execution_step_results"][key]
        if record["success"]:
            found[key] = data["NUM[]" if "for_each" in step else "NUM"][key]
        else:
            found[key] = "not needed" if "not_needed" in record else "lost"
    return found


def plans(count: int) -> list[list[dict[str, Any]]]:
    return [make(Random(f"{SEED}/{one}")) for one in range(count)]


def test_random_plans_come_to_what_they_mean() -> None:
    graph: Any = build_graph(registered(*REGISTRY))

    async def run() -> None:
        for steps in plans(examples(60)):
            out = await graph.ainvoke(planned(*copy.deepcopy(steps)))
            wanted = interpret(steps)
            assert came_to(out, steps) == wanted, steps
            outcome = out["execution_outcome"]
            assert set(outcome["done"]) == {k for k, v in wanted.items() if not isinstance(v, str)}
            idle = {k for k, v in wanted.items() if v == "not needed"}
            assert set(outcome.get("not_needed", ())) == idle
            lost = "lost" in wanted.values() or any("[" in key for key in outcome["missing"])
            assert outcome["status"] == ("partial" if lost else "completed")

    asyncio.run(run())


def test_right_plans_have_no_problem() -> None:
    registry = registered(*REGISTRY)
    for steps in plans(examples(300)):
        assert check_plan({"steps": steps}, registry) == [], steps


Fault = Callable[[list[dict[str, Any]], Random], None]


def _in_condition(**wrong: Any) -> Fault:
    def put(steps: list[dict[str, Any]], rng: Random) -> None:
        right = {"of": "s0.value", "is": ">", "than": 1}
        rule: Any = {**right, **wrong}
        for _ in range(rng.randint(0, 3)):
            rule = rng.choice([{"not": rule}, {"and": [right, rule]}, {"or": [rule]}])
        steps[1]["when"] = rule

    return put


def _on(place: int = 1, **fields: Any) -> Fault:
    return lambda steps, _: steps[place].update(copy.deepcopy(fields))


def _each(**wrong: Any) -> dict[str, Any]:
    return {"for_each": {"of": "s0.items", "as": "item", **wrong}}


# The first step of each plan is made single, the second one is made ``number``.
FAULTS: dict[str, Fault] = {
    "a condition on nothing": _in_condition(of="nowhere.value"),
    "a condition on no field": _in_condition(of="s0.depth"),
    "a condition below a plain value": _in_condition(of="s0.value.depth"),
    "a number with text": _in_condition(than="five"),
    "text with a number": _in_condition(of="s0.name"),
    "a list with a number": _in_condition(of="s0.items"),
    "an unknown sign": _in_condition(**{"is": "=>"}),
    "no order": _in_condition(than=True),
    "a condition on itself": _in_condition(of="s1.value"),
    "a condition on a later step": _in_condition(of="last.value"),
    "a circle by a condition": lambda steps, _: (
        steps[1].update(when={"of": "last.value", "is": ">", "than": 1}),
        steps[-2].update(when={"of": "s1.value", "is": ">", "than": 1}),
    )[0],
    "no condition": _on(when=["s0.value"]),
    "an empty condition": _on(when={}),
    "a list over a number": _on(**_each(of="s0.value")),
    "a list over text": _on(**_each(of="s0.name")),
    "a list over nothing": _on(**_each(of="nowhere")),
    "a list over itself": _on(**_each(of="s1")),
    "a list over a later step": _on(**_each(of="last.items")),
    "an element called as a step": _on(**_each(**{"as": "s0"})),
    "an element with a dot": _on(**_each(**{"as": "a.b"})),
    "an unknown way to fail": _on(**_each(on_failure="panic")),
    "an unknown part": _on(**_each(limit=5)),
    "an element of the wrong type": _on(**_each(), parameters={"n": {"$from": "s0.name"}}),
    "a part of a plain element": _on(**_each(), parameters={"n": {"$from": "item.value"}}),
    "an unknown element": _on(**_each(), parameters={"n": {"$from": "thing"}}),
    "an element without a list": _on(parameters={"n": {"$from": "item"}}, for_each=None),
    "an optional word": _on(optional="yes"),
    "a look of a number": _on(look_again=1),
    "a time limit of nothing": _on(timeout=0),
    "a time limit that is none": _on(timeout=float("nan")),
    "a condition of the answer": _on(-1, when={"of": "s0.value", "is": ">", "than": 1}),
    "a list of answers": _on(-1, **_each()),
}


def test_every_fault_is_found_before_the_run() -> None:
    registry = registered(*REGISTRY)
    for number_of, (name, put) in enumerate(sorted(FAULTS.items())):
        for one in range(examples(5)):
            rng = Random(f"{SEED}/{number_of}/{one}")
            steps = make(rng)
            steps[0] = {"context_key": "s0", "capability": "number", "inputs": []}
            steps[1] = {"context_key": "s1", "capability": "number", "inputs": []}
            last = {"context_key": "last", "capability": "number", "inputs": []}
            steps = (
                [steps[0], steps[1], last, {**ANSWER}]
                if rng.random() < 0.5
                else [*(step for step in steps[:2]), *_independent(rng), last, {**ANSWER}]
            )
            assert check_plan({"steps": steps}, registry) == [], name
            put(steps, rng)
            assert check_plan({"steps": steps}, registry), (name, steps)


def _independent(rng: Random) -> list[dict[str, Any]]:
    return [
        {**step, "context_key": f"x{place}", "inputs": []}
        for place, step in enumerate(make(rng)[:-1])
        if step["capability"] in ("number", "shaky")
        and not step.get("when")
        and "$from" not in repr(step)
    ]


async def test_what_only_the_run_shows_is_bounded_in_it() -> None:
    ran: list[int] = []

    @capability_node
    async def rows(count: int) -> Any:
        """Give so many rows."""
        return list(range(count))

    @capability_node
    async def work(n: int) -> int:
        """Work on one."""
        ran.append(n)
        return n

    settings = load_settings(limits={"max_elements": 50})
    graph: Any = build_graph(registered(rows, work), settings=settings)
    for count, wanted in ((0, "completed"), (50, "completed"), (51, "failed"), (100_000, "failed")):
        ran.clear()
        each = {"of": "r", "as": "item"}
        out = await graph.ainvoke(
            planned(
                {"context_key": "r", "capability": "rows", "parameters": {"count": count}},
                {
                    "context_key": "w",
                    "capability": "work",
                    "for_each": each,
                    "parameters": {"n": {"$from": "item"}},
                },
                ANSWER,
            )
        )
        assert out["execution_outcome"]["status"] == wanted
        assert len(ran) == (count if wanted == "completed" else 0)
