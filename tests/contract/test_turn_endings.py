"""Every turn ends with a message and the truth; steps see themselves; nonsense gets a clear error."""

from __future__ import annotations

import asyncio
import copy
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import BaseCapability, BaseInfrastructureNode, capability_node, infrastructure_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.base.errors import CapgraphError
from capgraph.base.plan import load_execution_plan_from_file, save_execution_plan_to_file
from capgraph.configs.streaming import get_streamer
from capgraph.prompts import PromptProvider, get_framework_prompts
from tests.support.one_door import (
    Reading,
    Receipt,
    breaker,
    measurer,
    names_one_of,
    own_nodes,
    payer,
    refused,
    said,
    status,
)


def node(name: str, body: Any) -> Any:
    """Return an infrastructure node of one's own in the seed's style."""

    async def execute(state: Any, **_: Any) -> Any:
        return body(state)

    attributes = {"name": name, "description": f"Own {name}", "execute": staticmethod(execute)}
    cls = type(f"Own{name.title()}", (BaseInfrastructureNode,), attributes)
    return infrastructure_node(cls)


def broken() -> Any:
    return breaker("broken", CapabilityError("no power", severity=ErrorSeverity.CRITICAL))


# --- a router of one's own ------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["respond", "error", "measure", "clarify"])
async def test_a_router_in_the_seeds_style_is_followed_or_refused(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    runs: list[Any] = []

    def decide(state: Any) -> dict[str, Any]:
        done = bool(state.get("execution_step_results"))
        return {"control_next_node": "respond" if done else target}

    house = own_nodes(monkeypatch, node("router", decide))
    try:
        made = agent(Reading, measurer(runs), plans=[[step("a", "measure")]], infrastructure=house)
    except CapgraphError as exc:
        names_one_of(exc, "router")
        return
    out = await made.ask()
    assert said(out)
    if target == "measure":
        assert runs == ["a"]
        assert said(out) == "The value is 7."
        assert status(out) == "completed"
    else:
        assert runs == []
        assert status(out) != "completed", "a plan that never ran is not completed"


async def test_a_router_that_passes_over_a_failure_does_not_make_it_a_success(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: Any) -> Any:
        return Command(goto="respond" if state.get("execution_step_results") else "broken")

    house = own_nodes(monkeypatch, node("router", decide))
    out = await agent(broken(), plans=[[step("a", "broken")]], infrastructure=house).ask()
    assert said(out)
    assert status(out) in {"failed", "partial"}


async def test_a_router_that_names_no_node_ends_with_a_message(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = own_nodes(monkeypatch, node("router", lambda state: {"control_next_node": "ghost"}))
    try:
        out = await agent(
            Reading, measurer([]), plans=[[step("a", "measure")]], infrastructure=house
        ).ask()
    except CapgraphError as exc:
        names_one_of(exc, "router", "ghost")
        return
    assert "ghost" in said(out)
    assert status(out) != "completed"


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", ["respond", "error", "clarify"])
async def test_a_turn_ends_with_a_message_though_its_last_node_says_nothing(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    house = own_nodes(monkeypatch, node(silent, lambda state: {}))
    plan = {
        "respond": [step("a", "measure")],
        "error": [step("a", "broken")],
        "clarify": [step("q", "clarify")],
    }[silent]
    items = (Reading, measurer([]), broken())
    out = await agent(*items, plans=[plan], infrastructure=house).ask()
    assert said(out)
    if silent == "error":
        assert status(out) == "failed"


async def test_an_error_node_of_ones_own_does_not_make_a_failure_a_success(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = own_nodes(monkeypatch, node("error", lambda state: {"messages": [("ai", "Sorry.")]}))
    made = agent(broken(), plans=[[step("a", "broken")]], infrastructure=house)
    out = await made.ask()
    assert said(out) == "Sorry."
    assert status(out) == "failed"


@pytest.mark.parametrize("where", ["task_extraction", "classifier", "orchestrator", "respond"])
async def test_a_node_that_fails_is_a_failed_turn_with_a_message(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(state: Any) -> Any:
        raise CapabilityError("the node is broken", severity=ErrorSeverity.CRITICAL)

    house = own_nodes(monkeypatch, node(where, fail))
    made = agent(Reading, measurer([]), plans=[[step("a", "measure")]], infrastructure=house)
    events = []
    start = {"messages": [("user", "Do it")]}
    async for mode, item in made.graph.astream(start, stream_mode=["custom", "values"]):
        if mode == "custom":
            events.append(item)
        else:
            out = item
    assert "the node is broken" in said(out)
    assert status(out) == "failed"
    ends = [event for event in events if event.get("event_type") == "turn_finished"]
    assert len(ends) == 1
    assert "completed" not in str(ends[0])


# --- what a step sees -----------------------------------------------------------------------------


async def test_parallel_steps_see_their_own_place_and_streamer(agent: Any, step: Any) -> None:
    seen: dict[str, int] = {}

    class Look(BaseCapability):
        name = "look"
        description = "Looks at itself"

        @staticmethod
        async def execute(state: Any, step: Any, streamer: Any, **_: Any) -> dict[str, Any]:
            key = step["context_key"]
            await asyncio.sleep(0)
            seen[key] = state["planning_current_step_index"]
            streamer.status(f"given {key}")
            get_streamer("capability", "look", state).status(f"made {key}")
            return {}

    keys = ["a", "b", "c"]
    made = agent(capability_node(Look), plans=[[step(key, "look") for key in keys]])
    stream = made.graph.astream({"messages": [("user", "x")]}, stream_mode="custom")
    events = [event async for event in stream]
    assert seen == {"a": 0, "b": 1, "c": 2}
    for number, key in enumerate(keys, start=1):
        for word in ("given", "made"):
            (event,) = [e for e in events if e.get("message") == f"{word} {key}"]
            assert event["step"] == number
            assert event["component"] == "look"


async def test_a_retried_step_sees_its_own_place(agent: Any, step: Any) -> None:
    seen: list[int] = []

    class Look(BaseCapability):
        name = "look"
        description = "Looks at itself"

        @staticmethod
        async def execute(state: Any, step: Any, **_: Any) -> dict[str, Any]:
            if step["context_key"] == "b":
                seen.append(state["planning_current_step_index"])
                if len(seen) == 1:
                    raise CapabilityError("gone", severity=ErrorSeverity.RETRIABLE)
            return {}

    plan = [step("a", "look"), step("b", "look"), step("c", "look")]
    await agent(capability_node(Look), plans=[plan]).ask()
    assert seen == [1, 1]


async def test_a_question_is_announced_once(agent: Any, step: Any) -> None:
    made = agent(
        Receipt,
        payer([], requires_approval=True),
        plans=[[step("a", "pay")]],
        checkpointer=InMemorySaver(),
    )
    asked: list[Any] = []

    async def watch(value: Any) -> None:
        async for event in made.graph.astream(value, made.config(), stream_mode="custom"):
            if event.get("event_type") == "approval_asked":
                asked.append(event)

    await watch({"messages": [("user", "Pay")]})
    assert len(asked) == 1
    await watch(Command(resume="approve"))
    assert len(asked) == 1, "the question was announced again when it was answered"


# --- words that went missing ----------------------------------------------------------------------


@pytest.mark.parametrize("guide", ["_create_classifier_guide", "_create_orchestrator_guide"])
async def test_an_attribute_error_inside_a_guide_is_not_swallowed(
    agent: Any, step: Any, guide: str
) -> None:
    def write(self: Any) -> Any:
        return self.no_such_thing

    try:
        made = agent(Reading, measurer([], **{guide: write}), plans=[[step("a", "measure")]])
        out = await made.ask()
    except (CapgraphError, AttributeError) as exc:
        names_one_of(exc, "no_such_thing")
    else:
        assert "no_such_thing" in f"{said(out)} {out.get('control_error_info')}"


@pytest.mark.parametrize("plan", [{}, {"steps": []}])
@pytest.mark.may_block
def test_an_empty_plan_can_be_read_back(tmp_path: Path, plan: Any) -> None:
    save_execution_plan_to_file(plan, tmp_path / "plan.json")
    assert load_execution_plan_from_file(tmp_path / "plan.json").get("steps", []) == []


# --- nonsense -------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", [{"turn": 0}, {"turn": "x"}, 5, "x", [1]])
async def test_runtime_info_of_a_caller_is_refused_and_payments_stay_two(
    agent: Any, step: Any, info: Any
) -> None:
    paid: list[int] = []
    plans = [[step("a", "pay")]]
    made = agent(Receipt, payer(paid), plans=plans, checkpointer=InMemorySaver())
    await made.ask("Pay")
    forged = {"messages": [("user", "Pay")], "runtime_info": info}
    await refused(made.graph.ainvoke(forged, made.config()), "runtime_info")
    out = await made.ask("Pay")
    assert paid == [5, 5]
    assert status(out) == "completed"


@pytest.mark.parametrize("info", [{"turn": 0}, {"turn": "x"}, {"turn": -3}, 5, "x", [1]], ids=repr)
@pytest.mark.parametrize("door", ["update_state", "checkpoint"])
async def test_nonsense_in_runtime_info_never_passes_a_payment_off_as_done(
    agent: Any, step: Any, info: Any, door: str
) -> None:
    paid: list[int] = []
    saver = InMemorySaver()
    made = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], checkpointer=saver)
    await made.ask("Pay")
    try:
        if door == "update_state":
            await made.graph.aupdate_state(made.config(), {"runtime_info": info}, as_node="error")
        else:
            await damage(saver, runtime_info=info)
        out = await made.ask("Pay")
    except CapgraphError as exc:
        names_one_of(exc, "runtime_info", "thread", "checkpoint")
        assert paid == [5]
    else:
        assert paid == [5, 5] or status(out) == "failed", "reported as done without being done"


async def damage(saver: Any, **values: Any) -> None:
    """Write values into the newest checkpoint of thread 1, as another program would."""
    config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    found = await saver.aget_tuple(config)
    checkpoint = copy.deepcopy(found.checkpoint)
    versions = {}
    for name, value in values.items():
        old = checkpoint["channel_versions"].get(name)
        version = saver.get_next_version(old, None)
        checkpoint["channel_values"][name] = value
        checkpoint["channel_versions"][name] = versions[name] = version
    await saver.aput(found.parent_config or config, checkpoint, found.metadata, versions)


NONSENSE: list[Any] = [
    5,
    "x",
    [1],
    {"READING": 5},
    {"READING": ["k"]},
    {"READING": {"k": 5}},
    {"READING": {"k": {"value": "abc"}}},
    {"READING": {"k": {"nothing": 1}}},
    {"READING": {"k": None}},
]


@pytest.mark.parametrize("data", NONSENSE, ids=repr)
async def test_nonsense_in_the_context_of_a_caller_is_refused(
    agent: Any, step: Any, data: Any
) -> None:
    made = agent(
        Reading,
        measurer([]),
        plans=[[step("a", "measure")]],
        given=["READING"],
        checkpointer=InMemorySaver(),
    )
    start = {"messages": [("user", "Do it")], "capability_context_data": data}
    text = await refused(made.graph.ainvoke(start, made.config()))
    assert "capability_context_data" in text or "READING" in text
    assert status(await made.ask()) == "completed", "the thread goes on"


ROWS: list[tuple[str, Any]] = [
    ("capability_context_data", 5),
    ("capability_context_data", {"READING": 5}),
    ("capability_context_data", {"READING": {"k": 5}}),
    ("planning_execution_plan", 5),
    ("planning_execution_plan", {"steps": 5}),
    ("planning_execution_plan", {"steps": [5]}),
    ("execution_step_results", [1]),
    ("execution_step_results", {"a": 5}),
    ("agent_control", "off"),
    ("control_attempts", {"a": "many"}),
    ("control_error_info", "broken"),
]


@pytest.mark.parametrize(("key", "value"), ROWS, ids=repr)
async def test_nonsense_in_a_checkpoint_row_gives_a_clear_error(
    agent: Any, step: Any, key: str, value: Any
) -> None:
    @capability_node
    async def double(reading: Reading) -> Reading:
        """Double a reading."""
        return Reading(value=2 * reading.value)

    saver = InMemorySaver()
    plan = [step("b", "double", READING="k")]
    made = agent(Reading, double, plans=[plan], given=["READING"], checkpointer=saver)
    await made.ask(capability_context_data={"READING": {"k": {"value": 1}}})
    await damage(saver, **{key: value})
    try:
        out = await made.ask("Again")
    except CapgraphError as exc:
        names_one_of(exc, key, "READING", "checkpoint", "thread")
    else:
        bare = re.search(r"object (has|is|does)|indices must be|not a mapping", said(out))
        assert bare is None, "a bare TypeError reached the user"


@pytest.mark.parametrize("where", ["guide", "step"])
async def test_prompts_of_the_settings_are_the_frameworks_prompts(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    module = types.ModuleType("own_prompts")
    module.provider = PromptProvider()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_prompts", module)
    seen: dict[str, Any] = {}

    async def execute(self: Any) -> Reading:
        seen["step"] = get_framework_prompts()
        return Reading(value=1)

    def write(self: Any) -> None:
        seen["guide"] = get_framework_prompts()

    Cap = measurer([], execute=execute, _create_classifier_guide=write)
    plans = [[step("a", "measure")]]
    await agent(Reading, Cap, plans=plans, settings={"prompts": "own_prompts:provider"}).ask()
    assert seen[where] is module.provider  # type: ignore[attr-defined]
