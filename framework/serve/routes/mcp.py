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

from capgraph.adapters.elicitation import answer_of, can_ask, elicited
from capgraph.adapters.mcp import KEY
from capgraph.adapters.mcp_server import said_of, tool_of
from capgraph.adapters.request import plain_output, request_of
from capgraph.approvals import question_text
from capgraph.base.errors import (
    CapgraphError,
    ConfigurationError,
    PersistenceError,
    ValidationError,
)
from capgraph.base.ports import Caller
from capgraph.configs.near import use_known
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.pipeline.effect_ledger import digest_of
from capgraph.serve.identity import caller_of
from capgraph.serve.links import thread_link
from capgraph.serve.problems import AnswerRefusedError, NotFoundError, public_line
from capgraph.serve.runs import Run, Runs
from capgraph.serve.threads import Threads
from capgraph.stores.run_log import ENDS, OPEN

ASK = "ask"
_STATE_SECONDS = 24 * 3600.0
"""How long a client of the newest protocol may take to bring the answer to a question."""
_FAILED = frozenset({"failed", "stopped"})
_STEP = "call"
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
    if unknown := sorted(set(settings.mcp.tools) - {*known} | {ASK} & {*settings.mcp.tools}):
        raise ConfigurationError(
            f"serve.mcp.tools names {unknown}, and no capability that can be a tool is called so.",
            fix=use_known(*unknown, known=known),
        )
    served = _Served(runs, threads, services, settings)
    return [Route("/mcp", served, methods=["GET", "POST", "DELETE"])], served.running


class _Served:
    """An MCP server whose calls are runs; an ASGI application behind the shield."""

    def __init__(
        self, runs: Runs, threads: Threads, services: Services, settings: ServeSettings
    ) -> None:
        self._runs, self._threads, self._services = runs, threads, services
        self._settings = settings
        self._server: Server[Any] = Server(
            "capgraph",
            instructions=services.settings.description or None,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        state = RequestStateSecurity.ephemeral(ttl=_STATE_SECONDS)
        self._server.middleware.append(RequestStateBoundary(state, default_audience="capgraph"))
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the sessions of clients of the older protocol, until the server ends."""
        begun = asyncio.Event()

        async def keep() -> None:
            # By which names and from whose pages it may be asked is the shield's to say, alone.
            self._manager = StreamableHTTPSessionManager(
                self._server, max_request_body_size=self._settings.max_body_bytes
            )
            async with self._manager.run():
                begun.set()
                await self._runs.closed()

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
        if self._runs.draining:
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

    async def _list(self, _: _Call, __: PaginatedRequestParams | None) -> ListToolsResult:
        registry = self._services.registry
        chosen = [tool_of(registry.capabilities[n], registry) for n in self._settings.mcp.tools]
        return ListToolsResult(tools=[self._ask_tool(), *chosen])

    def _ask_tool(self) -> Tool:
        about = self._services.settings.description or "Ask the agent to do something."
        return Tool(
            name=ASK,
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

    async def _call(
        self, call: _Call, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        assert call.request is not None
        context: Context[Any, Any] = Context(request_context=call, input_params=params)
        caller, name, given = caller_of(call.request), params.name, params.arguments or {}
        try:
            if context.request_state is not None:  # an answer to what the run asked at its end
                run = await self._runs.get(caller, context.request_state)
            elif name == ASK:
                run = await self._ask(caller, given)
            elif name in self._settings.mcp.tools:
                key = (call.meta or {}).get(KEY)
                run = await self._begin(caller, name, given, key)
            else:
                return said_of(f"No tool is called {name!r}.", wrong=True)
            found = await self._followed(caller, run, context)
            if not isinstance(found, tuple):
                return found
            run, end = found
            if name == ASK or end.get("type") == "RUN_ERROR":
                return _answer(run, end)
            return await self._given(caller, run.thread_id)
        except CapgraphError as exc:
            return said_of(self._services.masker.text(public_line(exc)), wrong=True)

    async def _ask(self, caller: Caller, given: Mapping[str, Any]) -> Run:
        message, thread = given.get("message"), given.get("thread") or uuid.uuid4().hex
        if not isinstance(message, str) or not isinstance(thread, str):
            raise ValidationError("'message' or 'thread' is not text.", fix="Send text.")
        return await self._runs.start(caller, thread, message=message)

    async def _begin(self, caller: Caller, name: str, given: Mapping[str, Any], key: Any) -> Run:
        """Begin a run of one capability; one with a key is begun once."""
        spec = self._services.registry.capabilities[name]
        step, contexts = request_of(spec, given)
        thread = f"mcp-{digest_of([name, key]) if key else uuid.uuid4().hex}"
        try:
            before = await self._threads.get(caller, thread)
        except NotFoundError:
            await self._threads.create(caller, name, thread_id=thread, contexts=contexts)
        else:
            record = before["results"].get(_STEP)
            for one in before["runs"]:
                if one["status"] in OPEN:
                    return await self._runs.get(caller, one["run_id"])
            if record is not None and (record["success"] or spec.effect == "once"):
                return Run("", thread, str(before["outcome"]))
        plan = {"steps": [{"context_key": _STEP, "capability": name, **step}]}
        return await self._runs.start(caller, thread, plan=plan)

    async def _followed(
        self, caller: Caller, run: Run, context: Context[Any, Any]
    ) -> tuple[Run, dict[str, Any]] | CallToolResult | InputRequiredResult:
        """Follow a run, and those that go on with it; what is asked on the way is answered here."""
        answers = dict(context.input_responses or {})
        progress = _Progress(context)
        while run.run_id:
            last: dict[str, Any] = {}
            async with aclosing(self._runs.events(caller, run.run_id)) as events:  # type: ignore[type-var]
                async for _, last in events:
                    if not answers:
                        await progress.tell(last)
            if last.get("type") not in ENDS:
                told = (
                    f"The server ends, and the run of thread {run.thread_id!r} goes on by itself."
                )
                return said_of(f"{told} Fix: look at it later.", wrong=True)
            asked = (last.get("outcome") or {}).get("interrupts")
            if not asked:
                return run, last
            found = await self._asked(
                caller, run, asked[0]["metadata"]["capgraph"], context, answers
            )
            if not isinstance(found, Run):
                return found
            run, answers = found, {}
        return run, {}

    async def _asked(
        self,
        caller: Caller,
        run: Run,
        question: Mapping[str, Any],
        context: Context[Any, Any],
        answers: Mapping[str, Any],
    ) -> Run | CallToolResult | InputRequiredResult:
        """Ask whoever sits at the client until an answer fits; the run that goes on is returned."""
        name = question["question_id"]
        left = self._left(run, question, context)
        if not can_ask(context):
            return left
        while True:
            found: Any = answers or await elicited({name: question}, context, run.run_id)
            answers = {}
            if isinstance(found, InputRequiredResult):
                return found
            if any(getattr(one, "action", None) == "cancel" for one in found.values()):
                return left
            try:
                return await self._runs.answer(caller, name, answer_of(name, question, found))
            except AnswerRefusedError as exc:
                problems = [f"{one['path']}: {one['message']}" for one in exc.problems]
                question = {**question, "problems": problems}

    def _left(
        self, run: Run, question: Mapping[str, Any], context: Context[Any, Any]
    ) -> CallToolResult:
        """Say what is asked, and where it can be answered: the question stays open."""
        request: Any = context.request_context.request
        link = thread_link(self._settings, request, run.thread_id)
        text = (
            f"A person has to decide first. {question_text(question)}"
            f" Fix: answer at {link} or use a client with elicitation."
        )
        place = {"status": "waiting", "thread": run.thread_id, "run_id": run.run_id}
        return _placed(said_of(text), {**place, "question_id": question["question_id"]})

    async def _given(self, caller: Caller, thread: str) -> CallToolResult:
        """Return what the one step of a capability's run gave."""
        state = await self._threads.state(caller, thread)
        record = (state.get("execution_step_results") or {}).get(_STEP) or {}
        if not record.get("success") or record.get("skipped"):
            last = state["messages"][-1]["content"] if state["messages"] else ""
            why = (record.get("error") or {}).get("message") or record.get("skipped") or last
            return said_of(why or "It was not run.", wrong=True)
        data = state.get("capability_context_data") or {}
        found = {kind: data[kind][key] for kind, key in (record.get("outputs") or {}).items()}
        return said_of(plain_output(found))


class _Progress:
    """What a client is told of a run while it goes on."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context
        self._steps = self._done = 0
        self._told = 0.0

    async def tell(self, event: Mapping[str, Any]) -> None:
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
        self._told = max(self._done + fraction, self._told + 1e-6)
        total = float(max(self._steps, self._told)) if self._steps else None
        await self._context.report_progress(self._told, total, message)


def _answer(run: Run, end: Mapping[str, Any]) -> CallToolResult:
    result = end.get("result") or {}
    status = result.get("status", "failed")
    why = (result.get("outcome") or {}).get("reason")
    text = str(end.get("message") or result.get("answer") or why or status)
    place = {"status": status, "thread": run.thread_id, "run_id": run.run_id, "answer": text}
    return _placed(said_of(text, wrong=status in _FAILED), place)


def _placed(said: CallToolResult, place: Mapping[str, Any]) -> CallToolResult:
    """Add where programs find the turn again."""
    return said.model_copy(update={"structured_content": dict(place)})
