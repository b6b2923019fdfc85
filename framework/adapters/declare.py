"""A capability made of what something else says about itself: its name, its schema, its call."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from langgraph.types import Command
from pydantic import BaseModel, create_model

from capgraph.base.capability import BaseCapability, ContextType
from capgraph.base.checked import checked
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted, check_names
from capgraph.base.decorators import capability_node
from capgraph.base.function_form import ClassifyError, ParametersFrom, own_methods
from capgraph.base.spec import type_name
from capgraph.base.step_context import StepContext
from capgraph.planning.json_parameters import JsonParameters, json_parameters

Call = Callable[[dict[str, Any], StepContext], Awaitable[Any]]
"""Does the work: parameters by the names of the schema, and the step."""


@checked
def declare(
    name: str,
    description: str,
    parameters: type[BaseModel] | Mapping[str, Any] | None,
    call: Call,
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
    >>> declare("add", "Adds.", schema, add).capability_spec.provides
    ('ADD_RESULT',)
    """
    check_names(f"The capability {name!r}", options, accepted("tool"))
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
        return {type_name(kind): _data(found)}

    namespace: dict[str, Any] = {
        **options,
        "name": name,
        "description": description,
        "provides": [kind],
        # Also without fields: a parameter that it does not take is an error.
        "Parameters": parameters or create_model(f"{name}_parameters"),
        "execute": execute,
        **own_methods(name, max_attempts, delay_seconds, classify_error, parameters_from),
        "__module__": __name__,
        "__doc__": description,
    }
    return cast("type[BaseCapability]", capability_node(type(name, (BaseCapability,), namespace)))


def _data(found: Any) -> Any:
    if isinstance(found, (Mapping, BaseModel)) or dataclasses.is_dataclass(found):
        return found
    return {"value": found}
