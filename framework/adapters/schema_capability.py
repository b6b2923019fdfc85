"""Function that creates a capability from a name, a parameter schema, and an async function."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

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
"""Function that executes the capability. It receives the parameters by name, and the step."""


class ResultWithState(NamedTuple):
    """Capability result combined with updates to the application's state.

    Attributes:
        result: Return value of the capability.
        updates: New values by state key.
    """

    result: Any
    updates: dict[str, Any]


@validate_arguments
def capability_from_schema(
    name: str,
    description: str,
    parameters: type[BaseModel] | Mapping[str, Any] | None,
    call: CapabilityCall,
    *,
    provides: ContextType | None = None,
    credentials: Any = None,
    max_attempts: int | None = None,
    delay_seconds: float | None = None,
    classify_error: ClassifyError | None = None,
    parameters_from: ParametersFrom | None = None,
    **options: Any,
) -> type[BaseCapability]:
    """Create a capability from a description and a parameter schema.

    Args:
        name: Name of the capability.
        description: Description for planners.
        parameters: Pydantic model or JSON schema against which plans are validated.
        call: Function that executes the capability. A dictionary, pydantic object, or dataclass
            that it returns becomes the data of the context type. Any other value is stored under
            ``value``.
        provides: Context type of the result. Defaults to a type named after the capability.
        credentials: Credentials that ``call`` uses, whose authorization a server serves.
        max_attempts: Maximum number of attempts of a step. Defaults to 3.
        delay_seconds: Delay before the second attempt. Defaults to 0.5.
        classify_error: Function that returns the severity of a failure.
        parameters_from: Function that reads the parameters from a task when no model plans.
        **options: ``requires``, and the declarations of :class:`~capgraph.base.spec.Declarations`,
            such as ``examples``, ``effect``, and ``permission``.

    Raises:
        MissingExtraError: ``parameters`` is a JSON schema, but ``jsonschema`` is not installed.
        ValidationError: A declaration or the schema is invalid.

    >>> async def add(values, step):
    ...     return values["a"] + values["b"]
    >>> schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    >>> capability_from_schema("add", "Adds.", schema, add).capability_spec.provides
    ('ADD_RESULT',)
    """
    check_names(f"The capability {name!r}", options, accepted_names("tool"))
    if isinstance(parameters, Mapping):
        parameters = json_parameters(name, parameters)
    context_type = provides or re.sub(r"\W+", "_", f"{name}_result").upper()

    async def execute(self: BaseCapability) -> Any:
        step = self._step_context()
        parameters_given = step.parameters
        plain = isinstance(parameters_given, JsonParameters)
        result = await call(
            parameters_given.model_dump(by_alias=True) if plain else dict(parameters_given), step
        )
        if isinstance(result, (CapabilityContext, Command)):
            return result
        result, updates = result if isinstance(result, ResultWithState) else (result, {})
        return {context_type_name(context_type): _to_context_data(result), **updates}

    namespace: dict[str, Any] = {
        **options,
        "name": name,
        "description": description,
        "provides": [context_type],
        # Use an empty model, so that unknown parameters are rejected.
        "Parameters": parameters or create_model(f"{name}_parameters"),
        "execute": execute,
        **methods_from_options(name, max_attempts, delay_seconds, classify_error, parameters_from),
        "__module__": __name__,
        "__doc__": description,
    }
    created = cast("type[Any]", capability_node(type(name, (BaseCapability,), namespace)))
    created.credentials = credentials
    return cast("type[BaseCapability]", created)


def _to_context_data(result: Any) -> Any:
    if isinstance(result, (Mapping, BaseModel)) or dataclasses.is_dataclass(result):
        return result
    return {"value": result}
