"""What a caller gives is what the annotations say, or an error tells what is not."""

from __future__ import annotations

import builtins
import functools
import inspect
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
    """Have the arguments of a constructor or a function checked against its annotations.

    ``True`` is no number, and a text is no list of texts. What is annotated by a name that is only
    known to type checkers, or by a protocol, is taken as it comes.

    Args:
        function: A function, a coroutine function, or a class whose constructor it is.

    >>> @validate_arguments
    ... def double(number: int, names: Sequence[str] = ()) -> int:
    ...     return number * 2
    >>> double("2")
    Traceback (most recent call last):
    capgraph.configs.errors.ConfigurationError: double: number is '2', not int. Fix: Give int.
    """
    if isinstance(function, type):
        function.__init__ = validate_arguments(function.__init__)  # type: ignore[misc]
        return function
    known: list[Any] = []

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not known:
            known[:] = inspect.signature(function), _hints(function), _keywords(function)
        signature, hints, keywords = known
        if keywords is not None and not kwargs.keys() <= set(keywords):
            if (
                function.__name__ == "__init__"
            ):  # a subclass has more, and its name is the known one
                check_options(type(args[0]).__name__, kwargs, _keywords_of(type(args[0])))
            check_options(function.__qualname__.removesuffix(".__init__"), kwargs, keywords)
        given = signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            hint = hints.get(name)
            if hint is None or matches_annotation(value, hint):
                continue
            first = next(iter(given.values())) if "self" in given else function
            owner = getattr(first, "__name__", type(first).__name__)
            told = re.sub(r"(?<![\w.])(?:[a-z_]+\.)++(?=[A-Z])", "", inspect.formatannotation(hint))
            raise ConfigurationError(
                f"{owner}: {name} is {value!r:.80}, not {told}.", fix=f"Give {told}."
            )

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return cast("T", waited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return cast("T", called)


def _keywords(function: Any) -> list[str] | None:
    """Return the keywords that a function takes; ``None`` where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if rest is None:
        return _named(function)
    hint = _all_hints(function).get(rest)
    if get_origin(hint) is not Unpack:
        return None
    return [*_named(function), *get_args(hint)[0].__annotations__]


def _named(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds and p.name != "self"]


def _keywords_of(kind: type[Any]) -> list[str]:
    """Return the keywords that the initializers of a class and its bases take together."""
    made = (vars(cls).get("__init__") for cls in kind.__mro__)
    return [name for one in made if inspect.isfunction(one) for name in _named(one)]


def check_options(name: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse keyword arguments that a function does not have.

    Args:
        name: Name of the function.
        names: Names of the arguments that it was called with.
        known: Names of the arguments that it has.

    Raises:
        UnknownOptionError: One is unknown; the message holds the nearest name.

    >>> check_options("build_graph", ["budjet"], ["budget", "model"])
    Traceback (most recent call last):
    capgraph.configs.errors.UnknownOptionError: build_graph has no argument 'budjet'. Fix: Write 'budget'.
    """
    for option in names:
        if option not in known:
            near = suggest_name(option, known)
            raise UnknownOptionError(
                f"{name} has no argument {option!r}.",
                fix=f"Write {near!r}." if near else f"Use: {', '.join(sorted(known))}.",
            )


class _Known(dict[str, Any]):
    """Names of a module; whatever it does not know at run time is anything."""

    def __missing__(self, name: str) -> Any:
        return Any


def _hints(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    several = {p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    hints = _all_hints(function)
    return {name: _bound(hint) for name, hint in hints.items() if name not in several}


def _all_hints(function: Any) -> dict[str, Any]:
    names = _Known({**vars(builtins), **function.__globals__})
    return get_type_hints(function, localns=names)


def _bound(hint: Any) -> Any:
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(one.__bound__ or Any for one in variables)] if variables else hint


def matches_annotation(value: Any, hint: Any) -> bool:
    """Tell whether a value is of an annotation, as far as that can be seen without using it up.

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
        return isinstance(value, type) and (not parts or _is_kind(value, parts[0]))
    kind = origin or hint
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if not isinstance(kind, type) or kind in (Any, object) or _is_open(kind):
        return True
    if is_typeddict(kind):
        return isinstance(value, Mapping)
    if kind is tuple and parts and parts[-1] is not Ellipsis:  # from a file it comes as a list
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


def _is_kind(value: type, kind: Any) -> bool:
    return kind is Any or not isinstance(kind, type) or issubclass(value, kind)


def _is_open(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)
