"""Capabilities written as one annotated function."""

from __future__ import annotations

import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, create_model
from pydantic.errors import PydanticUserError

from capgraph.base.argument_injection import Getter, argument_getter, is_command
from capgraph.base.capability import BaseCapability
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.error_classification import ErrorClassification
from capgraph.base.errors import CapabilityError, ValidationError
from capgraph.base.value_context import ValueContext, create_value_context
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.threads import is_sync, run_in_thread

ClassifyError = Callable[[Exception, dict[str, Any]], ErrorClassification | None]
ParametersFrom = Callable[[str], Mapping[str, Any]]


@dataclass(slots=True)
class _Arguments:
    """What fills the arguments of a function: each name stands in one of the three."""

    inputs: dict[str, tuple[type[CapabilityContext], str]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    injected: dict[str, Getter] = field(default_factory=dict)
    absent: dict[str, Any] = field(default_factory=dict)  # what stands for an optional input

    def requires(self) -> list[tuple[type[CapabilityContext], str, str | None]]:
        """Write the inputs as a class would; several of one type go by the arguments' names."""
        kinds = [kind for kind, _ in self.inputs.values()]
        return [
            (kind, cardinality, name if kinds.count(kind) > 1 else None)
            for name, (kind, cardinality) in self.inputs.items()
        ]


def capability_from_function(
    function: Callable[..., Any],
    *,
    description: str | None = None,
    max_attempts: int | None = None,
    delay_seconds: float | None = None,
    classify_error: ClassifyError | None = None,
    parameters_from: ParametersFrom | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Build the capability class of an annotated function.

    An argument annotated with a context type is an input (``X`` one, ``list[X]`` many,
    ``X | None``, or one with a default, optional; two of one type go by their names). The framework
    fills in an argument of a type of :mod:`capgraph.base.argument_injection`, or of one that LangGraph injects
    into a node or LangChain into a tool. Any other is a step parameter. The
    return annotation names the output: a context type, a tuple of them, or any plain type, for
    which a context type named after the capability is made.

    Args:
        function: A function with annotations; a synchronous one runs in a thread.
        description: What it does; the docstring's first line when not given.
        max_attempts: Total tries of a step; 3 when not given.
        delay_seconds: Wait before the second try; 0.5 when not given.
        classify_error: Says what a failure means, as the method of a class does.
        parameters_from: Reads parameters from a task when no model plans.
        **options: ``name`` and what :class:`~capgraph.base.spec.Declarations` lists, such as
            ``examples`` and ``effect``.

    Raises:
        ValidationError: The function cannot be read as a capability.
    """
    label = getattr(function, "__name__", repr(function))
    _check_function(function, label, options)
    hints = _hints(function, label)
    arguments = _Arguments()
    for parameter in inspect.signature(function).parameters.values():
        _read_argument(parameter, hints, label, arguments)
    text = (description or inspect.getdoc(function) or "").strip().split("\n")[0]
    if not text:
        raise ValidationError(
            f"The function {label!r} has no description.",
            fix="Give it a docstring, or pass description=.",
        )
    name = options.get("name") or function.__name__
    outputs = _outputs(hints.get("return"), name, function.__module__, label)
    namespace = {
        **options,
        "name": name,
        "description": text,
        "provides": outputs,
        "requires": arguments.requires(),
        # Also without fields: a parameter that the function does not take is an error.
        "Parameters": _parameters_model(name, arguments.parameters, label),
        "execute": _execute_of(function, arguments, outputs),
        **methods_from_options(label, max_attempts, delay_seconds, classify_error, parameters_from),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__wrapped__": staticmethod(function),
    }
    return typing.cast(
        "type[BaseCapability]", type(function.__name__, (BaseCapability,), namespace)
    )


def _check_function(function: Any, label: str, options: dict[str, Any]) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ValidationError(
            f"{label!r} is a generator function, and a step gives one result.",
            fix="Return the whole result; say how far it is with an argument of type Progress.",
        )
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise ValidationError(
            f"{label!r:.200} is no function.",
            fix="Write it with 'def'; capgraph.adapters makes capabilities of tools and graphs.",
        )
    check_names(f"capability_node of the function {label!r}", options, accepted_names("function"))


def _execute_of(
    function: Any, arguments: _Arguments, outputs: list[type[CapabilityContext]]
) -> Any:
    labels = {
        name: role or kind.CONTEXT_TYPE
        for name, (kind, _, role) in zip(arguments.inputs, arguments.requires(), strict=True)
    }
    wrap = outputs[0] if len(outputs) == 1 and issubclass(outputs[0], ValueContext) else None

    async def execute(self: BaseCapability) -> Any:
        step = self._step_context()
        found = {name: step.inputs[label] for name, label in labels.items()}
        given = {k: arguments.absent.get(k) if v is None else v for k, v in found.items()}
        given |= {name: getattr(step.parameters, name) for name in arguments.parameters}
        given |= {name: get(step) for name, get in arguments.injected.items()}
        made = await run_in_thread(function, **given) if is_sync(function) else function(**given)
        result = await made if inspect.isawaitable(made) else made
        if is_command(type(result)):
            return result
        if result is None and outputs and wrap is None and not step.stored_outputs:
            raise CapabilityError(
                f"{self.name!r} returned nothing, and is declared to give {outputs[0].CONTEXT_TYPE}.",
                fix="Return it, or raise an error that says why there is none.",
            )
        # As a dictionary, so that the output is checked against its type like any other.
        return result if wrap is None else {wrap.CONTEXT_TYPE: {"value": result}}

    return execute


def methods_from_options(
    label: str,
    max_attempts: int | None = None,
    delay_seconds: float | None = None,
    classify_error: ClassifyError | None = None,
    parameters_from: ParametersFrom | None = None,
) -> dict[str, Any]:
    """Return the methods of a class that a form without a class body declares by keyword.

    Args:
        label: Name of the capability, for errors.
        max_attempts: Total tries of a step.
        delay_seconds: Wait before the second try.
        classify_error: Says what a failure means.
        parameters_from: Reads parameters from a task when no model plans.

    Raises:
        ValidationError: A number is out of range.
    """
    methods: dict[str, Any] = {
        "get_retry_policy": staticmethod(_retry_policy(label, max_attempts, delay_seconds)),
        # There is no place for advice besides the examples, so there is nothing to warn of.
        "_create_classifier_guide": lambda _self: None,
        "_create_orchestrator_guide": lambda _self: None,
    }
    if classify_error is not None:
        methods["classify_error"] = staticmethod(classify_error)
    if parameters_from is not None:
        methods["parameters_from"] = staticmethod(parameters_from)
    return methods


def _retry_policy(
    label: str, max_attempts: int | None, delay_seconds: float | None
) -> Callable[[], dict[str, Any]]:
    if max_attempts is not None:
        check_number(f"max_attempts of {label!r}", max_attempts, minimum=1, integer=True)
    if delay_seconds is not None:
        check_number(f"delay_seconds of {label!r}", delay_seconds)
    given = {"max_attempts": max_attempts, "delay_seconds": delay_seconds}
    policy = {name: value for name, value in given.items() if value is not None}
    return lambda: {**BaseCapability.get_retry_policy(), **policy}


def _parameters_model(name: str, fields: dict[str, Any], label: str) -> type[BaseModel]:
    made: Any = create_model
    try:
        with warnings.catch_warnings():  # 'copy' or 'json' may well be what a parameter is called
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute")
            return typing.cast("type[BaseModel]", made(f"{name}_parameters", **fields))
    except (PydanticUserError, NameError, TypeError, ValueError):
        for parameter, (annotation, default) in fields.items():
            if parameter.startswith("model_"):
                raise ValidationError(
                    f"The parameter {parameter!r} of {label!r} has a name that pydantic keeps.",
                    fix="Give it another name.",
                ) from None
            try:
                made("one", **{parameter: (annotation, default)})
            except PydanticUserError as exc:
                raise ValidationError(
                    f"The parameter {parameter!r} of {label!r} is of type {annotation!r}, which a"
                    " plan cannot give and the framework does not know how to fill in.",
                    fix="Use a plain type, a context type, Progress, StepSettings,"
                    " IdempotencyKey, AttemptNumber, StepContext or LangGraph's Runtime; a client"
                    " of yours comes with Runtime[Deps] and context=Deps(...).",
                ) from exc
        raise


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


def _read_argument(
    parameter: inspect.Parameter, hints: dict[str, Any], label: str, arguments: _Arguments
) -> None:
    name = parameter.name
    if (
        name not in hints
        or parameter.kind
        in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        )
        or name.startswith("_")
    ):
        raise ValidationError(
            f"The parameter {name!r} of {label!r} cannot be filled.",
            fix="Annotate each parameter with a context type or a plain type; no name begins with '_'.",
        )
    annotation = hints[name]
    default = ... if parameter.default is parameter.empty else parameter.default
    kind, may_lack = _bare(annotation), default is not ...
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        others = [_bare(item) for item in get_args(kind) if item is not type(None)]
        if len(others) == 1:  # X | None is filled in as X is
            kind, may_lack = others[0], True
    context = _context_in(kind)
    getter = argument_getter(label, name, annotation, is_input=context is not None)
    if getter is not None:
        arguments.injected[name] = getter
    elif context is None:
        arguments.parameters[name] = (
            annotation if default is not None else annotation | None,
            default,
        )
    elif may_lack and context is not kind:
        raise ValidationError(
            f"The parameter {name!r} of {label!r} takes several {context.CONTEXT_TYPE} or none.",
            fix=f"Take list[{context.__name__}], one or more, or {context.__name__} | None.",
        )
    else:
        cardinality = "many" if context is not kind else "optional" if may_lack else "one"
        arguments.inputs[name] = (context, cardinality)
        arguments.absent[name] = None if default is ... else default


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, CapabilityContext)


def _context_in(annotation: Any) -> type[CapabilityContext] | None:
    """Return the context type that an argument takes, alone or as a list."""
    if get_origin(annotation) in (list, Sequence):
        annotation = _bare(get_args(annotation)[0])
    return annotation if _is_context(annotation) else None


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _outputs(annotation: Any, name: str, module: str, label: str) -> list[type[CapabilityContext]]:
    annotation, given = _bare(annotation), annotation
    if annotation in (None, type(None)):
        return []
    if is_command(annotation):  # the text of its messages
        return [create_value_context(name, str | None, module)]
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    others = [option for option in options if not is_command(option)]
    if len(others) < len(options):
        if not any(_is_context(_bare(option)) for option in others):
            others += [str, None]
        return _outputs(reduce(or_, others), name, module, label)
    parts = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
    kinds = [_bare(kind) for kind in parts]
    if all(_is_context(kind) for kind in kinds):
        if len(set(kinds)) < len(kinds):
            raise ValidationError(
                f"{label!r} returns {annotation!r}, one type twice.", fix="Return a list of it."
            )
        return kinds
    kinds_in = [
        part for kind in kinds for part in (kind, *map(_bare, get_args(kind))) if _is_context(part)
    ]
    partly = bool(kinds_in)
    listed = get_origin(annotation) in (list, Sequence)
    if partly and not listed:
        raise ValidationError(
            f"{label!r} returns {annotation!r}, which is only in part a context type.",
            fix="Return a context type, a tuple of them, a list of one, or plain values.",
        )
    return [create_value_context(name, given, module, kinds_in[0] if listed and partly else None)]
