"""Function that turns a capability into a LangChain tool, for other agents and graphs."""

from __future__ import annotations

import re
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from capgraph.adapters.request import (
    collect_labels,
    failure_message,
    label_metadata,
    parse_request,
    record_output,
    request_schema,
    services_for,
)
from capgraph.base.errors import ConfigurationError
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.capability_node import run_standalone_step
from capgraph.engine.services import Services
from capgraph.engine.sync_graph import run_in_background_loop
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import running_graph_messages

_INVALID_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


@validate_arguments
def as_tool(capability: Any, services: Services | None = None) -> BaseTool:
    """Create a LangChain tool that runs a capability with the same checks as a plan step.

    - *Arguments:* the capability's parameters, and each input as an object under the name of its
      type or role. Several inputs of one type are passed as a list.
    - *Result:* the data that the capability returns.
    - *Approvals:* a required approval interrupts the graph that calls the tool, and the call
      continues after the decision.
    - *Services:* ``services`` provide limits, permissions, guardrails, idempotency, and audit.
    - *Failures:* a failure is returned as a tool error that a model can read.
    - *Labels:* provenance labels of tool results in the agent's ``messages`` apply to the
      agent's later tool calls.

    ``invoke`` runs the tool on its own event loop, for synchronous code and graphs. A
    capability that requires an approval fails there, because a synchronous call cannot be
    interrupted.

    Args:
        capability: Capability to expose, decorated with ``@capability_node``.
        services: Services that ``bind`` returned. Defaults to the services of the graph whose
            run calls the tool, if they include the capability. Otherwise default limits apply,
            with the checkpointer of that run.

    Raises:
        ConfigurationError: The argument is not a capability, or its declaration requires
            services.

    >>> import asyncio
    >>> from capgraph import capability_node
    >>> @capability_node
    ... async def double(number: int) -> int:
    ...     '''Double a number.'''
    ...     return number * 2
    >>> tool = as_tool(double)
    >>> tool.name, list(tool.args), asyncio.run(tool.ainvoke({"number": 4}))
    ('double', ['number'], 8)
    """
    spec = getattr(capability, "capability_spec", None)
    if not isinstance(spec, CapabilitySpec):
        raise ConfigurationError(
            f"{capability!r} is not a capability, because it is not decorated.",
            fix="Decorate it with @capability_node.",
        )
    resolved = services_for(capability, services)
    explicit = None if services is None else resolved  # else the calling run decides

    async def run(arguments: dict[str, Any], *, can_ask: bool) -> Any:
        step, contexts = parse_request(spec, arguments)
        labels = collect_labels({"messages": running_graph_messages()})
        record = await run_standalone_step(spec, step, contexts, explicit, labels, can_ask=can_ask)
        if (failure := failure_message(record)) is not None:
            raise ToolException(failure)
        return record_output(record), label_metadata(record)

    async def call(**arguments: Any) -> Any:
        return await run(arguments, can_ask=True)

    def call_and_wait(**arguments: Any) -> Any:
        return run_in_background_loop(lambda: run(arguments, can_ask=False))

    return StructuredTool(
        name=_INVALID_NAME_CHARACTER.sub("_", spec.name)[:64],
        description=spec.description,
        args_schema=request_schema(spec, resolved.registry.context_types),
        func=call_and_wait,
        coroutine=call,
        handle_tool_error=True,
        response_format="content_and_artifact",
    )
