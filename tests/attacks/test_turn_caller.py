"""Identity of a turn: it acts as the caller who began it, whoever answers or resumes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph import CapabilityContext, bind, build_graph, capability_node
from capgraph.base.ports import Caller
from capgraph.capabilities.memory import MemoryCapability
from capgraph.configs.settings import PermissionSettings, RoleSettings, Settings
from capgraph.governance import ApprovalPolicy
from capgraph.pipeline.run_config import current_caller, current_configurable
from capgraph.scale.schedules import Schedule, Schedules
from capgraph.serve.app import create_app
from capgraph.serve.tokens import issue_token
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.telemetry import AuditLog
from tests.support import PATIENCE
from tests.support.served import ByHeader, asked, ended, served


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


@capability_node(requires_approval=ApprovalPolicy(not_requester=True))
async def book_for_others() -> Note:
    """Book a room for other people."""
    return Note(text="booked")


SERVED_PLAN: dict[str, Any] = {
    "steps": [
        {"context_key": "book", "capability": "book_for_others"},
        {"context_key": "direct", "capability": "direct", "inputs": [{"NOTE": "book"}]},
    ]
}


@pytest.mark.parametrize("lost", [True, False])
async def test_a_server_looks_up_the_role_of_the_turns_caller(lost: bool) -> None:
    """A variant: the role is lost while the turn waits for another person, who has it."""
    options: dict[str, Any] = {"settings": permissions("direct")}
    async with served(book_for_others, direct, **options) as client:
        ann, bob = await client("ann", "director"), await client("bob", "director")
        thread, run = await asked(ann, SERVED_PLAN)
        assert await ended(ann, run) == "waiting"
        if lost:
            demoted = await client("ann", "visitor")
            await ended(demoted, (await asked(demoted, {"steps": []}))[1])
        (question,) = (await bob.get("/api/questions")).json()["items"]
        path = f"/api/questions/{question['question_id']}"
        assert (await bob.post(path, json={"answer": "approve"})).status_code == 202
        while (found := (await ann.get(f"/api/threads/{thread}")).json())["runs"][0]["status"] in {
            "queued",
            "running",
        }:
            await asyncio.sleep(0.01)
        assert found["results"].get("direct", {}).get("success", False) is not lost


@pytest.mark.parametrize("role", ["visitor", None, "director"])
async def test_a_server_reads_the_token_file_when_a_turn_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str | None
) -> None:
    """A variant: the person whose role was taken away sends no further request."""
    monkeypatch.setattr("capgraph.serve.tokens._REFRESH_SECONDS", 0.0)
    path = tmp_path / "tokens.json"
    issue = partial(asyncio.to_thread, issue_token, path)
    tokens = {user: await issue(user, role="director") for user in ("ann", "bob")}
    graph = build_graph(
        [book_for_others, direct], checkpointer=InMemorySaver(), settings=permissions("direct")
    )
    app = await asyncio.to_thread(create_app, graph, auth=path)
    async with app.router.lifespan_context(app), AsyncExitStack() as stack:
        ann, bob = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app),
                    base_url="http://127.0.0.1",
                    headers={"authorization": f"Bearer {tokens[user]}"},
                )
            )
            for user in ("ann", "bob")
        ]
        thread, run = await asked(ann, SERVED_PLAN)
        assert await ended(ann, run) == "waiting"
        await issue("ann", role=role)
        (question,) = (await bob.get("/api/questions")).json()["items"]
        answer = {"answer": "approve"}
        await bob.post(f"/api/questions/{question['question_id']}", json=answer)
        config: Any = {"configurable": {"thread_id": f"@ann/{thread}"}}
        while (await graph.aget_state(config)).interrupts or app.state.runs.active_count:
            await asyncio.sleep(0.01)
        results = (await graph.aget_state(config)).values["execution_step_results"]
    assert results.get("direct", {}).get("success", False) is (role == "director")


async def test_a_schedule_stores_its_creator() -> None:
    class Clockwork:
        async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
            """Enqueue nothing."""

    async with open_saver("sqlite://:memory:") as saver:
        schedules = Schedules(saver)
        creator = Caller("ann", "director", "north")
        engine: Any = Clockwork()
        await schedules.add(Schedule("s", "0 7 * * *", "Report", caller=creator), engine)
        found = await schedules.get("s")
    assert found is not None
    assert found.caller == creator


async def test_the_audit_names_who_answered_and_for_whom_a_step_ran(tmp_path: Path) -> None:
    @capability_node(effect="idempotent")
    async def report(note: Note) -> Note:
        """Report a booking."""
        return Note(text="reported")

    log = await asyncio.to_thread(AuditLog, tmp_path / "audit.jsonl", signing_key="k")
    graph = build_graph([book, report], checkpointer=InMemorySaver(), audit=log)
    await graph.ainvoke({"planning_execution_plan": plan("book", "report")}, config("ann"))
    await graph.ainvoke(Command(resume="approve"), config("bob"))
    records = await asyncio.to_thread(lambda: list(log.records()))
    (begun,) = [
        one["data"]
        for one in records
        if one["kind"] == "effect" and one["data"]["status"] == "begun"
    ]
    assert (begun["by"]["user_id"], begun["for"]["user_id"]) == ("bob", "ann")


def overseen(*overseers: str) -> Settings:
    """Return permissions of directors and visitors, with overseers for unknown users."""
    settings = permissions("direct_alone")
    assert settings.permissions is not None
    settings.permissions.overseer_roles = list(overseers)
    return settings


UNKNOWN: Any = {"configurable": {"thread_id": "1"}}


async def test_only_an_overseer_approves_for_an_unknown_user() -> None:
    graph = build_graph([direct_alone], checkpointer=InMemorySaver(), settings=overseen("director"))
    out = await graph.ainvoke({"planning_execution_plan": plan("direct_alone")}, UNKNOWN)
    for answerer in (UNKNOWN, config("bob", role="visitor"), config("bob")):
        assert "__interrupt__" in out
        out = await graph.ainvoke(Command(resume="approve"), answerer)
        assert not succeeded(out, "direct_alone")
    out = await graph.ainvoke(Command(resume="approve"), config("carol", role="director"))
    assert succeeded(out, "direct_alone")


@pytest.mark.parametrize("overseers", [[], ["visitor"]])
async def test_a_turn_of_an_unknown_user_is_denied_without_an_overseer(
    overseers: list[str],
) -> None:
    graph = build_graph([direct_alone], checkpointer=InMemorySaver(), settings=overseen(*overseers))
    out = await graph.ainvoke({"planning_execution_plan": plan("direct_alone")}, UNKNOWN)
    assert "__interrupt__" not in out
    assert out["execution_outcome"]["status"] == "failed"


class WithoutName(ByHeader):
    """Authenticate callers whose names the server does not receive."""

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        return await super().caller(scope) or Caller(authenticated=True)


async def test_only_overseers_decide_questions_of_unknown_users_on_the_server() -> None:
    settings = overseen("director")
    assert settings.permissions is not None
    settings.permissions.roles.append(RoleSettings(role="clerk", mode="full_access"))
    graph = build_graph([direct_alone], checkpointer=InMemorySaver(), settings=settings)
    app = await asyncio.to_thread(create_app, graph, auth=WithoutName())
    async with app.router.lifespan_context(app), AsyncExitStack() as stack:

        async def client(user: str, role: str) -> httpx.AsyncClient:
            headers = {"x-user": user, "x-role": role}
            transport = httpx.ASGITransport(app)
            made = httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", headers=headers
            )
            return await stack.enter_async_context(made)

        unknown, clerk = await client("", ""), await client("carl", "clerk")
        director = await client("dora", "director")
        await asked(unknown, plan("direct_alone"))
        async with asyncio.timeout(PATIENCE):
            while not (found := (await director.get("/api/questions")).json()["items"]):
                await asyncio.sleep(0.05)
        (question,) = found
        assert (question["approver_roles"], question["can_decide"]) == (["director"], True)
        path = f"/api/questions/{question['question_id']}"
        assert (await clerk.get("/api/questions")).json()["items"] == []
        for answer in ("approve", "reject"):
            assert (await clerk.post(path, json={"answer": answer})).status_code == 404
        assert (await director.post(path, json={"answer": "approve"})).status_code == 202
        async with asyncio.timeout(PATIENCE):
            while (await director.get("/api/questions")).json()["items"]:
                await asyncio.sleep(0.05)


async def test_an_overseer_is_not_asked_for_a_user_without_permission() -> None:
    """A variant: a known visitor, whose step no approval makes permitted."""
    graph = build_graph([direct_alone], checkpointer=InMemorySaver(), settings=overseen("director"))
    brought = {"planning_execution_plan": plan("direct_alone")}
    out = await graph.ainvoke(brought, config("ann", role="visitor"))
    assert "__interrupt__" not in out
    assert not succeeded(out, "direct_alone")
