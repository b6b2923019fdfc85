"""Capabilities that are defined by an annotated function."""

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
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.threads import is_sync, run_in_thread

ClassifyError = Callable[[Exception, dict[str, Any]], ErrorClassification | None]
ParametersFrom = Callable[[str], Mapping[str, Any]]


@dataclass(slots=True)
class _Arguments:
    """Classified arguments of a function that becomes a capability.

    Each argument is an input, a parameter, or injected at run time.
    """

    inputs: dict[str, tuple[type[CapabilityContext], str]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    injected: dict[str, Getter] = field(default_factory=dict)
    absent: dict[str, Any] = field(default_factory=dict)  # defaults of optional inputs

    def requires(self) -> list[tuple[type[CapabilityContext], str, str | None]]:
        """Return the function's inputs as entries for ``requires``.

        If several inputs have the same type, their argument names become their roles.
        """
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
    """Create the capability class of an annotated function.

    - An argument annotated with a context type is an input: ``X`` (one), ``list[X]`` (many),
      ``X | None`` or a default (optional). Several inputs of one type are distinguished by their names.
    - An argument of a type in :mod:`capgraph.base.argument_injection` is supplied by the framework.
    - Any other argument is a step parameter.
    - The return annotation is the output: a context type, a tuple of them, or a plain type. For a plain
      type, a context type named after the capability is created.

    Args:
        function: Annotated function. A synchronous one runs in a thread.
        description: What the capability does. Defaults to the first line of the docstring.
        max_attempts: Maximum number of attempts of a step. Defaults to 3.
        delay_seconds: Delay before the second attempt. Defaults to 0.5.
        classify_error: Function that classifies errors, like the method of a class.
        parameters_from: Function that extracts parameters from a task, for planning without a model.
        **options: ``name`` and the fields of :class:`~capgraph.base.spec.Declarations`, such as
            ``examples`` and ``effect``.

    Raises:
        ValidationError: The function cannot be used as a capability.
    """
    label = getattr(function, "__name__", repr(function))
    _check_function(function, label, options)
    hints = _resolve_annotations(function, label)
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
    outputs = _output_types(hints.get("return"), name, function.__module__, label)
    namespace = {
        **options,
        "name": name,
        "description": text,
        "provides": outputs,
        "requires": arguments.requires(),
        # Needed even without fields, so that unknown parameters are refused.
        "Parameters": _create_parameters_model(name, arguments.parameters, label),
        "execute": _create_execute(function, arguments, outputs),
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
            f"{label!r} is a generator function, but a step returns one result.",
            fix="Return the complete result. Report progress with an argument of type Progress.",
        )
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise ValidationError(
            f"{label!r:.200} is not a function.",
            fix="Write it with 'def', or use capgraph.adapters for tools and graphs.",
        )
    check_names(f"capability_node of the function {label!r}", options, accepted_names("function"))


def _create_execute(
    function: Any, arguments: _Arguments, outputs: list[type[CapabilityContext]]
) -> Any:
    labels = {
        name: role or kind.CONTEXT_TYPE
        for name, (kind, _, role) in zip(arguments.inputs, arguments.requires(), strict=True)
    }
    wrap = outputs[0] if len(outputs) == 1 and issubclass(outputs[0], ValueContext) else None

    async def execute(self: BaseCapability) -> Any:
        step = self._step_context()
        inputs = {name: step.inputs[label] for name, label in labels.items()}
        values = {k: arguments.absent.get(k) if v is None else v for k, v in inputs.items()}
        values |= {name: getattr(step.parameters, name) for name in arguments.parameters}
        values |= {name: get(step) for name, get in arguments.injected.items()}
        if is_sync(function):
            result = await maybe_await(await run_in_thread(function, **values))
        else:
            result = await maybe_await(function(**values))
        if is_command(type(result)):
            return result
        if result is None and outputs and wrap is None and not step.stored_outputs:
            raise CapabilityError(
                f"{self.name!r} returned None instead of {outputs[0].CONTEXT_TYPE}.",
                fix="Return the declared output, or raise an error that states why there is none.",
            )
        # A dictionary is validated against the output type like any other result.
        return result if wrap is None else {wrap.CONTEXT_TYPE: {"value": result}}

    return execute


def methods_from_options(
    label: str,
    max_attempts: int | None = None,
    delay_seconds: float | None = None,
    classify_error: ClassifyError | None = None,
    parameters_from: ParametersFrom | None = None,
) -> dict[str, Any]:
    """Create the methods of a capability class that is generated from a function or a tool.

    Args:
        label: Name of the capability, for messages.
        max_attempts: Maximum number of attempts of a step.
        delay_seconds: Delay before the second attempt.
        classify_error: Function that classifies errors.
        parameters_from: Function that extracts parameters from a task, for planning without a model.

    Raises:
        ValidationError: A number is out of range.
    """
    methods: dict[str, Any] = {
        "get_retry_policy": staticmethod(_create_retry_policy(label, max_attempts, delay_seconds)),
        # These forms have no guides besides the examples, so no warning about defaults is needed.
        "_create_classifier_guide": lambda _self: None,
        "_create_orchestrator_guide": lambda _self: None,
    }
    if classify_error is not None:
        methods["classify_error"] = staticmethod(classify_error)
    if parameters_from is not None:
        methods["parameters_from"] = staticmethod(parameters_from)
    return methods


def _create_retry_policy(
    label: str, max_attempts: int | None, delay_seconds: float | None
) -> Callable[[], dict[str, Any]]:
    if max_attempts is not None:
        check_number(f"max_attempts of {label!r}", max_attempts, minimum=1, integer=True)
    if delay_seconds is not None:
        check_number(f"delay_seconds of {label!r}", delay_seconds)
    options = {"max_attempts": max_attempts, "delay_seconds": delay_seconds}
    policy = {name: value for name, value in options.items() if value is not None}
    return lambda: {**BaseCapability.get_retry_policy(), **policy}


def _create_parameters_model(name: str, fields: dict[str, Any], label: str) -> type[BaseModel]:
    create: Any = create_model
    try:
        with warnings.catch_warnings():  # parameters may be named 'copy' or 'json'
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute")
            return typing.cast("type[BaseModel]", create(f"{name}_parameters", **fields))
    except (PydanticUserError, NameError, TypeError, ValueError):
        for parameter, (annotation, default) in fields.items():
            if parameter.startswith("model_"):
                raise ValidationError(
                    f"The parameter name {parameter!r} of {label!r} is reserved by pydantic.",
                    fix="Rename the parameter.",
                ) from None
            try:
                create("one", **{parameter: (annotation, default)})
            except PydanticUserError as exc:
                raise ValidationError(
                    f"The parameter {parameter!r} of {label!r} has the type {annotation!r}, which"
                    " neither a plan nor the framework can supply.",
                    fix="Use a plain type, a context type, Progress, StepSettings,"
                    " IdempotencyKey, AttemptNumber, StepContext or LangGraph's Runtime. Pass"
                    " clients of your own with Runtime[Deps] and context=Deps(...).",
                ) from exc
        raise


def _resolve_annotations(function: Callable[..., Any], label: str) -> dict[str, Any]:
    frame = inspect.currentframe()
    # Types that are defined inside a function are visible only in its frame.
    local: dict[str, Any] = {}
    while frame is not None:
        local = {**frame.f_locals, **local} if frame.f_globals is function.__globals__ else local
        frame = frame.f_back
    try:
        # Keep Annotated metadata: it is part of a parameter's declaration.
        return get_type_hints(function, localns=local, include_extras=True)
    except NameError as exc:
        raise ValidationError(
            f"The annotations of {label!r} cannot be resolved: {exc}.",
            fix="Define the context types before the function.",
        ) from exc


def _read_argument(
    parameter: inspect.Parameter, hints: dict[str, Any], label: str, arguments: _Arguments
) -> None:
    name = parameter.name
    if (
        name not in hints
        or parameter.kind
        in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
        or name.startswith("_")
    ):
        raise ValidationError(
            f"Neither a plan nor the framework can supply the parameter {name!r} of {label!r}.",
            fix="Annotate each parameter with a context type or a plain type, and do not begin its"
            " name with '_'.",
        )
    annotation = hints[name]
    default = ... if parameter.default is parameter.empty else parameter.default
    kind, is_optional = _strip_annotated(annotation), default is not ...
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        others = [_strip_annotated(item) for item in get_args(kind) if item is not type(None)]
        if len(others) == 1:  # X | None is supplied like X
            kind, is_optional = others[0], True
    context = _context_type(kind)
    getter = argument_getter(label, name, annotation, is_input=context is not None)
    if getter is not None:
        arguments.injected[name] = getter
    elif context is None:
        arguments.parameters[name] = (
            annotation if default is not None else annotation | None,
            default,
        )
    elif is_optional and context is not kind:
        raise ValidationError(
            f"The parameter {name!r} of {label!r} is an optional list of {context.CONTEXT_TYPE}.",
            fix=f"Use list[{context.__name__}] (at least one), or {context.__name__} | None.",
        )
    else:
        cardinality = "many" if context is not kind else "optional" if is_optional else "one"
        arguments.inputs[name] = (context, cardinality)
        arguments.absent[name] = None if default is ... else default


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, CapabilityContext)


def _context_type(annotation: Any) -> type[CapabilityContext] | None:
    """Return the context type in an argument's annotation, or None if there is none.

    The annotation is a context type or a list of a context type.
    """
    if get_origin(annotation) in (list, Sequence):
        annotation = _strip_annotated(get_args(annotation)[0])
    return annotation if _is_context(annotation) else None


def _strip_annotated(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _output_types(
    annotation: Any, name: str, module: str, label: str
) -> list[type[CapabilityContext]]:
    annotation, original = _strip_annotated(annotation), annotation
    if annotation in (None, type(None)):
        return []
    if is_command(annotation):  # the output is the text of its messages
        return [create_value_context(name, str | None, module)]
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    others = [option for option in options if not is_command(option)]
    if len(others) < len(options):
        if not any(_is_context(_strip_annotated(option)) for option in others):
            others += [str, None]
        return _output_types(reduce(or_, others), name, module, label)
    parts = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
    kinds = [_strip_annotated(kind) for kind in parts]
    if all(_is_context(kind) for kind in kinds):
        if len(set(kinds)) < len(kinds):
            raise ValidationError(
                f"{label!r} returns {annotation!r}, which contains a type twice.",
                fix="Return a list of that type.",
            )
        return kinds
    contexts = [
        part
        for kind in kinds
        for part in (kind, *map(_strip_annotated, get_args(kind)))
        if _is_context(part)
    ]
    is_list = get_origin(annotation) in (list, Sequence)
    if contexts and not is_list:
        raise ValidationError(
            f"{label!r} returns {annotation!r}, which mixes context types with other types.",
            fix="Return a context type, a tuple or a list of context types, or plain values.",
        )
    item = contexts[0] if contexts else None
    return [create_value_context(name, original, module, item)]
