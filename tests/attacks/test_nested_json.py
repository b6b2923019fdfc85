"""JSON that is nested deeply, at every endpoint that accepts JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.served import served

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
AGUI = '"threadId":"t","runId":"r","messages":[{"id":"1","role":"user","content":"hi"}],"tools":[]'
CHAT = '"model":"capgraph","messages":[{"role":"user","content":"hi"}]'
PART = '"messageId":"m","role":"user","parts":[{"kind":"data","data":%s}]'
BODIES = {
    "plan": ("/api/threads/{}/runs", '{"plan":{"steps":%s}}'),
    "context": ("/api/threads/{}/runs", '{"message":"hi","context":{"LEVEL":{"a":%s}}}'),
    "schema": ("/api/threads/{}/runs", '{"message":"hi","answer_schema":{"properties":%s}}'),
    "answer": ("/api/questions/x-y", '{"answer":%s}'),
    "agui": ("/agui", "{" + AGUI + ',"context":[],"state":%s,"forwardedProps":{}}'),
    "chat": ("/v1/chat/completions", "{" + CHAT + ',"metadata":%s}'),
    "a2a": (
        "/a2a",
        '{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{' + PART + "}}}",
    ),
    "mcp": (
        "/mcp",
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":%s}}',
    ),
}


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    async with served() as client_of:
        yield await client_of("ann")


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_deep_json_is_refused(client: Any, name: str) -> None:
    path, body = BODIES[name]
    for depth in (110, 190, 300, 500, 900, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            thread = (await client.post("/api/threads")).json()["thread_id"]
            deep = opening * depth + "1" + closing * depth
            found = await client.post(path.format(thread), content=body % deep, headers=JSON)
            assert found.status_code < 500, (depth, opening, found.text)
    assert (await client.get("/api/threads")).status_code == 200
