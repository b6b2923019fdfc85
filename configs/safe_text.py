"""Functions that mask secrets and escape control characters in text before it is shown or stored.

:func:`mask_secrets` and :func:`mask_data` use the current masker. The default one recognizes common
forms of keys, tokens, and passwords. A graph has a masker that also masks the secrets in its
settings. An application adds secrets under ``secrets`` in the settings, or at run time::

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
"""Text that replaces a secret."""

MAX_MESSAGE_CHARS = 20_000
"""Maximum length of an error message that is stored or shown."""
_MAX_SECRET_CHARS = 8192  # of a secret in a known form, such as a private key
_MIN_VALUE_CHARS = 4  # shorter values would mask parts of ordinary text
_MIN_KEY_CHARS = 16  # of a key or token in a known form that is a single word
_MIN_NAMED_CHARS = 8  # shorter values under a name such as "password" may be "none" or "true"
_NAMES = (
    r"(?:api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|encryption[_-]?key|token(?!s)"
    r"|secret|password|passwd|pwd|passphrase|authorization|credentials?|client[_-]?secret)"
)
_SECRET_NAME = rf"(?i){_NAMES}s?$"
_ENVIRONMENT_NAME = r"_(?:API_KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)$"
# A password may contain "/", unless it looks like a port and a path. The search stops at the next
# "://", so that its time stays linear.
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
# Constants, because every event is checked and creating a union each time is slow.
_PLAIN = (int, float, type(None))
_MAPPINGS = (dict, Mapping)
_LISTS = (list, tuple, set, frozenset)
# Most text contains none of these and needs no regular expression.
_HINT_TEXT = (
    "key|token|secret|passw|pwd|passphrase|authorization|credential|cookie|bearer|basic |://|sk-"
    "|k_live|k_test|gho_|ghp_|ghr_|ghs_|ghu_|github_pat|glpat|xox|xapp|akia|asia|aiza|ya29|hf_"
    "|gsk_|npm_|eyj|xai-|pplx-|tvly-|lsv2_"
)
_HINTS = _HINT_TEXT.split("|")


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    # Compiled on first use, because compilation is slow and many programs never need it.
    return re.compile(pattern)


class SecretMasker:
    """Masker that replaces secrets with ``***`` in strings and plain data.

    Args:
        values: Secrets to mask, in addition to text that looks like a key, token, or password.

    >>> SecretMasker(["correct horse"]).text("The password correct horse was refused.")
    'The password *** was refused.'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {value for value in values if len(value) >= _MIN_VALUE_CHARS}
        known |= {quote(value, safe="") for value in known}
        # Longest first, because one secret may be a prefix of another.
        self._values = sorted(known, key=len, reverse=True)
        self._joined: WeakKeyDictionary[SecretMasker, SecretMasker] = WeakKeyDictionary()
        # The same few keys occur in most data.
        self._name = functools.lru_cache(1024)(self.text)

    @classmethod
    def of(cls, settings: BaseModel, values: Iterable[str] = ()) -> SecretMasker:
        """Create a masker for the secrets of an agent.

        The masker covers every ``SecretStr`` in the settings, settings with names such as
        ``password`` or ``api_key``, and keys and tokens in environment variables.

        Args:
            settings: Settings of the agent.
            values: Additional secrets to mask.
        """
        environment = [
            value
            for name, value in os.environ.items()
            if _compile(_ENVIRONMENT_NAME).search(name) and len(value) >= _MIN_NAMED_CHARS
        ]
        return cls([*_iterate_secrets(settings), *environment, *values])

    def merged_with(self, other: SecretMasker) -> SecretMasker:
        """Return a masker for the combined secrets of this masker and ``other``.

        The combined masker is cached.
        """
        if not self._values or self is other:
            return other
        known = self._joined.get(other)
        if known is None:
            known = self._joined[other] = SecretMasker([*self._values, *other._values])
        return known

    def text(self, text: str) -> str:
        """Return a copy of a string with its secrets masked."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        if len(text) < _MIN_KEY_CHARS and text.isidentifier():
            return text
        lowered = text.lower()
        for hint in _HINTS:
            if hint in lowered:
                break
        else:
            return text
        text = _compile(_URL).sub(rf"\1{MASK}@", _compile(_PRIVATE_KEY).sub(MASK, text))
        text = _compile(_BEARER).sub(rf"\1{MASK}", _compile(_NAMED).sub(_mask_quoted, text))
        text = _compile(_OPTION).sub(rf"\1{MASK}", _compile(_COOKIE).sub(_mask_parameters, text))
        return _compile(_SHAPES).sub(MASK, text)

    def excerpt(self, text: str, max_chars: int) -> str:
        """Return the first ``max_chars`` characters of a string with secrets masked.

        The string is cut before secrets are masked, after any secret that may begin within the
        limit. The masking time therefore does not depend on the length of the string.
        """
        most = max_chars + max([_MAX_SECRET_CHARS, *map(len, self._values[:1])])
        shown = self.text(text[:most])
        fits = len(shown) <= max_chars and len(text) <= most
        return shown if fits else f"{shown[: max_chars - 1]}…"

    def data(self, value: Any) -> Any:
        """Return a copy of nested plain data with secrets masked.

        Every string under a key such as ``password`` is treated as a secret.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, _MAPPINGS):
            return {
                self._name(key) if isinstance(key, str) else key: (
                    self._mask_strings(item) if item and _is_secret_name(key) else self.data(item)
                )
                for key, item in value.items()
            }
        if isinstance(value, _LISTS):
            return [self.data(item) for item in value]
        if isinstance(value, SecretStr | SecretBytes):
            return MASK
        return value

    def _mask_strings(self, item: Any) -> Any:
        """Mask every string in the value of a secret field, including nested lists."""
        if isinstance(item, str):
            return MASK
        return (
            [self._mask_strings(one) for one in item]
            if isinstance(item, _LISTS)
            else self.data(item)
        )


def _mask_parameters(match: re.Match[str]) -> str:
    """Mask the parameters of an ``Authorization`` header, except public ones such as ``realm``."""

    def hidden(pair: re.Match[str]) -> str:
        return pair[0] if pair[1].lower() in _ATTRIBUTES else f"{pair[1]}={MASK}"

    return match[1] + _compile(r"(?<![^\s=;,])([^\s=;,]+)=([^\s;]+)").sub(hidden, match[2])


def _mask_quoted(match: re.Match[str]) -> str:
    """Replace the secret in a regular expression match with ``***`` and keep surrounding quotes."""
    last = match.group()[-1]
    mark = last if last in "\"'" and match.group()[match.end(1) - match.start()] == last else ""
    return f"{match.group(1)}{mark}{MASK}{mark}"


@functools.lru_cache(maxsize=4096)
def _is_secret_name(name: object) -> bool:
    """Return True if a field name, such as ``password``, suggests that the value is secret."""
    return isinstance(name, str) and _compile(_SECRET_NAME).search(name) is not None


def _iterate_secrets(value: Any, name: str = "") -> Iterator[str]:
    """Yield all secrets in nested settings.

    Secrets are values of secret types, passwords in URLs, and values of fields with names such
    as ``api_key``.
    """
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _iterate_secrets(getattr(value, field), field)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iterate_secrets(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_secrets(item, name)
    elif isinstance(value, str):
        yield from (unquote(password) for _, password in _compile(_URL).findall(value))
        if _is_secret_name(name) and len(value) >= _MIN_NAMED_CHARS:
            yield value


_DEFAULT = SecretMasker()


def current_masker() -> SecretMasker:
    """Return the secret masker for the current run, or the default masker outside a run."""
    masker: SecretMasker | None = run_context().masker
    return _DEFAULT if masker is None else masker


def use_masker(masker: SecretMasker) -> AbstractContextManager[None]:
    """Context manager that masks additional secrets inside a ``with`` block.

    The masker also applies to tasks and threads that start inside the block. Secrets of the
    enclosing masker are masked, too.

    Args:
        masker: Masker to use inside the block.
    """
    return override_run_context(masker=current_masker().merged_with(masker))


def mask_secrets(text: str, max_chars: int | None = None) -> str:
    """Replace secrets in a string with ``***``.

    Args:
        text: Text that may contain secrets.
        max_chars: Maximum length of the result. None means no limit.

    >>> mask_secrets("api_key=abc123 postgresql://me:pw@host/db")
    'api_key=*** postgresql://me:***@host/db'
    >>> mask_secrets("x" * 1_000_000, max_chars=4)
    'xxx…'
    """
    masker = current_masker()
    return masker.text(text) if max_chars is None else masker.excerpt(text, max_chars)


def mask_data(value: Any) -> Any:
    """Return a copy of nested plain data with secrets replaced by ``***``.

    >>> mask_data({"url": "redis://:pw@host", "login": {"password": "x"}, "rows": 3})
    {'url': 'redis://:***@host', 'login': {'password': '***'}, 'rows': 3}
    """
    return current_masker().data(value)


# Control characters except the tab, Unicode category Cf, and characters that are invisible or look
# like a space: fillers, variation selectors, the Braille blank, tags. Lone surrogates are included
# because they cannot be encoded and would make print() fail.
_UNSAFE = (
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escape_control_characters(text: str) -> str:
    r"""Escape control and invisible characters, so that text is safe for terminals and logs.

    >>> escape_control_characters("a\x1b[31mred\n")
    'a\\x1b[31mred\\n'
    >>> escape_control_characters("pay\u200bpal")
    'pay\\u200bpal'
    """
    return _compile(_UNSAFE).sub(
        lambda match: match.group().encode("unicode_escape").decode(), text
    )


def strip_control_characters(text: str) -> str:
    r"""Remove control and invisible characters from text for readers such as language models.

    Line breaks are kept.

    >>> strip_control_characters("Adds two\x1b[2J numbers.\u202e\U000e0041\n")
    'Adds two[2J numbers.\n'
    """
    return _compile(f"(?!\n){_UNSAFE}").sub("", text)
