"""Names that each form of a capability accepts as declarations.

An unknown name is an error: if a misspelled ``requires_approval`` were ignored, an effect would run
without approval. The decorators, the adapters, YAML files, and the reference use this module.
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
"""Form of a capability: a class, an annotated function, or the result of an adapter."""
FORMS: tuple[Form, ...] = get_args(Form)
YAML_FORMS: dict[str, Form] = {"tools": "tool", "graphs": "graph", "agents": "agent", "mcp": "mcp"}
"""Form of each YAML section. ``accepted_names(form, yaml=True)`` lists the keys of its entries."""

_TEXTS = ("name", "description")
_TYPES = ("provides", "requires")
_RETRIES = ("max_attempts", "delay_seconds")
_CALLED = ("classify_error", "parameters_from")
_ENTRY_KEYS: dict[Form, tuple[str, ...]] = {
    "tool": ("import",),
    "graph": ("import", "input", "output"),
    "agent": ("import", "keeps_dialogue"),
    "mcp": (
        "command",
        "env",
        "url",
        "headers",
        "credentials",
        "authorization",
        "prefix",
        "allow",
        "approve",
        "pins",
        "mode",
    ),
}
"""Keys of a YAML entry that name the adapted object. They are not declarations."""

_NAMES: dict[Form, tuple[str, ...]] = {
    "class": (*_TEXTS, *_TYPES, "Parameters", "libraries", "parses_task", *_CALLED, *DECLARED),
    "function": (*_TEXTS, *_RETRIES, *_CALLED, *DECLARED),
    "tool": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "graph": (*_TEXTS, *_RETRIES, *_CALLED, *DECLARED),
    "agent": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "remote": (*_TEXTS, *_TYPES, *_RETRIES, *_CALLED, *DECLARED),
    "mcp": (*_RETRIES, *_CALLED, *("effects" if n == "effect" else n for n in DECLARED)),
}


NODE_OPTIONS = ("quiet", "before", "after")
NODE_DECLARATIONS = (*_TEXTS, "behaviors", *NODE_OPTIONS)
"""Declarations of an infrastructure node."""
_READ_BY_DECORATOR = {
    "capability_spec": tuple(name for name in _NAMES["class"] if name not in _CALLED),
    "infrastructure_spec": NODE_DECLARATIONS,
}


def accepted_names(form: Form, *, yaml: bool = False) -> tuple[str, ...]:
    """Return the declaration names that are valid for a given form of capability.

    Args:
        form: Form of the capability, such as ``"class"`` or ``"tool"``.
        yaml: True to include the YAML keys that identify the adapted object.

    >>> "requires" in accepted_names("tool"), "requires" in accepted_names("function")
    (True, False)
    >>> sorted(set(accepted_names("graph", yaml=True)) - set(accepted_names("graph")))
    ['import', 'input', 'output']
    """
    return (*_ENTRY_KEYS.get(form, ()), *_NAMES[form]) if yaml else _NAMES[form]


class DeclarationMeta(ABCMeta):
    """Metaclass for capabilities and infrastructure nodes that rejects late declarations.

    The decorator reads the declarations of a class only once. Assigning a declaration later
    would have no effect, so it raises an error.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        for spec, valid_names in _READ_BY_DECORATOR.items():
            # The spec may be copied from another class.
            if name in valid_names and getattr(vars(cls).get(spec), "cls", None) is cls:
                raise ValidationError(
                    f"Cannot set {cls.__name__}.{name} to {value!r} because the declarations of "
                    "the class have already been read.",
                    fix=f"Set {name} in the class body, or in a decorated subclass.",
                )
        super().__setattr__(name, value)


def check_names(owner: str, names: Iterable[str], valid_names: Collection[str]) -> None:
    """Raise an error for unknown declarations.

    Args:
        owner: Object that has the declarations, for the message, such as ``"tool_capability('search')"``.
        names: Names of the declarations to check.
        valid_names: Names of the accepted declarations.

    Raises:
        ValidationError: A name is unknown. The message suggests the nearest one.

    >>> check_names("tool_capability('pay')", ["requires_aproval"], accepted_names("tool"))
    Traceback (most recent call last):
    capgraph.configs.errors.ValidationError: tool_capability('pay') has the unknown declaration \
'requires_aproval'. Fix: Write 'requires_approval'.
    """
    for name in names:
        if name not in valid_names:
            raise ValidationError(
                f"{owner} has the unknown declaration {name!r}.",
                fix=_suggest_fix(name, valid_names),
            )


def _suggest_fix(name: str, valid_names: Collection[str]) -> str:
    near = suggest_name(name, valid_names)
    if near is not None:
        return f"Write {near!r}."
    return f"Remove it, or use one of: {', '.join(sorted(valid_names))}."


def check_attributes(target: type[Any], base: type[Any], valid_names: Collection[str]) -> None:
    """Raise an error for class attributes that look like misspelled declarations.

    An attribute with the name of a method or property of the base class is refused, too, because it
    would replace that method. The following attributes are allowed, unless they are misspellings:

    - methods, properties, and nested classes;
    - ``UPPER_CASE`` constants and names with a leading underscore;
    - attributes annotated as ``ClassVar``;
    - annotated attributes of a class with an initializer.

    Args:
        target: Class to check.
        base: Base class, whose attributes may be overridden.
        valid_names: Names of the declarations.

    Raises:
        ValidationError: An attribute is not a declaration. The message suggests the nearest one.
    """
    base_classes, overridable = set(base.__mro__), set(dir(base))
    classes = [cls for cls in target.__mro__ if cls not in base_classes]
    defined = {name for cls in classes for name in vars(cls)}
    hooks = [
        *_list_overridable_methods(base) - defined,
        *{"Parameters"} & set(valid_names) - defined,
    ]
    own = _list_annotated_names(classes, "__init__" in defined)
    for cls in classes:
        # Other base classes need not follow the rules of capabilities.
        is_strict = cls is target or issubclass(cls, base)
        for name, value in vars(cls).items():
            if name in valid_names or name in _ATTACHED or _is_special(name):
                continue
            if name in overridable:
                if not (_is_member(value) or callable(value) or name in own or name[0] == "_"):
                    raise _shadowing_error(cls, name, base, valid_names)
                continue
            if _is_member(value):
                suggestion = _suggest_declaration(name, hooks)
            elif name.startswith("_"):
                continue
            else:
                suggestion = _suggest_declaration(name, valid_names)
                if suggestion is None and is_strict and name not in own and name[0].islower():
                    suggestion = correct_spelling(name, valid_names, 1) or ""
            if suggestion is not None:
                raise _unknown_error(f"{cls.__name__}.{name}", suggestion, valid_names)


_ATTACHED = (
    *("logger", "capability_spec", "infrastructure_spec", "langgraph_node"),
    *("classifier_guide", "orchestrator_guide"),
)
_MIN_LENGTH = 6
"""Minimum length of names that are checked for misspellings: shorter ones resemble too many others."""
_CLASS_VAR = re.compile(r"""^['"]?(\w+\.)*(ClassVar|Final)\b""")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _list_overridable_methods(base: type[Any]) -> set[str]:
    """Return the names of the methods that capability authors may override.

    These are the static methods and the guide factories of the base class.
    """
    return {
        name
        for name in dir(base)
        if name.startswith("_create_")
        or isinstance(inspect.getattr_static(base, name), staticmethod)
    }


def _is_member(value: Any) -> bool:
    """Return True if a class attribute is a method, a property, or a nested class."""
    return isinstance(value, type) or hasattr(type(value), "__get__")


def _list_annotated_names(classes: Iterable[type[Any]], has_initializer: bool) -> set[str]:
    """Return the names of annotated attributes that are not declarations.

    These are class variables, and also instance fields if the class has an initializer.
    """
    return {
        name
        for cls in classes
        for name, annotation in inspect.get_annotations(cls).items()
        if has_initializer
        or _CLASS_VAR.match(annotation if isinstance(annotation, str) else str(annotation))
    }


def _suggest_declaration(name: str, valid_names: Iterable[str]) -> str | None:
    is_private = name.startswith("_")
    candidates = [
        other
        for other in valid_names
        if len(other) >= _MIN_LENGTH and other.startswith("_") == is_private
    ]
    return correct_spelling(name, candidates)


def _shadowing_error(
    cls: type[Any], name: str, base: type[Any], valid_names: Collection[str]
) -> ValidationError:
    near = correct_spelling(name, valid_names)
    return ValidationError(
        f"{cls.__name__}.{name} is not a declaration: it would replace {base.__name__}.{name}.",
        fix=f"Write {near!r}. If the attribute is your own, rename it."
        if near
        else "Rename the attribute.",
    )


def _unknown_error(path: str, suggestion: str, valid_names: Collection[str]) -> ValidationError:
    own = "annotate it as ClassVar, or begin its name with an underscore"
    if suggestion:
        return ValidationError(
            f"{path} is not a declaration: the nearest one is {suggestion!r}.",
            fix=f"Write {suggestion!r}. If the attribute is your own, begin its name with an"
            " underscore.",
        )
    name = path.rpartition(".")[2]
    if name in _RETRIES:
        return ValidationError(
            f"{path} is not a declaration of a class.",
            fix=f"Write a static method get_retry_policy that returns {name}.",
        )
    near = closest_match(name, valid_names)
    return ValidationError(
        f"{path} is not a declaration.",
        fix=f"Write {near!r}. If the attribute is your own, {own}."
        if near
        else f"If the attribute is your own, {own}. Declarations are: {', '.join(sorted(valid_names))}.",
    )
