"""What steps left behind, as updates of the state: the one place where a record becomes state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Overwrite

from framework.base.ports import StepRecord
from framework.state import REDUCED_KEYS, append, merge_by_key, merge_context

_COMBINED = frozenset({"execution_step_results", "control_attempts", "execution_effects"})
Writes = list[tuple[str, Any]]


def to_state(record: StepRecord, plan: str = "") -> dict[str, Any]:
    """Return the state update of one step.

    Args:
        record: What it left behind.
        plan: Stamp of the plan that it belongs to.
    """
    update = dict(record.updates)
    if record.contexts:
        merged = dict(update.get("capability_context_data") or {})
        for kind, entries in record.contexts.items():
            merged[kind] = {**merged.get(kind, {}), **entries}
        update["capability_context_data"] = merged
    update["execution_step_results"] = {record.key: record.entry()}
    if record.error is not None:
        update["control_attempts"] = {record.key: record.error.attempts}
    if record.effect is not None and record.success:
        update["execution_effects"] = {
            record.effect: {
                "capability": record.capability,
                "plan": plan,
                "step": record.key,
                "objective": record.objective,
                "outputs": record.outputs,
            }
        }
    return update


def combined(updates: Sequence[Mapping[str, Any]]) -> Writes:
    """Bring the updates of several steps into one.

    Keys with a reducer keep every write, in the plan's order; of any other key the last counts.
    """
    single: dict[str, Any] = {}
    many: Writes = []
    merged: dict[str, dict[str, Any]] = {}
    contexts: dict[str, dict[str, Any]] = {}
    for update in updates:
        for name, value in update.items():
            if name == "capability_context_data":
                for kind, entries in value.items():
                    contexts.setdefault(kind, {}).update(entries)
            elif name in _COMBINED:
                merged.setdefault(name, {}).update(value)
            elif name in REDUCED_KEYS and not isinstance(value, Overwrite):
                many.append((name, value))
            else:
                single[name] = value
    if contexts:
        many.append(("capability_context_data", contexts))
    return [*many, *merged.items(), *single.items()]


def applied(state: Mapping[str, Any], writes: Writes) -> dict[str, Any]:
    """Apply writes as the graph's reducers will, so that routing can go on before the superstep."""
    view = dict(state)
    for name, value in writes:
        if isinstance(value, Overwrite):
            view[name] = value.value
        elif name == "capability_context_data":
            view[name] = merge_context(view.get(name), value)
        elif name not in REDUCED_KEYS or not isinstance(value, (Mapping, list, tuple)):
            view[name] = value
        elif isinstance(value, Mapping):
            view[name] = merge_by_key(view.get(name), value)
        else:
            view[name] = append(view.get(name), list(value))
    return view


def last_wins(writes: Writes) -> Writes:
    """Keep every write of a key with a reducer, and the last of any other key."""
    single = {name: value for name, value in writes if name not in REDUCED_KEYS}
    return [(n, v) for n, v in writes if n in REDUCED_KEYS] + list(single.items())
