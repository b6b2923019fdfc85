"""Validation and repair of a step's parameters against the capability's declaration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from capgraph.base import CapabilitySpec, ErrorSeverity, ValidationError
from capgraph.base.spec import parameter_names
from capgraph.planning.name_matching import closest_name
from capgraph.planning.plan_access import is_too_deep
from capgraph.planning.problems import (
    NO_CORRECTION,
    NOT_PLAIN,
    PARAMETER,
    Path,
    Problem,
    make_problem,
    preview,
    render_path,
)
from capgraph.planning.references import iter_references
from capgraph.planning.schema_shapes import Shape

_MAX_UNKNOWN = 20
_PLAIN_REMEDY = "use finite numbers, text, and flat lists"
_UNKNOWN_ERRORS = ("extra_forbidden", "unexpected_keyword_argument")


def _parameter_problem(
    path: Path,
    value: object,
    cause: str,
    remedy: str,
    *,
    code: str = PARAMETER,
    corrected_value: Any = NO_CORRECTION,
) -> Problem:
    return make_problem(
        code, None, None, value, cause, remedy, ("parameters", *path), corrected_value
    )


def find_parameter_errors(
    model: type[BaseModel] | None,
    parameters: object,
    capability: str,
    *,
    allows_conversion: bool = True,
) -> list[Problem]:
    """Validate the parameters of a plan step and return the problems found.

    A capability without a ``Parameters`` model accepts only plain scalars. With a model,
    parameters are validated as JSON in pydantic's strict mode. A value that only lax mode
    accepts is allowed, unless it has exactly one strict form (such as ``5`` for ``"5"``).
    Otherwise, a capability that reads its step directly would receive a string where it
    declares a number.

    Args:
        model: ``Parameters`` model of the capability, or ``None`` if it declares no model.
        parameters: Value of the step's ``parameters``.
        capability: Name of the capability, for error messages.
        allows_conversion: Whether values that only lax mode accepts are allowed.
    """
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        decoded = _decode_text(parameters) if isinstance(parameters, str) else None
        is_object = isinstance(decoded, dict)
        cause = "is an object encoded as text" if is_object else "is not an object"
        remedy = "write parameters as an object of names and values"
        return [
            _parameter_problem(
                (),
                parameters,
                cause,
                remedy,
                corrected_value=decoded if is_object else NO_CORRECTION,
            )
        ]
    if not parameters and model is None:
        return []
    if model is None:
        problems = list(_iter_scalar_errors(parameters, capability))
    elif is_too_deep(parameters):
        return [
            _parameter_problem(
                (), parameters, "is nested too deeply", _PLAIN_REMEDY, code=NOT_PLAIN
            )
        ]
    else:
        try:
            text = json.dumps(parameters, allow_nan=False)
        except (TypeError, ValueError) as exc:
            return [
                _parameter_problem(
                    (),
                    parameters,
                    f"is not JSON-serializable ({exc})",
                    _PLAIN_REMEDY,
                    code=NOT_PLAIN,
                )
            ]
        problems = _find_model_errors(model, parameters, text, capability, allows_conversion)
    # References are checked against the plan, and again when the step runs.
    named = [path for path, _ in iter_references(parameters)] if problems else []
    return [
        fault
        for fault in problems
        if not any(_is_prefix_of_either(fault.path[1:], one) for one in named)
    ]


def _is_prefix_of_either(path: Path, other: Path) -> bool:
    """Return True if either path is a prefix of the other, or if they are equal."""
    return all(a == b for a, b in zip(path, other, strict=False))


def repair_parameters(spec: CapabilitySpec, parameters: object) -> tuple[Any, list[Problem]]:
    """Convert parameters to their declared types where that is unambiguous.

    For example, ``"5"`` is converted to 5 for an integer parameter.

    Args:
        spec: Specification of the capability.
        parameters: Value of the step's ``parameters``.

    Returns:
        The converted parameters and the remaining problems.
    """
    errors = find_parameter_errors(spec.parameters, parameters, spec.name)
    for error in (error for error in errors if error.corrected_value is not NO_CORRECTION):
        parameters = replace_at(parameters, error.path[1:], error.corrected_value)
    return parameters, find_parameter_errors(
        spec.parameters, parameters, spec.name
    ) if errors else []


def validated_parameters(spec: CapabilitySpec, parameters: object) -> tuple[Any, dict[str, Any]]:
    """Validate the parameters of a step and return them as a model instance and as plain data.

    The plain data includes defaults. Approval requests display this data and side effects are
    compared by it, so validating the data again must return an equal model. Values such as
    ``"5"`` that have exactly one form of the declared type are converted.

    Args:
        spec: Specification of the capability.
        parameters: Value of the step's ``parameters``.

    Returns:
        An instance of the capability's ``Parameters`` model (or the dictionary itself if it
        declares no model), and plain data with the parameter names of the plan.

    Raises:
        ValidationError: Parameters are unknown or invalid. The message lists all of them. The
            severity is REPLANNING.

    >>> class Options(BaseModel):
    ...     amount: int
    ...     currency: str = "EUR"
    >>> spec = CapabilitySpec("pay", "Pay.", parameters=Options)
    >>> validated_parameters(spec, {"amount": 5})
    (Options(amount=5, currency='EUR'), {'amount': 5, 'currency': 'EUR'})
    """
    parameters, errors = repair_parameters(spec, parameters)
    if errors:
        raise _create_invalid_error(spec, errors)
    values: dict[str, Any] = dict(parameters) if isinstance(parameters, dict) else {}
    if unresolved := [text for _, text in iter_references(values)]:
        raise ValidationError(
            f"The parameters of {spec.name!r} contain unresolved references: {', '.join(unresolved)}.",
            fix="Pass values; only the steps of a plan can refer to results.",
        )
    if spec.parameters is None:
        return values, values
    model = _validate_json(spec.parameters, values)
    return model, _dump_parameters(model, values, spec)


def check_parameter_types(spec: CapabilitySpec, parameters: object) -> None:
    """Validate the types of parameters passed by application code.

    Unlike in plans, values are not converted to the declared types.

    Args:
        spec: Specification of the capability.
        parameters: Parameter values by name.

    Raises:
        ValidationError: A value does not have the declared type.

    >>> class Options(BaseModel):
    ...     amount: int
    >>> check_parameter_types(CapabilitySpec("pay", "Pay.", parameters=Options), {"amount": 5})
    """
    errors = find_parameter_errors(spec.parameters, parameters, spec.name, allows_conversion=False)
    # JSON has one type of number: 5.0 is an integer.
    if wrong := [e for e in errors if type(e.value) is not float or e.value != e.corrected_value]:
        raise _create_invalid_error(spec, wrong)


def _create_invalid_error(spec: CapabilitySpec, errors: list[Problem]) -> ValidationError:
    listed = "; ".join(
        f"{render_path(error.path[1:]) or 'parameters'} {error.value!r}: {error.cause}"
        f" ({error.remedy})"
        for error in errors
    )
    return ValidationError(
        f"The parameters of {spec.name!r} are invalid: {listed}.",
        fix="Correct the step's parameters.",
        severity=ErrorSeverity.REPLANNING,
    )


def _validate_json(model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    # Validated as JSON like a plan, so that dates and sets use their JSON form.
    return model.model_validate_json(json.dumps(values), by_alias=True, by_name=True)


def _dump_parameters(
    model: BaseModel, values: Mapping[str, Any], spec: CapabilitySpec
) -> dict[str, Any]:
    """Serialize validated parameters to plain data that validates to an equal model."""
    model_class = type(model)
    plan_names = dict(zip(model_class.model_fields, parameter_names(model_class), strict=True))
    try:
        data = model.model_dump(mode="json", by_alias=False, round_trip=True, warnings=False)
        plain = {plan_names.get(name, name): value for name, value in data.items()}
        if _validates_to(model_class, plain, model):
            return plain
        # A serializer changes a field, as for a masked secret: use the original value.
        unset = {plan_names[name] for name in plan_names if name not in model.model_fields_set}
        plain = {**{name: plain[name] for name in unset if name in plain}, **values}
        if _validates_to(model_class, plain, model):
            return plain
    except Exception as exc:  # the author's serializer may raise anything
        raise ValidationError(
            f"The parameters of {spec.name!r} cannot be serialized: {preview(exc)}.",
            fix="Declare a serializer for the field in its Parameters model.",
        ) from exc
    raise ValidationError(
        f"The parameters of {spec.name!r} change when they are serialized and then validated "
        "again.",
        fix="Correct the defaults, serializers, and validators of its Parameters model.",
    )


def _validates_to(kind: type[BaseModel], plain: Mapping[str, Any], model: BaseModel) -> bool:
    try:
        back = _validate_json(kind, plain)
    except (ValueError, TypeError):
        return False
    return all(_is_equal_field(name, back, model) for name in kind.model_fields) and bool(
        back.model_extra == model.model_extra
    )


def _is_equal_field(name: str, first: BaseModel, second: BaseModel) -> bool:
    with suppress(ValueError, TypeError):  # comparing tables or arrays gives no single boolean
        return bool(getattr(first, name) == getattr(second, name))
    written = [model.model_dump(mode="json", include={name}) for model in (first, second)]
    return bool(written[0] == written[1])


def required_parameters(model: type[BaseModel] | None) -> list[str]:
    """Return the names of the required parameters in a capability's ``Parameters`` model."""
    if model is None:
        return []
    fields = zip(parameter_names(model), model.model_fields.values(), strict=True)
    return [name for name, info in fields if info.is_required()]


def _iter_scalar_errors(parameters: dict[Any, Any], capability: str) -> Iterator[Problem]:
    """Yield the problems with parameters of a capability that declares no model.

    Without a model, only scalars with string names are allowed.
    """
    for name, value in parameters.items():
        path = (name if isinstance(name, str) else preview(name),)
        if not isinstance(name, str):
            yield _parameter_problem(
                path, name, "is not a parameter name", "use text for parameter names"
            )
        elif isinstance(value, float) and not math.isfinite(value):
            cause, remedy = "is not a finite number", "use a finite number"
            yield _parameter_problem(path, value, cause, remedy, code=NOT_PLAIN)
        elif value is not None and not isinstance(value, (str, int, float)):
            cause = (
                f"is not text, a number, or a boolean, and {capability!r} declares no Parameters"
                " model"
            )
            remedy = "use a plain value, or declare a Parameters model on the capability"
            yield _parameter_problem(path, value, cause, remedy)


def _find_model_errors(
    model: type[BaseModel],
    parameters: dict[str, Any],
    text: str,
    capability: str,
    allows_conversion: bool,
) -> list[Problem]:
    strict = _find_validation_errors(model, parameters, text, strict=True)
    lenient = _find_validation_errors(model, parameters, text, strict=False) if strict else []
    problems: dict[Path, Problem] = {}
    for error in [error for error in lenient if error["type"] in _UNKNOWN_ERRORS]:
        path = _follow_path(parameters, error["loc"])[0]
        problems[path] = _create_unknown_problem(model, parameters, path, capability)
    lenient_locations = {error["loc"] for error in lenient}
    for error in strict + lenient:
        if error["type"] in _UNKNOWN_ERRORS:
            continue
        path, value = _follow_path(parameters, error["loc"])
        message = error["msg"][:1].lower() + error["msg"][1:]
        if error["type"] == "missing":
            remedy = f"set this parameter, which {capability!r} requires"
            problem = _parameter_problem(error["loc"], None, message, remedy)
        else:
            exact_form = _find_exact_form(model, parameters, path, value)
            is_lenient = error["loc"] not in lenient_locations
            if allows_conversion and exact_form is NO_CORRECTION and is_lenient:
                continue
            has_exact_form = exact_form is not NO_CORRECTION
            remedy = (
                f"write {preview(exact_form)}"
                if has_exact_form
                else "write a value of the declared type"
            )
            problem = _parameter_problem(path, value, message, remedy, corrected_value=exact_form)
        # A union reports one error for each of its members.
        problems.setdefault(problem.path[1:], problem)
    return list(problems.values())


def _create_unknown_problem(
    model: type[BaseModel], parameters: dict[str, Any], path: Path, capability: str
) -> Problem:
    shape = Shape.from_model(model, "validation").at_path(path[:-1])
    known = shape.field_names if shape is not None else []
    similar = closest_name(str(path[-1]), known)
    remedy = f"use only: {', '.join(sorted(known))}" if known else "leave it out"
    if similar is not None:
        remedy = f"write {similar!r}, or {remedy}"
    cause = f"{capability!r} does not declare this parameter"
    return _parameter_problem(path, _follow_path(parameters, path)[1], cause, remedy)


def _find_validation_errors(
    model: type[BaseModel], parameters: dict[str, Any], text: str, *, strict: bool
) -> list[dict[str, Any]]:
    """Return pydantic's validation errors for a step's parameters.

    Unknown parameter names are reported even if the model ignores extra fields.
    """
    errors = _validate(model, text, strict=strict, extra="forbid")
    unknown = [error for error in errors if error["type"] in _UNKNOWN_ERRORS]
    if not unknown:
        return errors
    # extra="forbid" also applies to nested models that allow extra fields.
    shape = Shape.from_model(model, "validation")
    undeclared = (
        e for e in unknown if shape.at_path(_follow_path(parameters, e["loc"])[0]) is None
    )
    others = _validate(model, text, strict=strict, extra=None)
    return [
        *islice(undeclared, _MAX_UNKNOWN),
        *(error for error in others if error["type"] not in _UNKNOWN_ERRORS),
    ]


def _validate(
    model: type[BaseModel], text: str, *, strict: bool, extra: Literal["forbid"] | None
) -> list[dict[str, Any]]:
    try:
        model.model_validate_json(text, strict=strict, extra=extra, by_alias=True, by_name=True)
    except PydanticError as exc:
        return [
            {"loc": error["loc"], "type": error["type"], "msg": error["msg"]}
            for error in exc.errors(include_url=False, include_context=False, include_input=False)
        ]
    except Exception as exc:
        # The author's validator may raise anything. Report it with the plan's other problems.
        cause = f"the validator failed: {preview(exc)}"
        return [{"loc": (), "type": "validator", "msg": cause}]
    return []


def _find_exact_form(
    model: type[BaseModel], parameters: dict[str, Any], path: Path, value: object
) -> Any:
    """Convert a value to the declared type without loss, or return ``NO_CORRECTION``.

    A conversion must be unambiguous.
    """
    forms = _iter_lossless_forms(value) if path else ()
    fitting = [form for form in forms if not _is_invalid_at(model, parameters, path, form)]
    return fitting[0] if fitting and all(form == fitting[0] for form in fitting) else NO_CORRECTION


def _is_invalid_at(
    model: type[BaseModel], parameters: dict[str, Any], path: Path, value: object
) -> bool:
    """Return True if parameters stay invalid at a path after the value there is replaced."""
    changed = replace_at(parameters, path, value)
    return any(
        error["loc"][: len(path)] == path or not error["loc"]
        for error in _validate(model, json.dumps(changed), strict=True, extra=None)
    )


def _iter_lossless_forms(value: object) -> Iterator[Any]:
    """Yield lossless conversions of a value to different types, such as 5 for ``"5"``."""
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        decoded = _decode_text(value)
        if isinstance(decoded, (bool, int, float, list, dict)):
            yield decoded
            if isinstance(decoded, float) and decoded.is_integer():
                yield int(decoded)
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, float) and value.is_integer():
        yield int(value)


def _decode_text(text: str) -> Any:
    """Decode a string as JSON or as a Python boolean, or return ``None``.

    Long strings, deep nesting, and floats that would lose digits also return ``None``.
    """
    if len(text) > 10_000:
        return None
    stripped = text.strip()
    if stripped in ("True", "False"):
        return stripped == "True"
    try:
        decoded = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    if isinstance(decoded, float) and Decimal(stripped) != Decimal(repr(decoded)):
        return None  # a float cannot represent all digits
    return None if is_too_deep(decoded) else decoded


def _follow_path(parameters: object, path: Path) -> tuple[Path, Any]:
    """Follow the path of a validation error as far as it exists in the parameters.

    Parts that pydantic adds for schema branches, such as unions, are skipped.
    """
    found: list[str | int] = []
    value: Any = parameters
    for part in path:
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
            found.append(part)
    return tuple(found), value


def replace_at(parameters: Any, path: Path, value: object) -> Any:
    """Return a copy of nested parameters in which the value at a path is replaced.

    >>> replace_at({"a": [1, 2]}, ("a", 1), 9)
    {'a': [1, 9]}
    """
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(parameters, dict):
        return {**parameters, head: replace_at(parameters.get(head), rest, value)}
    return [
        replace_at(item, rest, value) if index == head else item
        for index, item in enumerate(parameters)
    ]
