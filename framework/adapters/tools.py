"""LangChain tools as capabilities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException
from langchain_core.tools.base import FILTERED_ARGS, get_all_basemodel_annotations
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import create_model

from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.argument_injection import Getter, find_injection, resolve_hints
from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.error_classification import ErrorClassification
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.base.step_context import StepContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.threads import run_in_thread
from capgraph.langgraph_compat import has_other_callbacks
from capgraph.pipeline.failures import TOOL_ERROR
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK
from capgraph.telemetry.usage_callback import USAGE_CALLBACK


@validate_arguments
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
    stands under ``value`` and the artifact under ``artifact``. A ``Command`` updates keys of the
    application's state, and the text of its messages stands under ``value``; one that jumps
    (``goto``, ``resume``, ``graph``) is refused, since a plan says what runs next.

    A ``ToolException`` fails the step: CRITICAL, as it would end an agent's run, and REPLANNING
    where the tool says ``handle_tool_error``, with the text that is made for the model.

    Args:
        tool: The tool, or an annotated function with a docstring.
        provides: Context type of its result; one named after the tool when not given.
        effect: ``none``, ``idempotent`` or ``once``.
        permission: What its caller must be allowed.
        name: Name of the capability; the tool's when not given.
        description: Description for planners; the tool's when not given.
        **options: What :func:`~capgraph.adapters.schema_capability.declare` takes.

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
        tool = _function_to_tool(tool)
    check_names(f"tool_capability({tool.name!r})", options, accepted_names("tool"))
    injected = _injected_arguments(tool)
    schema: Any = tool.args_schema
    if schema is None and isinstance(tool, Tool):
        [argument] = tool.args  # one text
        made: Any = create_model
        schema = made(tool.name, **{argument: (str, ...)})
    elif schema is None:
        schema = tool.get_input_schema()
    own = tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})
    shown = _hide_arguments(injected.keys(), schema)
    bare = _plain_function(own) if shown is schema else None
    call = partial(_call_tool, own, injected, bare)
    options.setdefault("classify_error", partial(_classify_error, tool))
    if effect == "none":
        options.setdefault("on_error", "observe")
    return capability_from_schema(
        name or tool.name,
        description or tool.description,
        shown,
        call,
        provides=provides,
        effect=effect,
        permission=permission,
        **options,
    )


def _function_to_tool(function: Any) -> BaseTool:
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


async def _call_tool(
    tool: BaseTool,
    injected: Mapping[str, Getter],
    plain_function: Callable[..., Any] | None,
    values: dict[str, Any],
    step: StepContext,
) -> Any:
    """Run a tool with the parameters of a step and what is injected."""
    sync = _is_sync(tool)
    # What LangChain does around a function of a tool costs more than the step, and is for those
    # who watch; what it checks has been checked.
    if plain_function is not None and not has_other_callbacks(USAGE_CALLBACK, BUDGET_CALLBACK):
        given = {**values, **{name: get(step) for name, get in injected.items()}}
        return _read_result(
            await (run_in_thread(plain_function, **given) if sync else plain_function(**given)),
            tool.name,
        )
    given = values
    if injected and isinstance(tool, StructuredTool):
        tool = _bind_injected(tool, injected, step)
    elif injected:
        given = {**values, **{name: get(step) for name, get in injected.items()}}
    if tool.response_format == "content_and_artifact":
        call_id = step.idempotency_key
        given = {"type": "tool_call", "id": call_id, "name": tool.name, "args": given}
    return _read_result(
        await (run_in_thread(tool.invoke, given) if sync else tool.ainvoke(given)), tool.name
    )


def _is_sync(tool: BaseTool) -> bool:
    if hasattr(tool, "coroutine"):
        return tool.coroutine is None
    return type(tool)._arun is BaseTool._arun


def _plain_function(tool: BaseTool) -> Callable[..., Any] | None:
    """Return a tool's own function, where it needs nothing of LangChain's to be called."""
    as_call = tool.response_format == "content_and_artifact"
    if type(tool) is not StructuredTool or tool.callbacks or tool.verbose or as_call:
        return None
    function: Any = tool.coroutine or tool.func
    return None if {*FILTERED_ARGS} & inspect.signature(function).parameters.keys() else function


# --- what is injected ------------------------------------------------------------------------


def _injected_arguments(tool: BaseTool) -> dict[str, Getter]:
    """Return what fills the arguments of a tool that no plan may supply.

    Raises:
        ConfigurationError: Nothing here can fill one of them.
    """
    function = getattr(tool, "coroutine", None) or getattr(tool, "func", None) or tool._run
    schema: Any = tool.get_input_schema()
    fields = {} if isinstance(tool.args_schema, dict) else get_all_basemodel_annotations(schema)
    named = {"runtime": ToolRuntime} if "runtime" in inspect.signature(function).parameters else {}
    is_class = not isinstance(tool, StructuredTool)
    found: dict[str, Getter] = {}
    for name, hint in {**named, **resolve_hints(function), **fields}.items():
        if name in (*FILTERED_ARGS, "return") or (hint is RunnableConfig and is_class):
            continue  # LangChain fills these itself
        match = find_injection(hint)
        if match is None and name in named:
            match = find_injection(ToolRuntime)  # a ToolNode goes by the name
        if match is None:
            continue
        passed = not is_class or tool.args_schema is None or name in fields
        if match.get is not None and (passed or name in tool._injected_args_keys):
            found[name] = match.get
        elif match.kind != "InjectedToolArg" or _is_required(function, schema, name):
            raise ConfigurationError(
                f"The argument {name!r} of the tool {tool.name!r} is of type {match.kind}: LangGraph"
                " or LangChain injects that type, so no plan may supply it.",
                fix=match.fix or f"Name {name!r} in its args_schema, with the same annotation.",
            )
    return found


def _is_required(function: Any, schema: Any, name: str) -> bool:
    if name in schema.model_fields:
        return bool(schema.model_fields[name].is_required())
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _hide_arguments(names: Collection[str], schema: Any) -> Any:
    """Return the parameters of a tool that a plan supplies."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        kept = {name: part for name, part in properties.items() if name not in names}
        needed = [name for name in schema.get("required", ()) if name not in names]
        same = len(kept) == len(properties)
        return schema if same else {**schema, "properties": kept, "required": needed}
    hidden = {name for name in schema.model_fields if name in names}
    hidden |= {
        n for n, hint in get_all_basemodel_annotations(schema).items() if find_injection(hint)
    }
    if not hidden:
        return schema
    made: Any = create_model
    rest = {n: (i.annotation, i) for n, i in schema.model_fields.items() if n not in hidden}
    return made(schema.__name__, __config__=schema.model_config, **rest)


def _bind_injected(
    tool: StructuredTool, injected: Mapping[str, Getter], step: StepContext
) -> BaseTool:
    """Return a tool whose function is given what is injected past LangChain.

    The fields of its own schema stay, with their validators, and what is injected is none of the
    values that those who watch are shown.
    """
    function: Any = tool.coroutine or tool.func
    signature = inspect.signature(function)

    def call(**given: Any) -> Any:
        return function(**{**given, **{name: get(step) for name, get in injected.items()}})

    async def called(**given: Any) -> Any:
        return await call(**given)

    made: Any = called if tool.coroutine else call
    left = [one for name, one in signature.parameters.items() if name not in injected]
    made.__signature__ = signature.replace(parameters=left)
    changed: dict[str, Any] = {"coroutine" if tool.coroutine else "func": made}
    schema: Any = tool.args_schema
    if not isinstance(schema, dict):
        fields: Any = {name: (Any, None) for name in injected if name in schema.model_fields}
        changed["args_schema"] = create_model(schema.__name__, __base__=schema, **fields)
    return tool.model_copy(update=changed)


def _read_result(result: Any, name: str) -> Any:
    if isinstance(result, ToolMessage):
        if result.status == "error":
            raise ToolException(str(result.text))
        return {
            "value": result.content,
            **({} if result.artifact is None else {"artifact": result.artifact}),
        }
    if isinstance(result, list) and any(isinstance(one, (Command, ToolMessage)) for one in result):
        if len(result) == 1:
            return _read_result(result[0], name)
        raise CapabilityError(
            f"The tool {name!r} returned {len(result)} messages or commands for one call.",
            fix="Return one.",
        )
    return result


def _classify_error(
    tool: BaseTool, error: Exception, context: dict[str, Any]
) -> ErrorClassification | None:
    if not isinstance(error, ToolException):
        return BaseCapability.classify_error(error, context)
    how = tool.handle_tool_error
    said = how(error) if callable(how) else how if isinstance(how, str) else error
    severity = ErrorSeverity.REPLANNING if how else ErrorSeverity.CRITICAL
    details = {"category": TOOL_ERROR}
    return ErrorClassification(severity, str(said) or f"{tool.name} failed.", details)
