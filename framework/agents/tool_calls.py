"""Calling an agent's tools: one LangGraph task for each call, in whatever form a tool is written."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from capgraph.adapters.as_tools import as_tool
from capgraph.adapters.request import (
    ENDING,
    labels_heard,
    labels_told,
    output_of,
    refusal_of,
    request_of,
)
from capgraph.adapters.tools import tool_capability
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.behaviors.guarding import GuardrailBehavior
from capgraph.behaviors.guardrails import REWRITE_OR_ASK
from capgraph.engine.as_node import run_request
from capgraph.engine.services import Services
from capgraph.pipeline.job import LABELS

Execute = Callable[[ToolCallRequest], Awaitable[Any]]


def tool_node(
    tools: Sequence[Any], services: Services | None = None, behaviors: Sequence[Any] = ()
) -> ToolNode:
    """Return the node that calls tools: what goes wrong is an observation.

    Args:
        tools: LangChain tools, functions or capabilities.
        services: With these each call is an attempt at a capability: the one that is registered
            under the tool's name, with the effect and the permission that it declares, else one
            that is made of the tool.
        behaviors: The agent's; guards among them look at arguments and observations.
    """
    guards = [b.guards for b in behaviors if isinstance(b, GuardrailBehavior)]
    bound = services

    async def guarded(request: ToolCallRequest, execute: Execute) -> Any:
        name = request.tool_call["name"]
        for guard in guards:
            passed = await guard.before(request.tool_call["args"], tool=name, can=REWRITE_OR_ASK)
            args = await passed.agreed(name)
            if passed.rewritten:
                request = request.override(tool_call={**request.tool_call, "args": args})
        if bound is None or request.tool is None:
            found = await execute(request)
        else:
            spec, heard = own[name].capability_spec, labels_heard(request.state)
            found = await _attempted(request.tool_call, spec, bound, heard)
        for guard in guards:
            if isinstance(found, ToolMessage):
                passed = await guard.after(found.content, tool=name, can=REWRITE_OR_ASK)
                found = found.model_copy(update={"content": await passed.agreed(name)})
        return found

    own: dict[str, Any] = {}
    given: list[Any] = []
    for item in tools:
        if hasattr(item, "capability_spec"):
            given.append(as_tool(item, services))
            own[given[-1].name] = item
        elif callable(item) or isinstance(item, BaseTool):
            given.append(item)
        else:
            raise ConfigurationError(
                f"{item!r:.80} is no tool.",
                fix="Give a LangChain tool, a function with a docstring, or a capability.",
            )
    wrap = guarded if guards or services is not None else None
    node = ToolNode(given, handle_tool_errors=_told, awrap_tool_call=wrap)
    _refuse_namesakes(node, len(given))
    if services is not None:
        known = {name: spec.cls for name, spec in services.registry.capabilities.items()}
        for name, item in node.tools_by_name.items():
            own[name] = own.get(name) or known.get(name) or tool_capability(item)
        bound = services.beside(*(cls for cls in own.values() if cls not in known.values()))
    return node


def _refuse_namesakes(node: ToolNode, given: int) -> None:
    if len(node.tools_by_name) < given:
        names = ", ".join(sorted(node.tools_by_name))
        raise ConfigurationError(
            f"Of {given} tools some have one name; the names are {names}.",
            fix="Give each tool a name of its own.",
        )


def labelled(answer: BaseMessage, labels: Mapping[str, str]) -> BaseMessage:
    """Return an answer with the labels of all that stands behind it."""
    return answer.model_copy(update={"response_metadata": {LABELS: dict(labels)}})


async def _attempted(
    call: Any, spec: CapabilitySpec, services: Services, heard: Mapping[str, str]
) -> ToolMessage:
    """Run a call as a step of its own, with what the agent has heard in mind."""
    step, contexts = request_of(spec, call["args"])
    record = await run_request(spec, step, contexts, services, heard)
    return _observed(call, record).model_copy(update={"artifact": labels_told(record)})


def _observed(call: Any, record: StepRecord) -> ToolMessage:
    if (why := refusal_of(record)) is not None:
        return _message(call, f"Tool error: {why}", "error")
    found = output_of(record)
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _message(call, text, "success")


def _message(call: Any, text: str, status: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)


def _told(error: Exception) -> str:
    if isinstance(error, ENDING):
        raise error
    return f"Tool error: {error}"
