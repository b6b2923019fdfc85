"""Decorators ``@capability_node`` and ``@infrastructure_node``.

They validate a class, create its specification, and attach a graph node. The node's behavior is in
``capgraph.engine``, which is imported when a node runs for the first time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from capgraph.base.argument_injection import argument_getters
from capgraph.base.capability import BaseCapability
from capgraph.base.declarations import (
    NODE_DECLARATIONS,
    NODE_OPTIONS,
    accepted_names,
    check_attributes,
    check_names,
)
from capgraph.base.errors import ValidationError
from capgraph.base.function_capability import capability_from_function
from capgraph.base.graph_node import GraphNode, NodeDescriptor
from capgraph.base.guides import add_examples
from capgraph.base.infrastructure import BaseInfrastructureNode
from capgraph.base.spec import DECLARED, CapabilitySpec, InfrastructureSpec
from capgraph.base.step_context import EXECUTE_ARGUMENTS
from capgraph.configs.suggestions import correct_spelling
from capgraph.helpers.threads import is_sync

T = TypeVar("T", bound=type)

_METHODS = ("execute", "classify_error", "get_retry_policy")


@overload
def capability_node(target: T, /) -> T: ...
@overload
def capability_node(target: Callable[..., Any], /) -> type[BaseCapability]: ...
@overload
def capability_node(**options: Any) -> Callable[[Callable[..., Any]], type[BaseCapability]]: ...
def capability_node(target: Any = None, /, **options: Any) -> Any:
    """Make a class or an annotated function a capability.

    A class is returned with two additional attributes: ``capability_spec`` (its frozen declarations)
    and ``langgraph_node`` (an async function ``(state, **kwargs)`` that runs the current step).

    Args:
        target: Class with ``name``, ``description``, ``execute``, ``classify_error``, and
            ``get_retry_policy``; or a function whose annotations declare inputs, parameters, and
            outputs. The keyword ``cls=`` is accepted, too.
        **options: ``examples``. For functions also ``name``, ``description``, ``max_attempts``,
            ``delay_seconds``, ``classify_error``, ``parameters_from``, and the fields of
            :class:`~capgraph.base.spec.Declarations`.

    Raises:
        ValueError: A required attribute or method is missing.

    >>> from capgraph.base import CapabilityContext
    >>> class Place(CapabilityContext):
    ...     name: str
    >>> class Forecast(CapabilityContext):
    ...     celsius: float
    >>> @capability_node
    ... async def forecast(place: Place) -> Forecast:
    ...     '''Forecast the temperature of a place.'''
    ...     return Forecast(celsius=20.0)
    >>> forecast.capability_spec.requires
    (Requirement(type='PLACE', cardinality='one'),)
    """
    target = options.pop("cls", target)
    if target is None:
        return lambda function: capability_node(function, **options)
    if not isinstance(target, type):
        return capability_node(capability_from_function(target, **options))
    _set_examples(target, options)
    _check_class(target, "capability")
    check_attributes(target, BaseCapability, accepted_names("class"))
    if not issubclass(target, BaseCapability):
        _add_defaults(target)
    spec = (
        target.spec() if issubclass(target, BaseCapability) else CapabilitySpec.from_class(target)
    )

    target.langgraph_node = NodeDescriptor(GraphNode(spec))  # type: ignore[attr-defined]
    target.capability_spec = spec  # type: ignore[attr-defined]
    return target


def _set_examples(target: type[Any], options: dict[str, Any]) -> None:
    """Set the examples passed to the decorator as an attribute of the decorated class.

    All other declarations must be set in the class body and are rejected.
    """
    owner = f"capability_node got {sorted(options)} for the class {target.__name__}"
    for name, value in options.items():
        if name not in DECLARED:
            near = correct_spelling(name, accepted_names("function"))
            fix = f"Write {near!r}, as an attribute of the class." if near else "Remove it."
            raise ValidationError(f"{owner}: {name!r} is not a declaration.", fix=fix)
        # Declarations of effects and permissions belong in the class body, where readers look.
        if name != "examples":
            raise ValidationError(
                f"{owner}.",
                fix=f"Set {name} as an attribute of the class; functions take keywords.",
            )
        if name in vars(target):
            raise ValidationError(
                f"{owner}, but the class already has the attribute 'examples'.",
                fix="Declare them once.",
            )
        setattr(target, name, value)


def _add_defaults(target: Any) -> None:
    """Add default values for missing declarations to a class without the capability base class."""
    for name, value in DECLARED.items():
        if not hasattr(target, name):
            setattr(target, name, value)
    if not hasattr(target, "classifier_guide"):
        guide = add_examples(None, target.examples, target.description)
        target.classifier_guide = guide


@overload
def infrastructure_node(cls: T) -> T: ...
@overload
def infrastructure_node(
    *, quiet: bool = False, before: str | None = None, after: str | None = None
) -> Callable[[T], T]: ...
def infrastructure_node(
    cls: Any = None,
    *,
    quiet: bool = False,
    before: str | None = None,
    after: str | None = None,
    **unknown: Any,
) -> Any:
    """Make a class an infrastructure node.

    Args:
        cls: Class with ``name``, ``description``, a static ``execute``, ``classify_error``, and
            ``get_retry_policy``.
        quiet: True to omit the start and the end of the node from the log.
        before: Name of the node before which a custom node is inserted, such as ``"classifier"``. The
            class attribute ``before`` has the same effect.
        after: Name of the node after which a custom node is inserted, such as ``"respond"``.
        **unknown: Unknown options, which raise an error.

    Raises:
        ValueError: A required attribute or method is missing, or a name is unknown.
    """
    check_names("infrastructure_node", unknown, NODE_OPTIONS)
    if cls is None:
        decorate: Any = infrastructure_node
        return partial(decorate, quiet=quiet, before=before, after=after)
    _check_class(cls, "infrastructure node")
    check_attributes(cls, BaseInfrastructureNode, NODE_DECLARATIONS)
    quiet = quiet or bool(getattr(cls, "quiet", False))
    before = before or getattr(cls, "before", None)
    after = after or getattr(cls, "after", None)
    if before and after:
        raise ValueError(
            f"The infrastructure node {cls.name!r} must not have both before={before!r} and "
            f"after={after!r}. Fix: set only one of them."
        )
    behaviors = getattr(cls, "behaviors", ())
    if not isinstance(behaviors, (list, tuple)):
        raise ValueError(
            f"{cls.__name__}.behaviors is {behaviors!r}, not a list. Fix: write behaviors = […]."
        )
    spec = InfrastructureSpec(
        cls.name, cls.description, quiet, before, after, tuple(behaviors), cls
    )

    cls.langgraph_node = NodeDescriptor(GraphNode(spec))
    cls.infrastructure_spec = spec
    return cls


def _check_class(cls: Any, kind: str) -> None:
    if not hasattr(cls, "__name__"):
        raise ValueError(f"{cls!r} is not a class. Fix: apply the decorator to a class.")
    for attribute in ("name", "description"):
        value = getattr(cls, attribute, None)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(
                f"The {kind} {cls.__name__} has {attribute}={value!r}."
                f' Fix: set the class attribute {attribute} = "...".'
            )
    for method in _METHODS:
        function = getattr(cls, method, None)
        if not callable(function) or getattr(function, "__isabstractmethod__", False):
            raise ValueError(
                f"The {kind} {cls.__name__} ({cls.name!r}) must have the method {method!r}. Fix: "
                f"define {method}, or inherit it from the base class."
            )
        if method != "execute":
            _check_static(cls, kind, method)
    # A synchronous capability runs in a thread; an infrastructure node must be a coroutine.
    if kind != "capability" and is_sync(cls.execute):
        raise ValueError(
            f"The method 'execute' of the {kind} {cls.__name__} ({cls.name!r}) is not a coroutine"
            " function. Fix: define it with 'async def'."
        )
    _check_signature(cls, kind)


def _check_static(cls: Any, kind: str, method: str) -> None:
    """Check that a method is synchronous and static.

    The framework calls the method on the class after a failure. An invalid definition would
    raise an error that hides the original failure.
    """
    function = inspect.getattr_static(cls, method)
    label = f"The method {method!r} of the {kind} {cls.__name__} ({cls.name!r})"
    if inspect.iscoroutinefunction(getattr(cls, method)):
        raise ValueError(f"{label} is a coroutine function. Fix: define it with 'def'.")
    if inspect.isfunction(function) and "self" in list(inspect.signature(function).parameters)[:1]:
        raise ValueError(f"{label} is not static. Fix: add @staticmethod.")


def _check_signature(cls: Any, kind: str) -> None:
    """Check that the framework can supply every argument of ``execute``."""
    execute = inspect.getattr_static(cls, "execute")
    static = isinstance(execute, staticmethod)
    if static and kind != "capability":
        return
    label = f"The method 'execute' of the {kind} {cls.__name__} ({cls.name!r})"
    # A decorator of the author may supply further arguments, so only its own signature counts.
    function = getattr(execute, "__func__", execute)
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    if static and not parameters:
        raise ValueError(f"{label} has no 'state' argument. Fix: write 'execute(state, **kwargs)'.")
    if isinstance(execute, classmethod) or kind != "capability" or not parameters:
        raise ValueError(f"{label} is not static. Fix: add @staticmethod.")
    if parameters[0].name == "state" and not static:
        raise ValueError(
            f"{label} takes 'state' but is not static. Fix: add @staticmethod, or write"
            " 'async def execute(self)' and read self.state."
        )
    unknown = [
        p.name
        for p in parameters[1:]
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if not (static and p.name in EXECUTE_ARGUMENTS) and p.name not in argument_getters(function)
    ]
    if unknown:
        fix = (
            "take only self and types that LangGraph injects; read self.inputs and self.parameters."
        )
        if static:
            names = ", ".join(EXECUTE_ARGUMENTS)
            fix = f"take state, any of {names}, and types that LangGraph injects."
        raise ValueError(f"{label} has unknown arguments {unknown}. Fix: {fix}")
