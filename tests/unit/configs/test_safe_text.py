"""Masking of secrets and escaping of control characters."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from typing import Any

import pytest

from capgraph.configs.logger import (
    SecretMasker,
    escape_control_characters,
    mask_data,
    mask_secrets,
    use_masker,
)
from capgraph.configs.settings import load_settings

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("api_key=abc123", "abc123"),
        ('{"password": "hunter2, the second"}', "hunter2, the second"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("sent Bearer 0123456789abcdef", "0123456789abcdef"),
        ("postgresql://me:pw12@host/db", "pw12"),
        ("redis://me:p@ss12@host/db", "ss12"),
        ("postgresql://me:pw/12@host/db", "12@"),
        ("Cookie: theme=dark; session=abcdef12", "abcdef12"),
        ("set-cookie: id=abcdef12; Path=/; HttpOnly", "abcdef12"),
        ("psql --password hunter2 -h db", "hunter2"),
        ("tool --client-api-key hunter2", "hunter2"),
        ("key sk-abcdefghijkl was refused", "sk-abcdefghijkl"),
        ("sk-proj-abc_DEF-123456", "abc_DEF"),
        ("sk_live_0123456789", "0123456789"),
        ("token = 'tok-1'", "tok-1"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789"),
        ("github_pat_11ABCDEFG0123456789_abc", "ABCDEFG"),
        ("xoxb-123456789012-abcdef", "123456789012"),
        ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "SyA0123456789"),
        ("hf_abcdefghijABCDEFGHIJabcdefghij", "abcdefghij"),
        ("xai-0123456789abcdefghij", "0123456789"),
        ("lsv2_pt_0123456789abcdef0123456789abcdef_0123456789", "0123456789"),
        (r"it said {\"password\": \"hunter2\"}", "hunter2"),
        (f"cookie {JWT}", "dozjgNryP4J3"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_known_forms_are_masked(text: str, secret: str) -> None:
    assert secret not in mask_secrets(text)
    assert "***" in mask_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "processed 4012 rows",
        "https://host/path",
        "the tokens of a sentence",
        "max_tokens=4096, input_tokens: 512",
        "a:b@c",
        "http://host:8080/people/@me",
        "http://[::1]:80/x@y",
        "pass the cookie: flour and sugar",
        "set-cookie: Path=/",
        "give --password -v",
        "pk_customers_orders is violated",
        "the bearer of good news",
        "Basic knowledge of keys",
        "sk-learn",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert mask_secrets(text) == text


def test_only_the_password_of_a_url_is_masked() -> None:
    assert mask_secrets("https://me:pw@host/a@v2") == "https://me:***@host/a@v2"


def test_data_is_masked_in_values_and_under_secret_names() -> None:
    data = {
        "headers": {"X-Api-Key": "abc", "Accept": "text/html"},
        "rows": [1, 2.5, None, True, ("postgresql://me:pw12@host/db",)],
        "usage": {"tokens": 12, "token": ""},
        "api_keys": ["abc", "def"],
    }
    assert mask_data(data) == {
        "headers": {"X-Api-Key": "***", "Accept": "text/html"},
        "rows": [1, 2.5, None, True, ["postgresql://me:***@host/db"]],
        "usage": {"tokens": 12, "token": ""},
        "api_keys": ["***", "***"],
    }


def test_secrets_in_settings_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "from-the-environment")
    settings = load_settings(
        models={"default": {"model": "openai:m", "api_key": "declared secret"}},
        persistence={"url": "postgresql://me:in-the-url@host/db"},
        capabilities={"weather": {"options": [{"password": "by its name", "unit": "none"}]}},
        secrets=["registered by the application"],
    )
    masker = SecretMasker.of(settings, values=["given/by hand"])
    for secret in (
        "declared secret",
        "in-the-url",
        "by its name",
        "registered by the application",
        "from-the-environment",
        "given/by hand",
        "given%2Fby%20hand",
    ):
        assert masker.text(f"It said {secret}!") == "It said ***!"
    assert masker.text("none of it") == "none of it"


def test_a_secret_that_is_a_prefix_of_another_does_not_reveal_it() -> None:
    assert SecretMasker(["alpha", "alphabet"]).text("alphabet alpha") == "*** ***"


async def test_a_masker_holds_in_the_tasks_of_its_block_only() -> None:
    async def say(text: str) -> Any:
        return mask_secrets(text)

    with use_masker(SecretMasker(["plum pudding"])):
        inside = asyncio.create_task(say("plum pudding"))
    assert await inside == "***"
    assert await say("plum pudding") == "plum pudding"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("one\ntwo\rthree", "one\\ntwo\\rthree"),
        ("\u202edesrever", "\\u202edesrever"),
        ("tab\tstays, größe too", "tab\tstays, größe too"),
        ("e\u0301 and कि stay", "e\u0301 and कि stay"),
        ("pay\u00ad\u200bpal\u3164\uffa0", "pay\\xad\\u200bpal\\u3164\\uffa0"),
        ("👩\u200d🔬 is two", "👩\\u200d🔬 is two"),
        ("a\ufe0f\U000e0041\ud800", "a\\ufe0f\\U000e0041\\ud800"),
    ],
)
def test_what_would_deceive_becomes_visible(text: str, clean: str) -> None:
    assert escape_control_characters(text) == clean


def test_no_format_character_of_unicode_is_printed_raw() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and character != "\t":
            assert escape_control_characters(character) != character, hex(number)
