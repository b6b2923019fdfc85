"""Function-calling sets of ``bfcl-eval``: functions, right calls, and the same calls made wrong.

The data comes with the package (``pip install --no-deps bfcl-eval``; its dependencies are not
needed).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

LEFT_OUT: Any = object()
_AT_MOST = 64
_MISFITS: dict[str, Any] = {
    "string": {"wrong": 1},
    "integer": "some words",
    "float": "some words",
    "number": "some words",
    "boolean": "some words",
    "dict": "some words",
    "object": "some words",
    "array": 7,
    "tuple": 7,
    "list": 7,
}

Row = tuple[str, list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]


def rows(name: str) -> Iterator[Row]:
    """Yield the rows of a set: id, functions, and the right calls with what may stand in each."""
    folder = files("bfcl_eval") / "data"
    answers: dict[str, Any] = {}
    given = folder / "possible_answer" / f"BFCL_v4_{name}.json"
    if given.is_file():
        for line in given.read_text("utf-8").splitlines():
            row = json.loads(line)
            answers[row["id"]] = row["ground_truth"]
    for line in (folder / f"BFCL_v4_{name}.json").read_text("utf-8").splitlines():
        row = json.loads(line)
        calls = [pair for call in answers.get(row["id"], []) for pair in call.items()]
        yield row["id"], row["function"], calls


def calls_of(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield calls that a right answer stands for; each parameter has its alternatives."""
    choices = [_values(alternatives) for alternatives in answer.values()]
    for chosen in itertools.islice(itertools.product(*choices), _AT_MOST):
        yield {n: v for n, v in zip(answer, chosen, strict=True) if v is not LEFT_OUT}


def _values(alternatives: Any) -> list[Any]:
    if not isinstance(alternatives, list):
        return [alternatives]
    found: list[Any] = []
    for one in alternatives:
        if isinstance(one, dict):
            found += calls_of(one)
        elif isinstance(one, list) and any(isinstance(item, dict) for item in one):
            items = [list(calls_of(item)) for item in one]
            found += map(list, itertools.islice(itertools.product(*items), _AT_MOST))
        elif one == "":  # left out; or empty, where it is needed
            found += [LEFT_OUT, one]
        else:
            found.append(one)
    return sorted(found, key=lambda one: one is LEFT_OUT or one == "") or [LEFT_OUT]


def wrong_calls(
    schema: Mapping[str, Any], call: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a right call with one fault each: what the fault is, and the call."""
    yield "unknown", {**call, "no_such_parameter": 1}
    needed = schema.get("required") or []
    for name, value in call.items():
        said = schema["properties"].get(name)
        if said is None:
            continue
        if name in needed:
            yield f"missing {name}", {n: v for n, v in call.items() if n != name}
        if (misfit := _MISFITS.get(said.get("type"))) is not None:
            yield f"type of {name}", {**call, name: misfit}
        if said.get("enum") and said.get("type") == "string":
            yield f"enum of {name}", {**call, name: "none of these"}
        if isinstance(value, dict) and said.get("properties"):
            for fault, inner in wrong_calls(said, value):
                yield f"{name}: {fault}", {**call, name: inner}
        items = said.get("items") or {}
        if isinstance(value, list) and value and items.get("properties"):
            for fault, inner in wrong_calls(items, value[0]):
                yield f"{name}[0]: {fault}", {**call, name: [inner, *value[1:]]}
