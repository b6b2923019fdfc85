"""Steps that run on another worker than their turn, over one database in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langgraph.config import get_stream_writer
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command, interrupt

from capgraph import BaseCapability, capability_node
from capgraph.base.argument_injection import Progress
from capgraph.base.capability import ErrorClassification
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ConfigurationError, ErrorSeverity, PersistenceError
from capgraph.behaviors import RateLimitBehavior
from capgraph.configs.settings import Settings
from capgraph.governance import Budget
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.scale import remote
from capgraph.stores import Persistence, prune_threads
from capgraph.testing import ScriptedModel
from tests.support.remote_steps import Place, Worker, place, plan, thread, until
from tests.support.sweeps import LONG


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{tmp_path}/threads.db"
    if request.param == "postgres":
        url = request.getfixturevalue("server").database()
    async with place(url) as made:
        yield made


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Place]:
    """SQLite alone, for what no database makes a difference to."""
    async with place(f"sqlite:///{tmp_path}/threads.db") as made:
        yield made


class Frame(CapabilityContext):
    CONTEXT_TYPE = "FRAME"
    number: int
    pixels: str = ""


class Numbers(CapabilityContext):
    CONTEXT_TYPE = "NUMBERS"
    rows: list[int]


class Mask(CapabilityContext):
    CONTEXT_TYPE = "MASK"
    of: int
    who: str


@capability_node
async def grab() -> Frame:
    """Grab a frame."""
    return Frame(number=7)


def segment(who: str, work: Any = None, **more: Any) -> Any:
    """Make the capability of one worker; each knows who it is, and what it did is to be seen."""

    @capability_node(name="segment", **{"queue": "gpu", **more})
    async def segment(frame: Frame, progress: Progress) -> Mask:
        """Segment a frame."""
        if work is not None:
            await work(progress)
        return Mask(of=frame.number, who=who)

    return segment


STEPS = (("f", "grab"), ("m", "segment", {"inputs": [{"FRAME": "f"}]}))


def masks(out: Any) -> Any:
    return out["capability_context_data"]["MASK"]


def dead(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker say nothing more to those that work for it: what cancels its turn kills it."""

    async def silent(*_: Any) -> None: ...

    monkeypatch.setattr(worker.steps._results, "cancel", silent)


async def rows(worker: Worker, statement: str) -> list[Any]:
    found = Persistence.of(worker.saver).tables
    assert found is not None
    return (await found.run(statement))[1]


async def test_step_runs_on_a_worker_of_its_queue(shared: Place) -> None:
    router = await shared.worker([grab, segment("router")], "turns")
    gpu = await shared.worker([grab, segment("gpu")], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert masks(out) == {"m": {"of": 7, "who": "gpu"}}
    assert out["execution_step_results"]["m"]["success"]
    [order] = shared.engine.seen
    assert order.queue == "gpu"
    assert len(str(order)) < 400


@pytest.mark.service
async def test_router_is_notified_instead_of_polling(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LONGEST", 3600.0)
    looks, go_on = [0], asyncio.Event()

    async def work(_: Any) -> None:
        await go_on.wait()

    async with place(server.database()) as there:
        router = await there.worker([grab, segment("router")], "turns")
        gpu = await there.worker([grab, segment("gpu", work)], "gpu")
        gpu.serve()
        results = Persistence.of(router.saver).step_results
        look = results.get_status

        async def counted(name: str) -> Any:
            looks[0] += 1
            return await look(name)

        monkeypatch.setattr(results, "get_status", counted)
        turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
        await until(lambda: results.listener.is_connected)
        before = -1
        while looks[0] > before:  # until it waits to be told
            before = looks[0]
            await asyncio.sleep(1)
        go_on.set()
        assert masks(await turn)["m"]["who"] == "gpu"


async def test_queue_setting_has_no_effect_without_workers(one: Place) -> None:
    settings = Settings(infrastructure=[], capabilities={"segment": {"queue": "gpu"}})
    capabilities = [grab, segment("router", queue=None)]
    router = await one.worker(capabilities, "turns", settings=settings)
    gpu = await one.worker([grab, segment("gpu")], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert masks(out)["m"]["who"] == "gpu"
    router.graph.services.runner_config.dispatcher = None
    out = await router.graph.ainvoke(plan(*STEPS), thread("u"))
    assert masks(out)["m"]["who"] == "router"


async def test_worker_of_the_queue_runs_the_step_itself(one: Place) -> None:
    both = await one.worker([grab, segment("both")], "turns", "gpu")
    assert masks(await both.graph.ainvoke(plan(*STEPS), thread()))["m"]["who"] == "both"
    assert one.engine.seen == []


@pytest.mark.parametrize("queues", [["turns"], ["turns", "gpu"]])
async def test_next_router_finds_a_running_step(
    shared: Place, monkeypatch: pytest.MonkeyPatch, queues: list[str]
) -> None:
    begun, go_on, runs = asyncio.Event(), asyncio.Event(), []

    async def work(_: Any) -> None:
        runs.append("gpu")
        begun.set()
        await go_on.wait()

    first = await shared.worker([grab, segment("first", effect="once")], "turns")
    second = await shared.worker([grab, segment("second", effect="once")], *queues)
    gpu = await shared.worker([grab, segment("gpu", work, effect="once")], "gpu")
    gpu.serve()
    dead(first, monkeypatch)
    turn = asyncio.create_task(first.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    turn.cancel()
    await asyncio.wait([turn])
    turn = asyncio.create_task(second.graph.ainvoke(None, thread()))
    await asyncio.sleep(0.3)
    assert not turn.done()
    go_on.set()
    assert masks(await turn)["m"]["who"] == "gpu"
    assert runs == ["gpu"]
    assert len(shared.engine.seen) == 1


@pytest.mark.parametrize("queues", [["turns"], ["turns", "gpu"]])
async def test_step_finished_without_router_is_not_repeated(
    shared: Place, monkeypatch: pytest.MonkeyPatch, queues: list[str]
) -> None:
    begun, runs = asyncio.Event(), []

    async def work(_: Any) -> None:
        runs.append("gpu")
        begun.set()

    first = await shared.worker([grab, segment("first")], "turns")
    second = await shared.worker([grab, segment("second")], *queues)
    gpu = await shared.worker([grab, segment("gpu", work)], "gpu")
    dead(first, monkeypatch)
    turn = asyncio.create_task(first.graph.ainvoke(plan(*STEPS), thread()))
    await until(lambda: shared.engine.seen)
    turn.cancel()
    await asyncio.wait([turn])
    gpu.serve()
    await begun.wait()
    await until(lambda: not gpu.running)
    await gpu.stop()
    out = await second.graph.ainvoke(None, thread())
    assert masks(out)["m"]["who"] == "gpu"
    assert runs == ["gpu"]


async def test_worker_death_during_effect_asks_a_question(shared: Place) -> None:
    begun, runs = asyncio.Event(), []

    async def hang(_: Any) -> None:
        runs.append("dying")
        begun.set()
        await asyncio.Event().wait()

    async def work(_: Any) -> None:
        runs.append("other")

    router = await shared.worker([grab, segment("router", effect="once")], "turns")
    dying = await shared.worker([grab, segment("dying", hang, effect="once")], "gpu")
    other = await shared.worker([grab, segment("other", work, effect="once")], "gpu")
    dying.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    await dying.stop()
    other.serve()
    out = await turn
    [asked] = out["__interrupt__"]
    assert "Its effect may have happened" in str(asked.value)
    assert runs == ["dying"]
    out = await router.graph.ainvoke(Command(resume={"m": "rerun"}), thread())
    assert masks(out)["m"]["who"] == "other"
    assert runs == ["dying", "other"]


async def test_worker_death_without_effect_is_retried(one: Place) -> None:
    begun = asyncio.Event()

    async def hang(_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    router = await one.worker([grab, segment("router")], "turns")
    dying = await one.worker([grab, segment("dying", hang)], "gpu")
    other = await one.worker([grab, segment("other")], "gpu")
    dying.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    await dying.stop()
    other.serve()
    assert masks(await turn)["m"]["who"] == "other"


@pytest.mark.parametrize("whose", ["the step's", "the thread's"])
async def test_worker_without_lease_starts_no_effect(
    one: Place, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    async def work(_: Any) -> None:
        runs.append("gpu")

    router = await one.worker([grab, segment("router", effect="once")], "turns")
    gpu = await one.worker([grab, segment("gpu", work, effect="once")], "gpu")
    claim = EffectLedger.claim
    lost = asyncio.Event()

    async def frozen(self: Any, *args: Any) -> Any:
        found = await claim(self, *args)
        if self.journal.is_remote:
            which = "LIKE 'capgraph-step/%'" if whose == "the step's" else "= 't'"
            await rows(gpu, f"UPDATE capgraph_leases SET owner = 'another' WHERE thread_id {which}")
            lost.set()
        return found

    monkeypatch.setattr(EffectLedger, "claim", frozen)
    gpu.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await lost.wait()
    await until(lambda: not gpu.running)
    assert runs == []
    turn.cancel()
    await asyncio.wait([turn])


async def test_turn_retries_a_failed_step(one: Place) -> None:
    tries: list[int] = []

    class Flaky(BaseCapability):
        name, description, queue = "flaky", "Fails twice", "gpu"
        provides = [Frame]

        async def execute(self) -> Any:
            tries.append(self.attempt)
            if len(tries) < 3:
                raise ConnectionError("busy")
            return Frame(number=len(tries))

        @staticmethod
        def classify_error(exc: Exception, context: Any) -> ErrorClassification:
            return ErrorClassification(ErrorSeverity.RETRIABLE, str(exc))

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 0.01, "backoff_factor": 1.0}

    flaky = capability_node(Flaky)
    router = await one.worker([flaky], "turns")
    gpu = await one.worker([flaky], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(("a", "flaky")), thread())
    assert tries == [1, 2, 3]
    assert out["execution_step_results"]["a"]["attempts"] == 3


async def test_step_events_reach_the_stream_of_the_turn(one: Place) -> None:
    model = ScriptedModel(responses=["seen"])

    async def work(progress: Progress) -> None:
        progress("half", 0.5)
        get_stream_writer()({"mine": 1})
        await model.ainvoke("look")

    router = await one.worker([grab, segment("router")], "turns")
    gpu = await one.worker([grab, segment("gpu", work)], "gpu")
    gpu.serve()
    told: list[Any] = []
    async for mode, part in router.graph.astream(
        plan(*STEPS), thread(), stream_mode=["custom", "values"]
    ):
        if mode == "custom":
            told.append(part)
        else:
            out = part
    mine = [e for e in told if e.get("context_key") == "m"]
    assert [e["event_type"] for e in mine] == ["step_started", "step_progress", "step_finished"]
    assert {e["thread_id"] for e in mine} == {"t"}
    assert {"mine": 1} in told
    assert out["control_budget"]["model_calls"] == 1
    assert [e["model"] for e in told if e.get("event_type") in ("usage", "model_called")]


async def test_cancelled_turn_cancels_its_step(one: Place) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.2)  # longer than it takes to look again whether it is to stop
            ended.set()

    router = await one.worker([grab, segment("router")], "turns")
    gpu = await one.worker([grab, segment("gpu", hang)], "gpu")
    gpu.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    turn.cancel()
    await asyncio.wait([turn])
    async with asyncio.timeout(20):
        await ended.wait()


async def test_turn_times_out_without_a_worker(one: Place) -> None:
    settings = Settings(infrastructure=[], limits={"run_timeout_seconds": 0.5})
    router = await one.worker([grab, segment("router")], "turns", settings=settings)
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert "reached its time limit" in out["execution_step_results"]["m"]["error"]
    assert await rows(router, "SELECT step_id FROM capgraph_steps") == []


async def test_step_timeout_applies_on_its_worker(one: Place) -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    options = {"timeout_seconds": 0.2, "max_attempts": 1}
    router = await one.worker([grab, segment("router", **options)], "turns")
    gpu = await one.worker([grab, segment("gpu", hang, **options)], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert "limit of 0.2 s" in out["execution_step_results"]["m"]["error"]


async def _asks(_: Any) -> None:
    interrupt("May I?")


class _Reads(BaseCapability):
    name, description, queue = "reads", "Reads the conversation", "gpu"

    async def execute(self) -> Any:
        return {"ui_captured_figures": [str(len(self.state["messages"]))]}


async def test_turn_only_state_is_refused_by_name(one: Place) -> None:
    reads = capability_node(_Reads)
    router = await one.worker([grab, segment("router"), reads], "turns")
    gpu = await one.worker([grab, segment("gpu", _asks), reads], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert "cannot ask a person" in out["execution_step_results"]["m"]["error"]
    out = await router.graph.ainvoke(plan(("r", "reads")), thread("u"))
    assert "'messages' is not available" in out["execution_step_results"]["r"]["error"]


async def test_limits_apply_across_workers(shared: Place) -> None:
    at_once = most = 0
    two_at_once = asyncio.Event()

    async def work(_: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 2:
            two_at_once.set()
        await asyncio.wait_for(two_at_once.wait(), 60)
        await asyncio.sleep(0.05)
        at_once -= 1

    more: dict[str, Any] = {"max_parallel": 2}
    router = await shared.worker([grab, segment("router", **more)], "turns")
    for name in ("one", "two"):
        (await shared.worker([grab, segment(name, work, **more)], "gpu")).serve()
    steps = [(f"m{n}", "segment", {"inputs": [{"FRAME": "f"}]}) for n in range(8)]
    out = await router.graph.ainvoke(plan(("f", "grab"), *steps), thread())
    assert len(masks(out)) == 8
    assert most == 2


async def test_budget_counts_remote_steps(one: Place) -> None:
    budget = {"budget": Budget(steps=3, per="thread")}
    router = await one.worker([grab, segment("router")], "turns", **budget)
    gpu = await one.worker([grab, segment("gpu")], "gpu", **budget)
    gpu.serve()
    again = ("n", "segment", {"inputs": [{"FRAME": "f"}]})
    out = await router.graph.ainvoke(plan(*STEPS, again), thread())
    assert set(masks(out)) == {"m", "n"}
    out = await router.graph.ainvoke(plan(("g", "grab")), thread())
    assert "budget" in str(out["messages"][-1].content)


async def test_approval_is_requested_before_dispatch(one: Place) -> None:
    more: dict[str, Any] = {"requires_approval": True, "effect": "once"}
    router = await one.worker([grab, segment("router", **more)], "turns")
    gpu = await one.worker([grab, segment("gpu", **more)], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert out["__interrupt__"]
    assert one.engine.seen == []
    out = await router.graph.ainvoke(Command(resume={"m": "approve"}), thread())
    assert masks(out)["m"]["who"] == "gpu"


async def test_large_results_are_stored_in_the_database_only(shared: Place) -> None:
    size = 12_500_000 if LONG else 1_000_000

    class Take(BaseCapability):
        name, description, queue = "take", "Takes a picture", "gpu"
        provides = [Frame]

        async def execute(self) -> Any:
            return Frame(number=1, pixels="x" * size)

    class Measure(BaseCapability):
        name, description, queue = "measure", "Measures a picture", "gpu"
        requires, provides = [Frame], ["MASK"]

        async def execute(self) -> Any:
            return Mask(of=len(self.inputs["FRAME"].pixels), who="gpu")

    both = [capability_node(Take), capability_node(Measure)]
    router = await shared.worker(both, "turns")
    gpu = await shared.worker(both, "gpu")
    gpu.serve()
    steps: list[Any] = []
    for n in range(8 if LONG else 2):
        steps += [(f"t{n}", "take"), (f"m{n}", "measure", {"inputs": [{"FRAME": f"t{n}"}]})]
    out = await router.graph.ainvoke(plan(*steps), thread())
    assert {mask["of"] for mask in masks(out).values()} == {size}
    assert max(len(str(order)) for order in shared.engine.seen) < 400


async def test_step_requests_are_encrypted_and_deleted_with_the_thread(shared: Place) -> None:
    key = "0123456789abcdef"

    @capability_node(name="segment", queue="gpu")
    async def secret(frame: Frame) -> Mask:
        """Segment a frame."""
        return Mask(of=frame.number, who="WORDSOFASECRET")

    router = await shared.worker([grab, secret], "turns", encryption_key=key)
    gpu = await shared.worker([grab, secret], "gpu", encryption_key=key)
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert masks(out)["m"]["who"] == "WORDSOFASECRET"
    [(result,)] = await rows(router, "SELECT result FROM capgraph_steps")
    assert result.startswith("msgpack+")
    assert await rows(router, "SELECT step_id FROM capgraph_step_events") == []
    await prune_threads(router.saver, ["t"], policy="delete")
    assert await rows(router, "SELECT step_id FROM capgraph_steps") == []


async def test_worker_without_the_capability_leaves_the_step(one: Place) -> None:
    router = await one.worker([grab, segment("router")], "turns", ttl=0.2)
    old = await one.worker([grab], "gpu", ttl=0.2)
    old.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    # However often it comes to such a worker, no try of it is used up.
    await until(lambda: len(one.engine.seen) > 3 and not one.engine.waiting.qsize())
    await old.stop()
    new = await one.worker([grab, segment("new")], "gpu")
    new.serve()
    out = await turn
    assert masks(out)["m"]["who"] == "new"
    assert out["execution_step_results"]["m"]["attempts"] == 1


async def test_for_each_elements_run_on_other_workers(one: Place) -> None:
    @capability_node(name="double", queue="gpu")
    async def double(number: int) -> Frame:
        """Double a number."""
        return Frame(number=2 * number)

    @capability_node(name="numbers")
    async def numbers() -> Numbers:
        """List numbers."""
        return Numbers(rows=[1, 2, 3])

    router = await one.worker([numbers, double], "turns")
    gpu = await one.worker([numbers, double], "gpu")
    gpu.serve()
    each = {
        "for_each": {"of": "n.rows", "as": "it"},
        "parameters": {"number": {"$from": "it"}},
    }
    out = await router.graph.ainvoke(plan(("n", "numbers"), ("d", "double", each)), thread())
    assert out["execution_outcome"]["status"] == "completed", out["messages"][-1].content
    assert len(one.engine.seen) == 3


async def test_nested_effect_in_a_remote_step_is_refused(one: Place) -> None:
    from capgraph.engine.capability_node import run_standalone_step

    @capability_node(name="pay", effect="once")
    async def pay() -> Frame:
        """Pay."""
        raise AssertionError("it must not run")

    class Outer(BaseCapability):
        name, description, queue = "outer", "Pays inside", "gpu"

        async def execute(self) -> Any:
            services = gpu.graph.services
            spec = services.registry.capabilities["pay"]
            record = await run_standalone_step(spec, {}, services=services)
            return {"ui_captured_figures": [record.error.message]}

    outer = capability_node(Outer)
    router = await one.worker([outer, pay], "turns")
    gpu = await one.worker([outer, pay], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(("o", "outer")), thread())
    assert "could repeat it" in out["ui_captured_figures"][0]


def test_check_reports_unsupported_remote_code() -> None:
    from capgraph import Registry
    from capgraph.graph.validate import find_queue_warnings

    @capability_node(name="asks", queue="gpu")
    async def asks(frame: Frame) -> Mask:
        """Ask."""
        return Mask(of=0, who=interrupt("May I?"))

    registry = Registry()
    for one in (asks, capability_node(_Reads), segment("gpu")):
        registry.register(one)
    told = find_queue_warnings(registry, Settings())
    assert [line.partition(":")[0] for line in told] == [
        "The capability 'asks' has a queue but uses 'interrupt'",
        "The capability 'reads' has a queue but uses 'messages'",
    ]
    with pytest.raises(ConfigurationError, match="a b"):
        find_queue_warnings(registry, Settings(capabilities={"asks": {"queue": "a b"}}))


async def test_once_block_runs_once_across_attempts(one: Place) -> None:
    tries: list[int] = []
    parts: list[str] = []

    class Parts(BaseCapability):
        name, description, queue = "parts", "Does a part, then fails once", "gpu"

        async def execute(self) -> Any:
            await self.once("part", lambda: parts.append("done"))
            tries.append(self.attempt)
            if len(tries) == 1:
                raise ConnectionError("busy")
            return {}

    made = capability_node(Parts)
    router = await one.worker([made], "turns")
    gpu = await one.worker([made], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(("a", "parts")), thread())
    assert out["execution_outcome"]["status"] == "completed"
    assert (len(tries), parts) == (2, ["done"])


async def test_remote_model_call_counts_in_the_thread_budget(one: Place) -> None:
    model = ScriptedModel(responses=["seen", "seen again"])

    async def work(_: Any) -> None:
        await model.ainvoke("look")

    more: dict[str, Any] = {"budget": Budget(requests=1, per="thread")}
    router = await one.worker([grab, segment("router", max_attempts=1)], "turns", **more)
    gpu = await one.worker([grab, segment("gpu", work, max_attempts=1)], "gpu", **more)
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert masks(out)["m"]["who"] == "gpu"
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert "requests is limited to 1" in str(out["messages"][-1].content)
    assert len(model.calls) == 1


async def test_shared_rate_limit_applies_to_remote_steps(one: Place) -> None:
    def limit() -> Any:
        return [RateLimitBehavior(0.01, burst=1, wait_on_limit=False, store="saver")]

    options: dict[str, Any] = {"max_attempts": 1}
    router = await one.worker([grab, segment("router", **options)], "turns")
    for name in ("one", "two"):
        limited = segment(name, behaviors=limit(), **options)
        (await one.worker([grab, limited], "gpu")).serve()
    again = ("n", "segment", {"inputs": [{"FRAME": "f"}], "optional": True})
    first = ("m", "segment", {"inputs": [{"FRAME": "f"}], "optional": True})
    out = await router.graph.ainvoke(plan(("f", "grab"), first, again), thread())
    assert len(masks(out)) == 1


async def test_draining_router_leaves_its_step_to_the_next(one: Place) -> None:
    begun, go_on, runs = asyncio.Event(), asyncio.Event(), []

    async def work(_: Any) -> None:
        runs.append("gpu")
        begun.set()
        await go_on.wait()

    first = await one.worker([grab, segment("first")], "turns")
    second = await one.worker([grab, segment("second")], "turns")
    gpu = await one.worker([grab, segment("gpu", work)], "gpu")
    gpu.serve()
    control = RunControl()
    turn = asyncio.create_task(first.graph.ainvoke(plan(*STEPS), thread(), control=control))
    await begun.wait()
    control.request_drain("stop")
    with suppress(GraphDrained):
        await turn
    turn = asyncio.create_task(second.graph.ainvoke(None, thread()))
    await asyncio.sleep(0.2)
    go_on.set()
    assert masks(await turn)["m"]["who"] == "gpu"
    assert runs == ["gpu"]


async def test_router_without_lease_dispatches_nothing(shared: Place) -> None:
    other = await shared.worker([grab, segment("other")], "turns")

    @capability_node(name="grab")
    async def steals() -> Frame:
        """Grab a frame while another process takes the thread."""
        await rows(other, "UPDATE capgraph_leases SET owner = 'another' WHERE thread_id = 't'")
        return Frame(number=1)

    late = await shared.worker([steals, segment("late")], "turns")
    with pytest.raises(PersistenceError, match="has taken over the thread"):
        await late.graph.ainvoke(plan(*STEPS), thread())
    assert shared.engine.seen == []


async def test_stop_reaches_a_step_of_a_dead_router(
    one: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    router = await one.worker([grab, segment("router")], "turns")
    gpu = await one.worker([grab, segment("gpu", hang)], "gpu")
    gpu.serve()
    dead(router, monkeypatch)
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    turn.cancel()
    await asyncio.wait([turn])
    await Persistence.of(router.saver).step_results.cancel_thread("t")
    async with asyncio.timeout(20):
        await ended.wait()


async def test_router_without_lease_cancels_no_step(one: Place) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(_: Any) -> None:
        begun.set()
        await go_on.wait()

    router = await one.worker([grab, segment("router")], "turns", ttl=60.0)
    gpu = await one.worker([grab, segment("gpu", work)], "gpu", ttl=60.0)
    gpu.serve()
    turn = asyncio.create_task(router.graph.ainvoke(plan(*STEPS), thread()))
    await begun.wait()
    await rows(gpu, "UPDATE capgraph_leases SET owner = 'another' WHERE thread_id = 't'")
    turn.cancel()
    await asyncio.wait([turn])
    assert await rows(gpu, "SELECT cancelled FROM capgraph_steps") == [(0,)]
    go_on.set()
    await until(lambda: not gpu.running)
    assert await rows(gpu, "SELECT ended > 0 FROM capgraph_steps") == [(1,)]
