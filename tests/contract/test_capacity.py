"""Slots hold over all turns, threads, graphs and event loops, and nobody waits holding one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import capgraph
import capgraph.pipeline as pipeline_room
from capgraph import CapabilityContext, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.state import AgentState
from tests.support import PATIENCE
from tests.support.doors import Gauge, answer, last_words, let_others_run, soon, status


class Mark(CapabilityContext):
    text: str = "here"


@capability_node
async def mark(gauge: Gauge | None) -> Mark:
    """Leave a mark."""
    return Mark()


class Workshop:
    """A capability that stays inside until it is let out, and notes how many were inside."""

    def __init__(self, name: str = "work", own: int | None = 1) -> None:
        self.inside = self.most = self.runs = 0
        self.entered, self.free = asyncio.Event(), asyncio.Event()

        @capability_node(name=name, max_parallel=own)
        async def work() -> Gauge:
            """Work."""
            self.inside += 1
            self.runs += 1
            self.most = max(self.most, self.inside)
            self.entered.set()
            try:
                await self.free.wait()
            finally:
                self.inside -= 1
            return Gauge(value=self.runs)

        self.capability = work


async def _two_turns(first: Any, second: Any, shop: Workshop) -> list[Any]:
    """Begin a turn, and a second one while the first is inside; let both end."""
    one = asyncio.ensure_future(first.ask(thread="1"))
    await soon(shop.entered.wait())
    two = asyncio.ensure_future(second.ask(thread="2"))
    await let_others_run(1000)
    assert shop.inside == 1, "the second turn waits for the slot of the first"
    shop.free.set()
    return list(await soon(asyncio.gather(one, two)))


@pytest.mark.parametrize("bound", ["own", "process"])
async def test_a_limit_holds_over_two_turns_of_a_graph(agent: Any, step: Any, bound: str) -> None:
    shop = Workshop(own=1 if bound == "own" else None)
    limits = {"max_parallel": 1} if bound == "process" else {}
    it = agent(Gauge, shop.capability, plans=[[step("a", "work")]], limits=limits)
    outs = await _two_turns(it, it, shop)
    assert [status(out) for out in outs] == ["completed", "completed"]
    assert (shop.most, shop.runs) == (1, 2)


@pytest.mark.parametrize("bound", ["own", "process"])
async def test_a_limit_holds_over_two_graphs_of_a_process(
    agent: Any, step: Any, bound: str
) -> None:
    """Without a word about it, graphs of one process share their slots."""
    shop = Workshop(own=1 if bound == "own" else None)
    limits = {"max_parallel": 1} if bound == "process" else {}

    def graph() -> Any:
        return agent(Gauge, shop.capability, plans=[[step("a", "work")]], limits=limits)

    outs = await _two_turns(graph(), graph(), shop)
    assert [status(out) for out in outs] == ["completed", "completed"]
    assert shop.most == 1


async def test_graphs_that_are_given_one_capacity_share_it(agent: Any, step: Any) -> None:
    shop, capacity = Workshop(), pipeline_room.Capacity()

    def graph() -> Any:
        plans = [[step("a", "work")]]
        return agent(Gauge, shop.capability, plans=plans, capacity=capacity)

    await _two_turns(graph(), graph(), shop)
    assert (shop.most, shop.runs) == (1, 2)


async def test_graphs_with_capacities_of_their_own_do_not_wait_for_each_other(
    agent: Any, step: Any
) -> None:
    shop = Workshop()
    agents = [
        agent(
            Gauge,
            shop.capability,
            plans=[[step("a", "work")]],
            capacity=pipeline_room.Capacity(),
        )
        for _ in range(2)
    ]
    running = [asyncio.ensure_future(it.ask(thread=str(n))) for n, it in enumerate(agents)]
    while shop.inside < 2:
        await soon(shop.entered.wait())
        await asyncio.sleep(0)
    shop.free.set()
    await soon(asyncio.gather(*running))
    assert shop.most == 2


@pytest.mark.may_block
def test_a_limit_holds_over_event_loops() -> None:
    """Four synchronous calls in four threads, each with a loop of its own."""
    lock, live, most = threading.Lock(), [0], [0]
    together = threading.Event()

    @capability_node(name="gauge", max_parallel=1, examples=["read the gauge"])
    async def gauge() -> Gauge:
        """Read the gauge."""
        with lock:
            live[0] += 1
            most[0] = max(most[0], live[0])
            if live[0] > 1:
                together.set()
        # Long enough for another to come in, where nothing keeps it out.
        await asyncio.to_thread(together.wait, 0.3)
        with lock:
            live[0] -= 1
        return Gauge(value=7)

    registry = Registry()
    registry.register(Gauge)
    registry.register(gauge)
    arrived = threading.Barrier(5)

    async def arrive(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "gauge":
            await asyncio.to_thread(arrived.wait, PATIENCE)
        return await call_next()

    arrival = type("Arrival", (), {"stage": "finalize", "wrap_step": staticmethod(arrive)})()
    graph = build_graph(registry, behaviors=[arrival])
    outs: list[Any] = []
    given: Any = {"messages": [("user", "read the gauge")]}
    threads = [threading.Thread(target=lambda: outs.append(graph.invoke(given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    arrived.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    assert [status(out) for out in outs] == ["completed"] * 4
    assert most[0] == 1


async def test_a_step_that_waits_for_its_inputs_holds_no_slot(agent: Any, step: Any) -> None:
    """One slot for all; the last in the plan is needed by nobody and the first by all."""
    plan = [
        step("a", "mark"),
        step("b", "read"),
        step("c", "mark", GAUGE="b"),
        step("d", "read"),
        step("e", "mark", GAUGE="d"),
    ]

    @capability_node
    async def read() -> Gauge:
        """Read."""
        await let_others_run(5)
        return Gauge(value=1)

    it = agent(Gauge, Mark, mark, read, plans=[plan], limits={"max_parallel": 1})
    assert status(await soon(it.ask())) == "completed"


async def test_a_step_that_waits_for_a_person_holds_no_slot(agent: Any, step: Any) -> None:
    @capability_node(requires_approval=True, max_parallel=1)
    async def send() -> Mark:
        """Send."""
        return Mark()

    saver = InMemorySaver()
    it = agent(
        Mark, send, plans=[[step("a", "send")]], limits={"max_parallel": 1}, checkpointer=saver
    )
    for thread in ("1", "2", "3"):
        assert (await soon(it.ask(thread=thread)))["__interrupt__"]
    for thread in ("3", "1", "2"):
        assert status(await soon(answer(it, "approve", thread))) == "completed"


async def test_a_step_that_asks_inside_holds_no_slot(agent: Any, step: Any) -> None:
    @capability_node(max_parallel=1)
    async def ask() -> Gauge:
        """Ask."""
        return Gauge(value=int(interrupt("how much?")))

    it = agent(
        Gauge,
        ask,
        plans=[[step("a", "ask")]],
        limits={"max_parallel": 1},
        checkpointer=InMemorySaver(),
    )
    for thread in ("1", "2"):
        assert (await soon(it.ask(thread=thread)))["__interrupt__"]
    for thread in ("2", "1"):
        out = await soon(it.graph.ainvoke(Command(resume=4), it.config(thread)))
        assert status(out) == "completed"


@pytest.mark.parametrize("severity", list(ErrorSeverity))
async def test_a_slot_comes_back_after_every_kind_of_end(
    agent: Any, step: Any, severity: ErrorSeverity
) -> None:
    bad = [True]

    @capability_node(max_parallel=1)
    async def work() -> Gauge:
        """Work."""
        if bad[0]:
            raise CapabilityError("no", severity=severity)
        return Gauge(value=1)

    it = agent(Gauge, work, plans=[[step("a", "work")]], limits={"max_parallel": 1})
    try:
        out = await soon(it.ask(thread="1"))
    except capgraph.base.FatalExecutionError:
        assert severity is ErrorSeverity.FATAL
    else:
        assert "GAUGE" not in (out.get("capability_context_data") or {})
    bad[0] = False
    assert status(await soon(it.ask(thread="2"))) == "completed"


async def test_a_slot_comes_back_after_a_cancelled_run_and_a_cancelled_wait(
    agent: Any, step: Any
) -> None:
    shop = Workshop()
    it = agent(Gauge, shop.capability, plans=[[step("a", "work")]], limits={"max_parallel": 1})
    inside = asyncio.ensure_future(it.ask(thread="1"))
    await soon(shop.entered.wait())
    waiting = asyncio.ensure_future(it.ask(thread="2"))
    await let_others_run(1000)
    for running in (waiting, inside):
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    shop.free.set()
    assert status(await soon(it.ask(thread="3"))) == "completed"


# --- attempts inside attempts --------------------------------------------------------------


def _outer(run_inner: Any, own: int | None = None) -> Any:
    @capability_node(max_parallel=own)
    async def outer() -> Mark:
        """Run another capability."""
        return Mark(text=await run_inner())

    return outer


@capability_node(name="inner", max_parallel=1, examples=["read the inner gauge"])
async def inner() -> Gauge:
    """Read the inner gauge."""
    return Gauge(value=3)


def _in_a_graph_of_ones_own(capability: Any) -> Any:
    """Return a graph whose only node is a bound capability."""
    name = capability.capability_spec.name
    builder: Any = StateGraph(AgentState)
    builder.add_node(name, capgraph.bind([capability]).node(capability))
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


async def _by_node() -> str:
    graph = _in_a_graph_of_ones_own(inner)
    out = await graph.ainvoke({"messages": [("user", "read the inner gauge")]})
    return str(out["capability_context_data"])


async def _by_graph() -> str:
    registry = Registry()
    registry.register(Gauge)
    registry.register(inner)
    graph = build_graph(registry, settings=load_settings(limits={"max_parallel": 1}))
    out = await graph.ainvoke({"messages": [("user", "read the inner gauge")]})
    assert status(out) == "completed", last_words(out)
    return str(out["capability_context_data"])


@pytest.mark.parametrize("inside", [_by_node, _by_graph])
@pytest.mark.parametrize("width", [1, 2])
async def test_a_capability_inside_another_needs_no_second_slot(
    agent: Any, step: Any, inside: Any, width: int
) -> None:
    """All slots are taken by the outer ones; the inner ones run in theirs."""
    plan = [step(key, "outer") for key in "abc"[:width]]
    outer = _outer(inside)
    it = agent(Mark, outer, plans=[plan], limits={"max_parallel": width})
    out = await soon(it.ask())
    assert status(out) == "completed"
    assert "3" in out["capability_context_data"]["MARK"]["a"]["text"]


@pytest.mark.parametrize("own", [1, 2])
async def test_a_capability_inside_itself_at_its_limit_is_an_error(
    agent: Any, step: Any, own: int
) -> None:
    depth: list[int] = []

    @capability_node(max_parallel=own)
    async def mirror() -> Mark:
        """Look into itself."""
        depth.append(1)
        graph = _in_a_graph_of_ones_own(mirror)
        return Mark(text=str(await graph.ainvoke({"messages": [("user", "look")]})))

    it = agent(Mark, mirror, plans=[[step("a", "mirror")]])
    try:
        out = await soon(it.ask())
    except capgraph.base.CapgraphError as exc:
        said = str(exc).lower()
    else:
        assert status(out) == "failed", "it neither hangs nor pretends"
        said = last_words(out)
    assert "mirror" in said
    assert len(depth) == own, "up to its limit it may"


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("bound", [{"max_parallel": 2}, {"max_parallel": 1}])
async def test_capabilities_inside_each_other_never_wait_in_a_circle(
    agent: Any, step: Any, bound: dict[str, int], threads: str
) -> None:
    """A holds its slot and asks for B, while B holds its own and asks for A."""
    begun, went = [], asyncio.Event()

    def pair(name: str) -> Any:
        @capability_node(name=name, max_parallel=1)
        async def work() -> Mark:
            """Work."""
            begun.append(name)
            if len(begun) == bound["max_parallel"]:
                went.set()
            await went.wait()
            other = both["b" if name == "a" else "a"]
            if len(begun) <= 2:
                state = {"messages": [("user", "work")]}
                await _in_a_graph_of_ones_own(other).ainvoke(state)
            return Mark()

        return work

    both: dict[str, Any] = {"a": pair("a"), "b": pair("b")}
    plans = [[step("x", "a"), step("y", "b")]] if threads == "1" else [[step("x", "a")]]
    one = agent(Mark, *both.values(), plans=plans, limits=bound)
    runs = [one.ask(thread="1")]
    if threads == "2":
        two = agent(Mark, *both.values(), plans=[[step("y", "b")]], limits=bound)
        runs.append(two.ask(thread="2"))
    outs = await soon(asyncio.gather(*runs, return_exceptions=True))
    said = " ".join(str(out) for out in outs)
    assert "deadlock" in said or all(status(out) == "completed" for out in outs)


async def test_a_circle_through_the_capacities_of_several_graphs_is_told() -> None:
    """Each holds its slot in one capacity, and asks for one in the next."""
    capacities = [pipeline_room.Capacity() for _ in range(3)]

    async def both(first: int) -> str:
        capacity, then = capacities[first], (first + 1) % 3
        slot = await capacity.acquire(f"work_{first}", 1, 8)
        try:
            await asyncio.sleep(0)
            inside = await capacities[then].acquire(f"work_{then}", 1, None, slot)
            capacities[then].release(inside)
        except CapabilityError as exc:
            return exc.message
        finally:
            capacity.release(slot)
        return "done"

    said = await soon(asyncio.gather(*map(both, range(3))))
    assert sorted("deadlock" in text for text in said) == [False, False, True]
    assert said.count("done") == 2
    assert [capacity.running for capacity in capacities] == [0, 0, 0]


async def test_a_wait_inside_that_will_end_is_waited_for(agent: Any, step: Any) -> None:
    shop = Workshop()

    @capability_node
    async def outer() -> Mark:
        """Have it done inside."""
        await _in_a_graph_of_ones_own(shop.capability).ainvoke({"messages": [("user", "work")]})
        return Mark()

    it = agent(Gauge, Mark, shop.capability, outer, plans=[[step("a", "work"), step("b", "outer")]])
    turn = asyncio.ensure_future(it.ask())
    await soon(shop.entered.wait())
    await let_others_run()
    shop.free.set()
    assert status(await soon(turn)) == "completed"
    assert (shop.most, shop.runs) == (1, 2)
