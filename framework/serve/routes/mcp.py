"""The agent as tools of MCP: ``ask``, and the capabilities that the operator names.

A call is a run like any other: it stands in the log, outlives the client, and can be answered by
whoever sits at the client, in the console, or by any other protocol.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from capgraph.adapters.elicitation import elicit_answers, read_answer, supports_elicitation
from capgraph.adapters.mcp import IDEMPOTENCY_META_KEY
from capgraph.adapters.mcp_server import call_result, capability_tool
from capgraph.adapters.request import parse_request, unwrap_output
from capgraph.approvals import describe_question
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    PersistenceError,
    ValidationError,
)
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.configs.suggestions import suggest_fix
from capgraph.engine.services import Services
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.serve.identity import caller_of
from capgraph.serve.links import thread_link
from capgraph.serve.problems import AnswerRefusedError, NotFoundError, public_message_line
from capgraph.serve.runs import Run, Runs
from capgraph.serve.threads import Threads
from capgraph.stores.run_log import OPEN_STATUSES, TERMINAL_EVENTS

ASK_TOOL = "ask"
_REQUEST_STATE_SECONDS = 24 * 3600.0
"""How long a client of the newest protocol may take to bring the answer to a question."""
_FAILED_STATUSES = frozenset({"failed", "stopped"})
_STEP_KEY = "call"
"""Context key of a capability that is called on its own."""
_Call = ServerRequestContext[Any, Any]


def endpoint(
    runs: Runs, threads: Threads, services: Services, settings: ServeSettings
) -> tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the route ``/mcp``, and what has to be entered while it answers.

    Args:
        runs: The runs.
        threads: The threads.
        services: What the graph runs with.
        settings: How the server answers; ``mcp.tools`` names the capabilities that are tools.

    Raises:
        ConfigurationError: ``mcp.tools`` names a capability that is not there.
    """
    known = services.registry.capabilities
    if unknown := sorted(set(settings.mcp.tools) - {*known} | {ASK_TOOL} & {*settings.mcp.tools}):
        raise ConfigurationError(
            f"serve.mcp.tools names {unknown}, and no capability that can be a tool is called so.",
            fix=suggest_fix(*unknown, candidates=known),
        )
    served = _McpEndpoint(runs, threads, services, settings)
    return [Route("/mcp", served, methods=["GET", "POST", "DELETE"])], served.run


class _McpEndpoint:
    """An MCP server whose calls are runs; an ASGI application behind the shield."""

    def __init__(
        self, runs: Runs, threads: Threads, services: Services, settings: ServeSettings
    ) -> None:
        self._runs, self._threads, self._services = runs, threads, services
        self._settings = settings
        self._server: Server[Any] = Server(
            "capgraph",
            instructions=services.settings.description or None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        state = RequestStateSecurity.ephemeral(ttl=_REQUEST_STATE_SECONDS)
        self._server.middleware.append(RequestStateBoundary(state, default_audience="capgraph"))
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Keep the sessions of clients of the older protocol, until the server ends."""
        begun = asyncio.Event()

        async def keep() -> None:
            # By which names and from whose pages it may be asked is the shield's to say, alone.
            self._manager = StreamableHTTPSessionManager(
                self._server, max_request_body_size=self._settings.max_body_bytes
            )
            async with self._manager.run():
                begun.set()
                await self._runs.wait_closed()

        # In a task of its own: whoever enters the lifespan may leave it in another one.
        task = asyncio.create_task(keep())
        await begun.wait()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: a session, and a question's state, belong to whoever opened them."""
        assert self._manager is not None, "the application's lifespan has to be entered"
        if self._runs.is_draining:
            raise PersistenceError("The server is ending.", fix="Ask again in a moment.")
        caller: Caller = scope["capgraph.caller"]
        token = AccessToken(
            token="",
            client_id="capgraph",
            scopes=[],
            subject=caller.user_id,
            claims={"iss": caller.tenant},
        )
        app = AuthContextMiddleware(self._manager.handle_request)
        await app({**scope, "user": AuthenticatedUser(token)}, receive, send)

    # --- tools ----------------------------------------------------------------------------

    async def _list_tools(self, _: _Call, __: PaginatedRequestParams | None) -> ListToolsResult:
        registry = self._services.registry
        chosen = [
            capability_tool(registry.capabilities[n], registry) for n in self._settings.mcp.tools
        ]
        return ListToolsResult(tools=[self._ask_tool(), *chosen])

    def _ask_tool(self) -> Tool:
        about = self._services.settings.description or "Ask the agent to do something."
        return Tool(
            name=ASK_TOOL,
            description=f"{about} Give the thread of an earlier answer to go on with it.",
            input_schema={
                "type": "object",
                "properties": {
                    "message": {"type": "string", "description": "What is asked."},
                    "thread": {"type": "string", "description": "A conversation to go on with."},
                },
                "required": ["message"],
            },
        )

    async def _call_tool(
        self, call: _Call, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        assert call.request is not None
        context: Context[Any, Any] = Context(request_context=call, input_params=params)
        caller, name, given = caller_of(call.request), params.name, params.arguments or {}
        try:
            if context.request_state is not None:  # an answer to what the run asked at its end
                run = await self._runs.get(caller, context.request_state)
            elif name == ASK_TOOL:
                run = await self._start_turn(caller, given)
            elif name in self._settings.mcp.tools:
                key = (call.meta or {}).get(IDEMPOTENCY_META_KEY)
                run = await self._start_capability(caller, name, given, key)
            else:
                return call_result(f"No tool is called {name!r}.", is_error=True)
            found = await self._follow(caller, run, context)
            if not isinstance(found, tuple):
                return found
            run, end = found
            if name == ASK_TOOL or end.get("type") == "RUN_ERROR":
                return _turn_result(run, end)
            return await self._step_result(caller, run.thread_id)
        except CapgraphError as exc:
            return call_result(self._services.masker.text(public_message_line(exc)), is_error=True)

    async def _start_turn(self, caller: Caller, arguments: Mapping[str, Any]) -> Run:
        message, thread = arguments.get("message"), arguments.get("thread") or uuid.uuid4().hex
        if not isinstance(message, str) or not isinstance(thread, str):
            raise ValidationError("'message' or 'thread' is not text.", fix="Send text.")
        return await self._runs.start(caller, thread, message=message)

    async def _start_capability(
        self, caller: Caller, name: str, arguments: Mapping[str, Any], idempotency_key: Any
    ) -> Run:
        """Begin a run of one capability; one with a key is begun once."""
        spec = self._services.registry.capabilities[name]
        step, contexts = parse_request(spec, arguments)
        thread = f"mcp-{compute_digest([name, idempotency_key]) if idempotency_key else uuid.uuid4().hex}"
        try:
            before = await self._threads.get(caller, thread)
        except NotFoundError:
            await self._threads.create(caller, name, thread_id=thread, contexts=contexts)
        else:
            record = before["results"].get(_STEP_KEY)
            for one in before["runs"]:
                if one["status"] in OPEN_STATUSES:
                    return await self._runs.get(caller, one["run_id"])
            if record is not None and (record["success"] or spec.effect == "once"):
                return Run("", thread, str(before["outcome"]))
        plan = {"steps": [{"context_key": _STEP_KEY, "capability": name, **step}]}
        return await self._runs.start(caller, thread, plan=plan)

    async def _follow(
        self, caller: Caller, run: Run, context: Context[Any, Any]
    ) -> tuple[Run, dict[str, Any]] | CallToolResult | InputRequiredResult:
        """Follow a run, and those that go on with it; what is asked on the way is answered here."""
        answers = dict(context.input_responses or {})
        progress = _ProgressReporter(context)
        while run.run_id:
            last: dict[str, Any] = {}
            async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
                async for _, last in events:
                    if not answers:
                        await progress.report_event(last)
            if last.get("type") not in TERMINAL_EVENTS:
                told = (
                    f"The server ends, and the run of thread {run.thread_id!r} goes on by itself."
                )
                return call_result(f"{told} Fix: look at it later.", is_error=True)
            asked = (last.get("outcome") or {}).get("interrupts")
            if not asked:
                return run, last
            found = await self._ask_user(
                caller, run, asked[0]["metadata"]["capgraph"], context, answers
            )
            if not isinstance(found, Run):
                return found
            run, answers = found, {}
        return run, {}

    async def _ask_user(
        self,
        caller: Caller,
        run: Run,
        question: Mapping[str, Any],
        context: Context[Any, Any],
        responses: Mapping[str, Any],
    ) -> Run | CallToolResult | InputRequiredResult:
        """Ask whoever sits at the client until an answer fits; the run that goes on is returned."""
        name = question["question_id"]
        left = self._input_needed_result(run, question, context)
        if not supports_elicitation(context):
            return left
        while True:
            found: Any = responses or await elicit_answers({name: question}, context, run.run_id)
            responses = {}
            if isinstance(found, InputRequiredResult):
                return found
            if any(getattr(one, "action", None) == "cancel" for one in found.values()):
                return left
            try:
                return await self._runs.answer(caller, name, read_answer(name, question, found))
            except AnswerRefusedError as exc:
                problems = [f"{one['path']}: {one['message']}" for one in exc.problems]
                question = {**question, "problems": problems}

    def _input_needed_result(
        self, run: Run, question: Mapping[str, Any], context: Context[Any, Any]
    ) -> CallToolResult:
        """Say what is asked, and where it can be answered: the question stays open."""
        request: Any = context.request_context.request
        link = thread_link(self._settings, request, run.thread_id)
        text = (
            f"A person has to decide first. {describe_question(question)}"
            f" Fix: answer at {link} or use a client with elicitation."
        )
        place = {"status": "waiting", "thread": run.thread_id, "run_id": run.run_id}
        return _with_structured_content(
            call_result(text), {**place, "question_id": question["question_id"]}
        )

    async def _step_result(self, caller: Caller, thread: str) -> CallToolResult:
        """Return what the one step of a capability's run gave."""
        state = await self._threads.state(caller, thread)
        record = (state.get("execution_step_results") or {}).get(_STEP_KEY) or {}
        if not record.get("success") or record.get("skipped"):
            last = state["messages"][-1]["content"] if state["messages"] else ""
            why = (record.get("error") or {}).get("message") or record.get("skipped") or last
            return call_result(why or "It was not run.", is_error=True)
        data = state.get("capability_context_data") or {}
        found = {kind: data[kind][key] for kind, key in (record.get("outputs") or {}).items()}
        return call_result(unwrap_output(found))


class _ProgressReporter:
    """What a client is told of a run while it goes on."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context
        self._steps = self._done = 0
        self._reported = 0.0

    async def report_event(self, event: Mapping[str, Any]) -> None:
        """Tell of an event what a person would want to know."""
        match event["type"]:
            case "ACTIVITY_SNAPSHOT":
                self._steps, self._done = len(event["content"]["steps"]), 0
                await self._report(0, f"A plan of {self._steps} steps")
            case "STEP_STARTED":
                await self._report(0, f"{event['stepName']} began")
            case "STEP_FINISHED":
                self._done += 1
                await self._report(0, f"{event['stepName']} ended")
            case "ACTIVITY_DELTA":
                told = {one["path"].rpartition("/")[2]: one["value"] for one in event["patch"]}
                if "progress" in told:
                    await self._report(told["progress"] or 0, str(told.get("message") or ""))

    async def _report(self, fraction: float, message: str) -> None:
        # Each has to be more than the one before, also where a plan is made anew.
        self._reported = max(self._done + fraction, self._reported + 1e-6)
        total = float(max(self._steps, self._reported)) if self._steps else None
        await self._context.report_progress(self._reported, total, message)


def _turn_result(run: Run, last_event: Mapping[str, Any]) -> CallToolResult:
    result = last_event.get("result") or {}
    status = result.get("status", "failed")
    why = (result.get("outcome") or {}).get("reason")
    text = str(last_event.get("message") or result.get("answer") or why or status)
    place = {"status": status, "thread": run.thread_id, "run_id": run.run_id, "answer": text}
    return _with_structured_content(call_result(text, is_error=status in _FAILED_STATUSES), place)


def _with_structured_content(result: CallToolResult, content: Mapping[str, Any]) -> CallToolResult:
    """Add where programs find the turn again."""
    return result.model_copy(update={"structured_content": dict(content)})
