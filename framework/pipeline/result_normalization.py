"""Where each value goes that a capability returns: no key is ever lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.types import Overwrite

from capgraph.base.context import CapabilityContext
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
"""Keys by which the graph knows what ran, what failed and what was agreed to; what somebody else
writes there would be believed."""
PLAN_KEY = "planning_execution_plan"


class NormalizedResult(NamedTuple):
    """A result, sorted.

    Attributes:
        updates: Updates of state channels.
        contexts: Context type to context key to plain data.
        plan: A plan that was proposed.
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
    """Split a result into state updates and context data.

    A context object goes under its type; a key that is a type in ``provides`` goes there; a key
    that is a state channel is merged into the state; all other keys together are the step's
    output and go under ``expected_output``, else under the only type it provides. A command writes
    keys of the application's state, and the text of its messages is the output.

    Raises:
        CapabilityError: The result has another form, or a key fits nowhere or is the graph's.
    """
    updates: dict[str, Any] = {}
    contexts: Contexts = {}
    rest: dict[str, Any] = {}
    plan: Any = None

    def put(kind: str, value: Any) -> None:
        if kind not in spec.provides:
            raise CapabilityError(
                f"{spec.name!r} gave {kind}, which it does not declare; it declares"
                f" {list(spec.provides)}.",
                fix=f"Add {kind!r} to 'provides'.",
            )
        if kind in contexts:
            raise CapabilityError(
                f"{spec.name!r} gave {kind} twice in one step.",
                fix="Return one value for each type, or plan one step for each.",
            )
        contexts[kind] = {key: dump_context(kind, key, value, types)}

    for given in _result_values(result, spec):
        value = read_command(given, spec, state_keys, types)
        if isinstance(value, CapabilityContext):
            put(value.CONTEXT_TYPE, value)
            continue
        for name, item in value.items():
            if name == PLAN_KEY:
                plan = item
            elif name in state_keys:
                updates[name] = _channel_value(name, item, spec)
            elif name in spec.provides:
                put(name, item)
            else:
                rest[name] = item
    for context in stored:
        put(context.CONTEXT_TYPE, context)
    if rest:
        put(_output_type(rest, spec, step, contexts), rest)
    _check_expected_output(step, key, spec, updates, contexts)
    return NormalizedResult(updates, contexts, plan)


def find_contexts(result: Any, stored: list[CapabilityContext]) -> list[CapabilityContext]:
    """Return the context objects of a result."""
    found = list(stored)
    for value in result if isinstance(result, (list, tuple)) else [result]:
        inside = value.values() if isinstance(value, Mapping) else [value]
        found += [item for item in inside if isinstance(item, CapabilityContext)]
    return found


def _check_expected_output(
    step: PlannedStep,
    key: str,
    spec: CapabilitySpec,
    updates: Mapping[str, Any],
    contexts: Contexts,
) -> None:
    expected = step.get("expected_output")
    if expected and expected not in contexts and expected not in _written_types(updates):
        raise CapabilityError(
            f"The step {key!r} promised {expected}, and {spec.name!r} returned nothing for it"
            f" (returned: {sorted([*updates, *contexts]) or 'nothing'}).",
            fix=f"Return a value for {expected}, or remove expected_output from the step.",
        )


def _channel_value(name: str, item: Any, spec: CapabilitySpec) -> Any:
    if name in GRAPH_OWNED_KEYS:
        raise CapabilityError(
            f"{spec.name!r} returned {name!r}, which only the graph itself may write.",
            fix="Raise an error with a severity to report a failure.",
        )
    return serialize_state_value(name, item, spec.name)


def serialize_state_value(name: str, value: Any, writer: str) -> Any:
    """Return what a node writes under a state key in the form in which it is kept.

    Args:
        name: The key.
        value: The value; messages stay what they are.
        writer: Name of the node.

    Raises:
        ValidationError: Something in it has no plain form, or another one than the key.
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
    except Exception as exc:  # of many types, which LangChain does not name
        raise ValidationError(
            f"{writer!r} wrote messages that cannot be read: {exc!s:.200}.",
            fix='Write messages, or pairs such as ("ai", "Done.").',
        ) from exc


def _result_values(result: Any, spec: CapabilitySpec) -> list[Any]:
    if result is None:
        return []
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    for value in values:
        if not isinstance(value, (CapabilityContext, Mapping)):
            raise CapabilityError(
                f"{spec.name!r} returned {type(value).__name__} ({value!r:.80}).",
                fix="Return a dictionary, a CapabilityContext, or a list of them; a function that"
                " returns another value says so by its annotation (-> float).",
            )
    return values


def _output_type(
    rest: dict[str, Any], spec: CapabilitySpec, step: PlannedStep, contexts: Contexts
) -> str:
    expected = step.get("expected_output")
    if expected and expected in spec.provides and expected not in contexts:
        return expected
    free = [kind for kind in spec.provides if kind not in contexts]
    if len(spec.provides) == 1 and free:
        return free[0]
    raise CapabilityError(
        f"{spec.name!r} returned {sorted(rest)}, which is neither a state key nor an output that"
        f" it declares (it provides {list(spec.provides)}).",
        fix="Declare a context type in 'provides' and return the values under it, or use a key of"
        " AgentState.",
    )


def _written_types(updates: Mapping[str, Any]) -> set[str]:
    return set(updates.get("capability_context_data") or {})
