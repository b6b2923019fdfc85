"""The agent as a chat model of OpenAI's API, for the many clients that speak it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.serve.identity import caller_of
from capgraph.serve.links import thread_link
from capgraph.serve.openapi import ANY, TEXT, Operation, object_schema
from capgraph.serve.problems import BadRequestError, openai_error, problem_response
from capgraph.serve.routes.api import read_json_body
from capgraph.serve.runs import Run, Runs

MODEL_NAME = "capgraph"
_ROLES = frozenset({"system", "developer", "user", "assistant"})


def routes(runs: Runs, settings: ServeSettings) -> list[Operation]:
    """Return the routes below ``/v1``.

    A conversation that a client sends is a thread of its own; ``metadata.thread_id`` goes on with
    one. A question ends the answer, with its text and the address where it can be answered. What a
    client says of ``user`` is nobody's identity.

    Args:
        runs: The runs.
        settings: How the server answers.
    """

    async def completions(request: Request) -> Response:
        body = await read_json_body(request)
        if (model := body.get("model", MODEL_NAME)) != MODEL_NAME:
            told = f"There is no model {str(model)[:100]!r}."
            return problem_response(404, "CG-NOT-FOUND", told, f"Use {MODEL_NAME!r}.")
        caller = caller_of(request)
        message, history, thread = _parse_request(body)
        run = await runs.start(
            caller, thread or uuid.uuid4().hex, message=message, history=None if thread else history
        )
        answer = _Completion(runs, caller, run, thread_link(settings, request, run.thread_id))
        if body.get("stream"):
            options = body.get("stream_options")
            usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
            return StreamingResponse(answer.stream(usage), media_type="text/event-stream")
        return await answer.to_response()

    async def models(_: Request) -> Response:
        about = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "capgraph"}
        return JSONResponse({"object": "list", "data": [about]})

    async def model(request: Request) -> Response:
        if request.path_params["model"] != MODEL_NAME:
            return problem_response(
                404, "CG-NOT-FOUND", "There is no such model.", f"Use {MODEL_NAME!r}."
            )
        about = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "capgraph"}
        return JSONResponse(about)

    said = object_schema({"role": {"enum": sorted(_ROLES)}, "content": TEXT})
    body = object_schema(
        {"messages": {"type": "array", "items": said}},
        model=TEXT,
        stream={"type": "boolean"},
        metadata=ANY,
    )
    asked = "Ask as a chat model of OpenAI's API"
    return [
        Operation("POST", "/v1/chat/completions", completions, asked, ANY, body=body),
        Operation("GET", "/v1/models", models, "List the models of OpenAI's API", ANY),
        Operation("GET", "/v1/models/{model}", model, "Read a model of OpenAI's API", ANY),
    ]


def _parse_request(body: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]], str | None]:
    """Return the message, what was said before, and the thread that a request goes on with.

    Raises:
        BadRequestError: There is no conversation that ends with a message of the user.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("There are no messages.", fix='Send {"messages": [{"role": …}]}.')
    said = [_parse_message(one, place) for place, one in enumerate(messages)]
    if said[-1]["role"] != "user" or not said[-1]["content"].strip():
        raise BadRequestError(
            "The last message is not of the user, or is empty.", fix="End with what is asked."
        )
    metadata = body.get("metadata")
    thread = metadata.get("thread_id") if isinstance(metadata, Mapping) else None
    if thread is not None and not isinstance(thread, str):
        raise BadRequestError("metadata.thread_id is no text.", fix="Send the id of a thread.")
    return said[-1]["content"], said[:-1], thread


def _parse_message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise BadRequestError(
            f"{where}.role is {str(role)[:40]!r}.", fix=f"Use one of {', '.join(sorted(_ROLES))}."
        )
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part.get("text")
            if isinstance(part, Mapping) and part.get("type") in ("text", "input_text")
            else None
            for part in content
        ]
        content = None if None in parts else "\n".join(map(str, parts))
    if not isinstance(content, str):
        raise BadRequestError(f"{where}.content is not text.", fix="Send text.")
    return {"role": "system" if role == "developer" else role, "content": content}


class _Completion:
    """The answer to one request, from the events of its run."""

    def __init__(self, runs: Runs, caller: Caller, run: Run, link: str) -> None:
        self._runs, self._caller, self._run, self._link = runs, caller, run, link
        self._about = {
            "id": f"chatcmpl-{run.run_id}",
            "created": int(time.time()),
            "model": MODEL_NAME,
        }
        self._error: dict[str, str] | None = None
        self._usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

    async def to_response(self) -> Response:
        """Return the answer when it is there."""
        text = "".join([part async for part in self._iter_text()])
        if self._error is not None:
            return problem_response(500, self._error["code"], self._error["message"])
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        place = {"thread_id": self._run.thread_id, "run_id": self._run.run_id}
        whole = {"object": "chat.completion", "choices": [choice], "usage": self._usage}
        return JSONResponse({**self._about, **whole, "metadata": place})

    async def stream(self, include_usage: bool) -> AsyncIterator[bytes]:
        """Yield the answer as it comes."""
        yield self._chunk({"role": "assistant", "content": ""})
        async with aclosing(self._iter_text()) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield self._chunk({"content": part})
        if self._error is not None:
            yield b"data: " + json.dumps({"error": self._error}).encode() + b"\n\n"
            return
        yield self._chunk({}, "stop")
        if include_usage:
            last = {**self._about, "object": "chat.completion.chunk", "choices": []}
            yield b"data: " + json.dumps({**last, "usage": self._usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**self._about, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"

    async def _iter_text(self) -> AsyncIterator[str]:
        streamed = ""
        events = self._runs.events(self._caller, self._run.run_id)
        async with aclosing(events) as told:  # type: ignore[type-var]
            async for _, event in told:
                kind = event["type"]
                if kind == "TEXT_MESSAGE_CONTENT":
                    streamed += event["delta"]
                    yield event["delta"]
                elif kind == "CUSTOM" and event["name"] == "capgraph.answer_anew":
                    streamed = ""
                    yield "\n\n"
                elif kind == "RUN_ERROR":
                    self._error = openai_error(event["message"], event.get("code") or "CG-000")
                elif kind == "RUN_FINISHED":
                    for used in event.get("usage") or ():
                        self._add_usage(used)
                    for part in self._remaining_text(event, streamed):
                        yield part

    def _remaining_text(self, end: Mapping[str, Any], streamed: str) -> list[str]:
        """Return what the end of a run says that was not streamed."""
        outcome = end.get("outcome") or {}
        if outcome.get("type") != "interrupt":
            answer = str((end.get("result") or {}).get("answer") or "")
            return [answer] if not streamed and answer else []
        asked = [_question_text(one) for one in outcome["interrupts"]]
        told = "\n\n".join([*asked, f"Answer here: {self._link}"])
        return [f"\n\n{told}" if streamed else told]

    def _add_usage(self, used: Mapping[str, Any]) -> None:
        self._usage["prompt_tokens"] += used.get("inputTokens") or 0
        self._usage["completion_tokens"] += used.get("outputTokens") or 0
        self._usage["total_tokens"] = (
            self._usage["prompt_tokens"] + self._usage["completion_tokens"]
        )


def _question_text(interrupt: Mapping[str, Any]) -> str:
    """Say what is asked: of each step, what it does and with what."""
    about = interrupt["metadata"]["capgraph"]
    lines = []
    for step in about.get("steps") or ():
        parameters = json.dumps(step.get("parameters") or {}, ensure_ascii=False)
        told = [step.get("description"), step.get("task_objective"), step.get("reason")]
        text = " ".join(str(one) for one in dict.fromkeys(told) if one)
        lines.append(
            f"- {step['context_key']} ({step['capability']}): {text} Parameters: {parameters}"
        )
    listed = "\n".join(lines) or str(interrupt.get("message") or "")
    return f"A person has to decide first:\n{listed}"
