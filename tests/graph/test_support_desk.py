"""The support desk of the examples, end to end: the same conversations in every form of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tests.benchmarks.support import (
    CONVERSATIONS,
    DESKS,
    EXAMPLES,
    FORMS,
    HAND_OVERS,
    ROOT,
    Form,
    Talk,
    counted_model,
    results,
    support_agent,
    support_loop,
    talk,
)

LONG = "thirty turns"
PATTERNS = [name for name in CONVERSATIONS if name != LONG]
LOOP, *_, PLANNED, LOOKING = FORMS
ASKED = "Book the cheapest sailing from Haven to Sund on 2026-06-12 for 2 persons."
BOTH = "Book the lighthouse walk on Sund for 2 persons and rent the city bicycle on Sund for 1 day."
THREAD: Any = {"configurable": {"thread_id": "ada", "passenger_id": "ada"}, "recursion_limit": 60}


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from ferry_support.database import make_database

    path = tmp_path / "ferry.sqlite"
    monkeypatch.setenv("FERRY_DATABASE", str(path))
    make_database(str(path))
    return path


@pytest.fixture(autouse=True)
def _keeps_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRY_DATABASE", "")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("name", PATTERNS)
async def test_each_form_comes_to_the_same_results(form: Form, name: str, tmp_path: Path) -> None:
    found = await talk(form, name, tmp_path, *counted_model())
    assert found.right, found.replies
    assert len(CONVERSATIONS[name]) >= 3


@pytest.mark.parametrize("form", DESKS, ids=lambda form: form.name)
async def test_specialists_hand_over_three_times(form: Form, tmp_path: Path) -> None:
    found = await talk(form, HAND_OVERS, tmp_path, *counted_model())
    assert found.right, found.replies
    assert found.calls == 12  # a call for each handoff, and three for each task


@pytest.mark.parametrize("name", PATTERNS)
async def test_looking_costs_half_of_the_loop_from_the_third_turn_on(
    name: str, tmp_path: Path
) -> None:
    loop: Talk = await talk(LOOP, name, tmp_path, *counted_model())
    looking: Talk = await talk(LOOKING, name, tmp_path, *counted_model())
    assert looking.calls <= loop.calls
    for of_loop, of_looking in zip(loop.turns[2:], looking.turns[2:], strict=True):
        assert 2 * of_looking.prompt_tokens <= of_loop.prompt_tokens
    assert looking.right


async def test_a_long_thread_costs_less_than_half_of_the_loop(tmp_path: Path) -> None:
    loop: Talk = await talk(LOOP, LONG, tmp_path, *counted_model())
    looking: Talk = await talk(LOOKING, LONG, tmp_path, *counted_model())
    assert (loop.right, looking.right) == (True, True)
    assert looking.calls <= loop.calls
    assert looking.prompt_tokens < loop.prompt_tokens * 0.45


async def test_what_one_plan_asks_is_one_question_and_can_be_edited(database: Path) -> None:
    from ferry_support.scripted import scripted_model

    graph = support_agent(scripted_model(), InMemorySaver())
    out = await graph.ainvoke({"messages": [("user", BOTH)]}, THREAD)
    [question] = out["__interrupt__"]
    steps = {step["capability"]: step for step in question.value["steps"]}
    assert steps["book_tour"]["parameters"] == {"tour": "T2", "persons": 2}
    assert steps["rent_bicycle"]["parameters"] == {"bicycle": "B1", "days": 1}
    assert not any(step.get("ungrounded") for step in steps.values())
    answer = {
        steps["book_tour"]["context_key"]: {
            "decision": "edit",
            "parameters": {"tour": "T2", "persons": 3},
        },
        steps["rent_bicycle"]["context_key"]: "approve",
    }
    out = await graph.ainvoke(Command(resume=answer), THREAD)
    assert "__interrupt__" not in out
    assert results() == {("T2", 3), ("B1", 1)}


async def test_the_loop_asks_and_edits_too(database: Path) -> None:
    from ferry_support.scripted import scripted_model

    graph = support_loop(scripted_model(), InMemorySaver())
    out = await graph.ainvoke({"messages": [("user", BOTH)]}, THREAD)
    [question] = out["__interrupt__"]
    assert [one["name"] for one in question.value["action_requests"]] == [
        "book_tour",
        "rent_bicycle",
    ]
    edited = {"name": "book_tour", "args": {"tour": "T2", "persons": 3}}
    decisions = [{"type": "edit", "edited_action": edited}, {"type": "approve"}]
    await graph.ainvoke(Command(resume={"decisions": decisions}), THREAD)
    assert results() == {("T2", 3), ("B1", 1)}


async def test_a_passenger_acts_for_nobody_else(database: Path) -> None:
    from ferry_support.scripted import scripted_model

    graph = support_agent(scripted_model(), InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "bo", "passenger_id": "bo"}}
    plan = {"steps": [{"context_key": "own", "capability": "my_bookings"}]}
    given = {"messages": [("user", "Mine?")], "planning_execution_plan": plan}
    out = await graph.ainvoke(given, thread)
    assert out["capability_context_data"]["MY_BOOKINGS"]["own"] == {"value": []}
    for plan["steps"][0]["parameters"] in ({"config": {}}, {"passenger": "ada"}):
        out = await graph.ainvoke({**given, "messages": [("user", "Again?")]}, thread)
        assert out["execution_outcome"]["status"] == "failed"


async def test_a_plan_refers_to_fields_of_what_a_tool_returned(database: Path) -> None:
    from ferry_support.scripted import scripted_model

    graph = support_agent(scripted_model(), InMemorySaver())
    route = {"origin": "Haven", "destination": "Sund", "day": "2026-06-12"}
    second = {"sailing": {"$from": "found.1.sailing"}, "persons": 1}
    plan = {
        "steps": [
            {"context_key": "found", "capability": "search_sailings", "parameters": route},
            {"context_key": "booked", "capability": "book_sailing", "parameters": second},
        ]
    }
    given = {"messages": [("user", "Book the second one.")], "planning_execution_plan": plan}
    out = await graph.ainvoke(given, THREAD)
    [question] = out["__interrupt__"]
    assert question.value["steps"][0]["parameters"] == {"sailing": "S2", "persons": 1}
    await graph.ainvoke(Command(resume="approve"), THREAD)
    assert results() == {("S2", 1)}


KILLED = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from contextlib import contextmanager

    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.types import Command

    from ferry_support import desk
    from ferry_support.conversations import results
    from ferry_support.scripted import scripted_model
    from tests.benchmarks.support import FORMS, agreement

    form, saver, asked, thread, kill = eval(sys.argv[1])
    connect = desk.connect

    @contextmanager
    def killing():
        "Kill the process when the database has changed, before the tool can return."
        with connect() as db:
            yield db
            changed = db.total_changes
        if changed and kill:
            os.kill(os.getpid(), signal.SIGKILL)

    desk.connect = killing

    async def main():
        [build] = [one.build for one in FORMS if one.name == form]
        async with AsyncSqliteSaver.from_conn_string(saver) as checkpointer:
            graph = build(scripted_model(), checkpointer)
            out = await graph.ainvoke({"messages": [("user", asked)]} if kill else None, thread)
            for _ in range(3):
                if not (questions := out.get("__interrupt__")):
                    break
                value = questions[0].value
                [step] = value.get("steps", [{}])
                answer = agreement(questions)
                if step.get("kind") == "unknown_outcome":
                    print("UNKNOWN", step["capability"])
                    made = {"booking": "K3", "sailing": "S2", "persons": 2, "cabin": None}
                    outputs = {"BOOK_SAILING": {"value": {**made, "status": "booked"}}}
                    answer = {step["context_key"]: {"decision": "done", "outputs": outputs}}
                out = await graph.ainvoke(Command(resume=answer), thread)
            print("REPLY", out["messages"][-1].text)

    asyncio.run(main())
    """
)


def run_killed(form: Form, folder: Path, *, kill: bool) -> subprocess.CompletedProcess[str]:
    told = (form.name, str(folder / "threads.sqlite"), ASKED, THREAD, kill)
    paths = os.pathsep.join([str(ROOT), str(EXAMPLES)])
    return subprocess.run(
        [sys.executable, "-c", KILLED, repr(told)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("form", "bookings"), [(LOOP, 2), (LOOKING, 1)], ids=["loop", "looking"])
def test_a_kill_inside_an_effect(form: Form, bookings: int, database: Path, tmp_path: Path) -> None:
    """Plain LangGraph runs an unfinished tool again; capgraph asks a person."""
    from ferry_support.database import connect

    begun = run_killed(form, tmp_path, kill=True)
    assert begun.returncode == -signal.SIGKILL, begun.stderr
    resumed = run_killed(form, tmp_path, kill=False)
    assert resumed.returncode == 0, resumed.stderr
    assert ("UNKNOWN book_sailing" in resumed.stdout) == (form is LOOKING)
    assert "REPLY Booking K" in resumed.stdout
    with connect() as db:
        made = db.execute("SELECT count(*) FROM bookings WHERE sailing = 'S2'").fetchone()[0]
    assert made == bookings
