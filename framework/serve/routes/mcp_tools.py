"""Tools of the MCP server: ``ask``, and the capabilities that the operator selects.

A tool call is a run. It is recorded in the run log, survives the client, and its questions can be
answered at the client, in the console, or over any other protocol.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from mcp import MCPError
from mcp.server.connection import allowed_log_levels
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp_types import (
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    CallToolRequestParams,
    EmptyResult,
    InputRequiredResult,
    ListToolsResult,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    SetLevelRequestParams,
    Tool,
)
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from capgraph.adapters.elicitation import elicit_answers, read_answer, supports_elicitation
from capgraph.adapters.mcp_calls import IDEMPOTENCY_META_KEY
from capgraph.adapters.mcp_server import call_result, capability_tool
from capgraph.adapters.request import parse_request
from capgraph.base.errors import CapgraphError, ConfigurationError, ValidationError
from capgraph.base.ports import Caller
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.configs.settings import ServeSettings
from capgraph.configs.suggestions import suggest_fix
from capgraph.engine.services import Services
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.planning.parameters import check_parameter_types
from capgraph.scale.agui_events import describe_progress
from capgraph.serve.problems import AnswerRefusedError, NotFoundError, public_message_line
from capgraph.serve.routes.mcp_resources import McpResources
from capgraph.serve.routes.mcp_results import STEP_KEY, McpResults, allow_open_question
from capgraph.serve.routes.mcp_tasks import Call, McpTasks, caller_of_call
from capgraph.serve.runs import Run, Runs
from capgraph.serve.threads import Threads
from capgraph.stores.run_log import OPEN_STATUSES, TERMINAL_EVENTS

ASK_TOOL = "ask"
_MAX_SESSIONS = 10_000
"""Maximum number of sessions whose log level is stored."""


class McpTools:
    """MCP tools offered by the server, each call of which is executed as a run.

    Args:
        runs: Runs of the served graph.
        threads: The users' threads.
        services: Services of the graph.
        settings: Settings of the server; ``mcp.tools`` selects the capabilities.
        resources: Resources of the server, which include the artifacts of steps.

    Raises:
        ConfigurationError: ``mcp.tools`` contains an unknown capability, or ``mcp.task_tools`` an
            unknown tool.
    """

    def __init__(
        self,
        runs: Runs,
        threads: Threads,
        services: Services,
        settings: ServeSettings,
        resources: McpResources,
    ) -> None:
        known, tools = services.registry.capabilities, settings.mcp.tools
        if unknown := sorted({*tools} - {*known} | {ASK_TOOL} & {*tools}):
            raise ConfigurationError(
                f"serve.mcp.tools contains unknown capabilities or reserved names: {unknown}.",
                fix=suggest_fix(*unknown, candidates=known),
            )
        if unknown := sorted({*settings.mcp.task_tools} - {*tools, ASK_TOOL}):
            raise ConfigurationError(
                f"serve.mcp.task_tools contains {unknown}, which serve.mcp.tools does not contain.",
                fix=suggest_fix(*unknown, candidates=[*tools, ASK_TOOL]),
            )
        self._runs, self._threads, self._services = runs, threads, services
        self._settings = settings
        self._results = McpResults(threads, resources, settings)
        self._tasks = McpTasks(runs, self._results, services, settings)
        self._log_levels: BoundedDict[str, LoggingLevel] = BoundedDict(_MAX_SESSIONS)

    def register(self, server: Server[Any]) -> None:
        """Register the request handlers of tools, tasks, and log levels with an MCP server."""
        server.add_request_handler("tools/list", PaginatedRequestParams, self._list_tools)
        # A call can return a task, which is not in the SDK's type of a tool handler's result.
        server.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        self._tasks.register(server)

    async def _set_level(self, call: Call, params: SetLevelRequestParams) -> EmptyResult:
        """Set the minimum log level of a session, for clients of earlier protocol versions."""
        self._log_levels[_session_of(call)] = params.level
        return EmptyResult()

    async def _list_tools(self, _: Call, __: PaginatedRequestParams | None) -> ListToolsResult:
        registry = self._services.registry
        tools = [
            allow_open_question(capability_tool(registry.capabilities[name], registry))
            for name in self._settings.mcp.tools
        ]
        return ListToolsResult(tools=[self._ask_tool(), *tools])

    def _ask_tool(self) -> Tool:
        description = self._services.settings.description or "Ask the agent to do something."
        return Tool(
            name=ASK_TOOL,
            description=f"{description} Give the thread of an earlier answer to go on with it.",
            input_schema={
                "type": "object",
                "properties": {
                    "message": {"type": "string", "description": "What is asked."},
                    "thread": {"type": "string", "description": "A conversation to go on with."},
                },
                "required": ["message"],
            },
        )

    async def _call_tool(self, call: Call, params: CallToolRequestParams) -> HandlerResult:
        context: Context[Any, Any] = Context(request_context=call, input_params=params)
        caller, name, arguments = caller_of_call(call), params.name, params.arguments or {}
        seconds = self._tasks.seconds_until_task(call, name)
        try:
            if context.request_state is not None:  # an answer to the run's question
                run = (await self._runs.get_turn(caller, context.request_state)).run
            elif name == ASK_TOOL:
                run = await self._start_turn(caller, arguments)
            elif name in self._settings.mcp.tools:
                idempotency_key = (call.meta or {}).get(IDEMPOTENCY_META_KEY)
                run = await self._start_capability(caller, name, arguments, idempotency_key)
            else:
                raise MCPError(INVALID_PARAMS, f"The tool {name!r} does not exist.")
            outcome = await self._follow(caller, run, context, seconds)
            if not isinstance(outcome, tuple):
                return outcome
            run, last_event = outcome
            return await self._results.read(caller, run, last_event, is_step=name != ASK_TOOL)
        except CapgraphError as exc:
            return call_result(self._services.masker.text(public_message_line(exc)), is_error=True)

    async def _start_turn(self, caller: Caller, arguments: Mapping[str, Any]) -> Run:
        message, thread = arguments.get("message"), arguments.get("thread") or uuid.uuid4().hex
        if not isinstance(message, str) or not isinstance(thread, str):
            raise ValidationError("'message' or 'thread' is not text.", fix="Send strings.")
        return await self._runs.start(caller, thread, message=message)

    async def _start_capability(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], idempotency_key: Any
    ) -> Run:
        """Start a run of a single capability. Calls with the same idempotency key share one run."""
        spec = self._services.registry.capabilities[name]
        step, contexts = parse_request(spec, arguments)
        check_parameter_types(spec, step["parameters"])
        thread = f"mcp-{compute_digest([name, idempotency_key]) if idempotency_key else uuid.uuid4().hex}"
        try:
            existing = await self._threads.get(caller, thread)
        except NotFoundError:
            await self._threads.create(caller, name, thread_id=thread, contexts=contexts)
        else:
            record = existing["results"].get(STEP_KEY)
            for open_run in existing["runs"]:
                if open_run["status"] in OPEN_STATUSES:
                    return await self._runs.get(caller, open_run["run_id"])
            if record is not None and (record["success"] or spec.effect == "once"):
                return Run("", thread, str(existing["outcome"]))
        plan = {"steps": [{"context_key": STEP_KEY, "capability": name, **step}]}
        return await self._runs.start(caller, thread, plan=plan)

    async def _follow(
        self, caller: Caller, run: Run, context: Context[Any, Any], seconds: float | None
    ) -> tuple[Run, dict[str, Any]] | HandlerResult:
        """Follow a run and its continuations, and forward their questions to the client's user.

        If the run has not ended after ``seconds``, return a task.
        """
        answers = dict(context.input_responses or {})
        call = context.request_context
        progress = _ProgressReporter(context, self._log_levels.get(_session_of(call)))
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while run.run_id:
            last_event: dict[str, Any] = {}
            try:
                async with (
                    asyncio.timeout_at(deadline),
                    aclosing(self._runs.events(caller, run.run_id)) as events,
                ):
                    async for _, last_event in events:
                        if not answers:
                            await progress.report_event(last_event)
            except TimeoutError:
                return await self._tasks.create(caller, run)
            if last_event.get("type") not in TERMINAL_EVENTS:
                message = (
                    f"The server is shutting down. The run of thread {run.thread_id!r} continues."
                )
                return call_result(f"{message} Fix: check the thread later.", is_error=True)
            interrupts = (last_event.get("outcome") or {}).get("interrupts")
            if not interrupts:
                return run, last_event
            answered_run = await self._ask_user(
                caller, run, interrupts[0]["metadata"]["capgraph"], context, answers
            )
            if not isinstance(answered_run, Run):
                return answered_run
            run, answers = answered_run, {}
        return run, {}

    async def _ask_user(
        self,
        caller: Caller,
        run: Run,
        question: Mapping[str, Any],
        context: Context[Any, Any],
        responses: Mapping[str, Any],
    ) -> Run | HandlerResult:
        """Ask the client's user a run's question until the answer is valid.

        Return the run that continues with the answer.
        """
        question_id = question["question_id"]
        # A capability may name its own question. Responses to other forms are ignored.
        form_name = str(question.get("name") or question_id)
        responses = {
            name: response
            for name, response in responses.items()
            if name == form_name or name.startswith(f"{form_name}/")
        }
        request: Any = context.request_context.request
        unanswered = self._results.open_question(run, question, request)
        turn = await self._runs.latest_turn(caller, run.thread_id)
        if turn is None or not supports_elicitation(context):
            return unanswered
        while True:
            responses_found: Any = responses or await elicit_answers(
                {form_name: question}, context, turn.turn_id
            )
            responses = {}
            if isinstance(responses_found, InputRequiredResult):
                return responses_found
            if any(
                getattr(response, "action", None) == "cancel"
                for response in responses_found.values()
            ):
                return unanswered
            try:
                return await self._runs.answer(
                    caller, question_id, read_answer(form_name, question, responses_found)
                )
            except AnswerRefusedError as exc:
                problems = [
                    f"{response['path']}: {response['message']}" for response in exc.problems
                ]
                question = {**question, "problems": problems}


def _session_of(call: Call) -> str:
    assert call.request is not None
    return str(call.request.headers.get(MCP_SESSION_ID_HEADER, ""))


class _ProgressReporter:
    """Reporter that sends a run's progress to the MCP client, also as log messages.

    Args:
        context: Context of the MCP tool call.
        level: Lowest level of log messages for a client of an earlier protocol version;
            ``None`` for no messages. Newer clients set it in each request.
    """

    def __init__(self, context: Context[Any, Any], level: LoggingLevel | None) -> None:
        self._context = context
        call = context.request_context
        is_modern = call.protocol_version in MODERN_PROTOCOL_VERSIONS
        meta = call.meta if is_modern else {LOG_LEVEL_META_KEY: level}
        self._levels = allowed_log_levels(LATEST_MODERN_VERSION, meta)
        self._steps = self._done = 0
        self._reported = 0.0

    async def report_event(self, event: Mapping[str, Any]) -> None:
        """Report a run event to the MCP client if the event is relevant to users."""
        if event["type"] == "ACTIVITY_SNAPSHOT":
            self._steps, self._done = len(event["content"]["steps"]), 0
            await self._report(0, f"Plan with {self._steps} steps")
        elif (progress := describe_progress(event)) is not None:
            self._done += event["type"] == "STEP_FINISHED"
            await self._report(*progress)

    async def _report(self, fraction: float, message: str) -> None:
        # MCP requires increasing values, even after a new plan resets the step count.
        self._reported = max(self._done + fraction, self._reported + 1e-6)
        total = float(max(self._steps, self._reported)) if self._steps else None
        await self._context.report_progress(self._reported, total, message)
        if "info" in self._levels:
            params = LoggingMessageNotificationParams(level="info", data=message, logger="capgraph")
            call = self._context.request_context
            await call.session.send_notification(
                LoggingMessageNotification(params=params), call.request_id
            )
