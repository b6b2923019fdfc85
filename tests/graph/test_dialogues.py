"""Dialogues with specialists: they stay over several messages, hand over, hand back, and survive a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import build_graph
from capgraph.adapters import agent_capability
from capgraph.agents import ReActAgent, handoff_tool
from capgraph.base import ConfigurationError
from capgraph.configs.settings import load_settings
from capgraph.governance import PermissionMode, PermissionPolicy, RolePermissionConfig
from capgraph.telemetry import RingBufferSink
from capgraph.testing import ScriptedModel
from tests.graph.dialogue_toys import book, call_tool, clock, lodging, specialist, tickets
from tests.graph.test_serving import ROOT, Place

CAPABILITIES = [tickets, lodging, clock]
THREAD: Any = {"configurable": {"thread_id": "one"}}


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path / "log"


class Talk:
    """A thread of a graph, which agrees to all that it is asked."""

    def __init__(self, capabilities: Any = CAPABILITIES, **options: Any) -> None:
        self.sink = RingBufferSink()
        self.questions = 0
        self.graph = build_graph(
            capabilities,
            checkpointer=InMemorySaver(),
            sinks=[self.sink],
            **options,
        )

    async def say(self, text: str, config: Any = THREAD) -> dict[str, Any]:
        out = await self.graph.ainvoke({"messages": [("user", text)]}, config)
        while out.get("__interrupt__"):
            self.questions += 1
            out = await self.graph.ainvoke(Command(resume="approve"), config)
        return dict(out)

    async def hear(self, text: str) -> str:
        """Return the reply to a message, and the capability that gets the next one."""
        out = await self.say(text)
        return f"{out['messages'][-1].text} -> {out['execution_outcome'].get('dialogue')}"

    @property
    def changes(self) -> list[tuple[str | None, str | None, str]]:
        found = (e for e in self.sink.events if e["event_type"] == "dialogue_changed")
        # Fields without a value are not part of an event.
        return [
            (event.get("previous"), event.get("capability"), event["reason"]) for event in found
        ]


HAND_OVERS = [
    ("I need a ticket for the ferry.", "tickets heard 1 -> tickets"),
    ("To Sund.", "tickets heard 2 -> tickets"),
    ("Two persons.", "tickets heard 3 -> tickets"),
    ("Now a hotel room.", "lodging heard 1 -> lodging"),
    ("A double room.", "lodging heard 2 -> lodging"),
    ("With breakfast.", "lodging heard 3 -> lodging"),
    ("And a ticket for the way back.", "tickets heard 1 -> tickets"),
    ("On Sunday.", "tickets heard 2 -> tickets"),
    ("In the evening.", "tickets heard 3 -> tickets"),
]


@pytest.mark.parametrize("as_loop", [False, True], ids=["agent", "langchain loop"])
async def test_three_hand_overs_in_one_thread(as_loop: bool) -> None:
    desks = [specialist(name, as_loop=as_loop) for name in ("tickets", "lodging")]
    talk = Talk([*desks, clock])
    for text, reply in HAND_OVERS:
        assert await talk.hear(text) == reply
    assert talk.changes == [
        (None, "tickets", "opened"),
        ("tickets", None, "handed over"),
        (None, "lodging", "opened"),
        ("lodging", None, "handed over"),
        (None, "tickets", "opened"),
    ]
    out = await talk.say("Now a hotel room, again.")
    assert [one["author"] for one in out["planning_history"]] == ["dialogue", "tickets"]
    assert [one["capability"] for one in out["execution_step_results"].values()] == [
        "tickets",
        "lodging",
    ]


async def test_the_planner_goes_on_when_a_specialist_hands_back() -> None:
    def plan(call: Any) -> Any:
        if call.schema is None:
            return "The planner answers."
        if "Back to the planner" in call.prompt:
            return {"steps": [{"capability": "clock"}]}
        return {"steps": [{"capability": "tickets", "task_objective": "A ticket."}]}

    talk = Talk(
        model=ScriptedModel(responses=plan),
        settings=load_settings(planning={"mode": "look"}),
    )
    assert await talk.hear("A ticket.") == "tickets heard 1 -> tickets"
    out = await talk.say("Back to the planner: what time is it?")
    assert out["execution_outcome"]["status"] == "completed"
    assert "dialogue" not in out["execution_outcome"]
    capabilities = [one["capability"] for one in out["execution_step_results"].values()]
    assert capabilities == ["tickets", "clock"]
    assert talk.changes[-1] == ("tickets", None, "handed over")


async def test_hand_overs_of_one_turn_are_limited() -> None:
    """Two specialists that send the user to each other end the turn."""

    def refer(desk: str, other: str) -> Any:
        count = iter(range(100))
        model = ScriptedModel(
            responses=lambda _: call_tool(f"transfer_to_{other}", task=f"task {next(count)}")
        )
        agent = ReActAgent(model, tools=[handoff_tool(other)])
        return agent_capability(agent, desk, examples=["Go."], keeps_dialogue=True)

    talk = Talk(
        [refer("one", "two"), refer("two", "one")], settings=load_settings(limits={"max_looks": 3})
    )
    out = await talk.say("Go.")
    assert out["execution_outcome"]["status"] == "failed"
    assert len(out["execution_step_results"]) <= 5
    assert "dialogue" not in out["execution_outcome"]


async def test_approvals_inside_a_dialogue(log: Path) -> None:
    talk = Talk()
    assert await talk.hear("I need a ticket for the ferry.") == "tickets heard 1 -> tickets"
    assert await talk.hear("book A") == "tickets booked A -> tickets"
    assert await talk.hear("book B") == "tickets booked B -> tickets"
    assert talk.questions == 2
    assert log.read_text().split() == ["A", "B"]


async def test_a_new_message_in_place_of_an_approval_stays_in_the_dialogue(log: Path) -> None:
    talk = Talk()
    await talk.say("I need a ticket for the ferry.")
    out = await talk.graph.ainvoke({"messages": [("user", "book A")]}, THREAD)
    assert out["__interrupt__"]
    out = await talk.say("Not that one.")
    assert out["execution_outcome"]["question"]["status"] == "dropped"
    assert out["execution_outcome"]["dialogue"] == "tickets"
    assert log.read_text() == ""


async def test_a_user_can_leave() -> None:
    talk = Talk()
    await talk.say("I need a ticket for the ferry.")
    out = await talk.say("/leave")
    assert (out["execution_outcome"]["status"], out["execution_step_results"]) == ("completed", {})
    assert await talk.hear("I need a hotel room.") == "lodging heard 1 -> lodging"
    out = await talk.say("/leave What time is it?")
    assert [*out["execution_step_results"]] == ["clock"]
    reasons = [reason for _, _, reason in talk.changes]
    assert reasons == ["opened", "left", "opened", "left"]


async def test_a_failure_ends_the_dialogue() -> None:
    talk = Talk()
    await talk.say("I need a ticket for the ferry.")
    out = await talk.say("crash")
    assert out["execution_outcome"]["status"] == "failed"
    assert "dialogue" not in out["execution_outcome"]
    out = await talk.say("What time is it?")
    assert [*out["execution_step_results"]] == ["clock"]
    assert talk.changes[-1] == ("tickets", None, "failed")


async def test_permissions_hold_in_a_dialogue() -> None:
    def thread(role: str) -> Any:
        return {"configurable": {"thread_id": "one", "user_id": "ann", "role": role}}

    permissions = PermissionPolicy(
        [
            RolePermissionConfig("staff", PermissionMode.FULL_ACCESS),
            RolePermissionConfig("guest", PermissionMode.READ_ONLY),
        ]
    )
    restricted = specialist("tickets", permission="full_access")
    talk = Talk([restricted, lodging, clock], permissions=permissions)
    out = await talk.say("I need a ticket for the ferry.", thread("staff"))
    assert out["execution_outcome"]["dialogue"] == "tickets"
    out = await talk.say("What time is it?", thread("guest"))
    assert [*out["execution_step_results"]] == ["clock"]
    assert talk.changes[-1] == ("tickets", None, "unavailable")
    out = await talk.say("I need a hotel room.", thread("guest"))
    assert out["execution_outcome"]["dialogue"] == "lodging"
    out = await talk.say("Now a ticket.", thread("guest"))  # no transfer goes past a permission
    assert out["execution_outcome"]["status"] == "failed"


async def test_a_specialist_among_other_steps_opens_no_dialogue() -> None:
    talk = Talk()
    plan = {
        "steps": [
            {"context_key": "a", "capability": "tickets", "task_objective": "One."},
            {"context_key": "b", "capability": "clock"},
        ]
    }
    given: Any = {"messages": [("user", "Both.")], "planning_execution_plan": plan}
    out = await talk.graph.ainvoke(given, THREAD)
    assert out["execution_outcome"]["done"] == ["a", "b"]
    assert "dialogue" not in out["execution_outcome"]
    assert "noon" in out["messages"][-1].text


async def test_tools_that_need_an_approval_use_the_services_of_the_run(log: Path) -> None:
    replies = iter([call_tool("book", item="A"), "Done."])
    model = ScriptedModel(responses=lambda _: next(replies))
    talk = Talk([agent_capability(ReActAgent(model, tools=[book]), "clerk", examples=["Go."])])
    out = await talk.say("Go.")
    assert out["execution_outcome"]["status"] == "completed"
    assert (talk.questions, log.read_text().split()) == (1, ["A"])
    with pytest.raises(ConfigurationError):  # alone, no run has services for it
        await ReActAgent(model, tools=[book]).execute("Go.")


def test_an_agent_without_a_conversation_keeps_no_dialogue() -> None:
    async def poet(task: str) -> str:
        return task

    with pytest.raises(ConfigurationError):
        agent_capability(poet, keeps_dialogue=True)


async def test_a_handoff_without_a_dialogue_is_a_failure() -> None:
    talk = Talk([specialist("tickets", keeps_dialogue=False), clock])
    out = await talk.say("I need a ticket for the ferry, and a hotel.")
    assert out["execution_outcome"]["status"] == "failed"


async def test_a_specialist_as_a_tool_of_another_agent_keeps_no_dialogue() -> None:
    replies = iter([call_tool("tickets", task="One ticket."), "Done."])
    model = ScriptedModel(responses=lambda _: next(replies))
    boss = agent_capability(ReActAgent(model, tools=[tickets]), "boss", examples=["Go."])
    talk = Talk([boss, tickets])
    out = await talk.say("Go.")
    assert out["execution_outcome"]["status"] == "completed"
    assert "dialogue" not in out["execution_outcome"]


KILLED = textwrap.dedent(
    """
    import asyncio, os, signal, sys

    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.types import Command

    from capgraph import build_graph
    from tests.graph import dialogue_toys
    from tests.graph.dialogue_toys import clock, lodging, specialist, tickets

    saver, text, kill = sys.argv[1:]
    thread = {"configurable": {"thread_id": "one"}}
    answer = dialogue_toys.answer

    def killing(desk, call):
        if kill and any(message.type == "tool" for message in call.messages[-1:]):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(desk, call)

    dialogue_toys.answer = killing

    async def main():
        async with AsyncSqliteSaver.from_conn_string(saver) as checkpointer:
            graph = build_graph([tickets, lodging, clock], checkpointer=checkpointer)
            out = await graph.ainvoke({"messages": [("user", text)]} if text else None, thread)
            while out.get("__interrupt__"):
                out = await graph.ainvoke(Command(resume="approve"), thread)
            print(out["messages"][-1].text, "->", out["execution_outcome"].get("dialogue"))

    asyncio.run(main())
    """
)


def run_process(folder: Path, text: str, *, kill: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(folder / "threads.sqlite"), text, "1" if kill else ""],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_process_goes_on_in_the_dialogue(tmp_path: Path, log: Path) -> None:
    assert run_process(tmp_path, "I need a ticket.").stdout == "tickets heard 1 -> tickets\n"
    killed = run_process(tmp_path, "book A", kill=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run_process(tmp_path, "").stdout == "tickets booked A -> tickets\n"
    assert run_process(tmp_path, "To Sund.").stdout == "tickets heard 3 -> tickets\n"
    assert log.read_text().split() == ["A"]


@pytest.mark.may_block
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.timeout(600)
def test_a_served_thread_hands_over_between_two_processes(tmp_path: Path) -> None:
    place = Place(tmp_path, "threads.db")
    (tmp_path / "agent.yml").write_text("modules: [tests.graph.dialogue_toys]\n")
    thread = ""

    def say(client: httpx.Client, text: str) -> dict[str, Any]:
        run = client.post(f"/api/threads/{thread}/runs", json={"message": text}).json()["run_id"]
        place.status(run, "completed")
        return dict(client.get(f"/api/threads/{thread}").json())

    try:
        for part in (HAND_OVERS[:5], HAND_OVERS[5:]):
            place.start()
            with place.client() as client:
                thread = thread or client.post("/api/threads").json()["thread_id"]
                for text, reply in part:
                    found = say(client, text)
                    assert found["messages"][-1]["content"] == reply.partition(" -> ")[0]
            place.end()
    finally:
        if place.process is not None:
            place.end()
