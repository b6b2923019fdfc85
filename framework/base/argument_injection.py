"""Injection of arguments by their type annotation, so that no plan has to supply them.

Injected types are those of this module, those that LangGraph injects into nodes, and those that
LangChain injects into tools. They are matched by name, because this package does not import LangGraph.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import (
    Annotated,
    Any,
    ForwardRef,
    NamedTuple,
    NewType,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from capgraph.base.errors import CapabilityError, ValidationError
from capgraph.base.step_context import StepContext
from capgraph.configs.logger import ComponentLogger


class Progress(Protocol):
    """Callback that reports a step's progress, for example ``progress("half done", 0.5)``."""

    def __call__(self, message: str, fraction: float | None = None, /) -> None:
        """Report the progress of the current step.

        Args:
            message: Description of the current activity.
            fraction: Completed fraction of the work, between 0 and 1.
        """


IdempotencyKey = NewType("IdempotencyKey", str)
"""Key to pass to external systems. It stays the same in retries, restarts, and replays."""

AttemptNumber = NewType("AttemptNumber", int)
"""Number of the current attempt, from 1."""

StepSettings = NewType("StepSettings", Mapping[str, Any])
"""Settings section of the capability."""

Getter = Callable[[StepContext], Any]


class Injection(NamedTuple):
    """Rule that determines how arguments of a certain type are injected at run time.

    Attributes:
        kind: Name of the type, for error messages.
        get: Function that returns the argument for a step, or None if the type is not
            supported.
        fix: Advice for error messages if the type is not supported.
    """

    kind: str
    get: Getter | None
    fix: str = ""


def find_injection(annotation: Any) -> Injection | None:
    """Return the injection rule for an annotation, or None if the type is not injected.

    ``Optional``, ``Annotated``, and string annotations are interpreted as in LangGraph and
    LangChain. Types that contain an injected type, such as lists, are not supported.

    >>> from langchain_core.runnables import RunnableConfig
    >>> find_injection(RunnableConfig | None).kind, find_injection(int)
    ('RunnableConfig', None)
    >>> find_injection(list[RunnableConfig]).fix
    'Take RunnableConfig itself.'
    """
    if isinstance(annotation, str):  # a name that exists only for type checkers
        names = [name for name in re.findall(r"\w+", annotation) if name not in _NOT_TYPES]
        known = {full.rpartition(".")[2]: full for full in (*_TYPES, *_MARKS, _WRITER)}
        if len(names) == 1 and names[0] in known:
            return _find_named_injection(
                known[names[0]], None, is_optional=bool(_OPTIONAL_PATTERN.search(annotation))
            )
        return next(
            (Injection(name, None, _UNRESOLVED_FIX) for name in names if name in known), None
        )
    kind, marks, is_optional = _unwrap(annotation)
    for mark in marks:
        for name in _qualified_names(mark if isinstance(mark, type) else type(mark)):
            if name in _MARKS:
                return _find_named_injection(name, mark, is_optional=is_optional)
    if isinstance(kind, ForwardRef):
        return find_injection(kind.__forward_arg__)
    if get_origin(kind) is Callable and get_args(kind) in _WRITES:
        return _find_named_injection(_WRITER, None)
    origin = get_origin(kind) or kind
    for name in _qualified_names(origin) if isinstance(origin, type) else ():
        if name in _TYPES:
            return _find_named_injection(name, origin, is_optional=is_optional)
    try:
        own = _GETTERS.get(kind)
    except TypeError:  # annotated with an unhashable value
        own = None
    if own is not None:
        return Injection(getattr(kind, "__name__", str(kind)), own)
    parts = (find_injection(part) for part in get_args(kind) if not isinstance(part, (str, list)))
    return next((_unsupported_injection(part.kind) for part in parts if part is not None), None)


def check_parameter(owner: str, name: str, annotation: Any) -> None:
    """Raise an error if LangGraph or LangChain would inject a step parameter.

    Args:
        owner: Name of the class or function, for the error message.
        name: Name of the parameter.
        annotation: Type of the parameter.

    Raises:
        ValidationError: The type is injected, so a plan cannot supply the parameter.
    """
    found = find_injection(annotation)
    if found is not None:
        raise ValidationError(
            f"{owner} has the parameter {name!r} of type {found.kind}: LangGraph injects such"
            " arguments, so a plan cannot supply them.",
            fix=found.fix or "Make it an argument of the function or of execute.",
        )


def argument_getter(
    owner: str, name: str, annotation: Any, *, is_input: bool = False
) -> Getter | None:
    """Return a getter for an injected argument, or None if the plan supplies the argument.

    Args:
        owner: Name of the function, for the error message.
        name: Name of the argument.
        annotation: Type of the argument.
        is_input: True if the argument is an input with a context type, for which any name is
            valid.

    Raises:
        ValidationError: The argument has a type or name that LangGraph or LangChain reserves,
            but that capabilities do not support.
    """
    found = find_injection(annotation)
    if found is not None and found.get is not None:
        return found.get
    fix = found.fix if found is not None else None if is_input else RESERVED_ARGUMENTS.get(name)
    if fix is None:
        return None
    shown = found.kind if found is not None else getattr(annotation, "__name__", str(annotation))
    raise ValidationError(
        f"The parameter {name!r} of {owner!r} has the type {shown}: LangGraph or LangChain injects"
        f" {'that type' if found is not None else 'arguments of that name'}, so no plan may"
        " supply it.",
        fix=fix,
    )


def argument_getters(function: Any) -> dict[str, Getter]:
    """Return getters for the injected arguments of an ``execute`` function, by argument name.

    Args:
        function: An ``execute`` function. Its first argument is the state or the instance.
            Arguments without annotations are matched by name, as in a LangGraph node.

    >>> def execute(state, config, limit=3): ...
    >>> list(argument_getters(execute))
    ['config']
    """
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        parameters = inspect.signature(
            function
        ).parameters  # a decorator that forwards its arguments
    hints = resolve_hints(function)
    found: dict[str, Getter] = {}
    for name, one in [*parameters.items()][1:]:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            continue
        annotation = hints.get(name, one.annotation)
        if annotation is one.empty:
            full = _UNANNOTATED.get(name)
            match = None if full is None else _find_named_injection(full, None, is_optional=True)
        else:
            match = find_injection(annotation)
        if match is not None and match.get is not None:
            found[name] = match.get
    return found


def resolve_hints(function: Any) -> dict[str, Any]:
    """Return the type hints of a function, a ``partial``, or a callable object.

    Annotations that cannot be resolved remain strings.
    """
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        names = getattr(function, "__globals__", {})
        return {
            name: _resolve_hint(annotation, names)
            for name, annotation in function.__annotations__.items()
        }


def _resolve_hint(annotation: Any, names: dict[str, Any]) -> Any:
    """Evaluate a string annotation.

    An annotation that refers to an unknown name is returned unchanged.
    """
    holder: Any = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, names, include_extras=True)["it"]
    except NameError:
        return annotation


def is_command(annotation: Any) -> bool:
    """Return True if an annotation is LangGraph's ``Command`` type, with or without arguments."""
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and "langgraph.types.Command" in _qualified_names(kind)


def _unwrap(annotation: Any) -> tuple[Any, list[Any], bool]:
    """Strip ``Annotated`` and ``Optional`` from a type.

    Return the inner type, the metadata from ``Annotated``, and whether the type is optional.
    """
    marks: list[Any] = []
    is_optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += more
            continue
        parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
        others = [part for part in parts if part is not type(None)]
        if len(others) != 1:
            return annotation, marks, is_optional
        annotation, is_optional = others[0], True


def _qualified_names(cls: type[Any]) -> Iterator[str]:
    for one in cls.__mro__:
        yield f"{one.__module__}.{one.__qualname__}"


def _find_named_injection(name: str, value: Any, *, is_optional: bool = False) -> Injection:
    entry = {**_TYPES, **_MARKS, _WRITER: _get_writer}[name]
    kind = name.rpartition(".")[2]
    if isinstance(entry, str):
        return Injection(kind, None, entry)
    return Injection(kind, partial(entry, value, is_optional))


def _unsupported_injection(kind: str) -> Injection:
    return Injection(kind, None, f"Take {kind} itself.")


def current_run_config() -> Mapping[str, Any]:
    """Return the LangChain configuration of the current run, as LangGraph passes it to a node."""
    from langchain_core.runnables.config import ensure_config  # heavy

    return ensure_config()


def _get_config(_value: Any, _optional: bool, _step: StepContext) -> Any:
    return current_run_config()


def _get_runtime(_value: Any, _optional: bool, step: StepContext) -> Any:
    return step.runtime


def _create_tool_runtime(cls: Any, is_optional: bool, step: StepContext) -> Any:
    runtime = _require_runtime("ToolRuntime", is_optional, step)
    return runtime and cls(
        state=dict(step.state),
        context=runtime.context,
        config=current_run_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=step.idempotency_key,
        store=runtime.store,
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )


def _get_store(_value: Any, is_optional: bool, step: StepContext) -> Any:
    found = getattr(_require_runtime("the store", is_optional, step), "store", None)
    if found is None and not is_optional:
        raise CapabilityError(
            f"The capability {step.capability!r} requires a LangGraph store, but the graph has "
            "none.",
            fix="Build the graph with store=…, or annotate the argument as BaseStore | None.",
        )
    return found


def _get_writer(_value: Any, _optional: bool, step: StepContext) -> Any:
    return step.runtime.stream_writer if step.runtime is not None else lambda _chunk: None


def _get_state(mark: Any, _optional: bool, step: StepContext) -> Any:
    field = getattr(mark, "field", None)
    return dict(step.state) if field is None else step.state.get(field)


def _get_call_id(_value: Any, _optional: bool, step: StepContext) -> Any:
    return step.idempotency_key


def _require_runtime(name: str, is_optional: bool, step: StepContext) -> Any:
    if step.runtime is None and not is_optional:
        raise CapabilityError(
            f"{step.capability!r} requires {name}, which exists only during a run.",
            fix="Run the capability in a graph.",
        )
    return step.runtime


_CALLBACKS = "Take config: RunnableConfig; config['callbacks'] holds the callbacks of the run."
_WRITER = "langgraph.types.StreamWriter"
"""Alias of ``Callable[[Any], None]``, for which there is no class to match."""
_TYPES: dict[str, Any] = {
    "langchain_core.runnables.config.RunnableConfig": _get_config,
    "langgraph.runtime.Runtime": _get_runtime,
    "langgraph.prebuilt.tool_node.ToolRuntime": _create_tool_runtime,
    "langgraph.store.base.BaseStore": _get_store,
    "langgraph.errors.NodeError": "Remove it, and classify errors with classify_error.",
    "langchain_core.callbacks.base.BaseCallbackHandler": _CALLBACKS,
    "langchain_core.callbacks.base.BaseCallbackManager": _CALLBACKS,
    "langchain_core.callbacks.manager.BaseRunManager": _CALLBACKS,
    "langchain_core.tools.base._DirectlyInjectedToolArg": "Take ToolRuntime.",
}
"""Function that returns the value of an injected class, or the fix if there is none."""
_MARKS: dict[str, Any] = {
    "langgraph.prebuilt.tool_node.InjectedState": _get_state,
    "langgraph.prebuilt.tool_node.InjectedStore": _get_store,
    "langchain_core.tools.base.InjectedToolCallId": _get_call_id,
    "langchain_core.tools.base.InjectedToolArg": "Take ToolRuntime or InjectedState, or bind the"
    " argument with a function of your own.",
    "langgraph.managed.base.ManagedValue": "Declare it in the state class, and take InjectedState.",
}
"""The same for classes of ``Annotated`` metadata."""
RESERVED_ARGUMENTS: dict[str, str] = {
    "config": "Annotate it as RunnableConfig, or rename it.",
    "runtime": "Annotate it as Runtime[Deps], or rename it.",
    "previous": "Rename it.",
    "callbacks": _CALLBACKS,
    "run_manager": _CALLBACKS,
}
"""Argument names that LangGraph or LangChain fills whatever their annotation is."""
_UNANNOTATED = {
    "config": "langchain_core.runnables.config.RunnableConfig",
    "runtime": "langgraph.runtime.Runtime",
    "store": "langgraph.store.base.BaseStore",
    "writer": _WRITER,
}
_WRITES = (([Any], None), ([Any], type(None)))
_OPTIONAL_PATTERN = re.compile(r"\b(None|Optional)\b")
_UNRESOLVED_FIX = "Import the type where the annotation can be read, not under TYPE_CHECKING."
_NOT_TYPES = frozenset({"Optional", "Union", "None", "typing"})

_GETTERS: dict[Any, Getter] = {
    StepContext: lambda step: step,
    Progress: lambda step: _progress(step),
    IdempotencyKey: lambda step: step.idempotency_key,
    AttemptNumber: lambda step: step.attempt,
    StepSettings: lambda step: step.config,
    ComponentLogger: lambda step: step.logger,
}


def _progress(step: StepContext) -> Progress:
    def notify(message: str, fraction: float | None = None, /) -> None:
        step.notify(message, fraction)

    return notify
