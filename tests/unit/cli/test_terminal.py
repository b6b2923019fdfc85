"""Text of any origin on its way to a terminal."""

import pytest

from capgraph.base import ConfigurationError
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import parse_duration_option
from capgraph.cli.terminal import one_line, to_printable

HOSTILE = "\x1b]0;title\x07 \x9b2J \u202eevil\u2069 \r over \x08\x7f \ud800"


@pytest.mark.parametrize("clean", [to_printable, one_line])
def test_control_characters_are_escaped(clean):
    text = clean(HOSTILE)
    assert text.encode("utf-8")
    assert all(char.isprintable() for char in text)


def test_line_breaks_are_kept_in_text_and_removed_from_lines():
    assert to_printable("a\r\nb\nc") == "a\nb\nc"
    assert one_line("a\r\nb\n\n c") == "a b c"


def test_long_line_is_truncated():
    assert one_line("x" * 500, 20) == "x" * 19 + "…"


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), (" 2H ", 7200), ("1w", 604800)]
)
def test_durations(text, seconds):
    assert parse_duration_option(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "3", "d", "-3d", "3 days", "9999999d", "1e3s", "3d\n4d"])
def test_invalid_duration_is_rejected(text):
    with pytest.raises(ConfigurationError, match="Invalid duration"):
        parse_duration_option(text)


def test_every_outcome_has_an_exit_code():
    expected = {
        "completed": 0,
        "failed": 1,
        "partial": 3,
        "waiting": 4,
        "stopped": 5,
        "cancelled": 130,
        "drained": 143,
        "never heard of": 1,
    }
    assert {status: int(ExitCode.of_status(status)) for status in expected} == expected
