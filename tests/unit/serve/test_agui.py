"""AG-UI: a run told as events, questions with schemas, answers by ``resume``."""

from __future__ import annotations

import json
from typing import Any

import httpx
from ag_ui.core import Event
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from tests.support.served import PLAN, OpenValve, ended, served

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


async def told(client: httpx.AsyncClient, thread: str, **more: Any) -> list[Any]:
    body = {"threadId": thread, "runId": "mine", "messages": [], **more}
    answer = await client.post("/agui", json=body)
    assert answer.status_code == 200, answer.text
    found = []
    for block in filter(None, answer.text.split("\n\n")):
        number, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        EVENT.validate_python(found[-1])
        assert number == f"id: {len(found)}"
    assert [event["runId"] for event in found if "runId" in event] == ["mine", "mine"]
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
        assert own[-1]["outcome"] == {"type": "success"}
        assert "Nothing here can do that" in own[-1]["result"]["answer"]
        assert (await ann.get("/api/threads/t")).json()["messages"] == []


async def test_invalid_input_is_rejected() -> None:
    async with served() as client:
        ann = await client()
        assert (await ann.post("/agui", content=b"{")).status_code == 400
        assert (await ann.post("/agui", json={"threadId": "t"})).status_code == 400
        nothing = {"threadId": "t", "runId": "x", "messages": []}
        assert (await ann.post("/agui", json=nothing)).status_code == 422
