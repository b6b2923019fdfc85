"""Tool calls on MCP servers, with questions to the user and checks for changed tools."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt
from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    ElicitResult,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from capgraph.adapters.authorization import find_record
from capgraph.adapters.external_text import sanitize_text
from capgraph.adapters.mcp_connections import (
    McpCall,
    McpConnection,
    RemoteMcpServer,
    current_call,
)
from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.ports import Attempt, CallNext
from capgraph.base.spec import Effect
from capgraph.base.step_context import StepContext
from capgraph.helpers.plain_data import validation_messages
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.step_execution import enclosing_execution
from capgraph.planning.json_parameters import json_parameters

IDEMPOTENCY_META_KEY = "capgraph/idempotency-key"
"""Key in a call's ``_meta`` that holds the idempotency key, for servers that support it."""
_UNKNOWN_OUTCOME_CODES = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR)
"""Error codes after which the tool may have run or not, such as a gateway's."""
_ASKED_MARKER = "asked"


class PinCheck:
    """Middleware that requires an approval before a changed or unreviewed tool is called."""

    stage = "validate"

    def __init__(self, client: McpToolClient) -> None:
        self._client = client

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run an attempt, adding an approval reason if its tool has changed since the review."""
        reason = ""
        # If the server is unreachable, the call itself fails and is retried.
        with suppress(CapabilityError):
            reason = self._client.describe_change(await self._client.server.list_tools())
        return await call_next(
            replace(attempt, approval_reasons=(*attempt.approval_reasons, reason))
            if reason
            else attempt
        )


@dataclass(frozen=True)
class McpToolClient:
    """Client for one tool of an MCP server.

    Attributes:
        server: Server of the tool.
        name: Name of the tool on the server.
        pin: Digest of the reviewed tool, or an empty string if the tool was not reviewed.
        effect: Effect of the tool.
    """

    server: RemoteMcpServer
    name: str
    pin: str
    effect: Effect

    def describe_change(self, tools: Mapping[str, Tool]) -> str:
        """Describe how the tool differs from its reviewed version.

        Returns an empty string if the tool is unchanged or no longer exists.
        """
        tool = tools.get(self.name)
        if tool is None or tool_digest(tool) == self.pin:
            return ""
        subject = f"The tool {self.name!r} of {self.server}"
        names = sanitize_text(", ".join(tool.input_schema.get("properties") or {})) or "none"
        if not self.pin:
            return f"{subject} has not been reviewed. Its parameters are: {names}."
        return (
            f"{subject} changed since it was reviewed: its schemas or annotations differ. Its"
            f" parameters are now: {names}."
        )

    async def call(self, values: dict[str, Any], step: StepContext) -> dict[str, Any]:
        """Call the MCP tool for a step and return the tool's output.

        Raises:
            CapabilityError: The tool failed, no longer exists, or changed, or the server cannot be
                reached. Only the last case is retried.
            ConnectionError: The connection was lost after the call was sent.
        """
        user = await self.server.authorize(step)
        connection = await self.server.get_connection(user)
        call = connection.suspended_calls.pop(step.idempotency_key, None)
        if call is None:
            tools = connection.tools or await self.server.list_tools(user)
            step_run = enclosing_execution()
            is_approved = step_run is not None and step_run.approval is not None
            change = "" if is_approved else self.describe_change(tools)
            if self.name not in tools or change:
                raise CapabilityError(
                    change or f"The tool {self.name!r} no longer exists on {self.server}.",
                    fix="Call mcp_capabilities again, and build a new graph.",
                    severity=ErrorSeverity.REPLANNING,
                )
            if self._must_not_repeat(connection) and await find_record(step, _ASKED_MARKER):
                self._raise_unknown_outcome(
                    "the process that made the call ended before the question was answered", None
                )
            call = self._start_call(McpCall(connection, tools[self.name]), values, step)
        connection.calls.append(call)
        try:
            result = await self._wait_for_result(call, step)
        except GraphBubbleUp:
            connection.suspended_calls[step.idempotency_key] = call
            if self._must_not_repeat(connection):
                await step.once(_ASKED_MARKER, lambda: True)
            raise
        except BaseException:
            call.task.cancel()
            raise
        finally:
            connection.calls.remove(call)
        if result.is_error:
            reason = connection.mask(sanitize_text(_text_of_result(result), 4_000))
            reason = reason or "no reason was given"
            raise CapabilityError(f"The tool {self.name!r} of {self.server} failed: {reason}")
        output: dict[str, Any] = connection.mask(_read_result(result, call.tool))
        return output

    def _must_not_repeat(self, connection: McpConnection) -> bool:
        """Return True if a tool call must not be repeated after its process was lost.

        This applies to tools with the effect ``once`` on servers with an older protocol version.
        """
        return (
            self.effect == "once"
            and connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        )

    def _start_call(self, call: McpCall, values: dict[str, Any], step: StepContext) -> McpCall:
        step_context = contextvars.copy_context()

        async def notify(progress: float, total: float | None, message: str | None) -> None:
            text = sanitize_text(message or f"{progress:g}" + (f" of {total:g}" if total else ""))
            text = call.connection.mask(text)
            step_context.run(step.notify, text, progress / total if total else None)

        context = contextvars.Context()
        context.run(current_call.set, call)
        key: Any = {IDEMPOTENCY_META_KEY: step.idempotency_key} if self.effect != "none" else None
        coroutine = call.connection.client.call_tool(
            self.name, values, progress_callback=notify, meta=key
        )
        call.task = asyncio.get_running_loop().create_task(coroutine, context=context)
        # Retrieve the exception, because a suspended call may never be awaited.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return call

    async def _wait_for_result(self, call: McpCall, step: StepContext) -> CallToolResult:
        """Wait for a tool call's result, interrupting the step for each question of the server."""
        for _ in range(call.answer_count):
            interrupt(None)  # replay an answer that the call already received
        while True:
            if call.open_question is None:
                question = asyncio.ensure_future(call.questions.get())
                try:
                    await asyncio.wait({call.task, question}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    question.cancel()
                if not question.done():
                    return self._read_outcome(call)
                call.open_question = question.result()
            payload, answer = call.open_question
            try:
                result = _read_answer(interrupt(self._question_payload(payload)), payload)
            except ValidationError as exc:  # ask again, with the problems
                call.open_question = ({**payload, "problems": validation_messages(exc)}, answer)
            else:
                call.open_question = None
                answer.set_result(result)
            call.answer_count += 1

    def _question_payload(self, question: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": "mcp_elicitation",
            "server": str(self.server),
            "tool": self.name,
            **question,
        }

    def _read_outcome(self, call: McpCall) -> CallToolResult:
        try:
            return call.task.result()
        except MCPError as exc:
            if exc.code not in _UNKNOWN_OUTCOME_CODES:
                raise CapabilityError(
                    f"The tool {self.name!r} of {self.server} rejected the call:"
                    f" {sanitize_text(exc.message)}"
                ) from exc
            if exc.code == CONNECTION_CLOSED:
                call.connection.close()
                self._raise_unknown_outcome("the connection was lost during the call", exc)
            self._raise_unknown_outcome(f"the call was aborted ({sanitize_text(exc.message)})", exc)
        except (RuntimeError, ValidationError) as exc:
            problem = (
                f"the result does not match its output schema ({sanitize_text(str(exc), 300)})"
            )
            if self.effect == "once":
                self._raise_unknown_outcome(problem, exc)
            raise CapabilityError(
                f"The tool {self.name!r} of {self.server} failed: {problem}."
            ) from exc

    def _raise_unknown_outcome(self, problem: str, cause: BaseException | None) -> NoReturn:
        # ConnectionError means that the outcome is unknown and the effect must not be repeated.
        raise ConnectionError(
            f"The outcome of the tool {self.name!r} of {self.server} is unknown: {problem}."
        ) from cause


def _read_answer(answer: Any, question: Mapping[str, Any]) -> ElicitResult:
    """Convert a user's answer to the result of an MCP elicitation.

    The answer may be an object, JSON text of an object, the value of the only field, or a refusal.

    Raises:
        ValidationError: The answer does not match the requested schema.
    """
    if answer is None or answer is False:
        return ElicitResult(action="decline")
    schema = question.get("schema") or {}
    properties = schema.get("properties") or {}
    only = next(iter(properties)) if len(properties) == 1 else None
    if isinstance(answer, str) and (only is None or properties[only].get("type") != "string"):
        with suppress(ValueError):
            answer = json.loads(answer)
    if isinstance(answer, Mapping) and answer.get("action") in ("decline", "cancel"):
        return ElicitResult(action=answer["action"])
    if isinstance(answer, Mapping) and answer.get("action") == "accept":
        answer = answer.get("content") or {}
    elif not isinstance(answer, Mapping):
        answer = {only: answer} if only is not None else {}
    content = json_parameters("answer", schema).model_validate(answer).model_dump(by_alias=True)
    return ElicitResult(action="accept", content=content)


def tool_digest(tool: Tool) -> str:
    """Compute a digest of a tool's name, schemas, and annotations, to detect changes."""
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    return compute_digest([tool.name, tool.input_schema, tool.output_schema, hints])


def _read_result(result: CallToolResult, tool: Tool) -> dict[str, Any]:
    blocks = [b.model_dump(mode="json", by_alias=True, exclude_none=True) for b in result.content]
    if tool.output_schema is None:
        structured = result.structured_content
        extra = {"structured": structured} if structured is not None else {}
        return {"text": _text_of_result(result), "content": blocks, **extra}
    if tool.output_schema.get("type") != "object":
        return {"value": result.structured_content}
    # The text repeats the structured content, so only other blocks are added.
    other_blocks = [block for block in blocks if block["type"] != "text"]
    return {**({"content": other_blocks} if other_blocks else {}), **result.structured_content}


def _text_of_result(result: CallToolResult) -> str:
    return "\n".join(str(b.text) for b in result.content if b.type == "text")
