"""Arithmetic of columns, from text to SQL: the only expressions that a query may hold."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:`([^`]+)`|([^\W\d]\w*)|(\d+(?:\.\d*)?|\.\d+)|(.))", re.DOTALL)


class Arithmetic:
    """Reads arithmetic of columns and numbers.

    Args:
        text: Such as ``"tip / (total_bill - tip)"``.
        number: Returns the SQL of a column as a number.
        wrong: What to raise for any other text.

    >>> Arithmetic("tip / `total bill`", lambda name: f'"{name}"', ValueError()).sql()
    '("tip" / nullif("total bill", 0))'
    """

    def __init__(self, text: str, number: Callable[[str], str], wrong: Exception) -> None:
        self._number = number
        self._wrong = wrong
        self._tokens = [match for match in _TOKEN.finditer(text) if match[0].strip()]
        self._at = 0
        self._depth = 0

    def sql(self) -> str:
        """Return the whole as SQL."""
        found = self._sum()
        if self._at < len(self._tokens):
            raise self._wrong
        return found

    def _sum(self) -> str:
        left = self._product()
        while sign := self._sign("+-"):
            left = f"({left} {sign} {self._product()})"
        return left

    def _product(self) -> str:
        left = self._atom()
        while sign := self._sign("*/"):
            right = self._atom()
            left = f"({left} {sign} {f'nullif({right}, 0)' if sign == '/' else right})"
        return left

    def _atom(self) -> str:
        if self._sign("-"):
            return f"(-{self._atom()})"
        if self._sign("("):
            self._depth += 1
            if self._depth > 50:
                raise self._wrong
            found = self._sum()
            if not self._sign(")"):
                raise self._wrong
            return found
        if self._at >= len(self._tokens):
            raise self._wrong
        quoted, name, number, other = self._tokens[self._at].groups()
        self._at += 1
        if number is not None:
            return repr(float(number))
        if other is not None:
            raise self._wrong
        return self._number(quoted or name)

    def _sign(self, signs: str) -> str:
        if self._at < len(self._tokens):
            sign = self._tokens[self._at][4]
            if sign is not None and sign in signs:
                self._at += 1
                return str(sign)
        return ""
