"""A further kind of database: one module, and one line that registers it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from capgraph import build_graph
from capgraph.governance import clear_stop, stop
from capgraph.graph import open_graph
from capgraph.stores import Persistence, list_threads, open_saver, open_store, sqlite
from capgraph.stores.database import DATABASES

pytestmark = pytest.mark.may_block


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a database of a kind that the library does not know."""
    module = ModuleType("toy_database")
    for name in ("open_saver", "open_store", "open_tables", "tables_of"):
        setattr(module, name, getattr(sqlite, name))
    monkeypatch.setitem(sys.modules, "toy_database", module)
    kind = DATABASES["sqlite"]._replace(module="toy_database", schemes=("toy",))
    monkeypatch.setitem(DATABASES, "toy", kind)
    return f"toy:///{tmp_path / 'threads.toy'}"


async def test_threads_stops_values_and_stores_of_a_further_database(url: str) -> None:
    config: Any = {"configurable": {"thread_id": "1"}}
    ask = {"messages": [("user", "Hello")]}
    async with open_graph([], url) as graph:
        await graph.ainvoke(ask, config)
    await stop(url, thread="1")
    async with open_saver(url) as saver, open_store(url) as store:
        await store.aput(("a",), "b", {"c": 1})
        assert [thread.thread_id for thread in await list_threads(saver)] == ["1"]
        graph = build_graph([], checkpointer=saver, store=store)
        out = await graph.ainvoke(ask, config)
        assert out["execution_outcome"]["status"] == "stopped"
        assert await clear_stop(saver, thread="1")
        assert Persistence.of(saver).step_results is graph.persistence.step_results
