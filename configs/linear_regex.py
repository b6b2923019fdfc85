"""Regular expressions with linear search time."""

from __future__ import annotations

import re

from pydantic_core import SchemaError, SchemaValidator, core_schema

from capgraph.configs.errors import ConfigurationError

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


class LinearTimeRegex:
    r"""Regular expression with a search time that is linear in the length of the text.

    Matching uses pydantic's regex engine (the Rust crate ``regex``), which never backtracks
    because it supports neither look-around nor backreferences.

    Args:
        pattern: Regular expression as a string, or compiled with flags.
        flags: Inline flags for a string pattern, such as ``i``.

    Raises:
        ConfigurationError: The pattern is invalid or not supported by the engine.

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
            cause = " ".join(str(exc).split())
            raise ConfigurationError(
                f"The regular expression {text!r:.200} is not supported: {cause:.300}.",
                fix="Write the expression without look-around and backreferences.",
            ) from exc

    def search(self, text: str) -> bool:
        """Return True if the text contains a match for the regular expression.

        Text with lone surrogates never matches, because it cannot be encoded as UTF-8.
        """
        return self._validator.isinstance_python(text)
