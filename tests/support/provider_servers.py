"""Endpoints on loopback in the wire formats of Anthropic and Google that answer from a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.support.openai_server import TEXT, OpenAIServer, Reply, WireHandler, serve

_PIECES = re.compile(r"\S+\s*|\s+")
CACHED = 7


def anthropic_server() -> AbstractContextManager[OpenAIServer]:
    """Serve the Messages API until the block ends."""
    return serve(_Anthropic, "", _anthropic_kind, OpenAIServer)


def google_server() -> AbstractContextManager[OpenAIServer]:
    """Serve ``generateContent`` and ``streamGenerateContent`` until the block ends."""
    return serve(_Google, "", _google_kind, OpenAIServer)


def _tokens(body: dict[str, Any], reply: Reply) -> tuple[int, int]:
    return len(json.dumps(body).split()), len(reply.content.split())


def _anthropic_kind(body: dict[str, Any]) -> str:
    return str(body["tools"][0]["name"]) if body.get("tools") else TEXT


class _Anthropic(WireHandler):
    def serves(self) -> bool:
        return self.path.split("?")[0] == "/v1/messages"

    def error(self, reply: Reply) -> dict[str, Any]:
        told = {"type": reply.code, "message": f"scripted {reply.status} {reply.code}"}
        return {"type": "error", "error": told}

    def whole(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        asked, told = _tokens(body, reply)
        block: dict[str, Any] = {"type": "text", "text": reply.refusal or reply.content}
        stop = {"stop": "end_turn", "length": "max_tokens", "": None}[reply.finish]
        if reply.refusal is not None:
            stop = "refusal"
        elif body.get("tools") and not reply.as_text:
            block = {"type": "tool_use", "id": "toolu_1", "name": _anthropic_kind(body)}
            block["input"] = reply.data
            stop = "tool_use" if stop == "end_turn" else stop
        # What was read from the cache is counted apart from the other input.
        usage = {
            "input_tokens": asked,
            "output_tokens": told,
            "cache_read_input_tokens": CACHED,
            "cache_creation_input_tokens": 0,
        }
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [block],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def pieces(self, body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
        whole = self.whole(body, reply)
        [block] = whole["content"]
        called = block["type"] == "tool_use"
        empty = {**block, **({"input": {}} if called else {"text": ""})}
        text = json.dumps(block["input"]) if called else block["text"]
        stop, usage = whole["stop_reason"], whole["usage"]
        begun = {
            **whole,
            "content": [],
            "stop_reason": None,
            "usage": {**usage, "output_tokens": 1},
        }
        yield {"type": "message_start", "message": begun}
        yield {
            "type": "content_block_start",
            "index": 0,
            "content_block": empty,
        }
        for piece in _PIECES.findall(text):
            delta = {"type": "text_delta", "text": piece}
            if called:
                delta = {"type": "input_json_delta", "partial_json": piece}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        ended = {"stop_reason": stop, "stop_sequence": None}
        # The last event counts everything, as the service does.
        yield {"type": "message_delta", "delta": ended, "usage": usage}
        yield {"type": "message_stop"}


def _google_kind(body: dict[str, Any]) -> str:
    for tool in body.get("tools") or []:
        for declared in tool.get("functionDeclarations") or []:
            return str(declared["name"])
    wanted = body.get("generationConfig") or {}
    form = wanted.get("responseJsonSchema") or wanted.get("responseSchema")
    return str(form.get("title") or "form") if form else TEXT


class _Google(WireHandler):
    def serves(self) -> bool:
        return "/models/" in self.path and "enerateContent" in self.path

    def streams(self, body: dict[str, Any]) -> bool:
        return ":streamGenerateContent" in self.path

    def error(self, reply: Reply) -> dict[str, Any]:
        status = 503 if reply.status == 200 else reply.status  # what has begun goes out with 200
        told = {"code": status, "message": f"scripted {status}", "status": reply.code}
        return {"error": told}

    def whole(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        part: dict[str, Any] = {"text": reply.content}
        if body.get("tools") and not reply.as_text:
            part = {"functionCall": {"name": _google_kind(body), "args": reply.data}}
        return self._piece(
            body, reply, part, {"stop": "STOP", "length": "MAX_TOKENS", "": None}[reply.finish]
        )

    def pieces(self, body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
        texts = _PIECES.findall(reply.content)
        for number, text in enumerate(texts, 1):
            last = {"stop": "STOP", "length": "MAX_TOKENS", "": None}[reply.finish]
            yield self._piece(body, reply, {"text": text}, last if number == len(texts) else None)

    def _piece(
        self, body: dict[str, Any], reply: Reply, part: dict[str, Any], end: str | None
    ) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if end:
            candidate["finishReason"] = end
        piece: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-test"}
        if end:
            asked, told = _tokens(body, reply)
            piece["usageMetadata"] = {
                "promptTokenCount": asked,
                "candidatesTokenCount": told,
                "totalTokenCount": asked + told,
                "cachedContentTokenCount": CACHED,
            }
        return piece
