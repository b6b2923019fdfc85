"""Client for A2A agents, which run as capabilities."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.helpers import new_data_part, new_text_part
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskStatus,
)
from a2a.types import TaskState as State
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict
from langgraph.types import interrupt
from pydantic import BaseModel

from capgraph.adapters.authorization import (
    AuthorizationRequiredError,
    ask_for_authorization,
    authorize_step,
)
from capgraph.adapters.credentials import Credentials, UserAuth, current_user
from capgraph.adapters.external_text import (
    create_remote_failure,
    sanitize_text,
    task_with_inputs,
    unreachable_error,
)
from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.step_context import StepContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.threads import run_in_thread
from capgraph.langgraph_compat import count_consumed_answers
from capgraph.planning.problems import preview

_POLL_SECONDS = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROTOCOL_BINDINGS = ["JSONRPC", "HTTP+JSON"]
_ACTIVE_STATES = (
    State.TASK_STATE_UNSPECIFIED,
    State.TASK_STATE_SUBMITTED,
    State.TASK_STATE_WORKING,
)


@validate_arguments
async def agent_card(
    url: str, headers: Mapping[str, str] | None = None, *, origins: Collection[str] = ()
) -> AgentCard:
    """Fetch an A2A agent's card, from which ``remote_capability`` reads name and description.

    Args:
        url: URL of the agent, or of its card if it ends in ``.json``.
        headers: HTTP headers of the request.
        origins: Origins that the card may contain in addition to the URL's own, such as
            ``https://agents.example:8443``.

    Raises:
        CapabilityError: The card cannot be fetched, or it contains a URL of another origin.
    """
    async with _create_http_client(
        dict(headers or {}), await run_in_thread(ssl.create_default_context)
    ) as http:
        return await _fetch_card(url, http, origins)


def _create_http_client(
    headers: dict[str, str], tls: ssl.SSLContext, auth: httpx.Auth | None = None
) -> httpx.AsyncClient:
    # Agents may take long to answer. The step's own time limit applies.
    timeout = httpx.Timeout(30, read=None)
    return httpx.AsyncClient(headers=headers, verify=tls, timeout=timeout, auth=auth)


async def _fetch_card(url: str, http: httpx.AsyncClient, origins: Collection[str]) -> AgentCard:
    parts = urlsplit(url)
    is_card_url = parts.path.endswith(".json")
    resolver = A2ACardResolver(http, f"{parts.scheme}://{parts.netloc}" if is_card_url else url)
    try:
        card = await resolver.get_agent_card(relative_card_path=parts.path if is_card_url else None)
    except A2AClientError as exc:
        raise unreachable_error(f"The A2A agent at {url}", exc) from exc
    allowed_origins = {_parse_origin(url), *map(_parse_origin, origins)}
    # The card's author must not choose the recipient of messages and credentials.
    for interface in card.supported_interfaces:
        if _parse_origin(interface.url) not in allowed_origins:
            raise CapabilityError(
                f"The card of the A2A agent at {url} contains the URL {preview(interface.url)},"
                " which has another origin.",
                fix="Add the origin to origins=[...] if you trust it.",
                severity=ErrorSeverity.CRITICAL,
            )
    return card


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host, and port of a URL. An invalid URL returns a value that equals no origin."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return url, None, None


class _UserAuth(UserAuth, httpx.Auth):
    """Authentication of a user for the HTTP library of the A2A SDK."""


class _Message(BaseModel):
    """Message to an A2A agent. Without it, the agent receives the step's task."""

    message: str = ""
    data: dict[str, Any] | None = None


class A2AAgent:
    """Client of an A2A agent, which executes a capability's steps."""

    Parameters = _Message

    def __init__(
        self,
        agent: str | AgentCard,
        headers: dict[str, str],
        origins: Collection[str] = (),
        credentials: Credentials | None = None,
    ) -> None:
        self._agent, self._headers, self._origins = agent, headers, origins
        self._credentials = credentials
        self._tls: ssl.SSLContext | None = None
        label = agent if isinstance(agent, str) else agent.name
        self._subject = f"The A2A agent {sanitize_text(label, 200)}"

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Send a step's task to the agent and return the agent's output.

        Raises:
            CapabilityError: The agent failed, rejected the task, or cannot be reached.
            ConnectionError: The connection was lost while a message was being sent.
        """
        if self._credentials is None:
            return await self._converse(values, step, None, 0)
        count = await authorize_step(self._credentials, self._subject, step)
        while True:
            auth = _UserAuth(self._credentials, current_user(self._subject))
            try:
                return await self._converse(values, step, auth, count)
            except AuthorizationRequiredError as exc:  # the agent rejected the token
                await ask_for_authorization(exc, self._subject, step, count)
                count += 1

    async def _converse(
        self,
        values: dict[str, Any],
        step: StepContext,
        auth: _UserAuth | None,
        authorization_count: int,
    ) -> dict[str, Any]:
        """Send the task and the user's answers, and return the agent's output.

        Args:
            values: Parameters of the step.
            step: The step.
            auth: Authentication of the step's user, or ``None`` without credentials.
            authorization_count: Number of answers that belong to questions for an authorization.
        """
        text = values["message"] or ("" if values["data"] is not None else task_with_inputs(step))
        mask = auth.mask if auth is not None else lambda value: value
        async with self._open_clients(auth) as (sender, watcher, streams):

            async def send_once(part: str, text: str, data: Any, task: Mapping[str, str]) -> Any:
                message = _build_message(f"{step.idempotency_key}/{part}", text, data, task)
                reply = await step.once(part, partial(self._send, sender, message, mask))
                if {"id", "output"} & set(reply or ()):
                    return reply
                # An operator resolved the uncertain call and recorded its outcome.
                return {"output": next(iter((reply or {}).values()), {"output": None})}

            sent = await send_once("message", text, values["data"], {})
            answer_count = 0
            for _ in range(count_consumed_answers() - authorization_count):
                # Replay the answers that were sent before the step was interrupted.
                answer_count += 1
                await send_once(f"answer {answer_count}", *_split_answer(interrupt(None)), sent)
            while "id" in sent:
                task = await self._follow_task(watcher, sent["id"], streams, step, mask)
                state = task.status.state
                if state == State.TASK_STATE_COMPLETED:
                    parts = [part for artifact in task.artifacts for part in artifact.parts]
                    return dict(mask(_read_output(parts or task.status.message.parts)))
                reason = mask(_join_text(task.status.message.parts))
                if state in (State.TASK_STATE_INPUT_REQUIRED, State.TASK_STATE_AUTH_REQUIRED):
                    question = {
                        "kind": "a2a_input",
                        "agent": self._subject,
                        "message": sanitize_text(reason, 4_000),
                    }
                    answer = _split_answer(interrupt(question))
                    answer_count += 1
                    await send_once(f"answer {answer_count}", *answer, sent)
                    continue
                state_name = State.Name(state).removeprefix("TASK_STATE_").lower()
                raise create_remote_failure(f"{self._subject}, whose task is {state_name},", reason)
            return dict(sent["output"])

    @asynccontextmanager
    async def _open_clients(
        self, auth: _UserAuth | None
    ) -> AsyncIterator[tuple[Client, Client, bool]]:
        """Open two clients: one sends without waiting, the other follows tasks.

        Yields:
            The sending client, the following client, and True if the agent supports streaming.
        """
        if self._tls is None:  # reads certificate files, so not on the event loop
            self._tls = await run_in_thread(ssl.create_default_context)
        async with _create_http_client(self._headers, self._tls, auth) as http:
            card = self._agent
            if isinstance(card, str):
                card = self._agent = await _fetch_card(card, http, self._origins)
            options: dict[str, Any] = {
                "httpx_client": http,
                "supported_protocol_bindings": _PROTOCOL_BINDINGS,
            }
            sender = ClientFactory(ClientConfig(streaming=False, polling=True, **options))
            watcher = ClientFactory(ClientConfig(**options))
            yield sender.create(card), watcher.create(card), card.capabilities.streaming

    async def _send(
        self, client: Client, message: Message, mask: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Send a message and return its task ID, or the output if the agent answered at once."""
        try:
            # The SDK annotates an iterator, but returns a generator, which must be closed in its task.
            reply: Any = client.send_message(SendMessageRequest(message=message))
            async with aclosing(reply) as events:
                async for event in events:
                    if event.HasField("task"):
                        return {"id": event.task.id, "context": event.task.context_id}
                    return {"output": mask(_read_output(event.message.parts))}
        except (A2AError, httpx.TransportError) as exc:
            cause = exc.__cause__ or exc
            if isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout)):
                raise unreachable_error(self._subject, exc) from exc
            if isinstance(cause, (httpx.TransportError, TimeoutError)):
                raise ConnectionError(
                    f"{self._subject} closed the connection while a message was being sent."
                ) from exc
            reason = mask(str(exc))
            raise create_remote_failure(
                f"{self._subject}, which rejected the message,", reason
            ) from exc
        raise create_remote_failure(f"{self._subject}, whose response is empty,", "")

    async def _follow_task(
        self,
        client: Client,
        task_id: str,
        streams: bool,
        step: StepContext,
        mask: Callable[[Any], Any],
    ) -> Task:
        """Wait until a task ends or needs input, and report its status messages as progress."""
        last_text = ""

        def is_active(status: TaskStatus) -> bool:
            nonlocal last_text
            active = status.state in _ACTIVE_STATES
            text = mask(sanitize_text(_join_text(status.message.parts)))
            if active and text and text != last_text:
                step.notify(text, None)
                last_text = text
            return active

        while True:
            try:
                task = await client.get_task(GetTaskRequest(id=task_id))
                if not is_active(task.status):
                    return task
                if streams:
                    subscription: Any = client.subscribe(SubscribeToTaskRequest(id=task_id))
                    async with aclosing(subscription) as events:
                        async for event in events:
                            update = event.task if event.HasField("task") else event.status_update
                            if not is_active(update.status):
                                break
            except A2AClientError as exc:
                raise unreachable_error(self._subject, exc) from exc
            except A2AError as exc:
                if not streams:
                    reason = mask(str(exc))
                    raise create_remote_failure(self._subject, reason) from exc
                streams = False  # the task already ended, or it cannot be subscribed to
            else:
                await asyncio.sleep(_POLL_SECONDS / 20 if streams else _POLL_SECONDS)


def _build_message(key: str, text: str, data: Any, task: Mapping[str, str]) -> Message:
    parts = [new_text_part(text)] if text else []
    parts += [new_data_part(data)] if data is not None else []
    return Message(
        message_id=str(uuid.uuid5(uuid.NAMESPACE_OID, key)),
        role=Role.ROLE_USER,
        parts=parts,
        task_id=task.get("id", ""),
        context_id=task.get("context", ""),
    )


def _split_answer(answer: Any) -> tuple[str, Any]:
    return (answer, None) if isinstance(answer, str) else ("", answer)


def _join_text(parts: Any) -> str:
    return "\n".join(part.text for part in parts if part.HasField("text"))


def _read_output(parts: Any) -> dict[str, Any]:
    data = [MessageToDict(part.data) for part in parts if part.HasField("data")]
    files = [MessageToDict(p) for p in parts if p.HasField("raw") or p.HasField("url")]
    text = _join_text(parts)
    output: Any = {"text": text, "data": data} if text and data else text
    if data and not text:
        output = data[0] if len(data) == 1 else data
    return {"output": output, **({"files": files} if files else {})}
