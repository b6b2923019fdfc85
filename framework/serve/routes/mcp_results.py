"""Tool results of the MCP server, built from runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult, Tool
from starlette.requests import Request

from capgraph.adapters.mcp_server import call_result
from capgraph.adapters.request import unwrap_output
from capgraph.approvals import describe_question
from capgraph.base.ports import Caller
from capgraph.configs.settings import ServeSettings
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.references import step_reads
from capgraph.serve.links import thread_link
from capgraph.serve.routes.mcp_resources import McpResources
from capgraph.serve.runs import Run
from capgraph.serve.threads import Threads

STEP_KEY = "call"
"""Context key of a capability that is called directly."""
_FAILED_STATUSES = frozenset({"failed", "stopped"})
_OPEN_QUESTION_SCHEMA = {
    "type": "object",
    "title": "OpenQuestion",
    "description": "A person must decide before the tool can return its result.",
    "properties": {
        "status": {"const": "waiting"},
        **{name: {"type": "string"} for name in ("thread", "run_id", "question_id")},
    },
    "required": ["status", "thread", "run_id", "question_id"],
}


class McpResults:
    """Results of the runs that MCP tool calls started.

    Args:
        threads: The users' threads.
        resources: Resources of the server, which include the artifacts of steps.
        settings: Settings of the server, with its base URL.
    """

    def __init__(self, threads: Threads, resources: McpResources, settings: ServeSettings) -> None:
        self._threads, self._resources, self._settings = threads, resources, settings

    async def read(
        self, caller: Caller, run: Run, last_event: Mapping[str, Any], *, is_step: bool
    ) -> CallToolResult:
        """Return the MCP tool result for a run that has ended.

        Args:
            caller: The caller.
            run: The run.
            last_event: Last event of the run.
            is_step: True if the run is a call of one capability, whose output is the result.
        """
        if not is_step or (last_event.get("result") or {}).get("error"):
            return _turn_result(run, last_event)
        state = await self._threads.state(caller, run.thread_id)
        records = _final_records(state)
        ended = [one for one in records if one.get("success") and not one.get("skipped")]
        if not records or len(ended) < len(records):
            every = (state.get("execution_step_results") or {}).values()
            failures = (one.get("error") or one.get("skipped") for one in every)
            last = state["messages"][-1]["content"] if state["messages"] else ""
            return call_result(
                next(filter(None, failures), last) or "It was not run.", is_error=True
            )
        if len(records) > 1:
            return _turn_result(run, last_event)
        data = state.get("capability_context_data") or {}
        outputs = records[0].get("outputs") or {}
        result = call_result(
            unwrap_output({kind: data[kind][key] for kind, key in outputs.items()})
        )
        files = await self._resources.artifact_content(caller, run.thread_id)
        return result.model_copy(update={"content": [*result.content, *files]})

    def open_question(
        self, run: Run, question: Mapping[str, Any], request: Request
    ) -> CallToolResult:
        """Return a tool result with an open question and a link to the console.

        The question stays open.
        """
        text = f"{self.describe_wait(run, question, request)} or use a client with elicitation."
        content = {"status": "waiting", "thread": run.thread_id, "run_id": run.run_id}
        return _with_structured_content(
            call_result(text), {**content, "question_id": question["question_id"]}
        )

    def describe_wait(self, run: Run, question: Mapping[str, Any], request: Request) -> str:
        """Describe a run's open question and link to the console page that accepts the answer."""
        link = thread_link(self._settings, request, run.thread_id)
        return f"A person must decide first. {describe_question(question)} Fix: answer at {link}"


def allow_open_question(tool: Tool) -> Tool:
    """Return a copy of an MCP tool whose output schema also accepts an open question.

    Any tool may return a question, because approval rules and capabilities can ask at run time.
    """
    if tool.output_schema is None:
        return tool
    output = dict(tool.output_schema)
    definitions = {"$defs": output.pop("$defs")} if "$defs" in output else {}
    # The protocol requires the type "object" at the root.
    schema = {"type": "object", "anyOf": [output, _OPEN_QUESTION_SCHEMA], **definitions}
    return tool.model_copy(update={"output_schema": schema})


def _final_records(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records of a plan's final steps, whose results no other step reads."""
    steps = (state.get("planning_execution_plan") or {}).get("steps") or ()
    steps = [step for step in steps if step["capability"] not in TERMINAL_STEPS]
    keys = {step["context_key"] for step in steps}
    read = {one.key for step in steps for one in step_reads(step, keys)}
    records = state.get("execution_step_results") or {}
    return [
        records.get(step["context_key"]) or {} for step in steps if step["context_key"] not in read
    ]


def _turn_result(run: Run, last_event: Mapping[str, Any]) -> CallToolResult:
    result = last_event.get("result") or {}
    status = result.get("status", "failed")
    reason = (result.get("outcome") or {}).get("reason")
    text = str(last_event.get("message") or result.get("answer") or reason or status)
    content = {"status": status, "thread": run.thread_id, "run_id": run.run_id, "answer": text}
    return _with_structured_content(call_result(text, is_error=status in _FAILED_STATUSES), content)


def _with_structured_content(result: CallToolResult, content: Mapping[str, Any]) -> CallToolResult:
    """Return a copy of a tool result with structured content that identifies the turn."""
    return result.model_copy(update={"structured_content": dict(content)})
