"""Measure how well capabilities are chosen, on public data.

    python -m tests.benchmarks.selection --data DIR [--embeddings MODULE:NAME] [--splits 5] [--json F]

``DIR`` holds ``clinc150/data_full.json``, ``banking77/{train,test}.csv`` and
``metatool/{all_clean_data.csv,plugin_des.json,multi_tool_query_golden.json}`` as their
authors publish them, and optionally ``hwu64/{train,test}/{seq.in,label}``; by default ``$CAPGRAPH_DATA``, else ``../shared/data``.

What is measured, with the shipped defaults and through the public interface only:

- CLINC150 and BANKING77: share of the official test queries whose intent comes first, with
  5 and 10 training queries for each intent (a new random choice in each split). A candidate
  has its intent's name, as a capability has; ``--hide-names`` takes it away, for comparison
  with published few-shot figures.
- CLINC150 out-of-scope: AUROC of the best score, official test queries against official
  out-of-scope test queries; and what the shipped threshold makes of both.
- 64 intents with 5 examples each, of CLINC150 and BANKING77 together, or of HWU64: share of
  requests for which exactly the right one is chosen, and none; AUROC of the best score
  against requests for the intents that are left out (for HWU64, 50 of its 64 intents).
- MetaTool: 199 described tools, share of queries whose tool comes first; and two-tool
  queries among ten candidates, share where the two come first, and precision and recall
  of what ``select`` returns.
- Time of one selection, and with 1,000 candidates.

How the settings were chosen: only on CLINC150's ``train``, ``val``, ``oos_train`` and
``oos_val`` parts, on BANKING77's ``train.csv``, on one fixed half of each MetaTool tool's
queries and on 150 of its 497 two-tool queries, and on small registries drawn from these.
Nothing measured here was looked at for that; the halves are cut by ``_halves`` and
``_two_tool_queries``.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import platform
import random
import statistics
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from capgraph.registry.discovery import import_object
from capgraph.selection import Candidate, EmbeddingSelector, LexicalSelector

Labelled = list[tuple[str, str]]
Figures = dict[str, float]

_TWO_TOOL_TUNING = 150
_METATOOL_QUERIES = 20  # at most, of each tool's test half
_TARGETS = {
    "CLINC150, 5 examples": 73, "CLINC150, 10 examples": 81,
    "BANKING77, 5 examples": 66, "BANKING77, 10 examples": 76,
    "MetaTool, descriptions": 49, "MetaTool, 5 examples": 66,
}  # fmt: skip


class Remembered(Embeddings):
    """Embeds each distinct text once; several splits and sets share most texts."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model
        self._vectors: dict[str, list[float]] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Embed what is new, in batches."""
        new = sorted(set(texts) - self._vectors.keys())
        for start in range(0, len(new), 512):
            batch = new[start : start + 512]
            self._vectors.update(zip(batch, self._model.embed_documents(batch), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.learn(texts)
        return [self._vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)


class Bench:
    """The measurements, over one kind of selector."""

    def __init__(self, data: Path, embeddings: Embeddings | None, hide_names: bool) -> None:
        self.data = data
        self.hide_names = hide_names
        self.embeddings = embeddings
        self.remembered = Remembered(embeddings) if embeddings is not None else None
        self.clinc = json.loads((data / "clinc150" / "data_full.json").read_text("utf-8"))
        self.banking = {part: self._banking(part) for part in ("train", "test")}
        self.tools = json.loads((data / "metatool" / "plugin_des.json").read_text("utf-8"))
        self.tuning, self.testing = self._halves()

    def selector(self) -> LexicalSelector:
        """Return a new selector with the shipped defaults."""
        return EmbeddingSelector(self.remembered) if self.remembered else LexicalSelector()

    def _banking(self, part: str) -> Labelled:
        with (self.data / "banking77" / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            return [(row["text"], row["category"]) for row in csv.DictReader(file)]

    def _halves(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Cut each tool's distinct queries into a tuning and a test half, always alike."""
        queries = defaultdict(set)
        path = self.data / "metatool" / "all_clean_data.csv"
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                queries[row["Tool"]].add(row["Query"].strip())
        tuning, testing = {}, {}
        for tool in sorted(queries):
            texts = sorted(queries[tool])
            random.Random("fixed" + tool).shuffle(texts)
            tuning[tool], testing[tool] = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        return tuning, testing

    def _two_tool_queries(self) -> list[dict[str, Any]]:
        path = self.data / "metatool" / "multi_tool_query_golden.json"
        pairs: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
        random.Random(7).shuffle(pairs)
        return pairs[_TWO_TOOL_TUNING:]

    async def _ranked(
        self, candidates: Sequence[Candidate], queries: Labelled
    ) -> tuple[float, list[float]]:
        """Return the share whose label comes first, and every query's best score."""
        selector = self.selector()
        if self.remembered:
            self.remembered.learn(text for text, _ in queries)
        right, best = 0, []
        for text, label in queries:
            scores = await selector.score(text, candidates)
            first = next(iter(scores), "")
            right += first == label
            best.append(scores.get(first, 0.0))
        return 100 * right / len(queries), best

    def _few_shot(self, train: Labelled, each: int, seed: int) -> tuple[list[Candidate], Any]:
        by_label: dict[str, list[str]] = defaultdict(list)
        for text, label in train:
            by_label[label].append(text)
        rng = random.Random(seed)
        names = {
            label: f"intent {number}" if self.hide_names else label
            for number, label in enumerate(sorted(by_label))
        }
        candidates = [
            Candidate(names[label], "", positives=tuple(rng.sample(by_label[label], each)))
            for label in sorted(by_label)
        ]
        return candidates, names

    async def intents(self, seed: int) -> Figures:
        """CLINC150 (with out-of-scope queries) and BANKING77."""
        out: Figures = {}
        for each in (5, 10):
            candidates, names = self._few_shot(self.clinc["train"], each, seed)
            inside = [(text, names[label]) for text, label in self.clinc["test"]]
            outside = [(text, "") for text, _ in self.clinc["oos_test"]]
            key = f"{each} examples"
            out[f"CLINC150, {key}"], known = await self._ranked(candidates, inside)
            _, unknown = await self._ranked(candidates, outside)
            out[f"CLINC150 out-of-scope AUROC, {key}"] = 100 * _auroc(known, unknown)
            out[f"CLINC150 in scope, accepted, {key}"] = _share(known, lambda s: s >= 0.5)
            out[f"CLINC150 out-of-scope, refused, {key}"] = _share(unknown, lambda s: s < 0.5)
            candidates, names = self._few_shot(self.banking["train"], each, seed)
            inside = [(text, names[label]) for text, label in self.banking["test"]]
            out[f"BANKING77, {key}"], _ = await self._ranked(candidates, inside)
        return out

    def _intent_queries(self) -> dict[str, tuple[int, dict[str, Labelled]]]:
        """Return the sets of which some intents are drawn: how many, and the two parts."""
        sets: dict[str, tuple[int, dict[str, Labelled]]] = {
            "CLINC150 and BANKING77": (
                64,
                {
                    part: [(text, label) for text, label in self.clinc[part]] + self.banking[part]
                    for part in ("train", "test")
                },
            )
        }
        folder = self.data / "hwu64"
        if folder.is_dir():
            parts = {
                part: list(
                    zip(
                        *(
                            (folder / part / name).read_text("utf-8").splitlines()
                            for name in ("seq.in", "label")
                        ),
                        strict=True,
                    )
                )
                for part in ("train", "test")
            }
            sets |= {"HWU64": (64, parts), "HWU64 without 14 intents": (50, parts)}
        return sets

    async def choices(self, seed: int) -> Figures:
        """Measure what ``select`` chooses among intents that are drawn at random."""
        out: Figures = {}
        for key, (count, parts) in self._intent_queries().items():
            rng = random.Random(seed)
            names = sorted({label for _, label in parts["train"]})
            inside = set(rng.sample(names, min(count, len(names))))
            train = [(text, label) for text, label in parts["train"] if label in inside]
            candidates, names_by_label = self._few_shot(train, 5, seed)
            queries = rng.sample(parts["test"], min(1500, len(parts["test"])))
            selector = self.selector()
            found = [(label, await selector.select(text, candidates)) for text, label in queries]
            served = [(names_by_label[label], s) for label, s in found if label in inside]
            left_out = [s.best for label, s in found if label not in inside]
            first = [next(iter(s.scores)) == name for name, s in served]
            out[f"{key}, first"] = _share(first, bool)
            out[f"{key}, exact"] = _share([s.names == (name,) for name, s in served], bool)
            out[f"{key}, wrongly none"] = _share([s.best for _, s in served], lambda b: b < 0.5)
            if left_out:
                out[f"{key}, AUROC of none"] = 100 * _auroc([s.best for _, s in served], left_out)
        return out

    def _tools(self, tools: Iterable[str], each: int, rng: random.Random) -> list[Candidate]:
        return [
            Candidate(t, self.tools[t], positives=tuple(rng.sample(self.tuning[t], each)))
            for t in tools
        ]

    async def metatool(self, seed: int) -> Figures:
        """One tool of 199, and two tools of ten."""
        out: Figures = {}
        for each, key in ((0, "descriptions"), (5, "5 examples")):
            rng = random.Random(seed)
            candidates = self._tools(sorted(self.tuning), each, rng)
            queries = [
                (text, tool)
                for tool, texts in self.testing.items()
                for text in rng.sample(texts, min(len(texts), _METATOOL_QUERIES))
            ]
            out[f"MetaTool, {key}"], _ = await self._ranked(candidates, queries)
            out.update(await self._two_of_ten(each, key, rng))
        return out

    async def _two_of_ten(self, each: int, key: str, rng: random.Random) -> Figures:
        both, chosen, correct, wanted = 0, 0, 0, 0
        pairs = self._two_tool_queries()
        for pair in pairs:
            gold = set(pair["tool"])
            others = rng.sample(sorted(self.tuning.keys() - gold), 8)
            candidates = self._tools([*sorted(gold), *others], each, rng)
            selector = self.selector()
            scores = await selector.score(pair["query"], candidates)
            both += set(list(scores)[:2]) == gold
            names = (await selector.select(pair["query"], candidates)).names
            chosen += len(names)
            correct += len(gold.intersection(names))
            wanted += len(gold)
        return {
            f"MetaTool two of ten, both first, {key}": 100 * both / len(pairs),
            f"MetaTool two of ten, precision, {key}": 100 * correct / max(1, chosen),
            f"MetaTool two of ten, recall, {key}": 100 * correct / wanted,
        }

    async def times(self) -> Figures:
        """Milliseconds of a selection, texts new to the selector and to the model."""
        queries = [text for text, _ in self.clinc["test"]][:: len(self.clinc["test"]) // 60]
        intents, _ = self._few_shot(self.clinc["train"], 10, 0)
        examples = [text for text, _ in self.clinc["train"]]
        random.Random(0).shuffle(examples)
        thousand = [  # five texts of its own for each of a thousand candidates
            Candidate(f"capability_{n}", examples[5 * n], positives=tuple(examples[5 * n :][1:5]))
            for n in range(1000)
        ]
        out: Figures = {}
        for key, candidates in (("150 candidates", intents), ("1,000 candidates", thousand)):
            fresh = EmbeddingSelector(self.embeddings) if self.embeddings else LexicalSelector()
            start = time.perf_counter()
            await fresh.prepare(candidates)
            out[f"fit, {key} (s)"] = time.perf_counter() - start
            spent = []
            for query in queries:
                start = time.perf_counter()
                await fresh.select(query, candidates)
                spent.append(1000 * (time.perf_counter() - start))
            out[f"one selection, {key} (ms)"] = statistics.median(spent)
        return out


def _auroc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Return how often one of the first is above one of the second; a tie counts half."""
    ranked = sorted(lower)
    pairs = sum(bisect_left(ranked, x) + bisect_right(ranked, x) for x in higher)
    return pairs / (2 * len(higher) * len(lower))


def _share(values: Sequence[float], test: Callable[[float], bool]) -> float:
    return 100 * sum(map(test, values)) / len(values)


def _table(results: dict[str, list[float]], targets: dict[str, int]) -> str:
    lines = ["| figure | mean | spread (sd) | at least |", "|---|---|---|---|"]
    for key, values in results.items():
        spread = f"{statistics.stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(
            f"| {key} | {statistics.fmean(values):.1f} | {spread} | {targets.get(key, '')} |"
        )
    return "\n".join(lines)


async def _main() -> None:
    parser = argparse.ArgumentParser(description="Measure the choice of capabilities.")
    default = os.environ.get("CAPGRAPH_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the data sets")
    parser.add_argument("--embeddings", help="MODULE:NAME of what makes LangChain Embeddings")
    parser.add_argument("--splits", type=int, default=5, help="random choices of examples")
    parser.add_argument("--hide-names", action="store_true", help="do not show intents' names")
    parser.add_argument(
        "--only-choices", action="store_true", help="measure only choices among 64 intents"
    )
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    if not (options.data / "clinc150").is_dir():
        parser.error(f"{options.data} holds no folder clinc150; give the data's folder by --data")
    embeddings = import_object(options.embeddings)() if options.embeddings else None
    bench = Bench(options.data, embeddings, options.hide_names)
    results: dict[str, list[float]] = defaultdict(list)
    for seed in range(options.splits):
        figures = await bench.choices(seed)
        if not options.only_choices:
            figures |= await bench.intents(seed)
            if not options.hide_names:
                figures |= await bench.metatool(seed)
        for key, value in figures.items():
            results[key].append(value)
        print(f"split {seed + 1} of {options.splits} done", flush=True)
    for key, value in ({} if options.only_choices else await bench.times()).items():
        results[key].append(value)
    versions = _versions()
    print("\n" + _table(results, {} if options.embeddings else _TARGETS) + "\n\n" + versions)
    if options.json:
        report = {"embeddings": options.embeddings, "versions": versions, "figures": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _versions() -> str:
    import numpy

    return f"Python {platform.python_version()}, numpy {numpy.__version__}"


if __name__ == "__main__":
    asyncio.run(_main())
