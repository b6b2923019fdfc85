"""Responses of OpenAI's Responses API, complete and as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from capgraph.serve.routes.openai_answer import Answer
from capgraph.serve.routes.openai_request import MODEL_NAME
from capgraph.serve.sse import encode_event

RESPONSE_PREFIX = "resp_"
"""Prefix of the response's ID. The rest is the ID of the run."""


class ResponseWriter:
    """Writer of a response.

    Attributes:
        answer: The answer.

    Args:
        answer: The answer.
        body: Body of the request, whose options the response repeats.
    """

    def __init__(self, answer: Answer, body: Mapping[str, Any]) -> None:
        self.answer = answer
        self._body = body
        self._item_id = f"msg_{answer.run.run_id}"
        self._number = -1

    async def write(self) -> dict[str, Any]:
        """Wait for the answer and return the response."""
        return self._response("".join([part async for part in self.answer.iter_text()]))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events."""
        text = ""
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        item = {"output_index": 0}
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response(None))
        yield self._event("output_item.added", **item, item=self._item(None))
        yield self._event("content_part.added", **place, part=_text_part(""))
        async with aclosing(self.answer.iter_text()) as parts:  # type: ignore[type-var]
            async for part in parts:
                text += part
                yield self._event("output_text.delta", **place, delta=part, logprobs=[])
        if self.answer.error is not None:
            yield self._event("failed", response=self._response(text))
            return
        yield self._event("output_text.done", **place, text=text, logprobs=[])
        yield self._event("content_part.done", **place, part=_text_part(text))
        yield self._event("output_item.done", **item, item=self._item(text))
        yield self._event("completed", response=self._response(text))

    def _event(self, name: str, **fields: Any) -> bytes:
        self._number += 1
        kind = f"response.{name}"
        return encode_event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _response(self, text: str | None) -> dict[str, Any]:
        """Return the response with its text; ``None`` while the run is active."""
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
            "output": [] if status != "completed" else [self._item(text)],
            "error": error
            and {"code": "server_error", "message": f"{error.message} ({error.code})"},
            "usage": None if text is None else usage,
            "metadata": {**(self._body.get("metadata") or {}), **answer.metadata},
            "incomplete_details": None,
            "instructions": self._body.get("instructions"),
            "parallel_tool_calls": False,
            "previous_response_id": self._body.get("previous_response_id"),
            "store": True,
            "temperature": None,
            "text": self._body.get("text") or {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": None,
        }

    def _item(self, text: str | None) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress" if text is None else "completed",
            "content": [] if text is None else [_text_part(text)],
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
