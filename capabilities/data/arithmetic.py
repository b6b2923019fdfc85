"""Translator of column arithmetic, the only expressions in a query, to SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def arithmetic_sql(text: str, column_sql: Callable[[str], str]) -> str:
    """Translate an arithmetic expression over table columns to SQL.

    Args:
        text: Expression such as ``"tip / (total_bill - tip)"``. Column names that are not valid
            identifiers must be in backticks.
        column_sql: Function that returns the numeric SQL expression of a column.

    Raises:
        SyntaxError: The text is not an arithmetic expression.

    >>> arithmetic_sql("tip / `total bill`", lambda name: f'"{name}"')
    '("tip" / nullif("total bill", 0))'
    """
    quoted: list[str] = []

    def replace_quoted_name(match: re.Match[str]) -> str:
        quoted.append(match[1])
        return f" quoted_{len(quoted) - 1} "

    def sql(node: ast.expr) -> str:
        match node:
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                divided = isinstance(op, ast.Div)
                by = f"nullif({sql(right)}, 0)" if divided else sql(right)
                return f"({sql(left)} {_OPERATORS[type(op)]} {by})"
            case ast.UnaryOp(ast.USub(), operand):
                return f"(-{sql(operand)})"
            case ast.Constant(int() | float() as value) if abs(value) < 1e300:
                return repr(float(value))
            case ast.Name(name):
                index = name.removeprefix("quoted_")
                is_quoted = name != index and index.isdigit() and int(index) < len(quoted)
                return column_sql(quoted[int(index)] if is_quoted else name)
        raise SyntaxError(text)

    try:
        tree = ast.parse(re.sub("`([^`]+)`", replace_quoted_name, text).strip(), mode="eval")
    except (ValueError, RecursionError, MemoryError) as exc:
        raise SyntaxError(text) from exc
    try:
        return sql(tree.body)
    except (RecursionError, OverflowError) as exc:
        raise SyntaxError(text) from exc
