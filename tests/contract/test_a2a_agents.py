"""A real A2A agent as a step: its results, questions, failures, and a resume that sends nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.adapters import agent_card, remote_capability
from capgraph.base.errors import ConfigurationError
from tests.support.a2a_server import Agent, app
from tests.support.listening import on_loopback


class City(CapabilityContext):
    name: str


@capability_node
async def city() -> City:
    """Name a city."""
    return City(name="Rome")


@pytest.fixture(params=["streaming", "polling"])
async def served(request: Any, monkeypatch: Any) -> AsyncIterator[tuple[Agent, str]]:
    monkeypatch.setattr("capgraph.adapters.a2a._POLL_SECONDS", 0.02)
    agent = Agent()
    streaming = request.param == "streaming"
    async with on_loopback(lambda url: app(agent, url, streaming=streaming)) as url:
        yield agent, url


def on(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def ask(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": list(steps)}}


def step(**parameters: Any) -> dict[str, Any]:
    return {"context_key": "a", "capability": "greeter", "parameters": parameters}


def output(out: dict[str, Any]) -> Any:
    return out["capability_context_data"]["GREETER_RESULT"]["a"]["output"]


async def test_results_failures_and_other_steps(served: tuple[Agent, str]) -> None:
    _, url = served
    greeter = remote_capability(await agent_card(f"{url}/.well-known/agent-card.json"), "greeter")
    assert greeter.capability_spec.description == "Greets people. greet: Say hello."
    graph = build_graph([greeter, city], checkpointer=InMemorySaver())
    out = await graph.ainvoke(
        ask(
            {"context_key": "c", "capability": "city"},
            step(message={"$from": "c.name"}) | {"task_objective": "Greet."},
        ),
        on("asks"),
    )
    assert out["__interrupt__"][0].value["message"] == "which day?"  # told "Rome", it asks
    for said, gives in (
        ({"message": "hello"}, "done: hello"),
        ({"message": "quick"}, "at once"),
        ({"message": "data"}, {"celsius": 21.5}),
        ({}, "done: Greet them."),
    ):
        given = step(**said) | {"task_objective": "Greet them."}
        assert output(await graph.ainvoke(ask(given), on(str(said)))) == gives
    for said, *facts in (
        ("fail", "failed", "the line is dead"),
        ("refuse", "rejected", "not my trade"),
    ):
        out = await graph.ainvoke(ask(step(message=said)), on(said))
        assert all(fact in out["execution_step_results"]["a"]["error"] for fact in facts)


async def test_what_it_asks_is_the_steps_question(served: tuple[Agent, str]) -> None:
    agent, url = served
    graph = build_graph([remote_capability(url, "greeter")], checkpointer=InMemorySaver())
    out = await graph.ainvoke(ask(step(message="ask")), on("1"))
    assert out["__interrupt__"][0].value["message"] == "which city?"
    out = await graph.ainvoke(Command(resume="Rome"), on("1"))
    assert out["__interrupt__"][0].value["message"] == "which day?"
    out = await graph.ainvoke(Command(resume="Monday"), on("1"))
    assert output(out) == "done: Monday"
    assert agent.told == ["ask", "Rome", "Monday"]


async def test_the_answer_to_another_step_is_not_taken(served: tuple[Agent, str]) -> None:
    @capability_node
    async def where() -> City:
        """Ask where."""
        return City(name=interrupt("where?"))

    agent, url = served
    greeter = remote_capability(url, "greeter", effect="none")
    graph = build_graph([greeter, where], checkpointer=InMemorySaver())
    plan = ({"context_key": "w", "capability": "where"}, step(message={"$from": "w.name"}))
    await graph.ainvoke(ask(*plan), on("1"))
    out = await graph.ainvoke(Command(resume="Rome"), on("1"))
    assert [one.value["message"] for one in out["__interrupt__"]] == ["which day?"]
    assert output(await graph.ainvoke(Command(resume="Monday"), on("1"))) == "done: Monday"
    assert agent.told == ["Rome", "Monday"]


async def test_a_resume_attaches_and_sends_nothing_twice(served: tuple[Agent, str]) -> None:
    agent, url = served
    saver = InMemorySaver()
    graph = build_graph([remote_capability(url, "greeter")], checkpointer=saver)
    said: list[Any] = []

    async def first() -> None:
        async for event in graph.astream(ask(step(message="wait")), on("1"), stream_mode="custom"):
            said.append(event)

    run = asyncio.create_task(first())
    while not agent.told:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    # Another process: another graph on the same saver.
    graph = build_graph([remote_capability(url, "greeter")], checkpointer=saver)
    agent.go_on.set()
    assert output(await graph.ainvoke(None, on("1"))) == "done: wait"
    assert agent.told == ["wait"]


@pytest.mark.parametrize("decision", ["skip", "rerun", "done"])
async def test_nobody_knows_whether_it_was_told(served: tuple[Agent, str], decision: str) -> None:
    agent, url = served
    graph = build_graph([remote_capability(url, "greeter")], checkpointer=InMemorySaver())
    run = asyncio.create_task(graph.ainvoke(ask(step(message="hold")), on("1")))
    while not agent.told:
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    agent.go_on.set()
    out = await graph.ainvoke(None, on("1"))
    (question,) = out["__interrupt__"][0].value["steps"]
    assert question["kind"] == "unknown_outcome"
    said: dict[str, Any] = {"decision": decision}
    if decision == "done":
        said["outputs"] = {"GREETER_RESULT": {"output": "done: by phone"}}
    out = await graph.ainvoke(Command(resume={"a": said}), on("1"))
    assert "__interrupt__" not in out
    expected = {"rerun": "done: hold", "done": "done: by phone"}.get(decision)
    assert (output(out) if expected else None) == expected
    assert out["execution_step_results"]["a"]["success"] is (decision != "skip")
    assert agent.told == (["hold", "hold"] if decision == "rerun" else ["hold"])


async def test_what_it_says_of_its_work_is_progress(served: tuple[Agent, str]) -> None:
    agent, url = served
    graph = build_graph([remote_capability(url, "greeter")])
    heard: list[str] = []
    async for event in graph.astream(ask(step(message="wait")), on("1"), stream_mode="custom"):
        if event["event_type"] == "step_progress":
            heard.append(event["message"])
            agent.go_on.set()
    assert heard == ["looking"]


async def test_an_agent_that_is_away_is_tried_again() -> None:
    greeter = remote_capability("http://127.0.0.1:9", "greeter")
    out = await build_graph([greeter]).ainvoke(ask(step(message="x")), on("1"))
    failed = out["execution_step_results"]["a"]
    assert "cannot be reached" in failed["error"]
    assert failed["severity"] == "retriable"
    assert failed["attempts"] == 3


def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a remote agent"):
        remote_capability(object())  # type: ignore[arg-type]
