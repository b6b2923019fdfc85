"""Conversion of step records into state updates."""

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
from capgraph.state.turn_view import STATE_KIND

MERGED_BY_KEY = frozenset(
    {"execution_step_results", "control_attempts", "control_labels", "execution_effects"}
)
"""State keys with mappings whose updates replace entries."""
MERGED_BY_TYPE = frozenset({"capability_context_data", "capability_context_labels"})
"""State keys with mappings by context type, whose updates replace entries by context key."""
_AGENT_SCHEMA = StateSchema.from_class(AgentState)
Writes = list[tuple[str, Any]]


def to_state(record: StepRecord, plan: str = "") -> dict[str, Any]:
    """Create the state update that stores a step's record.

    Args:
        record: Record of the step.
        plan: ID of the plan that contains the step.
    """
    update = dict(record.updates)
    if record.contexts:
        merged = dict(update.get("capability_context_data") or {})
        for kind, entries in record.contexts.items():
            merged[kind] = {**merged.get(kind, {}), **entries}
        update["capability_context_data"] = merged
    if record.labels:
        stored = update.get("capability_context_data") or {}
        context_labels = {
            kind: {key: dict(labels) for key in stored[kind]}
            for kind, labels in record.labels.items()
            if kind in stored
        }
        context_labels |= {
            kind: {record.key: dict(labels)}
            for kind, labels in record.labels.items()
            if kind.startswith(STATE_KIND)
        }
        update |= {"capability_context_labels": context_labels} if context_labels else {}
        update["control_labels"] = {
            k: v for own_labels in record.labels.values() for k, v in own_labels.items()
        }
    update["execution_step_results"] = {record.key: record.to_state_entry()}
    if record.error is not None:
        update["control_attempts"] = {record.key: record.error.attempts}
    if effects := step_effects(record, plan):
        update["execution_effects"] = effects
    return update


def step_effects(record: StepRecord, plan: str = "") -> dict[str, dict[str, Any]]:
    """Return a step's effect entries by effect key, beginning with nested executions.

    Args:
        record: Record of the step.
        plan: ID of the plan that contains the step.
    """
    effects = dict(record.updates.get("execution_effects") or {})
    if record.effect is not None and record.success:
        effects[record.effect] = {
            "capability": record.capability,
            "plan": plan,
            "step": record.key,
            "objective": record.objective,
            "outputs": record.outputs,
            "parameters": dict(record.values),
        }
    return effects


def add_nested_effects(record: StepRecord, effects: Mapping[str, Any]) -> StepRecord:
    """Add the effects of nested executions to a step's record."""
    if not effects:
        return record
    return replace(record, updates={**record.updates, "execution_effects": dict(effects)})


def export_effects(
    record: StepRecord, parent_key: str, undo: Undo | None
) -> dict[str, dict[str, Any]]:
    """Return a nested step's effect entries for its outer step, with plain output data.

    Args:
        record: Record of the nested step.
        parent_key: Context key of the outer step.
        undo: Declaration of how to undo the effect, because the outer graph may not have
            registered the nested capability.
    """
    effects = step_effects(record)
    if record.effect in effects:
        output_data = {kind: data[key] for kind, data in record.contexts.items() for key in data}
        effects[record.effect] |= {"outputs": {}, "data": output_data}
        effects[record.effect] |= {"undo": undo.name} if undo is not None else {}
    return {
        name: {**effect, "step": f"{parent_key}_{effect['step']}"}
        for name, effect in effects.items()
    }


def last_result(entry: Mapping[str, Any], failure: Failure | None) -> dict[str, Any]:
    """Create the value of the state key ``execution_last_result`` for a step.

    Args:
        entry: Entry of the step in ``execution_step_results``.
        failure: Failure of the step.
    """
    fields = ("capability", "success", "execution_time", "timestamp", "error")
    result = {name: entry[name] for name in fields if name in entry}
    if failure is not None:
        result["classification"] = failure.classification.to_dict()
    return result


def merge_writes(writes: Iterable[tuple[str, Any]], schema: StateSchema = _AGENT_SCHEMA) -> Writes:
    """Merge state writes into as few writes as possible with the same result.

    All writes to a key with a reducer are kept in order. Of the writes to any other key, only the last
    is kept. An ``Overwrite`` discards earlier writes to its key.

    Args:
        writes: Pairs of a state key and a value, in order.
        schema: Keys of the graph's state.
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
        elif name in MERGED_BY_TYPE:
            contexts = single.setdefault(name, {})
            for kind, entries in value.items():
                contexts.setdefault(kind, {}).update(entries)
        elif name in MERGED_BY_KEY:
            single.setdefault(name, {}).update(value)
        else:
            many.append((name, value))
    return [*many, *single.items()]


def apply_writes(
    state: Mapping[str, Any], writes: Writes, schema: StateSchema = _AGENT_SCHEMA
) -> dict[str, Any]:
    """Apply state writes to a copy of the state with the graph's reducers.

    Routing can then continue within the current superstep.
    """
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
            except Exception as exc:  # reducers are user code
                raise ValidationError(
                    f"Invalid value {value!r:.80} for state key {name!r}: its reducer raised {exc}.",
                    fix=f"return values for {name!r} that match your state class.",
                ) from exc
        else:
            view[name] = value
    return view
