"""Middlewares and behaviors: which fit a step, in which order they wrap it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import STAGES, Behavior, RetryRule, TimeLimit
from capgraph.base.spec import CapabilitySpec, InfrastructureSpec

TargetKind = Literal["step", "effect", "model", "node"]
"""What a behaviour may stand around: a step without or with an effect, a model call, a node."""

TARGET_KINDS: dict[TargetKind, str] = {
    "step": "steps without an effect",
    "effect": "steps with an effect",
    "model": "model calls",
    "node": "infrastructure nodes",
}
"""What may stand in the attribute ``applies_to`` of a behaviour; all of it where it has none."""

_T = TypeVar("_T")


def target_kind(spec: CapabilitySpec) -> TargetKind:
    """Return what a middleware around a capability's steps wraps."""
    return "step" if spec.effect == "none" else "effect"


def applicable(behaviors: Iterable[_T], kind: TargetKind) -> list[_T]:
    """Return those of a graph's behaviours that can stand around something of a kind."""
    return [item for item in behaviors if kind in getattr(item, "applies_to", (kind,))]


def model_middleware(behaviors: Iterable[_T]) -> tuple[_T, ...]:
    """Return those of a graph's behaviours that stand around model calls: they name a stage.

    Hooks without one are about steps; a model's role brings its own.
    """
    return tuple(item for item in applicable(behaviors, "model") if stage_of(item))


def last_of_type(items: Sequence[Any], rule_type: Any) -> Any:
    """Return the innermost of the rules of a type; the others have no say."""
    return next((item for item in reversed(items) if isinstance(item, rule_type)), None)


def stage_of(item: Any) -> str | None:
    """Return the stage at which something wraps; ``None`` for hooks."""
    return getattr(item, "stage", None)


def is_rule(item: Any) -> bool:
    """Tell whether something takes the place of what a stage goes by, and stands around nothing."""
    return isinstance(item, (RetryRule, TimeLimit))


def sort_middleware(items: Iterable[Any]) -> list[Any]:
    """Return what stands at one stage from the outside in.

    Those with a number (``order``) have one place however they are listed; the others, as they are
    listed, stand inside of those below 1,000 and outside of those above. What is listed twice, for
    the graph and for a capability, stands once.
    """
    return sorted(
        {id(item): item for item in items}.values(), key=lambda item: getattr(item, "order", 1_000)
    )


def flatten_behaviors(behaviors: Iterable[Any]) -> tuple[Any, ...]:
    """Return behaviours with those that stand at several stages (``parts``) taken apart."""
    return tuple(part for item in behaviors for part in getattr(item, "parts", (item,)))


def check_node_behaviors(spec: InfrastructureSpec) -> None:
    """Make sure that what an infrastructure node declares can stand around it.

    Raises:
        ConfigurationError: It cannot.
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
    """Make sure that everything in a list can stand around an attempt.

    Args:
        items: The list.
        location: Names it.
        kind: What it is declared for; ``None`` for whatever fits.

    Raises:
        ConfigurationError: It names no stage, or an unknown one, or has no ``wrap_step``; and it has
            no hooks of a behaviour either. Or it cannot stand around this.
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
