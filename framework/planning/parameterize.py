"""Which values of a turn become parameters of a recipe, and how requests are worded that say them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.base.errors import PlanError
from capgraph.planning.references import FROM, is_reference

PARAMETERS = "parameters"
"""What the steps of a recipe call its parameters: ``{"$from": "parameters.place"}``."""

_Place = tuple[int | str, ...]


def extract_parameters(
    steps: Sequence[Mapping[str, Any]], request: str, parameter_names: Iterable[str] | None
) -> dict[str, tuple[Any, list[_Place]]]:
    """Return what becomes a parameter: name to its value and the places where it stands."""
    places = {
        (step["context_key"], *path): value
        for step in steps
        for path, value in _leaves(step.get("parameters") or {})
    }
    found: dict[str, tuple[Any, list[_Place]]] = {}
    if parameter_names is None:
        for place, value in places.items():
            if not _stands_in(value, request):
                continue
            same = next((n for n, (v, _) in found.items() if _same(v, value)), None)
            name = same or _free_name(place, found)
            found.setdefault(name, (value, []))[1].append(place)
        return found
    for text in parameter_names:
        named, _, new = text.partition("=")
        by_name = {".".join(map(str, place)): place for place in places}
        if named not in by_name:
            raise PlanError(
                f"{named!r} is no value of a step that could become a parameter.",
                fix=f"Use one of: {', '.join(by_name) or 'none of the steps has any'}.",
            )
        place = by_name[named]
        name = new or _free_name(place, found)
        value, known = found.setdefault(name, (places[place], []))
        if not _same(value, places[place]):
            raise PlanError(
                f"The parameter {name!r} would stand for {value!r} and for {places[place]!r}.",
                fix=f"Give one of them another name: {named}=NAME.",
            )
        known.append(place)
    return found


def _leaves(value: Any, path: _Place = ()) -> Iterable[tuple[_Place, Any]]:
    if is_reference(value):
        return
    if isinstance(value, (dict, list)) and value:
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*path, part))
    if path:
        yield path, value


def _stands_in(value: Any, request: str) -> bool:
    text = isinstance(value, str) and len(value.strip()) > 1  # one letter says nothing
    if not text and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return False
    return re.search(_word(value), normalize_request(request), re.IGNORECASE) is not None


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _free_name(place: _Place, taken: Mapping[str, Any]) -> str:
    parts = [re.sub(r"\W", "_", str(part)) for part in place]
    name = next((p for p in reversed(parts) if p.isidentifier()), "value")
    return name if name not in taken else "_".join(parts)


def substitute_parameters(
    value: Any, parameter_by_path: Mapping[_Place, str], path: _Place, values: Mapping[str, Any]
) -> Any:
    """Put references to the recipe's parameters where the values stood."""
    if path in parameter_by_path:
        return {FROM: f"{PARAMETERS}.{parameter_by_path[path]}"}
    if isinstance(value, dict) and not is_reference(value):
        return {
            part: substitute_parameters(inner, parameter_by_path, (*path, part), values)
            for part, inner in value.items()
        }
    if isinstance(value, list):
        return [
            substitute_parameters(one, parameter_by_path, (*path, n), values)
            for n, one in enumerate(value)
        ]
    return substitute_names(value, values) if isinstance(value, str) else value


def substitute_names(text: str, values: Mapping[str, Any]) -> str:
    """Write the parameters by name into a text that says their values: ``Weather of {place}``."""
    for name, value in values.items():
        if _stands_in(value, text):
            text = re.sub(_word(value), f"{{{name}}}", text, flags=re.IGNORECASE)
    return text


def normalize_request(text: str) -> str:
    """Return a text without what makes no difference: line breaks, spaces, the mark at its end."""
    return " ".join(text.split()).rstrip(".!? ")


def _word(value: Any) -> str:
    return rf"(?<!\w)(?<!\d\.){re.escape(' '.join(str(value).split()))}(?!\w|\.\d)"


def request_pattern(request: str, values: Mapping[str, Any]) -> str:
    """Return what requests look like that are worded as one, with other values.

    A value has at most as many words as there (or two), and is not a list: more than that is
    another request.

    >>> re.fullmatch(request_pattern("Fly from Oslo", {"place": "Oslo"}), "Fly from New York").groupdict()
    {'place': 'New York'}
    """
    text = normalize_request(request)
    slots: list[tuple[int, int, str]] = []
    for name, value in sorted(values.items(), key=lambda item: -len(str(item[1]))):
        more = max(len(str(value).split()), 2) - 1
        slot = rf"(?P<{name}>[^\s,;:?!]+(?: [^\s,;:?!]+){{0,{more}}})"
        for found in re.finditer(_word(value), text, re.IGNORECASE):
            start, end = found.span()
            if not any(start < until and at < end for at, until, _ in slots):
                slots.append((start, end, slot))
                slot = rf"(?P={name})"  # said again
    found_to, parts = 0, []
    for start, end, slot in sorted(slots):
        parts += [re.escape(text[found_to:start]), slot]
        found_to = end
    return "".join([*parts, re.escape(text[found_to:])])
