"""Root of the exception classes, and the errors that this layer raises."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


_NO_FACTS = frozenset({"message", "fix", "severity", "person_message"})


class CapgraphError(Exception):
    """Base class of every error that capgraph raises.

    Args:
        message: The value and the cause, in one or two sentences.
        fix: Instruction that solves the problem. Appended to the text after ``Fix:``.
        severity: ``ErrorSeverity`` of the failure. Defaults to that of the class.
        facts: Values that the message states, by name, for code that handles the error.
        **attributes: Values of attributes that the class declares. They count as facts, too.

    Copies and pickles keep every attribute, even if a subclass has another constructor.

    >>> error = CapgraphError(
    ...     "Port 0 is not usable.", fix="Pass a port above 1023.", facts={"port": 0}
    ... )
    >>> str(error), error.facts
    ('Port 0 is not usable. Fix: Pass a port above 1023.', {'port': 0})
    """

    code = "CG-000"
    severity: Enum | None = None
    person_message: str = ""
    """Sentence for the end user. Empty if the message itself is meant for them."""

    def __init__(
        self,
        message: str = "",
        *,
        fix: str | None = None,
        severity: Enum | None = None,
        facts: Mapping[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        if unknown := [name for name in attributes if not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {unknown}.")
        vars(self).update(attributes)
        self._facts = dict(facts or {})
        self.message = message
        self.fix = fix
        if severity is not None:
            self.severity = severity
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} Fix: {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The default protocol calls the constructor with args, which fits no constructor but this one.
        return _new, (type(self), self.args), vars(self).copy()

    @property
    def facts(self) -> dict[str, Any]:
        """The values that the message states, by name, and the attributes of this error."""
        attributes = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name not in _NO_FACTS
        }
        return attributes | self._facts

    @property
    def page(self) -> str:
        """Path of the documentation page for this error code."""
        return f"errors/{self.code}"


def _new(cls: type[CapgraphError], args: tuple[Any, ...]) -> CapgraphError:
    error = cls.__new__(cls)
    error.args = args  # OSError sets them in its constructor only
    return error


class ConfigurationError(CapgraphError, ValueError):
    """Invalid or contradictory settings."""

    code = "CG-CONFIGURATION"


class UnknownOptionError(ConfigurationError, TypeError):
    """Unknown keyword argument. Also a ``TypeError``, as for any Python function."""


class ValidationError(CapgraphError, ValueError):
    """Data that a capability received is missing or wrong."""

    code = "CG-VALIDATION"
