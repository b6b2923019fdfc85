"""Answer of a run as a client of OpenAI's API reads it: text, usage, and errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import anyio

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import Caller
from capgraph.serve.routes.openai_tools import FunctionTools, ToolCall
from capgraph.serve.runs import Run, Runs

_FAILED_STATUSES = frozenset({"failed", "stopped"})


class AnswerError(NamedTuple):
    """Error that explains why a turn produced no answer.

    Attributes:
        message: Error message for the user.
        code: Error code.
    """

    message: str
    code: str


class Answer:
    """Answer of a run, read from its events.

    Attributes:
        run: The run.
        created: Unix time of the answer.
        status: Outcome of the turn; empty until the run has ended.
        error: Reason of a failed or stopped turn.
        tool_calls: Calls that the client must run.
        input_tokens: Number of tokens that models read.
        output_tokens: Number of tokens that models wrote.
        stop_on_disconnect: True to stop the run if the client disconnects before its end.

    Args:
        runs: The runs.
        caller: The caller.
        run: The run.
        link: URL of the thread in the console.
        tools: Functions of the request.
    """

    def __init__(
        self, runs: Runs, caller: Caller, run: Run, link: str, tools: FunctionTools
    ) -> None:
        self._runs, self._caller, self._link, self._tools = runs, caller, link, tools
        self.stop_on_disconnect = False
        self.run = run
        self.created: int = int(time.time())
        self.status: str = ""
        self.error: AnswerError | None = None
        self.tool_calls: list[ToolCall] = []
        self.input_tokens: int = 0
        self.output_tokens: int = 0

    @property
    def metadata(self) -> dict[str, str]:
        """IDs of the thread and the run, and the outcome of the turn if it has ended."""
        ids = {"thread_id": self.run.thread_id, "run_id": self.run.run_id}
        return {**ids, "status": self.status} if self.status else ids

    async def iter_text(self) -> AsyncGenerator[str]:
        """Yield the answer text in parts.

        After the last part, the attributes of the answer describe how the run ended.
        """
        if not self._tools.answer_tools:
            async with aclosing(self._iter_streamed()) as parts:
                async for part in parts:
                    yield part
            return
        # The text is the JSON of a call, unless the agent asks the user a question.
        text = "".join([part async for part in self._iter_streamed()])
        call = self._tools.read_answer(text, self.run.run_id)
        if call is not None:
            self.tool_calls.append(call)
        elif text:
            yield text

    async def _iter_streamed(self) -> AsyncGenerator[str]:
        streamed = ""
        events = self._runs.events(self._caller, self.run.run_id)
        try:
            async with aclosing(events) as run_events:
                async for _, event in run_events:
                    kind = event["type"]
                    if kind == "TEXT_MESSAGE_CONTENT":
                        streamed += event["delta"]
                        yield event["delta"]
                    elif kind == "CUSTOM" and event["name"] == "capgraph.answer_anew":
                        streamed = ""
                        yield "\n\n"
                    elif kind.startswith("TOOL_CALL_"):
                        self._add_call_event(event)
                    elif kind in ("RUN_ERROR", "RUN_FINISHED"):
                        self._end(event)
                        for part in self._remaining_text(event, streamed):
                            yield part
            if not self.status:
                text = f"The server is restarting. The run continues: {self._link}"
                self.error = AnswerError(text, PersistenceError.code)
        finally:
            if self.stop_on_disconnect and not self.status:
                with anyio.CancelScope(shield=True):  # the disconnect canceled this task
                    await self._runs.stop(self._caller, self.run.run_id)

    def _add_call_event(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "TOOL_CALL_START":
            if self._tools.is_parallel or not self.tool_calls:
                self.tool_calls.append(ToolCall(event["toolCallId"], event["toolCallName"], ""))
        elif self.tool_calls[-1].call_id == event["toolCallId"]:
            call = self.tool_calls[-1]
            self.tool_calls[-1] = call._replace(arguments=call.arguments + event.get("delta", ""))

    def _end(self, event: Mapping[str, Any]) -> None:
        result = event.get("result") or {}
        self.status = str(result.get("status") or "failed")
        if event["type"] == "RUN_ERROR":
            self.error = AnswerError(event["message"], event.get("code") or "CG-000")
        elif self.status in _FAILED_STATUSES:
            outcome = result.get("outcome") or {}
            text = result.get("answer") or outcome.get("reason") or f"The turn {self.status}."
            self.error = AnswerError(str(text), str(outcome.get("code") or "CG-000"))
        for usage in event.get("usage") or ():
            self.input_tokens += usage.get("inputTokens") or 0
            self.output_tokens += usage.get("outputTokens") or 0

    def _remaining_text(self, end: Mapping[str, Any], streamed: str) -> list[str]:
        """Return the parts of the final answer or question that have not been streamed yet."""
        outcome = end.get("outcome") or {}
        if self.error is not None:
            return []
        if outcome.get("type") != "interrupt":
            answer = str((end.get("result") or {}).get("answer") or "")
            return [answer] if not streamed and answer else []
        questions = [_question_text(interrupt) for interrupt in outcome["interrupts"]]
        text = "\n\n".join([*questions, f"Answer here: {self._link}"])
        return [f"\n\n{text}" if streamed else text]


def _question_text(interrupt: Mapping[str, Any]) -> str:
    """Format a question as text, with the description and parameters of each affected step."""
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
