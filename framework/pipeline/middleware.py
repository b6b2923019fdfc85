"""Selection, order, and validation of middleware and behaviors."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import STAGES, Behavior, RetryRule, TimeLimit
from capgraph.base.spec import CapabilitySpec, InfrastructureSpec

TargetKind = Literal["step", "effect", "model", "node"]
"""Target of a behavior: a step without or with an effect, a model call, or a node."""

TARGET_KINDS: dict[TargetKind, str] = {
    "step": "steps without an effect",
    "effect": "steps with an effect",
    "model": "model calls",
    "node": "infrastructure nodes",
}
"""Descriptions of the values of a behavior's attribute ``applies_to``."""

_T = TypeVar("_T")


def target_kind(spec: CapabilitySpec) -> TargetKind:
    """Return whether middleware wraps a capability's steps as a ``step`` or an ``effect``."""
    return "step" if spec.effect == "none" else "effect"


def select_applicable(behaviors: Iterable[_T], kind: TargetKind) -> list[_T]:
    """Select the behaviors that can wrap the given kind of target."""
    return [item for item in behaviors if can_wrap(item, kind)]


def can_wrap(item: Any, kind: TargetKind) -> bool:
    """Return True if a behavior can wrap the given kind of target.

    Middleware wraps model calls with ``wrap_model_call`` and steps with ``wrap_step``. The
    attribute ``applies_to`` restricts any behavior further.
    """
    if kind not in getattr(item, "applies_to", (kind,)):
        return False
    if stage_of(item) is None or is_rule(item):
        return True
    return callable(getattr(item, "wrap_model_call" if kind == "model" else "wrap_step", None))


def model_middleware(behaviors: Iterable[_T]) -> tuple[_T, ...]:
    """Select the middleware that wraps model calls.

    The hooks of a graph are omitted, because they wrap only steps. A model role declares
    separate hooks.
    """
    return tuple(item for item in select_applicable(behaviors, "model") if stage_of(item))


def find_last_of_type(items: Sequence[Any], rule_type: Any) -> Any:
    """Return the innermost rule of the given type, which overrides the outer rules."""
    return next((item for item in reversed(items) if isinstance(item, rule_type)), None)


def stage_of(item: Any) -> str | None:
    """Return the pipeline stage that middleware wraps, or ``None`` for hooks."""
    return getattr(item, "stage", None)


def is_rule(item: Any) -> bool:
    """Return True if an object replaces a stage's retry or timeout rule.

    Other middleware wraps its stage instead.
    """
    return isinstance(item, (RetryRule, TimeLimit))


def sort_middleware(items: Iterable[Any]) -> list[Any]:
    """Sort the middleware of one stage from the outermost to the innermost, without duplicates.

    Middleware with a lower ``order`` wraps middleware with a higher one. The default is 1,000, and equal
    numbers keep their order in the list.
    """
    return sorted(
        {id(item): item for item in items}.values(), key=lambda item: getattr(item, "order", 1_000)
    )


def flatten_behaviors(behaviors: Iterable[Any]) -> tuple[Any, ...]:
    """Expand each behavior that wraps several stages into its ``parts``."""
    return tuple(part for item in behaviors for part in getattr(item, "parts", (item,)))


def check_node_behaviors(spec: InfrastructureSpec) -> None:
    """Raise an error if a behavior cannot wrap an infrastructure node.

    Raises:
        ConfigurationError: A behavior wraps a stage, but a node has no stages.
    """
    where = f"{spec.name}.behaviors"
    check_middleware(spec.behaviors, where, "node")
    for item in spec.behaviors:
        if stage_of(item) is not None and not is_rule(item):
            raise ConfigurationError(
                f"{item!r} in {where} cannot wrap the stage {stage_of(item)!r}, because a node "
                "has no stages.",
                fix="use hooks (without a stage), RetryBehavior, or TimeoutBehavior.",
            )


def check_middleware(items: Sequence[Any], location: str, kind: TargetKind | None = None) -> None:
    """Raise an error if a list of behaviors contains an invalid object.

    Args:
        items: Objects to check.
        location: Name of the list for error messages.
        kind: Kind of target that all objects must be able to wrap, or ``None`` for any kind.

    Raises:
        ConfigurationError: An object is neither middleware, nor a rule, nor a behavior with
            hooks, or it cannot wrap this target.
    """
    for item in items:
        has_hooks = stage_of(item) is None and isinstance(item, Behavior)
        if isinstance(item, type) or not (has_hooks or stage_of(item) in STAGES):
            raise ConfigurationError(
                f"Invalid behavior {item!r} in {location}: its stage is {stage_of(item)!r}.",
                fix=f"pass an object (not a class) with a 'stage' of {', '.join(STAGES)}, a function"
                " with @middleware(stage=…), or an object with the hooks of BaseBehavior.",
            )
        if not (has_hooks or is_rule(item)):
            _check_methods(item, location)
        if kind is not None and not can_wrap(item, kind):
            targets = [text for other, text in TARGET_KINDS.items() if can_wrap(item, other)]
            raise ConfigurationError(
                f"{item!r} in {location} cannot wrap {TARGET_KINDS[kind]}.",
                fix=f"use it for {' and '.join(targets)}.",
            )


def _check_methods(item: Any, location: str) -> None:
    """Raise an error unless middleware has a coroutine method for steps or model calls."""
    found = [getattr(item, name, None) for name in ("wrap_step", "wrap_model_call")]
    methods = [method for method in found if callable(method)]
    if not methods or not all(map(inspect.iscoroutinefunction, methods)):
        raise ConfigurationError(
            f"{item!r} in {location} must define 'wrap_step' or 'wrap_model_call' as a coroutine "
            "function.",
            fix="define 'async def wrap_step(self, attempt, call_next)', or 'wrap_model_call' for"
            " model calls.",
        )
