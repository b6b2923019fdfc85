"""Regular expressions with linear search time."""

from __future__ import annotations

import re

from pydantic_core import SchemaError, SchemaValidator, core_schema

from capgraph.configs.errors import ConfigurationError

# An unclosed bracket ends with the text, so that the search is linear.
_TOKEN = re.compile(
    r"\\[pP]\{[^}]*\}?|\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z|\\\Z)"
    r"|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.",
    re.DOTALL,
)
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


class LinearTimeRegex:
    r"""Regular expression with a search time that is linear in the length of the text.

    Matching uses pydantic's regex engine (the Rust crate ``regex``), which never backtracks
    because it supports neither look-around nor backreferences.

    Args:
        pattern: Regular expression as a string, or compiled with flags.
        flags: Inline flags for a string pattern, such as ``i``.
        max_size: Maximum size of the pattern, for a pattern from elsewhere. ``None`` for no limit.

    Attributes:
        size: Approximate number of states. Counted repetitions multiply the size of their
            operands. The search time is at most proportional to the size times the text's length.

    Raises:
        ConfigurationError: The pattern is invalid, too large, or not supported by the engine.

    >>> LinearTimeRegex(r"\bsecret\b", "i").search("A SECRET place")
    True
    >>> LinearTimeRegex("(ab{2}){10}").size
    30
    """

    def __init__(
        self, pattern: str | re.Pattern[str], flags: str = "", *, max_size: int | None = None
    ) -> None:
        text = pattern
        if isinstance(pattern, re.Pattern):
            text = pattern.pattern
            flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
        self.size: int = _estimate_size(str(text))
        if max_size is not None and self.size > max_size:
            raise ConfigurationError(
                f"The regular expression {text!r:.200} is too large: its size is {self.size:,}, and the"
                f" limit is {max_size:,}.",
                fix="Use fewer counted repetitions, or '*' instead.",
            )
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


def _estimate_size(pattern: str) -> int:
    """Estimate the number of states of a regular expression."""
    groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        if text == "(":
            groups.append(0)
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token["least"] is not None:
            count = max(int(number) for number in (token["least"], token["most"] or "0", "1"))
            groups[-1] += last * (count - 1)
            last *= count
        elif text not in ("*", "+", "?", "|"):
            last = 1
            groups[-1] += 1
    return sum(groups)
