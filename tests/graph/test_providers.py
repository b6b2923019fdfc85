"""Whole graphs with the clients of Anthropic and Google, behind their wire formats on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from capgraph import build_graph
from capgraph.configs.settings import ModelSettings, load_settings
from capgraph.testing import FakeClock, ScriptedModel
from tests.support.openai_server import OpenAIServer, Reply, fail, give, say
from tests.support.provider_servers import CACHED, anthropic_server, google_server
from tests.support.readings import sensor_registry

ANSWER = "The sensor reads 3.5 today."
CHOICE = give({"reason": "It fits.", "capabilities": ["read_sensor"], "answer": ""})
READ = give({"steps": [{"capability": "read_sensor"}]})

pytestmark = [
    pytest.mark.may_block,  # how the clients read certificates and keys is theirs to decide
    pytest.mark.filterwarnings("default"),
]


@dataclass
class Provider:
    """One provider: its endpoint, the name of a model, and how it says that it is asked too often."""

    server: OpenAIServer
    model: str
    too_often: str


@pytest.fixture(params=["anthropic", "google"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    if request.param == "anthropic":
        pytest.importorskip("langchain_anthropic")
        with anthropic_server() as server:
            yield Provider(server, "anthropic:claude-test", "rate_limit_error")
    else:
        pytest.importorskip("langchain_google_genai")
        with google_server() as server:
            yield Provider(server, "google_genai:gemini-test", "RESOURCE_EXHAUSTED")


class Client:
    """Runs turns and keeps what was streamed."""

    def __init__(self, provider: Provider, answer_type: Any = None, **settings: Any) -> None:
        model: Any = ModelSettings(
            model=provider.model, base_url=provider.server.url, api_key="sk-test-0123456789"
        )
        self.clock = FakeClock()
        self.events: list[dict[str, Any]] = []
        self.graph: Any = build_graph(
            sensor_registry(),
            model=model,
            clock=self.clock,
            settings=load_settings(**settings),
            answer_type=answer_type,
        )

    async def ask(self, text: str = "What does the sensor say?") -> dict[str, Any]:
        """Run one turn; return the final state."""
        final: dict[str, Any] = {}
        asked = {"messages": [("user", text)]}
        async for part in self.graph.astream(asked, stream_mode=["custom", "values"], version="v2"):
            if part["type"] == "custom":
                self.events.append(part["data"])
            else:
                final = part["data"]
        return final

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event for event in self.events if event["event_type"] == kind]


async def test_a_plan_an_answer_in_pieces_and_what_they_cost(provider: Provider) -> None:
    provider.server.on("ExecutionPlan", READ).on("text", say(ANSWER))
    client = Client(provider)
    state = await client.ask()
    assert state["messages"][-1].content == ANSWER
    assert [kind for kind, _ in provider.server.requests] == ["ExecutionPlan", "text"]
    tokens = [event["text"] for event in client.of("answer_token")]
    assert "".join(tokens) == ANSWER
    assert len(tokens) == 5
    usage = client.of("usage")
    assert [event["role"] for event in usage] == ["planning", "answer"]
    assert all(event["input_tokens"] > 20 and event["output_tokens"] > 0 for event in usage)
    assert {event["cached_tokens"] for event in usage} == {CACHED}


async def test_a_choice_of_its_own_keeps_its_form(provider: Provider) -> None:
    provider.server.on("Choice", CHOICE).on("ExecutionPlan", READ).on("text", say(ANSWER))
    state = await Client(provider, selection={"strategy": "model"}).ask()
    assert state["planning_active_capabilities"] == ["read_sensor"]
    assert [kind for kind, _ in provider.server.requests] == ["Choice", "ExecutionPlan", "text"]


async def test_small_talk_costs_one_call(provider: Provider) -> None:
    provider.server.on("ExecutionPlan", give({"steps": [], "answer": "Hello!"}))
    state = await Client(provider).ask("Good morning!")
    assert state["messages"][-1].content == "Hello!"
    assert len(provider.server.requests) == 1


@pytest.mark.parametrize("kind", ["ExecutionPlan", "text"])
async def test_being_asked_too_often_is_waited_out_and_tried_again(
    provider: Provider, kind: str
) -> None:
    provider.server.on(kind, fail(429, provider.too_often, retry_after="17"))
    provider.server.on("ExecutionPlan", READ).on("text", say(ANSWER))
    client = Client(provider)
    state = await client.ask()
    assert state["messages"][-1].content == ANSWER
    assert len(provider.server.asked(kind)) == 2, "the client must not retry beside the router"
    assert client.clock.sleeps == [17]


async def test_an_overloaded_service_is_tried_again(provider: Provider) -> None:
    provider.server.on("ExecutionPlan", fail(503, "UNAVAILABLE"), READ).on("text", say(ANSWER))
    state = await Client(provider).ask()
    assert state["messages"][-1].content == ANSWER


@pytest.mark.parametrize(
    "broken", [{"hang_up_after": 4, "code": "overloaded_error"}, {"finish": ""}]
)
async def test_an_answer_that_breaks_off_is_written_again(
    provider: Provider, broken: dict[str, Any]
) -> None:
    provider.server.on("ExecutionPlan", READ).on(
        "text", say("It reads 3.5, or so it would seem", **broken), say(ANSWER)
    )
    client = Client(provider)
    state = await client.ask()
    assert state["messages"][-1].content == ANSWER
    assert len(client.of("retry")) == 1


async def test_a_plan_whose_objects_come_as_text_is_read(provider: Provider) -> None:
    step = {"capability": "read_sensor", "context_key": "now", "parameters": "{}", "for_each": ""}
    later = {**step, "context_key": "b", "when": '{"of": "now.value", "is": ">", "than": 99}'}
    provider.server.on("ExecutionPlan", give({"steps": [step, later]})).on("text", say(ANSWER))
    state = await Client(provider).ask()
    assert state["execution_outcome"]["not_needed"] == ["b"]


async def test_a_prompt_that_is_blocked_is_a_refusal() -> None:
    blocked = AIMessage("", response_metadata={"prompt_feedback": {"block_reason": "SAFETY"}})
    model = ScriptedModel(responses=[blocked])
    out = await build_graph(sensor_registry(), model=model).ainvoke({"messages": [("user", "Hi")]})
    assert (
        "refused to answer: the prompt was blocked (SAFETY)" in out["execution_outcome"]["reason"]
    )


@pytest.mark.parametrize(("status", "code"), [(401, "authentication_error"), (404, "not_found")])
async def test_what_cannot_pass_is_not_tried_again(
    provider: Provider, status: int, code: str
) -> None:
    provider.server.on("ExecutionPlan", *[fail(status, code) for _ in range(5)])
    state = await Client(provider).ask()
    assert len(provider.server.requests) == 1
    assert state["execution_outcome"]["status"] == "failed"
    assert "sk-test-0123456789" not in str(state)


async def test_a_plan_cut_off_at_the_length_limit_never_starts(provider: Provider) -> None:
    provider.server.on("ExecutionPlan", Reply(data=READ.data, finish="length"))
    client = Client(provider)
    state = await client.ask()
    assert "length limit" in state["execution_outcome"]["reason"]
    assert not client.of("step_started")


async def test_a_plan_written_as_text_is_read_too(provider: Provider) -> None:
    provider.server.on("ExecutionPlan", Reply(data=READ.data, as_text=True))
    provider.server.on("text", say(ANSWER))
    state = await Client(provider).ask()
    assert state["execution_outcome"]["status"] == "completed"


async def test_an_answer_of_a_type_keeps_its_form(provider: Provider) -> None:
    class Report(BaseModel):
        value: float
        comment: str = ""

    written = give({"value": 3.5, "comment": "calm"})
    provider.server.on("ExecutionPlan", READ).on("Report", written)
    client = Client(provider, answer_type=Report)
    out = await client.ask()
    assert client.graph.answer_of(out) == Report(value=3.5, comment="calm")
    assert client.of("answer_part")[-1]["value"] == {"value": 3.5, "comment": "calm"}
    assert [event["role"] for event in client.of("usage")] == ["planning", "answer"]
