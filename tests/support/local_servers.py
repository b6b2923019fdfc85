"""Servers on loopback that deviate from OpenAI's API as llama.cpp, Ollama, and vLLM do.

All three ignore a ``tool_choice`` that names a function and return what the model writes as text. None
reports the usage of a stream. Their errors differ in status and form. Each is written down here as
the server sends it; ``context_tokens`` bounds the prompt, in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.support.openai_server import OpenAIHandler, OpenAIServer, Reply, serve

FORM, TEXT = "form", "text"
LOADING = Reply(status=503, code="loading")


class LocalServer(OpenAIServer):
    """A running server, with a bounded context and the names of its models."""

    context_tokens: int | None = None
    models: tuple[str, ...] = ("qwen2.5-coder-1.5b",)

    def answer(self, body: dict[str, Any]) -> Reply:
        words = sum(len(str(message.get("content")).split()) for message in body["messages"])
        if self.context_tokens is not None and words > self.context_tokens:
            kind = self._kind_of(body)
            self.requests.append((kind, body))
            return Reply(status=400, code="context", text=str(words))
        reply = super().answer(body)
        forced = isinstance(body.get("tool_choice"), dict)
        if forced and reply.data is not None:  # the choice is ignored, and so is the form
            return Reply(text=f"```json\n{json.dumps(reply.data)}\n```", delay=reply.delay)
        return reply


class _LocalHandler(OpenAIHandler):
    def do_GET(self) -> None:
        models = self.server.script.models  # type: ignore[attr-defined]
        found = self.listing(models)
        status = 200 if found is not None else 404
        self._send(status, json.dumps(found or {"error": "404 page not found"}), {})

    def listing(self, models: tuple[str, ...]) -> dict[str, Any] | None:
        """Return the answer to a GET request; ``None`` for an unknown path."""
        if self.path == "/v1/models":
            return {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
        return None

    def pieces(self, body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
        return super().pieces({**body, "stream_options": None}, reply)


class _LlamaCpp(_LocalHandler):
    def listing(self, models: tuple[str, ...]) -> dict[str, Any] | None:
        return {"status": "ok"} if self.path == "/health" else super().listing(models)

    def error(self, reply: Reply) -> dict[str, Any]:
        told: dict[str, Any] = {"code": reply.status, "type": "server_error", "message": reply.text}
        if reply.code == "context":
            words, limit = int(reply.text), self.server.script.context_tokens  # type: ignore[attr-defined]
            text = f"request ({words} tokens) exceeds the available context size ({limit} tokens)"
            told |= {"type": "exceed_context_size_error", "message": f"{text}, try increasing it"}
            told |= {"n_prompt_tokens": words, "n_ctx": limit}
        elif reply.code == "loading":
            told |= {"type": "unavailable_error", "message": "Loading model"}
        return {"error": told}


class _Ollama(_LocalHandler):
    def listing(self, models: tuple[str, ...]) -> dict[str, Any] | None:
        if self.path == "/api/tags":
            return {"models": [{"name": name, "model": name} for name in models]}
        return super().listing(models)

    def error(self, reply: Reply) -> dict[str, Any]:
        text = reply.text or "llm server loading model"
        if reply.code == "context":
            text = "the input length exceeds the context length"
        return {"error": {"message": text, "type": "api_error", "param": None, "code": None}}


class _Vllm(_LocalHandler):
    def error(self, reply: Reply) -> dict[str, Any]:
        text = reply.text
        if reply.code == "context":
            limit = self.server.script.context_tokens  # type: ignore[attr-defined]
            text = (
                f"This model's maximum context length is {limit} tokens. However, you requested"
                f" {reply.text} tokens in the messages. Please reduce the length of the messages."
            )
        return {
            "object": "error",
            "message": text,
            "type": "BadRequestError",
            "param": None,
            "code": reply.status,
        }


def _kind(body: dict[str, Any]) -> str:
    return FORM if body.get("response_format") or body.get("tools") else TEXT


def llama_cpp_server() -> AbstractContextManager[LocalServer]:
    """Serve as llama.cpp's ``llama-server`` does, until the block ends."""
    return serve(_LlamaCpp, "/v1", _kind, LocalServer)


def ollama_server() -> AbstractContextManager[LocalServer]:
    """Serve as Ollama does, until the block ends."""
    return serve(_Ollama, "/v1", _kind, LocalServer)


def vllm_server() -> AbstractContextManager[LocalServer]:
    """Serve as vLLM does, until the block ends."""
    return serve(_Vllm, "/v1", _kind, LocalServer)


SERVERS = {"llama.cpp": llama_cpp_server, "Ollama": ollama_server, "vLLM": vllm_server}
