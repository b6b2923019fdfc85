"""Drives a served agent with clients of OpenAI's API, and prints one JSON line for each check.

The program runs in an environment with the clients only. Its argument is the URL of a server.
"""

import asyncio
import json
import sys

import litellm
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE = f"{sys.argv[1]}/v1"
QUESTION = "How warm is it in Rome?"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
provider = OpenAIProvider(base_url=BASE, api_key="unused")
chat = OpenAIChatModel("capgraph", provider=provider)
responses = OpenAIResponsesModel("capgraph", provider=provider)


class Report(BaseModel):
    """Report about a tank."""

    litres: float


async def complete(**options):
    return await litellm.acompletion(
        model="openai/capgraph",
        api_base=BASE,
        api_key="unused",
        max_retries=0,
        **{"messages": [{"role": "user", "content": QUESTION}], **options},
    )


async def pydantic_ai_text():
    for model in (chat, responses):
        assert (await Agent(model).run(QUESTION)).output == "Unknown."


async def pydantic_ai_stream():
    async with Agent(chat).run_stream(QUESTION) as result:
        assert await result.get_output() == "Unknown."


async def pydantic_ai_tools():
    cities = []
    for model in (chat, responses):
        cities.clear()
        agent = Agent(model)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Return the weather."""
            cities.append(city)
            return "31 degrees"

        result = await agent.run(QUESTION)
        assert result.output == "It is warm.", result.output
        assert cities == ["Rome"], cities
        following = await agent.run("Thanks.", message_history=result.all_messages())
        assert following.output


async def pydantic_ai_output_type():
    for model in (chat, responses):
        for output_type, question in (
            (Report, "Report by a call."),
            (NativeOutput(Report), QUESTION),
        ):
            result = await Agent(model, output_type=output_type).run(question)
            assert result.output == Report(litres=7), result.output


async def litellm_text():
    assert (await complete()).choices[0].message.content == "Unknown."


async def litellm_stream():
    parts = [part async for part in await complete(stream=True)]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "Unknown."


async def litellm_tools():
    choice = (await complete(tools=[TOOL])).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages = [
        {"role": "user", "content": QUESTION},
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "31 degrees"},
    ]
    last = await complete(tools=[TOOL], messages=messages)
    assert last.choices[0].message.content == "It is warm."


async def litellm_response_format():
    completion = await complete(response_format=Report)
    assert Report.model_validate_json(completion.choices[0].message.content) == Report(litres=7)


async def litellm_unsupported_option():
    try:
        await complete(temperature=0.2)
    except litellm.BadRequestError as error:
        named = "temperature" in str(error)
    else:
        named = False
    assert named, "The error does not name the option."


CHECKS = [
    *(pydantic_ai_text, pydantic_ai_stream, pydantic_ai_tools, pydantic_ai_output_type),
    *(litellm_text, litellm_stream, litellm_tools, litellm_response_format),
    litellm_unsupported_option,
]


async def main():
    for check in CHECKS:
        line = {"name": check.__name__, "passed": True}
        try:
            await check()
        except Exception as error:  # a check reports whatever a client raises
            line |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:1500]}
        print(json.dumps(line), flush=True)


asyncio.run(main())
