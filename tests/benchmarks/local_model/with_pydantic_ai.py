"""pydantic-ai, in three arrangements.

- Tool calls: the model calls tools by its template, and is asked after each call.
- Prompted output: the model writes JSON text that is either calls of functions or an answer. The
  schema is in the prompt. A loop runs the calls and sends their results as the next message.
- Native output: the same, and the server's grammar enforces the schema.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union

from pydantic import BaseModel, Field, create_model
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    NativeOutput,
    PromptedOutput,
    Tool,
    UsageLimits,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.benchmarks.local_model.cases import Domain
from tests.benchmarks.local_model.systems import (
    CALL_TIMEOUT_SECONDS,
    INSTRUCTIONS,
    MAX_ROUNDS,
    MAX_TOKENS,
    MODEL,
    TEMPERATURE,
    Ask,
    Messages,
    Reply,
)

Function = Callable[..., str]
_REPLY_INSTRUCTIONS = (
    "You are a helpful assistant. Call functions where they help: list them in 'calls', and you get"
    " their results. Otherwise leave 'calls' empty and write your answer to the user in 'answer'."
)
_SCHEMA = "Answer with JSON that fits this schema:\n{schema}"
_RESULTS = (
    "Results of the calls:\n{results}\n"
    "If they are enough, leave 'calls' empty and write the answer to my request in 'answer'."
)


def prepare(domain: Domain, url: str, variant: str = "") -> Ask:
    """Build one of the agents; approvals are granted."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))
    settings = ModelSettings(
        temperature=TEMPERATURE, max_tokens=MAX_TOKENS, timeout=CALL_TIMEOUT_SECONDS
    )
    if not variant:
        return _with_tools(domain, model, settings)
    reply = reply_type(domain.tools)
    output = (
        PromptedOutput(reply) if variant == "prompted" else NativeOutput(reply, template=_SCHEMA)
    )
    return _with_replies(domain, model, settings, output)


def _with_tools(domain: Domain, model: OpenAIChatModel, settings: ModelSettings) -> Ask:
    tools: list[Tool[object]] = [
        Tool(tool, requires_approval=tool.__name__ in domain.approvals) for tool in domain.tools
    ]
    agent = Agent(
        model,
        output_type=[str, DeferredToolRequests],
        tools=tools,
        instructions=INSTRUCTIONS,
        model_settings=settings,
    )

    async def ask(messages: Messages) -> Reply:
        limits = UsageLimits(request_limit=MAX_ROUNDS)
        done = await agent.run(
            messages[-1][1], message_history=_history(messages), usage_limits=limits
        )
        while isinstance(done.output, DeferredToolRequests):
            granted: dict[str, Any] = {asked.tool_call_id: True for asked in done.output.approvals}
            done = await agent.run(
                message_history=done.all_messages(),
                deferred_tool_results=DeferredToolResults(approvals=granted),
                usage=done.usage,
                usage_limits=limits,
            )
        return Reply(str(done.output))

    return ask


def _with_replies(
    domain: Domain, model: OpenAIChatModel, settings: ModelSettings, output_type: Any
) -> Ask:
    functions = {tool.__name__: tool for tool in domain.tools}
    agent = Agent(
        model,
        output_type=output_type,
        instructions=_REPLY_INSTRUCTIONS,
        model_settings=settings,
    )

    async def ask(messages: Messages) -> Reply:
        done = await agent.run(messages[-1][1], message_history=_history(messages))
        for _ in range(MAX_ROUNDS - 1):
            output: Any = done.output
            if not output.calls:
                return Reply(output.answer)
            results = [_run(functions, made) for made in output.calls]
            done = await agent.run(
                _RESULTS.format(results="\n".join(results)),
                message_history=done.all_messages(),
            )
        return Reply("")

    return ask


def _history(messages: Messages) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart(text)])
        if who == "user"
        else ModelResponse(parts=[TextPart(text)])
        for who, text in messages[:-1]
    ]


def reply_type(functions: Sequence[Function]) -> type[BaseModel]:
    """Return the model of a reply: calls of functions, or an answer."""
    calls = [_call_type(function) for function in functions]
    one_call: Any = Union[tuple(calls)]  # noqa: UP007 - the members are known at run time only
    return create_model(
        "Reply",
        calls=(
            list[one_call],
            Field(default_factory=list, description="Functions to call next; none to answer."),
        ),
        answer=(str, Field("", description="Answer to the user, once no call is needed.")),
    )


def _call_type(function: Function) -> type[BaseModel]:
    signature = inspect.signature(function, eval_str=True)
    fields: dict[str, Any] = {
        name: (
            parameter.annotation,
            ... if parameter.default is inspect.Parameter.empty else parameter.default,
        )
        for name, parameter in signature.parameters.items()
    }
    name: Any = Literal[function.__name__]
    return create_model(function.__name__, __doc__=function.__doc__, function=(name, ...), **fields)


def _run(functions: dict[str, Function], made: BaseModel) -> str:
    arguments = {name: getattr(made, name) for name in type(made).model_fields}
    function = functions[arguments.pop("function")]
    return f"{function.__name__}: {function(**arguments)}"
