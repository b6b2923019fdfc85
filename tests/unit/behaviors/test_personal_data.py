"""The guard against personal data, by patterns and with presidio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph.behaviors import PIIGuardrail

ABOUT: Any = {"role": "worker", "tool": "write"}
PERSONAL = [
    "ann.lee+news@mail.example.co.uk",
    "078-05-1120",
    "4111 1111 1111 1111",
    "order 12 4111111111111111",
    "5555-5555-5555-4444",
    "DE89 3704 0044 0532 0130 00",
    "+49 30 901820",
    "(212) 555-0123",
    "212-555-0123",
]


@pytest.mark.parametrize("text", PERSONAL)
def test_personal_data_is_found_everywhere(text: str) -> None:
    guard = PIIGuardrail(analyzer=None)
    found = guard.check_post({"a": [{"b": f"It is {text}, as said."}]}, **ABOUT)
    assert not found.allowed
    assert text not in str(found.reason), "the reason repeats nothing of it"
    assert not guard.check_pre(**ABOUT, arguments={text: "a"}).allowed
    assert guard.check_post({"card": 4111111111111111}, **ABOUT).decision == "deny"


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T23:25:07.123456+00:00",
        "step 3 of 12, 0_weather: 42.0",
        "version 1.2.22, build 20261121232507",
        "550e8400-e29b-41d4-a716-446655440000",
        "1,234,567.89 litres in 00123456",
        "1700000000000000000",
        "see @framework and a@b",
        "192.168.100.200",
    ],
)
def test_ordinary_numbers_pass(text: str) -> None:
    assert PIIGuardrail(analyzer=None).check_post(text, **ABOUT).allowed


@pytest.mark.row("T29")
@given(st.lists(st.one_of(st.sampled_from(PERSONAL), st.text(alphabet="ab ,.;\n"))))
def test_rewritten_texts_have_no_personal_data(texts: list[str]) -> None:
    guard = PIIGuardrail(action="rewrite", analyzer=None)
    outcome = guard.check_post({"a": [" | ".join(texts)]}, **ABOUT)
    if outcome.decision == "rewrite":
        assert guard.check_post(outcome.value, **ABOUT).decision == "allow"


def test_rewriting_changes_nothing_else() -> None:
    guard = PIIGuardrail(action="rewrite", analyzer=None)
    value = {"n": 3, "ok": True, "none": None, "texts": ["mail a@b.org or c@d.org!", "fine"]}
    found = guard.check_post(value, **ABOUT)
    assert found.value == {
        **value,
        "texts": ["mail [e-mail address] or [e-mail address]!", "fine"],
    }


@pytest.mark.parametrize(
    "text",
    ["a" * 50_000, "a@" * 20_000, "1 " * 20_000, "AA11 " * 10_000, "+1 " * 20_000],
)
def test_pattern_matching_time_is_bounded(text: str) -> None:
    # With patterns that do, each of these would run for hours.
    assert PIIGuardrail(analyzer=None).check_post(text, **ABOUT).allowed


async def test_a_custom_analyzer_is_used_in_addition() -> None:
    class Analyzer:
        def analyze(self, **asked: Any) -> list[Any]:
            assert asked["entities"] == ["PERSON"]
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()  # beside the loop, which goes on meanwhile
            place = asked["text"].find("Ann")
            person = type("R", (), {"start": place, "end": place + 3, "entity_type": "PERSON"})
            return [person] if place >= 0 else []

    guard = PIIGuardrail(["PERSON"], action="rewrite", analyzer=Analyzer())
    found = await guard.acheck_post("Ask Ann at a@b.org", **ABOUT)
    assert found.value == "Ask [person] at [e-mail address]"


def test_presidio_is_used_where_it_is_installed() -> None:
    pytest.importorskip("presidio_analyzer")
    guard = PIIGuardrail()
    found = guard.check_post({"a": "My server is 84.17.33.9 and I am a@b.org"}, **ABOUT)
    assert found.reason == "it holds personal data (ip address, e-mail address)"
    assert guard.check_post("The tank holds 42 litres.", **ABOUT).allowed
