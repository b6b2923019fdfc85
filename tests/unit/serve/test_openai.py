"""The agent behind OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from capgraph.testing import ScriptedModel
from tests.support.served import READ, OpenValve, read_level, served


@pytest.fixture
async def serving() -> AsyncIterator[Any]:
    async with served() as client:
        yield client


async def openai_client(serving: Any, user: str = "ann") -> openai.AsyncOpenAI:
    http = await serving(user)
    return openai.AsyncOpenAI(
        api_key="unused", base_url="http://127.0.0.1/v1", http_client=http, max_retries=0
    )


ASK: Any = [{"role": "user", "content": "read the level of the tank"}]
OPEN: Any = [{"role": "user", "content": "open the valve of the tank"}]


async def test_completion_with_and_without_streaming(serving: Any) -> None:
    client = await openai_client(serving)
    whole = await client.chat.completions.create(model="capgraph", messages=ASK)
    text = whole.choices[0].message.content
    assert text
    assert "7" in text
    assert whole.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(
        model="capgraph", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    parts = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
    assert said == text
    assert parts[-1].usage is not None
    assert [model.id async for model in client.models.list()] == ["capgraph"]
    assert (await client.models.retrieve("capgraph")).id == "capgraph"


async def test_question_ends_the_completion_with_a_link(serving: Any) -> None:
    OpenValve.opened.clear()
    client = await openai_client(serving)
    found = await client.chat.completions.create(model="capgraph", messages=OPEN)
    text = found.choices[0].message.content or ""
    assert "Open the valve of the tank." in text
    assert '"litres": 2.0' in text
    assert "http://127.0.0.1/" in text
    assert OpenValve.opened == []
    ann = await serving("ann")
    (question,) = (await ann.get("/api/questions")).json()["items"]
    assert question["thread_id"] in text


async def test_earlier_messages_reach_the_model() -> None:
    def answer(call: Any) -> Any:
        if call.schema is None:
            return "It is at 7."
        return READ if "steps" in call.prompt else {"task": "read the level of tank three"}

    model = ScriptedModel(responses=answer)
    async with served(read_level, model=model) as serving:
        client = await openai_client(serving)
        messages: Any = [
            {"role": "system", "content": "Answer in French."},
            {"role": "user", "content": "What is tank three?"},
            {"role": "assistant", "content": "The small one."},
            {"role": "user", "content": [{"type": "text", "text": "How full is it?"}]},
        ]
        await client.chat.completions.create(model="capgraph", messages=messages)
        prompts = "\n".join(call.prompt for call in model.calls)
        assert "The small one." in prompts
        assert "Answer in French." in prompts


async def test_thread_id_continues_only_own_threads(serving: Any) -> None:
    ann, bob = await openai_client(serving), await openai_client(serving, "bob")
    first = await ann.chat.completions.create(model="capgraph", messages=ASK)
    thread = first.metadata["thread_id"]  # type: ignore[attr-defined]
    again = await ann.chat.completions.create(
        model="capgraph", messages=ASK, metadata={"thread_id": thread}, user="bob"
    )
    assert again.metadata["thread_id"] == thread  # type: ignore[attr-defined]
    listed = (await (await serving("ann")).get("/api/threads")).json()["items"]
    assert [one["thread_id"] for one in listed] == [thread]
    await bob.chat.completions.create(
        model="capgraph", messages=ASK, metadata={"thread_id": thread}
    )
    mine = (await (await serving("ann")).get(f"/api/threads/{thread}")).json()
    assert len([m for m in mine["messages"] if m["role"] == "user"]) == 2


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        [{"role": "user", "content": "  "}],
        [{"role": "assistant", "content": "x"}],
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        ["x"],
    ],
)
async def test_invalid_messages_are_rejected(serving: Any, messages: Any) -> None:
    ann = await serving("ann")
    found = await ann.post("/v1/chat/completions", json={"model": "capgraph", "messages": messages})
    assert found.status_code == 400, found.text
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["detail"] in found.json()["error"]["message"], "the client shows no other"


async def test_unknown_model_is_not_found(serving: Any) -> None:
    client = await openai_client(serving)
    with pytest.raises(openai.NotFoundError, match="gpt-x"):
        await client.chat.completions.create(model="gpt-x", messages=ASK)
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-x")
