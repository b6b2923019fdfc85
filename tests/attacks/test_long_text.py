"""Text without a bound that is masked, shown or kept."""

from __future__ import annotations

import time

import pytest

from capgraph.configs.safe_text import MASK, SecretMasker, mask_secrets

PIECES = [
    "://a:",
    "://a:b/",
    "password=",
    "password='",
    "a",
    "a=",
    " -eyJabcdefgh",
    "--a-",
    "bearer ",
    "-----BEGIN ",
    "password: bearer ",
    "Cookie: a;b=",
]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("end", ["", "\n x"])
def test_a_long_text_is_masked_in_linear_time(piece: str, end: str) -> None:
    text = "cookie: " + piece * (200_000 // len(piece)) + end
    began = time.thread_time()
    mask_secrets(text)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:pw@host/db", f"postgresql://me:{MASK}@host/db"),
        ("see a://b and c://me:p/w@host", f"see a://b and c://me:{MASK}@host"),
        ("a://u:one@h,b://u:two@h", f"a://u:{MASK}@h,b://u:{MASK}@h"),
        ("http://host:8080/path@2", "http://host:8080/path@2"),
        ("Cookie: session=abc; path=/", f"Cookie: session={MASK}; path=/"),
    ],
)
def test_secrets_in_addresses_and_cookies_are_still_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize("limit", range(1, 40))
def test_no_part_of_a_secret_is_left_where_a_text_is_cut(limit: int) -> None:
    masker = SecretMasker(["correct horse battery staple"])
    text = "the word is correct horse battery staple and password=hunter2hunter2"
    shown = masker.excerpt(text, limit)
    assert len(shown) <= limit
    assert "correct" not in shown
    assert "hunter2" not in shown


def test_a_long_key_is_masked_whole_where_a_text_is_cut() -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "QUJD" * 1000 + "\n-----END PRIVATE KEY-----"
    assert "QUJD" not in SecretMasker().excerpt("key: " + key, 60)
