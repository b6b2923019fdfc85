"""Removal of prompt tags that a model repeats."""

from __future__ import annotations

import random

import pytest

from capgraph.models.prompt_echo import EchoFilter, has_prompt_tags, remove_echo

MAIL = (
    "<request>\nSend an e-mail to bob@example.org.\n</request>\n\n"
    '<data name="SEND_EMAIL send_email">\nSent to bob@example.org.\n</data>'
)
TEXTS = {
    MAIL: "Sent to bob@example.org.",
    f"Request:\n{MAIL}": "Sent to bob@example.org.",
    f"{MAIL}\n\nThe mail was sent.": "The mail was sent.",
    "It is done.\n</data>": "It is done.",
    '<data name="A">\nRome: rain.\n</data>\n<data name="B">\nMadrid: sun.\n</data>': (
        "Rome: rain.\nMadrid: sun."
    ),
    '<DATA name="A">\nRome: rain.': "Rome: rain.",
    "It rains.\n<data na": "It rains.",
    "<request>\nMail Bob": "",
    "a < b and <b>c</b> or <requests>": "a < b and <b>c</b> or <requests>",
    "Request: two of them": "Request: two of them",
    "Request:": "Request:",
    "plain": "plain",
}


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_tags_are_removed(text: str) -> None:
    assert remove_echo(text) == TEXTS[text] or not has_prompt_tags(text)
    assert not has_prompt_tags(remove_echo(text))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(8))
def test_result_does_not_depend_on_chunk_boundaries(text: str, seed: int) -> None:
    chance = random.Random(seed)
    pieces, shown, rest = EchoFilter(), "", text
    while rest:
        size = chance.randint(1, 1 + seed * 3)
        shown += pieces.feed(rest[:size])
        assert not has_prompt_tags(shown)
        assert "<data" not in shown
        rest = rest[size:]
    assert (shown + pieces.close()).strip() == TEXTS[text]


def test_text_without_tags_is_passed_on_at_once() -> None:
    pieces = EchoFilter()
    assert [pieces.feed(piece) for piece in ("The ", "sensor ", "reads 3.5")] == [
        "The ",
        "sensor ",
        "reads 3.5",
    ]
    assert pieces.close() == ""
