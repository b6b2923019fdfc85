"""Capabilities backed by LangChain tools."""

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
    """Create a capability from a LangChain tool or an annotated function.

    The capability has the tool's name, description, and parameters. Injected arguments (state,
    store, runtime, call ID) are filled in from the step. A synchronous tool runs in a thread.

    The tool's return value becomes the data of the context type:

    - A dictionary, pydantic object, or dataclass is the data itself.
    - Any other value is stored under ``value``.
    - With ``content_and_artifact``, the content is stored under ``value`` and the artifact under
      ``artifact``.
    - A ``Command`` updates keys of the application's state, and the text of its messages is stored
      under ``value``. A command with ``goto``, ``resume``, or ``graph`` is rejected, because the
      plan decides which step runs next.

    A ``ToolException`` fails the step. The severity is CRITICAL, or REPLANNING with the text for
    the model if the tool sets ``handle_tool_error``.

    Args:
        tool: LangChain tool, or annotated function with a docstring.
        provides: Context type of the result. Defaults to a type named after the tool.
        effect: ``none``, ``idempotent``, or ``once``.
        permission: Permission that callers need.
        name: Name of the capability. Defaults to the name of the tool.
        description: Description for planners. Defaults to the tool's.
        **options: Keywords of :func:`~capgraph.adapters.schema_capability.capability_from_schema`.

    Raises:
        ConfigurationError: The argument is neither a tool nor a function, or an injected argument
            is not supported.
        ValidationError: The tool's schema or a declaration is invalid.

    >>> def celsius(fahrenheit: float) -> float:
    ...     '''Convert degrees.'''
    ...     return (fahrenheit - 32) / 1.8
    >>> tool_capability(celsius, provides="CELSIUS").capability_spec.name
    'celsius'
    """
    if not isinstance(tool, BaseTool):
        tool = _function_to_tool(tool)
    check_names(f"tool_capability({tool.name!r})", options, accepted_names("tool"))
    injected = _find_injected_arguments(tool)
    schema: Any = tool.args_schema
    if schema is None and isinstance(tool, Tool):
        [argument] = tool.args  # a single text
        model_factory: Any = create_model
        schema = model_factory(tool.name, **{argument: (str, ...)})
    elif schema is None:
        schema = tool.get_input_schema()
    own_tool = tool.model_copy(
        update={"handle_tool_error": False, "handle_validation_error": False}
    )
    parameters = _hide_arguments(injected.keys(), schema)
    plain = _get_plain_function(own_tool) if parameters is schema else None
    call = partial(_call_tool, own_tool, injected, plain)
    options.setdefault("classify_error", partial(_classify_error, tool))
    if effect == "none":
        options.setdefault("on_error", "observe")
    return capability_from_schema(
        name or tool.name,
        description or tool.description,
        parameters,
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
            fix="Pass a BaseTool, or a function with annotations and a docstring.",
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
            f"The function {function.__name__!r} cannot be converted to a tool: {exc}",
            fix="Add annotations and a docstring.",
        ) from exc


async def _call_tool(
    tool: BaseTool,
    injected: Mapping[str, Getter],
    plain_function: Callable[..., Any] | None,
    values: dict[str, Any],
    step: StepContext,
) -> Any:
    """Call a tool with a step's parameters and injected arguments."""
    sync = _is_sync(tool)
    # Calling the function directly is faster. LangChain's wrapper only serves callbacks here, and
    # the arguments are already validated.
    if plain_function is not None and not has_other_callbacks(USAGE_CALLBACK, BUDGET_CALLBACK):
        arguments = {**values, **{name: get(step) for name, get in injected.items()}}
        return _read_result(
            await (
                run_in_thread(plain_function, **arguments) if sync else plain_function(**arguments)
            ),
            tool.name,
        )
    arguments = values
    if injected and isinstance(tool, StructuredTool):
        tool = _bind_injected(tool, injected, step)
    elif injected:
        arguments = {**values, **{name: get(step) for name, get in injected.items()}}
    if tool.response_format == "content_and_artifact":
        call_id = step.idempotency_key
        arguments = {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}
    return _read_result(
        await (run_in_thread(tool.invoke, arguments) if sync else tool.ainvoke(arguments)),
        tool.name,
    )


def _is_sync(tool: BaseTool) -> bool:
    if hasattr(tool, "coroutine"):
        return tool.coroutine is None
    return type(tool)._arun is BaseTool._arun


def _get_plain_function(tool: BaseTool) -> Callable[..., Any] | None:
    """Return the function behind a tool if it can be called without LangChain's wrapper.

    Return None if the tool requires the wrapper, for example because it has its own callbacks.
    """
    as_call = tool.response_format == "content_and_artifact"
    if type(tool) is not StructuredTool or tool.callbacks or tool.verbose or as_call:
        return None
    function: Any = tool.coroutine or tool.func
    return None if {*FILTERED_ARGS} & inspect.signature(function).parameters.keys() else function


# --- injected arguments ----------------------------------------------------------------------


def _find_injected_arguments(tool: BaseTool) -> dict[str, Getter]:
    """Return a getter for each injected argument of a tool.

    Injected arguments are supplied by the framework and must not appear in a plan.

    Raises:
        ConfigurationError: An injected argument is not supported.
    """
    function = getattr(tool, "coroutine", None) or getattr(tool, "func", None) or tool._run
    schema: Any = tool.get_input_schema()
    fields = {} if isinstance(tool.args_schema, dict) else get_all_basemodel_annotations(schema)
    by_name = (
        {"runtime": ToolRuntime} if "runtime" in inspect.signature(function).parameters else {}
    )
    is_class = not isinstance(tool, StructuredTool)
    getters: dict[str, Getter] = {}
    for name, hint in {**by_name, **resolve_hints(function), **fields}.items():
        if name in (*FILTERED_ARGS, "return") or (hint is RunnableConfig and is_class):
            continue  # LangChain supplies these arguments itself
        match = find_injection(hint)
        if match is None and name in by_name:
            match = find_injection(ToolRuntime)  # a ToolNode recognizes the argument by its name
        if match is None:
            continue
        passed = not is_class or tool.args_schema is None or name in fields
        if match.get is not None and (passed or name in tool._injected_args_keys):
            getters[name] = match.get
        elif match.kind != "InjectedToolArg" or _is_required(function, schema, name):
            raise ConfigurationError(
                f"The argument {name!r} of the tool {tool.name!r} has the type {match.kind},"
                " which is not supported: LangGraph or LangChain injects it, so a plan"
                " cannot supply it.",
                fix=match.fix or f"Add {name!r} to args_schema with the same annotation.",
            )
    return getters


def _is_required(function: Any, schema: Any, name: str) -> bool:
    if name in schema.model_fields:
        return bool(schema.model_fields[name].is_required())
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _hide_arguments(names: Collection[str], schema: Any) -> Any:
    """Remove injected arguments from a tool's argument schema."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        visible = {name: part for name, part in properties.items() if name not in names}
        required = [name for name in schema.get("required", ()) if name not in names]
        is_unchanged = len(visible) == len(properties)
        return schema if is_unchanged else {**schema, "properties": visible, "required": required}
    hidden = {name for name in schema.model_fields if name in names}
    hidden |= {
        n for n, hint in get_all_basemodel_annotations(schema).items() if find_injection(hint)
    }
    if not hidden:
        return schema
    model_factory: Any = create_model
    visible_fields = {
        n: (i.annotation, i) for n, i in schema.model_fields.items() if n not in hidden
    }
    return model_factory(schema.__name__, __config__=schema.model_config, **visible_fields)


def _bind_injected(
    tool: StructuredTool, injected: Mapping[str, Getter], step: StepContext
) -> BaseTool:
    """Return a copy of a tool whose function receives its injected arguments directly.

    The argument schema keeps its fields and validators, and callbacks do not receive the
    injected values.
    """
    function: Any = tool.coroutine or tool.func
    signature = inspect.signature(function)

    def call(**arguments: Any) -> Any:
        return function(**{**arguments, **{name: get(step) for name, get in injected.items()}})

    async def call_async(**arguments: Any) -> Any:
        return await call(**arguments)

    bound: Any = call_async if tool.coroutine else call
    visible = [one for name, one in signature.parameters.items() if name not in injected]
    bound.__signature__ = signature.replace(parameters=visible)
    changes: dict[str, Any] = {"coroutine" if tool.coroutine else "func": bound}
    schema: Any = tool.args_schema
    if not isinstance(schema, dict):
        fields: Any = {name: (Any, None) for name in injected if name in schema.model_fields}
        changes["args_schema"] = create_model(schema.__name__, __base__=schema, **fields)
    return tool.model_copy(update=changes)


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
            fix="Return one message or command.",
        )
    return result


def _classify_error(
    tool: BaseTool, error: Exception, context: dict[str, Any]
) -> ErrorClassification | None:
    if not isinstance(error, ToolException):
        return BaseCapability.classify_error(error, context)
    handler = tool.handle_tool_error
    text = handler(error) if callable(handler) else handler if isinstance(handler, str) else error
    severity = ErrorSeverity.REPLANNING if handler else ErrorSeverity.CRITICAL
    details = {"category": TOOL_ERROR}
    return ErrorClassification(severity, str(text) or f"{tool.name} failed.", details)
