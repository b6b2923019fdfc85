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
    RUN_ENDING_ERRORS,
    collect_labels,
    failure_message,
    label_metadata,
    parse_request,
    record_output,
)
from capgraph.adapters.tools import tool_capability
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.behaviors.guardrail_behavior import GuardrailBehavior
from capgraph.behaviors.guardrails import REWRITE_OR_ASK
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.run_scope import enclosing_services, find_services
from capgraph.engine.services import Services
from capgraph.pipeline.step_execution import LABELS_KEY

ExecuteTool = Callable[[ToolCallRequest], Awaitable[Any]]


def build_tool_node(
    tools: Sequence[Any], services: Services | None = None, behaviors: Sequence[Any] = ()
) -> ToolNode:
    """Return the node that calls tools: what goes wrong is an observation.

    Args:
        tools: LangChain tools, functions or capabilities.
        services: Each call is an attempt at a capability: the one that is registered under the
            tool's name, with the effect and the permission that it declares, else one that is
            made of the tool. Without services, those of the run around the agent apply. Outside
            of any run that has services, a tool is simply called.
        behaviors: The agent's; guards among them look at arguments and observations.
    """
    guards = [b.guards for b in behaviors if isinstance(b, GuardrailBehavior)]

    async def guarded(request: ToolCallRequest, execute: ExecuteTool) -> Any:
        name = request.tool_call["name"]
        for guard in guards:
            passed = await guard.check_input(
                request.tool_call["args"], tool=name, supported_actions=REWRITE_OR_ASK
            )
            args = await passed.await_approval(name)
            if passed.rewritten:
                request = request.override(tool_call={**request.tool_call, "args": args})
        covered = covering.find(request.tool) if request.tool is not None else None
        found = await (execute(request) if covered is None else _run_attempt(request, *covered))
        for guard in guards:
            if isinstance(found, ToolMessage):
                passed = await guard.check_output(
                    found.content, tool=name, supported_actions=REWRITE_OR_ASK
                )
                found = found.model_copy(update={"content": await passed.await_approval(name)})
        return found

    capabilities: dict[str, Any] = {}
    given = [_as_langchain_tool(item, services, capabilities) for item in tools]
    node = ToolNode(given, handle_tool_errors=_format_tool_error, awrap_tool_call=guarded)
    _check_unique_names(node, len(given))
    covering = _CapabilityLookup(services, capabilities, node.tools_by_name)
    return node


def _as_langchain_tool(item: Any, services: Services | None, capabilities: dict[str, Any]) -> Any:
    """Return an item as ``ToolNode`` takes it; a capability is stored under the tool's name."""
    if hasattr(item, "capability_spec"):
        made = as_tool(item, services)
        capabilities[made.name] = item
        return made
    if callable(item) or isinstance(item, BaseTool):
        return item
    raise ConfigurationError(
        f"{item!r:.80} is no tool.",
        fix="Give a LangChain tool, a function with a docstring, or a capability.",
    )


class _CapabilityLookup:
    """Finds the capability that each tool stands for, with the services that decide about it."""

    def __init__(
        self,
        services: Services | None,
        capabilities: dict[str, Any],
        tools: Mapping[str, BaseTool],
    ) -> None:
        self._capabilities = capabilities
        self._services = services
        if services is not None:
            known = {name: spec.cls for name, spec in services.registry.capabilities.items()}
            for name, item in tools.items():
                made = capabilities.get(name) or known.get(name) or tool_capability(item)
                capabilities[name] = made
            new = (cls for cls in capabilities.values() if cls not in known.values())
            self._services = services.with_capabilities(*new)

    def find(self, tool: BaseTool) -> tuple[CapabilitySpec, Services] | None:
        """Return the capability of a tool and its services; ``None`` outside of any services."""
        if self._services is None and not enclosing_services():
            return None
        if tool.name not in self._capabilities:
            # Nobody declared its effect, so that only the model may repeat it.
            self._capabilities[tool.name] = tool_capability(tool, max_attempts=1)
        spec = self._capabilities[tool.name].capability_spec
        services = self._services or find_services(spec)
        assert services is not None
        return services.registry.capabilities[spec.name], services


def _check_unique_names(node: ToolNode, tool_count: int) -> None:
    if len(node.tools_by_name) < tool_count:
        names = ", ".join(sorted(node.tools_by_name))
        raise ConfigurationError(
            f"Of {tool_count} tools some have one name; the names are {names}.",
            fix="Give each tool a name of its own.",
        )


def attach_labels(message: BaseMessage, labels: Mapping[str, str]) -> BaseMessage:
    """Return an answer with the labels of all that stands behind it."""
    return message.model_copy(update={"response_metadata": {LABELS_KEY: dict(labels)}})


async def _run_attempt(
    request: ToolCallRequest, spec: CapabilitySpec, services: Services
) -> ToolMessage:
    """Run a call as a step of its own, with what the agent has heard in mind."""
    call, state = request.tool_call, request.state
    step, contexts = parse_request(spec, call["args"])
    heard = collect_labels(state)
    known = state if isinstance(state, Mapping) else {}
    record = await run_standalone_step(spec, step, contexts, services, heard, state=known)
    return _to_tool_message(call, record).model_copy(update={"artifact": label_metadata(record)})


def _to_tool_message(call: Any, record: StepRecord) -> ToolMessage:
    if (why := failure_message(record)) is not None:
        return _tool_message(call, f"Tool error: {why}", "error")
    found = record_output(record)
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _tool_message(call, text, "success")


def _tool_message(call: Any, text: str, status: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)


def _format_tool_error(error: Exception) -> str:
    if isinstance(error, RUN_ENDING_ERRORS):
        raise error
    return f"Tool error: {error}"
