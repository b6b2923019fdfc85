"""What is measured, each against the same work on bare LangGraph in the same process."""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from capgraph import Verdict, behaviors
from capgraph.base.ports import STAGES
from capgraph.stores import open_saver
from tests.benchmarks import programs

_CACHE = behaviors.CacheBehavior


def spread(values: list[float]) -> dict[str, float]:
    """Median with quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


async def _timed(work: Any) -> float:
    gc.collect()
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def per_step(steps: int = 200, rounds: int = 7) -> dict[str, Any]:
    """Seconds per step of a chain and of independent no-op steps, against the loop by hand."""
    settings = programs.load_settings()
    noop = programs.build_graph(programs.noop_registry(), settings=settings)
    link = programs.build_graph(programs.chain_registry(), settings=settings)
    hand = programs.by_hand()
    given = {"messages": [("user", "work")]}
    wide = {**given, "planning_execution_plan": programs.independent_plan(steps)}
    chain = {**given, "planning_execution_plan": programs.chain_plan(steps)}
    times: dict[str, list[float]] = {"by hand": [], "capgraph": [], "capgraph, chain": []}
    for number in range(rounds + 1):
        found = {
            "by hand": await _timed(programs.run_by_hand(hand, steps)),
            "capgraph": await _timed(noop.ainvoke(wide)),
            "capgraph, chain": await _timed(link.ainvoke(chain)),
        }
        if number:  # the first round warms up
            for name, seconds in found.items():
                times[name].append(seconds / steps)
    return _against(times, "by hand")


class _Through:
    """Stands at a stage and does nothing."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
        return await call_next(attempt)


class _Yes:
    """Allows every step."""

    async def decide(self, step: Any, view: Any) -> Verdict:
        return Verdict("allow")


async def per_stage(steps: int = 200, rounds: int = 5) -> dict[str, Any]:
    """Seconds per step with something at each stage, against nothing at any."""
    options: dict[str, dict[str, Any]] = {
        "none": {},
        **{stage: {"behaviors": [_Through(stage)]} for stage in STAGES},
        "every stage": {"behaviors": [_Through(stage) for stage in STAGES]},
        "a step policy": {"policies": [_Yes()]},
    }
    return _against(await _with_options(options, steps, rounds), "none")


def shipped_behaviors() -> dict[str, list[Any]]:
    """One of each built-in behavior that stands around a step, where it does its usual work."""
    return {
        "RetryBehavior": [behaviors.RetryBehavior()],
        "TimeoutBehavior": [behaviors.TimeoutBehavior(60)],
        "RateLimitBehavior": [behaviors.RateLimitBehavior(calls_per_second=10**9)],
        "CircuitBreakerBehavior": [behaviors.CircuitBreakerBehavior()],
        "FallbackBehavior": [behaviors.FallbackBehavior(default={"VALUE": {}})],
        "HumanInLoopBehavior": [behaviors.HumanInLoopBehavior(lambda context, result: True)],
        "GuardrailBehavior": [
            behaviors.GuardrailBehavior(guardrails=[behaviors.PromptInjectionGuardrail()])
        ],
        "AuditBehavior": [behaviors.AuditBehavior()],
        "CacheBehavior": [behaviors.CacheBehavior()],
    }


async def per_behavior(steps: int = 200, rounds: int = 5) -> dict[str, Any]:
    """Seconds per step with each built-in behavior, against none and against the loop by hand."""
    each = shipped_behaviors()
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "empty list": {"behaviors": []},
        **{name: {"behaviors": own} for name, own in each.items()},
        # What is kept is not run, so it would hide what the others cost.
        "all except the cache": {
            "behaviors": [b for own in each.values() for b in own if b.__class__ is not _CACHE]
        },
    }
    times = await _with_options(options, steps, rounds)
    hand = programs.by_hand()
    times["by hand"] = [
        await _timed(programs.run_by_hand(hand, steps)) / steps for _ in range(rounds)
    ]
    bare = statistics.median(times.pop("by hand"))
    found = _against(times, "none")
    base = found["none"]["median"]
    for part in found.values():
        part["bare_steps_more"] = (part["median"] - base) / bare
    return found


async def _with_options(
    options: dict[str, dict[str, Any]], steps: int, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds per step of graphs built in different ways, measured in turns."""
    settings = programs.load_settings()
    graphs = {
        name: programs.build_graph(programs.noop_registry(), settings=settings, **chosen)
        for name, chosen in options.items()
    }
    plan = programs.independent_plan(steps)
    given = {"messages": [("user", "work")], "planning_execution_plan": plan}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds + 1):
        for name, graph in graphs.items():
            seconds = await _timed(graph.ainvoke(given))
            if number:  # the first round warms up
                times[name].append(seconds / steps)
    return times


async def per_adapter(steps: int = 200, rounds: int = 7) -> dict[str, Any]:
    """Seconds per step of adapted tools, each against a capability written to do the same."""
    known = programs.adapted()
    graph = programs.build_graph([*known.values()], settings=programs.load_settings())
    times: dict[str, list[float]] = {name: [] for name in known}
    for number in range(rounds + 1):
        for name in known:
            plan = programs.independent_plan(steps, name)
            for one in plan["steps"]:
                one["parameters"] = {"a": 1}
            given = {"messages": [("user", "work")], "planning_execution_plan": plan}
            seconds = await _timed(graph.ainvoke(given))
            if number:  # the first round warms up
                times[name].append(seconds / steps)
    plain = _against({n: t for n, t in times.items() if "thread" not in n}, "plain")
    threads = _against({n: t for n, t in times.items() if "thread" in n}, "plain_thread")
    return {**plain, **threads}


async def per_step_saved(steps: int = 200, rounds: int = 5) -> dict[str, Any]:
    """The same with the SQLite saver, every step durable before the run ends."""
    times: dict[str, list[float]] = {"by hand": [], "capgraph": []}
    sizes: dict[str, float] = {}
    payload = "x" * 1000
    for _ in range(rounds):
        for name in times:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "threads.sqlite"
                async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
                    if name == "by hand":
                        run = programs.run_by_hand(programs.by_hand(payload, saver), steps, saver)
                    else:
                        registry = programs.chain_registry(payload)
                        run = programs.run_capgraph(registry, programs.chain_plan(steps), saver)
                    times[name].append(await _timed(run) / steps)
                sizes[name] = sum(f.stat().st_size for f in Path(folder).iterdir()) / steps
    return {**_against(times, "by hand"), "bytes_per_step": sizes}


async def react_turn(turns: int = 20, rounds: int = 7) -> dict[str, Any]:
    """Seconds per turn of an agent's loop, a model call and a tool call, against ``create_agent``."""
    agents = programs.looping_agents(turns)
    times: dict[str, list[float]] = {name: [] for name in agents}
    config: Any = {"recursion_limit": 10_000}
    for number in range(rounds + 1):
        for name, (graph, given) in agents.items():
            seconds = await _timed(graph.ainvoke(given, config)) / turns
            if number:  # the first round warms up
                times[name].append(seconds)
    return _against(times, "create_agent")


def _against(times: dict[str, list[float]], base: str) -> dict[str, Any]:
    middle = statistics.median(times[base])
    return {
        name: {**spread(values), "ratio": statistics.median(values) / middle}
        for name, values in times.items()
    }


async def flatness(payload_bytes: int, steps: int = 1000) -> dict[str, Any]:
    """Time and bytes of a step at the end of a long chain against one near its beginning."""
    payload = "x" * payload_bytes
    sizes, marks = {}, {}
    for count in (steps // 4, steps):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "threads.sqlite"
            async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
                graph = programs.build_graph(
                    programs.chain_registry(payload),
                    checkpointer=saver,
                    settings=programs.load_settings(limits={"max_steps": steps + 1}),
                )
                ends: list[float] = []
                async for event in graph.astream(
                    {
                        "messages": [("user", "work")],
                        "planning_execution_plan": programs.chain_plan(count),
                    },
                    {"configurable": {"thread_id": "1"}},
                    stream_mode="custom",
                    durability="sync",
                ):
                    if event["event_type"] == "step_finished":
                        ends.append(time.perf_counter())
            sizes[count] = sum(f.stat().st_size for f in Path(folder).iterdir()) / count
            marks[count] = ends
    ends = marks[steps]
    gaps = [b - a for a, b in itertools.pairwise(ends)]
    early = statistics.median(gaps[5:55])
    late = statistics.median(gaps[-50:])
    return {
        "seconds_near_10": early,
        "seconds_near_end": late,
        "time_ratio": late / early,
        "bytes_per_step": sizes,
        "bytes_ratio": sizes[steps] / sizes[steps // 4],
    }


async def plan_length(short: int = 50, long: int = 800, rounds: int = 5) -> dict[str, float]:
    """Seconds per step of a long chain against those of a short one: what a plan's length costs."""
    graph = programs.build_graph(programs.chain_registry(), settings=programs.load_settings())
    times: dict[int, list[float]] = {short: [], long: []}
    for number in range(rounds + 1):
        for steps, spent in times.items():
            plan = programs.chain_plan(steps)
            given = {"messages": [("user", "work")], "planning_execution_plan": plan}
            seconds = await _timed(graph.ainvoke(given))
            if number:
                spent.append(seconds / steps)
    ratio = statistics.median(times[long]) / statistics.median(times[short])
    return {"short": short, "long": long, "ratio": ratio}


_STORED = (
    "SELECT (SELECT SUM(LENGTH(checkpoint) + LENGTH(metadata)) FROM checkpoints)"
    " + (SELECT SUM(LENGTH(value)) FROM writes)"
)


async def thread_length(turns: int = 150, rounds: int = 100) -> dict[str, Any]:
    """A turn on a long thread against one on a thread of two, everything kept.

    From turn to turn it differs how long ago the thread was saved as a whole. A hundred turns have
    all of it, and what saving it takes.
    """
    counter = itertools.count()
    config = {"configurable": {"thread_id": ""}}
    registry = programs.chain_registry("x" * 300)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_saver(f"sqlite:///{folder}/threads.sqlite") as saver,
            AsyncSqliteSaver.from_conn_string(f"{folder}/bare.sqlite") as bare,
        ):
            settings = programs.load_settings()
            graph = programs.build_graph(registry, checkpointer=saver, settings=settings)
            chat = programs.chat(bare)

            async def three_steps(thread: str) -> None:
                plan = [
                    programs.step(f"t{next(counter)}", "link", expected_output="VALUE")
                    for _ in range(3)
                ]
                given = {"messages": [("user", "work")], "planning_execution_plan": {"steps": plan}}
                config["configurable"]["thread_id"] = thread
                await graph.ainvoke(given, config, durability="sync")

            async def answer(thread: str) -> None:
                config["configurable"]["thread_id"] = thread
                await chat.ainvoke({"messages": [("user", "work")]}, config, durability="sync")

            ours = await _by_length(three_steps, saver, turns, rounds)
            by_hand = await _by_length(answer, bare, turns, rounds)
    return {"turns": turns, "until": turns + rounds, **ours, "by_hand": by_hand}


async def _by_length(turn: Any, saver: Any, turns: int, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"short": [], "long": []}
    sizes: dict[str, list[float]] = {"short": [], "long": []}

    async def measured(kind: str, thread: str) -> None:
        before = await _stored(saver)
        times[kind].append(await _timed(turn(thread)))
        sizes[kind].append(await _stored(saver) - before)

    for _ in range(turns):
        await turn("long")
    for number in range(rounds):
        for _ in range(2):
            await turn(f"short {number}")
        await measured("short", f"short {number}")
        await measured("long", "long")
    return {
        "time": statistics.median(times["long"]) / statistics.median(times["short"]),
        "bytes": statistics.fmean(sizes["long"]) / statistics.fmean(sizes["short"]),
    }


async def _stored(saver: Any) -> float:
    async with saver.conn.execute(_STORED) as cursor:
        return float((await cursor.fetchone())[0] or 0)


async def makespan(plans: int = 20, mean: float = 0.05, seed: int = 7) -> dict[str, Any]:
    """Time of random plans of uneven steps over the length of their critical path."""
    rng = random.Random(seed)
    graph = programs.build_graph(
        programs.wait_registry(), settings=programs.load_settings(limits={"max_parallel": 64})
    )
    ratios = []
    for _ in range(plans):
        plan, critical = programs.random_plan(rng, rng.randint(4, 30), mean)
        first, last = await _span(graph, plan)
        ratios.append((last - first) / critical)
    return {**spread(ratios), "worst": max(ratios)}


async def for_each(
    elements: int = 1000, limit: int = 16, mean: float = 0.05, rounds: int = 5, seed: int = 7
) -> dict[str, Any]:
    """A step over a list: its time over the best that the limit allows, and that of plain steps."""
    rng = random.Random(seed)
    scale = mean / 1.65  # the mean of the durations that are drawn
    rows = [rng.lognormvariate(0, 1) * scale for _ in range(elements)]
    free = [0.0] * limit
    for seconds in rows:  # each begins as soon as one of so many is free
        heapq.heapreplace(free, free[0] + seconds)
    settings = programs.load_settings(limits={"max_parallel": limit})
    waits = programs.build_graph(programs.wait_registry(rows), settings=settings)
    first, last = await _span(waits, programs.each_plan("start"))
    registry = programs.wait_registry([0.0] * elements)
    graph = programs.build_graph(registry, settings=settings)
    plain = [
        programs.step(f"s{n}", "start", parameters={"seconds": 0.0}, expected_output="VALUE")
        for n in range(elements - 1)  # with the answer, as long as a plan may be
    ]
    times: dict[str, list[float]] = {"plain": [], "each": []}
    for _ in range(rounds):
        for name, plan in (("plain", {"steps": plain}), ("each", programs.each_plan("start"))):
            given = {"messages": [("user", "work")], "planning_execution_plan": plan}
            times[name].append(await _timed(graph.ainvoke(given)) / elements)
    ratio = statistics.median(times["each"]) / statistics.median(times["plain"])
    return {
        "elements": elements,
        "makespan": (last - first) / max(free),
        "per_element": ratio,
    }


async def _span(graph: Any, plan: Any) -> tuple[float, float]:
    first = last = 0.0
    async for event in graph.astream(
        {"messages": [("user", "work")], "planning_execution_plan": plan}, stream_mode="custom"
    ):
        if event["event_type"] == "plan_made":
            first = time.perf_counter()
        elif event["event_type"] == "step_finished":
            last = time.perf_counter()
    return first, last


def _with_bytecode() -> dict[str, str]:
    """Return an environment in which a first round writes the bytecode of an installed package."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cold_import(rounds: int = 10) -> dict[str, Any]:
    """Seconds to import in fresh processes, interleaved; the first round warms up."""
    times: dict[str, list[float]] = {"langgraph.graph": [], "capgraph": [], "capgraph.graph": []}
    for number in range(rounds + 1):
        for name in times:
            code = (
                f"import time; t=time.perf_counter(); import {name}; print(time.perf_counter()-t)"
            )
            command = [sys.executable, "-c", code]
            out = subprocess.run(
                command, capture_output=True, text=True, check=True, env=_with_bytecode()
            )
            if number:
                times[name].append(float(out.stdout))
    return _against(times, "langgraph.graph")


QUESTION = "What was the hottest day in Seattle in the summer of 2015?"


def cold_start(rounds: int = 10) -> dict[str, Any]:
    """Seconds of fresh processes, interleaved: up to the demo's first step, and of an import alone.

    The first round warms up.
    """
    times: dict[str, list[float]] = {"langgraph.graph": [], "first step": []}
    environment = _with_bytecode()
    bare = [sys.executable, "-c", "import langgraph.graph"]
    ask = [sys.executable, "-u", "-m", "capgraph", "ask", "--config", "configs/demo.yml"]
    with tempfile.TemporaryDirectory() as home:
        environment |= {"HOME": home, "XDG_DATA_HOME": home}
        for number in range(rounds + 1):
            for name, command in (("langgraph.graph", bare), ("first step", [*ask, QUESTION])):
                seconds = _seconds(command, environment)
                if number:
                    times[name].append(seconds)
    return _against(times, "langgraph.graph")


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return how long a process takes, or what it takes to say that a step started."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.rstrip().endswith("started"):
                seconds = time.perf_counter() - started
                process.kill()
                return seconds
    assert process.returncode == 0, "".join(said)
    return time.perf_counter() - started


def build_seconds(capabilities: int = 1000) -> dict[str, float]:
    """Seconds to build a graph of many capabilities."""
    registry = programs.noop_registry(capabilities)
    started = time.perf_counter()
    programs.build_graph(registry)
    return {"capabilities": capabilities, "seconds": time.perf_counter() - started}


async def many_threads(threads: int = 1000, steps: int = 5) -> dict[str, float]:
    """Turns per second and bytes per thread of many threads at once in one process."""
    saver = InMemorySaver()
    graph = programs.build_graph(programs.chain_registry("v"), checkpointer=saver)
    plan = programs.chain_plan(steps)
    given = {"messages": [("user", "work")], "planning_execution_plan": plan}

    async def all_at_once(label: str) -> int:
        configs = [{"configurable": {"thread_id": f"{label}{n}"}} for n in range(threads)]
        outs = await asyncio.gather(*(graph.ainvoke(given, config) for config in configs))
        return sum(
            sorted(out["execution_step_results"]) == sorted(f"s{n}" for n in range(steps))
            and out["execution_outcome"]["status"] == "completed"
            for out in outs
        )

    await graph.ainvoke(given, {"configurable": {"thread_id": "warm"}})
    started = time.perf_counter()
    complete = await all_at_once("timed")
    seconds = time.perf_counter() - started
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    complete += await all_at_once("traced")
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "threads": threads,
        "complete": complete / 2,
        "turns_per_second": threads / seconds,
        "bytes_per_thread": (after - before) / threads,
    }
