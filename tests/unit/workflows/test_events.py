"""Event-driven workflows: handlers, what follows, the terminal event, the cap."""

import asyncio

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph.base import ConfigurationError, ValidationError
from capgraph.workflows import EventDrivenWorkflow, WorkflowEvent


def started(**payload):
    return {"event": {"name": "started", "payload": payload}}


async def test_a_returned_event_is_handled_next_with_its_source():
    seen = []
    flow = EventDrivenWorkflow(terminal_event="done")

    async def first(event):
        return [WorkflowEvent("half", {"n": event.payload["n"]}), WorkflowEvent("noise")]

    async def half(event):
        seen.append(event.source)
        return WorkflowEvent("done", {"output": event.payload["n"] / 2})

    flow.on("started", first)
    flow.on("half", half)
    found = await flow.run(started(n=8))
    assert (found.final_output, found.success) == (4.0, True)
    assert seen == ["started"]
    assert found.metadata["events_processed"] == 3  # nobody handles the noise, which is no failure


async def test_handlers_of_one_event_run_in_parallel():
    both = asyncio.Barrier(2)
    flow = EventDrivenWorkflow()

    async def meet(event):
        await both.wait()

    flow.on("started", meet)
    flow.on("started", meet)
    assert (await asyncio.wait_for(flow.run(started()), 10)).success


@pytest.mark.row("G34")
async def test_a_failed_handler_does_not_stop_the_others():
    flow = EventDrivenWorkflow(terminal_event="done")

    async def bad(event):
        raise ValueError("no such tank")

    async def good(event):
        return WorkflowEvent("done", {"output": "x"})

    flow.on("started", bad)
    flow.on("started", good)
    found = await flow.run(started())
    assert not found.success
    assert found.error == "started: no such tank"
    assert found.final_output == "x"
    assert [one.success for one in found.outputs["started"]] == [False, True]


@pytest.mark.row("G34")
async def test_reaching_the_limit_is_not_a_success():
    flow = EventDrivenWorkflow(max_events=5)

    async def again(event):
        return WorkflowEvent("started")

    flow.on("started", again)
    found = await flow.run(started())
    assert not found.success
    assert "max_events=5 reached" in found.error
    assert found.metadata["events_processed"] == 5


@pytest.mark.row("G34")
async def test_each_run_has_a_queue_of_its_own():
    flow = EventDrivenWorkflow(max_events=1)
    seen = []

    async def note(event):
        seen.append(event.payload["n"])
        return WorkflowEvent("started", {"n": "left over"})

    flow.on("started", note)
    await asyncio.gather(*(flow.run(started(n=n)) for n in range(5)))
    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.row("G34")
async def test_an_external_terminal_event_ends_the_run():
    found = await EventDrivenWorkflow(terminal_event="done").run(
        {"event": WorkflowEvent("done", {"output": 7})}
    )
    assert (found.final_output, found.success) == (7, True)


async def test_the_output_of_an_agent_handler_becomes_an_event():
    flow = EventDrivenWorkflow(terminal_event="done")
    flow.on("task", lambda task: task.upper(), gives="written")
    flow.on("written", lambda task: f"<{task}>", gives="done")
    assert (await flow.run({"task": "hello"})).final_output == "<HELLO>"


async def test_a_resumed_run_does_not_repeat_handled_events():
    runs = []
    flow = EventDrivenWorkflow(terminal_event="done")

    async def first(event):
        runs.append("first")
        return WorkflowEvent("ask")

    async def ask(event):
        return WorkflowEvent("done", {"output": interrupt("May I?")})

    flow.on("task", first)
    flow.on("ask", ask)
    graph = flow.compile(InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"task": "x"}, thread)
    assert [item.value for item in out["__interrupt__"]] == ["May I?"]
    out = await graph.ainvoke(Command(resume="yes"), thread)
    assert out["output"] == "yes"
    assert runs == ["first"]


async def test_invalid_events_are_refused():
    with pytest.raises(ValidationError, match="The events"):
        await EventDrivenWorkflow().run({"event": {"nam": "x"}})
    with pytest.raises(ConfigurationError, match="max_events is 0"):
        EventDrivenWorkflow(0)
    flow = EventDrivenWorkflow()

    async def odd(event):
        return ["text"]

    flow.on("started", odd)
    found = await flow.run(started())
    assert found.error == "started: a handler returned 'text', which is not a WorkflowEvent"
    flow.on("other", 5)
    with pytest.raises(ConfigurationError, match="5 cannot perform a task"):
        flow.compile()

    async def number(event):
        return 5

    flow = EventDrivenWorkflow()
    flow.on("started", number)
    found = await flow.run(started())
    assert found.error == "started: a handler returned 5, which is not a WorkflowEvent"


@pytest.mark.row("G34")
async def test_the_compiled_graph_accepts_an_event():
    flow = EventDrivenWorkflow(terminal_event="done")

    async def half(event):
        return WorkflowEvent("done", {"output": event.payload["n"] / 2})

    flow.on("started", half)
    config = {"configurable": {"thread_id": "1"}}
    out = await flow.compile(InMemorySaver()).ainvoke(started(n=8), config)
    assert (out["output"], out["success"]) == (4.0, True)


@pytest.mark.row("G34")
async def test_an_unhandled_input_event_is_not_a_success():
    found = await EventDrivenWorkflow().run(started())
    assert (found.success, found.error) == (False, "no handler for 'started'")
    with pytest.raises(ValidationError, match="must be a mapping with a task"):
        await EventDrivenWorkflow().run(None)
    assert not (await EventDrivenWorkflow().run({})).success
