"""Guardrail for personal data, based on patterns and, if installed, on Presidio."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from capgraph.base.errors import MissingExtraError, require_extra
from capgraph.behaviors.guardrails import GuardrailOutcome, SymmetricGuardrail
from capgraph.behaviors.text_guardrails import iter_texts

_EMAIL = re.compile(
    r"(?<![\w.+%-])[\w.+%-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}(?![\w-])"
)
_SSN = re.compile(
    r"(?<![\d-])(?!000|666|9\d\d)\d{3}([- ])(?!00)\d{2}\1(?!0000)\d{4}(?![\d-])", re.ASCII
)
_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])",
    re.ASCII,
)
_PHONE = re.compile(
    r"(?<![\w+.-])(?:\+\d{1,3}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]?\d{2,4}){2,5}"
    r"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4})(?![\w-])",
    re.ASCII,
)
_DIGITS = re.compile(r"(?<![\d.])\d+(?:[ -]\d+)*(?![\d.]\d)", re.ASCII)
_CARD = re.compile(r"(?:3[04-8]|[4-6]|2[2-7])\d{11,17}", re.ASCII)
_DEFAULT_ENTITIES = (
    "CREDIT_CARD",
    "CRYPTO",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MEDICAL_LICENSE",
    "PHONE_NUMBER",
    "UK_NHS",
    "US_BANK_NUMBER",
    "US_DRIVER_LICENSE",
    "US_ITIN",
    "US_PASSPORT",
    "US_SSN",
)
_MIN_SCORE = 0.5
_SPACY_MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")
Span = tuple[int, int, str]


class PIIGuardrail(SymmetricGuardrail):
    """Guardrail that finds personal data.

    Patterns always find e-mail addresses and card, account, phone, and insurance numbers. With the
    extra ``pii``, Presidio also finds further kinds of numbers, without network access. With a
    spaCy model, it finds names of people if ``entities`` includes ``PERSON``.

    Args:
        entities: Names of the Presidio entities to find.
        action: Action for a match: ``deny``, ``ask``, ``retry``, or ``rewrite``, which replaces the
            data with its kind.
        analyzer: Custom ``AnalyzerEngine``, or ``None`` to use patterns only.

    >>> guard = PIIGuardrail(action="rewrite", analyzer=None)
    >>> guard.check_post({"to": "Write to ann@example.com."}, role="", tool="").value
    {'to': 'Write to [e-mail address].'}
    """

    name = "pii"

    def __init__(
        self,
        entities: Iterable[str] = _DEFAULT_ENTITIES,
        *,
        action: Literal["deny", "ask", "retry", "rewrite"] = "deny",
        analyzer: Any = "presidio",
    ) -> None:
        GuardrailOutcome(False, action=action, value="")  # validates the action
        self._entities = list(entities)
        self._action = action
        self._analyzer = analyzer
        self._lock = threading.Lock()

    async def acheck_pre(
        self, *, role: str, tool: str, arguments: Mapping[str, Any] = {}
    ) -> GuardrailOutcome:
        """Check the parameters and inputs of a step for personal data.

        Presidio runs in a thread so that it does not block the event loop.
        """
        return await self._check_in_thread(dict(arguments))

    async def acheck_post(self, value: Any, *, role: str, tool: str) -> GuardrailOutcome:
        """Check the result of a step for personal data.

        Presidio runs in a thread so that it does not block the event loop.
        """
        return await self._check_in_thread(value)

    async def _check_in_thread(self, value: Any) -> GuardrailOutcome:
        if self._analyzer is None:
            return self._check(value)
        return await asyncio.to_thread(self._check, value)

    def _check(self, value: Any) -> GuardrailOutcome:
        kinds = dict.fromkeys(
            kind for text in iter_texts(value) for _, _, kind in self._find_spans(text)
        )
        if not kinds:
            return GuardrailOutcome(True)
        reason = f"it contains personal data ({', '.join(kinds)})"
        if self._action != "rewrite":
            return GuardrailOutcome(False, reason, self._action)
        return GuardrailOutcome(False, reason, "rewrite", _map_texts(value, self._redact))

    def _redact(self, text: str) -> str:
        """Replace all personal data in a text with its kind in square brackets."""
        parts, end = [], 0
        for start, stop, kind in self._find_spans(text):
            if start >= end:
                parts += [text[end:start], f"[{kind}]"]
            end = max(end, stop)
        return "".join([*parts, text[end:]])

    def _find_spans(self, text: str) -> list[Span]:
        spans = [*_find_by_pattern(text)]
        engine = self._get_analyzer()
        if engine is not None:
            results = engine.analyze(
                text=text, language="en", entities=self._entities, score_threshold=_MIN_SCORE
            )
            spans += [(r.start, r.end, r.entity_type.lower().replace("_", " ")) for r in results]
        return sorted(spans, key=lambda span: (span[0], -span[1]))

    def _get_analyzer(self) -> Any:
        if self._analyzer == "presidio":
            with self._lock:
                if self._analyzer == "presidio":
                    self._analyzer = _load_presidio()
        return self._analyzer


def _find_by_pattern(text: str) -> Iterator[Span]:
    for kind, pattern in (("e-mail address", _EMAIL), ("insurance number", _SSN)):
        yield from ((*match.span(), kind) for match in pattern.finditer(text))
    for match in _IBAN.finditer(text):
        if _is_iban(match.group().replace(" ", "")):
            yield (*match.span(), "account number")
    for match in _PHONE.finditer(text):
        yield (*match.span(), "telephone number")
    for match in _DIGITS.finditer(text):
        yield from _find_cards(match.group(), match.start())


def _find_cards(digit_run: str, offset: int) -> Iterator[Span]:
    """Yield the positions of payment card numbers in digits separated by spaces or hyphens."""
    groups = [(group.start(), group.group()) for group in re.finditer(r"\d+", digit_run)]
    for first, (start, head) in enumerate(groups):
        digits = ""
        if head[0] not in "23456":
            continue
        for group_start, group in groups[first:]:
            digits += group
            if len(digits) > 19:
                break
            if len(digits) >= 13 and _CARD.fullmatch(digits) and _has_luhn_checksum(digits):
                yield offset + start, offset + group_start + len(group), "card number"


def _has_luhn_checksum(digits: str) -> bool:
    doubled = (2 * int(digit) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(d - 9 if d > 9 else d for d in doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    return int("".join(str(int(letter, 36)) for letter in text[4:] + text[:4])) % 97 == 1


def _map_texts(value: Any, function: Callable[[str], str]) -> Any:
    """Apply a function to all text in plain data, including keys and numbers."""
    if isinstance(value, Mapping):
        return {function(str(name)): _map_texts(item, function) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_texts(item, function) for item in value]
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    changed = function(text)
    return value if changed == text else changed


def _load_presidio() -> Any:
    """Load Presidio's analyzer for personal data without network access.

    Return ``None`` if Presidio is not installed.
    """
    try:
        presidio = require_extra("presidio_analyzer", "pii")
        spacy = importlib.import_module("spacy")
        engines = importlib.import_module("presidio_analyzer.nlp_engine")
    except MissingExtraError:
        return None
    # Its warnings about the languages of recognizers are irrelevant here.
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    installed = [name for name in _SPACY_MODELS if spacy.util.is_package(name)]
    nlp = engines.SpacyNlpEngine()
    # By default the engine would download a model.
    nlp.nlp = {"en": spacy.load(installed[0]) if installed else spacy.blank("en")}
    analyzer = presidio.AnalyzerEngine(nlp_engine=nlp, supported_languages=["en"])
    for name in ("EmailRecognizer", "UrlRecognizer"):
        # They download a list of domains. The patterns find e-mail addresses.
        analyzer.registry.remove_recognizer(name)
    return analyzer
