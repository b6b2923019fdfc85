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
        message: The invalid value and the cause of the error, in one or two sentences.
        fix: Imperative sentence that tells the reader how to solve the problem. It is appended to
            the text after ``Fix:``.
        severity: ``ErrorSeverity`` that decides how the graph recovers. Defaults to the severity of
            the class.
        facts: Values that the message mentions, by name, for code that handles the error.
        **attributes: Values of attributes that the class declares. They are part of :attr:`facts`,
            too.

    Copies and pickles keep every attribute, even if a subclass has a different constructor.

    >>> error = CapgraphError(
    ...     "Port 0 is not usable.", fix="Pass a port above 1023.", facts={"port": 0}
    ... )
    >>> str(error), error.facts
    ('Port 0 is not usable. Fix: Pass a port above 1023.', {'port': 0})
    """

    code = "CG-000"
    severity: Enum | None = None
    person_message: str = ""
    """Sentence that is shown to the end user. If it is empty, the message itself is shown."""

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
        if not self.fix:
            return self.message
        # An author's message may lack a full stop, which the next sentence needs.
        end = "." if self.message[-1:].isalnum() else ""
        return f"{self.message}{end} Fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default protocol calls the constructor with args, which fits no constructor but this one.
        return _new, (type(self), self.args), vars(self).copy()

    @property
    def facts(self) -> dict[str, Any]:
        """Return the values that the error message mentions and the error's attributes."""
        attributes = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name not in _NO_FACTS
        }
        return attributes | self._facts

    @property
    def page(self) -> str:
        """Return the path of the documentation page that explains this error code."""
        return f"errors/{self.code}"


def _new(cls: type[CapgraphError], args: tuple[Any, ...]) -> CapgraphError:
    error = cls.__new__(cls)
    error.args = args  # OSError sets them in its constructor only
    return error


class ConfigurationError(CapgraphError, ValueError):
    """Invalid or contradictory settings."""

    code = "CG-CONFIGURATION"


class UnknownOptionError(ConfigurationError, TypeError):
    """Raised if a function receives an unknown keyword argument.

    The error is also a ``TypeError``, as for any Python function.
    """


class ValidationError(CapgraphError, ValueError):
    """Raised if data passed to a capability is missing or invalid."""

    code = "CG-VALIDATION"
