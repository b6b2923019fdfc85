"""Standing rules whose store is unavailable or contains invalid data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from capgraph import capability_node
from capgraph.approvals import StandingRule, add_rule, list_rules
from tests.support.doors import Gauge, answer, question, soon, status, tried


class Away(InMemoryStore):
    """A store that cannot be reached, and counts how often that was tried."""

    tries = 0

    def batch(self, ops: Iterable[Any]) -> Any:
        self.tries += 1
        raise ConnectionError("the store is away")

    async def abatch(self, ops: Iterable[Any]) -> Any:
        return self.batch(ops)


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def desk(agent: Any, step: Any, sent: list[str]) -> Any:
    @capability_node(requires_approval=True)
    async def send() -> Gauge:
        """Send."""
        sent.append("sent")
        return Gauge(value=1)

    def make(**options: Any) -> Any:
        options.setdefault("checkpointer", InMemorySaver())
        return agent(Gauge, send, plans=[[step("a", "send")]], **options)

    return make


async def test_a_turn_ends_or_requires_approval_if_the_store_is_unavailable(
    desk: Any, sent: list[str]
) -> None:
    store = Away()
    it = desk(store=store)
    out = await soon(it.ask())
    assert sent == [], "what nobody can look up allows nothing"
    assert store.tries <= 20
    if out.get("__interrupt__"):
        assert status(await soon(answer(it, "approve"))) == "completed"
    else:
        assert status(out) == "failed"
        assert "store" in str(out["messages"][-1].content).lower()


@pytest.mark.parametrize("limits", [{"max_attempts": 100}, {"run_timeout_seconds": None}])
async def test_reading_rules_has_a_timeout(desk: Any, limits: dict[str, Any]) -> None:
    store = Away()
    await soon(desk(store=store, limits=limits).ask())
    assert store.tries <= 150


async def _spoil(store: InMemoryStore) -> None:
    """Put nonsense beside the rules, wherever they are kept."""
    await add_rule(store, StandingRule(capability="another"))
    (kept,) = await store.asearch(())
    for name, value in (("bad", {"nonsense": 1}), ("worse", {"capability": 7, "expires_at": "x"})):
        await store.aput(kept.namespace, name, value)


async def test_an_unreadable_rule_neither_allows_a_step_nor_fails_it(
    desk: Any, sent: list[str]
) -> None:
    store = InMemoryStore()
    await _spoil(store)
    it = desk(store=store)
    assert question(await soon(it.ask()))["steps"][0]["context_key"] == "a"
    assert sent == []
    assert status(await answer(it, "approve")) == "completed"
    assert sent == ["sent"]


async def test_other_rules_apply_if_one_is_unreadable(desk: Any, sent: list[str]) -> None:
    store = InMemoryStore()
    await _spoil(store)
    await add_rule(store, StandingRule(capability="send"))
    out = await soon(desk(store=store).ask())
    assert (status(out), sent) == ("completed", ["sent"])


async def test_a_new_rule_can_be_created_if_another_is_unreadable(
    desk: Any, sent: list[str]
) -> None:
    store = InMemoryStore()
    await _spoil(store)
    it = desk(store=store)
    await it.ask()
    remember = {"decision": "approve", "remember": {"scope": "everywhere"}}
    assert status(await answer(it, {"a": remember})) == "completed"
    assert status(await it.ask(thread="2")) == "completed"
    assert len(sent) == 2


async def test_listing_rules_names_the_unreadable_one() -> None:
    store = InMemoryStore()
    await _spoil(store)
    found, said = await tried(list_rules(store))
    if found is None:
        assert "bad" in said or "worse" in said
    else:
        assert [rule.capability for rule in found] == ["another"]
