"""Chat completions in the format of OpenAI's API."""

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
from capgraph.stores.run_log import TERMINAL_EVENTS

MODEL_NAME = "capgraph"
_ROLES = frozenset({"system", "developer", "user", "assistant"})


def routes(runs: Runs, settings: ServeSettings) -> list[Operation]:
    """Return the routes below ``/v1``.

    Each request starts a thread of its own unless ``metadata.thread_id`` continues one. A question
    ends the completion with its text and a link to the console. The field ``user`` is ignored.

    Args:
        runs: The runs.
        settings: Settings of the server.
    """

    async def completions(request: Request) -> Response:
        body = await read_json_body(request)
        if (model := body.get("model", MODEL_NAME)) != MODEL_NAME:
            detail = f"The model {str(model)[:100]!r} does not exist."
            return problem_response(404, "CG-NOT-FOUND", detail, f"Use {MODEL_NAME!r}.")
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
        model_object = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "capgraph"}
        return JSONResponse({"object": "list", "data": [model_object]})

    async def model(request: Request) -> Response:
        if request.path_params["model"] != MODEL_NAME:
            return problem_response(
                404, "CG-NOT-FOUND", "The model does not exist.", f"Use {MODEL_NAME!r}."
            )
        model_object = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "capgraph"}
        return JSONResponse(model_object)

    message_schema = object_schema({"role": {"enum": sorted(_ROLES)}, "content": TEXT})
    body = object_schema(
        {"messages": {"type": "array", "items": message_schema}},
        model=TEXT,
        stream={"type": "boolean"},
        metadata=ANY,
    )
    summary = "Create a chat completion"
    return [
        Operation("POST", "/v1/chat/completions", completions, summary, ANY, body=body),
        Operation("GET", "/v1/models", models, "List models", ANY),
        Operation("GET", "/v1/models/{model}", model, "Get a model", ANY),
    ]


def _parse_request(body: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]], str | None]:
    """Return the message, the earlier messages, and the thread to continue.

    Raises:
        BadRequestError: The messages are invalid or do not end with a user message.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(
            "The request has no messages.", fix='Send {"messages": [{"role": …}]}.'
        )
    parsed = [_parse_message(message, index) for index, message in enumerate(messages)]
    if parsed[-1]["role"] != "user" or not parsed[-1]["content"].strip():
        raise BadRequestError(
            "The last message is empty or not a user message.", fix="End with a user message."
        )
    metadata = body.get("metadata")
    thread = metadata.get("thread_id") if isinstance(metadata, Mapping) else None
    if thread is not None and not isinstance(thread, str):
        raise BadRequestError("metadata.thread_id is not text.", fix="Send the ID of a thread.")
    return parsed[-1]["content"], parsed[:-1], thread


def _parse_message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise BadRequestError(
            f"Invalid {where}.role {str(role)[:40]!r}.",
            fix=f"Use one of {', '.join(sorted(_ROLES))}.",
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
    """A completion made of the events of a run."""

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
        """Wait for the run and return the complete response."""
        text = "".join([part async for part in self._iter_text()])
        if self._error is not None:
            return problem_response(500, self._error["code"], self._error["message"])
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        metadata = {"thread_id": self._run.thread_id, "run_id": self._run.run_id}
        completion = {"object": "chat.completion", "choices": [choice], "usage": self._usage}
        return JSONResponse({**self._about, **completion, "metadata": metadata})

    async def stream(self, include_usage: bool) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events."""
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
        async with aclosing(events) as run_events:  # type: ignore[type-var]
            async for _, event in run_events:
                kind = event["type"]
                if kind == "TEXT_MESSAGE_CONTENT":
                    streamed += event["delta"]
                    yield event["delta"]
                elif kind == "CUSTOM" and event["name"] == "capgraph.answer_anew":
                    streamed = ""
                    yield "\n\n"
                elif kind in TERMINAL_EVENTS:
                    for used in event.get("usage") or ():
                        self._add_usage(used)
                    if kind == "RUN_ERROR":
                        self._error = openai_error(event["message"], event.get("code") or "CG-000")
                        continue
                    for part in self._remaining_text(event, streamed):
                        yield part

    def _remaining_text(self, end: Mapping[str, Any], streamed: str) -> list[str]:
        """Return the text of the last event that was not streamed."""
        outcome = end.get("outcome") or {}
        if outcome.get("type") != "interrupt":
            answer = str((end.get("result") or {}).get("answer") or "")
            return [answer] if not streamed and answer else []
        questions = [_question_text(interrupt) for interrupt in outcome["interrupts"]]
        text = "\n\n".join([*questions, f"Answer here: {self._link}"])
        return [f"\n\n{text}" if streamed else text]

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        self._usage["prompt_tokens"] += usage.get("inputTokens") or 0
        self._usage["completion_tokens"] += usage.get("outputTokens") or 0
        self._usage["total_tokens"] = (
            self._usage["prompt_tokens"] + self._usage["completion_tokens"]
        )


def _question_text(interrupt: Mapping[str, Any]) -> str:
    """Return the text of a question, with the description and the parameters of each step."""
    question = interrupt["metadata"]["capgraph"]
    lines = []
    for step in question.get("steps") or ():
        parameters = json.dumps(step.get("parameters") or {}, ensure_ascii=False)
        texts = [step.get("description"), step.get("task_objective"), step.get("reason")]
        text = " ".join(str(text_part) for text_part in dict.fromkeys(texts) if text_part)
        lines.append(
            f"- {step['context_key']} ({step['capability']}): {text} Parameters: {parameters}"
        )
    listed = "\n".join(lines) or str(interrupt.get("message") or "")
    return f"A person must decide first:\n{listed}"
