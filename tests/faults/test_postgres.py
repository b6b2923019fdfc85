"""What only PostgreSQL has to keep: text beside the blobs, tables made by two at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.runtime import Runtime
from langgraph.types import Command

from capgraph import build_graph, capability_node, open_graph
from capgraph.base.errors import ThreadBusyError
from capgraph.configs.settings import load_settings
from capgraph.stores import (
    Persistence,
    fork_thread,
    list_threads,
    open_saver,
    open_store,
    prune_threads,
    thread_summary,
)
from capgraph.telemetry.audit_log import AuditTable
from tests.benchmarks import programs
from tests.faults.scene import CONFIG, make_graph

pytestmark = [pytest.mark.may_block, pytest.mark.service, pytest.mark.timeout(600)]
KEY = "0123456789abcdef"


async def test_two_that_start_at_once_make_the_tables_together(server: Any) -> None:
    url = server.database()

    async def start(name: str) -> None:
        async with open_saver(url), open_store(url) as store:
            await store.aput(("a",), name, {"c": 1})

    await asyncio.gather(*(start(str(n)) for n in range(4)))
    async with open_store(url) as store:
        assert len(await store.asearch(("a",))) == 4


async def test_threads_are_encrypted_listed_forked_and_pruned(server: Any) -> None:
    import psycopg

    url = server.database()
    async with open_saver(url, encryption_key=KEY) as saver:
        graph = make_graph(saver)
        first = await graph.ainvoke({"messages": [("user", "Where is the treasure?")]}, CONFIG)
        assert "__interrupt__" in first
        (summary,) = await list_threads(saver)
        assert (summary.status, summary.task) == ("waiting", "Where is the treasure?")
        await fork_thread(saver, summary.thread_id, "copy")
        assert sorted(await prune_threads(saver)) == ["copy", summary.thread_id]
        assert (await thread_summary(saver, "copy")).done == summary.done
    with psycopg.connect(url) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            rows = connection.execute(f"SELECT {table}::text FROM {table}").fetchall()
            assert rows
            text = " ".join(row[0] for row in rows)
            assert "treasure" not in text
            assert b"treasure".hex() not in text
    async with open_saver(url, encryption_key=KEY) as saver:
        assert await prune_threads(saver, policy="delete")
        assert await list_threads(saver) == []


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_text_that_json_cannot_hold_or_that_looks_sealed_is_kept(
    server: Any, key: str | None
) -> None:
    async with open_saver(server.database(), encryption_key=key) as saver:
        for number, text in enumerate(("a\0b", "capgraph:sealed:null:", "capgraph:sealed:x")):
            config: Any = {"configurable": {"thread_id": str(number)}}
            graph = build_graph([], checkpointer=saver)
            await graph.ainvoke({"messages": [("user", text)]}, config)
            assert (await graph.aget_state(config)).values["task_current_task"] == text


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_script_without_a_loop_runs_turns_one_after_the_other(
    server: Any, tmp_path: Path, kind: str
) -> None:
    url = server.database() if kind == "postgres" else f"sqlite:///{tmp_path}/threads.db"
    settings = load_settings(persistence={"url": url})
    steps = [{"context_key": f"s{n}", "capability": "note"} for n in range(4)]
    plan: Any = {"steps": [*steps, {"context_key": "end", "capability": "pay"}]}

    @capability_node
    def note(runtime: Runtime[Any]) -> None:
        """Keep a note."""
        runtime.store.put(("notes",), "a", {"text": "b"})
        assert runtime.store.get(("notes",), "a") is not None

    @capability_node(requires_approval=True)
    async def pay() -> None:
        """Pay."""

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opened = open_graph([note, pay], settings=settings)
        graph = runner.run(stack.enter_async_context(opened))
        for turn in range(3):
            given: Any = {"messages": [("user", f"{turn}")], "planning_execution_plan": plan}
            out = graph.invoke(given, CONFIG)
            if turn == 0:  # the rule that is made holds for the others
                answer = {"decision": "approve", "remember": {"scope": "thread"}}
                out = graph.invoke(Command(resume={"end": answer}), CONFIG)
            assert out["execution_outcome"]["status"] == "completed", out["messages"][-1]
            graph.update_state(CONFIG, {"task_custom_message": None})
            assert len(graph.get_state(CONFIG).values["messages"]) == 2 * turn + 2
        assert next(graph.get_state_history(CONFIG)).values["messages"]
        runner.run(stack.aclose())


async def test_postgres_does_all_that_a_saver_can(server: Any) -> None:
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    async def fresh() -> AsyncIterator[Any]:
        async with open_saver(server.database(), encryption_key=KEY) as saver:
            yield saver

    report = await validate(checkpointer_test("postgres")(fresh))
    report.print_report()
    assert all(result.passed for result in report.results.values())


async def test_a_history_is_cut_copied_and_dropped_and_the_thread_goes_on(server: Any) -> None:
    async with open_saver(server.database(), encryption_key=KEY) as saver:
        graph = programs.build_graph(
            programs.chain_registry("x"), checkpointer=saver, settings=programs.load_settings()
        )

        async def turn(thread: str, number: int, run: str) -> dict[str, Any]:
            plan = [programs.step(f"t{number}", "link", expected_output="VALUE")]
            out: dict[str, Any] = await graph.ainvoke(
                {"messages": [("user", "work")], "planning_execution_plan": {"steps": plan}},
                {"configurable": {"thread_id": thread}, "metadata": {"run_id": run}},
            )
            return out

        for number in range(8):
            await turn("1", number, str(number))
        at: Any = {"configurable": {"thread_id": "1"}}
        before = (await graph.aget_state(at)).values
        assert await prune_threads(saver, policy="keep", keep_turns=3) == ["1"]
        assert (await graph.aget_state(at)).values == before
        ended = [item async for item in graph.aget_state_history(at) if not item.next]
        assert [len(item.values["messages"]) for item in ended] == [16, 14, 12]
        await fork_thread(
            saver, "1", "2", checkpoint_id=ended[1].config["configurable"]["checkpoint_id"]
        )
        out = await turn("2", 20, "x")
        assert len(out["messages"]) == 16
        assert len(out["capability_context_data"]["VALUE"]) == 8
        await saver.adelete_for_runs(["6"])
        assert (await graph.aget_state(at)).values == before
        await saver.acopy_thread("1", "3")
        assert len((await turn("3", 21, "y"))["messages"]) == 18
        assert [item.thread_id for item in await list_threads(saver, limit=1)] == ["3"]
        rest = await list_threads(saver, limit=5, after="3")
        assert [(item.thread_id, item.messages) for item in rest] == [("2", 16), ("1", 16)]
        leases = Persistence.of(saver).leases
        lease = await leases.acquire("1")
        with pytest.raises(ThreadBusyError):
            await turn("1", 22, "z")
        await leases.release(lease)


async def test_the_heart_beats_on_a_connection_of_its_own(server: Any) -> None:
    async with open_saver(server.database()) as saver:
        leases = Persistence.of(saver).leases
        leases.heartbeat_seconds = 0.01
        lease = await leases.acquire("1")
        rows = Persistence.of(saver).tables
        statement = "SELECT beat FROM capgraph_leases"
        _, first = await rows.run(statement)
        wait = threading.Event()
        while rows.run_blocking(statement)[1] <= first:
            wait.wait(0.01)  # the event loop does nothing else meanwhile
        await leases.confirm("1")
        await leases.release(lease)
        assert await rows.run(statement) == (0, [])


async def test_a_saver_of_one_connection_has_rows_too(server: Any) -> None:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(server.database()) as saver:
        await saver.setup()
        lease = await Persistence.of(saver).leases.acquire("1")
        found = Persistence.of(saver).tables.run_blocking("SELECT thread_id FROM capgraph_leases")
        assert found == (1, [("1",)])
        await Persistence.of(saver).leases.release(lease)


async def test_several_writers_keep_one_audit(server: Any) -> None:
    url = server.database()

    async def write(name: str) -> None:
        async with open_saver(url) as saver:
            table = AuditTable(Persistence.of(saver).tables, signing_key="k")  # type: ignore[arg-type]
            for number in range(50):
                await table.awrite([("effect", {"by": name, "number": number})])

    await asyncio.gather(*(write(str(n)) for n in range(4)))
    async with open_saver(url) as saver:
        rows = Persistence.of(saver).tables
        assert rows is not None
        table = AuditTable(rows, signing_key="k")
        found = await table.averify()
        assert found.valid, found.problem
        assert found.records == 200
        assert await table.aprune(timedelta(0)) == 200
        assert (await table.averify()).records == 1
        await rows.run("DELETE FROM capgraph_audit WHERE seq = 201")
        assert not await table.averify()
