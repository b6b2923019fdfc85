"""AG-UI: a run told as events, questions with schemas, answers by ``resume``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from ag_ui.core import Event
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from capgraph import capability_node
from tests.support.served import PLAN, Level, OpenValve, asked, ended, events_of, served

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
WAIT = {"steps": [{"context_key": "wait", "capability": "wait_forever"}]}


@capability_node
async def wait_forever() -> Level:
    """Wait for the tank to fill."""
    await asyncio.Event().wait()
    return Level(litres=0)


async def told(client: httpx.AsyncClient, thread: str, **more: Any) -> list[Any]:
    body = {"threadId": thread, "runId": "mine", "messages": [], **more}
    answer = await client.post("/agui", json=body)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        number, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        EVENT.validate_python(found[-1])
        assert number == f"id: {len(found)}"
    ends = 1 + (found[-1]["type"] == "RUN_FINISHED")
    assert [event["runId"] for event in found if "runId" in event] == ["mine"] * ends
    return found


async def test_question_has_a_schema_and_is_answered_by_resume() -> None:
    async with served() as client:
        ann = await client()
        first = await told(ann, "t", forwardedProps={"capgraph": {"plan": PLAN}})
        assert first[0]["type"] == "RUN_STARTED"
        outcome = first[-1]["outcome"]
        assert outcome["type"] == "interrupt"
        (interrupt,) = outcome["interrupts"]
        schema = Draft202012Validator(interrupt["responseSchema"])
        (alternatives,) = [
            one["oneOf"] for one in interrupt["responseSchema"]["properties"].values()
        ]
        words = [one["properties"]["decision"]["const"] for one in alternatives]
        assert words == ["approve", "edit", "reject", "respond"]
        good = {"open": {"decision": "edit", "parameters": {"litres": 4.0}}}
        wrong = {"open": {"decision": "edit", "parameters": {"litres": 400.0}}}
        assert schema.is_valid(good)
        assert not schema.is_valid(wrong)
        entry = {"interruptId": interrupt["id"], "status": "resolved"}
        refused = await told(ann, "t", resume=[{**entry, "payload": wrong}])
        assert [event["type"] for event in refused] == ["RUN_STARTED", "RUN_FINISHED"]
        end = refused[-1]
        assert end["outcome"]["interrupts"][0]["id"] == interrupt["id"]
        (problem,) = end["metadata"]["capgraph"]["problems"]
        assert problem["path"] == "open.parameters.litres"
        OpenValve.opened.clear()
        answered = await told(ann, "t", resume=[{**entry, "payload": good}])
        assert answered[-1]["outcome"] == {"type": "success"}
        assert answered[-1]["result"]["status"] == "completed"
        assert OpenValve.opened == [4.0]
        run = answered[0]["metadata"]["capgraph"]["run_id"]
        assert await ended(ann, run) == "completed"
        again = {"threadId": "t", "runId": "x", "messages": [], "resume": [entry]}
        assert (await ann.post("/agui", json=again)).status_code == 409


@capability_node
async def leak() -> Level:
    """Find the leak of the tank."""
    raise LookupError("no leak in sight")


async def test_failed_turn_ends_as_an_error() -> None:
    plan = {"steps": [{"context_key": "leak", "capability": "leak"}]}
    async with served(leak) as client:
        ann = await client()
        end = (await told(ann, "t", forwardedProps={"capgraph": {"plan": plan}}))[-1]
        assert end["type"] == "RUN_ERROR"
        assert end["code"] == end["result"]["outcome"]["code"]
        assert end["result"]["status"] == "failed"


async def test_stopped_turn_ends_as_cancelled() -> None:
    async with served(wait_forever) as client:
        ann = await client()
        _, run = await asked(ann, WAIT)
        await ann.post(f"/api/runs/{run}/stop")
        end = (await events_of(ann, run))[-1]
        assert end["type"] == "RUN_FINISHED"
        assert end["outcome"] == {"type": "cancelled"}


async def test_thread_belongs_to_its_user() -> None:
    async with served() as client:
        ann, bob = await client(), await client("bob")
        first = await told(ann, "t", forwardedProps={"capgraph": {"plan": PLAN}})
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": "approve"}
        theirs = {"threadId": "t", "runId": "x", "messages": [], "resume": [entry]}
        assert (await bob.post("/agui", json=theirs)).status_code == 404
        assert (await bob.get("/api/threads")).json()["items"] == []
        message = {"id": "1", "role": "user", "content": "Sing"}
        own = await told(bob, "t", messages=[message])
        assert "Nothing here can do that" in own[-1]["message"]
        assert (await ann.get("/api/threads/t")).json()["messages"] == []


async def test_invalid_input_is_rejected() -> None:
    async with served() as client:
        ann = await client()
        assert (await ann.post("/agui", content=b"{")).status_code == 400
        assert (await ann.post("/agui", json={"threadId": "t"})).status_code == 400
        nothing = {"threadId": "t", "runId": "x", "messages": []}
        assert (await ann.post("/agui", json=nothing)).status_code == 422


async def test_page_of_an_allowed_origin_can_send_requests_and_read_refusals() -> None:
    page = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-user"}
    async with served(serve={"allowed_origins": ["https://app.example"]}) as client:
        ann, nobody = await client(), await client("")
        preflight = await nobody.options("/agui", headers={**page, **asks})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-headers"] == "x-user"
        body = {"threadId": "t", "runId": "r", "messages": []}
        for sender, status in ((ann, 422), (nobody, 401)):
            answer = await sender.post("/agui", json=body, headers=page)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert "origin" in answer.headers["vary"].lower()
        other = {**page, "origin": "https://evil.example"}
        assert (await nobody.options("/agui", headers={**other, **asks})).status_code == 400
        refused = await ann.post("/agui", json=body, headers=other)
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
