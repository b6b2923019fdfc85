"""Parameter values that a request names, for plans that are written without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from capgraph.base import BaseCapability, CapabilitySpec, PlanError
from capgraph.planning.catalog import Catalog, is_harmless
from capgraph.planning.parameters import required_parameters
from capgraph.planning.schema_shapes import Shape

_IDENTIFIER = re.compile(r"(?<![A-Za-z])([A-Za-z]+[-_]?)\d+")
_QUOTED = r"\"([^\"]+)\"|'([^']+)'|“([^”]+)”|‘([^’]+)’"
_CODE = r"(?P<code>(?=[\w-]*\d)\w[\w-]*)"
_WORD = 3
"""Minimum length of a choice that is recognized without the name of its parameter.

Shorter choices are recognized if they contain a digit and a letter."""


class RequestValues:
    """Cache of the parameter values that capabilities extract from a user's request.

    Args:
        catalog: Available capabilities.
        task: Text of the request.
    """

    def __init__(self, catalog: Catalog, task: str) -> None:
        self.specs: Mapping[str, CapabilitySpec] = catalog.capabilities
        self.task = task
        self._cache: dict[str, dict[str, Any] | PlanError] = {}
        self._by_type: dict[str, list[str]] | None = None

    def read(self, name: str) -> dict[str, Any]:
        """Return the parameter values for a capability that the user's request contains.

        Raises:
            PlanError: See :func:`read_parameters`.
        """
        if name not in self._cache:
            try:
                self._cache[name] = read_parameters(self.specs[name], self.task)
            except PlanError as exc:
                self._cache[name] = exc
        found = self._cache[name]
        if isinstance(found, PlanError):
            raise found
        return found

    def read_error(self, name: str) -> PlanError | None:
        """Return the error for a parameter that the request does not specify, or ``None``.

        Always returns ``None`` for a capability that could have side effects without approval.
        """
        if not is_harmless(self.specs[name]):
            return None
        try:
            self.read(name)
        except PlanError as exc:
            return exc
        return None

    def can_auto_include(self, name: str) -> bool:
        """Return True if a plan may include a capability although it was not selected.

        The capability must have no side effects or require approval, and its parameters must be
        clear from the request.
        """
        return is_harmless(self.specs[name]) and self.read_error(name) is None

    def defaults_hide_request(self, name: str) -> bool:
        """Return True if a capability would run with defaults and ignore the request's values.

        This is the case if other producers of the same types use values from the request.
        """
        return _has_defaults(self.specs[name]) and self.has_better_producers(name)

    def has_better_producers(self, name: str) -> bool:
        """Return True if only other producers of a capability's types use the request's values."""
        spec = self.specs[name]
        if spec.effect != "none" or not spec.provides:
            return False
        if self.read_error(name) is not None or self.read(name):
            return False
        return all(self._find_other_readers(kind, name) for kind in spec.provides)

    def _find_other_readers(self, kind: str, name: str) -> list[str]:
        """Return other capabilities that provide a type and use a value from the request."""
        if self._by_type is None:
            self._by_type = {}
            for other, spec in self.specs.items():
                if self.can_auto_include(other) and self.read(other):
                    for provided in spec.provides:
                        self._by_type.setdefault(provided, []).append(other)
        return [other for other in self._by_type.get(kind, ()) if other != name]

    def prefer_request_readers(self, names: list[str]) -> list[str]:
        """Replace selected capabilities that would ignore a value in the user's request.

        Each replacement provides the same type and uses the value.
        """
        chosen: list[str] = []
        for name in names:
            kinds = self.specs[name].provides if self.defaults_hide_request(name) else ()
            alternatives = [self._find_other_readers(kind, name)[0] for kind in kinds]
            chosen += alternatives or [name]
        return list(dict.fromkeys(chosen))


def _has_defaults(spec: CapabilitySpec) -> bool:
    return spec.parameters is not None and bool(spec.parameters.model_fields)


def read_parameters(
    spec: CapabilitySpec, task: str, known_values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Extract a capability's parameters from a request without calling a language model.

    The capability's ``parameters_from`` method is used if its author defined one, and
    :func:`extract_named_values` otherwise. The latter is not used for a ``once`` effect,
    because a person must supply its parameters.

    Args:
        spec: Specification of the capability.
        task: Text of the request.
        known_values: Values for parameters that the request may omit, keyed by name.

    Raises:
        PlanError: A required parameter is not in the request, the request names several values
            for one parameter, or ``parameters_from`` fails.
    """
    reader = getattr(spec.cls, "parameters_from", BaseCapability.parameters_from)
    if reader is not BaseCapability.parameters_from:
        found = _call_parameters_from(spec, reader, task)
    elif spec.effect == "once" or spec.parameters is None:
        found = {}
    else:
        found = extract_named_values(spec.parameters, task, spec.name)
    found |= known_values or {}
    missing = [name for name in required_parameters(spec.parameters) if name not in found]
    if missing:
        raise PlanError(
            f"{spec.name!r} cannot be planned without a model, because it requires values for the "
            f"parameters {', '.join(missing)}.",
            fix="Declare defaults, define parameters_from(task), or configure a chat model.",
            person_message=f"For this I need to know: {', '.join(missing).replace('_', ' ')}.",
        )
    return found


def _call_parameters_from(spec: CapabilitySpec, reader: Any, task: str) -> dict[str, Any]:
    try:
        return dict(reader(task) or {})
    except Exception as exc:  # the author's function may raise anything
        raise PlanError(
            f"parameters_from of {spec.name!r} failed: {type(exc).__name__}: {exc}.",
            fix="Return a dictionary of the parameters that the task names.",
        ) from exc


def extract_named_values(model: type[BaseModel], task: str, capability: str = "") -> dict[str, Any]:
    """Extract parameter values from a request without calling a language model.

    Parameters with the default ``None`` are skipped. Only these forms are recognized:

    - One of the choices of a ``Literal`` or an ``Enum``.
    - An identifier with the same pattern as the default: ``T2`` if the default is ``T1``.
    - A number after the name of an integer parameter: ``tank 2``.
    - An identifier or a quoted string after the name of a string parameter: ``tank B-17``.

    Args:
        model: ``Parameters`` model of the capability.
        task: Text of the request.
        capability: Name of the capability, for the error message.

    Raises:
        PlanError: The request contains several values for one parameter, or one value that
            matches several parameters.

    >>> class Options(BaseModel):
    ...     tank: str = "T1"
    ...     year: int = 2015
    >>> extract_named_values(Options, "How full was t2 in the year 2014?")
    {'tank': 'T2', 'year': 2014}
    """
    found = {name: values for name, values in _iter_candidates(model, task) if values}
    for values in found.values():
        sharing = [other for other, theirs in found.items() if set(values) & set(theirs)]
        # A number follows the name of its parameter, so it cannot be ambiguous.
        if len(values) > 1 or (len(sharing) > 1 and isinstance(values[0], str)):
            named = " and ".join(map(str, values))
            raise PlanError(
                f"The parameter {' or '.join(sharing)} of {capability!r} is ambiguous: the request"
                f" names {named}.",
                fix="Ask for one at a time, define parameters_from(task), or configure a chat model.",
                person_message=f"The request names {named}. Please ask for one at a time.",
            )
    return {name: values[0] for name, values in found.items()}


def _iter_candidates(model: type[BaseModel], task: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield each parameter of a model with its possible values in the user's request."""
    whole = Shape.from_model(model, "validation")
    for name, info in model.model_fields.items():
        default = info.get_default()
        if default is None:  # the author's code chooses a value
            continue
        parameter = info.validation_alias if isinstance(info.validation_alias, str) else name
        shape = whole.at_path((parameter,))
        if choices := _find_choices(info.annotation):
            yield parameter, _match_choices(choices, name, task)
        elif shape is not None and shape.json_type == "integer" and not isinstance(default, bool):
            numbers = re.findall(rf"{_create_name_pattern(name)}(\d+)\b", task, re.IGNORECASE)
            yield parameter, list(dict.fromkeys(map(int, numbers)))
        elif info.annotation is str:
            yield parameter, _find_identifiers(name, default, task)


def _find_choices(annotation: Any) -> list[str]:
    """Return the string values that a ``Literal`` or ``Enum`` type allows."""
    choices: list[Any] = []
    if get_origin(annotation) is Literal:
        choices = list(get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        choices = [member.value for member in annotation]
    return [value for value in choices if isinstance(value, str) and value]


def _match_choices(choices: list[str], name: str, task: str) -> list[str]:
    """Return the allowed values of a parameter that occur as whole words in the request."""
    found = []
    for choice in choices:
        words = re.escape(choice).replace("_", r"[\s_-]")
        # Short choices such as 'a' and 'in' occur in any sentence.
        is_short = len(choice) < _WORD and not re.search(r"\d[^\W\d]|[^\W\d]\d", choice)
        lead = _create_name_pattern(name) if is_short else r"(?<![\w-])"
        if re.search(rf"{lead}{words}(?![\w-])", task, re.IGNORECASE):
            found.append(choice)
    # 'light rain' does not also count as 'rain'.
    return [one for one in found if not any(one != o and one.lower() in o.lower() for o in found)]


def _find_identifiers(name: str, default: Any, task: str) -> list[str]:
    """Return identifiers and quoted strings in a request that may be parameter values.

    The parameter must be a string.
    """
    form = _IDENTIFIER.fullmatch(default) if isinstance(default, str) else None
    found = []
    if form is not None:
        numbers = re.findall(rf"(?<![\w-]){form[1]}(\d+)(?!\w)", task, re.IGNORECASE)
        found = [form[1] + number for number in numbers]
    takes_numbers = not isinstance(default, str) or form is not None or default.isdigit()
    for match in re.finditer(
        rf"{_create_name_pattern(name)}(?:{_QUOTED}|{_CODE})", task, re.IGNORECASE
    ):
        quoted, token = next(filter(None, match.groups()[:-1]), None), match["code"]
        if quoted is not None:
            found.append(quoted)
        elif form is not None and re.fullmatch(rf"{form[1]}\d+", token, re.IGNORECASE):
            continue  # already found in the form of the default
        elif takes_numbers or not token.isdigit():
            found.append(token)
    return list(dict.fromkeys(found))


def _create_name_pattern(name: str) -> str:
    """Build a regular expression that matches a parameter's name before its value."""
    bare = re.sub(r"_(id|name|number|no|key|code)_?$", "", name).strip("_") or name
    words = re.escape(bare).replace("_", r"[\s_-]")
    return rf"\b{words}(?:[\s_-](?:id|name|key|code))?\s+(?:number\s+|no\.?\s*|#)?"
