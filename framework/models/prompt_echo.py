"""Streaming filter that removes prompt tags and repeated prompt text from model output."""

from __future__ import annotations

import re

_TAG = re.compile(
    r"<\s*+(?P<close>/?)\s*+(?P<name>request|data)"
    r"(?:\s++name\s*+=\s*+(?:\"[^\"\n]*\"|'[^'\n]*'))?\s*+>",
    re.IGNORECASE,
)
_TAG_STARTS = ("<request>", "</request>", "<data>", '<data name="', "<data name='", "</data>")
_MAX_TAG_LENGTH = 200
_HEADING = "request:"


class EchoFilter:
    r"""Streaming filter that removes repeated prompt text from model output.

    Small models sometimes repeat the prompt: the request, then the data. A repeated request is
    dropped. Repeated data is dropped if the model also wrote other text. Otherwise the data becomes
    the answer. The result does not depend on how the text is split into chunks.

    >>> echo = EchoFilter()
    >>> echo.feed("<requ"), echo.feed("est>\nMail Bob\n</request>\nSent"), echo.feed(" it.")
    ('', 'Sent', ' it.')
    >>> remove_echo('<request>\nMail Bob\n</request>\n<data name="MAIL">\nSent to Bob.\n</data>')
    'Sent to Bob.'
    """

    def __init__(self) -> None:
        self._pending = ""
        self._block: str | None = None
        self._data: list[str] = []
        self._shown = ""
        self._after_block = False

    def feed(self, chunk: str) -> str:
        """Process a chunk of model output, and return the text that can be emitted so far."""
        self._pending += chunk
        return self._process(is_final=False)

    def close(self) -> str:
        """Return the remaining text at the end of the stream.

        If the model wrote nothing except repeated data, the data is returned.
        """
        remainder = self._process(is_final=True)
        if not self._shown.strip():
            remainder += "\n".join(text for part in self._data if (text := part.strip()))
        return remainder

    def _process(self, *, is_final: bool) -> str:
        parts = []
        while (mark := _TAG.search(self._pending)) is not None:
            before, self._pending = self._pending[: mark.start()], self._pending[mark.end() :]
            if mark["name"].lower() == "request" and before.strip().lower() == _HEADING:
                before = ""
            parts.append(self._process_text(before))
            self._block = None if mark["close"] else mark["name"].lower()
            self._after_block = True
            if self._block == "data":
                self._data.append("")
        undecided = 0 if is_final else self._count_undecided()
        cut = len(self._pending) - undecided
        text, self._pending = self._pending[:cut], self._pending[cut:]
        if is_final and self._block is None and _may_start_tag(text):
            text = text[: text.rfind("<")]
        parts.append(self._process_text(text))
        return "".join(parts)

    def _count_undecided(self) -> int:
        """Count the trailing characters that may still be part of a prompt tag."""
        text = self._pending
        if self._block is None and not self._shown:
            start = text.strip().lower()
            if _HEADING.startswith(start) or (start.startswith(_HEADING) and _may_start_tag(text)):
                return len(text)
        return len(text) - text.rfind("<") if _may_start_tag(text) else 0

    def _process_text(self, text: str) -> str:
        """Process the text between two prompt tags, and return the part to emit."""
        if self._block == "data":
            self._data[-1] += text
        if self._block is not None:
            return ""
        if self._after_block:
            text = text.lstrip()
            if not text:
                return ""
            if self._shown and not self._shown[-1].isspace():
                text = f"\n{text}"
            self._after_block = False
        self._shown += text
        return text


def remove_echo(text: str) -> str:
    """Remove prompt tags and repeated prompt text from a model's answer.

    >>> remove_echo("Below 5 <b>degrees</b>, data > request.")
    'Below 5 <b>degrees</b>, data > request.'
    """
    if not has_prompt_tags(text):
        return text
    pieces = EchoFilter()
    return (pieces.feed(text) + pieces.close()).strip()


def has_prompt_tags(text: str) -> bool:
    """Return True if text contains prompt tags.

    >>> has_prompt_tags("What does <data> mean in HTML?"), has_prompt_tags("How much data?")
    (True, False)
    """
    return _TAG.search(text) is not None


def _may_start_tag(text: str) -> bool:
    """Return True if a text ends with what may be the start of a prompt tag."""
    place = text.rfind("<")
    if place < 0 or len(text) - place > _MAX_TAG_LENGTH or ">" in text[place:]:
        return False
    tail = re.sub(r"<\s*(/?)\s*", r"<\1", text[place:].lower(), count=1)
    return any(start.startswith(tail) or tail.startswith(start[:-1]) for start in _TAG_STARTS)
