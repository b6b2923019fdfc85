"""A step's parameters against what the capability declares."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from framework.planning.problems import NOT_PLAIN, PARAMETER, Path, preview
from framework.planning.reading import is_too_deep


@dataclass(frozen=True, slots=True)
class ParameterFault:
    """One parameter that does not fit.

    Attributes:
        code: Code of the problem it becomes.
        path: Where the value sits below ``parameters``.
        value: The value found.
        cause: What is wrong.
        remedy: What to do about it.
        replacement: The one lossless form that fits, when :attr:`mendable`.
        mendable: Whether there is exactly one such form.
    """

    code: str
    path: Path
    value: Any
    cause: str
    remedy: str
    replacement: Any = None
    mendable: bool = False


def parameter_faults(
    model: type[BaseModel] | None, parameters: object, capability: str
) -> list[ParameterFault]:
    """Find everything that is wrong with a step's parameters.

    A capability without a declared model takes plain scalars only. With a model the
    parameters must validate as JSON in strict mode; what only the lenient mode accepts passes
    too, unless it has an obvious exact form: text where a number is declared would reach a
    capability that reads its step directly as text.

    Args:
        model: The capability's ``Parameters``, if it declares one.
        parameters: The value of the step's ``parameters``.
        capability: Name of the capability, for the messages.
    """
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        return [_not_an_object(parameters)]
    if not parameters and model is None:
        return []
    if model is None:
        return list(_scalar_faults(parameters, capability))
    if is_too_deep(parameters):
        return [_not_plain(parameters, "nests too deeply")]
    try:
        text = json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as exc:
        return [_not_plain(parameters, f"is not plain JSON ({exc})")]
    return _model_faults(model, parameters, text, capability)


def required_parameters(model: type[BaseModel] | None) -> list[str]:
    """Name the parameters that a step cannot leave out."""
    if model is None:
        return []
    return [info.alias or name for name, info in model.model_fields.items() if info.is_required()]


def _not_an_object(value: object) -> ParameterFault:
    remedy = "write parameters as an object of names and values"
    if isinstance(value, str) and isinstance(decoded := _decode(value), dict):
        return ParameterFault(
            PARAMETER, (), value, "is text that holds an object", remedy, decoded, True
        )
    return ParameterFault(PARAMETER, (), value, "is not an object", remedy)


def _not_plain(value: object, cause: str) -> ParameterFault:
    return ParameterFault(NOT_PLAIN, (), value, cause, "use finite numbers, text and flat lists")


def _scalar_faults(parameters: dict[Any, Any], capability: str) -> Iterator[ParameterFault]:
    for name, value in parameters.items():
        path = (name if isinstance(name, str) else preview(name),)
        if not isinstance(name, str):
            yield ParameterFault(
                PARAMETER, path, name, "is not a parameter name", "use text for parameter names"
            )
        elif isinstance(value, float) and not math.isfinite(value):
            yield ParameterFault(
                NOT_PLAIN, path, value, "is not a finite number", "give a finite number"
            )
        elif value is not None and not isinstance(value, (str, int, float)):
            yield ParameterFault(
                PARAMETER,
                path,
                value,
                f"is not text, a number or a boolean, and {capability!r} declares no Parameters"
                " model that would allow it",
                "give a plain value, or declare a Parameters model on the capability",
            )


def _model_faults(
    model: type[BaseModel], parameters: dict[str, Any], text: str, capability: str
) -> list[ParameterFault]:
    strict = _errors(model, text, None)
    if not strict:
        return []
    lenient = _errors(model, None, parameters)
    lenient_paths = {error["loc"] for error in lenient}
    faults: dict[Path, ParameterFault] = {}
    for error in lenient:
        fault = _fault(model, parameters, error, capability)
        # A union reports one error for each of its members: one value, one problem.
        faults.setdefault(fault.path, fault)
    for error in strict:
        if error["loc"] not in lenient_paths and error["type"] != "json_invalid":
            fault = _fault(model, parameters, error, capability)
            if fault.mendable:
                faults.setdefault(fault.path, fault)
    return list(faults.values())


def _errors(
    model: type[BaseModel], text: str | None, value: dict[str, Any] | None
) -> list[dict[str, Any]]:
    try:
        if text is not None:
            model.model_validate_json(text, strict=True)
        else:
            model.model_validate(value)
    except PydanticError as exc:
        return [
            {"loc": error["loc"], "type": error["type"], "msg": error["msg"]}
            for error in exc.errors(include_url=False, include_context=False, include_input=False)
        ]
    except Exception as exc:
        # A validator of the capability's author failed in its own way; that is a finding about
        # these parameters, not a reason to lose every other finding of the plan.
        return [{"loc": (), "type": "validator", "msg": f"the validator failed: {preview(exc)}"}]
    return []


def _fault(
    model: type[BaseModel], parameters: dict[str, Any], error: dict[str, Any], capability: str
) -> ParameterFault:
    path: Path = error["loc"]
    message = error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == "missing":
        return ParameterFault(
            PARAMETER, path, None, message, f"give the parameter that {capability!r} declares"
        )
    path, value = _deepest(parameters, path)
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(info.alias or name for name, info in model.model_fields.items()))
        return ParameterFault(
            PARAMETER,
            path,
            value,
            f"{capability!r} does not declare this parameter",
            f"use only: {known}" if known else "leave the parameters out",
        )
    fitting = [
        candidate
        for candidate in _lossless_forms(value)
        if path and not _breaks(model, parameters, path, candidate)
    ]
    if fitting and all(candidate == fitting[0] for candidate in fitting):
        return ParameterFault(
            PARAMETER, path, value, message, f"write {preview(fitting[0])}", fitting[0], True
        )
    return ParameterFault(PARAMETER, path, value, message, "give the value in the declared form")


def _breaks(model: type[BaseModel], parameters: dict[str, Any], path: Path, value: object) -> bool:
    """Tell whether a value in that place still fails, whatever the other places do."""
    changed = replace_at(parameters, path, value)
    return any(
        error["loc"][: len(path)] == path or not error["loc"]
        for error in _errors(model, json.dumps(changed), None)
    )


def _lossless_forms(value: object) -> Iterator[Any]:
    """Yield the other spellings of a value that say exactly the same."""
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        decoded = _decode(value)
        if isinstance(decoded, (bool, int, float, list, dict)):
            yield decoded
            if isinstance(decoded, float) and decoded.is_integer():
                yield int(decoded)
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, float) and value.is_integer():
        yield int(value)


def _decode(text: str) -> Any:
    """Read text as JSON, or as the way Python writes a boolean; ``None`` when it is neither."""
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
        return None  # more digits than a float keeps
    return None if is_too_deep(decoded) else decoded


def _deepest(parameters: object, path: Path) -> tuple[Path, object]:
    """Follow a path as far as it exists; schema branches such as unions add parts of their own."""
    value = parameters
    for depth, part in enumerate(path):
        if isinstance(value, list):
            value = dict(enumerate(value))
        if not isinstance(value, dict) or part not in value:
            return path[:depth], value
        value = value[part]
    return path, value


def replace_at(parameters: Any, path: Path, value: object) -> Any:
    """Return parameters with one value replaced; the original stays as it is.

    >>> replace_at({"a": [1, 2]}, ("a", 1), 9)
    {'a': [1, 9]}
    """
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(parameters, dict):
        return {**parameters, head: replace_at(parameters[head], rest, value)}
    return [
        replace_at(item, rest, value) if index == head else item
        for index, item in enumerate(parameters)
    ]
