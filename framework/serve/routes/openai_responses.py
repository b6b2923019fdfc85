"""Responses of OpenAI's Responses API, complete and as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from capgraph.serve.routes.openai_answer import Answer
from capgraph.serve.routes.openai_request import MODEL_NAME
from capgraph.serve.sse import encode_event

RESPONSE_PREFIX = "resp_"
"""Prefix of the response's ID. The rest is the ID of the run."""


class ResponseWriter:
    """Writer that formats an answer as a response of the OpenAI Responses API.

    Attributes:
        answer: Answer to format.

    Args:
        answer: Answer to format.
        options: Options of the request that the response repeats.
    """

    def __init__(self, answer: Answer, options: Mapping[str, Any]) -> None:
        self.answer = answer
        self._options = options
        self._message_id = f"msg_{answer.run.run_id}"
        self._number = -1

    async def write(self) -> dict[str, Any]:
        """Wait for the complete answer and return it as a response object."""
        return self._response("".join([part async for part in self.answer.iter_text()]))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events."""
        text = ""
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response(None))
        place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        async with aclosing(self.answer.iter_text()) as parts:
            async for part in parts:
                if not text:
                    item = self._message(None)
                    yield self._event("output_item.added", output_index=0, item=item)
                    yield self._event("content_part.added", **place, part=_text_part(""))
                text += part
                yield self._event("output_text.delta", **place, delta=part, logprobs=[])
        if self.answer.error is not None:
            yield self._event("failed", response=self._response(text))
            return
        for index, item in enumerate(self._output(text)):
            if item["type"] == "message":
                yield self._event("output_text.done", **place, text=text, logprobs=[])
                yield self._event("content_part.done", **place, part=_text_part(text))
            else:
                for event in self._call_events(index, item):
                    yield event
            yield self._event("output_item.done", output_index=index, item=item)
        yield self._event("completed", response=self._response(text))

    def _call_events(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        started = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("output_item.added", output_index=index, item=started)
        place = {"item_id": item["id"], "output_index": index}
        name, arguments = item["name"], item["arguments"]
        yield self._event("function_call_arguments.delta", **place, delta=arguments)
        yield self._event("function_call_arguments.done", **place, name=name, arguments=arguments)

    def _event(self, event_name: str, **fields: Any) -> bytes:
        self._number += 1
        kind = f"response.{event_name}"
        return encode_event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _response(self, text: str | None) -> dict[str, Any]:
        """Return the response object with its text, which is ``None`` while the run is active."""
        answer, error = self.answer, self.answer.error
        status = "in_progress" if text is None else "failed" if error else "completed"
        read, written = answer.input_tokens, answer.output_tokens
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
        return {
            "id": f"{RESPONSE_PREFIX}{answer.run.run_id}",
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "model": MODEL_NAME,
            "output": self._output(text or "") if status == "completed" else [],
            "error": error
            and {"code": "server_error", "message": f"{error.message} ({error.code})"},
            "usage": None if text is None else usage,
            "metadata": {**(self._options.get("metadata") or {}), **answer.metadata},
            "incomplete_details": None,
            "instructions": self._options.get("instructions"),
            "parallel_tool_calls": self._options.get("parallel_tool_calls") is not False,
            "previous_response_id": self._options.get("previous_response_id"),
            "store": True,
            "temperature": None,
            "text": self._options.get("text") or {"format": {"type": "text"}},
            "tool_choice": self._options.get("tool_choice") or "auto",
            "tools": self._options.get("tools") or [],
            "top_p": None,
        }

    def _output(self, text: str) -> list[dict[str, Any]]:
        """Return the output items of a completed response, which are its message and tool calls."""
        calls = self.answer.tool_calls
        items = [
            {
                "id": f"fc_{self.answer.run.run_id}_{number}",
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            for number, call in enumerate(calls)
        ]
        return [self._message(text), *items] if text or not calls else items

    def _message(self, text: str | None) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress" if text is None else "completed",
            "content": [] if text is None else [_text_part(text)],
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
