"""Functions of OpenAI's API: calls, results, and required calls, sent by official clients."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from capgraph.testing import ScriptedModel
from tests.support.served import READ, read_level, served
from tests.unit.serve.test_openai import openai_client

MODEL = "capgraph"
QUESTION = "How warm is it in Rome?"
ASK: Any = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def function(name: str = "get-weather", **schema: Any) -> Any:
    """Return a function tool of a chat completion."""
    fields = {"name": name, "description": "Return the weather.", "parameters": schema or SCHEMA}
    return {"type": "function", "function": {**fields, "strict": True}}


def plan(*cities: str, capability: str = "get-weather") -> dict[str, Any]:
    """Return a plan that calls the function for each city."""
    return {
        "steps": [
            {
                "context_key": f"weather_{index}",
                "capability": capability,
                "task_objective": "Look.",
                "parameters": {"city": city},
            }
            for index, city in enumerate(cities)
        ]
    }


def model(*cities: str, call: Any = None, capability: str = "get-weather") -> ScriptedModel:
    """Return a model that plans calls of the function, and answers with what it read."""

    def respond(request: Any) -> Any:
        if request.schema == "answer":
            return {"call": call}
        if request.schema is None:
            return "It is warm." if "31 degrees" in request.prompt else "Unknown."
        if "steps" in request.prompt:
            return plan(*cities, capability=capability) if capability in request.prompt else READ
        return {"task": QUESTION}

    return ScriptedModel(responses=respond)


@pytest.mark.parametrize("streams", [False, True])
async def test_agent_calls_a_function_of_the_client(streams: bool) -> None:
    async with served(read_level, model=model("Rome")) as serving:
        client = await openai_client(serving)
        options: Any = {"model": MODEL, "tools": [function()]}
        if streams:
            async with client.chat.completions.stream(messages=ASK, **options) as stream:
                first: Any = await stream.get_final_completion()
        else:
            first = await client.chat.completions.create(messages=ASK, **options)
        (choice,) = first.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content in (None, "")
        (call,) = choice.message.tool_calls
        assert call.function.name == "get-weather"
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        messages = [
            *ASK,
            {"role": "assistant", "tool_calls": [call.to_dict()]},
            {"role": "tool", "tool_call_id": call.id, "content": "31 degrees"},
        ]
        last = await client.chat.completions.create(messages=messages, **options)
        assert last.choices[0].finish_reason == "stop"
        assert last.choices[0].message.content == "It is warm."
        (thread,) = (await (await serving("ann")).get("/api/threads")).json()["items"]
        assert thread["outcome"] == "completed"
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(messages=messages, **options)


@pytest.mark.parametrize("is_parallel", [True, False])
async def test_several_calls_of_one_answer(is_parallel: bool) -> None:
    async with served(read_level, model=model("Rome", "Oslo")) as serving:
        client = await openai_client(serving)
        messages, answers = list(ASK), 0
        options: Any = {"model": MODEL, "tools": [function()], "parallel_tool_calls": is_parallel}
        while True:
            completion = await client.chat.completions.create(messages=messages, **options)
            calls = completion.choices[0].message.tool_calls
            if not calls:
                break
            answers += 1
            messages.append(completion.choices[0].message.to_dict())
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "31 degrees"} for call in calls
            ]
        assert answers == (1 if is_parallel else 2)
        assert completion.choices[0].message.content == "It is warm."


async def test_required_call_is_the_answer() -> None:
    call = {"name": "report", "arguments": {"litres": 7}}
    schema = {"$defs": {"Litres": {"type": "number"}}, "type": "object"}
    schema |= {"properties": {"litres": {"$ref": "#/$defs/Litres"}}}
    async with served(read_level, model=model(call=call)) as serving:
        client = await openai_client(serving)
        tools = [function(), function("report", **schema)]
        named: Any = {"type": "function", "function": {"name": "report"}}
        for choice in ("required", named):
            completion = await client.chat.completions.create(
                model=MODEL, messages=ASK, tools=tools, tool_choice=choice
            )
            assert completion.choices[0].finish_reason == "tool_calls"
            (found,) = completion.choices[0].message.tool_calls or ()
            assert found.type == "function"
            assert json.loads(found.function.arguments) == {"litres": 7}
        history: Any = [
            *ASK,
            completion.choices[0].message.to_dict(),
            {"role": "tool", "tool_call_id": found.id, "content": "31 degrees"},
        ]
        last = await client.chat.completions.create(model=MODEL, messages=history)
        assert last.choices[0].message.content == "It is warm."


async def test_call_of_another_user_stays_open() -> None:
    async with served(read_level, model=model("Rome")) as serving:
        ann, eve = await openai_client(serving), await openai_client(serving, "eve")
        options: Any = {"model": MODEL, "tools": [function()]}
        first = await ann.responses.create(model=MODEL, input=QUESTION, tools=[_flat(function())])
        call: Any = first.output[0]
        result: Any = {"role": "tool", "tool_call_id": call.call_id, "content": "31 degrees"}
        forged = {"name": "get-weather", "arguments": "{}"}
        calls = [{"id": call.call_id, "type": "function", "function": forged}]
        messages = [*ASK, {"role": "assistant", "tool_calls": calls}, result]
        await eve.chat.completions.create(messages=messages, **options)
        assert (await (await serving("ann")).get("/api/questions")).json()["items"]
        with pytest.raises(openai.BadRequestError):
            await eve.responses.create(
                model=MODEL, input=[_output(call.call_id)], tools=[_flat(function())]
            )


async def test_responses_call_functions() -> None:
    async with served(read_level, model=model("Rome")) as serving:
        client = await openai_client(serving)
        options: Any = {"model": MODEL, "tools": [_flat(function())]}
        events = [
            e async for e in await client.responses.create(input=QUESTION, stream=True, **options)
        ]
        done = events[-1]
        assert done.type == "response.completed"
        (call,) = done.response.output
        assert json.loads(call.arguments) == {"city": "Rome"}
        (arguments,) = (e for e in events if e.type == "response.function_call_arguments.done")
        assert arguments.arguments == call.arguments
        last = await client.responses.create(
            input=[_output(call.call_id)], previous_response_id=done.response.id, **options
        )
        assert last.output_text == "It is warm."


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
@pytest.mark.parametrize("is_parallel", [True, False])
async def test_stored_response_contains_its_calls(tool_choice: Any, is_parallel: bool) -> None:
    call = {"name": "get-weather", "arguments": {"city": "Rome"}}
    async with served(read_level, model=model("Rome", "Oslo", call=call)) as serving:
        client = await openai_client(serving)
        created = await client.responses.create(
            model=MODEL,
            input=QUESTION,
            instructions="Answer in verse.",
            metadata={"page": "7"},
            tools=[_flat(function())],
            tool_choice=tool_choice,
            parallel_tool_calls=is_parallel,
        )
        kinds = {item.type for item in created.output}
        assert kinds == {"function_call"}
        assert await client.responses.retrieve(created.id) == created
        events = [event async for event in await client.responses.retrieve(created.id, stream=True)]
        assert events[-1].type == "response.completed"
        assert events[-1].response == created
        with pytest.raises(openai.BadRequestError):
            await client.responses.retrieve(created.id, include=["reasoning.encrypted_content"])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools"),
        ({"tools": [function("read_level")]}, "tools"),
        ({"tools": [function("")]}, "tools"),
        ({"tools": [function()], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_invalid_functions_are_refused_by_name(options: Any, param: str) -> None:
    async with served() as serving:
        client = await openai_client(serving)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(model=MODEL, messages=ASK, extra_body=options)
        assert refusal.value.param == param
        assert (await (await serving("ann")).get("/api/threads")).json()["items"] == []


class Report(BaseModel):
    """Report about a tank."""

    litres: float


async def test_langchain_client_binds_tools() -> None:
    @tool
    def get_weather(city: str) -> str:
        """Return the weather."""
        return f"31 degrees in {city}"

    call = {"name": "Report", "arguments": {"litres": 7}}
    scripted = model("Rome", call=call, capability="get_weather")
    async with served(read_level, model=scripted) as serving:
        http = await serving("ann")
        chat = ChatOpenAI(
            model=MODEL,
            api_key="unused",  # type: ignore[arg-type]
            base_url="http://127.0.0.1/v1",
            http_async_client=http,
            max_retries=0,
        )
        for one in (chat, chat.model_copy(update={"use_responses_api": True})):
            bound = one.bind_tools([get_weather])
            messages: list[Any] = [HumanMessage(QUESTION)]
            messages.append(await bound.ainvoke(messages))
            (asked,) = messages[-1].tool_calls
            assert asked["args"] == {"city": "Rome"}
            result = await get_weather.ainvoke(asked)
            assert isinstance(result, ToolMessage)
            assert (await bound.ainvoke([*messages, result])).text == "It is warm."
        typed = chat.with_structured_output(Report, method="function_calling")
        assert await typed.ainvoke("How full is the tank?") == Report(litres=7)


def _flat(chat_tool: Any) -> Any:
    return {"type": "function", **chat_tool["function"]}


def _output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "31 degrees"}
