"""Measure agents with a small model on this machine.

    python -m tests.benchmarks.local_model.run [--set office warehouse] [--system capgraph]
        [--only oslo km] [--repeat 3] [--docs docs/local_models.md] [--json rows.jsonl]
    python -m tests.benchmarks.local_model.run --rows office.jsonl warehouse.jsonl --docs docs/local_models.md

Each system answers each request of a set. The judge compares the calls and the answer with the case
(see ``cases.py``); a proxy counts model calls and tokens. The program starts its own model server,
fetches the model first if it is missing, and ends the server in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.local_model.cases import Case, Domain, judge, recorded_calls
from tests.benchmarks.local_model.fetch import MODEL_NAME, fetch, is_fetched
from tests.benchmarks.local_model.greenhouse import GREENHOUSE
from tests.benchmarks.local_model.meter import Meter, metered
from tests.benchmarks.local_model.office import OFFICE
from tests.benchmarks.local_model.server import running_server
from tests.benchmarks.local_model.systems import SYSTEMS, Ask, Reply, System
from tests.benchmarks.local_model.warehouse import WAREHOUSE
from tests.benchmarks.markdown import replace_results, table

DOMAINS = {domain.name: domain for domain in (OFFICE, WAREHOUSE, GREENHOUSE)}
REQUEST_TIMEOUT_SECONDS = 1200.0
TIMED_OUT = "timed out"
COLUMNS = (
    "system",
    "right capability and arguments",
    "task done",
    "model calls",
    "prompt tokens per call",
    "tokens written",
    "seconds",
    "failures",
)


@dataclass(frozen=True)
class Row:
    """Result of one system on one request.

    Attributes:
        domain: Name of the set.
        system: Name of the system.
        case: Name of the request.
        is_right: See :class:`~tests.benchmarks.local_model.cases.Verdict`.
        is_done: The same.
        failure: Kind of the failure; empty if the task is done.
        model_calls: Requests to the model server.
        prompt_tokens: Tokens of their prompts.
        completion_tokens: Tokens that the model wrote.
        seconds: Time from the request to the answer.
        calls: Functions that were called, with their arguments.
        answer: Last message.
        error: Exception that ended the request.
    """

    domain: str
    system: str
    case: str
    is_right: bool
    is_done: bool
    failure: str
    model_calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    calls: list[tuple[str, dict[str, Any]]]
    answer: str
    error: str = ""

    def __str__(self) -> str:
        state = "done" if self.is_done else self.failure
        made = ", ".join(f"{name}{arguments}" for name, arguments in self.calls)
        answer = " ".join((self.error or self.answer).split())[:100]
        tokens = f"{self.prompt_tokens}+{self.completion_tokens} tokens"
        return (
            f"{self.domain} {self.system} {self.case}: {state};"
            f" {self.model_calls} calls, {tokens}, {self.seconds:.1f} s; [{made}] {answer}"
        )


async def measure_request(
    domain: Domain, system: System, case: Case, ask: Ask, meter: Meter
) -> Row:
    """Let a system answer one request, and judge it."""
    meter.take()
    began = time.monotonic()
    error, reply = "", Reply("")
    failure = ""
    with recorded_calls() as calls:
        try:
            reply = await asyncio.wait_for(ask(case.messages), REQUEST_TIMEOUT_SECONDS)
            failure = reply.problem
        except TimeoutError:
            failure = error = TIMED_OUT
        except Exception as exc:  # any failure of a system is a result
            failure = f"raised {type(exc).__name__}"
            error = f"{type(exc).__name__}: {exc}"
    seconds = time.monotonic() - began
    verdict = judge(case, calls, reply.answer, effects=domain.effects)
    requests = meter.take()
    return Row(
        domain.name,
        system.name,
        case.name,
        verdict.is_right,
        verdict.is_done and not failure,
        failure or verdict.failure,
        len(requests),
        sum(request.prompt_tokens for request in requests),
        sum(request.completion_tokens for request in requests),
        round(seconds, 2),
        [(made.name, dict(made.arguments)) for made in calls],
        reply.answer,
        error,
    )


async def measure(
    domain: Domain, systems: Sequence[System], cases: Sequence[Case], repeat: int, meter: Meter
) -> list[Row]:
    """Measure systems on cases, and report each row as it is known."""
    rows = []
    for system in systems:
        if system.version() is None:
            print(f"{system.title}: {system.package} is not installed", flush=True)
            continue
        ask = system.prepare(domain, meter.url)
        for _ in range(repeat):
            for case in cases:
                row = await measure_request(domain, system, case, ask, meter)
                rows.append(row)
                print(row, flush=True)
    return rows


def table_of(rows: Sequence[Row]) -> str:
    """Return one line for each system that was measured."""
    lines = []
    for system in SYSTEMS:
        own = [row for row in rows if row.system == system.name]
        if not own:
            continue
        calls = sum(row.model_calls for row in own)
        kinds = Counter(row.failure for row in own if row.failure)
        failures = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        lines.append(
            [
                f"{system.title} {system.version()}",
                f"{sum(row.is_right for row in own)}/{len(own)}",
                f"{sum(row.is_done for row in own)}/{len(own)}",
                str(calls),
                str(round(sum(row.prompt_tokens for row in own) / calls) if calls else 0),
                str(sum(row.completion_tokens for row in own)),
                f"{sum(row.seconds for row in own):.0f}",
                failures or "none",
            ]
        )
    return table(COLUMNS, lines)


def text_of(rows: Sequence[Row]) -> str:
    """Return the tables of all sets, each with its heading."""
    parts = [f"Model: {MODEL_NAME}; temperature 0; one thread. Figures are sums over all runs."]
    for name, domain in DOMAINS.items():
        if own := [row for row in rows if row.domain == name]:
            requests, functions = len({row.case for row in own}), len(domain.tools)
            heading = f"### {name.capitalize()}: {requests} requests, {functions} functions"
            parts += [heading, table_of(own)]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.rows:
        lines = [line for file in options.rows for line in file.read_text().splitlines()]
        _report([Row(**json.loads(line)) for line in lines], options)
        return
    if not is_fetched():
        fetch()
    # Ended by a signal, the program leaves its blocks, and so ends the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    with running_server() as upstream, metered(upstream, options.wire) as meter:
        for name in options.set:
            domain = DOMAINS[name]
            cases = [c for c in domain.cases if not options.only or c.name in options.only]
            systems = [system for system in SYSTEMS if system.name in options.system]
            rows += asyncio.run(measure(domain, systems, cases, options.repeat, meter))
    if options.json is not None:
        lines = [json.dumps(asdict(row), ensure_ascii=False) for row in rows]
        options.json.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _report(rows, options)


def _report(rows: Sequence[Row], options: argparse.Namespace) -> None:
    text = text_of(rows)
    print(f"\n{text}")
    if options.docs is not None:
        replace_results(options.docs, text)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--set", nargs="+", choices=list(DOMAINS), default=["office"], help="Sets of requests.")
    names = [system.name for system in SYSTEMS]
    add("--system", nargs="+", choices=names, default=names, help="Systems (default: all).")
    add("--only", nargs="+", default=[], metavar="NAME", help="Names of requests (default: all).")
    add("--repeat", type=int, default=1, metavar="N", help="Runs of each request.")
    add("--rows", nargs="+", type=Path, help="Report the rows of earlier runs; run nothing.")
    add("--docs", type=Path, help="Page whose results are replaced.")
    add("--json", type=Path, help="File for one JSON line per request.")
    add("--wire", type=Path, help="File for all requests to the model, with responses.")
    options = parser.parse_args(arguments)
    known = {case.name for name in options.set for case in DOMAINS[name].cases}
    if unknown := set(options.only) - known:
        parser.error(f"--only {' '.join(sorted(unknown))}: expected names of {sorted(known)}")
    if options.repeat < 1:
        parser.error("--repeat must be 1 or more")
    is_partial = not options.rows and (
        options.only or len(options.system) < len(SYSTEMS) or len(options.set) < len(DOMAINS)
    )
    if options.docs is not None and is_partial:
        parser.error("--docs needs all sets, systems, and requests: a part is no result to publish")
    return options


if __name__ == "__main__":
    main()
