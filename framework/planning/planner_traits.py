"""Properties that a planner declares about itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from capgraph.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PlannerTraits:
    """Properties of a planner, read from class attributes with the same names.

    Attributes:
        can_correct: True if the planner can write another plan from a list of problems.
        chooses_parameters: True if the planner chooses step parameters for the request. Otherwise a
            person must approve a ``once`` effect that runs with its defaults.
        reads_results: True if the planner reads stored results, failures, or earlier messages. Its
            plans then have the labels (provenance tags) of that data.
        writes_with_model: True if a model writes the plans. Their form is then repaired, and parameters
            of effects must be grounded or approved by a person.
        reads_conversation: True if the planner reads the earlier messages of a request. The task is
            then the last message, and no model call extracts it.
        needs_confirmation: True if the planner uses a small model, such as one with grammar-constrained
            output. Ungrounded values and unexpected effects in its plans are then checked twice.
    """

    can_correct: bool = False
    chooses_parameters: bool = False
    reads_results: bool = True
    writes_with_model: bool = True
    reads_conversation: bool = False
    needs_confirmation: bool = False


def planner_traits(planner: Any) -> PlannerTraits:
    """Return the traits that a planner declares, with defaults for undeclared traits.

    Raises:
        ConfigurationError: A declared trait is not a boolean.

    >>> class Careful:
    ...     can_correct = True
    >>> planner_traits(Careful()).can_correct, planner_traits(Careful()).chooses_parameters
    (True, False)
    """
    declared: dict[str, Any] = {
        one.name: getattr(planner, one.name, one.default) for one in fields(PlannerTraits)
    }
    for name, value in declared.items():
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"{type(planner).__name__}.{name} is {value!r:.80}: expected a boolean.",
                fix=f"Write {name} = True or {name} = False in the class.",
            )
    return PlannerTraits(**declared)
