"""Tasks of the MCP server: turns that clients poll, answer, and cancel.

A client that declares the tasks extension gets a task instead of waiting for a long call. The ID of
a task is the ID of the turn's first run, so a task survives the client and the server process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitRequest,
    ElicitResult,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from capgraph.adapters.elicitation import elicitation_forms, read_answer, supports_elicitation
from capgraph.base.errors import CapgraphError
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.identity import caller_of
from capgraph.serve.problems import (
    AnswerRefusedError,
    ConflictError,
    NotFoundError,
    public_message_line,
)
from capgraph.serve.routes.mcp_results import STEP_KEY, McpResults
from capgraph.serve.runs import Run, Runs, Turn

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_POLL_MILLISECONDS = 1000
_PARTIAL_ANSWER_SECONDS = 10.0
"""Maximum seconds to wait until a turn with a further question asks that question again."""
Call = ServerRequestContext[Any, Any]


class _TaskParams(RequestParams):
    task_id: str


class _UpdateTaskParams(_TaskParams):
    input_responses: dict[str, Any]


class McpTasks:
    """Tasks extension of the MCP server, which lets clients poll long tool calls.

    Args:
        runs: Runs of the served graph.
        results: Results of runs that have ended.
        services: Services of the graph.
        settings: Settings of the server.
    """

    def __init__(
        self, runs: Runs, results: McpResults, services: Services, settings: ServeSettings
    ) -> None:
        self._runs, self._results = runs, results
        self._masker, self._settings = services.masker, settings

    def register(self, server: Server[Any]) -> None:
        """Register the tasks extension and its request handlers with an MCP server."""
        server.extensions[TASKS_EXTENSION] = {}
        server.add_request_handler("tasks/get", _TaskParams, self._get)
        server.add_request_handler("tasks/update", _UpdateTaskParams, self._update)
        server.add_request_handler("tasks/cancel", _TaskParams, self._cancel)

    def seconds_until_task(self, call: Call, tool: str) -> float | None:
        """Return the seconds after which a tool call becomes a task, or ``None`` for never.

        Raises:
            MCPError: The tool runs as a task only, and the client does not declare the extension.
        """
        is_required = tool in self._settings.mcp.task_tools
        if not _supports_tasks(call):
            if is_required:
                raise _missing_extension_error()
            return None
        return 0.0 if is_required else self._settings.mcp.task_after_seconds

    async def create(self, caller: Caller, run: Run) -> dict[str, Any]:
        """Return the tool call result that tells the client that the turn continues as a task."""
        turn = await self._runs.latest_turn(caller, run.thread_id)
        assert turn is not None, "the thread has the run"
        return {"resultType": "task", **self._describe(turn), "status": "working"}

    def _describe(self, turn: Turn) -> dict[str, Any]:
        return {
            "taskId": turn.turn_id,
            "createdAt": _format_time(turn.created_at),
            "lastUpdatedAt": _format_time(turn.updated_at),
            "ttlMs": max(1, int(self._settings.keep_runs_days * 86_400_000)),
            "pollIntervalMs": _POLL_MILLISECONDS,
        }

    # --- methods ---------------------------------------------------------------------------

    async def _get(self, call: Call, params: _TaskParams) -> dict[str, Any]:
        _check_request(call, params)
        caller = caller_of_call(call)
        with self._translate_errors():
            turn = await self._runs.get_turn(caller, params.task_id)
            return {**self._describe(turn), **await self._status(call, caller, turn)}

    async def _status(self, call: Call, caller: Caller, turn: Turn) -> dict[str, Any]:
        if turn.is_active:
            return {"status": "working"}
        if turn.run.status == "waiting":
            questions = await self._runs.list_questions(caller, turn.run.thread_id)
            return self._waiting_status(call, turn.run, questions)
        last_event = await self._runs.wait_for_end(caller, turn.run.run_id)
        if turn.run.status == "stopped" and last_event.get("type") != "RUN_ERROR":
            return {"status": "cancelled"}
        if (last_event.get("result") or {}).get("error"):
            message = str(last_event.get("message") or "The run failed.")
            return {"status": "failed", "error": {"code": INTERNAL_ERROR, "message": message}}
        result = await self._results.read(
            caller, turn.run, last_event, is_step=_is_capability_call(turn)
        )
        dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {"status": "completed", "result": dumped}

    def _waiting_status(
        self, call: Call, run: Run, questions: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if not questions:
            return {"status": "working", "statusMessage": "Waits for a time or an event."}
        if not supports_elicitation(Context(request_context=call)):
            assert call.request is not None
            message = self._results.describe_wait(run, questions[0], call.request)
            return {"status": "working", "statusMessage": message}
        forms = elicitation_forms({one["question_id"]: one for one in questions})
        return {
            "status": "input_required",
            "inputRequests": {
                name: ElicitRequest(params=form).model_dump(
                    by_alias=True, mode="json", exclude_none=True
                )
                for name, form in forms.items()
            },
        }

    async def _update(self, call: Call, params: _UpdateTaskParams) -> dict[str, Any]:
        _check_request(call, params)
        caller = caller_of_call(call)
        with self._translate_errors():
            turn = await self._runs.get_turn(caller, params.task_id)
            if turn.is_active or turn.run.status != "waiting":
                return {}
            questions = await self._runs.list_questions(caller, turn.run.thread_id)
            answers = {
                question["question_id"]: read_answer(question["question_id"], question, responses)
                for question in questions
                if (responses := _find_responses(question, params.input_responses))
            }
            if answers:
                run = await self._runs.answer_all(caller, answers)
                if len(answers) < len(questions):  # so the run soon asks a question again
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PARTIAL_ANSWER_SECONDS):
                            await self._runs.wait_for_end(caller, run.run_id)
        return {}

    async def _cancel(self, call: Call, params: _TaskParams) -> dict[str, Any]:
        _check_request(call, params)
        with self._translate_errors():
            turn = await self._runs.get_turn(caller_of_call(call), params.task_id)
            if turn.is_active or turn.run.status == "waiting":
                await self._runs.stop(caller_of_call(call), turn.run.run_id)
        return {}

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except AnswerRefusedError as exc:
            problems = "; ".join(f"{one['path']}: {one['message']}" for one in exc.problems)
            raise MCPError(INVALID_PARAMS, f"The input is invalid: {problems}") from exc
        except (NotFoundError, ConflictError) as exc:
            raise MCPError(INVALID_PARAMS, exc.message) from exc
        except CapgraphError as exc:
            raise MCPError(INTERNAL_ERROR, self._masker.text(public_message_line(exc))) from exc


def caller_of_call(call: Call) -> Caller:
    """Return the caller of an MCP request."""
    assert call.request is not None
    return caller_of(call.request)


def _supports_tasks(call: Call) -> bool:
    capabilities = call.session.client_capabilities
    return (
        call.protocol_version in MODERN_PROTOCOL_VERSIONS
        and capabilities is not None
        and TASKS_EXTENSION in (capabilities.extensions or {})
    )


def _missing_extension_error() -> MCPError:
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"The client does not declare the extension {TASKS_EXTENSION}.",
        {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
    )


def _check_request(call: Call, params: _TaskParams) -> None:
    """Reject a task request if the client may not call methods of the tasks extension."""
    if call.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)
    if not _supports_tasks(call):
        raise _missing_extension_error()
    assert call.request is not None
    if decode_header_value(call.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(
            HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} does not match the parameter taskId."
        )


def _is_capability_call(turn: Turn) -> bool:
    """Return True if the turn started with an MCP tool call of a single capability."""
    steps = (turn.requests[0][1].get("plan") or {}).get("steps") or ()
    return [step.get("context_key") for step in steps] == [STEP_KEY]


def _find_responses(
    question: Mapping[str, Any], responses: Mapping[str, Any]
) -> dict[str, ElicitResult] | None:
    """Return the client's responses to a question, or ``None`` if it was not answered.

    Raises:
        MCPError: The question has several forms, and some of them have no response.
    """
    names = [*elicitation_forms({question["question_id"]: question})]
    found = {
        name: ElicitResult.model_validate(responses[name]) for name in names if name in responses
    }
    if not found or any(one.action == "cancel" for one in found.values()):
        return None
    if missing := [name for name in names if name not in found]:
        raise MCPError(INVALID_PARAMS, f"The input requests {missing} need a response, too.")
    return found


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
