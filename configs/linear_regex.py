"""Regular expressions that are searched for in linear time."""

from __future__ import annotations

import re

from pydantic_core import SchemaError, SchemaValidator, core_schema

from capgraph.configs.errors import ConfigurationError

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


class LinearTimeRegex:
    r"""A regular expression that is searched for in linear time, whatever the text.

    The engine is the one that pydantic brings (Rust's ``regex``): it knows no look-around and no
    back references, so no text can make it try one way after the other.

    Args:
        pattern: The expression, or a compiled one with its flags.
        flags: Flags of an expression that is not compiled, such as ``i``.

    Raises:
        ConfigurationError: It is no expression, or not one of these.

    >>> LinearTimeRegex(r"\bsecret\b", "i").search("A SECRET place")
    True
    """

    def __init__(self, pattern: str | re.Pattern[str], flags: str = "") -> None:
        text = pattern
        if isinstance(pattern, re.Pattern):
            text = pattern.pattern
            flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
        try:
            schema = core_schema.str_schema(pattern=f"(?{flags}:{text})" if flags else str(text))
            self._validator = SchemaValidator(schema)
        except (SchemaError, TypeError) as exc:
            told = " ".join(str(exc).split())
            raise ConfigurationError(
                f"The pattern {text!r:.200} cannot be used: {told:.300}.",
                fix="Write it without look-around and back references.",
            ) from exc

    def search(self, text: str) -> bool:
        """Tell whether the expression is somewhere in a text; in lone surrogates nothing is."""
        return self._validator.isinstance_python(text)
