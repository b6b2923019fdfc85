"""Capabilities written as one annotated coroutine function."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import create_model

from framework.base.capability import BaseCapability
from framework.base.context import CapabilityContext
from framework.base.errors import ValidationError
from framework.base.guides import ClassifierExample, TaskClassifierGuide
from framework.base.spec import DECLARED

_OPTIONS = ("name", *DECLARED)


def capability_from_function(
    function: Callable[..., Any],
    *,
    description: str | None = None,
    examples: Sequence[str] = (),
    **options: Any,
) -> type[BaseCapability]:
    """Build the capability class of an annotated function.

    A parameter annotated with a context type is an input (``X`` one, ``list[X]`` many,
    ``X | None`` optional); any other annotated parameter is a step parameter. The return
    annotation names the output: a context type, or a tuple of them.

    Args:
        function: A coroutine function with annotations.
        description: What it does; the docstring's first line when not given.
        examples: Requests that need it, for the classifier.
        **options: Class attributes to set, such as ``effect``.

    Raises:
        ValidationError: The function cannot be read as a capability.
    """
    label = getattr(function, "__name__", repr(function))
    if not inspect.iscoroutinefunction(function):
        raise ValidationError(
            f"{label!r} is not a coroutine function.", fix="Write it with 'async def'."
        )
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValidationError(
            f"capability_node does not know the options {unknown} (function {label!r}).",
            fix=f"Use: description, examples, {', '.join(_OPTIONS)}.",
        )
    hints = _hints(function, label)
    inputs: dict[str, tuple[type[CapabilityContext], str]] = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        _read_parameter(parameter, hints, label, inputs, fields)
    text = (description or inspect.getdoc(function) or "").strip().split("\n")[0]
    if not text:
        raise ValidationError(
            f"The function {label!r} has no description.",
            fix="Give it a docstring, or pass description=.",
        )

    async def execute(self: BaseCapability) -> Any:
        given = {name: self.inputs[kind.CONTEXT_TYPE] for name, (kind, _) in inputs.items()}
        if fields:
            given.update({name: getattr(self.parameters, name) for name in fields})
        return await function(**given)

    def guide(_self: BaseCapability) -> TaskClassifierGuide | None:
        known = [ClassifierExample(query, True, text) for query in examples]
        return TaskClassifierGuide(instructions=text, examples=known) if known else None

    name = options.get("name") or function.__name__
    namespace = {
        **options,
        "name": name,
        "description": text,
        "provides": _outputs(hints.get("return"), label),
        "requires": list(inputs.values()),
        # Also without fields: a parameter that the function does not take is an error.
        "Parameters": create_model(f"{name}_parameters", **fields),
        "execute": execute,
        "_create_classifier_guide": guide,
        # A function has no place for planning advice, so there is nothing to warn of.
        "_create_orchestrator_guide": lambda _self: None,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__wrapped__": staticmethod(function),
    }
    return typing.cast(
        "type[BaseCapability]", type(function.__name__, (BaseCapability,), namespace)
    )


def _hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    frame = inspect.currentframe()
    # Types defined inside a function are only visible in the frames above.
    local: dict[str, Any] = {}
    while frame is not None:
        local = {**frame.f_locals, **local} if frame.f_globals is function.__globals__ else local
        frame = frame.f_back
    try:
        # With the extras: what Annotated says about a parameter is part of its declaration.
        return get_type_hints(function, localns=local, include_extras=True)
    except NameError as exc:
        raise ValidationError(
            f"The annotations of {label!r} cannot be read: {exc}.",
            fix="Define the context types before the function.",
        ) from exc


def _read_parameter(
    parameter: inspect.Parameter,
    hints: dict[str, Any],
    label: str,
    inputs: dict[str, tuple[type[CapabilityContext], str]],
    fields: dict[str, Any],
) -> None:
    if parameter.name not in hints or parameter.kind in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
        parameter.POSITIONAL_ONLY,
    ):
        raise ValidationError(
            f"The parameter {parameter.name!r} of {label!r} cannot be filled.",
            fix="Annotate each parameter with a context type or a plain type.",
        )
    annotation = hints[parameter.name]
    found = _as_input(annotation)
    if found is None:
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (annotation, default)
        return
    kind = found[0].CONTEXT_TYPE
    if any(kind == known.CONTEXT_TYPE for known, _ in inputs.values()):
        raise ValidationError(
            f"{label!r} takes the context type {kind!r} twice.",
            fix=f"Take list[...] to get several {kind} at once.",
        )
    inputs[parameter.name] = found


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, CapabilityContext)


def _as_input(annotation: Any) -> tuple[type[CapabilityContext], str] | None:
    annotation = _bare(annotation)
    if _is_context(annotation):
        return (annotation, "one")
    arguments = [_bare(item) for item in get_args(annotation)]
    origin = get_origin(annotation)
    if origin in (list, Sequence) and arguments and _is_context(arguments[0]):
        return (arguments[0], "many")
    if origin in (Union, types.UnionType) and type(None) in arguments:
        inner = [item for item in arguments if item is not type(None)]
        if len(inner) == 1 and _is_context(inner[0]):
            return (inner[0], "optional")
    return None


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _outputs(annotation: Any, label: str) -> list[type[CapabilityContext]]:
    annotation = _bare(annotation)
    if annotation in (None, type(None)):
        return []
    kinds = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
    kinds = tuple(_bare(kind) for kind in kinds)
    if not all(_is_context(kind) for kind in kinds):
        raise ValidationError(
            f"{label!r} returns {annotation!r}, which is not a context type.",
            fix="Annotate the return value with a CapabilityContext subclass.",
        )
    return list(kinds)
