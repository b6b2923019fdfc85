"""Decorator and functions that validate function arguments."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from typing_extensions import Unpack, is_typeddict

from capgraph.configs.errors import ConfigurationError, UnknownOptionError
from capgraph.configs.suggestions import suggest_name

T = TypeVar("T", bound=Callable[..., Any])

_NUMBERS: dict[Any, Any] = {int: int, float: (int, float)}
_LISTS = (Iterable, Sequence, Collection)
_NO_LISTS = (str, bytes, Mapping)


def validate_arguments(function: T) -> T:
    """Decorate a function or class so that its arguments are checked against its annotations.

    ``True`` is not accepted as a number, and a string is not accepted as a list of strings.
    Annotations that are protocols, or that exist only for type checkers, are not checked.

    Args:
        function: Function, coroutine function, or class to decorate.

    >>> @validate_arguments
    ... def double(number: int, names: Sequence[str] = ()) -> int:
    ...     return number * 2
    >>> double("2")
    Traceback (most recent call last):
    capgraph.configs.errors.ConfigurationError: double: number is '2', not int. Fix: Pass int.
    """
    if isinstance(function, type):
        function.__init__ = validate_arguments(function.__init__)  # type: ignore[misc]
        return function
    cached: list[Any] = []

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not cached:
            cached[:] = inspect.signature(function), _get_hints(function), _list_keywords(function)
        signature, hints, keywords = cached
        if args and function.__name__ == "__init__":
            _refuse_replaced_arguments(type(args[0]), kwargs.keys() - signature.parameters.keys())
        if keywords is not None and not kwargs.keys() <= set(keywords):
            if function.__name__ == "__init__":  # a subclass may have further keywords
                check_options(
                    type(args[0]).__name__, kwargs, _list_initializer_keywords(type(args[0]))
                )
            check_options(function.__qualname__.removesuffix(".__init__"), kwargs, keywords)
        arguments = signature.bind(*args, **kwargs).arguments
        for name, value in arguments.items():
            hint = hints.get(name)
            if hint is None or matches_annotation(value, hint):
                continue
            first = next(iter(arguments.values())) if "self" in arguments else function
            owner = getattr(first, "__name__", type(first).__name__)
            annotation = inspect.formatannotation(hint)
            expected = re.sub(r"(?<![\w.])(?:[a-z_]+\.)++(?=[A-Z])", "", annotation)
            raise ConfigurationError(
                f"{owner}: {name} is {value!r:.80}, not {expected}.",
                fix=f"Pass {expected}.",
                facts={"argument": name, "value": value, "expected": expected},
            )

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return cast("T", async_wrapper)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return cast("T", wrapper)


def _list_keywords(function: Any) -> list[str] | None:
    """Return the names of a function's keyword arguments.

    Return ``None`` if the function accepts arbitrary keyword arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if rest is None:
        return _list_keyword_names(function)
    hint = _get_all_hints(function).get(rest)
    if get_origin(hint) is not Unpack:
        return None
    return [*_list_keyword_names(function), *get_args(hint)[0].__annotations__]


def _list_keyword_names(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds and p.name != "self"]


def _list_initializer_keywords(kind: type[Any]) -> list[str]:
    """Return the keyword arguments that a class and its base classes accept in ``__init__``."""
    initializers = (vars(cls).get("__init__") for cls in kind.__mro__)
    names = [_list_keyword_names(one) for one in initializers if inspect.isfunction(one)]
    return list(dict.fromkeys(itertools.chain(*names)))


REPLACED_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("llm_gateway", "supervisor_gateway", "coordinator_gateway"),
        "Pass model, a LangChain chat model.",
    ),
    "temperature": "Set the temperature of the chat model.",
    **dict.fromkeys(
        ("logger", "metrics", "performance_monitor"),
        "Pass AuditBehavior(logger=…, metrics=…) to an agent as a behavior, or add a sink of"
        " capgraph.telemetry.",
    ),
    "tracer": "Export spans with capgraph.telemetry, or pass LangChain callbacks.",
}
"""Constructor arguments of other frameworks, each with the fix that its error names."""


def _refuse_replaced_arguments(kind: type[Any], names: Iterable[str]) -> None:
    for name in sorted(REPLACED_ARGUMENTS.keys() & names):
        raise UnknownOptionError(
            f"{kind.__name__} has no argument {name!r}.",
            fix=REPLACED_ARGUMENTS[name],
            facts={"argument": name},
        )


def check_options(name: str, names: Iterable[str], valid_names: Collection[str]) -> None:
    """Check that a function accepts all of the given keyword arguments.

    Args:
        name: Name of the called function.
        names: Names of the passed arguments.
        valid_names: Names of the function's parameters.

    Raises:
        UnknownOptionError: An argument is unknown. The message suggests the most similar name.

    >>> check_options("bind", ["budjet"], ["budget", "model"])
    Traceback (most recent call last):
    capgraph.configs.errors.UnknownOptionError: bind has no argument 'budjet'. Fix: Write 'budget'.
    """
    for option in names:
        if option not in valid_names:
            near = suggest_name(option, valid_names)
            raise UnknownOptionError(
                f"{name} has no argument {option!r}.",
                fix=f"Write {near!r}." if near else f"Use: {', '.join(sorted(valid_names))}.",
            )


class _ModuleNames(dict[str, Any]):
    """Namespace for evaluating annotations of a module.

    Names that exist only for type checkers resolve to ``Any``.
    """

    def __missing__(self, name: str) -> Any:
        return Any


def _get_hints(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    several = {p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    hints = _get_all_hints(function)
    return {
        name: _replace_type_variables(hint) for name, hint in hints.items() if name not in several
    }


def _get_all_hints(function: Any) -> dict[str, Any]:
    names = _ModuleNames({**vars(builtins), **function.__globals__})
    return get_type_hints(function, localns=names)


def _replace_type_variables(hint: Any) -> Any:
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(one.__bound__ or Any for one in variables)] if variables else hint


def matches_annotation(value: Any, hint: Any) -> bool:
    """Return True if a value matches a type annotation. Iterators are not consumed.

    >>> matches_annotation({"a": 1}, dict[str, int]), matches_annotation([True], list[int]), matches_annotation("ab", Sequence[str])
    (True, False, False)
    >>> matches_annotation(int, type[Any]), matches_annotation(int, type[str])
    (True, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(matches_annotation(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if hint is None or hint is type(None):
        return value is None
    if origin is type:
        return isinstance(value, type) and (not parts or _is_subclass(value, parts[0]))
    kind = origin or hint
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if not isinstance(kind, type) or kind in (Any, object) or _is_static_protocol(kind):
        return True
    if is_typeddict(kind):
        return isinstance(value, Mapping)
    if kind is tuple and parts and parts[-1] is not Ellipsis:  # a file has a list
        pair = isinstance(value, (tuple, list)) and len(value) == len(parts)
        return pair and all(map(matches_annotation, value, parts))
    if not isinstance(value, kind) or (kind in _LISTS and isinstance(value, _NO_LISTS)):
        return False
    if isinstance(value, dict) and issubclass(kind, Mapping) and len(parts) == 2:
        return all(
            matches_annotation(k, parts[0]) and matches_annotation(v, parts[1])
            for k, v in value.items()
        )
    if isinstance(value, (list, set, frozenset)) and len(parts) == 1:
        return all(matches_annotation(item, parts[0]) for item in value)
    return True


def _is_subclass(value: type, kind: Any) -> bool:
    return kind is Any or not isinstance(kind, type) or issubclass(value, kind)


def _is_static_protocol(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)
