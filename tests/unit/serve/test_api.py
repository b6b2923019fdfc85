"""The JSON API, line by line."""

from __future__ import annotations

from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

from configs.settings import Settings
from framework.stores import open_saver
from tests.support.served import PLAN, READ, OpenValve, asked, ended, events_of, served

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def kinds(events: list[Any]) -> list[str]:
    for event in events:
        EVENT.validate_python(event)
    return [event["type"] for event in events]


async def test_a_run_is_begun_followed_and_read() -> None:
    async with served() as client:
        ann = await client()
        thread, run = await asked(ann, READ)
        told = await events_of(ann, run)
        assert kinds(told)[0] == "RUN_STARTED"
        assert kinds(told)[-1] == "RUN_FINISHED"
        assert told[-1]["outcome"] == {"type": "success"}
        assert await ended(ann, run) == "completed"
        found = (await ann.get(f"/api/runs/{run}")).json()
        assert found == {"run_id": run, "thread_id": thread, "status": "completed"}


async def test_a_question_is_asked_and_answered() -> None:
    async with served() as client:
        ann = await client()
        thread, run = await asked(ann)
        told = await events_of(ann, run)
        assert told[-1]["outcome"]["type"] == "interrupt"
        assert await ended(ann, run) == "waiting"
        (question,) = (await ann.get("/api/questions")).json()["items"]
        assert question["thread_id"] == thread
        wrong = {"open": {"decision": "edit", "parameters": {"litres": "many"}}}
        name = f"/api/questions/{question['question_id']}"
        refused = await ann.post(name, json={"answer": wrong})
        assert refused.status_code == 422
        assert [one["path"] for one in refused.json()["problems"]] == ["open.parameters.litres"]
        (same,) = (await ann.get("/api/questions")).json()["items"]
        assert same == question
        OpenValve.opened.clear()
        answered = await ann.post(name, json={"answer": "approve"})
        assert answered.status_code == 202
        assert await ended(ann, answered.json()["run_id"]) == "completed"
        assert OpenValve.opened == [3.0]
        assert (await ann.post(name, json={"answer": "approve"})).status_code == 409


async def test_what_is_somebody_elses_is_not_there() -> None:
    async with served() as client:
        ann, bob = await client(), await client("bob")
        thread, run = await asked(ann)
        await ended(ann, run)
        (question,) = (await ann.get("/api/questions")).json()["items"]
        assert (await bob.get("/api/questions")).json() == {"items": [], "next": None}
        theirs = [
            bob.get(f"/api/threads/{thread}"),
            bob.get(f"/api/runs/{run}"),
            bob.get(f"/api/runs/{run}/events"),
            bob.post(f"/api/runs/{run}/stop"),
            bob.post(f"/api/threads/{thread}/runs", json={"plan": PLAN}),
            bob.post(f"/api/questions/{question['question_id']}", json={"answer": "approve"}),
        ]
        missing = [
            bob.get("/api/threads/none"),
            bob.get("/api/runs/none"),
            bob.get("/api/runs/none/events"),
            bob.post("/api/runs/none/stop"),
            bob.post("/api/threads/none/runs", json={"plan": PLAN}),
            bob.post("/api/questions/none", json={"answer": "approve"}),
        ]
        for one, other in zip(theirs, missing, strict=True):
            found, known = await one, await other
            assert found.status_code == known.status_code == 404
            assert found.json() == known.json()


async def test_the_ledger_names_effects_and_who_agreed(tmp_path: Any) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        settings = Settings(audit={"keep": True})
        async with served(saver=saver, settings=settings) as client:
            ann, bob, eve = await client(), await client("bob"), await client("eve", "auditor")
            thread, run = await asked(ann)
            await ended(ann, run)
            (question,) = (await ann.get("/api/questions")).json()["items"]
            name = f"/api/questions/{question['question_id']}"
            answered = await ann.post(name, json={"answer": "approve"})
            assert await ended(ann, answered.json()["run_id"]) == "completed"
            (effect,) = (await ann.get("/api/effects")).json()["items"]
            assert effect["capability"] == "open_valve"
            assert effect["thread_id"] == thread
            assert effect["approved_by"] == ["ann"]
            assert effect["state"] == "finished"
            assert (await bob.get("/api/effects")).json() == {"items": [], "next": None}
            (seen,) = (await eve.get("/api/effects")).json()["items"]
            assert seen["approved_by"] == ["ann"]
            assert (await bob.get(f"/api/effects?thread_id={thread}")).status_code == 404
            records = (await ann.get("/api/audit")).json()["items"]
            assert {"effect", "approval"} <= {record["kind"] for record in records}
            assert {record["data"]["thread_id"] for record in records} == {thread}
            assert (await bob.get("/api/audit")).json()["items"] == []
            assert (await ann.get("/api/audit/verify")).json()["valid"] is True
            await saver.conn.execute("UPDATE capgraph_audit SET line = '{}' WHERE seq = 2")
            assert (await ann.get("/api/audit/verify")).json()["valid"] is False
            assert (await ann.get("/api/usage")).json() == {"items": [], "next": None}
            found = (await ann.get("/api/capabilities")).json()["items"]
            assert {"read_level", "open_valve"} <= {one["name"] for one in found}
