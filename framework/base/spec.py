"""Frozen descriptions of what a capability and an infrastructure node declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel

from framework.base.errors import ValidationError

Cardinality = Literal["one", "many", "optional"]
Effect = Literal["none", "idempotent", "once"]
OnUnknown = Literal["ask", "rerun", "fail", "skip"]

_CARDINALITY_NAMES = {"single": "one", "multiple": "many"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A context type that a capability needs.

    Attributes:
        type: Name of the context type.
        cardinality: ``one`` (exactly one), ``many`` (one or more), ``optional`` (none or one).

    >>> Requirement.parse(("READING", "many"))
    Requirement(type='READING', cardinality='many')
    """

    type: str
    cardinality: Cardinality = "one"

    @classmethod
    def parse(cls, entry: str | Sequence[str] | Requirement) -> Requirement:
        """Read an entry of ``requires``: a type name or ``(type, cardinality)``.

        Raises:
            ValidationError: The entry is neither.
        """
        if isinstance(entry, Requirement):
            return entry
        if isinstance(entry, str) and entry:
            return cls(entry)
        if (
            isinstance(entry, (tuple, list))
            and len(entry) == 2
            and all(isinstance(part, str) and part for part in entry)
        ):
            cardinality = _CARDINALITY_NAMES.get(entry[1], entry[1])
            if cardinality in get_args(Cardinality):
                return cls(entry[0], cast("Cardinality", cardinality))
        raise ValidationError(
            f"{entry!r} is not a valid entry of 'requires'.",
            fix="Write 'TYPE' or ('TYPE', 'one' | 'many' | 'optional').",
        )


@dataclass(frozen=True, slots=True)
class CapabilitySpec:
    """What one capability declares; made once, when the class is decorated.

    Attributes:
        name: Unique name, used in plans and as the graph node's name.
        description: What it does, for people and prompts.
        provides: Context types of its outputs.
        requires: Context types of its inputs.
        effect: ``none``, ``idempotent`` (safe to repeat with its key) or ``once``.
        requires_approval: Whether a person must agree before it runs.
        max_parallel: How many of its steps may run at once; ``None`` for no limit of its own.
        timeout_seconds: Time limit of one attempt; ``None`` for the setting's default.
        on_unknown: What to do when a ``once`` step started and its end is not known.
        parameters: Pydantic model of a step's ``parameters``; ``None`` when not declared.
        always_active: Selected for every request.
        cls: The decorated class.
    """

    name: str
    description: str
    provides: tuple[str, ...] = ()
    requires: tuple[Requirement, ...] = ()
    effect: Effect = "none"
    requires_approval: bool = False
    max_parallel: int | None = None
    timeout_seconds: float | None = None
    on_unknown: OnUnknown = "ask"
    parameters: type[BaseModel] | None = None
    always_active: bool = False
    cls: type[Any] = field(default=object, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class InfrastructureSpec:
    """What one infrastructure node declares.

    Attributes:
        name: The node's name, which is its role in the graph.
        description: What it does.
        quiet: Whether start and end are kept out of the log.
        cls: The decorated class.
    """

    name: str
    description: str
    quiet: bool = False
    cls: type[Any] = field(default=object, repr=False, compare=False)
