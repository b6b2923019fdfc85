"""Fields of an AG-UI input: each is used or refused."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Annotated, Any

import httpx

from capgraph import BaseCapability, capability_node
from capgraph.state import AgentState, CallerInput
from capgraph.testing import ScriptedModel
from tests.support.served import PLAN, READ, Level, ended, read_level, served
from tests.unit.serve.test_agui import told

PAINT = {
    "name": "paint_page",
    "description": "Paint the page.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}
PAINT_PLAN = {
    "steps": [
        {"context_key": "paint", "capability": "paint_page", "parameters": {"color": "red"}},
        {"context_key": "level", "capability": "read_level"},
    ]
}
gate = threading.Event()


@capability_node(examples=["fill the tank"])
async def fill_tank() -> Level:
    """Fill the tank."""
    while not gate.is_set():
        await asyncio.sleep(0.01)
    return Level(litres=9)


class Shared(AgentState, total=False):
    color: Annotated[str, CallerInput]
    secret: str


@capability_node
class ChooseColor(BaseCapability):
    name = "choose_color"
    description = "Choose a color."

    async def execute(self) -> dict[str, Any]:
        return {"color": "blue"}


def user(text: str, name: str = "") -> dict[str, Any]:
    return {"id": name or f"id-{text}", "role": "user", "content": text}


def kinds(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


async def status(client: httpx.AsyncClient, **fields: Any) -> int:
    body = {"threadId": "t", "runId": "r", "messages": [], **fields}
    return (await client.post("/agui", json=body)).status_code


async def test_client_tool_is_called_and_its_result_ends_the_step() -> None:
    async with served() as client:
        ann = await client()
        plan = {"capgraph": {"plan": PAINT_PLAN}}
        first = await told(ann, "t", forwardedProps=plan, tools=[PAINT])
        *_, start, arguments, end, finish = first
        assert kinds([start, arguments, end]) == [
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
        ]
        assert start["toolCallName"] == "paint_page"
        assert json.loads(arguments["delta"]) == {"color": "red"}
        assert finish["outcome"] == {"type": "success"}
        assert finish["result"]["status"] == "waiting"
        call = start["toolCallId"]
        result = {"id": "1", "role": "tool", "toolCallId": call, "content": "painted"}
        after = await told(ann, "t", messages=[result], tools=[PAINT])
        assert after[-1]["result"]["status"] == "completed"
        state = (await ann.get("/api/threads/t/state")).json()
        (data,) = state["capability_context_data"]["PAINT_PAGE_RESULT"].values()
        assert data == {"value": "painted"}
        assert await status(ann, messages=[result]) == 409
        # The next turn has no such tool.
        more = {"forwardedProps": {"capgraph": {"plan": READ}}}
        assert (await told(ann, "t", **more))[-1]["result"]["status"] == "completed"


async def test_client_tool_fails_and_can_be_answered_through_the_api() -> None:
    async with served() as client:
        ann = await client()
        plan = {"capgraph": {"plan": PAINT_PLAN}}
        for thread, answer in (("a", {"error": "no paint"}), ("b", "done")):
            await told(ann, thread, forwardedProps=plan, tools=[PAINT])
            (question,) = (await ann.get("/api/questions")).json()["items"]
            path = f"/api/questions/{question['question_id']}"
            run = (await ann.post(path, json={"answer": answer})).json()["run_id"]
            assert await ended(ann, run) == ("failed" if thread == "a" else "completed")


async def test_client_tools_are_refused_by_name() -> None:
    async with served() as client:
        ann = await client()
        messages = [user("Sing")]
        assert await status(ann, messages=messages, tools=[{**PAINT, "name": "read_level"}]) == 422
        assert await status(ann, messages=messages, tools=[PAINT, PAINT]) == 422
        many = [{**PAINT, "name": f"paint_{n}"} for n in range(65)]
        assert await status(ann, messages=messages, tools=many) == 422


async def test_declared_state_is_shared() -> None:
    plan = {"steps": [{"context_key": "choose", "capability": "choose_color"}]}
    async with served(ChooseColor, state_schema=Shared) as client:
        ann = await client()
        options = {"forwardedProps": {"capgraph": {"plan": plan}}}
        events = await told(ann, "t", state={"color": "red"}, **options)
        assert [one["snapshot"] for one in events if one["type"] == "STATE_SNAPSHOT"] == [
            {"color": "red"}
        ]
        assert [one["delta"] for one in events if one["type"] == "STATE_DELTA"] == [
            [{"op": "add", "path": "/color", "value": "blue"}]
        ]
        for name in ("secret", "colour", "messages"):
            assert await status(ann, messages=[user("Sing")], state={name: "x"}) == 422
    async with served() as client:
        ann = await client()
        assert await status(ann, messages=[user("Sing")], state={"color": "red"}) == 422
        assert await status(ann, messages=[user("Sing")], state={}) == 200


async def test_context_is_an_instruction_of_its_message() -> None:
    model = ScriptedModel(responses=lambda _: "It reads 7.")
    async with served(read_level, model={"answer": model}) as client:
        ann = await client()
        context = [{"description": "page", "value": "tank 7"}]
        await told(ann, "t", messages=[user("Read the level")], context=context)
        assert "page: tank 7" in model.calls[-1].prompt
        await told(ann, "t", messages=[user("Read the level again")])
        assert "page: tank 7" not in model.calls[-1].prompt
    async with served() as client:
        ann = await client()
        assert await status(ann, messages=[user("Sing")], context=context) == 422


async def test_unknown_messages_are_added_to_the_thread() -> None:
    async with served() as client:
        ann = await client()
        hello = [user("Hello"), {"id": "2", "role": "assistant", "content": "Hello, Ann."}]
        await told(ann, "t", messages=[*hello, user("Read the level")])
        found = (await ann.get("/api/threads/t")).json()["messages"]
        assert [one["content"] for one in found[:3]] == ["Hello", "Hello, Ann.", "Read the level"]
        rest = [{"id": one["id"], "role": one["role"], "content": one["content"]} for one in found]
        await told(ann, "t", messages=[*rest, user("Wait"), user("Read it again")])
        again = (await ann.get("/api/threads/t")).json()["messages"]
        assert [one["content"] for one in again[4:6]] == ["Wait", "Read it again"]
        thought = {"id": "3", "role": "reasoning", "content": "Hm"}
        assert await status(ann, messages=[thought, user("Sing")]) == 422
        picture = {"type": "image", "source": {"type": "url", "value": "https://a.example/a.png"}}
        for content in ([picture], [picture, {"type": "text", "text": "Look"}]):
            message = {"id": "4", "role": "user", "content": content}
            assert await status(ann, messages=[message, user("Sing")]) == 422
        assert (
            await status(ann, messages=[user("a")], forwardedProps={"capgraph": {"plam": 1}}) == 422
        )


async def test_request_for_an_active_thread_attaches_to_its_run() -> None:
    gate.clear()
    async with served(fill_tank, read_level) as client:
        ann = await client()
        message = user("Fill the tank")
        first = asyncio.create_task(told(ann, "t", messages=[message]))
        await running(ann)
        partial = {"id": "9", "role": "assistant", "content": "Fil"}
        again = asyncio.create_task(told(ann, "t", messages=[message, partial]))
        later = asyncio.create_task(told(ann, "t", messages=[message, user("Read the level")]))
        await asyncio.sleep(0.2)
        gate.set()
        one, other, both = await asyncio.gather(first, again, later)
        assert other[1]["type"] == "MESSAGES_SNAPSHOT"
        assert [text["content"] for text in other[1]["messages"]] == ["Fill the tank"]
        assert kinds(other[:1] + other[2:]) == kinds(one)
        assert kinds(both).count("RUN_STARTED") == kinds(both).count("RUN_FINISHED") == 1
        assert both[-1]["result"]["status"] == "completed"
        found = (await ann.get("/api/threads/t")).json()
        assert [text["content"] for text in found["messages"][::2]] == [
            "Fill the tank",
            "Read the level",
        ]
        assert len(found["runs"]) == 2


async def test_repeated_request_reads_the_ended_run_again() -> None:
    async with served(fill_tank) as client:
        ann = await client()
        gate.set()
        first = await told(ann, "t", messages=[user("Fill the tank")])
        for messages in ([user("Fill the tank")], []):
            again = await told(ann, "t", messages=messages)
            assert again[-1]["result"] == first[-1]["result"]
            assert [one["role"] for one in again[1]["messages"]] == ["user", "assistant"]
            assert not [kind for kind in kinds(again) if kind.startswith("TEXT_MESSAGE")]
        assert len((await ann.get("/api/threads/t")).json()["runs"]) == 1
        await told(ann, "t", messages=[user("Fill the tank", "another")])
        assert len((await ann.get("/api/threads/t")).json()["runs"]) == 2


async def test_open_interrupt_is_read_again() -> None:
    async with served() as client:
        ann = await client()
        first = await told(ann, "t", forwardedProps={"capgraph": {"plan": PLAN}})
        again = await told(ann, "t")
        assert again[-1]["outcome"] == first[-1]["outcome"]


async def test_closed_connection_stops_its_run_if_configured() -> None:
    gate.clear()
    for stops, outcome in ((False, "running"), (True, "stopped")):
        async with served(fill_tank, serve={"agui": {"stop_on_disconnect": stops}}) as client:
            ann = await client()
            request = asyncio.create_task(told(ann, "t", messages=[user("Fill the tank")]))
            await running(ann)
            request.cancel()
            await asyncio.wait([request])
            run = (await ann.get("/api/threads/t")).json()["runs"][0]["run_id"]
            if stops:
                assert await ended(ann, run) == outcome
            assert (await ann.get(f"/api/runs/{run}")).json()["status"] == outcome
            gate.set()
        gate.clear()


async def running(client: httpx.AsyncClient) -> None:
    """Wait until a step of the thread runs."""
    while True:
        found = await client.get("/api/threads/t")
        if found.status_code == 200 and found.json()["plan"]:
            return
        await asyncio.sleep(0.02)
