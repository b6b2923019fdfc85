"""Identity of a turn: it acts as the caller who began it, whoever answers or resumes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph import CapabilityContext, bind, build_graph, capability_node
from capgraph.capabilities.memory import MemoryCapability
from capgraph.configs.settings import PermissionSettings, RoleSettings, Settings
from capgraph.pipeline.run_config import current_caller, current_configurable
from capgraph.state import AgentState


class Note(CapabilityContext):
    """Text that a step returned."""

    text: str


@capability_node(requires_approval=True)
async def book() -> Note:
    """Book a room."""
    return Note(text="booked")


@capability_node
async def identify(note: Note) -> Note:
    """Return every user that the running code can find, after a booking."""
    return Note(text=_users())


@capability_node
async def identify_alone() -> Note:
    """Return every user that the running code can find."""
    return Note(text=_users())


def _users() -> str:
    configs = (current_configurable(), get_config()["configurable"])
    users = {str(one.get("user_id")) for one in configs}
    return ",".join(sorted({*users, str(current_caller().user_id)}))


@capability_node
async def direct(note: Note) -> Note:
    """Do what only a director may do."""
    return Note(text="directed")


def permissions(denied: str) -> Settings:
    """Return settings in which only directors may use a capability."""
    director = RoleSettings(role="director", mode="full_access")
    visitor = RoleSettings(role="visitor", mode="full_access", denied_tools=[denied])
    return Settings(permissions=PermissionSettings(roles=[director, visitor]))


def plan(*names: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"context_key": name, "capability": name} for name in names]
    for before, step in zip(names, steps[1:], strict=False):
        step["inputs"] = [{"NOTE": before}]
    return {"steps": steps}


def config(user: str, thread: str = "1", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": user, **more}}


def note(out: Mapping[str, Any], key: str) -> str:
    return str(out["capability_context_data"]["NOTE"][key]["text"])


def succeeded(out: Mapping[str, Any], key: str) -> bool:
    return bool((out.get("execution_step_results") or {}).get(key, {}).get("success"))


async def test_an_answer_makes_nobody_the_caller() -> None:
    graph = build_graph([book, identify], checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": plan("book", "identify")}, config("ann"))
    out = await graph.ainvoke(Command(resume="approve"), config("bob"))
    assert note(out, "identify") == "ann"


@capability_node
class ApprovedMemory(MemoryCapability):
    """Shipped memory, each step of which a person approves."""

    name = "approved_memory"
    requires_approval = True


async def test_memory_of_the_approver_is_not_read() -> None:
    graph = build_graph(
        [MemoryCapability, ApprovedMemory], checkpointer=InMemorySaver(), store=InMemoryStore()
    )

    async def run(user: str, thread: str, name: str, **parameters: Any) -> Any:
        step = {"context_key": "a", "capability": name, "parameters": parameters}
        given = {"planning_execution_plan": {"steps": [step]}}
        return await graph.ainvoke(given, config(user, thread))

    await run("bob", "b", "memory", action="remember", fact="my code is 1234")
    await run("ann", "a", "approved_memory", action="recall", query="everything")
    out = await graph.ainvoke(Command(resume="approve"), config("bob", "a"))
    assert out["capability_context_data"]["MEMORY"]["a"]["facts"] == []


async def test_an_authenticated_approver_lends_no_identity() -> None:
    """A variant: the answer comes with what a server sets, which takes precedence."""
    graph = build_graph([book, identify], checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": plan("book", "identify")}, config("ann"))
    user = {"identity": "bob", "role": "director", "is_authenticated": True}
    answer = {"configurable": {"thread_id": "1", "langgraph_auth_user": user}}
    answer["configurable"]["langgraph_auth_user_id"] = "bob"
    out = await graph.ainvoke(Command(resume="approve"), answer)
    assert note(out, "identify") == "ann"


async def test_a_turn_without_a_user_stays_without_one() -> None:
    """A variant: the turn names nobody, so that an answer could fill the gap."""
    graph = build_graph([book, identify], checkpointer=InMemorySaver())
    nobody: Any = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke({"planning_execution_plan": plan("book", "identify")}, nobody)
    out = await graph.ainvoke(Command(resume="approve"), config("bob"))
    assert note(out, "identify") == "None"


@capability_node
async def direct_alone() -> Note:
    """Do what only a director may do."""
    return Note(text="directed")


@pytest.mark.parametrize("later", ["visitor", None])
async def test_a_role_that_was_lost_permits_nothing(later: str | None) -> None:
    graph = build_graph(
        [book, direct], checkpointer=InMemorySaver(), settings=permissions("direct")
    )
    begun = {"planning_execution_plan": plan("book", "direct")}
    await graph.ainvoke(begun, config("ann", role="director"))
    role = {"role": later} if later else {}
    out = await graph.ainvoke(Command(resume="approve"), config("ann", **role))
    assert not succeeded(out, "direct")


@pytest.mark.parametrize(
    ("first", "later", "role", "is_permitted"),
    [
        ("director", "ann", "director", True),
        ("visitor", "ann", "director", False),
        ("visitor", "bob", "director", False),
    ],
)
async def test_a_role_that_was_gained_permits_nothing_in_the_turn(
    agent: Any, step: Any, first: str, later: str, role: str, is_permitted: bool
) -> None:
    """A variant: the turn waits until its caller has a higher role, and then makes a new plan."""
    plans = [[step("a", "book")], [step("b", "direct_alone")]]
    settings = permissions("direct_alone").model_dump(include={"permissions"})
    it = agent(book, direct_alone, plans=plans, checkpointer=InMemorySaver(), settings=settings)
    asks = {"messages": [("user", "Book")]}
    await it.graph.ainvoke(asks, it.config(user_id="ann", role=first))
    answer: Any = "reject"
    while answer is not None:
        out = await it.graph.ainvoke(Command(resume=answer), it.config(user_id=later, role=role))
        answer = "approve" if "__interrupt__" in out else None
    assert succeeded(out, "b") is is_permitted


async def test_nodes_of_a_custom_graph_act_as_the_caller_of_the_first_run() -> None:
    """A variant: a graph without turns, in which the run itself is all that names a user."""
    builder = StateGraph(AgentState)
    nodes = bind([book, identify_alone, Note])
    builder.add_node("book", nodes.node(book))
    builder.add_node("identify", nodes.node(identify_alone))
    builder.add_edge(START, "book")
    builder.add_edge("book", "identify")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"messages": [("user", "Book")]}, config("ann"))
    out = await graph.ainvoke(Command(resume="approve"), config("bob"))
    (text,) = {one["text"] for one in out["capability_context_data"]["NOTE"].values()} - {"booked"}
    assert text == "ann"
