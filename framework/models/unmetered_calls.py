"""Static check that finds model calls in capabilities that the usage meter cannot count."""

from __future__ import annotations

import ast
import inspect
import sys

_MODEL_METHODS = frozenset(
    {"invoke", "ainvoke", "stream", "astream", "batch", "abatch", "with_config"}
)
_THREAD_STARTERS = frozenset({"Thread", "Timer", "run_in_executor", "submit"})  # to_thread inherits


def find_unmetered_calls(module_name: str) -> list[int]:
    """Return the line numbers of a module's model calls that the usage meter cannot count.

    A call that sets its own callbacks or runs in a new thread does not inherit the run's
    callbacks, so it is not counted. Only literal calls are found, such as
    ``model.ainvoke(messages, {"callbacks": [mine]})``, a call that builds its ``config``
    inline, or ``Thread(target=model.invoke)``.

    >>> find_unmetered_calls("capgraph.models.unmetered_calls")
    []
    """
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (KeyError, OSError, TypeError):
        return []  # created at run time, so there is no source
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return sorted(call.lineno for call in calls if _can_bypass_callbacks(call))


def _can_bypass_callbacks(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if name in _THREAD_STARTERS:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return any(
            isinstance(part, ast.Attribute) and part.attr in _MODEL_METHODS for part in arguments
        )
    return (
        isinstance(call.func, ast.Attribute)
        and name in _MODEL_METHODS
        and any(_has_own_callbacks(part) for part in [*call.args, *call.keywords])
    )


def _has_own_callbacks(part: ast.AST) -> bool:
    for descendant in ast.walk(part):
        if isinstance(descendant, ast.keyword) and descendant.arg == "callbacks":
            return True
        if isinstance(descendant, ast.Dict) and any(
            isinstance(key, ast.Constant) and key.value == "callbacks" for key in descendant.keys
        ):
            return True
    return False
