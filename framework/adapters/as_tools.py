"""Capabilities as LangChain tools, for agents and graphs of one's own."""

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
from capgraph.engine.sync_graph import run_in_new_loop
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import running_graph_messages

_INVALID_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


@validate_arguments
def as_tool(capability: Any, services: Services | None = None) -> BaseTool:
    """Return a LangChain tool that runs a capability, with everything that holds in a plan.

    Its arguments are the parameters of the capability and, under the name of its type (or role),
    each input as an object; of several, a list. Its result is the data that the capability gives.
    Where a person has to agree, the call asks by ``interrupt()`` in the task that runs it, and goes
    on with the answer; limits, permissions, guards, ledger and audit are those of the services. A
    failure comes back as an error of the tool, which a model can read. What labelled tools have told
    an agent, by its state's ``messages``, reaches its later calls with these labels.

    ``invoke`` runs the same on an event loop of its own, for synchronous code and graphs; there
    no person can be asked, which is an error that says so.

    Args:
        capability: A decorated capability.
        services: What ``bind`` decided. Without, what the graph goes by in whose run it is called, if
            that knows the capability; else default limits, on the saver of that run.

    Raises:
        ConfigurationError: It is no capability; or it declares what needs services.

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
            f"{capability!r} is no capability.", fix="Decorate it with @capability_node."
        )
    known = services_for(capability, services)
    bound = None if services is None else known  # then the run that calls it says what holds

    async def run(given: dict[str, Any], *, may_ask: bool) -> Any:
        step, contexts = parse_request(spec, given)
        heard = collect_labels({"messages": running_graph_messages()})
        record = await run_standalone_step(spec, step, contexts, bound, heard, can_ask=may_ask)
        if (refused := failure_message(record)) is not None:
            raise ToolException(refused)
        return record_output(record), label_metadata(record)

    async def call(**given: Any) -> Any:
        return await run(given, may_ask=True)

    def call_and_wait(**given: Any) -> Any:
        return run_in_new_loop(lambda: run(given, may_ask=False))

    return StructuredTool(
        name=_INVALID_NAME_CHARACTER.sub("_", spec.name)[:64],
        description=spec.description,
        args_schema=request_schema(spec, known.registry.context_types),
        func=call_and_wait,
        coroutine=call,
        handle_tool_error=True,
        response_format="content_and_artifact",
    )
