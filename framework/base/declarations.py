"""The table of declarations: which names each form of a capability accepts.

A name that a form does not accept would be lost without a word, and a misspelled
``requires_approval`` would let an effect run unasked. So each form asks this module, and so do the
reference and whatever else reads declarations, such as a file.
"""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta
from collections.abc import Collection, Iterable
from typing import Any, Literal, get_args

from capgraph.base.errors import ValidationError
from capgraph.base.spec import DECLARED
from capgraph.configs.suggestions import closest_match, correct_spelling, suggest_name

Form = Literal["class", "function", "tool", "graph", "agent", "remote", "mcp"]
"""How a capability is written: a class, an annotated function, or an adapter's call."""
FORMS: tuple[Form, ...] = get_args(Form)
YAML_FORMS: dict[str, Form] = {"tools": "tool", "graphs": "graph", "agents": "agent", "mcp": "mcp"}
"""Section of a YAML file to its form; ``accepted_names(form, data=True)`` lists the keys of an entry."""

_TEXTS = ("name", "description")
_TYPES = ("provides", "requires")
_RETRIES = ("max_attempts", "delay_seconds")
_CALLED = ("classify_error", "parameters_from")
_ENTRY_KEYS: dict[Form, tuple[str, ...]] = {
    "tool": ("import",),
    "graph": ("import", "input", "output"),
    "agent": ("import",),
    "mcp": ("command", "env", "url", "headers", "prefix", "allow", "approve", "pins", "mode"),
}
"""Keys of an entry in a YAML file that name what is adapted, beside its declarations."""

_NAMES: dict[Form, tuple[str, ...]] = {
    "class": (*_TEXTS, *_TYPES, "Parameters", "libraries", *_CALLED, *DECLARED),
    "function": (*_TEXTS, *_RETRIES, *_CALLED, *DECLARED),
    "tool": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "graph": (*_TEXTS, *_RETRIES, *_CALLED, *DECLARED),
    "agent": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "remote": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "mcp": (*_RETRIES, *_CALLED, *("effects" if n == "effect" else n for n in DECLARED)),
}


NODE_OPTIONS = ("quiet", "before", "after")
NODE_DECLARATIONS = (*_TEXTS, "behaviors", *NODE_OPTIONS)
"""Names that an infrastructure node may declare."""
_READ_BY_DECORATOR = {
    "capability_spec": tuple(name for name in _NAMES["class"] if name not in _CALLED),
    "infrastructure_spec": NODE_DECLARATIONS,
}


def accepted_names(form: Form, *, yaml: bool = False) -> tuple[str, ...]:
    """Return the names that a form of capability accepts.

    Args:
        form: The form.
        yaml: Whether to return the keys of an entry in a YAML file. These are the same names, and
            the keys that name what is adapted.

    >>> "requires" in accepted_names("tool"), "requires" in accepted_names("function")
    (True, False)
    >>> sorted(set(accepted_names("graph", yaml=True)) - set(accepted_names("graph")))
    ['import', 'input', 'output']
    """
    return (*_ENTRY_KEYS.get(form, ()), *_NAMES[form]) if yaml else _NAMES[form]


class DeclarationMeta(ABCMeta):
    """Metaclass of capabilities and infrastructure nodes.

    The decorator reads the declarations of a class once. An assignment after that would have no
    effect, so it is refused.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        for spec, known in _READ_BY_DECORATOR.items():
            # A class may have copied the attributes of another one, which include its spec.
            if name in known and getattr(vars(cls).get(spec), "cls", None) is cls:
                raise ValidationError(
                    f"{cls.__name__}.{name} cannot be set to {value!r}: the decorator has already"
                    " read the declarations of the class.",
                    fix=f"Write {name} in the body of the class, or in a decorated subclass.",
                )
        super().__setattr__(name, value)


def check_names(owner: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse declarations that have no meaning.

    Args:
        owner: The subject of the message, such as ``"tool_capability('search')"``.
        names: The names that were declared.
        known: The names that are accepted there.

    Raises:
        ValidationError: A name is unknown; the message holds the nearest one.

    >>> check_names("tool_capability('pay')", ["requires_aproval"], accepted_names("tool"))
    Traceback (most recent call last):
    capgraph.configs.errors.ValidationError: tool_capability('pay') has the unknown declaration \
'requires_aproval'. Fix: Write 'requires_approval'.
    """
    for name in names:
        if name not in known:
            raise ValidationError(
                f"{owner} has the unknown declaration {name!r}.", fix=_fix_of(name, known)
            )


def _fix_of(name: str, known: Collection[str]) -> str:
    near = suggest_name(name, known)
    if near is not None:
        return f"Write {near!r}."
    return f"Remove it, or use one of: {', '.join(sorted(known))}."


def check_attributes(target: type[Any], base: type[Any], known: Collection[str]) -> None:
    """Refuse class attributes that look like declarations and are none.

    Plain data under the name of a method or a property of the base class is refused, too, since the
    class would lose that method. Methods, properties, nested classes, ``UPPER_CASE`` constants, names that begin with an
    underscore and attributes annotated ``ClassVar`` are the author's own, and so are the annotated
    attributes of a class with an initializer. Of these, one is refused only if it is a misspelling:
    an attribute of a declaration, a method or a nested class of one that the base class has.

    Args:
        target: The class that is decorated.
        base: The base class, whose attributes may be overridden.
        known: Names of its declarations.

    Raises:
        ValidationError: An attribute has no meaning; the message holds the nearest declaration.
    """
    ours, overridable = set(base.__mro__), set(dir(base))
    classes = [cls for cls in target.__mro__ if cls not in ours]
    defined = {name for cls in classes for name in vars(cls)}
    hooks = [*_overridden(base) - defined, *{"Parameters"} & set(known) - defined]
    own = _own_names(classes, "__init__" in defined)
    for cls in classes:
        # Whatever else a class inherits from need not know about capabilities.
        is_strict = cls is target or issubclass(cls, base)
        for name, value in vars(cls).items():
            if name in known or name in _ATTACHED or _is_special(name):
                continue
            if name in overridable:
                if not (_is_member(value) or callable(value) or name in own or name[0] == "_"):
                    raise _shadowing(cls, name, base, known)
                continue
            if _is_member(value):
                meant = _meant(name, hooks)
            elif name.startswith("_"):
                continue
            else:
                meant = _meant(name, known)
                if meant is None and is_strict and name not in own and name[0].islower():
                    meant = correct_spelling(name, known, 1) or ""
            if meant is not None:
                raise _unknown(f"{cls.__name__}.{name}", meant, known)


_ATTACHED = (
    *("logger", "capability_spec", "infrastructure_spec", "langgraph_node"),
    *("classifier_guide", "orchestrator_guide"),
)
_SHORT = 6
"""Names with fewer letters have too many neighbors to take a deliberate name for a misspelling."""
_CLASS_VAR = re.compile(r"""^['"]?(\w+\.)*(ClassVar|Final)\b""")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _overridden(base: type[Any]) -> set[str]:
    """Return the methods that authors write: static ones, and those that make guides."""
    return {
        name
        for name in dir(base)
        if name.startswith("_create_")
        or isinstance(inspect.getattr_static(base, name), staticmethod)
    }


def _is_member(value: Any) -> bool:
    """Tell whether it is a method, a property or a nested class."""
    return isinstance(value, type) or hasattr(type(value), "__get__")


def _own_names(classes: Iterable[type[Any]], has_initializer: bool) -> set[str]:
    """Return the attributes whose annotations say that they are the author's own."""
    return {
        name
        for cls in classes
        for name, annotation in inspect.get_annotations(cls).items()
        if has_initializer
        or _CLASS_VAR.match(annotation if isinstance(annotation, str) else str(annotation))
    }


def _meant(name: str, known: Iterable[str]) -> str | None:
    private = name.startswith("_")
    words = [w for w in known if len(w) >= _SHORT and w.startswith("_") == private]
    return correct_spelling(name, words)


def _shadowing(
    cls: type[Any], name: str, base: type[Any], known: Collection[str]
) -> ValidationError:
    near = correct_spelling(name, known)
    return ValidationError(
        f"{cls.__name__}.{name} is not a declaration: it would replace {base.__name__}.{name}.",
        fix=f"Write {near!r}; if the attribute is your own, rename it."
        if near
        else "Rename the attribute.",
    )


def _unknown(place: str, meant: str, known: Collection[str]) -> ValidationError:
    own = "annotate it as ClassVar, or begin its name with an underscore"
    if meant:
        return ValidationError(
            f"{place} is not a declaration: the nearest one is {meant!r}.",
            fix=f"Write {meant!r}; if the attribute is your own, begin its name with an underscore.",
        )
    name = place.rpartition(".")[2]
    if name in _RETRIES:
        return ValidationError(
            f"{place} is not a declaration of a class.",
            fix="Write a static method get_retry_policy, which returns it.",
        )
    near = closest_match(name, known)
    return ValidationError(
        f"{place} is not a declaration.",
        fix=f"Write {near!r}; if the attribute is your own, {own}."
        if near
        else f"If the attribute is your own, {own}. Declarations are: {', '.join(sorted(known))}.",
    )
