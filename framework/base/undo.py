"""Declarations of how to undo the effect of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DoneStep:
    """Finished step whose effect can be undone.

    Attributes:
        key: Context key of the finished step.
        capability: Name of the capability that performed the step.
        parameters: Validated parameters of the step.
        outputs: Output data of the step by context type.
    """

    key: str
    capability: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Undo:
    """Declaration of the capability that undoes an effect, such as a refund for a payment.

    The value of ``undo`` is the name of the capability, its class, or an instance of ``Undo``.

    The undo step receives the outputs of the finished step as its inputs, matched by type.
    Without ``parameters``, its parameters are taken from fields of the same name in those
    outputs, then in the parameters of the finished step.

    Attributes:
        capability: The capability or its name.
        parameters: Function that returns the parameters for a finished step.

    >>> undo = Undo("refund", lambda done: {"payment": done.outputs["RECEIPT"]["id"]})
    >>> undo.name
    'refund'
    """

    capability: Any
    parameters: Callable[[DoneStep], Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        """Name of the capability."""
        return str(self.capability if isinstance(self.capability, str) else self.capability.name)

    @classmethod
    def from_declaration(cls, value: Any) -> Undo | None:
        """Convert the value of an ``undo`` declaration to an ``Undo`` object, or return None.

        Raises:
            ValueError: The value does not name a capability.
        """
        if value is None:
            return None
        undo = value if isinstance(value, cls) else cls(value)
        target = undo.capability
        name = target if isinstance(target, str) else getattr(target, "name", None)
        if not (isinstance(name, str) and name):
            raise ValueError("expected a capability, the name of one, or an Undo")
        return undo
