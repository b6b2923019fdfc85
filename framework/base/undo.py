"""How an effect is taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step whose effect was done.

    Attributes:
        key: Its context key.
        capability: The capability that ran.
        parameters: The validated values with which it ran.
        outputs: Context type to the data that it gave.
    """

    key: str
    capability: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Undo:
    """What takes an effect back: ``undo = "refund"``, ``undo = Refund``, or this.

    The step that undoes takes the done step's outputs as its inputs, by their types. Without
    ``parameters`` its parameters are those of the same name: of the outputs, else of the done step.

    Attributes:
        capability: Name of the capability, or the capability.
        parameters: Makes the parameters out of the done step.

    >>> undo = Undo("refund", lambda done: {"payment": done.outputs["RECEIPT"]["id"]})
    >>> undo.name
    'refund'
    """

    capability: Any
    parameters: Callable[[DoneStep], Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        """Name of the capability."""
        given = self.capability
        return str(given if isinstance(given, str) else given.name)

    @classmethod
    def of(cls, declared: Any) -> Undo | None:
        """Read what a capability declares as ``undo``.

        Raises:
            ValueError: It names no capability.
        """
        if declared is None:
            return None
        undo = declared if isinstance(declared, cls) else cls(declared)
        given = undo.capability
        name = given if isinstance(given, str) else getattr(given, "name", None)
        if not (isinstance(name, str) and name):
            raise ValueError("this is no capability; give its name, itself, or an Undo")
        return undo
