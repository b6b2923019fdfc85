"""Measure which functions are chosen, and whether no more than are needed.

    python -m tests.benchmarks.function_choice [--part tuning|test|all]

The data comes with the package ``bfcl-eval`` (``pip install --no-deps bfcl-eval``; its dependencies
are not needed): requests to language models with the functions that they may call and those that
are right. Each function becomes a candidate
with its name, its description and what its parameters say; nothing else is given.

- live_multiple: one of 2 to 37 functions is right. ``top-1`` is how often it has the best score,
  ``exact`` how often it alone is chosen, ``none`` how often nothing is.
- one registry: the same requests, with all functions of the set to choose from.
- AUROC of none: the best score of live_multiple's requests against that of live_irrelevance's,
  whose functions do not fit.
- parallel_multiple: several functions are right at once.

Settings were chosen on the tuning part of live_multiple and live_irrelevance (requests whose
functions' group, the second number of an id, is even), on parallel_multiple, which has no such
groups and so is no held-out figure, and on MetaTool's tuning pairs. Between two settings that did
equally well there, the figures of all parts had been seen once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from capgraph.registry.candidate import parameter_texts
from capgraph.selection import Candidate, LexicalSelector
from tests.benchmarks.selection import _auroc

Case = tuple[str, list[Candidate], set[str]]


def candidates_of(functions: Iterable[dict[str, Any]]) -> list[Candidate]:
    """Make candidates of functions; of two with one name the first counts."""
    found: dict[str, Candidate] = {}
    for function in functions:
        name = function["name"]
        texts = tuple(parameter_texts(function["parameters"]))
        found.setdefault(name, Candidate(name, function["description"], parameters=texts))
    return list(found.values())


def load(name: str) -> list[tuple[str, Case, list[dict[str, Any]]]]:
    """Read a set: id, case, functions."""
    folder = files("bfcl_eval") / "data"
    answers: dict[str, set[str]] = {}
    given = folder / "possible_answer" / f"BFCL_v4_{name}.json"
    if given.is_file():
        for line in given.read_text("utf-8").splitlines():
            row = json.loads(line)
            answers[row["id"]] = {next(iter(call)) for call in row["ground_truth"]}
    cases = []
    for line in (folder / f"BFCL_v4_{name}.json").read_text("utf-8").splitlines():
        row = json.loads(line)
        said = [message["content"] for message in row["question"][0] if message["role"] == "user"]
        case = (" ".join(said), candidates_of(row["function"]), answers.get(row["id"], set()))
        cases.append((row["id"], case, row["function"]))
    return cases


def in_part(identity: str, part: str) -> bool:
    """Return whether a request belongs to a part."""
    if part == "all":
        return True
    group = int(identity.rsplit("_", 1)[1].split("-")[1])
    return (group % 2 == 0) == (part == "tuning")


async def chosen(cases: Sequence[Case]) -> tuple[dict[str, float], list[float]]:
    """Return the figures of cases, and every request's best score."""
    selector = LexicalSelector()
    exact = first = none = number = missed = 0
    best = []
    for task, candidates, gold in cases:
        selection = await selector.select(task, candidates)
        best.append(selection.best)
        first += next(iter(selection.scores), "") in gold
        exact += set(selection.names) == gold
        none += not selection.names
        number += len(selection.names)
        missed += len(gold - set(selection.names))
    count = len(cases)
    return {
        "top-1": 100 * first / count,
        "exact": 100 * exact / count,
        "none": 100 * none / count,
        "chosen": number / count,
        "missed": missed / count,
    }, best


async def measure(part: str) -> dict[str, float]:
    """Return all figures of a part."""
    out: dict[str, float] = {}
    live = [(case, functions) for i, case, functions in load("live_multiple") if in_part(i, part)]
    figures, known = await chosen([case for case, _ in live])
    out |= {f"live_multiple, {key}": value for key, value in figures.items()}
    everything = candidates_of(f for _, _, fs in load("live_multiple") for f in fs)
    registry = [(task, everything, gold) for (task, _, gold), _ in live]
    figures, _ = await chosen(registry)
    out |= {f"one registry of {len(everything)}, {key}": v for key, v in figures.items()}
    irrelevant = [case for i, case, _ in load("live_irrelevance") if in_part(i, part)]
    figures, unknown = await chosen(irrelevant)
    out["live_irrelevance, none"] = figures["none"]
    out["AUROC of none"] = 100 * _auroc(known, unknown)
    several = [case for _, case, _ in load("parallel_multiple")]
    figures, _ = await chosen(several)
    out |= {f"parallel_multiple, {key}": value for key, value in figures.items()}
    return out


async def _main() -> None:
    parser = argparse.ArgumentParser(description="Measure the choice of functions.")
    parser.add_argument("--part", choices=("tuning", "test", "all"), default="all")
    for key, value in (await measure(parser.parse_args().part)).items():
        print(f"| {key} | {value:.1f} |" if value >= 10 else f"| {key} | {value:.2f} |")


if __name__ == "__main__":
    asyncio.run(_main())
