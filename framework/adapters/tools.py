"""LangChain tools as capabilities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
)
from langchain_core.tools.base import get_all_basemodel_annotations
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.types import Command
from pydantic import create_model

from capgraph.adapters.declare import declare
from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.checked import checked
from capgraph.base.classify import ErrorClassification
from capgraph.base.declarations import accepted, check_names
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.base.step_context import StepContext
from capgraph.base.threads import in_thread
from capgraph.langgraph_compat import is_watched
from capgraph.telemetry.accounts import CASHIER
from capgraph.telemetry.metered import METER


@checked
def tool_capability(
    tool: BaseTool | Callable[..., Any] | Any,
    provides: ContextType | None = None,
    effect: str = "none",
    permission: Any = None,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Make a capability of a LangChain tool, or of a function as LangChain would make a tool of it.

    Name, description and parameters are the tool's; what it wants injected (state, store,
    runtime, call id) it gets from the step. A synchronous tool works in a thread of the pool.

    A dictionary (pydantic object, data class) that the tool returns is the data of the context
    type, any other value stands there under ``value``; of ``content_and_artifact`` the content
    stands under ``value`` and the artifact under ``artifact``. Of a ``Command`` the data is what it
    updates, with the text of its messages under ``value``; one that jumps (``goto``, ``resume``,
    ``graph``) is refused, since a plan says what runs next.

    A ``ToolException`` fails the step: CRITICAL, as it would end an agent's run, and REPLANNING
    where the tool says ``handle_tool_error``, with the text that is made for the model.

    Args:
        tool: The tool, or an annotated function with a docstring.
        provides: Context type of its result; one named after the tool when not given.
        effect: ``none``, ``idempotent`` or ``once``.
        permission: What its caller must be allowed.
        name: Name of the capability; the tool's when not given.
        description: Description for planners; the tool's when not given.
        **options: What :func:`~capgraph.adapters.declare.declare` takes.

    Raises:
        ConfigurationError: It is neither; or it wants something injected that nobody knows.
        ValidationError: Its schema, or a declaration, is malformed.

    >>> def celsius(fahrenheit: float) -> float:
    ...     '''Convert degrees.'''
    ...     return (fahrenheit - 32) / 1.8
    >>> tool_capability(celsius, provides="CELSIUS").capability_spec.name
    'celsius'
    """
    if not isinstance(tool, BaseTool):
        tool = _as_tool(tool)
    check_names(f"tool_capability({tool.name!r})", options, accepted("tool"))
    schema: Any = tool.args_schema
    injected = _injected(tool)
    if injected:
        schema = tool.tool_call_schema
    elif schema is None and isinstance(tool, Tool):
        [argument] = tool.args  # one text
        made: Any = create_model
        schema = made(tool.name, **{argument: (str, ...)})
    elif schema is None:
        schema = tool.get_input_schema()
    own = tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})
    coroutine = getattr(own, "coroutine", None)
    sync = coroutine is None if hasattr(own, "coroutine") else type(own)._arun is BaseTool._arun
    whole = partial(in_thread, own.invoke) if sync else own.ainvoke
    as_call = (
        InjectedToolCallId in injected.values() or own.response_format == "content_and_artifact"
    )
    bare = None if injected or as_call else _bare(own)

    async def call(values: dict[str, Any], step: StepContext) -> Any:
        # What LangChain does around a function of a tool costs more than the step, and is for
        # those who watch; what it checks has been checked.
        if bare is not None and not is_watched(METER, CASHIER):
            return _data(await (in_thread(bare, **values) if sync else bare(**values)), own.name)
        given: Any = {**values, **_filled(injected, step)} if injected else values
        if as_call:
            call_id = step.idempotency_key
            given = {"type": "tool_call", "id": call_id, "name": own.name, "args": given}
        return _data(await whole(given), own.name)

    options.setdefault("classify_error", partial(_classify, tool))
    return declare(
        name or tool.name,
        description or tool.description,
        schema,
        call,
        provides=provides,
        effect=effect,
        permission=permission,
        **options,
    )


def _as_tool(function: Any) -> BaseTool:
    if not inspect.isroutine(function):
        raise ConfigurationError(
            f"{function!r} is neither a LangChain tool nor a function.",
            fix="Give a BaseTool, or a function with annotations and a docstring.",
        )
    sync = not inspect.iscoroutinefunction(function)
    try:
        return StructuredTool.from_function(
            function if sync else None,
            None if sync else function,
            parse_docstring=True,
            error_on_invalid_docstring=False,
        )
    except ValueError as exc:
        raise ConfigurationError(
            f"The function {function.__name__!r} cannot be made a tool: {exc}",
            fix="Give it annotations and a docstring.",
        ) from exc


def _bare(tool: BaseTool) -> Callable[..., Any] | None:
    """Return a tool's own function, where it needs nothing of LangChain's to be called."""
    if type(tool) is not StructuredTool or tool.callbacks or tool.verbose:
        return None
    function: Any = tool.coroutine or tool.func
    wants = {"callbacks", "run_manager"} & inspect.signature(function).parameters.keys()
    kinds = [kind for hint in _hints(function).values() for kind in (hint, *get_args(hint))]
    return None if wants or RunnableConfig in kinds else function


def _hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, a partial one, or an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # a type that only its author sees; what is injected stands in the schema too
        return {}


_Injected = Mapping[str, Any]
"""Argument to the mark that says what it is filled with."""


def _injected(tool: BaseTool) -> _Injected:
    if isinstance(tool.args_schema, dict):
        return {}
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool._run
    schema: Any = tool.get_input_schema()
    hints = {
        **_hints(function),
        **get_all_basemodel_annotations(schema),
    }
    found = {name: mark for name, hint in hints.items() if (mark := _mark(hint)) is not None}
    unknown = [
        name
        for name, mark in found.items()
        if mark is InjectedToolArg
        and (name not in schema.model_fields or schema.model_fields[name].is_required())
    ]
    if unknown:
        raise ConfigurationError(
            f"The tool {tool.name!r} wants {unknown} injected, and nobody knows what that is.",
            fix="Take it from ToolRuntime or InjectedState, or bind it with a function of your own.",
        )
    return {name: mark for name, mark in found.items() if mark is not InjectedToolArg}


def _mark(hint: Any) -> Any:
    if hint is ToolRuntime or get_origin(hint) is ToolRuntime:
        return ToolRuntime
    for mark in getattr(hint, "__metadata__", ()):
        kind = mark if isinstance(mark, type) else type(mark)
        if issubclass(kind, InjectedState):
            return mark if isinstance(mark, InjectedState) else InjectedState()
        if issubclass(kind, InjectedToolArg):
            known = (InjectedStore, InjectedToolCallId)
            return next((one for one in known if issubclass(kind, one)), InjectedToolArg)
    return None


def _filled(injected: _Injected, step: StepContext) -> dict[str, Any]:
    runtime, values = step.runtime, {}
    for name, mark in injected.items():
        if isinstance(mark, InjectedState):
            state = dict(step.state)
            values[name] = state if mark.field is None else state.get(mark.field)
        elif mark is not InjectedToolCallId and runtime is None:
            raise CapabilityError(
                f"{step.capability!r} wants {name!r} of a run, and there is none.",
                fix="Run it in a graph.",
            )
        elif mark is InjectedStore:
            values[name] = runtime.store
        elif mark is ToolRuntime:
            values[name] = ToolRuntime(
                state=dict(step.state),
                context=runtime.context,
                config=ensure_config(),
                stream_writer=runtime.stream_writer,
                tool_call_id=step.idempotency_key,
                store=runtime.store,
                execution_info=runtime.execution_info,
                server_info=runtime.server_info,
            )
    return values


def _data(found: Any, name: str) -> Any:
    if isinstance(found, ToolMessage):
        if found.status == "error":
            raise ToolException(str(found.text))
        return {
            "value": found.content,
            **({} if found.artifact is None else {"artifact": found.artifact}),
        }
    if isinstance(found, Command):
        return _updated(found, name)
    if isinstance(found, list) and any(isinstance(one, (Command, ToolMessage)) for one in found):
        if len(found) == 1:
            return _data(found[0], name)
        raise CapabilityError(
            f"The tool {name!r} returned {len(found)} messages or commands for one call.",
            fix="Return one.",
        )
    return found


def _updated(command: Command[Any], name: str) -> dict[str, Any]:
    jumps = [
        part for part in ("goto", "resume", "graph") if getattr(command, part) not in (None, ())
    ]
    if jumps or not isinstance(command.update, Mapping):
        raise CapabilityError(
            f"The tool {name!r} returned a Command with {' and '.join(jumps) or 'no named update'},"
            " and in a plan the plan says what runs next.",
            fix="Return Command(update={…}), or put the tool into an agent and make that a step.",
        )
    data = dict(command.update)
    said = data.pop("messages", [])
    texts = [str(message.text) for message in (said if isinstance(said, list) else [said])]
    return {**data, "value": "\n".join(texts)} if texts else data


def _classify(
    tool: BaseTool, error: Exception, context: dict[str, Any]
) -> ErrorClassification | None:
    if not isinstance(error, ToolException):
        return BaseCapability.classify_error(error, context)
    how = tool.handle_tool_error
    said = how(error) if callable(how) else how if isinstance(how, str) else error
    severity = ErrorSeverity.REPLANNING if how else ErrorSeverity.CRITICAL
    return ErrorClassification(severity, str(said) or f"{tool.name} failed.")
