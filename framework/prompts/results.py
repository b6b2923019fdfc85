"""Results of steps as a planner reads them: whole up to a budget, and as previews past it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.base.context import CapabilityContext
from capgraph.base.value_context import ValueContext, unwrap_value
from capgraph.planning.summaries import summarize_entry
from capgraph.prompts.data import as_data, sanitize_text
from capgraph.state import ContextTypes

_PREVIEW = 200  # characters of a result that is not shown whole
_STORED = 4_000  # characters of all results of earlier turns
_CHARACTERS_PER_TOKEN = 4
_MAX_KEYS = 20
_LEAST = 40  # characters of a part that is cut
_ID_FIELDS = frozenset({"id", "key", "uuid", "code", "number"})


def preview_json(value: Any, limit: int) -> str:
    """Return plain data as JSON of about so many characters, cut between whole elements.

    An object keeps its keys. A list keeps its first elements, and the IDs of the others as far as
    they fit.

    >>> preview_json([{"id": "a1", "stars": 3}, {"id": "b2", "stars": 4}, {"id": "c3", "stars": 5}], 50)
    '[{"id":"a1","stars":3},"… 2 more: b2, c3"]'
    >>> preview_json("x" * 100, 50)
    '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx … (60 more characters)"'
    """
    return _json(_cut(value, max(limit, _LEAST)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str, separators=(",", ":"))


def _cut(value: Any, limit: int) -> Any:
    text = _json(value)
    if len(text) <= limit:
        return value
    if isinstance(value, list):
        return _cut_list(value, limit)
    if isinstance(value, dict):
        return _cut_object(value, limit)
    return sanitize_text(value if isinstance(value, str) else text, limit - 10)


def _cut_list(items: list[Any], limit: int) -> list[Any]:
    left, kept = limit - limit // 4, []  # a quarter is for the IDs of the others
    for item in items:
        size = len(_json(item)) + 2
        if size > left:
            break
        kept.append(item)
        left -= size
    if not kept and items:
        kept.append(_cut(items[0], max(left, _LEAST)))
    rest = items[len(kept) :]
    if not rest:
        return kept
    shown, room = [], limit // 4
    for name in _ids(rest):
        room -= len(name) + 2
        if room < 0:
            break
        shown.append(name)
    more = "…" if 0 < len(shown) < len(rest) else ""
    names = f": {', '.join([*shown, more] if more else shown)}" if shown else ""
    return [*kept, f"… {len(rest):,} more{names}"]


def _cut_object(value: dict[str, Any], limit: int) -> dict[str, Any]:
    sizes = {key: len(_json(item)) for key, item in value.items()}
    left = limit - sum(len(str(key)) + 6 for key in value)
    each: dict[str, int] = {}
    # Small values stay whole; what they leave is shared by the large ones.
    for count, key in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        each[key] = max(left // (len(sizes) - count), 0)
        left -= min(sizes[key], each[key])
    kept = list(value)[: max(limit // 10, 1)]
    found = {key: _cut(value[key], max(each[key], _LEAST)) for key in kept}
    more = len(value) - len(kept)
    return found if not more else {**found, "…": f"{more:,} more keys"}


def _ids(items: list[Any]) -> list[str]:
    """Return what names the elements of a list: short values, or a field that tells them apart."""
    if not all(isinstance(item, Mapping) for item in items):
        return [str(item) for item in items if _is_name(item)]
    fields = [key for key in items[0] if str(key).lower() in _ID_FIELDS]
    fields += [key for key in items[0] if key not in fields]
    for field in fields:
        values = [item.get(field) for item in items]
        if all(map(_is_name, values)) and len(set(values)) == len(values):
            return [str(value) for value in values]
    return []


def _is_name(value: Any) -> bool:
    return isinstance(value, (str, int)) and 0 < len(str(value)) <= _LEAST


class ResultPreviews:
    """Results that share the budget of one prompt.

    Args:
        available: The stored results, by type and key.
        max_tokens: Up to how many tokens of them are shown whole.
        types: Their context types, as far as they are known.
    """

    def __init__(
        self,
        available: Mapping[str, Mapping[str, Any]],
        max_tokens: int,
        types: ContextTypes | None = None,
    ) -> None:
        self._available = available
        self._left = max_tokens * _CHARACTERS_PER_TOKEN
        self._types: ContextTypes = types or {}

    def full_texts(self, outputs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the texts of results, whole while the budget lasts, and charge it."""
        found = {}
        for kind, key in outputs:
            content = self._available.get(kind, {}).get(key)
            if content is None:
                continue
            text = _json(self._plain(kind, content))
            if len(text) > self._left:
                text = preview_json(self._plain(kind, content), max(self._left, _PREVIEW))
            self._left = max(self._left - len(text), 0)
            found[kind, key] = text
        return found

    def short_text(self, kind: str, key: str, limit: int = _PREVIEW) -> str:
        """Return a short text of a result: its author's summary, or a preview."""
        content = self._available[kind][key]
        known = self._types.get(kind, CapabilityContext)
        if known.get_summary not in (CapabilityContext.get_summary, ValueContext.get_summary):
            return sanitize_text(summarize_entry(kind, key, content, self._types), limit)
        return preview_json(self._plain(kind, content), limit)

    def stored_lines(
        self,
        max_latest: int,
        full_texts: Mapping[tuple[str, str], str],
        excluded: Iterable[tuple[str, str]] = (),
    ) -> str:
        """Return lines for the stored results: recent and latest ones, and the keys of others.

        Args:
            max_latest: How many results of each type are shown with their content.
            full_texts: Texts of the results that are shown whole, by type and key.
            excluded: Results that are shown elsewhere, by type and key.
        """
        elsewhere = set(excluded)
        found = {
            kind: [key for key in self._available[kind] if (kind, key) not in elsewhere]
            for kind in sorted(self._available)
        }
        shown = sum(min(len(keys), max_latest) for keys in found.values())
        limit = min(_PREVIEW, max(_STORED // max(shown, 1), 2 * _LEAST))
        lines = []
        for kind, keys in found.items():
            place = max(len(keys) - max_latest, 0)
            older = [key for key in keys[:place] if (kind, key) not in full_texts]
            for key in keys:
                if key not in older:
                    text = full_texts.get((kind, key)) or self.short_text(kind, key, limit)
                    lines.append(f"{kind} {key}: {text}")
            if older:
                names = ", ".join(older[-_MAX_KEYS:])
                more = f", and {len(older) - _MAX_KEYS:,} more" if len(older) > _MAX_KEYS else ""
                lines.append(f"{kind}, older: {names}{more}")
        return "\n".join(lines)

    def _plain(self, kind: str, content: Any) -> Any:
        """Return what a path reads: of a plain value the value itself."""
        return unwrap_value(content, self._types.get(kind))


def format_finished_steps(
    finished: Mapping[str, Mapping[str, Any]],
    planned_steps: Sequence[Mapping[str, Any]],
    result_texts: Mapping[tuple[str, str], str],
    task: str,
) -> str:
    """Return a line for each step that has ended: its key, its call, and its result.

    Args:
        finished: Records by context key.
        planned_steps: The steps of the plan in force, which hold the parameters.
        result_texts: Texts of the results, by type and key.
        task: The request; a step that is for all of it does not repeat it.
    """
    parameters = {step.get("context_key"): step.get("parameters") for step in planned_steps}
    lines = []
    for key, record in finished.items():
        objective = str(record.get("task_objective") or "")
        call = f"{record.get('capability', '')}({_json(parameters.get(key) or {})[1:-1]})"
        line = f"{key} = {call}" + (f": {objective}" if objective not in ("", task) else "")
        outputs = (record.get("outputs") or {}).items()
        for kind, name in outputs:
            where = kind if name == key else f"{kind} {name}"
            line += f"\n  -> {where}: {result_texts.get((kind, name), '')}"
        if record.get("observed"):
            line += f"\n  -> failed: {record.get('error') or 'no reason was given'}"
        lines.append(line if outputs or record.get("observed") else f"{line}\n  -> no output")
    return as_data("finished steps", "\n".join(lines), 10**9)
