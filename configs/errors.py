"""The root of the exception tree, which stands as low as the settings that raise it."""

from __future__ import annotations

from enum import Enum
from typing import Any


class CapgraphError(Exception):
    """Base of every error that the project raises.

    Args:
        message: What happened: the value and the cause.
        fix: What the reader can do about it; appended to the text.
        severity: The ``ErrorSeverity`` with which a node means it; CRITICAL when not given.
        **facts: Values of attributes that the class has, for those who handle it.

    Copies and pickles keep every attribute, whatever the constructor of a subclass takes.

    >>> str(CapgraphError("Port 0 is not usable.", fix="Give a port above 1023."))
    'Port 0 is not usable. Fix: Give a port above 1023.'
    """

    code = "CG-000"
    severity: Enum | None = None
    person_message: str = ""
    """A sentence for the person who asked; empty where the message itself says it."""

    def __init__(
        self,
        message: str = "",
        *,
        fix: str | None = None,
        severity: Enum | None = None,
        **facts: Any,
    ) -> None:
        if unknown := [name for name in facts if not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {unknown}.")
        vars(self).update(facts)
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
    def page(self) -> str:
        """Name of the documentation page about this error."""
        return f"errors/{self.code}"


def _new(cls: type[CapgraphError], args: tuple[Any, ...]) -> CapgraphError:
    error = cls.__new__(cls)
    error.args = args  # OSError sets them in its constructor only
    return error


class ConfigurationError(CapgraphError, ValueError):
    """Settings that cannot be used."""

    code = "CG-CONFIGURATION"


class UnknownOptionError(ConfigurationError, TypeError):
    """A keyword argument that the called function does not have.

    It is a ``TypeError`` too, as Python raises for any other function.
    """
