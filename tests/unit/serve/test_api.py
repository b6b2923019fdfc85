"""The JSON API, line by line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

from capgraph import BaseCapability, capability_node
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.pipeline.run_config import current_caller
from capgraph.stores import open_saver
from capgraph.telemetry import Status, emit
from capgraph.testing import ScriptedModel
from tests.support.served import (
    PLAN,
    READ,
    Level,
    OpenValve,
    asked,
    ended,
    events_of,
    read_level,
    served,
)

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def kinds(events: list[Any]) -> list[str]:
    for event in events:
        EVENT.validate_python(event)
    return [event["type"] for event in events]


async def test_run_is_started_followed_and_read() -> None:
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


async def test_question_is_answered() -> None:
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


async def test_resources_of_other_users_are_not_found() -> None:
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


async def test_effects_list_their_approvers(tmp_path: Any) -> None:
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
            # Who oversees, oversees a tenant.
            abroad = await client("eve", "auditor", "elsewhere")
            for path in ("effects", "audit", f"effects?after=@ann/{thread}"):
                assert (await abroad.get(f"/api/{path}")).json().get("items", []) == []
            assert (await abroad.get("/api/audit/verify")).json() == {"valid": True}
            assert (await bob.get(f"/api/effects?thread_id={thread}")).status_code == 404
            records = (await ann.get("/api/audit")).json()["items"]
            assert {"effect", "approval"} <= {record["kind"] for record in records}
            assert {record["data"]["thread_id"] for record in records} == {thread}
            assert (await bob.get("/api/audit")).json()["items"] == []
            assert (await ann.get("/api/audit/verify")).status_code == 403
            assert (await eve.get("/api/audit/verify")).json()["records"] >= len(records)
            await saver.conn.execute("UPDATE capgraph_audit SET line = '{}' WHERE seq = 2")
            assert (await eve.get("/api/audit/verify")).json()["valid"] is False
            assert (await ann.get("/api/usage")).json() == {"items": [], "next": None}
            found = (await ann.get("/api/capabilities")).json()["items"]
            assert {"read_level", "open_valve"} <= {one["name"] for one in found}


async def test_usage_contains_model_calls_of_the_user(tmp_path: Any) -> None:
    def answer(call: Any) -> Any:
        if call.schema is None:
            return "It holds seven litres."
        return READ if "steps" in call.prompt else {"task": "read the level"}

    settings = Settings(prices={"scripted": {"input_per_million": 1e6, "output_per_million": 2e6}})
    model = ScriptedModel(responses=answer)
    async with (
        open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver,
        served(read_level, saver=saver, settings=settings, model=model) as client,
    ):
        ann, other = await client(), await client("ann", tenant="elsewhere")
        bob, eve = await client("bob"), await client("eve", "auditor")
        asked_of: dict[str, int] = {}
        for name, one in (("ann", ann), ("bob", bob)):
            model.calls.clear()
            body = {"message": f"I am {name}: how full is the tank?"}
            thread = (await one.post("/api/threads")).json()["thread_id"]
            run = (await one.post(f"/api/threads/{thread}/runs", json=body)).json()["run_id"]
            assert await ended(one, run) == "completed"
            asked_of[name] = sum(len(call.prompt.split()) for call in model.calls)
            (used,) = (await one.get("/api/usage")).json()["items"]
            assert (used["model"], used["calls"]) == ("scripted", len(model.calls))
            assert used["input_tokens"] == asked_of[name]
            assert used["output_tokens"] > 4
            assert used["cost_usd"] == used["input_tokens"] + 2 * used["output_tokens"]
            told = (await events_of(one, run))[-1]["usage"]
            assert [(u["model"], u["inputTokens"]) for u in told] == [("scripted", asked_of[name])]
        assert (await other.get("/api/usage")).json()["items"] == []
        by_user = (await eve.get("/api/usage?by=user")).json()["items"]
        assert {one["user"]: one["input_tokens"] for one in by_user} == asked_of
        abroad = await client("eve", "auditor", "elsewhere")
        assert (await abroad.get("/api/usage")).json()["items"] == []
        (day,) = (await eve.get("/api/usage?by=day")).json()["items"]
        assert day["day"] == datetime.now(UTC).date().isoformat()
        assert day["input_tokens"] == sum(asked_of.values())


async def test_usage_by_step_covers_the_last_turn(tmp_path: Any) -> None:
    model = ScriptedModel(responses=lambda _: "Seven.")

    @capability_node
    async def ponder() -> Level:
        """Ask a model."""
        await model.ainvoke("How full is the tank?")
        return Level(litres=7)

    settings = Settings(prices={"scripted": {"input_per_million": 1e6, "output_per_million": 0}})
    plan = {"steps": [{"context_key": "a", "capability": "ponder"}]}
    async with (
        open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver,
        served(ponder, saver=saver, settings=settings) as client,
    ):
        ann, bob = await client(), await client("bob")
        thread, run = await asked(ann, plan)
        await ended(ann, run)
        path = f"/api/threads/{thread}/runs"
        again = (await ann.post(path, json={"plan": plan})).json()["run_id"]
        await ended(ann, again)
        used = f"/api/usage?by=step&thread_id={thread}"
        (step,) = (await ann.get(used)).json()["items"]
        assert (step["step"], step["calls"], step["cost_usd"]) == ("a", 1, 5.0)
        (all_of_it,) = (await ann.get(f"/api/usage?thread_id={thread}")).json()["items"]
        assert all_of_it["calls"] == 2
        assert (await bob.get(used)).status_code == 404
        assert (await ann.get("/api/usage?by=step")).status_code == 400


async def test_oversized_event_links_to_the_complete_data() -> None:
    @capability_node
    async def shout() -> Level:
        """Say much."""
        emit(Status(message="x" * 1_200_000, component="shout"))
        return Level(litres=7)

    async with served(shout) as client:
        ann = await client()
        thread, run = await asked(ann, {"steps": [{"context_key": "a", "capability": "shout"}]})
        told = await events_of(ann, run)
        kinds(told)
        (cut,) = [e for e in told if "cut" in (e.get("metadata") or {}).get("capgraph", {})]
        assert len(str(cut)) < 20_000
        about = cut["metadata"]["capgraph"]["cut"]
        assert about == {"parts": ["value.message"], "whole": f"/api/threads/{thread}/state"}
        assert (await ann.get(about["whole"])).status_code == 200


async def test_thread_create_list_search_rename_delete() -> None:
    async with served() as client:
        ann, bob = await client(), await client("bob")
        made = [await ann.post("/api/threads", json={"title": f"T{n}"}) for n in range(5)]
        assert {one.status_code for one in made} == {201}
        ids = [one.json()["thread_id"] for one in made]
        first = (await ann.get("/api/threads?limit=3")).json()
        rest = (await ann.get(f"/api/threads?limit=3&after={first['next']}")).json()
        assert rest["next"] is None
        assert [one["thread_id"] for one in first["items"] + rest["items"]] == ids[::-1]
        run = await ann.post(f"/api/threads/{ids[0]}/runs", json={"plan": READ})
        assert await ended(ann, run.json()["run_id"]) == "completed"
        found = (await ann.get("/api/threads?outcome=completed")).json()["items"]
        assert [one["thread_id"] for one in found] == [ids[0]]
        found = (await ann.get("/api/threads?query=t3")).json()["items"]
        assert [one["title"] for one in found] == ["T3"]
        renamed = await ann.patch(f"/api/threads/{ids[1]}", json={"title": "Other"})
        assert renamed.json()["title"] == "Other"
        assert (await ann.get(f"/api/threads/{ids[1]}")).json()["title"] == "Other"
        for method in ("PATCH", "DELETE", "GET"):
            theirs = await bob.request(method, f"/api/threads/{ids[1]}", json={"title": "x"})
            assert theirs.status_code == 404
        assert (await ann.delete(f"/api/threads/{ids[1]}")).status_code == 204
        assert (await ann.get(f"/api/threads/{ids[1]}")).status_code == 404
        assert (await ann.delete(f"/api/threads/{ids[0]}")).status_code == 204
        assert (await ann.get(f"/api/runs/{run.json()['run_id']}")).status_code == 404
        assert (await ann.get("/api/threads?after=none")).status_code == 404
        assert (await ann.get("/api/threads?limit=x")).status_code == 400
        assert (await ann.patch(f"/api/threads/{ids[2]}", json={})).status_code == 400
        long = await ann.patch(f"/api/threads/{ids[2]}", json={"title": "x" * 300})
        assert long.status_code == 422


async def test_thread_is_forked_from_a_checkpoint(tmp_path: Any) -> None:
    async with (
        open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver,
        served(saver=saver) as client,
    ):
        ann, bob = await client(), await client("bob")
        thread, run = await asked(ann, READ)
        assert await ended(ann, run) == "completed"
        history = (await ann.get(f"/api/threads/{thread}/history")).json()
        moments = [one["checkpoint_id"] for one in history["items"]]
        assert len(moments) == len(set(moments)) > 3
        page = (await ann.get(f"/api/threads/{thread}/history?limit=2")).json()
        assert [one["checkpoint_id"] for one in page["items"]] == moments[:2]
        page = (await ann.get(f"/api/threads/{thread}/history?limit=2&after={page['next']}")).json()
        assert [one["checkpoint_id"] for one in page["items"]] == moments[2:4]
        whole = await ann.post(f"/api/threads/{thread}/fork", json={})
        assert whole.status_code == 201
        copy = (await ann.get(f"/api/threads/{whole.json()['thread_id']}")).json()
        assert copy["outcome"] == "completed"
        early = await ann.post(f"/api/threads/{thread}/fork", json={"checkpoint_id": moments[-1]})
        early_id = early.json()["thread_id"]
        state = (await ann.get(f"/api/threads/{early_id}/state")).json()
        assert state["messages"] == []
        now = (await ann.get(f"/api/threads/{thread}/state")).json()
        then = (await ann.get(f"/api/threads/{thread}/state?checkpoint_id={moments[-1]}")).json()
        assert now != then
        assert (await bob.post(f"/api/threads/{thread}/fork", json={})).status_code == 404
        gone = await ann.post(f"/api/threads/{thread}/fork", json={"checkpoint_id": "none"})
        assert gone.status_code == 404


async def test_fork_has_no_question_of_the_original(tmp_path: Any) -> None:
    async with (
        open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver,
        served(saver=saver) as client,
    ):
        ann = await client()
        thread, run = await asked(ann)
        await ended(ann, run)
        copy = (await ann.post(f"/api/threads/{thread}/fork", json={})).json()["thread_id"]
        found = (await ann.get("/api/questions")).json()["items"]
        assert [one["thread_id"] for one in found] == [thread]
        answer = await ann.post(f"/api/threads/{copy}/runs", json={"plan": PLAN})
        assert await ended(ann, answer.json()["run_id"]) == "waiting"
        found = (await ann.get("/api/questions")).json()["items"]
        assert {one["thread_id"] for one in found} == {thread, copy}
        (own,) = (await ann.get(f"/api/questions?thread_id={copy}")).json()["items"]
        answered = await ann.post(f"/api/questions/{own['question_id']}", json={"answer": "reject"})
        await ended(ann, answered.json()["run_id"])
        left = (await ann.get("/api/questions")).json()["items"]
        assert [one["thread_id"] for one in left] == [thread]


async def test_second_answer_conflicts() -> None:
    async with served() as client:
        ann, runs = await client(), client.app.state.runs
        _, run = await asked(ann)
        await ended(ann, run)
        (question,) = (await ann.get("/api/questions")).json()["items"]
        name = question["question_id"]
        seen = await runs.get_question(Caller("ann", authenticated=True), name)

        async def as_it_was(*_: Any) -> Any:
            return seen

        # Both have found it open; the thread is free again before the second one takes it.
        runs.question = as_it_was
        path = f"/api/questions/{name}"
        first = await ann.post(path, json={"answer": "approve"})
        assert await ended(ann, first.json()["run_id"]) == "completed"
        opened = len(OpenValve.opened)
        assert (await ann.post(path, json={"answer": "approve"})).status_code == 409
        assert len(OpenValve.opened) == opened


async def test_busy_thread_stop_and_replay() -> None:
    gate = asyncio.Event()

    @capability_node
    async def wait_long() -> Level:
        """Wait until the gate opens."""
        await gate.wait()
        return Level(litres=1)

    plan = {"steps": [{"context_key": "a", "capability": "wait_long"}]}
    async with served(wait_long) as client:
        ann = await client()
        thread, run = await asked(ann, plan)
        again = await ann.post(f"/api/threads/{thread}/runs", json={"message": "More"})
        assert again.status_code == 409
        assert again.json()["code"] == "CG-BUSY"
        assert again.headers["content-type"] == "application/problem+json"
        assert (await ann.delete(f"/api/threads/{thread}")).status_code == 409
        running = (await ann.get(f"/api/runs/{run}")).json()["status"]
        assert running in {"queued", "running"}
        assert (await ann.post(f"/api/runs/{run}/stop")).status_code == 202
        told = await events_of(ann, run)
        assert told[-1]["outcome"] == {"type": "cancelled"}
        assert await ended(ann, run) == "stopped"
        for after in range(len(told) + 1):
            assert await events_of(ann, run, after) == told[after:]
        bad = await ann.get(f"/api/runs/{run}/events", headers={"last-event-id": "x"})
        assert bad.status_code == 400
        gate.set()
        free = await ann.post(f"/api/threads/{thread}/runs", json={"plan": plan})
        assert await ended(ann, free.json()["run_id"]) == "completed"


async def test_stopping_a_waiting_run_closes_its_question() -> None:
    waits = {"steps": [{**READ["steps"][0], "wait_for": {"key": "rain", "within": "1h"}}]}
    async with served() as client:
        ann = await client()
        for plan in (PLAN, waits):
            thread, run = await asked(ann, plan)
            assert await ended(ann, run) == "waiting"
            stopped = await ann.post(f"/api/runs/{run}/stop")
            assert (stopped.status_code, stopped.json()["status"]) == (202, "stopped")
            assert (await ann.get("/api/questions")).json()["items"] == []
            assert (await ann.get(f"/api/threads/{thread}")).json()["outcome"] == "stopped"
        early = await ann.post(f"/api/threads/{thread}/signals/rain")
        assert early.json() == {"waited": False, "run_id": None}
        # What was answered goes on in another run: the first one is over.
        thread, run = await asked(ann)
        await ended(ann, run)
        (question,) = (await ann.get("/api/questions")).json()["items"]
        path = f"/api/questions/{question['question_id']}"
        on = (await ann.post(path, json={"answer": "approve"})).json()["run_id"]
        assert await ended(ann, on) == "completed"
        assert (await ann.post(f"/api/runs/{run}/stop")).json()["status"] == "waiting"


async def test_identity_in_a_body_is_ignored() -> None:
    seen = []

    @capability_node
    class Who(BaseCapability):
        name = "who"
        description = "Says who asks."

        async def execute(self) -> None:
            seen.append(current_caller())

    plan = {"steps": [{"context_key": "a", "capability": "who"}]}
    async with served(Who) as client:
        ann = await client(role="operator")
        forged = {"user_id": "bob", "role": "admin", "configurable": {"user_id": "bob"}}
        forged["langgraph_auth_user"] = {"identity": "bob"}
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        for field, value in forged.items():
            body = {"plan": plan, field: value}
            refused = await ann.post(f"/api/threads/{thread}/runs", json=body)
            assert (refused.status_code, field) == (400, field)
        assert seen == []
        _, run = await asked(ann, plan)
        assert await ended(ann, run) == "completed"
        assert seen == [Caller("ann", "operator", None, authenticated=True)]
        made = await ann.post("/api/threads", json={"user_id": "bob", "thread_id": "mine"})
        assert made.json()["thread_id"] != "mine"
        assert (await (await client("bob")).get("/api/threads")).json()["items"] == []


async def test_invalid_run_is_rejected_before_storage() -> None:
    async with served(serve={"max_active_runs_per_user": 1}) as client:
        ann, bob = await client(), await client("bob")
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        path = f"/api/threads/{thread}/runs"
        for body, status in (
            ({}, 422),
            ({"message": "  "}, 422),
            ({"message": 3}, 400),
            ({"message": "Hi", "context": {"NONE": {"a": {}}}}, 422),
            ({"message": "Hi", "context": 4}, 422),
            ({"plan": 4}, 422),
            ({"plan": []}, 422),
            ([], 400),
            ("x", 400),
        ):
            found = await ann.post(path, json=body)
            assert (found.status_code, body) == (status, body)
            assert found.json()["code"].startswith("CG-")
        broken = await ann.post(path, content=b'{"message": "x"')
        assert broken.status_code == 400
        assert (await ann.get(f"/api/threads/{thread}")).json()["runs"] == []
        wrong = await ann.post(path, json={"plan": {"steps": [{"capability": "none"}]}})
        assert await ended(ann, wrong.json()["run_id"]) == "failed"
        assert (await ann.get("/api/nothing")).status_code == 404
        assert (await ann.put("/api/threads")).status_code == 405
        assert (await bob.get("/api/threads")).json()["items"] == []


async def test_active_runs_per_user_are_limited() -> None:
    gate = asyncio.Event()

    @capability_node
    async def wait_long() -> Level:
        """Wait until the gate opens."""
        await gate.wait()
        return Level(litres=1)

    plan = {"steps": [{"context_key": "a", "capability": "wait_long"}]}
    async with served(
        wait_long, serve={"max_active_runs_per_user": 2, "max_concurrent_runs": 1}
    ) as client:
        ann, bob = await client(), await client("bob")
        runs = [(await asked(ann, plan))[1] for _ in range(2)]
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        more = await ann.post(f"/api/threads/{thread}/runs", json={"plan": plan})
        assert more.status_code == 429
        assert (await ann.get(f"/api/runs/{runs[1]}")).json()["status"] == "queued"
        _, other = await asked(bob, plan)
        stopped = await ann.post(f"/api/runs/{runs[1]}/stop")
        assert stopped.status_code == 202
        gate.set()
        assert await ended(ann, runs[0]) == "completed"
        assert await ended(ann, runs[1]) == "stopped"
        assert await ended(bob, other) == "completed"


async def test_signal_resumes_a_waiting_step() -> None:
    plan = {"steps": [{**READ["steps"][0], "wait_for": "rain"}]}
    async with served() as client:
        ann, bob = await client(), await client("bob")
        thread, run = await asked(ann, plan)
        assert await ended(ann, run) == "waiting"
        assert (await ann.get("/api/questions")).json()["items"] == []
        path = f"/api/threads/{thread}/signals"
        assert (await bob.post(f"{path}/rain", json={})).status_code == 404
        early = await ann.post(f"{path}/snow", json={"value": 1})
        assert (early.status_code, early.json()) == (202, {"waited": False, "run_id": None})
        woken = await ann.post(f"{path}/rain", json={"value": {"mm": 3}})
        assert woken.json()["waited"] is True
        assert await ended(ann, woken.json()["run_id"]) == "completed"
        assert (await ann.get(f"/api/threads/{thread}")).json()["outcome"] == "completed"


async def test_due_thread_resumes_automatically() -> None:
    moment = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    plan = {"steps": [{**READ["steps"][0], "wait_until": moment}]}
    async with served() as client:
        ann = await client()
        thread, run = await asked(ann, plan)
        await ended(ann, run)
        while (found := (await ann.get(f"/api/threads/{thread}")).json())["outcome"] == "waiting":
            await asyncio.sleep(0.05)
        await ended(ann, found["runs"][0]["run_id"])
        assert (await ann.get(f"/api/threads/{thread}")).json()["outcome"] == "completed"


async def test_health_and_metrics_reveal_no_users() -> None:
    async with served() as client:
        ann = await client()
        thread, run = await asked(ann, READ)
        assert await ended(ann, run) == "completed"
        assert (await ann.get("/healthz")).json() == {"status": "ok"}
        assert (await ann.get("/readyz")).status_code == 200
        text = (await ann.get("/metrics")).text
        names = [line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"]
        assert names
        assert all(name.startswith("capgraph_") for name in names)
        assert 'route="/api/runs/{id}/events",status="200"' in text
        assert 'capgraph_runs_ended_total{outcome="completed"} 1.0' in text
        assert "ann" not in text
        assert thread not in text
        await client.app.state.runs.drain()
        assert (await ann.get("/readyz")).status_code == 503
        late = await ann.post(f"/api/threads/{thread}/runs", json={"plan": READ})
        assert late.status_code == 503


async def test_openapi_document_lists_every_route() -> None:
    async with served() as client:
        ann = await client()
        document = (await ann.get("/openapi.json")).json()
        named = {
            (path, method.upper())
            for path, methods in document["paths"].items()
            for method in methods
        }
        routed = {
            (route.path_format, method)
            for route in client.app.routes
            for method in route.methods - {"HEAD"}
            if route.path.startswith(("/api", "/agui"))
        }
        assert routed <= named
        for path, method in sorted(named):
            operation = document["paths"][path][method.lower()]
            assert operation["responses"]["default"]


async def test_two_approvers_and_no_access_for_others() -> None:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay."
        effect = "once"
        requires_approval = ApprovalPolicy(approvers=2)

        async def execute(self) -> None:
            return None

    roles = [
        {"role": "clerk", "mode": "full_access"},
        {"role": "guest", "mode": "read_only"},
    ]
    settings = Settings(permissions={"roles": roles})
    plan = {"steps": [{"context_key": "p", "capability": "pay"}]}
    async with served(Pay, settings=settings) as client:
        ann, bob = await client(role="clerk"), await client("bob", "clerk")
        eve, nobody = await client("eve", "guest"), await client("zoe")
        _, run = await asked(ann, plan)
        assert await ended(ann, run) == "waiting"
        (first,) = (await ann.get("/api/questions")).json()["items"]
        name = f"/api/questions/{first['question_id']}"
        for other in (eve, nobody):
            assert (await other.get("/api/questions")).json()["items"] == []
            assert (await other.post(name, json={"answer": "approve"})).status_code == 404
        assert len((await bob.get("/api/questions")).json()["items"]) == 1
        agreed = await ann.post(name, json={"answer": "approve"})
        assert await ended(ann, agreed.json()["run_id"]) == "waiting"
        (second,) = (await bob.get("/api/questions")).json()["items"]
        assert second["question_id"] != first["question_id"]
        assert (await bob.post(name, json={"answer": "approve"})).status_code == 404
        answer = {"answer": "approve"}
        last = await bob.post(f"/api/questions/{second['question_id']}", json=answer)
        assert last.status_code == 202
        assert await ended(ann, last.json()["run_id"]) == "completed"
        (effect,) = (await ann.get("/api/effects")).json()["items"]
        assert effect["approved_by"] == ["ann", "bob"]


@capability_node
class Transfer(BaseCapability):
    name = "transfer"
    description = "Transfer."
    effect = "once"
    requires_approval = ApprovalPolicy(approvers=2, not_requester=True, expires_seconds=3600)

    async def execute(self) -> None:
        return None


TRANSFER = {"steps": [{"context_key": "p", "capability": "transfer"}]}


async def test_two_approvers_can_decide_without_permissions() -> None:
    async with served(Transfer) as client:
        ann, bob, carol = await client("ann"), await client("bob"), await client("carol")
        stranger = await client("dan", tenant="elsewhere")

        async def question(user: Any) -> Any:
            (found,) = (await user.get("/api/questions")).json()["items"]
            return found

        _, run = await asked(ann, TRANSFER)
        assert await ended(ann, run) == "waiting"
        assert (await stranger.get("/api/questions")).json()["items"] == []
        own = await question(ann)
        assert (own["can_decide"], own["has_approved"], "requester" in own) == (False, False, False)
        for user in (bob, carol):
            asked_user = await question(user)
            assert (asked_user["can_decide"], asked_user["requester"]) == (True, "ann")
            path = f"/api/questions/{asked_user['question_id']}"
            answered = await user.post(path, json={"answer": "approve"})
            await ended(ann, answered.json()["run_id"])
            if user is bob:
                again = await question(bob)
                assert (again["can_decide"], again["has_approved"]) == (False, True)
        assert (await ann.get("/api/questions")).json()["items"] == []
        assert (await ann.get("/api/threads")).json()["items"][0]["outcome"] == "completed"


async def test_question_lists_the_roles_that_may_approve() -> None:
    roles = [
        {"role": "clerk", "mode": "full_access"},
        {"role": "guest", "mode": "read_only"},
    ]
    async with served(Transfer, settings=Settings(permissions={"roles": roles})) as client:
        ann = await client(role="clerk")
        _, run = await asked(ann, TRANSFER)
        await ended(ann, run)
        (question,) = (await ann.get("/api/questions")).json()["items"]
        assert question["approver_roles"] == ["clerk"]


async def test_title_marks_a_message_that_it_shortens() -> None:
    async with served() as client:
        ann = await client()
        long, short = "read the level " * 10, "read the level"
        for message in (long, short):
            _, run = await asked(ann, READ, message=message)
            await ended(ann, run)
        titles = [one["title"] for one in (await ann.get("/api/threads")).json()["items"]]
        assert titles[0] == short
        assert titles[1].endswith("…")
        assert len(titles[1]) <= 80
