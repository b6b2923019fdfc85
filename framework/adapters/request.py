"""A request for a capability from outside of plans: named values become a step and its inputs."""

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
"""What ends a run, and is the result of none of its parts."""
_SCALAR_TYPES = ["string", "number", "boolean", "null"]


def parse_request(
    spec: CapabilitySpec, arguments: Mapping[str, Any]
) -> tuple[PlannedStep, Contexts]:
    """Read named values as a step's parameters and inputs.

    An input stands under its type, or its role where it has one, as an object (a list of them
    where the capability takes many); every other name is a parameter.

    Args:
        spec: The capability.
        arguments: Names to values.

    Returns:
        The step, and the context data that its inputs name.

    >>> from capgraph.base.spec import CapabilitySpec, Requirement
    >>> spec = CapabilitySpec("forecast", "Forecasts.", requires=(Requirement("PLACE"),))
    >>> parse_request(spec, {"PLACE": {"name": "Rome"}, "days": 3})
    ({'parameters': {'days': 3}, 'inputs': [{'PLACE': 'PLACE_1'}]}, {'PLACE': {'PLACE_1': {'name': 'Rome'}}})
    """
    rest = dict(arguments)
    inputs: list[dict[str, str]] = []
    contexts: Contexts = {}
    for need in spec.requires:
        value = rest.pop(need.label, None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for number, one in enumerate(values, start=1):
            key = f"{need.label}_{number}"
            data = one.model_dump(mode="json") if isinstance(one, CapabilityContext) else one
            contexts.setdefault(need.type, {})[key] = data
            inputs.append({need.label: key})
    return {"parameters": rest, "inputs": inputs}, contexts


def request_schema(spec: CapabilitySpec, types: Mapping[str, type[CapabilityContext]]) -> Schema:
    """Return the JSON schema of what :func:`request_of` reads.

    Args:
        spec: The capability.
        types: The registered context types.

    >>> from capgraph.base.spec import CapabilitySpec, Requirement
    >>> class Place(CapabilityContext):
    ...     name: str
    >>> spec = CapabilitySpec("visit", "Visits.", requires=(Requirement("PLACE"),))
    >>> request_schema(spec, {"PLACE": Place})["required"]
    ['PLACE']
    """
    scalars = {"type": "object", "additionalProperties": {"type": _SCALAR_TYPES}}
    said = spec.parameters.model_json_schema() if spec.parameters is not None else scalars
    whole: Schema = {"type": "object", "properties": {}, "required": [], "$defs": {}, **said}
    properties, needed, named = (whole[name] for name in ("properties", "required", "$defs"))
    for need in spec.requires:
        kind = types.get(need.type)
        one = kind.model_json_schema() if kind is not None else {"type": "object"}
        # Two types may call different things by one name.
        own = f"{need.label}."
        one = json.loads(json.dumps(one).replace('"#/$defs/', f'"#/$defs/{own}'))
        named = {**named, **{own + name: part for name, part in one.pop("$defs", {}).items()}}
        several = need.cardinality == "many"
        shape = {"type": "array", "items": one, "minItems": 1} if several else one
        properties = {**properties, need.label: shape}
        needed = needed if need.cardinality == "optional" else [*needed, need.label]
    whole |= {"properties": properties, "required": needed}
    return {**whole, "$defs": named} if named else {n: p for n, p in whole.items() if n != "$defs"}


def services_for(capability: Any, services: Services | None) -> Services:
    """Return what a capability runs with: what is given, with the capability beside the others.

    Raises:
        ConfigurationError: Nothing is given, and the capability declares what nobody would keep.
    """
    spec = capability.capability_spec
    if services is None:
        return find_services(spec) or unbound_services(spec)
    known = services.registry.capabilities.get(spec.name) is spec
    return services if known else services.with_capabilities(capability)


def failure_message(record: StepRecord) -> str | None:
    """Return why a step gave nothing that whoever asked for it can use; ``None`` when it did.

    Raises:
        StoppedError: A person, or a rule, stopped the run.
    """
    if record.error is not None:
        if record.updates.get("control_is_killed"):
            raise StoppedError(record.error.message)
        return record.error.message
    if record.plan is not None:
        return f"{record.capability!r} proposed a plan, and here is nobody who would run it."
    return record.skipped


def record_output(record: StepRecord) -> Any:
    """Return what a step gave as plain data: of its one context type, else by type.

    A plain value, which stands alone under ``value``, comes as itself.
    """
    return unwrap_output({kind: next(iter(one.values())) for kind, one in record.contexts.items()})


def unwrap_output(outputs: Mapping[str, Any]) -> Any:
    """Return what a step gave, by type, as whoever asked for it reads it; see :func:`output_of`."""
    found = {
        kind: data["value"] if isinstance(data, dict) and [*data] == ["value"] else data
        for kind, data in outputs.items()
    }
    return next(iter(found.values())) if len(found) == 1 else found or None


def collect_labels(state: Any) -> dict[str, str]:
    """Return the labels of what an agent has heard from its tools, with their sources.

    They lie beside the messages, so they are there as long as the words are.
    """
    known = state if isinstance(state, Mapping) else {}
    said = [*(known.get("conversation") or ()), *(known.get("messages") or ())]
    told = [m.artifact if isinstance(m, ToolMessage) else m.response_metadata for m in said]
    labels = [one[LABELS_KEY] for one in told if isinstance(one, Mapping) and LABELS_KEY in one]
    return {label: at for one in labels for label, at in one.items()}


def label_metadata(record: StepRecord) -> dict[str, dict[str, str]] | None:
    """Return what stands beside the words of a tool, for :func:`labels_heard` to find."""
    labels = {label: at for own in record.labels.values() for label, at in own.items()}
    return {LABELS_KEY: labels} if labels else None
