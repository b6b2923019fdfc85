"""Arguments that the framework fills in by their annotation: they are never parameters of a step.

Besides the types of this module these are the ones that LangGraph injects into a node and LangChain
into a tool. They are matched by name, since the contracts import nothing of LangGraph.
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
    """Streams how far the step is: ``progress("half done", 0.5)``."""

    def __call__(self, message: str, fraction: float | None = None, /) -> None:
        """Say what is being done, and how far it is between 0 and 1."""


IdempotencyKey = NewType("IdempotencyKey", str)
"""Key to hand to an outside system: the same over retries, restarts and replays of a step."""

AttemptNumber = NewType("AttemptNumber", int)
"""1 for the first try of a step."""

StepSettings = NewType("StepSettings", Mapping[str, Any])
"""The settings section of the capability."""

Getter = Callable[[StepContext], Any]


class Injection(NamedTuple):
    """Match of an annotation.

    Attributes:
        kind: Name of the type or the mark, for errors.
        get: Returns the value from the step; ``None`` if a capability cannot have it.
        fix: Replacement for a type that a capability cannot have.
    """

    kind: str
    get: Getter | None
    fix: str = ""


def find_injection(annotation: Any) -> Injection | None:
    """Return what fills an argument of an annotation at run time; ``None`` for a plain type.

    ``Optional``, ``Annotated`` and annotations that are text are read like LangGraph and LangChain
    read them. A type that only contains an injected one, such as a list of it, cannot be filled.

    >>> from langchain_core.runnables import RunnableConfig
    >>> find_injection(RunnableConfig | None).kind, find_injection(int)
    ('RunnableConfig', None)
    >>> find_injection(list[RunnableConfig]).fix
    'Take RunnableConfig itself.'
    """
    if isinstance(annotation, str):  # a name that only its author's type checker sees
        names = [name for name in re.findall(r"\w+", annotation) if name not in _NOT_TYPES]
        known = {full.rpartition(".")[2]: full for full in (*_TYPES, *_MARKS, _WRITER)}
        if len(names) == 1 and names[0] in known:
            return _found(known[names[0]], None, is_optional=bool(_MAY_LACK.search(annotation)))
        return next((Injection(name, None, _UNREADABLE) for name in names if name in known), None)
    kind, marks, is_optional = _unwrapped(annotation)
    for mark in marks:
        for name in _names(mark if isinstance(mark, type) else type(mark)):
            if name in _MARKS:
                return _found(name, mark, is_optional=is_optional)
    if isinstance(kind, ForwardRef):
        return find_injection(kind.__forward_arg__)
    if get_origin(kind) is Callable and get_args(kind) in _WRITES:
        return _found(_WRITER, None)
    origin = get_origin(kind) or kind
    for name in _names(origin) if isinstance(origin, type) else ():
        if name in _TYPES:
            return _found(name, origin, is_optional=is_optional)
    try:
        own = _GETTERS.get(kind)
    except TypeError:  # Annotated with something that has no hash
        own = None
    if own is not None:
        return Injection(getattr(kind, "__name__", str(kind)), own)
    parts = (find_injection(part) for part in get_args(kind) if not isinstance(part, (str, list)))
    return next((_contained(part.kind) for part in parts if part is not None), None)


def check_parameter(owner: str, name: str, annotation: Any) -> None:
    """Refuse a parameter of a step that LangGraph or LangChain would inject.

    Args:
        owner: The subject of the message.
        name: Name of the parameter.
        annotation: Its type.

    Raises:
        ValidationError: A plan, and so a model or a caller, would supply the value.
    """
    found = find_injection(annotation)
    if found is not None:
        raise ValidationError(
            f"{owner} has the parameter {name!r} of type {found.kind}: a plan would supply what"
            " the run supplies.",
            fix=found.fix or "Remove it, and take it as an argument of the function or execute.",
        )


def argument_getter(
    owner: str, name: str, annotation: Any, *, is_input: bool = False
) -> Getter | None:
    """Return what fills an argument of a function; ``None`` if it is a parameter.

    Args:
        owner: The function, for the message.
        name: Name of the argument.
        annotation: Its type.
        is_input: Whether a context fills it otherwise, so that its name may be any.

    Raises:
        ValidationError: LangGraph or LangChain injects it, and a capability cannot have it.
    """
    found = find_injection(annotation)
    if found is not None and found.get is not None:
        return found.get
    fix = found.fix if found is not None else None if is_input else RESERVED_ARGUMENTS.get(name)
    if fix is None:
        return None
    shown = found.kind if found is not None else getattr(annotation, "__name__", str(annotation))
    raise ValidationError(
        f"The parameter {name!r} of {owner!r} is of type {shown}: LangGraph or LangChain injects"
        f" {'that type' if found is not None else 'an argument of that name'}, so no plan may"
        " supply it.",
        fix=fix,
    )


def argument_getters(function: Any) -> dict[str, Getter]:
    """Return what fills the arguments of a function whose parameters no plan supplies.

    Args:
        function: An ``execute``; its first argument is the state or the instance. Of an argument
            without annotation the name decides, as in a node of LangGraph.

    >>> def execute(state, config, limit=3): ...
    >>> list(argument_getters(execute))
    ['config']
    """
    taken = inspect.signature(function, follow_wrapped=False).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        taken = inspect.signature(function).parameters  # its decorator passes on what it is given
    hints = resolve_hints(function)
    found: dict[str, Getter] = {}
    for name, one in [*taken.items()][1:]:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            continue
        annotation = hints.get(name, one.annotation)
        if annotation is one.empty:
            full = _UNANNOTATED.get(name)
            match = None if full is None else _found(full, None, is_optional=True)
        else:
            match = find_injection(annotation)
        if match is not None and match.get is not None:
            found[name] = match.get
    return found


def resolve_hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, a partial one, or an object that can be called.

    An annotation that cannot be read stays text, and does not hide the others.
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
            name: _read(annotation, names) for name, annotation in function.__annotations__.items()
        }


def _read(annotation: Any, names: dict[str, Any]) -> Any:
    holder: Any = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, names, include_extras=True)["it"]
    except NameError:
        return annotation


def is_command(annotation: Any) -> bool:
    """Tell whether a type is LangGraph's ``Command``, which a capability may return."""
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and "langgraph.types.Command" in _names(kind)


def _unwrapped(annotation: Any) -> tuple[Any, list[Any], bool]:
    """Return a type without ``Annotated`` and ``Optional``, the marks, and whether it may lack."""
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


def _names(cls: type[Any]) -> Iterator[str]:
    for one in cls.__mro__:
        yield f"{one.__module__}.{one.__qualname__}"


def _found(name: str, given: Any, *, is_optional: bool = False) -> Injection:
    entry = {**_TYPES, **_MARKS, _WRITER: _writer}[name]
    kind = name.rpartition(".")[2]
    if isinstance(entry, str):
        return Injection(kind, None, entry)
    return Injection(kind, partial(entry, given, is_optional))


def _contained(kind: str) -> Injection:
    return Injection(kind, None, f"Take {kind} itself.")


def current_run_config() -> Mapping[str, Any]:
    """Return the configuration of the run that calls this, as LangGraph hands it to a node."""
    from langchain_core.runnables.config import ensure_config  # heavy

    return ensure_config()


def _config(_given: Any, _optional: bool, _step: StepContext) -> Any:
    return current_run_config()


def _runtime(_given: Any, _optional: bool, step: StepContext) -> Any:
    return step.runtime


def _tool_runtime(cls: Any, is_optional: bool, step: StepContext) -> Any:
    runtime = _of_run("ToolRuntime", is_optional, step)
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


def _store(_given: Any, is_optional: bool, step: StepContext) -> Any:
    found = getattr(_of_run("the store", is_optional, step), "store", None)
    if found is None and not is_optional:
        raise CapabilityError(
            f"{step.capability!r} takes the store of the graph: the graph has none.",
            fix="Build the graph with store=…, or annotate the argument BaseStore | None.",
        )
    return found


def _writer(_given: Any, _optional: bool, step: StepContext) -> Any:
    return step.runtime.stream_writer if step.runtime is not None else lambda _chunk: None


def _state(mark: Any, _optional: bool, step: StepContext) -> Any:
    field = getattr(mark, "field", None)
    return dict(step.state) if field is None else step.state.get(field)


def _call_id(_given: Any, _optional: bool, step: StepContext) -> Any:
    return step.idempotency_key


def _of_run(what: str, is_optional: bool, step: StepContext) -> Any:
    if step.runtime is None and not is_optional:
        raise CapabilityError(
            f"{step.capability!r} takes {what} of a run: there is no run.",
            fix="Run it in a graph.",
        )
    return step.runtime


_CALLBACKS = "Take config: RunnableConfig; config['callbacks'] holds the callbacks of the run."
_WRITER = "langgraph.types.StreamWriter"
"""An alias of ``Callable[[Any], None]``: it has no class that could name it."""
_TYPES: dict[str, Any] = {
    "langchain_core.runnables.config.RunnableConfig": _config,
    "langgraph.runtime.Runtime": _runtime,
    "langgraph.prebuilt.tool_node.ToolRuntime": _tool_runtime,
    "langgraph.store.base.BaseStore": _store,
    "langgraph.errors.NodeError": "Remove it, and classify errors with classify_error.",
    "langchain_core.callbacks.base.BaseCallbackHandler": _CALLBACKS,
    "langchain_core.callbacks.base.BaseCallbackManager": _CALLBACKS,
    "langchain_core.callbacks.manager.BaseRunManager": _CALLBACKS,
    "langchain_core.tools.base._DirectlyInjectedToolArg": "Take ToolRuntime.",
}
"""Class to what returns its value, or to what an author writes in its place."""
_MARKS: dict[str, Any] = {
    "langgraph.prebuilt.tool_node.InjectedState": _state,
    "langgraph.prebuilt.tool_node.InjectedStore": _store,
    "langchain_core.tools.base.InjectedToolCallId": _call_id,
    "langchain_core.tools.base.InjectedToolArg": "Take ToolRuntime or InjectedState, or bind the"
    " argument with a function of your own.",
}
"""Class of an ``Annotated`` mark to the same."""
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
_MAY_LACK = re.compile(r"\b(None|Optional)\b")
_UNREADABLE = "Import the type where the annotation can be read, not under TYPE_CHECKING."
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
