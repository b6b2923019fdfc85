"""A capability made of what something else says about itself: its name, its schema, its call."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from langgraph.types import Command
from pydantic import BaseModel, create_model

from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.decorators import capability_node
from capgraph.base.function_capability import ClassifyError, ParametersFrom, methods_from_options
from capgraph.base.spec import context_type_name
from capgraph.base.step_context import StepContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.json_parameters import JsonParameters, json_parameters

CapabilityCall = Callable[[dict[str, Any], StepContext], Awaitable[Any]]
"""Does the work: parameters by the names of the schema, and the step."""


@validate_arguments
def capability_from_schema(
    name: str,
    description: str,
    parameters: type[BaseModel] | Mapping[str, Any] | None,
    call: CapabilityCall,
    *,
    provides: ContextType | None = None,
    max_attempts: int | None = None,
    delay_seconds: float | None = None,
    classify_error: ClassifyError | None = None,
    parameters_from: ParametersFrom | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Make a capability of something that describes itself.

    Args:
        name: Its name.
        description: What it does.
        parameters: What it takes: a pydantic model, or a JSON schema, against which a plan is
            checked as it stands.
        call: Does the work. A dictionary, a pydantic object or a data class is the data of the
            context type; any other value stands there under ``value``.
        provides: Context type of what it gives; one named after the capability when not given.
        max_attempts: Total tries of a step; 3 when not given.
        delay_seconds: Wait before the second try; 0.5 when not given.
        classify_error: Says what a failure means.
        parameters_from: Reads parameters from a task when no model plans.
        **options: ``requires`` and what :class:`~capgraph.base.spec.Declarations` lists, such as
            ``examples``, ``effect`` and ``permission``.

    Raises:
        MissingExtraError: A JSON schema is given, and ``jsonschema`` is not installed.
        ValidationError: A declaration, or the schema, is malformed.

    >>> async def add(values, step):
    ...     return values["a"] + values["b"]
    >>> schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    >>> capability_from_schema("add", "Adds.", schema, add).capability_spec.provides
    ('ADD_RESULT',)
    """
    check_names(f"The capability {name!r}", options, accepted_names("tool"))
    if isinstance(parameters, Mapping):
        parameters = json_parameters(name, parameters)
    kind = provides or re.sub(r"\W+", "_", f"{name}_result").upper()

    async def execute(self: BaseCapability) -> Any:
        step = self._step_context()
        given = step.parameters
        plain = isinstance(given, JsonParameters)
        found = await call(given.model_dump(by_alias=True) if plain else dict(given), step)
        if isinstance(found, (CapabilityContext, Command)):
            return found
        return {context_type_name(kind): _to_context_data(found)}

    namespace: dict[str, Any] = {
        **options,
        "name": name,
        "description": description,
        "provides": [kind],
        # Also without fields: a parameter that it does not take is an error.
        "Parameters": parameters or create_model(f"{name}_parameters"),
        "execute": execute,
        **methods_from_options(name, max_attempts, delay_seconds, classify_error, parameters_from),
        "__module__": __name__,
        "__doc__": description,
    }
    return cast("type[BaseCapability]", capability_node(type(name, (BaseCapability,), namespace)))


def _to_context_data(result: Any) -> Any:
    if isinstance(result, (Mapping, BaseModel)) or dataclasses.is_dataclass(result):
        return result
    return {"value": result}
