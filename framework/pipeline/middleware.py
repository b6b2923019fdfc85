"""Selection, order, and validation of middleware and behaviors."""

from __future__ import annotations

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
    """Return the kind of target that the steps of a capability are."""
    return "step" if spec.effect == "none" else "effect"


def applicable(behaviors: Iterable[_T], kind: TargetKind) -> list[_T]:
    """Return the behaviors that can wrap a target of this kind."""
    return [item for item in behaviors if kind in getattr(item, "applies_to", (kind,))]


def model_middleware(behaviors: Iterable[_T]) -> tuple[_T, ...]:
    """Return the middleware of a graph that wraps model calls.

    Hooks have no stage and belong to steps. A model role declares its own hooks.
    """
    return tuple(item for item in applicable(behaviors, "model") if stage_of(item))


def last_of_type(items: Sequence[Any], rule_type: Any) -> Any:
    """Return the innermost rule of a type; it overrides the others."""
    return next((item for item in reversed(items) if isinstance(item, rule_type)), None)


def stage_of(item: Any) -> str | None:
    """Return the stage of a middleware; ``None`` for hooks."""
    return getattr(item, "stage", None)


def is_rule(item: Any) -> bool:
    """Return whether an object replaces a rule of its stage instead of wrapping the stage."""
    return isinstance(item, (RetryRule, TimeLimit))


def sort_middleware(items: Iterable[Any]) -> list[Any]:
    """Return the middleware of one stage from the outermost to the innermost.

    Middleware with a lower ``order`` is further out. The default is 1,000, and equal numbers keep
    their order in the list. An object that is listed twice, for the graph and for a capability,
    occurs once.
    """
    return sorted(
        {id(item): item for item in items}.values(), key=lambda item: getattr(item, "order", 1_000)
    )


def flatten_behaviors(behaviors: Iterable[Any]) -> tuple[Any, ...]:
    """Return behaviors with each object that wraps several stages replaced by its ``parts``."""
    return tuple(part for item in behaviors for part in getattr(item, "parts", (item,)))


def check_node_behaviors(spec: InfrastructureSpec) -> None:
    """Check that the behaviors of an infrastructure node can wrap it.

    Raises:
        ConfigurationError: A behavior has a stage, which a node does not have.
    """
    where = f"{spec.name}.behaviors"
    check_middleware(spec.behaviors, where, "node")
    for item in spec.behaviors:
        if stage_of(item) is not None and not is_rule(item):
            raise ConfigurationError(
                f"{item!r} in {where} names the stage {stage_of(item)!r}, which a node does not pass.",
                fix="Give a node hooks (without a stage), RetryBehavior or TimeoutBehavior.",
            )


def check_middleware(items: Sequence[Any], location: str, kind: TargetKind | None = None) -> None:
    """Check that each object of a list can wrap an attempt.

    Args:
        items: Objects to check.
        location: Name of the list for error messages.
        kind: Target that the list belongs to; ``None`` for a list that applies where it fits.

    Raises:
        ConfigurationError: An object is neither middleware, nor a rule, nor a behavior with hooks,
            or it cannot wrap this target.
    """
    for item in items:
        fits = getattr(item, "applies_to", TARGET_KINDS)
        if kind is not None and kind not in fits and not isinstance(item, type):
            raise ConfigurationError(
                f"{item!r} in {location} cannot stand around {TARGET_KINDS[kind]}.",
                fix=f"It is for {' and '.join(TARGET_KINDS[other] for other in fits)}.",
            )
        stage = stage_of(item)
        if stage is None and isinstance(item, Behavior) and not isinstance(item, type):
            continue
        if isinstance(item, type) or stage not in STAGES:
            raise ConfigurationError(
                f"{item!r} in {location} names the stage {stage!r}.",
                fix=f"Give an object (not a class) whose 'stage' is one of {', '.join(STAGES)}, or one"
                " with the hooks of BaseBehavior.",
            )
        if not (callable(getattr(item, "wrap_step", None)) or is_rule(item)):
            raise ConfigurationError(
                f"{item!r} in {location} has no method 'wrap_step'.",
                fix="Write 'async def wrap_step(self, attempt, call_next)'.",
            )
