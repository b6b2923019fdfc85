"""Facts are stored per user, recalled, and deleted, on real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from capgraph import Registry, build_graph
from capgraph.capabilities.memory import Memory, MemoryCapability
from capgraph.stores import open_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: Any, tmp_path: Path) -> AsyncIterator[BaseStore]:
    if request.param == "memory":
        yield InMemoryStore()
    else:
        async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
            yield opened


class Person:
    """User who talks to one agent."""

    def __init__(self, store: BaseStore) -> None:
        registry = Registry()
        registry.register(Memory)
        registry.register(MemoryCapability)
        self._graph = build_graph(registry, store=store, checkpointer=InMemorySaver())
        self._turns = 0

    async def says(self, text: str, **configurable: Any) -> str:
        self._turns += 1
        given = {"thread_id": f"t{self._turns}", **configurable}
        out = await self._graph.ainvoke({"messages": [("user", text)]}, {"configurable": given})
        return str(out["messages"][-1].text)


@pytest.fixture
def person(store: BaseStore) -> Person:
    return Person(store)


KEEP = "Remember that my station is KSEA"
RECALL = "What do you remember about my station?"
NOTHING = "I remember nothing about that."
KNOWN = "You told me: my station is KSEA."


async def test_an_email_address_can_be_a_user(person: Person) -> None:
    await person.says(KEEP, user_id="ada@example.org")
    assert await person.says(RECALL, user_id="ada@example.org") == KNOWN
    assert await person.says(RECALL, user_id="ada@example%2Eorg") == NOTHING
    assert await person.says(RECALL, user_id="ada") == NOTHING


async def test_a_number_can_be_a_user(person: Person) -> None:
    await person.says(KEEP, user_id=7)
    assert await person.says(RECALL, user_id="7") == KNOWN


@pytest.mark.parametrize(
    "server",
    [
        {"langgraph_auth_user_id": "ada"},
        {"langgraph_auth_user": {"identity": "ada"}},
        {"langgraph_auth_user": type("User", (), {"identity": "ada"})()},
    ],
)
async def test_the_authenticated_user_overrides_the_client(
    person: Person, server: dict[str, Any]
) -> None:
    await person.says(KEEP, **server)
    assert await person.says(RECALL, user_id="ada") == KNOWN
    other = {"langgraph_auth_user_id": "eve", "user_id": "ada"}
    assert await person.says(RECALL, **other) == NOTHING
    assert await person.says(RECALL, **server, user_id="eve") == KNOWN


@pytest.mark.parametrize("by_server", [True, False])
async def test_tenants_separate_users_of_the_same_name(person: Person, by_server: bool) -> None:
    def who(tenant: str | None) -> dict[str, Any]:
        if by_server:
            return {"langgraph_auth_user": {"identity": "ada", "tenant": tenant}}
        return {"user_id": "ada", "tenant": tenant}

    await person.says(KEEP, **who("north"))
    assert await person.says(RECALL, **who("north")) == KNOWN
    assert await person.says(RECALL, **who("south")) == NOTHING
    assert await person.says(RECALL, **who(None)) == NOTHING


async def test_without_authentication_the_client_names_the_user(person: Person) -> None:
    nobody = {"langgraph_auth_user": {"identity": ""}, "langgraph_auth_user_id": ""}
    await person.says(KEEP, **nobody, user_id="ada")
    assert await person.says(RECALL, user_id="ada") == KNOWN


async def test_without_a_user_facts_belong_to_the_thread(person: Person) -> None:
    said = await person.says(KEEP, thread_id="one")
    assert said == "I will remember in this conversation: my station is KSEA."
    again = await person.says(RECALL, thread_id="one")
    assert again == "You told me in this conversation: my station is KSEA."
    elsewhere = await person.says(RECALL, thread_id="two")
    assert elsewhere == "I remember nothing about that from this conversation."
    assert await person.says(RECALL, thread_id="two", user_id="one") == NOTHING


async def test_without_user_and_thread_nothing_is_stored(store: BaseStore) -> None:
    registry = Registry()
    registry.register(Memory)
    registry.register(MemoryCapability)
    graph = build_graph(registry, store=store)
    out = await graph.ainvoke({"messages": [("user", KEEP)]})
    assert "The memory has no owner" in out["messages"][-1].text
    assert out["execution_outcome"]["status"] == "failed"
    assert await store.asearch(()) == []


async def fill(store: BaseStore, user: str, count: int) -> None:
    for number in range(count):
        value = {"text": f"my lucky number is {number}", "at": f"2026-01-01T00:00:{number}"}
        await store.aput(("capgraph", "memory", user), str(number), value)


async def test_everything_includes_facts_that_are_not_shown(
    person: Person, store: BaseStore
) -> None:
    await fill(store, "ada", 450)
    await fill(store, "ad", 1)
    shown = await person.says("What do you remember about me?", user_id="ada")
    assert shown.endswith("; and 250 more.")
    said = await person.says("Forget everything", user_id="ada")
    assert said.endswith("; and 250 more.")
    assert await store.asearch(("capgraph", "memory", "ada")) == []
    assert len(await store.asearch(("capgraph", "memory", "ad"))) == 1


async def test_only_matching_facts_are_forgotten(person: Person, store: BaseStore) -> None:
    await person.says(KEEP, user_id="ada")
    await fill(store, "ada", 250)
    await person.says("Forget about my lucky number", user_id="ada")
    assert await person.says("What do you remember about me?", user_id="ada") == KNOWN
