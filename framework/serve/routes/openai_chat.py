"""Chat completions, complete and as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from capgraph.serve.problems import openai_error
from capgraph.serve.routes.openai_answer import Answer
from capgraph.serve.routes.openai_request import MODEL_NAME
from capgraph.serve.sse import encode_event


class CompletionWriter:
    """Writer that formats an answer as an OpenAI chat completion.

    Attributes:
        answer: Answer to format.

    Args:
        answer: Answer to format.
        includes_usage: True to end the stream with the token usage.
    """

    def __init__(self, answer: Answer, *, includes_usage: bool = False) -> None:
        self.answer = answer
        self._includes_usage = includes_usage
        self._ids = {
            "id": f"chatcmpl-{answer.run.run_id}",
            "created": answer.created,
            "model": MODEL_NAME,
        }

    async def write(self) -> dict[str, Any]:
        """Wait for the complete answer and return it as a chat completion object."""
        text = "".join([part async for part in self.answer.iter_text()])
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls := self._calls():
            message = {"role": "assistant", "content": text or None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        completion = {"object": "chat.completion", "choices": [choice], "usage": self._usage()}
        return {**self._ids, **completion, "metadata": self.answer.metadata}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the completion as server-sent events."""
        yield self._chunk({"role": "assistant", "content": ""})
        async with aclosing(self.answer.iter_text()) as parts:
            async for part in parts:
                yield self._chunk({"content": part})
        if (error := self.answer.error) is not None:
            yield encode_event({"error": openai_error(error.message, error.code)})
            return
        if calls := self._calls():
            indexed = [{"index": index, **call} for index, call in enumerate(calls)]
            yield self._chunk({"tool_calls": indexed})
        yield self._chunk({}, self._finish_reason, metadata=self.answer.metadata)
        if self._includes_usage:
            last = {**self._ids, "object": "chat.completion.chunk", "choices": []}
            yield encode_event({**last, "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    @property
    def _finish_reason(self) -> str:
        return "tool_calls" if self.answer.tool_calls else "stop"

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.answer.tool_calls
        ]

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**self._ids, "object": "chat.completion.chunk", "choices": [choice], **more}
        return encode_event(chunk)

    def _usage(self) -> dict[str, int]:
        read, written = self.answer.input_tokens, self.answer.output_tokens
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
