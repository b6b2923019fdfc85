"""A step waits for a moment or an event; the turn holds nothing meanwhile, and no signal is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node, signal
from capgraph.base import ConfigurationError, PersistenceError, PolicyError, ValidationError
from capgraph.configs.settings import Settings
from capgraph.governance import (
    InformationFlow,
    PermissionMode,
    PermissionPolicy,
    PolicyActionData,
    PolicyEngine,
    PolicyRule,
    RolePermissionConfig,
    TimedOut,
)
from capgraph.graph import wake
from capgraph.planning import check_plan
from capgraph.stores import (
    list_suspended_threads,
    open_saver,
    prune_threads,
    thread_summary,
    waiting_questions,
)
from capgraph.telemetry import RingBufferSink
from capgraph.testing import FakeClock

DAY = 86_400.0


class Order(CapabilityContext):
    id: str
    ready_at: str = "1h"
    ids: list[str] = ["p", "q", "r"]


class Parameters(BaseModel):
    amount: Any = None


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def tools(ran: list[Any]) -> list[Any]:
    given = Parameters

    @capability_node
    class Act(BaseCapability):
        name = "act"
        description = "Acts."
        Parameters = given

        async def execute(self) -> dict[str, Any]:
            ran.append((self.step["context_key"], self.parameters.amount))
            return {}

    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pays."
        effect = "once"
        requires_approval = True
        Parameters = given

        async def execute(self) -> dict[str, Any]:
            ran.append((self.step["context_key"], self.parameters.amount))
            return {}

    @capability_node
    class Take(BaseCapability):
        name = "take"
        description = "Takes an order."
        provides = [Order]

        async def execute(self) -> Order:
            ran.append(("take", None))
            return Order(id="A 7")

    return [Act, Pay, Take]


def step(key: str, capability: str = "act", **more: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, **more}


VALUE = {"amount": {"$from": "signal"}}


class Agent:
    def __init__(self, tools: list[Any], saver: Any = None, **options: Any) -> None:
        self.clock = FakeClock()
        self.saver = saver or InMemorySaver()
        options.setdefault("clock", self.clock)
        self.graph = build_graph(tools, checkpointer=self.saver, **options)
        self.config: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}

    async def begin(self, *steps: Any) -> dict[str, Any]:
        given = {"messages": [("user", "Go")], "planning_execution_plan": {"steps": list(steps)}}
        return await self.graph.ainvoke(given, self.config)

    async def go_on(self, given: Any = None) -> dict[str, Any]:
        return await self.graph.ainvoke(given, self.config)

    async def signal(self, key: str, value: Any = None, **more: Any) -> bool:
        return await signal(self.graph, "t", key, value, **more)

    async def values(self) -> dict[str, Any]:
        return dict((await self.graph.aget_state(self.config)).values)


@asynccontextmanager
async def _memory(tmp_path: Path, request: Any) -> AsyncIterator[Any]:
    yield InMemorySaver()


@asynccontextmanager
async def _sqlite(tmp_path: Path, request: Any) -> AsyncIterator[Any]:
    async with open_saver(f"sqlite:///{tmp_path / 'waits.sqlite'}") as saver:
        yield saver


@asynccontextmanager
async def _postgres(tmp_path: Path, request: Any) -> AsyncIterator[Any]:
    async with open_saver(request.getfixturevalue("server").database()) as saver:
        yield saver


SAVERS = [_memory, _sqlite, pytest.param(_postgres, marks=pytest.mark.service)]


@pytest.mark.parametrize("opened", SAVERS)
async def test_a_turn_waits_and_is_woken_by_signal_and_time(
    tools: list[Any], ran: list[Any], opened: Callable[..., Any], tmp_path: Path, request: Any
) -> None:
    async with opened(tmp_path, request) as saver:
        it = Agent(tools, saver)
        out = await it.begin(
            step("a", wait_for="paid", parameters=VALUE), step("b"), step("c", wait_until="2h")
        )
        assert ran == [("b", None)]  # the others are not held up
        outcome = out["execution_outcome"]
        assert (outcome["status"], outcome["done"]) == ("waiting", ["b"])
        assert outcome["waiting"]["a"]["for"] == "paid"
        assert outcome["waiting"]["c"]["until"] == "2023-11-15T00:13:20+00:00"
        [asked] = out["__interrupt__"]
        assert asked.value["type"] == "wait"
        summary = await thread_summary(saver, "t")
        assert summary is not None
        assert (summary.status, summary.questions) == ("waiting", {})
        assert "a waits for 'paid', at the latest until 2023-12-14" in (summary.reason or "")
        assert await waiting_questions(saver) == {}  # no person is asked
        [waits] = await list_suspended_threads(saver)
        assert (waits.thread_id, waits.wake_at) == ("t", it.clock.now() + 7200)
        assert waits.caller.user_id == "ann"
        assert await list_suspended_threads(saver, now=it.clock.now()) == []

        await it.go_on()  # nothing came, so nothing changes
        assert ran == [("b", None)]
        assert await it.signal("else") is False
        assert await it.signal("paid", {"sum": 7}) is True
        assert ran == [("b", None), ("a", {"sum": 7})]
        assert await it.signal("paid", {"sum": 8}) is False  # the same one again
        it.clock.advance(7201)
        assert [
            one.thread_id for one in await list_suspended_threads(saver, now=it.clock.now())
        ] == ["t"]
        await wake(it.graph, "t")
        assert (await it.values())["execution_outcome"]["status"] == "completed"
        assert ran == [("b", None), ("a", {"sum": 7}), ("c", None)]
        assert await list_suspended_threads(saver) == []
        await wake(it.graph, "t")  # of no consequence
        assert len(ran) == 3


async def test_a_signal_that_comes_first_is_kept_and_taken_once(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    await it.begin(step("x"))
    assert await it.signal("paid", 1) is False
    assert await it.signal("paid", 2) is False  # the first one counts
    await it.begin(step("a", wait_for="paid", parameters=VALUE))
    assert ran == [("x", None), ("a", 1)]
    out = await it.begin(step("b", wait_for="paid", parameters=VALUE))  # another turn, another one
    assert out["execution_outcome"]["status"] == "waiting"
    assert await it.signal("paid", 3) is True
    assert ran[-1] == ("b", 3)


async def test_one_event_lets_all_go_on_that_wait_for_it(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    await it.begin(
        step("a", wait_for="paid", parameters=VALUE), step("b", wait_for="paid", parameters=VALUE)
    )
    assert await it.signal("paid", 1) is True
    assert sorted(ran) == [("a", 1), ("b", 1)]


async def test_when_it_wakes_and_who_serves_it_may_be_left_to_others(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    await it.begin(step("a", wait_for="paid"))
    assert await it.signal("paid", run=False) is True
    assert ran == []
    [waits] = await list_suspended_threads(it.saver, now=0)
    await wake(it.graph, waits.thread_id)
    assert ran == [("a", None)]


async def test_a_key_and_a_moment_may_be_what_a_step_found(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    out = await it.begin(
        step("order", "take"),
        step(
            "a",
            wait_for={"key": {"$from": "order.id"}, "within": "2d"},
            wait_until={"$from": "order.ready_at"},
            inputs=[],
        ),
    )
    waits = out["execution_outcome"]["waiting"]["a"]
    assert (waits["for"], waits["until"]) == ("A 7", "2023-11-14T23:13:20+00:00")
    assert waits["latest"] == "2023-11-16T23:13:20+00:00"
    [waits_for] = await list_suspended_threads(it.saver)
    assert waits_for.wake_at == it.clock.now() + 3600
    assert await it.signal("A 7") is True
    assert ran == [("take", None)]  # the moment has not come
    assert await list_suspended_threads(it.saver) == [waits_for]
    it.clock.advance(3601)
    await it.go_on()
    assert ran == [("take", None), ("a", None)]


EACH = {"for_each": {"of": "o.ids"}, "parameters": {"amount": {"$from": "item"}}}


@pytest.mark.parametrize("opened", SAVERS)
async def test_each_element_of_a_list_waits_by_itself(
    tools: list[Any], ran: list[Any], opened: Any, tmp_path: Path, request: Any
) -> None:
    async with opened(tmp_path, request) as saver:
        over = {**EACH, "wait_for": {"$from": "item"}}
        steps = (step("o", "take"), step("a", **over), step("z", wait_for="go"))
        out = await Agent(tools, saver).begin(*steps)
        assert sorted(out["execution_outcome"]["waiting"]) == ["a[0]", "a[1]", "a[2]", "z"]
        it = Agent(tools, saver)  # another process
        assert await it.signal("q") is True
        assert ran == [("take", None), ("a[1]", "q")]
        assert await it.signal("nobody") is False
        assert await it.signal("go") is True
        assert await it.signal("p") is True
        assert sorted((await it.values())["execution_outcome"]["waiting"]) == ["a[2]"]
        assert await Agent(tools, saver).signal("r") is True
        assert ran == [("take", None), ("a[1]", "q"), ("z", None), ("a[0]", "p"), ("a[2]", "r")]
        assert (await it.values())["execution_outcome"]["status"] == "completed"
        assert await list_suspended_threads(saver) == []


async def test_elements_wait_for_moments_and_what_comes_with_an_event_is_each_ones(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    over = {"for_each": {"of": "o.ids"}, "wait_for": "all", "wait_until": "1h"}
    await it.begin(step("o", "take"), step("a", **over, parameters=VALUE))
    assert await it.signal("all", 9) is True
    assert ran == [("take", None)]
    it.clock.advance(3600)
    await wake(it.graph, "t")
    assert sorted(ran[1:]) == [("a[0]", 9), ("a[1]", 9), ("a[2]", 9)]
    assert (await it.values())["execution_outcome"]["status"] == "completed"


async def test_elements_that_wait_hold_up_no_question_of_another_element(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    over = {**EACH, "wait_for": {"$from": "item"}}
    await it.begin(step("o", "take"), step("a", "pay", **over))
    assert await it.signal("q") is True
    out = await it.values()
    assert [*out["execution_pending_approvals"]] == ["a[0]", "a[1]", "a[2]"]
    out = await it.go_on(Command(resume={"a[1]": "approve"}))
    assert ran == [("take", None), ("a[1]", "q")]
    assert await it.signal("p") is True
    assert await it.signal("r") is True
    out = await it.go_on(Command(resume="approve"))
    assert sorted(ran[2:]) == [("a[0]", "p"), ("a[2]", "r")]
    assert out["execution_outcome"]["status"] == "completed"


async def test_who_waits_too_long_fails(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    await it.begin(
        step("a", wait_for={"key": "paid", "within": "1d"}),
        step("b", wait_for={"key": "seen", "within": "2d"}, optional=True),
    )
    it.clock.advance(DAY + 1)
    out = await it.go_on()
    outcome = out["execution_outcome"]
    assert (outcome["status"], outcome["severity"]) == ("failed", "critical")
    assert "Event 'paid' did not arrive before 2023-11-15" in outcome["reason"]

    it = Agent(tools)
    await it.begin(step("b", wait_for={"key": "seen", "within": "2d"}, optional=True), step("c"))
    it.clock.advance(3 * DAY)
    out = await it.go_on()
    assert out["execution_outcome"]["status"] == "partial"

    short = Settings(limits={"max_wait_seconds": 60})
    it = Agent(tools, settings=short)
    out = await it.begin(step("a", wait_for={"key": "paid", "within": "1d"}))
    assert out["execution_outcome"]["waiting"]["a"]["latest"] == "2023-11-14T22:14:20+00:00"
    it = Agent(tools, settings=short)
    out = await it.begin(step("a", wait_until="2m"))
    assert "limits.max_wait_seconds is 60 s" in out["execution_outcome"]["reason"]
    assert ran == [("c", None)]


async def test_waiting_counts_for_no_limit_of_time(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools, settings=Settings(limits={"run_timeout_seconds": 5}))
    await it.begin(step("a", wait_until="1d", timeout=1))
    it.clock.advance(DAY + 1)
    out = await it.go_on()
    assert out["execution_outcome"]["status"] == "completed"
    assert out["runtime_info"]["seconds_used"] < 5

    late = PolicyRule("late", TimedOut(60), [PolicyActionData("abort_phase")])
    it = Agent(tools, policies=PolicyEngine([late]))
    await it.begin(step("a", wait_until="1d"), step("b"))
    it.clock.advance(DAY + 1)
    out = await it.go_on()
    assert out["execution_outcome"]["status"] == "completed"
    assert 86_000 < out["runtime_info"]["waited_seconds"] < 87_000


async def test_a_step_that_is_not_needed_does_not_wait(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    out = await it.begin(
        step("order", "take"),
        step("a", wait_for="paid", when={"of": "order.id", "is": "==", "than": "other"}),
    )
    assert out["execution_outcome"]["not_needed"] == ["a"]


async def test_a_question_and_a_wait_stand_side_by_side(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    out = await it.begin(step("p", "pay"), step("a", wait_for="paid", parameters=VALUE))
    [asked] = out["__interrupt__"]
    assert [one["context_key"] for one in asked.value["steps"]] == ["p"]
    assert [one["for"] for one in asked.value["waits"]] == ["paid"]
    assert await it.signal("paid", 5) is True  # the step goes on, the question stays
    assert ran == [("a", 5)]
    assert list(await waiting_questions(it.saver)) == ["t"]
    out = await it.go_on(Command(resume={"p": "approve"}))
    assert out["execution_outcome"]["status"] == "completed"
    assert ran == [("a", 5), ("p", None)]

    it = Agent(tools)
    await it.begin(step("p", "pay"), step("a", wait_for="paid", parameters=VALUE))
    out = await it.go_on(Command(resume={"p": "approve"}))
    assert out["execution_outcome"]["status"] == "waiting"  # answered, and waits on
    assert await it.signal("paid", 6) is True
    assert ran[2:] == [("p", None), ("a", 6)]


async def test_no_answer_ends_a_wait(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    await it.begin(step("a", wait_for="paid"))
    with pytest.raises(ValidationError, match=r"no open question.*with a signal"):
        await it.go_on(Command(resume="yes"))
    assert ran == []


async def test_a_new_message_gives_a_waiting_turn_up(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools)
    await it.begin(step("a", wait_for="paid"))
    out = await it.begin(step("b"))
    assert out["execution_outcome"]["status"] == "completed"
    assert await list_suspended_threads(it.saver) == []
    assert await it.signal("paid") is False
    assert ran == [("b", None)]


async def test_events_tell_of_waits(tools: list[Any]) -> None:
    sink = RingBufferSink()
    it = Agent(tools, sinks=[sink])
    await it.begin(step("a", wait_for="paid"))
    await it.signal("paid")
    told = [e for e in sink.events if e["event_type"] in ("waiting", "wait_over")]
    assert [e["event_type"] for e in told] == ["waiting", "wait_over"]
    assert told[0]["waits"][0]["for"] == "paid"
    assert (told[1]["context_key"], told[1]["by"], told[1]["key"]) == ("a", "signal", "paid")


async def test_a_thread_that_waits_is_not_dropped_for_its_age(tools: list[Any]) -> None:
    from datetime import timedelta

    it = Agent(tools)
    await it.begin(step("a", wait_for="paid"))
    age = {"policy": "older_than", "older_than": timedelta(0)}
    assert await prune_threads(it.saver, ["t"], **age) == []


async def test_what_cannot_be_kept_or_sent_is_refused(tools: list[Any], ran: list[Any]) -> None:
    given = {
        "messages": [("user", "Go")],
        "planning_execution_plan": {"steps": [step("a", wait_for="paid")]},
    }
    out = await build_graph(tools).ainvoke(given)
    assert "A step waits, but the graph has no checkpointer" in out["execution_outcome"]["reason"]
    it = Agent(tools)
    with pytest.raises(PersistenceError, match="'t' does not exist"):
        await it.signal("paid")
    await it.begin(step("x"))
    for key in ("", " paid", "a\nb", "k" * 201, 7):
        with pytest.raises(ValidationError, match="event key"):
            await it.signal(key)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="not JSON-serializable"):
        await it.signal("paid", {1, 2})
    with pytest.raises(ValidationError, match="limit is 200,000"):
        await it.signal("paid", "x" * 300_000)
    with pytest.raises(ConfigurationError, match="no saver"):
        await signal(build_graph(tools), "t", "paid")


async def test_foreign_callers_wake_nothing(tools: list[Any], ran: list[Any]) -> None:
    policy = PermissionPolicy(
        [
            RolePermissionConfig("clerk", PermissionMode.FULL_ACCESS),
            RolePermissionConfig("guest", PermissionMode.READ_ONLY, denied_tools=["act"]),
        ]
    )
    it = Agent(tools, permissions=policy)
    it.config["configurable"] |= {"role": "clerk", "tenant": "north"}
    await it.begin(step("a", wait_for="paid"))

    def sender(**named: str) -> Any:
        return {"config": {"configurable": named}}

    with pytest.raises(PolicyError, match="another tenant"):
        await it.signal("paid", **sender(user_id="eve", role="clerk", tenant="south"))
    with pytest.raises(PolicyError, match="'act'"):
        await it.signal("paid", **sender(user_id="eve", role="guest", tenant="north"))
    assert ran == []
    # Without a name it is the program itself; the turn goes on as whoever began it.
    assert await it.signal("paid") is True
    assert ran == [("a", None)]


async def test_what_comes_with_an_event_is_untrusted(tools: list[Any], ran: list[Any]) -> None:
    it = Agent(tools, policies=InformationFlow(on_violation="deny"))
    out = await it.begin(step("p", "pay", wait_for="paid", parameters=VALUE))
    assert "the label 'untrusted', from the event 'paid'" in out["execution_outcome"]["reason"]
    out = await it.begin(step("p", "pay", wait_for="paid"))  # takes nothing of it
    assert out["execution_outcome"]["status"] == "waiting"


async def test_a_graph_inside_a_step_waits_for_the_whole_thread(
    tools: list[Any], ran: list[Any]
) -> None:
    plan = {"steps": [step("a", wait_for="paid", parameters=VALUE)]}
    inner = build_graph(tools, clock=FakeClock())

    @capability_node
    class Inner(BaseCapability):
        name = "inner"
        description = "Runs another agent."

        async def execute(self) -> dict[str, Any]:
            out = await inner.ainvoke(
                {"messages": [("user", "Go")], "planning_execution_plan": plan}
            )
            ran.append(out["execution_outcome"]["status"])
            return {}

    it = Agent([*tools, Inner])
    out = await it.begin(step("i", "inner"), step("b"))
    assert ran == [("b", None)]
    [asked] = out["__interrupt__"]
    assert [one["for"] for one in asked.value["waits"]] == ["paid"]
    [waits] = await list_suspended_threads(it.saver)
    assert waits.thread_id == "t"
    assert await it.signal("paid", 4) is True
    assert ran == [("b", None), ("a", 4), "completed"]
    assert (await it.values())["execution_outcome"]["status"] == "completed"
    assert await list_suspended_threads(it.saver) == []


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"wait_until": "tomorrow"}, "is not a moment"),
    ({"wait_until": "2026-12-24T08:00:00"}, "has no UTC offset"),
    ({"wait_until": -5}, "is not a moment"),
    ({"wait_until": True}, "is not a moment"),
    ({"wait_until": {"$from": "nothing.at"}}, "no step or stored context"),
    ({"wait_until": {"$from": "order.nothing"}}, "has no field 'nothing'"),
    ({"wait_for": ""}, "is not an event key"),
    ({"wait_for": ["a"]}, "is not an event key"),
    ({"wait_for": {"key": "a", "until": 3}}, "is not an event"),
    ({"wait_for": {"key": "a", "within": "soon"}}, "is not a duration"),
    (
        {"wait_for": "a", "for_each": {"of": "order.ids", "as": "signal"}},
        "data of the awaited event",
    ),
    ({"wait_for": {"$from": "item.x"}, "for_each": {"of": "order.ids"}}, "has no field 'x'"),
    ({"wait_for": {"$from": "item"}}, "no step or stored context"),
    ({"parameters": VALUE}, "no step or stored context"),
]


@pytest.mark.parametrize(("wrong", "told"), FAULTS)
def test_what_no_step_can_wait_for_is_found_before(
    tools: list[Any], wrong: dict[str, Any], told: str
) -> None:
    registry = build_graph(tools).services.registry  # type: ignore[union-attr]
    end = {"context_key": "end", "capability": "respond"}
    plan = {"steps": [step("order", "take"), step("a", **wrong), end]}
    problems = check_plan(plan, registry)
    assert any(told in problem.cause for problem in problems), problems
    assert all(problem.step == 1 for problem in problems)
    end = {**end, "wait_until": "1h"}
    assert check_plan({"steps": [step("a"), end]}, registry)
    good = [
        {"wait_until": "2026-12-24T08:00:00+01:00"},
        {"wait_until": 90},
        {"wait_until": {"$from": "order.ready_at"}},
        {"wait_for": {"key": {"$from": "order.id"}, "within": 3600}, "parameters": VALUE},
        {"wait_for": {"$from": "item"}, "for_each": {"of": "order.ids"}, "parameters": VALUE},
    ]
    for more in good:
        right = {"steps": [step("order", "take"), step("a", **more), {**end, "wait_until": None}]}
        assert check_plan(right, registry) == []


async def test_a_waiting_thread_holds_no_slot_and_no_lease(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools, settings=Settings(limits={"max_parallel": 1}))
    await it.begin(step("a", wait_for="paid"))
    other = {"messages": [("user", "Go")], "planning_execution_plan": {"steps": [step("b")]}}
    await it.graph.ainvoke(other, {"configurable": {"thread_id": "other"}})
    assert ran == [("b", None)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_signal_in_the_middle_of_a_run_is_found_by_that_run(
    tools: list[Any], ran: list[Any]
) -> None:
    it = Agent(tools)
    began = asyncio.Event()

    @capability_node
    class Slow(BaseCapability):
        name = "slow"
        description = "Takes its time."

        async def execute(self) -> dict[str, Any]:
            began.set()
            await sent.wait()
            return {}

    sent = asyncio.Event()
    it = Agent([*tools, Slow])
    run = asyncio.create_task(it.begin(step("a", wait_for="paid"), step("s", "slow")))
    await began.wait()
    assert await it.signal("paid") is False  # the thread's turn has not come to wait yet
    sent.set()
    out = await run
    assert out["execution_outcome"]["status"] == "completed"
    assert ran == [("a", None)]


@pytest.mark.parametrize("fraction", [0.0000004, 0.0000006])
async def test_a_thread_that_is_woken_at_the_moment_that_was_shown_goes_on(
    tools: list[Any], ran: list[Any], fraction: float
) -> None:
    agent = Agent(tools, clock=(clock := FakeClock(1000 + fraction)))
    await agent.begin(step("a", wait_until=10))
    (one,) = await list_suspended_threads(agent.saver)
    clock.advance(max(0.0, one.wake_at - clock.now()))
    async with asyncio.timeout(20):
        out = await agent.go_on()
    assert out["execution_outcome"]["status"] == "completed"
    assert ran == [("a", None)]


@pytest.mark.parametrize("fraction", [0.0000004, 0.0000006])
async def test_a_step_that_waits_for_an_event_alone_shows_no_moment_before_which_it_does_not_run(
    tools: list[Any], fraction: float
) -> None:
    agent = Agent(tools, clock=FakeClock(1000 + fraction))
    await agent.begin(step("a", wait_for="paid"))
    ((_, asked),) = (await agent.values())["execution_pending_approvals"].items()
    assert asked["shown"].keys() == {"since", "for", "latest"}


async def test_another_event_between_a_kill_and_the_resume_changes_no_place(
    tools: list[Any], ran: list[Any]
) -> None:
    begun, hold = asyncio.Event(), asyncio.Event()

    @capability_node
    async def slow() -> str:
        """Take long."""
        begun.set()
        await hold.wait()
        return "done"

    it = Agent([*tools, slow])
    seen = {"of": "a.id", "is": "!=", "than": ""}
    await it.begin(
        step("b", "take", wait_for="b"),
        step("a", "take", wait_for="a"),
        step("c", "slow", when=seen),
    )
    killed = asyncio.create_task(it.signal("a"))
    await begun.wait()
    killed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killed
    await it.signal("b", run=False)  # its step stands before the one that ended
    hold.set()
    out = await it.go_on()
    assert out["execution_outcome"]["status"] == "completed"
    assert ran == [("take", None), ("take", None)]


async def test_an_event_costs_no_call_of_the_elements_that_wait_on(
    tools: list[Any], ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capgraph.engine.for_each.MOST_AT_ONCE", 2)
    seen: list[str] = []

    class Look:
        stage = "observe"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            seen.append(attempt.key)
            return await call_next(attempt)

    it = Agent(tools, behaviors=[Look()])
    out = await it.begin(step("o", "take"), step("a", **EACH, wait_for={"$from": "item"}))
    assert [*out["execution_outcome"]["waiting"]] == ["a[0]", "a[1]"]
    seen.clear()
    await it.signal("q")
    assert seen == ["a[1]", "a[2]"]  # one has its event, and so another one may wait
    out = await it.values()
    assert [*out["execution_outcome"]["waiting"]] == ["a[0]", "a[2]"]
    await it.signal("r")
    await it.signal("p")
    out = await it.values()
    assert out["execution_outcome"]["status"] == "completed"
    assert [key for key, _ in ran[1:]] == ["a[1]", "a[2]", "a[0]"]
