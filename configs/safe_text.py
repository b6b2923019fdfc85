"""Text that may be shown and kept: without secrets, and without characters that deceive.

There is one masker at a time, :func:`mask_secrets` and :func:`mask_data` use it. It knows the
usual forms of keys, tokens and passwords; a graph makes one that knows the secrets of its
settings too, and an application adds its own under ``secrets`` in the settings, or at run time::

    with use_masker(SecretMasker.of(settings, values=[fetched_password])):
        ...
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from pydantic import BaseModel, SecretBytes, SecretStr

from capgraph.configs.run_context import override_run_context, run_context

MASK = "***"
"""What stands in place of a secret."""

MAX_MESSAGE_CHARS = 20_000
"""Characters of an error's message that are kept and shown."""
_LONGEST_SECRET = 8192  # characters of a secret of a known form, such as a private key
_SHORTEST = 4  # a shorter value would mask half of every text
_SHORTEST_KEY = 16  # a key or token of a known form that is one word has at least so many
_SHORTEST_BY_NAME = 8  # what only its name makes a secret may be "none" or "true"
_NAMES = (
    r"(?:api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|encryption[_-]?key|token(?!s)"
    r"|secret|password|passwd|pwd|passphrase|authorization|credentials?|client[_-]?secret)"
)
_SECRET_NAME = rf"(?i){_NAMES}s?$"
_ENVIRONMENT_NAME = r"_(?:API_KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)$"
# A password may hold "/"; what begins like a port and a path holds none.
# None is looked for past the next address: a text full of "://a:" would take for ever.
_URL = (
    r"(://[^\s/:@\[\"']*+:)(?!\d{1,5}/)"
    r"((?:(?!://)[^\s/\"'])*|(?:(?!://)[^\s\"'])*)@"
)
_NAMED = (
    rf"(?i)({_NAMES}s?\\?[\"']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?)"
    r"(?:\"[^\"]*\"|'[^']*'|\\\"[^\"\\]*\\\"|[^\s\"',;&}\])]+)"
)
_OPTION = rf"(?i)((?<![\w-])--?(?:[a-z]+[-_])*{_NAMES}\s+)(?!-)[^\s\"']+"
_COOKIE = r"(?i)(\b(?:set-)?cookie\\?[\"']?\s*[:=]\s*[\"']?)([^\r\n\"']+)"
_ATTRIBUTES = ("path", "domain", "expires", "max-age", "samesite")
_BEARER = r"\b((?i:bearer|basic)\s+)(?=[^\s\"',;]+[\dA-Z=_])[^\s\"',;&}\])]{6,}"
_SHAPES = (
    r"\b(?:sk-[\w-]{8,}|[spr]k_(?:live|test)_\w{8,}|gh[oprsu]_\w{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}|hf_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|npm_\w{30,}"
    r"|(?:xai|pplx|tvly)-[\w-]{16,}|lsv2_[a-z]{2}_\w{16,}"
    r"|eyJ[\w-]{8,2000}+\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
# Every event passes here: a union made anew at each look would cost as much as the rest.
_PLAIN = (int, float, type(None))
_MAPPINGS = (dict, Mapping)
_LISTS = (list, tuple, set, frozenset)
# Most text has none of these, and needs no regular expression.
_HINT_TEXT = (
    "key|token|secret|passw|pwd|passphrase|authorization|credential|cookie|bearer|basic |://|sk-"
    "|k_live|k_test|gho_|ghp_|ghr_|ghs_|ghu_|github_pat|glpat|xox|xapp|akia|asia|aiza|ya29|hf_"
    "|gsk_|npm_|eyj|xai-|pplx-|tvly-|lsv2_"
)
_HINTS = _HINT_TEXT.split("|")


@functools.cache
def _like(pattern: str) -> re.Pattern[str]:
    # When a text first needs it: many programs never do, and it takes as long as a small room.
    return re.compile(pattern)


class SecretMasker:
    """Replaces secrets by ``***`` in text and in plain data.

    Args:
        values: Secrets by value, beside the forms that are always known.

    >>> SecretMasker(["correct horse"]).text("The password correct horse was refused.")
    'The password *** was refused.'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {value for value in values if len(value) >= _SHORTEST}
        known |= {quote(value, safe="") for value in known}
        # The longest first: one secret may be the beginning of another.
        self._values = sorted(known, key=len, reverse=True)
        self._joined: WeakKeyDictionary[SecretMasker, SecretMasker] = WeakKeyDictionary()
        # Few names stand in most data, again and again.
        self._name = functools.lru_cache(1024)(self.text)

    @classmethod
    def of(cls, settings: BaseModel, values: Iterable[str] = ()) -> SecretMasker:
        """Return the masker of an agent.

        It knows every ``SecretStr`` in the settings, what stands there under a name such as
        ``password`` or ``api_key``, and keys and tokens of the environment.

        Args:
            settings: All settings.
            values: Further secrets.
        """
        environment = [
            value
            for name, value in os.environ.items()
            if _like(_ENVIRONMENT_NAME).search(name) and len(value) >= _SHORTEST_BY_NAME
        ]
        return cls([*_secrets_of(settings), *environment, *values])

    def merged_with(self, other: SecretMasker) -> SecretMasker:
        """Return a masker that knows the secrets of both; kept, because a run asks often."""
        if not self._values or self is other:
            return other
        known = self._joined.get(other)
        if known is None:
            known = self._joined[other] = SecretMasker([*self._values, *other._values])
        return known

    def text(self, text: str) -> str:
        """Return text without secrets."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        if len(text) < _SHORTEST_KEY and text.isidentifier():
            return text
        lowered = text.lower()
        for hint in _HINTS:
            if hint in lowered:
                break
        else:
            return text
        text = _like(_URL).sub(rf"\1{MASK}@", _like(_PRIVATE_KEY).sub(MASK, text))
        text = _like(_BEARER).sub(rf"\1{MASK}", _like(_NAMED).sub(_keep_quotes, text))
        text = _like(_OPTION).sub(rf"\1{MASK}", _like(_COOKIE).sub(_keep_attributes, text))
        return _like(_SHAPES).sub(MASK, text)

    def excerpt(self, text: str, max_chars: int) -> str:
        """Return at most so many characters of a text, without secrets.

        It is cut before it is masked, behind whatever secret could begin within the limit, so that
        a text of any length takes the time of a short one.
        """
        most = max_chars + max([_LONGEST_SECRET, *map(len, self._values[:1])])
        shown = self.text(text[:most])
        fits = len(shown) <= max_chars and len(text) <= most
        return shown if fits else f"{shown[: max_chars - 1]}…"

    def data(self, value: Any) -> Any:
        """Return a copy of plain data without secrets, in values and under telling names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, _MAPPINGS):
            return {
                self._name(key) if isinstance(key, str) else key: (
                    self._hidden(item) if item and _is_secret(key) else self.data(item)
                )
                for key, item in value.items()
            }
        if isinstance(value, _LISTS):
            return [self.data(item) for item in value]
        if isinstance(value, SecretStr | SecretBytes):
            return MASK
        return value

    def _hidden(self, item: Any) -> Any:
        if isinstance(item, str):
            return MASK
        return [self._hidden(one) for one in item] if isinstance(item, _LISTS) else self.data(item)


def _keep_attributes(match: re.Match[str]) -> str:
    def hidden(pair: re.Match[str]) -> str:
        return pair[0] if pair[1].lower() in _ATTRIBUTES else f"{pair[1]}={MASK}"

    return match[1] + _like(r"(?<![^\s=;,])([^\s=;,]+)=([^\s;]+)").sub(hidden, match[2])


def _keep_quotes(match: re.Match[str]) -> str:
    last = match.group()[-1]
    mark = last if last in "\"'" and match.group()[match.end(1) - match.start()] == last else ""
    return f"{match.group(1)}{mark}{MASK}{mark}"


@functools.lru_cache(maxsize=4096)
def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _like(_SECRET_NAME).search(name) is not None


def _secrets_of(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _secrets_of(getattr(value, field), field)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets_of(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_of(item, name)
    elif isinstance(value, str):
        yield from (unquote(password) for _, password in _like(_URL).findall(value))
        if _is_secret(name) and len(value) >= _SHORTEST_BY_NAME:
            yield value


_DEFAULT = SecretMasker()


def current_masker() -> SecretMasker:
    """Return what knows the secrets of the running code."""
    masker: SecretMasker | None = run_context().masker
    return _DEFAULT if masker is None else masker


def use_masker(masker: SecretMasker) -> AbstractContextManager[None]:
    """Mask with a masker inside the block, also in tasks and threads that are started there.

    What the masker around the block knows is masked inside as well.

    Args:
        masker: What knows the secrets.
    """
    return override_run_context(masker=current_masker().merged_with(masker))


def mask_secrets(text: str, max_chars: int | None = None) -> str:
    """Replace what is or looks like a secret by ``***``.

    Args:
        text: The text.
        max_chars: How many characters of it are wanted; all when not given.

    >>> mask_secrets("api_key=abc123 postgresql://me:pw@host/db")
    'api_key=*** postgresql://me:***@host/db'
    >>> mask_secrets("x" * 1_000_000, max_chars=4)
    'xxx…'
    """
    masker = current_masker()
    return masker.text(text) if max_chars is None else masker.excerpt(text, max_chars)


def mask_data(value: Any) -> Any:
    """Return a copy of plain data in which secrets are replaced by ``***``.

    >>> mask_data({"url": "redis://:pw@host", "login": {"password": "x"}, "rows": 3})
    {'url': 'redis://:***@host', 'login': {'password': '***'}, 'rows': 3}
    """
    return current_masker().data(value)


# Control characters but the tab, Unicode's category Cf, and what has a width of nothing or looks
# like a space without being one: fillers, variation selectors, the blank of Braille, tags.
# Lone surrogates cannot be encoded, and would end a program at print.
_NEVER_RAW = (
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escape_control_characters(text: str) -> str:
    r"""Make text safe for a terminal or a log line: what would deceive becomes a visible escape.

    >>> escape_control_characters("a\x1b[31mred\n")
    'a\\x1b[31mred\\n'
    >>> escape_control_characters("pay\u200bpal")
    'pay\\u200bpal'
    """
    return _like(_NEVER_RAW).sub(
        lambda match: match.group().encode("unicode_escape").decode(), text
    )


def strip_control_characters(text: str) -> str:
    r"""Drop what :func:`clean_text` would escape, but line breaks: for those who read on, models too.

    >>> strip_control_characters("Adds two\x1b[2J numbers.\u202e\U000e0041\n")
    'Adds two[2J numbers.\n'
    """
    return _like(f"(?!\n){_NEVER_RAW}").sub("", text)
