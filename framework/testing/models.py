"""Chat model with scripted answers, for tests."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, Field

from capgraph.base import ModelError
from capgraph.helpers.plain_data import to_plain

_CHUNK = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Record of a call that a scripted model received.

    Attributes:
        messages: Prompt messages.
        schema: Name of the requested structured output, or ``None``.
        tools: Names of the bound tools.
    """

    messages: tuple[BaseMessage, ...]
    schema: str | None = None
    tools: tuple[str, ...] = ()

    @property
    def prompt(self) -> str:
        """Text of all prompt messages."""
        return "\n\n".join(str(message.text) for message in self.messages)


class ScriptedModel(BaseChatModel):
    """Chat model with scripted answers, for tests without a network.

    An answer is a text, a message, data or a pydantic object (returned as JSON, for structured
    output), an exception (raised), or a function of the call that returns one of these.

    Attributes:
        responses: Answers in order, or one function of the call for all of them.
        calls: Received calls, in order.
        model_name: Name in usage reports.

    Raises:
        ModelError: A call has no scripted answer.

    >>> model = ScriptedModel(responses=["Hello.", {"task": "Sing"}])
    >>> model.invoke("Hi").text
    'Hello.'
    >>> model.with_structured_output({"title": "Task", "type": "object"}).invoke("What next?")
    {'task': 'Sing'}
    >>> [call.schema for call in model.calls]
    [None, 'Task']
    """

    responses: Sequence[Any] | Callable[[ModelCall], Any]
    calls: list[ModelCall] = Field(default_factory=list)
    model_name: str = "scripted"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[Any, Any]:
        """Return a model that parses its next answer as JSON.

        Args:
            schema: Pydantic class, or JSON schema with a title.
            include_raw: True to return ``raw``, ``parsed``, and ``parsing_error`` instead of
                raising.
            **kwargs: Ignored. Accepted for compatibility with other models.
        """
        name = convert_to_openai_tool(schema)["function"]["name"]
        model = self.bind(scripted_schema=name)

        def parse(message: BaseMessage) -> Any:
            text = str(message.text)
            if isinstance(schema, type) and issubclass(schema, BaseModel):
                return schema.model_validate_json(text)
            return json.loads(text)

        parser = RunnableLambda(parse)
        if not include_raw:
            return model | parser
        good = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        bad = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | good.with_fallbacks([bad], exception_key="parsing_error")

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        """Record the names of the bound tools. Answers with tool calls must be messages."""
        names = [convert_to_openai_tool(tool)["function"]["name"] for tool in tools]
        return self.bind(scripted_tools=tuple(names))

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        message = self._next_message(messages, kwargs)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages, stop, None, **kwargs)

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._create_chunks(messages, kwargs):
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._create_chunks(messages, kwargs):
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _create_chunks(
        self, messages: list[BaseMessage], kwargs: dict[str, Any]
    ) -> Iterator[ChatGenerationChunk]:
        message = self._next_message(messages, kwargs)
        for piece in _CHUNK.findall(str(message.text)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        last = AIMessageChunk(
            content="",
            additional_kwargs=message.additional_kwargs,
            response_metadata=message.response_metadata,
            usage_metadata=message.usage_metadata,
            tool_call_chunks=[
                {
                    "name": call["name"],
                    "args": json.dumps(call["args"]),
                    "id": call["id"],
                    "index": index,
                    "type": "tool_call_chunk",
                }
                for index, call in enumerate(message.tool_calls)
            ],
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    def _next_message(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        call = ModelCall(
            tuple(messages), kwargs.get("scripted_schema"), kwargs.get("scripted_tools", ())
        )
        self.calls.append(call)
        if callable(self.responses):
            answer = self.responses(call)
        elif len(self.calls) <= len(self.responses):
            # Copies of the model share the list of calls, which counts the answers.
            answer = self.responses[len(self.calls) - 1]
            if callable(answer) and not isinstance(answer, type):
                answer = answer(call)
        else:
            raise ModelError(
                f"The model {self.model_name!r} has no answer for call {len(self.calls)}: only"
                f" {len(self.responses)} answer(s) are scripted.",
                fix="Add an answer to 'responses'.",
            )
        if isinstance(answer, BaseException):
            raise answer
        return self._to_message(answer, call)

    def _to_message(self, answer: Any, call: ModelCall) -> AIMessage:
        if isinstance(answer, AIMessage):
            return answer
        text = answer if isinstance(answer, str) else json.dumps(to_plain(answer))
        usage = UsageMetadata(
            input_tokens=len(call.prompt.split()),
            output_tokens=len(text.split()),
            total_tokens=len(call.prompt.split()) + len(text.split()),
        )
        return AIMessage(
            content=text,
            usage_metadata=usage,
            response_metadata={"model_name": self.model_name, "finish_reason": "stop"},
        )
