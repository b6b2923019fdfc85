"""What steps left behind, as updates of the state: the one place where a record becomes state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from langgraph.channels import DeltaChannel
from langgraph.types import Overwrite

from capgraph.base.errors import ValidationError
from capgraph.base.ports import Failure, StepRecord
from capgraph.base.undo import Undo
from capgraph.state import AgentState, StateSchema, merge_context_data

_MERGED_BY_KEY = frozenset(
    {"execution_step_results", "control_attempts", "control_labels", "execution_effects"}
)
_MERGED_BY_TYPE = frozenset({"capability_context_data", "capability_context_labels"})
_AGENT_SCHEMA = StateSchema.of(AgentState)
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
    if record.labels:
        stored = update.get("capability_context_data") or {}
        known = {
            kind: {key: dict(labels) for key in stored[kind]}
            for kind, labels in record.labels.items()
            if kind in stored
        }
        update |= {"capability_context_labels": known} if known else {}
        update["control_labels"] = {k: v for own in record.labels.values() for k, v in own.items()}
    update["execution_step_results"] = {record.key: record.to_state_entry()}
    if record.error is not None:
        update["control_attempts"] = {record.key: record.error.attempts}
    if effects := step_effects(record, plan):
        update["execution_effects"] = effects
    return update


def step_effects(record: StepRecord, plan: str = "") -> dict[str, dict[str, Any]]:
    """Return the effects that a step stands for, those that were done inside of it first.

    Args:
        record: What it left behind.
        plan: Stamp of the plan that it belongs to.
    """
    found = dict(record.updates.get("execution_effects") or {})
    if record.effect is not None and record.success:
        found[record.effect] = {
            "capability": record.capability,
            "plan": plan,
            "step": record.key,
            "objective": record.objective,
            "outputs": record.outputs,
            "parameters": dict(record.values),
        }
    return found


def with_nested_effects(record: StepRecord, effects: Mapping[str, Any]) -> StepRecord:
    """Return a record that knows of the effects that attempts inside of it had."""
    if not effects:
        return record
    return replace(record, updates={**record.updates, "execution_effects": dict(effects)})


def effects_for_parent(
    record: StepRecord, parent_key: str, undo: Undo | None
) -> dict[str, dict[str, Any]]:
    """Return a step's effects for the step around it: their outputs stay in no state.

    Args:
        record: What it left behind.
        parent_key: Key of the step around it.
        undo: What takes its effect back; a graph around need not know its capability.
    """
    found = step_effects(record)
    if record.effect in found:
        made = {kind: data[key] for kind, data in record.contexts.items() for key in data}
        found[record.effect] |= {"outputs": {}, "data": made}
        found[record.effect] |= {"undo": undo.name} if undo is not None else {}
    return {name: {**one, "step": f"{parent_key}_{one['step']}"} for name, one in found.items()}


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


def merge_writes(writes: Iterable[tuple[str, Any]], schema: StateSchema = _AGENT_SCHEMA) -> Writes:
    """Bring writes together, as few as say the same.

    Keys with a reducer keep what every write says, in their order; of any other key the last
    counts. A write that replaces what a reducer would merge makes the earlier ones of its key void.
    """
    single: dict[str, Any] = {}
    many: Writes = []
    for name, value in writes:
        before = single.get(name)
        if isinstance(value, Overwrite):
            many = [entry for entry in many if entry[0] != name]
            single[name] = value
        elif name not in schema.reduced_keys:
            single[name] = value
        elif isinstance(before, Overwrite):
            single[name] = Overwrite(
                apply_writes({name: before.value}, [(name, value)], schema)[name]
            )
        elif name in _MERGED_BY_TYPE:
            contexts = single.setdefault(name, {})
            for kind, entries in value.items():
                contexts.setdefault(kind, {}).update(entries)
        elif name in _MERGED_BY_KEY:
            single.setdefault(name, {}).update(value)
        else:
            many.append((name, value))
    return [*many, *single.items()]


def apply_writes(
    state: Mapping[str, Any], writes: Writes, schema: StateSchema = _AGENT_SCHEMA
) -> dict[str, Any]:
    """Apply writes as the graph's reducers will, so that routing can go on before the superstep."""
    view = dict(state)
    for name, value in writes:
        key = schema.keys.get(name)
        reducer = key.reducer if key is not None else None
        if isinstance(value, Overwrite):
            view[name] = value.value
        elif name == "capability_context_data":
            view[name] = merge_context_data(view.get(name), [value])
        elif isinstance(reducer, DeltaChannel):
            view[name] = reducer.reducer(view.get(name) or [], [value])
        elif reducer is not None and view.get(name) is not None:
            try:
                view[name] = reducer(view[name], value)
            except Exception as exc:  # foreign code
                raise ValidationError(
                    f"The reducer of {name!r} does not take {value!r:.80}: {exc}.",
                    fix=f"Have every node and capability return {name!r} in the form of your state.",
                ) from exc
        else:
            view[name] = value
    return view
