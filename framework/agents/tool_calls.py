"""Tool calls of agents: each call is a LangGraph task, with or without services."""

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
from capgraph.agents.handoffs import HandoffTool
from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.behaviors.guardrail_behavior import GuardrailBehavior
from capgraph.behaviors.guardrails import REWRITE_OR_ASK
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.run_scope import find_enclosing_services, find_services
from capgraph.engine.services import Services
from capgraph.pipeline.step_execution import LABELS_KEY

ExecuteTool = Callable[[ToolCallRequest], Awaitable[Any]]


def build_tool_node(
    tools: Sequence[Any], services: Services | None = None, behaviors: Sequence[Any] = ()
) -> ToolNode:
    """Build a LangGraph node that runs tool calls and returns errors as observations.

    Args:
        tools: LangChain tools, functions, or capabilities.
        services: Services under which each call runs as an attempt at a capability. Tools that
            are not registered there are converted to capabilities. Without services, those of
            the enclosing run apply. If there are none, the tool is called directly.
        behaviors: Behaviors of the agent, whose guardrails check arguments and observations.
    """
    guards = [b.guards for b in behaviors if isinstance(b, GuardrailBehavior)]

    async def guarded(request: ToolCallRequest, execute: ExecuteTool) -> Any:
        name = request.tool_call["name"]
        for guard in guards:
            guarded_value = await guard.check_input(
                request.tool_call["args"], tool=name, supported_actions=REWRITE_OR_ASK
            )
            args = await guarded_value.await_approval(name)
            if guarded_value.rewritten:
                request = request.override(tool_call={**request.tool_call, "args": args})
        capability = lookup.find(request.tool) if request.tool is not None else None
        message = await (
            execute(request) if capability is None else _run_attempt(request, *capability)
        )
        for guard in guards:
            if isinstance(message, ToolMessage):
                guarded_value = await guard.check_output(
                    message.content, tool=name, supported_actions=REWRITE_OR_ASK
                )
                message = message.model_copy(
                    update={"content": await guarded_value.await_approval(name)}
                )
        return message

    capabilities: dict[str, Any] = {}
    langchain_tools = [_convert_to_langchain_tool(item, services, capabilities) for item in tools]
    node = ToolNode(langchain_tools, handle_tool_errors=_format_tool_error, awrap_tool_call=guarded)
    _check_unique_names(node, len(langchain_tools))
    lookup = _CapabilityLookup(services, capabilities, node.tools_by_name)
    return node


def _convert_to_langchain_tool(
    item: Any, services: Services | None, capabilities: dict[str, Any]
) -> Any:
    """Convert a tool, function, or capability to a form that ``ToolNode`` accepts.

    Capabilities are also stored in ``capabilities`` under the name of the tool.
    """
    if hasattr(item, "capability_spec"):
        tool = as_tool(item, services)
        capabilities[tool.name] = item
        return tool
    if callable(item) or isinstance(item, BaseTool):
        return item
    raise ConfigurationError(
        f"Invalid tool {item!r:.80}: it is not callable.",
        fix="Pass a LangChain tool, a function with a docstring, or a capability.",
    )


class _CapabilityLookup:
    """Mapping from tools to the capabilities and services that execute them."""

    def __init__(
        self,
        services: Services | None,
        capabilities: dict[str, Any],
        tools: Mapping[str, BaseTool],
    ) -> None:
        self._capabilities = capabilities
        self._services = services
        if services is not None:
            registered = {name: spec.cls for name, spec in services.registry.capabilities.items()}
            for name, item in tools.items():
                if isinstance(item, HandoffTool):
                    continue
                capability = capabilities.get(name) or registered.get(name) or tool_capability(item)
                capabilities[name] = capability
            new = (cls for cls in capabilities.values() if cls not in registered.values())
            self._services = services.with_capabilities(*new)

    def find(self, tool: BaseTool) -> tuple[CapabilitySpec, Services] | None:
        """Return the capability and services that execute a tool.

        Return None for a handoff tool, or if no services are available.
        """
        if isinstance(tool, HandoffTool) or (
            self._services is None and not find_enclosing_services()
        ):
            return None
        if tool.name not in self._capabilities:
            # Its effect is undeclared, so the pipeline must not retry it.
            self._capabilities[tool.name] = tool_capability(tool, max_attempts=1)
        spec = self._capabilities[tool.name].capability_spec
        services = self._services or find_services(spec)
        assert services is not None
        return services.registry.capabilities[spec.name], services


def _check_unique_names(node: ToolNode, tool_count: int) -> None:
    if len(node.tools_by_name) < tool_count:
        names = ", ".join(sorted(node.tools_by_name))
        raise ConfigurationError(
            f"Tool names must be unique, but {tool_count} tools share the names {names}.",
            fix="Rename the tools that share a name.",
        )


def attach_labels(message: BaseMessage, labels: Mapping[str, str]) -> BaseMessage:
    """Return a copy of a message with the provenance labels of the data from which it was made."""
    return message.model_copy(update={"response_metadata": {LABELS_KEY: dict(labels)}})


async def _run_attempt(
    request: ToolCallRequest, spec: CapabilitySpec, services: Services
) -> ToolMessage:
    """Run a call as a step, with the labels of the data that the agent has read."""
    call, state = request.tool_call, request.state
    step, contexts = parse_request(spec, call["args"])
    labels = collect_labels(state)
    values = state if isinstance(state, Mapping) else {}
    record = await run_standalone_step(spec, step, contexts, services, labels, state=values)
    return _to_tool_message(call, record).model_copy(update={"artifact": label_metadata(record)})


def _to_tool_message(call: Any, record: StepRecord) -> ToolMessage:
    if (why := failure_message(record)) is not None:
        return _tool_message(call, f"Tool error: {why}", "error")
    output = record_output(record)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return _tool_message(call, text, "success")


def _tool_message(call: Any, text: str, status: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)


def _format_tool_error(error: Exception) -> str:
    if isinstance(error, RUN_ENDING_ERRORS):
        raise error
    return f"Tool error: {error}"
