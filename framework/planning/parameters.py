"""A step's parameters against what the capability declares."""

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
_PLAIN = "use finite numbers, text and flat lists"
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _fault(
    path: Path,
    value: object,
    cause: str,
    remedy: str,
    *,
    code: str = PARAMETER,
    mended: Any = NO_CORRECTION,
) -> Problem:
    return make_problem(code, None, None, value, cause, remedy, ("parameters", *path), mended)


def parameter_errors(
    model: type[BaseModel] | None, parameters: object, capability: str
) -> list[Problem]:
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
        decoded = _decode(parameters) if isinstance(parameters, str) else None
        held = isinstance(decoded, dict)
        cause = "is text that holds an object" if held else "is not an object"
        remedy = "write parameters as an object of names and values"
        return [_fault((), parameters, cause, remedy, mended=decoded if held else NO_CORRECTION)]
    if not parameters and model is None:
        return []
    if model is None:
        found = list(_scalar_faults(parameters, capability))
    elif is_too_deep(parameters):
        return [_fault((), parameters, "nests too deeply", _PLAIN, code=NOT_PLAIN)]
    else:
        try:
            text = json.dumps(parameters, allow_nan=False)
        except (TypeError, ValueError) as exc:
            return [_fault((), parameters, f"is not plain JSON ({exc})", _PLAIN, code=NOT_PLAIN)]
        found = _model_faults(model, parameters, text, capability)
    # What a reference stands for is checked where the plan is known, and when the step runs.
    named = [path for path, _ in iter_references(parameters)] if found else []
    return [fault for fault in found if not any(_touch(fault.path[1:], one) for one in named)]


def _touch(path: Path, other: Path) -> bool:
    """Tell whether a place lies in, or around, another one."""
    return all(a == b for a, b in zip(path, other, strict=False))


def repair_parameters(spec: CapabilitySpec, parameters: object) -> tuple[Any, list[Problem]]:
    """Give parameters the one exact form that they may be meant to have; returns what is left wrong.

    Args:
        spec: The capability.
        parameters: The step's ``parameters``.
    """
    faults = parameter_errors(spec.parameters, parameters, spec.name)
    for fault in (fault for fault in faults if fault.corrected_value is not NO_CORRECTION):
        parameters = replace_at(parameters, fault.path[1:], fault.corrected_value)
    return parameters, parameter_errors(spec.parameters, parameters, spec.name) if faults else []


def validated_parameters(spec: CapabilitySpec, parameters: object) -> tuple[Any, dict[str, Any]]:
    """Read a step's parameters: what runs, and the same as plain data with defaults filled in.

    The plain data is what is shown to a person, agreed to, kept and compared; reading it again
    gives the same model. Values with one exact form of the declared type, as ``"5"`` has 5, take
    it.

    Args:
        spec: The capability.
        parameters: The step's ``parameters``.

    Returns:
        An instance of the capability's ``Parameters`` (the dictionary itself where it declares
        none), and plain data under the names that a plan uses.

    Raises:
        ValidationError: A parameter is unknown or does not fit; names all of them. The severity
            is REPLANNING.

    >>> class Options(BaseModel):
    ...     amount: int
    ...     currency: str = "EUR"
    >>> spec = CapabilitySpec("pay", "Pay.", parameters=Options)
    >>> validated_parameters(spec, {"amount": 5})
    (Options(amount=5, currency='EUR'), {'amount': 5, 'currency': 'EUR'})
    """
    parameters, faults = repair_parameters(spec, parameters)
    if faults:
        listed = "; ".join(
            f"{render_path(fault.path[1:]) or 'parameters'} {fault.value!r}: {fault.cause}"
            f" ({fault.remedy})"
            for fault in faults
        )
        raise ValidationError(
            f"The parameters of {spec.name!r} do not fit: {listed}.",
            fix="Correct the step's parameters.",
            severity=ErrorSeverity.REPLANNING,
        )
    values: dict[str, Any] = dict(parameters) if isinstance(parameters, dict) else {}
    if open_ends := [text for _, text in iter_references(values)]:
        raise ValidationError(
            f"The parameters of {spec.name!r} still refer to {', '.join(open_ends)}.",
            fix="Give the values; only a plan that is to run may refer to results.",
        )
    if spec.parameters is None:
        return values, values
    model = _read(spec.parameters, values)
    return model, _written(model, values, spec)


def _read(model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    # As a plan is: JSON, so that a date or a set may be written as JSON writes it.
    return model.model_validate_json(json.dumps(values), by_alias=True, by_name=True)


def _written(model: BaseModel, given: Mapping[str, Any], spec: CapabilitySpec) -> dict[str, Any]:
    """Write parameters as plain data that is read back as the same parameters."""
    kind = type(model)
    spelled = dict(zip(kind.model_fields, parameter_names(kind), strict=True))
    try:
        data = model.model_dump(mode="json", by_alias=False, round_trip=True, warnings=False)
        plain = {spelled.get(name, name): value for name, value in data.items()}
        if _reads_as(kind, plain, model):
            return plain
        # A field whose written form is another one, such as a masked secret: as it was given.
        unset = {spelled[name] for name in spelled if name not in model.model_fields_set}
        plain = {**{name: plain[name] for name in unset if name in plain}, **given}
        if _reads_as(kind, plain, model):
            return plain
    except Exception as exc:  # a serializer of the capability's author, which may raise anything
        raise ValidationError(
            f"The parameters of {spec.name!r} cannot be written as plain data: {preview(exc)}.",
            fix="Declare a serializer in its Parameters model for the field.",
        ) from exc
    raise ValidationError(
        f"The parameters of {spec.name!r} come back changed when they are written and read.",
        fix="Correct the defaults, serializers and validators of its Parameters model.",
    )


def _reads_as(kind: type[BaseModel], plain: Mapping[str, Any], model: BaseModel) -> bool:
    try:
        back = _read(kind, plain)
    except (ValueError, TypeError):
        return False
    return all(_same(name, back, model) for name in kind.model_fields) and bool(
        back.model_extra == model.model_extra
    )


def _same(name: str, one: BaseModel, other: BaseModel) -> bool:
    with suppress(ValueError, TypeError):  # tables and arrays are not one truth
        return bool(getattr(one, name) == getattr(other, name))
    # What cannot be compared is the same where it is written in the same way.
    written = [model.model_dump(mode="json", include={name}) for model in (one, other)]
    return bool(written[0] == written[1])


def required_parameters(model: type[BaseModel] | None) -> list[str]:
    """Name the parameters that a step cannot leave out."""
    if model is None:
        return []
    fields = zip(parameter_names(model), model.model_fields.values(), strict=True)
    return [name for name, info in fields if info.is_required()]


def _scalar_faults(parameters: dict[Any, Any], capability: str) -> Iterator[Problem]:
    """Check what a capability without a model takes: numbers and text by name."""
    for name, value in parameters.items():
        path = (name if isinstance(name, str) else preview(name),)
        if not isinstance(name, str):
            yield _fault(path, name, "is not a parameter name", "use text for parameter names")
        elif isinstance(value, float) and not math.isfinite(value):
            cause, remedy = "is not a finite number", "give a finite number"
            yield _fault(path, value, cause, remedy, code=NOT_PLAIN)
        elif value is not None and not isinstance(value, (str, int, float)):
            cause = (
                f"is not text, a number or a boolean, and {capability!r} declares no Parameters"
                " model that would allow it"
            )
            remedy = "give a plain value, or declare a Parameters model on the capability"
            yield _fault(path, value, cause, remedy)


def _model_faults(
    model: type[BaseModel], parameters: dict[str, Any], text: str, capability: str
) -> list[Problem]:
    strict = _errors(model, parameters, text, strict=True)
    lenient = _errors(model, parameters, text, strict=False) if strict else []
    faults: dict[Path, Problem] = {}
    for error in [error for error in lenient if error["type"] in _UNKNOWN]:
        path = _deepest(parameters, error["loc"])[0]
        faults[path] = _stranger(model, parameters, path, capability)
    told = {error["loc"] for error in lenient}
    for error in strict + lenient:
        if error["type"] in _UNKNOWN:
            continue
        path, value = _deepest(parameters, error["loc"])
        message = error["msg"][:1].lower() + error["msg"][1:]
        if error["type"] == "missing":
            remedy = f"give the parameter that {capability!r} declares"
            fault = _fault(error["loc"], None, message, remedy)
        else:
            mended = _exact_form(model, parameters, path, value)
            if mended is NO_CORRECTION and error["loc"] not in told:
                continue  # only the strict reading minds
            known = mended is not NO_CORRECTION
            remedy = f"write {preview(mended)}" if known else "give the value in the declared form"
            fault = _fault(path, value, message, remedy, mended=mended)
        # A union reports one error for each of its members: one value, one problem.
        faults.setdefault(fault.path[1:], fault)
    return list(faults.values())


def _stranger(
    model: type[BaseModel], parameters: dict[str, Any], path: Path, capability: str
) -> Problem:
    owner = Shape.from_model(model, "validation").at_path(path[:-1])
    known = owner.field_names if owner is not None else []
    near = closest_name(str(path[-1]), known)
    remedy = f"use only: {', '.join(sorted(known))}" if known else "leave it out"
    if near is not None:
        remedy = f"write {near!r}, or {remedy}"
    cause = f"{capability!r} does not declare this parameter"
    return _fault(path, _deepest(parameters, path)[1], cause, remedy)


def _errors(
    model: type[BaseModel], parameters: dict[str, Any], text: str, *, strict: bool
) -> list[dict[str, Any]]:
    """Return what is wrong, unknown names included, which a model would drop in silence."""
    found = _validate(model, text, strict=strict, extra="forbid")
    unknown = [error for error in found if error["type"] in _UNKNOWN]
    if not unknown:
        return found
    # Forbidding holds for every model inside, those that take anything included.
    whole = Shape.from_model(model, "validation")
    strangers = (e for e in unknown if whole.at_path(_deepest(parameters, e["loc"])[0]) is None)
    others = _validate(model, text, strict=strict, extra=None)
    # What is refused anyhow need not be told whole.
    return [
        *islice(strangers, _MAX_UNKNOWN),
        *(error for error in others if error["type"] not in _UNKNOWN),
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
        # A validator of the capability's author failed in its own way; that is a finding about
        # these parameters, not a reason to lose every other finding of the plan.
        cause = f"the validator failed: {preview(exc)}"
        return [{"loc": (), "type": "validator", "msg": cause}]
    return []


def _exact_form(
    model: type[BaseModel], parameters: dict[str, Any], path: Path, value: object
) -> Any:
    """Return the one other spelling of a value that fits and says exactly the same."""
    forms = _lossless_forms(value) if path else ()
    fitting = [form for form in forms if not _breaks(model, parameters, path, form)]
    return fitting[0] if fitting and all(form == fitting[0] for form in fitting) else NO_CORRECTION


def _breaks(model: type[BaseModel], parameters: dict[str, Any], path: Path, value: object) -> bool:
    """Tell whether a value in that place still fails, whatever the other places do."""
    changed = replace_at(parameters, path, value)
    return any(
        error["loc"][: len(path)] == path or not error["loc"]
        for error in _validate(model, json.dumps(changed), strict=True, extra=None)
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


def _deepest(parameters: object, path: Path) -> tuple[Path, Any]:
    """Follow a path as far as it exists; schema branches such as unions add parts of their own."""
    found: list[str | int] = []
    value: Any = parameters
    for part in path:
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
            found.append(part)
    return tuple(found), value


def replace_at(parameters: Any, path: Path, value: object) -> Any:
    """Return parameters with one value replaced; the original stays as it is.

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
