"""Agents with models behind servers that deviate from OpenAI's API, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import capgraph.models.recovery as recovery
from capgraph import build_graph
from capgraph.testing import FakeClock
from tests.support.local_servers import FORM, LOADING, SERVERS, TEXT, LocalServer
from tests.support.openai_server import Reply, fail, give, openai_server, say
from tests.support.readings import READ, RESPOND, sensor_registry

ANSWER = "The sensor reads 3.5 today."
PLAN = {"steps": [READ, RESPOND]}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    with SERVERS[request.param]() as running:
        yield running


async def ask(url: str, *messages: Any, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run one turn of an agent and return the last state and the events."""
    own = {"model": "openai:gpt-test", "base_url": url, "api_key": "none", **more}
    graph = build_graph(sensor_registry(), model={"default": own}, clock=FakeClock())
    final: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    said = [("user", text) if isinstance(text, str) else text for text in messages]
    async for part in graph.astream(
        {"messages": said}, stream_mode=["custom", "values"], version="v2"
    ):
        if part["type"] == "custom":
            events.append(part["data"])
        else:
            final = part["data"]
    return final, events


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event_type"] == kind]


async def test_a_plan_is_made_and_the_answer_streams(server: LocalServer) -> None:
    server.on(FORM, give(PLAN)).on(TEXT, say(ANSWER))
    state, events = await ask(server.url, "What does the sensor say?")
    assert state["messages"][-1].content == ANSWER
    assert state["execution_outcome"]["status"] == "completed"
    assert len(of(events, "answer_token")) > 1


async def test_usage_is_asked_for_and_an_estimate_is_marked(server: LocalServer) -> None:
    server.on(FORM, give(PLAN)).on(TEXT, say(ANSWER))
    _, events = await ask(server.url, "What does the sensor say?")
    assert server.asked(TEXT)[0]["stream_options"] == {"include_usage": True}
    planned, answered = of(events, "usage")
    assert not planned["estimated"]
    assert answered["estimated"]
    assert answered["input_tokens"] > 20
    assert 4 <= answered["output_tokens"] <= 12


async def test_usage_of_a_stream_counts_with_a_base_url() -> None:
    with openai_server() as server:
        server.on("ExecutionPlan", give(PLAN)).on("text", say(ANSWER))
        server.replies = _AnyForm(server.replies)
        _, events = await ask(server.url, "What does the sensor say?")
    [answered] = [event for event in of(events, "usage") if event["role"] == "answer"]
    assert not answered["estimated"]
    assert answered["cached_tokens"] == 7


class _AnyForm(dict[str, list[Reply]]):
    """Replies of which the plan is given whatever its schema is called."""

    def get(self, kind: str, default: Any = None) -> Any:
        return super().get(kind) or (super().get("ExecutionPlan") if kind != TEXT else default)


async def test_a_prompt_past_the_context_is_sent_with_fewer_messages(server: LocalServer) -> None:
    task = {"task": "Read the sensor", "depends_on_chat_history": False}
    earlier = [
        (("user", "assistant")[n % 2], f"Message {n} " + "with many words in it " * 25)
        for n in range(8)
    ]
    server.context_tokens = 700
    server.on(FORM, give({**task, "depends_on_user_memory": False}), give(PLAN))
    server.on(TEXT, say(ANSWER))
    state, events = await ask(server.url, *earlier, "What does the sensor say?")
    assert state["messages"][-1].content == ANSWER
    shortened = of(events, "prompt_shortened")
    assert shortened[0]["role"] == "extraction"
    assert {event["messages_kept"] + event["messages_dropped"] for event in shortened} == {8}
    sent = server.asked(TEXT)[-1]["messages"]
    assert sent[0]["role"] == "system"
    assert len(sent) < 10


async def test_a_prompt_that_cannot_be_shortened_fails_with_the_remedy(server: LocalServer) -> None:
    server.context_tokens = 5
    state, _ = await ask(server.url, "What does the sensor say?")
    outcome = state["execution_outcome"]
    assert outcome["status"] == "failed"
    assert "longer context" in outcome["reason"]
    assert 1 <= len(server.requests) <= 4, "nothing is gained by asking again"


async def test_a_server_that_still_loads_its_model_is_asked_again(server: LocalServer) -> None:
    server.on(FORM, LOADING, give(PLAN)).on(TEXT, say(ANSWER))
    state, events = await ask(server.url, "What does the sensor say?")
    assert state["execution_outcome"]["status"] == "completed"
    assert of(events, "retry")


async def test_json_that_ends_at_the_length_limit_is_no_plan(server: LocalServer) -> None:
    half = '{"steps": [{"capability": "read_sen'
    server.on(FORM, *[Reply(text=half, finish="length")] * 9)
    state, _ = await ask(server.url, "What does the sensor say?")
    outcome = state["execution_outcome"]
    assert outcome["status"] == "failed"
    assert "max_tokens" in outcome["reason"]
    assert "execution_step_results" not in state or not state["execution_step_results"]


async def test_a_plan_longer_than_its_schema_allows_is_refused(server: LocalServer) -> None:
    server.on(FORM, give({"steps": [READ] * 11}), give(PLAN)).on(TEXT, say(ANSWER))
    state, _ = await ask(server.url, "What does the sensor say?")
    assert len(state["planning_execution_plan"]["steps"]) == 2
    assert "11 steps" in str(server.asked(FORM)[1]["messages"])


async def test_a_call_that_takes_long_reports_progress(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PROGRESS_SECONDS", 0.1)
    server.on(FORM, give(PLAN, delay=0.5)).on(TEXT, say(ANSWER))
    _, events = await ask(server.url, "What does the sensor say?")
    told = [event for event in of(events, "status") if event["component"] == "planning"]
    assert len(told) >= 2


# --- fallbacks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (fail(429, "rate_limit_exceeded"), "rate_limit"),
        (fail(503), "overloaded"),
        (Reply(refusal="I may not plan."), "refused"),
        (say("I would read the sensor."), "malformed"),
        (Reply(text='{"steps": [', finish="length"), "malformed"),
    ],
    ids=["rate limit", "outage", "refusal", "other form", "cut off"],
)
async def test_a_fallback_model_is_asked_and_reported(reply: Reply, reason: str) -> None:
    with SERVERS["llama.cpp"]() as first, SERVERS["llama.cpp"]() as second:
        first.on(FORM, *[reply] * 9).on(TEXT, say(ANSWER))
        second.on(FORM, *[give(PLAN)] * 3)
        other = {"model": "openai:other", "base_url": second.url, "api_key": "none"}
        state, events = await ask(first.url, "What does the sensor say?", fallbacks=[other])
    assert state["execution_outcome"]["status"] == "completed"
    told = of(events, "model_fallback")[0]
    assert (told["role"], told["model"], told["fallback"]) == ("planning", "gpt-test", "other")
    assert told["reason"] == reason
    assert told["message"]


async def test_a_wrong_key_is_an_error_and_no_reason_to_ask_another_model(
    server: LocalServer,
) -> None:
    server.on(FORM, *[Reply(status=401, text="bad key")] * 9)
    with openai_server() as other:
        spare = {"model": "openai:other", "base_url": other.url, "api_key": "none"}
        state, events = await ask(server.url, "What does the sensor say?", fallbacks=[spare])
        assert not other.requests
    assert state["execution_outcome"]["status"] == "failed"
    assert not of(events, "model_fallback")


async def test_when_all_models_fail_the_error_names_the_last_one() -> None:
    with SERVERS["vLLM"]() as first, SERVERS["vLLM"]() as second:
        for one in (first, second):
            one.on(FORM, *[fail(503)] * 9)
        other = {"model": "openai:other", "base_url": second.url, "api_key": "none"}
        state, _ = await ask(first.url, "What does the sensor say?", fallbacks=[other])
    assert "other" in state["execution_outcome"]["reason"]
