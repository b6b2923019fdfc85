"""How models are made to keep a form: the requests that servers get, by setting."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import build_graph, capability_node
from capgraph.base.errors import ConfigurationError
from capgraph.configs.settings import ModelSettings, load_settings
from capgraph.models.roles import RoleModel, chat_models, structured_method
from capgraph.testing import ScriptedModel
from tests.support.openai_server import OpenAIServer, give, openai_server, say

PLAN = {"steps": [{"capability": "forecast", "parameters": {"city": "Oslo"}}]}


@capability_node
def forecast(city: str, days: int = 1) -> str:
    """Forecast the weather of a city."""
    return f"{city}: rain for {days} days"


def settings_of(server: OpenAIServer, **more: Any) -> Any:
    return ModelSettings(model="openai:local", base_url=server.url, api_key="none", **more)


async def request_of(**more: Any) -> dict[str, Any]:
    """Return the planning request that a server gets; the plan has to run."""
    with openai_server() as server:
        for kind in ("ExecutionPlan", "text"):
            server.on(kind, give(PLAN), say("It rains."))
        graph = build_graph([forecast], model=settings_of(server, **more), settings=load_settings())
        out = await graph.ainvoke({"messages": [("user", "Does it rain in Oslo?")]})
        assert out["execution_outcome"]["status"] == "completed"
        assert out["capability_context_data"]["FORECAST"]
        return server.requests[0][1]


async def test_another_server_gets_a_schema_with_a_form_for_each_capability() -> None:
    body = await request_of()
    assert "tools" not in body
    sent = body["response_format"]["json_schema"]
    assert sent["strict"] is False
    form = sent["schema"]["properties"]["steps"]["items"]["anyOf"][0]
    assert form["properties"]["capability"] == {"const": "forecast"}
    assert form["properties"]["parameters"]["required"] == ["city"], "days has a default"


async def test_function_calling_is_used_where_it_is_set() -> None:
    body = await request_of(structured="function_calling")
    assert body["tools"][0]["function"]["name"] == "ExecutionPlan"
    assert "response_format" not in body


async def test_json_mode_states_the_schema_in_the_prompt() -> None:
    body = await request_of(structured="json_mode")
    assert body["response_format"] == {"type": "json_object"}
    assert '"capability"' in str(body["messages"][-1]["content"])


async def test_text_asks_for_json_and_sends_no_form() -> None:
    body = await request_of(structured="text")
    assert "response_format" not in body
    assert "tools" not in body
    assert '"capability"' in str(body["messages"][-1]["content"])


@pytest.mark.parametrize("structured", ["auto", "json_schema", "function_calling"])
async def test_a_plan_that_breaks_off_is_never_completed(structured: str) -> None:
    with openai_server() as server:
        half = '{"steps": [{"capability": "forecast", "parameters": {"city": "Oslo"}}, {'
        server.on("ExecutionPlan", say(half, as_text=True), give({"steps": [], "answer": "Hm."}))
        model = settings_of(server, structured=structured)
        out = await build_graph([forecast], model=model).ainvoke({"messages": [("user", "Rain?")]})
        assert not out["capability_context_data"].get("FORECAST")


async def test_a_reply_that_no_function_fits_is_written_by_the_agent() -> None:
    replies = [{"steps": [], "answer": "No function can do this."}, "I forecast the weather."]
    model = ScriptedModel(responses=replies)
    out = await build_graph([forecast], model=model).ainvoke({"messages": [("user", "Sing!")]})
    assert out["messages"][-1].content == "I forecast the weather."


def test_openai_itself_gets_the_strict_rendering() -> None:
    model = chat_models(ModelSettings(model="openai:gpt-5-mini", api_key="none"))["planning"]
    role = RoleModel("planning", model)
    assert (role.method, role.schema_style) == ("json_schema", "strict")


def test_a_scripted_model_calls_a_function() -> None:
    assert structured_method(ScriptedModel(responses=[])) == "function_calling"


def test_an_unknown_method_is_refused() -> None:
    model = {"planning": {"model": ScriptedModel(responses=[]), "structured": "xml"}}
    with pytest.raises(ConfigurationError, match="xml"):
        build_graph([forecast], model=model)


async def test_features_that_are_set_are_in_schema_and_prompt() -> None:
    @capability_node
    def level() -> float:
        """Read the level."""
        return 2.0

    async def prompt_of(**planning: Any) -> str:
        model = ScriptedModel(responses=[{"steps": [], "answer": "Hello."}])
        settings = load_settings(planning=planning)
        graph = build_graph([level], model=model, settings=settings)
        await graph.ainvoke({"messages": [("user", "hello")]})
        return model.calls[0].prompt

    assert "$from" not in await prompt_of()
    assert "$from" in await prompt_of(features=["references"])
    everything = await prompt_of(features="all")
    assert "for_each" in everything
    assert "when" in everything
    assert "wait_until" not in everything, "no checkpointer could keep the thread"
