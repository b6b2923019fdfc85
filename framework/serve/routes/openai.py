"""The agent as a model of OpenAI's API: chat completions, responses, and the list of models."""

from __future__ import annotations

import uuid
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from capgraph.base.errors import ValidationError
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.serve.identity import caller_of
from capgraph.serve.links import thread_link
from capgraph.serve.openapi import ANY, TEXT, Operation, object_schema
from capgraph.serve.problems import BadRequestError, NotFoundError, problem_response
from capgraph.serve.routes.api import read_json_body
from capgraph.serve.routes.openai_answer import Answer
from capgraph.serve.routes.openai_chat import CompletionWriter
from capgraph.serve.routes.openai_messages import ROLES, unmatched_result_error
from capgraph.serve.routes.openai_request import (
    MODEL_NAME,
    AnswerRequest,
    check_model,
    parse_chat_request,
    parse_responses_request,
    parse_retrieval,
)
from capgraph.serve.routes.openai_responses import RESPONSE_PREFIX, ResponseWriter
from capgraph.serve.routes.openai_tools import FunctionTools, parse_tools
from capgraph.serve.runs import Run, Runs

_MODEL = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "capgraph"}
_TURN_FAILED_STATUS = 422
"""Status of a failed turn. Clients repeat a request after 409, 429, and 5xx, but not after this one."""


def routes(runs: Runs, settings: ServeSettings) -> list[Operation]:
    """Return the OpenAI-compatible routes below ``/v1``.

    Each request starts a new thread, unless ``metadata.thread_id`` or ``previous_response_id``
    selects an existing one. If the agent asks a question, the answer ends with the text of the
    question and a link to the console.

    Args:
        runs: Runs of the served graph.
        settings: Settings of the server.
    """
    api = _Endpoints(runs, settings)
    message = object_schema({"role": {"enum": list(ROLES)}}, content={}, tool_calls={})
    options = {"model": TEXT, "stream": {"type": "boolean"}, "metadata": ANY}
    chat = object_schema({"messages": {"type": "array", "items": message}}, **options)
    response = object_schema({"input": {}}, previous_response_id=TEXT, **options)
    summary = "Create a chat completion"
    return [
        Operation("POST", "/v1/chat/completions", api.create_completion, summary, ANY, body=chat),
        Operation(
            "POST", "/v1/responses", api.create_response, "Create a response", ANY, body=response
        ),
        Operation("GET", "/v1/responses/{response}", api.get_response, "Get a response", ANY),
        Operation("GET", "/v1/models", api.list_models, "List models", ANY),
        Operation("GET", "/v1/models/{model}", api.get_model, "Get a model", ANY),
    ]


class _Endpoints:
    """Handlers of the routes."""

    def __init__(self, runs: Runs, settings: ServeSettings) -> None:
        self._runs, self._settings = runs, settings

    async def create_completion(self, request: Request) -> Response:
        answer_request = parse_chat_request(await read_json_body(request))
        answer = await self._start(request, answer_request)
        writer = CompletionWriter(answer, includes_usage=answer_request.includes_usage)
        return await _respond(writer, is_streamed=answer_request.is_streamed)

    async def create_response(self, request: Request) -> Response:
        body = await read_json_body(request)
        answer_request = parse_responses_request(body)
        if (previous := body.get("previous_response_id")) is not None:
            run = await self._find_run(request, str(previous))
            answer_request = replace(answer_request, thread_id=run.thread_id)
        answer = await self._start(request, answer_request)
        writer = ResponseWriter(answer, answer_request.response_options)
        return await _respond(writer, is_streamed=answer_request.is_streamed)

    async def get_response(self, request: Request) -> Response:
        is_streamed = parse_retrieval(request.query_params)
        run = await self._find_run(request, request.path_params["response"])
        logged = await self._runs.get_logged(caller_of(request), run.run_id)
        options = logged.request.get("response_options") or {}
        answer = self._answer_of(request, run, parse_tools(options, is_nested=False))
        answer.created = int(logged.created_at)
        writer = ResponseWriter(answer, options)
        if is_streamed:
            return await _respond(writer, is_streamed=True)
        return JSONResponse(await writer.write())

    async def list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_MODEL]})

    async def get_model(self, request: Request) -> Response:
        check_model(request.path_params["model"])
        return JSONResponse(_MODEL)

    async def _start(self, request: Request, answer_request: AnswerRequest) -> Answer:
        try:
            run = await self._start_run(caller_of(request), answer_request)
        except ValidationError as exc:
            params = {
                "execution_answer_schema": answer_request.format_param,
                "client_tools": "tools",
                "instructions": answer_request.instructions_param,
            }
            param = params.get(exc.facts.get("key", ""))
            if param is None:
                raise
            raise BadRequestError(exc.message, fix=exc.fix, param=param) from exc
        answer = self._answer_of(request, run, answer_request.tools)
        answer.stop_on_disconnect = self._settings.openai.stop_on_disconnect
        return answer

    async def _start_run(self, caller: Caller, answer_request: AnswerRequest) -> Run:
        """Resume the turn that is waiting for the request's tool results, or start a new turn."""
        client_tools = answer_request.tools.client_tools
        if answer_request.tool_results:
            try:
                return await self._runs.answer_all(
                    caller,
                    answer_request.tool_results,
                    thread_id=answer_request.thread_id,
                    client_tools=client_tools,
                    answer_schema=answer_request.answer_schema,
                    response_options=answer_request.response_options,
                )
            except NotFoundError as exc:
                if answer_request.message is None:
                    call_id = next(iter(answer_request.tool_results))
                    raise unmatched_result_error(call_id, answer_request.messages_param) from exc
                # The calls were those of another model, or the answer of an earlier turn.
        return await self._runs.start(
            caller,
            answer_request.thread_id or uuid.uuid4().hex,
            message=answer_request.message,
            instructions=answer_request.instructions,
            history=answer_request.history,
            client_tools=client_tools,
            answer_schema=answer_request.answer_schema,
            response_options=answer_request.response_options,
        )

    def _answer_of(self, request: Request, run: Run, tools: FunctionTools) -> Answer:
        link = thread_link(self._settings, request, run.thread_id)
        return Answer(self._runs, caller_of(request), run, link, tools)

    async def _find_run(self, request: Request, response_id: str) -> Run:
        if not response_id.startswith(RESPONSE_PREFIX):
            raise NotFoundError("The response does not exist.", fix="Create a response.")
        run_id = response_id.removeprefix(RESPONSE_PREFIX)
        return await self._runs.get(caller_of(request), run_id)


async def _respond(writer: CompletionWriter | ResponseWriter, *, is_streamed: bool) -> Response:
    if is_streamed:
        return StreamingResponse(writer.stream(), media_type="text/event-stream")
    document = await writer.write()
    if (error := writer.answer.error) is not None:
        return problem_response(_TURN_FAILED_STATUS, error.code, error.message)
    return JSONResponse(document)
