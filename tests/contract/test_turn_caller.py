"""A turn acts for the person who began it, whoever answers its questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import build_graph, capability_node
from capgraph.base import Verdict
from capgraph.configs.settings import Settings
from capgraph.pipeline.run_config import current_caller


class Listener:
    """Notes for whom each step is about to run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, str | None]] = []

    async def decide(self, step: Any, view: Any) -> Verdict:
        self.seen.append((step["capability"], view.caller.user_id, view.caller.role))
        return Verdict("allow")


def config(user: str, role: str, thread: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "user_id": user, "role": role}}


def booking(bodies: list[str | None]) -> list[Any]:
    @capability_node(requires_approval=True, examples=["book a room"])
    async def book_room() -> str:
        """Book a room."""
        bodies.append(current_caller().user_id)
        return "booked"

    @capability_node
    async def open_folder(room: str) -> str:
        """Open the folder of a room's guest."""
        bodies.append(current_caller().user_id)
        return f"folder of {room}"

    return [book_room, open_folder]


PLAN: Mapping[str, Any] = {
    "steps": [
        {"context_key": "room", "capability": "book_room", "expected_output": "BOOK_ROOM"},
        {
            "context_key": "folder",
            "capability": "open_folder",
            "parameters": {"room": "101"},
        },
    ]
}


async def test_the_steps_after_an_answer_run_for_whom_the_turn_began() -> None:
    listener, bodies = Listener(), list[str | None]()
    graph = build_graph(
        booking(bodies), checkpointer=InMemorySaver(), policies=[listener], settings=Settings()
    )
    plan = {"steps": [dict(step) for step in PLAN["steps"]]}
    asked = await graph.ainvoke({"planning_execution_plan": plan}, config("ada", "visitor"))
    assert asked["__interrupt__"]
    out = await graph.ainvoke(Command(resume="approve"), config("eve", "director"))
    assert out["execution_outcome"]["status"] == "completed"
    assert bodies == ["ada", "ada"]
    assert {(user, role) for _, user, role in listener.seen} == {("ada", "visitor")}


async def test_the_answer_names_the_person_who_gave_it() -> None:
    graph = build_graph(booking([]), checkpointer=InMemorySaver(), settings=Settings())
    await graph.ainvoke({"planning_execution_plan": dict(PLAN)}, config("ada", "visitor"))
    out = await graph.ainvoke(Command(resume="approve"), config("eve", "director"))
    assert out["approval_decisions"]["room"]["by"] == "eve"


async def test_a_changed_role_of_the_same_person_counts_at_once() -> None:
    listener = Listener()
    graph = build_graph(
        booking([]), checkpointer=InMemorySaver(), policies=[listener], settings=Settings()
    )
    await graph.ainvoke({"planning_execution_plan": dict(PLAN)}, config("ada", "director"))
    listener.seen.clear()
    await graph.ainvoke(Command(resume="approve"), config("ada", "visitor"))
    assert {role for _, _, role in listener.seen} == {"visitor"}


async def test_a_new_message_begins_a_turn_of_whoever_sends_it() -> None:
    bodies = list[str | None]()
    graph = build_graph(booking(bodies), checkpointer=InMemorySaver(), settings=Settings())
    for user in ("ada", "eve"):
        await graph.ainvoke({"planning_execution_plan": dict(PLAN)}, config(user, "visitor"))
        await graph.ainvoke(Command(resume="approve"), config("root", "director"))
    assert bodies == ["ada", "ada", "eve", "eve"]
