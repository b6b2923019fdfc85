"""Tests of the grounding of parameter values in the conversation."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from capgraph.base import CapabilitySpec
from capgraph.planning.grounding import GroundingSources, UngroundedValue, find_ungrounded_values
from tests.support.sweeps import examples

TODAY = [date(2026, 3, 4)]  # a Wednesday


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("Transfer 1,200 euros", 1200),
        ("Transfer 1.200,50 euros", 1200.5),
        ("Transfer 5k", 5000),
        ("Give 15 % off", 0.15),
        ("Order twenty chairs", 20),
        ("It is -5 degrees", -5),
        ("mail bob@example.org", "bob@example.org"),
        ("mail Bob@Example.org", "bob@example.org"),
        ("call Grace Hopper", "grace hopper"),
        ("call Grace Hopper", "Hopper, Grace"),
        ("to DE89 3704 0044", "DE8937040044"),
        ("remind me to call the dentist", "Call dentist"),
        ("mail her that the meeting is moved to Friday", "Meeting moved to Friday"),
        ("on Friday", "2026-03-06"),
        ("tomorrow", "2026-03-05"),
        ("in two weeks", "2026-03-18"),
        ("on 5 March", "2026-03-05"),
        ("on March 5th, 2027", "2027-03-05"),
        ("on 5.3.2026", "2026-03-05"),
        ("tomorrow at 6 pm", "2026-03-05T18:00:00"),
        ("remind me at 6pm", "2026-03-04T18:00"),
        ("on Monday at 9", "Monday at 9:00"),
        ("at noon", "12:00"),
        ("anything", ""),
        ("anything", None),
        ("anything", True),
    ],
)
def test_a_value_from_the_conversation_is_grounded_in_any_form(message: str, value: Any) -> None:
    assert GroundingSources([message], today=TODAY).supports(value)


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("Transfer 200 euros", 2000),
        ("Transfer 200 euros", "2026-03-05"),
        ("Transfer 200 euros to Ada", "Grace"),
        ("It is 5 degrees", -5),
        ("mail bob@example.org and eve@other.com", "bob@other.com"),
        ("Ada Lovelace and Grace Hopper", "Grace Lovelace"),
        ("on Friday", "2026-03-05"),
        ("tomorrow at 6 pm", "2026-03-05T19:00:00"),
        ("on 5 March", "2026-03-06"),
        ("Send it", "Do not send it"),
        ("Say hello", "Hello, please let me know about your questions"),
        ("order O-11", "O-12"),
    ],
)
def test_an_invented_value_is_not_grounded(message: str, value: Any) -> None:
    assert not GroundingSources([message], today=TODAY).supports(value)


class Booking(BaseModel):
    room: str
    seats: int = 4
    kind: Literal["day", "night"] = "day"
    guests: list[str] = []


SPEC = CapabilitySpec("book", "Book it.", parameters=Booking, effect="once")


def test_defaults_choices_results_and_references_are_grounded() -> None:
    values = {"room": "Blue", "seats": 4, "kind": "night", "guests": ["Ada", "Grace", "Alan"]}
    planned = {"room": {"$from": "found.room"}, "kind": "night", "guests": ["Ada", "Grace", "Alan"]}
    grounds = GroundingSources(["Book it for Ada"], [{"GUEST": {"names": ["Grace Hopper"]}}])
    assert find_ungrounded_values(SPEC, values, planned, grounds) == [
        UngroundedValue("guests[2]", "Alan")
    ]
    assert find_ungrounded_values(SPEC, values, planned, grounds, ["Alan"]) == []


@given(st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.text())
@settings(max_examples=examples(150))
def test_any_value_is_grounded_by_itself(value: Any, more: str) -> None:
    GroundingSources([more], today=TODAY).supports(value)
    if isinstance(value, (int, str)) and len(str(value)) < 15:
        assert GroundingSources([f"{more}\n{value}\n"], [value], today=TODAY).supports(value)
