"""What steps left behind, as updates of the state: the one place where a record becomes state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.channels import DeltaChannel
from langgraph.types import Overwrite

from framework.base.ports import Failure, StepRecord
from framework.state import AgentState, StateSchema, fold_context

_COMBINED = frozenset({"execution_step_results", "control_attempts", "execution_effects"})
_OF_AGENT = StateSchema.of(AgentState)
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


def last_result(entry: Mapping[str, Any], failure: Failure | None) -> dict[str, Any]:
    """Return what ``execution_last_result`` says of a step.

    Args:
        entry: The step's entry in ``execution_step_results``.
        failure: Why it failed.
    """
    fields = ("capability", "success", "execution_time", "timestamp", "error")
    found = {name: entry[name] for name in fields if name in entry}
    if failure is not None:
        found["classification"] = failure.classification.to_dict()
    return found


def combined(updates: Sequence[Mapping[str, Any]], schema: StateSchema = _OF_AGENT) -> Writes:
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
            elif name in schema.reduced and not isinstance(value, Overwrite):
                many.append((name, value))
            else:
                single[name] = value
    if contexts:
        many.append(("capability_context_data", contexts))
    return [*many, *merged.items(), *single.items()]


def applied(
    state: Mapping[str, Any], writes: Writes, schema: StateSchema = _OF_AGENT
) -> dict[str, Any]:
    """Apply writes as the graph's reducers will, so that routing can go on before the superstep."""
    view = dict(state)
    for name, value in writes:
        key = schema.keys.get(name)
        reducer = key.reducer if key is not None else None
        if isinstance(value, Overwrite):
            view[name] = value.value
        elif name == "capability_context_data":
            view[name] = fold_context(view.get(name), [value])
        elif isinstance(reducer, DeltaChannel):
            view[name] = reducer.reducer(view.get(name) or [], [value])
        elif reducer is not None and view.get(name) is not None:
            view[name] = reducer(view[name], value)
        else:
            view[name] = value
    return view


def last_wins(writes: Writes, schema: StateSchema = _OF_AGENT) -> Writes:
    """Keep every write of a key with a reducer, and the last of any other key.

    A write that replaces what a reducer would merge makes the earlier ones of its key void.
    """
    single: dict[str, Any] = {}
    many: Writes = []
    for name, value in writes:
        if isinstance(value, Overwrite):
            many = [entry for entry in many if entry[0] != name]
            many.append((name, value))
        elif name not in schema.reduced:
            single[name] = value
        elif any(known == name and isinstance(v, Overwrite) for known, v in many):
            many = [
                (n, Overwrite(applied({n: v.value}, [(name, value)], schema)[n]))
                if n == name and isinstance(v, Overwrite)
                else (n, v)
                for n, v in many
            ]
        else:
            many.append((name, value))
    return [*many, *single.items()]
