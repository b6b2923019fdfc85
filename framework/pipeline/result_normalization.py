"""Normalization of a capability's result into state updates and context data; no key is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.types import Overwrite

from capgraph.base.context import CapabilityContext, ResultFile
from capgraph.base.errors import CapabilityError, ValidationError
from capgraph.base.plan import PlannedStep
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.plain_data import to_plain
from capgraph.pipeline.commands import read_command
from capgraph.state import STATE_KEYS, ContextTypes, check_state_value, dump_context

Contexts = dict[str, dict[str, Any]]

GRAPH_OWNED_KEYS = frozenset(
    {
        "approval_decisions",
        "capability_context_labels",
        "control_attempts",
        "control_begun",
        "control_budget",
        "control_error_info",
        "control_goto",
        "control_has_error",
        "control_labels",
        "control_max_retries",
        "control_turn",
        "control_undo",
        "execution_effects",
        "execution_outcome",
        "execution_pending_approvals",
        "execution_step_results",
        "planning_accepted",
        "planning_excluded",
        "planning_history",
    }
)
"""State keys that only the graph may write, because it trusts their values."""
PLAN_KEY = "planning_execution_plan"


class NormalizedResult(NamedTuple):
    """Result of a capability, split into state updates and context data.

    Attributes:
        updates: Updates to state channels.
        contexts: Plain data by context type and context key.
        plan: Plan that the capability proposed.
    """

    updates: dict[str, Any]
    contexts: Contexts
    plan: Any


def normalize_result(
    result: Any,
    stored: list[CapabilityContext],
    spec: CapabilitySpec,
    step: PlannedStep,
    key: str,
    types: ContextTypes,
    state_keys: frozenset[str] = STATE_KEYS,
) -> NormalizedResult:
    """Split a capability's result into state updates and context data.

    - A context object becomes context data of its type.
    - The value of a key that is a type in ``provides`` becomes context data of that type.
    - The value of a key that is a state channel becomes a state update.
    - All other keys together form the output of the step. Its type is ``expected_output``, or the only
      type in ``provides``.
    - A LangGraph ``Command`` writes state keys of the application. The text of its messages becomes the
      output of the step.

    Args:
        result: Value that the capability returned.
        stored: Outputs that the capability passed to ``store``.
        spec: Declarations of the capability.
        step: Planned step.
        key: Context key of the step.
        types: Registered context classes by name.
        state_keys: Names of the graph's state keys.

    Raises:
        CapabilityError: The result has an unsupported type, or a key is unknown or owned by the
            graph.
    """
    updates: dict[str, Any] = {}
    contexts: Contexts = {}
    rest: dict[str, Any] = {}
    plan: Any = None

    def add_context(kind: str, value: Any) -> None:
        if kind not in spec.output_types:
            raise CapabilityError(
                f"{spec.name!r} returned an undeclared type {kind}: 'provides' is"
                f" {list(spec.provides)}.",
                fix=f"add {kind!r} to 'provides'.",
            )
        if kind in contexts:
            raise CapabilityError(
                f"{spec.name!r} returned {kind} twice: a step returns one value per type.",
                fix="return one value per type, or plan one step per value.",
            )
        contexts[kind] = {key: dump_context(kind, key, value, types)}

    for raw_value in _to_values(result, spec):
        value = read_command(raw_value, spec, state_keys, types)
        if isinstance(value, CapabilityContext):
            add_context(value.CONTEXT_TYPE, value)
            continue
        for name, item in value.items():
            if name == PLAN_KEY:
                plan = item
            elif name in state_keys:
                updates[name] = _check_channel_value(name, item, spec)
            elif name in spec.output_types:
                add_context(name, item)
            else:
                rest[name] = item
    for context in stored:
        add_context(context.CONTEXT_TYPE, context)
    if rest:
        add_context(_choose_output_type(rest, spec, step, contexts), rest)
    _check_expected_output(step, key, spec, updates, contexts)
    return NormalizedResult(updates, contexts, plan)


def find_contexts(result: Any, stored: list[CapabilityContext]) -> list[CapabilityContext]:
    """Collect the context objects in a result and the outputs that ``store`` added."""
    contexts = list(stored)
    for value in result if isinstance(result, (list, tuple)) else [result]:
        items = value.values() if isinstance(value, Mapping) else [value]
        contexts += [item for item in items if isinstance(item, CapabilityContext)]
    return contexts


def _check_expected_output(
    step: PlannedStep,
    key: str,
    spec: CapabilitySpec,
    updates: Mapping[str, Any],
    contexts: Contexts,
) -> None:
    expected = step.get("expected_output")
    if ResultFile.CONTEXT_TYPE in contexts:
        return  # the stored file contains the expected output
    if expected and expected not in contexts and expected not in _find_written_types(updates):
        raise CapabilityError(
            f"Step {key!r} has no output {expected}: {spec.name!r} returned"
            f" {sorted([*updates, *contexts]) or 'nothing'}.",
            fix=f"return a value for {expected}, or remove expected_output from the step.",
        )


def _check_channel_value(name: str, item: Any, spec: CapabilitySpec) -> Any:
    if name in GRAPH_OWNED_KEYS:
        raise CapabilityError(
            f"{spec.name!r} cannot write the state key {name!r}, which is reserved for the graph.",
            fix="raise an error with a severity to report a failure.",
        )
    return serialize_state_value(name, item, spec.name)


def serialize_state_value(name: str, value: Any, writer: str) -> Any:
    """Serialize a value that a node writes to a state key.

    Args:
        name: State key.
        value: Value to serialize. Messages are returned unchanged.
        writer: Name of the node, for error messages.

    Raises:
        ValidationError: The value cannot be serialized, or has the wrong type for the key.
    """
    if isinstance(value, Overwrite):
        return Overwrite(serialize_state_value(name, value.value, writer))
    several = value if isinstance(value, (list, tuple)) else (value,)
    if several and all(isinstance(m, BaseMessage) for m in several):
        return value
    if name == "messages":
        return _convert_messages(several, writer)
    return check_state_value(name, to_plain(value, f"{name} of {writer!r}"), writer)


def _convert_messages(messages: Any, writer: str) -> Any:
    try:
        return convert_to_messages(list(messages))
    except Exception as exc:  # LangChain does not document the exception types
        raise ValidationError(
            f"Invalid messages from {writer!r}: {exc!s:.200}.",
            fix='return messages, or pairs such as ("ai", "Done.").',
        ) from exc


def _to_values(result: Any, spec: CapabilitySpec) -> list[Any]:
    if result is None:
        return []
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    for value in values:
        if not isinstance(value, (CapabilityContext, Mapping)):
            raise CapabilityError(
                f"{spec.name!r} returned a value of the unsupported type {type(value).__name__}: "
                f"{value!r:.80}.",
                fix="return a dictionary, a CapabilityContext, or a list of them. For another type,"
                " write the capability as a function with a return annotation (-> float).",
            )
    return values


def _choose_output_type(
    rest: dict[str, Any], spec: CapabilitySpec, step: PlannedStep, contexts: Contexts
) -> str:
    expected = step.get("expected_output")
    if expected and expected in spec.provides and expected not in contexts:
        return expected
    unused = [kind for kind in spec.provides if kind not in contexts]
    if len(spec.provides) == 1 and unused:
        return unused[0]
    raise CapabilityError(
        f"{spec.name!r} returned unknown keys {sorted(rest)}: they are neither state keys nor"
        f" declared outputs ('provides' is {list(spec.provides)}).",
        fix="declare a context type in 'provides' and return the values under it, or use keys of"
        " AgentState.",
    )


def _find_written_types(updates: Mapping[str, Any]) -> set[str]:
    return set(updates.get("capability_context_data") or {})
