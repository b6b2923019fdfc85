"""Functions that call a capability outside a plan.

They convert arguments to a step, and the step's record to an output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import FatalExecutionError, PersistenceError, StoppedError
from capgraph.base.plan import PlannedStep
from capgraph.base.ports import StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.bind import unbound_services
from capgraph.engine.run_scope import find_services
from capgraph.engine.services import Services
from capgraph.pipeline.step_execution import LABELS_KEY

Contexts = dict[str, dict[str, Any]]
Schema = dict[str, Any]
RUN_ENDING_ERRORS = (GraphBubbleUp, StoppedError, FatalExecutionError, PersistenceError)
"""Exceptions that end the whole run instead of failing one step."""
_SCALAR_TYPES = ["string", "number", "boolean", "null"]


def parse_request(
    spec: CapabilitySpec, arguments: Mapping[str, Any]
) -> tuple[PlannedStep, Contexts]:
    """Convert the arguments of a capability call to a plan step and its input data.

    An object, or a list of objects, under the name of a required type or role becomes an input.
    All other arguments become parameters.

    Args:
        spec: Specification of the capability.
        arguments: Arguments by name.

    Returns:
        The step, and the context data that its inputs refer to.

    >>> from capgraph.base.spec import CapabilitySpec, Requirement
    >>> spec = CapabilitySpec("forecast", "Forecasts.", requires=(Requirement("PLACE"),))
    >>> step, context = parse_request(spec, {"PLACE": {"name": "Rome"}, "days": 3})
    >>> step
    {'parameters': {'days': 3}, 'inputs': [{'PLACE': 'PLACE_1'}]}
    >>> context
    {'PLACE': {'PLACE_1': {'name': 'Rome'}}}
    """
    remaining = dict(arguments)
    inputs: list[dict[str, str]] = []
    contexts: Contexts = {}
    for need in spec.requires:
        value = remaining.pop(need.label, None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for number, value_item in enumerate(values, start=1):
            key = f"{need.label}_{number}"
            data = (
                value_item.model_dump(mode="json")
                if isinstance(value_item, CapabilityContext)
                else value_item
            )
            contexts.setdefault(need.type, {})[key] = data
            inputs.append({need.label: key})
    return {"parameters": remaining, "inputs": inputs}, contexts


def request_schema(spec: CapabilitySpec, types: Mapping[str, type[CapabilityContext]]) -> Schema:
    """Build the JSON schema of the arguments that :func:`parse_request` accepts for a capability.

    Args:
        spec: Specification of the capability.
        types: Registered context types by name.

    >>> from capgraph.base.spec import CapabilitySpec, Requirement
    >>> class Place(CapabilityContext):
    ...     name: str
    >>> spec = CapabilitySpec("visit", "Visits.", requires=(Requirement("PLACE"),))
    >>> request_schema(spec, {"PLACE": Place})["required"]
    ['PLACE']
    """
    scalars = {"type": "object", "additionalProperties": {"type": _SCALAR_TYPES}}
    parameters_schema = (
        spec.parameters.model_json_schema() if spec.parameters is not None else scalars
    )
    full_schema: Schema = {
        "type": "object",
        "properties": {},
        "required": [],
        "$defs": {},
        **parameters_schema,
    }
    properties, required, definitions = (
        full_schema[name] for name in ("properties", "required", "$defs")
    )
    for need in spec.requires:
        context_type = types.get(need.type)
        input_schema = (
            context_type.model_json_schema() if context_type is not None else {"type": "object"}
        )
        # Two types may use the same definition name for different schemas.
        prefix = f"{need.label}."
        input_schema = json.loads(
            json.dumps(input_schema).replace('"#/$defs/', f'"#/$defs/{prefix}')
        )
        definitions = {
            **definitions,
            **{prefix + name: part for name, part in input_schema.pop("$defs", {}).items()},
        }
        is_list = need.cardinality == "many"
        shape = {"type": "array", "items": input_schema, "minItems": 1} if is_list else input_schema
        properties = {**properties, need.label: shape}
        required = required if need.cardinality == "optional" else [*required, need.label]
    full_schema |= {"properties": properties, "required": required}
    return (
        {**full_schema, "$defs": definitions}
        if definitions
        else {n: p for n, p in full_schema.items() if n != "$defs"}
    )


def services_for(capability: Any, services: Services | None) -> Services:
    """Return the services that run a capability, registering the capability if necessary.

    If ``services`` is None, use the services of the enclosing run, or default services outside
    a run.

    Raises:
        ConfigurationError: The capability's declaration requires services, but none are
            available.
    """
    spec = capability.capability_spec
    if services is None:
        return find_services(spec) or unbound_services(spec)
    is_registered = services.registry.capabilities.get(spec.name) is spec
    return services if is_registered else services.with_capabilities(capability)


def failure_message(record: StepRecord) -> str | None:
    """Return the reason why a step failed, or None if it succeeded.

    Raises:
        StoppedError: The run was stopped by a user or a rule.
    """
    if record.error is not None:
        if record.updates.get("control_is_killed"):
            raise StoppedError(record.error.message)
        return record.error.message
    if record.plan is not None:
        return f"{record.capability!r} proposed a plan, which cannot run outside of a graph."
    return record.skipped


def record_output(record: StepRecord) -> Any:
    """Return a step's output as plain data.

    If the output has a single context type, return the data of that type. Otherwise, return the
    data by context type. A scalar result that is stored under ``value`` is unwrapped.
    """
    return unwrap_output(
        {kind: next(iter(entries.values())) for kind, entries in record.contexts.items()}
    )


def unwrap_output(outputs: Mapping[str, Any]) -> Any:
    """Convert outputs by context type to the value that callers receive.

    See :func:`record_output` for the rules.
    """
    unwrapped = {
        context_type: data["value"] if isinstance(data, dict) and [*data] == ["value"] else data
        for context_type, data in outputs.items()
    }
    return next(iter(unwrapped.values())) if len(unwrapped) == 1 else unwrapped or None


def collect_labels(state: Any) -> dict[str, str]:
    """Collect the provenance labels from an agent's messages, mapping each label to its source.

    Labels are stored in the messages, so a label applies only as long as its message is kept.
    """
    values = state if isinstance(state, Mapping) else {}
    messages = [*(values.get("conversation") or ()), *(values.get("messages") or ())]
    carriers = [m.artifact if isinstance(m, ToolMessage) else m.response_metadata for m in messages]
    labels = [
        carrier[LABELS_KEY]
        for carrier in carriers
        if isinstance(carrier, Mapping) and LABELS_KEY in carrier
    ]
    return {label: source for carrier in labels for label, source in carrier.items()}


def label_metadata(record: StepRecord) -> dict[str, dict[str, str]] | None:
    """Format a step record's provenance labels as message metadata.

    The metadata can be read with :func:`collect_labels`. Return None if the record has no
    labels.
    """
    labels = {label: source for entry in record.labels.values() for label, source in entry.items()}
    return {LABELS_KEY: labels} if labels else None
