"""Texts of step results in prompts: complete within a token budget, and previews beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.base.context import CapabilityContext
from capgraph.base.value_context import ValueContext, unwrap_value
from capgraph.planning.summaries import summarize_entry
from capgraph.prompts.data import as_data, sanitize_text
from capgraph.state import ContextTypes

_MAX_PREVIEW = 200  # characters of a result preview
_MAX_TABLE = 400  # characters of a preview, if lists are tables
_MAX_STORED = 4_000  # characters of all results of earlier turns
_CHARACTERS_PER_TOKEN = 4
_MAX_KEYS = 20
_MIN_SHARED_ROWS = 3  # rows from which a line for equal columns is shorter than the columns
_MIN_PART = 40  # minimum characters of a part that is cut
_ID_FIELDS = frozenset({"id", "key", "uuid", "code", "number"})


def preview_json(value: Any, limit: int) -> str:
    """Format plain data as JSON that is truncated to roughly a maximum length.

    An object keeps its keys. A list keeps its first elements, and the IDs of the omitted
    elements if they fit.

    Args:
        value: Plain data.
        limit: Approximate maximum number of characters.

    >>> preview_json([{"id": "a1", "stars": 3}, {"id": "b2", "stars": 4}, {"id": "c3", "stars": 5}], 50)
    '[{"id":"a1","stars":3},"… 2 more: b2, c3"]'
    >>> preview_json("x" * 100, 50)
    '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx … (60 more characters)"'
    """
    return _to_json(_truncate(value, max(limit, _MIN_PART)))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str, separators=(",", ":"))


def _truncate(value: Any, limit: int) -> Any:
    text = _to_json(value)
    if len(text) <= limit:
        return value
    if isinstance(value, list):
        return _truncate_list(value, limit)
    if isinstance(value, dict):
        return _truncate_object(value, limit)
    return sanitize_text(value if isinstance(value, str) else text, limit - 10)


def _truncate_list(items: list[Any], limit: int) -> list[Any]:
    # A quarter of the space is reserved for the IDs of the other elements.
    remaining, shown_items = limit - limit // 4, []
    for item in items:
        size = len(_to_json(item)) + 2
        if size > remaining:
            break
        shown_items.append(item)
        remaining -= size
    if not shown_items and items:
        shown_items.append(_truncate(items[0], max(remaining, _MIN_PART)))
    rest = items[len(shown_items) :]
    return [*shown_items, _describe_rest(rest, limit // 4)] if rest else shown_items


def _describe_rest(items: list[Any], limit: int) -> str:
    """Return the number of omitted list elements, followed by as many of their IDs as fit."""
    shown: list[str] = []
    for name in _element_ids(items):
        limit -= len(name) + 2
        if limit < 0:
            break
        shown.append(name)
    more = "…" if 0 < len(shown) < len(items) else ""
    names = f": {', '.join([*shown, more] if more else shown)}" if shown else ""
    return f"… {len(items):,} more{names}"


def _truncate_object(value: dict[str, Any], limit: int) -> dict[str, Any]:
    sizes = {key: len(_to_json(item)) for key, item in value.items()}
    remaining = limit - sum(len(str(key)) + 6 for key in value)
    each: dict[str, int] = {}
    # Small values stay complete. Large ones share the remaining space.
    for count, key in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        each[key] = max(remaining // (len(sizes) - count), 0)
        remaining -= min(sizes[key], each[key])
    shown_keys = list(value)[: max(limit // 10, 1)]
    found = {key: _truncate(value[key], max(each[key], _MIN_PART)) for key in shown_keys}
    more = len(value) - len(shown_keys)
    return found if not more else {**found, "…": f"{more:,} more keys"}


def format_table(rows: Any, limit: int | None = None) -> str | None:
    """Format a list of flat objects as a table, which needs fewer tokens than JSON.

    All objects must have the same keys. Columns with the same value in three or more rows become
    one line. A truncated table keeps the first rows and the IDs of the omitted rows.

    Args:
        rows: List of objects. For any other value, the function returns None.
        limit: Maximum number of characters, or None to include all rows.

    >>> print(format_table([{"id": "a1", "stars": 3}, {"id": "b2", "stars": None}]))
    id | stars
    a1 | 3
    b2 | null
    >>> print(format_table([{"day": "Mon", "hour": hour} for hour in (8, 12, 17)]))
    all rows: day = Mon
    hour
    8
    12
    17
    """
    if not isinstance(rows, list) or len(rows) < 2 or not all(map(_is_flat, rows)):
        return None
    columns = [*rows[0]]
    if any([*row] != columns for row in rows) or not columns:
        return None
    shared = _find_shared_columns(rows)
    table = [[column for column in columns if column not in shared]]
    table += [[row[column] for column in table[0]] for row in rows]
    lines = [" | ".join(map(_to_cell, cells)) for cells in table]
    if shared:
        values = " | ".join(f"{column} = {_to_cell(rows[0][column])}" for column in shared)
        lines[0] = f"all rows: {values}\n{lines[0]}"
    if limit is None or sum(map(len, lines)) + len(lines) <= limit:
        return "\n".join(lines)
    remaining, count = limit - limit // 4, 0
    while count < len(lines) and (remaining := remaining - len(lines[count]) - 1) >= 0:
        count += 1
    count = max(count, 2)
    return "\n".join([*lines[:count], _describe_rest(rows[count - 1 :], limit // 4)])


def _find_shared_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that have the same value in all rows, unless all columns do."""
    if len(rows) < _MIN_SHARED_ROWS:
        return []
    first = rows[0]
    shared = [
        key for key in first if all(_to_cell(row[key]) == _to_cell(first[key]) for row in rows)
    ]
    return shared if len(shared) < len(first) else []


def _is_flat(row: Any) -> bool:
    scalars = (str, int, float, bool, type(None))
    return isinstance(row, dict) and all(isinstance(value, scalars) for value in row.values())


def _to_cell(value: Any) -> str:
    """Format a value as a table cell.

    A string is quoted if it could be misread as a different type or as more than one cell.
    """
    if not isinstance(value, str):
        return _to_json(value)
    is_plain = (
        value and value.strip() == value and value.isprintable() and not {'"', "|"} & {*value}
    )
    try:
        json.loads(value)
    except ValueError:
        return value if is_plain else _to_json(value)
    return _to_json(value)


def _element_ids(items: list[Any]) -> list[str]:
    """Return IDs of list elements, which are short scalars or the values of a unique field."""
    if not all(isinstance(item, Mapping) for item in items):
        return [str(item) for item in items if _is_identifier(item)]
    fields = [key for key in items[0] if str(key).lower() in _ID_FIELDS]
    fields += [key for key in items[0] if key not in fields]
    for field in fields:
        values = [item.get(field) for item in items]
        if all(map(_is_identifier, values)) and len(set(values)) == len(values):
            return [str(value) for value in values]
    return []


def _is_identifier(value: Any) -> bool:
    return isinstance(value, (str, int)) and 0 < len(str(value)) <= _MIN_PART


class ResultPreviews:
    """Formatter for step results that share the token budget of a single prompt.

    Args:
        available: Stored results, by context type and context key.
        max_tokens: Maximum number of tokens for results that are shown in full.
        types: Registered context classes by name.
        has_tables: Whether to format lists of flat objects as tables.
    """

    def __init__(
        self,
        available: Mapping[str, Mapping[str, Any]],
        max_tokens: int,
        types: ContextTypes | None = None,
        *,
        has_tables: bool = False,
    ) -> None:
        self._has_tables = has_tables
        self._max_preview = _MAX_TABLE if has_tables else _MAX_PREVIEW
        self._available = available
        self._left = max_tokens * _CHARACTERS_PER_TOKEN
        self._types: ContextTypes = types or {}

    def full_texts(self, outputs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Format results in full and deduct their size from the token budget.

        A result that exceeds the remaining budget is shortened to a preview.

        Args:
            outputs: Context type and context key of each result to format.
        """
        texts = {}
        for kind, key in outputs:
            content = self._available.get(kind, {}).get(key)
            if content is None:
                continue
            text = self._format(self._unwrap(kind, content))
            if len(text) > self._left:
                limit = max(self._left, self._max_preview)
                text = self._format(self._unwrap(kind, content), limit)
            self._left = max(self._left - len(text), 0)
            texts[kind, key] = text
        return texts

    def _format(self, value: Any, limit: int | None = None) -> str:
        """Format plain data as a table or as JSON of roughly limited length."""
        if self._has_tables and (table := format_table(value, limit)) is not None:
            return f"\n{table}"
        return _to_json(value) if limit is None else preview_json(value, limit)

    def short_text(self, kind: str, key: str, limit: int = _MAX_PREVIEW) -> str:
        """Return a result's ``get_summary`` text if its class defines one, or a short preview."""
        content = self._available[kind][key]
        known = self._types.get(kind, CapabilityContext)
        if known.get_summary not in (CapabilityContext.get_summary, ValueContext.get_summary):
            return sanitize_text(summarize_entry(kind, key, content, self._types), limit)
        return self._format(self._unwrap(kind, content), limit)

    def stored_lines(
        self,
        max_latest: int,
        full_texts: Mapping[tuple[str, str], str],
        excluded: Iterable[tuple[str, str]] = (),
    ) -> str:
        """List the stored results, the latest with their content and older ones only by key.

        Args:
            max_latest: Maximum number of results of each type that are listed with their content.
            full_texts: Formatted results that are shown in full, by context type and key.
            excluded: Context type and key of each result that appears elsewhere in the prompt.
        """
        excluded_keys = set(excluded)
        found = {
            kind: [key for key in self._available[kind] if (kind, key) not in excluded_keys]
            for kind in sorted(self._available)
        }
        shown = sum(min(len(keys), max_latest) for keys in found.values())
        limit = min(self._max_preview, max(_MAX_STORED // max(shown, 1), 2 * _MIN_PART))
        lines = []
        for kind, keys in found.items():
            place = max(len(keys) - max_latest, 0)
            older = {key: None for key in keys[:place] if (kind, key) not in full_texts}
            listed = [key for key in keys if key not in older]
            rows = [{"key": key, **row} for key in listed if (row := self._read_row(kind, key))]
            if len(rows) == len(listed) and (table := format_table(rows)) is not None:
                lines.append(f"{kind}:\n{table}")
                listed = []
            for key in listed:
                text = full_texts.get((kind, key)) or self.short_text(kind, key, limit)
                is_named_after = self._has_tables and key == kind.lower()
                lines.append(_label(key if is_named_after else f"{kind} {key}", text))
            if older:
                names = ", ".join([*older][-_MAX_KEYS:])
                more = f", and {len(older) - _MAX_KEYS:,} more" if len(older) > _MAX_KEYS else ""
                lines.append(f"{kind}, older: {names}{more}")
        return "\n".join(lines)

    def _read_row(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return a stored result as a table row, or ``None`` if it is not a small flat object."""
        if not self._has_tables:
            return None
        value = self._unwrap(kind, self._available[kind][key])
        is_row = _is_flat(value) and "key" not in value and len(_to_json(value)) <= _MAX_PREVIEW
        return value if is_row else None

    def _unwrap(self, kind: str, content: Any) -> Any:
        """Unwrap a stored result so that it has the form that references in plans use."""
        return unwrap_value(content, self._types.get(kind))


def _label(name: str, text: str) -> str:
    """Prefix a text with its name and a colon. A table begins on the next line."""
    return f"{name}:{text}" if text.startswith("\n") else f"{name}: {text}"


def format_finished_steps(
    finished: Mapping[str, Mapping[str, Any]],
    planned_steps: Sequence[Mapping[str, Any]],
    result_texts: Mapping[tuple[str, str], str],
    task: str,
    *,
    has_tables: bool = False,
) -> str:
    """List the finished steps, each with its context key, capability call, and result.

    Args:
        finished: State entries of the finished steps, by context key.
        planned_steps: Steps of the current plan, which contain the parameters.
        result_texts: Formatted results, by context type and key.
        task: Text of the request. A step's objective is omitted if it is identical.
        has_tables: Whether the prompt is that of iterative planning, which omits type names that
            repeat the context key.
    """
    parameters = {step.get("context_key"): step.get("parameters") for step in planned_steps}
    lines = []
    for key, record in finished.items():
        objective = str(record.get("task_objective") or "")
        values = record.get("parameters") or parameters.get(key) or {}
        call = f"{record.get('capability', '')}({_to_json(values)[1:-1]})"
        line = f"{key} = {call}" + (f": {objective}" if objective not in ("", task) else "")
        outputs = (record.get("outputs") or {}).items()
        for kind, name in outputs:
            where = kind if name == key else f"{kind} {name}"
            if has_tables and name == key == kind.lower():
                where = "result"
            line += "\n  -> " + _label(where, result_texts.get((kind, name), ""))
        if record.get("observed"):
            line += f"\n  -> failed: {record.get('error') or 'no reason was given'}"
        lines.append(line if outputs or record.get("observed") else f"{line}\n  -> no output")
    return as_data("finished steps", "\n".join(lines), 10**9)
