"""Policy engine, whose rules have conditions on a turn's state and actions to take."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from capgraph.configs.logger import get_logger
from capgraph.governance.quality_gate import QualityLevel
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.number_validation import check_number

Matched = bool | Awaitable[bool]


@dataclass(slots=True)
class PhaseContext:
    """State of a phase, such as a turn, that policy conditions read.

    Attributes:
        phase: Name of the phase.
        quality_level: Lowest observed quality level; ``None`` if none was observed.
        gate_score: Quality level as a number, or another score of a quality gate.
        gate_threshold: Score that the quality gate requires.
        completed_roles: Roles that completed their work; in a graph, capabilities.
        failed_roles: Roles whose work failed.
        all_roles: All roles with work to do.
        elapsed_seconds: Seconds since the phase started.
        retry_exhausted_scenarios: Failure scenarios without remaining retries.
        phase_completed: True if the phase is complete.
        total_cost_usd: Cost in US dollars; ``None`` if unknown.

    Raises:
        ValueError: A number is negative or not a number.
    """

    phase: str = ""
    quality_level: QualityLevel | None = None
    gate_score: float = 0.0
    gate_threshold: float = 0.0
    completed_roles: set[str] = field(default_factory=set)
    failed_roles: set[str] = field(default_factory=set)
    all_roles: set[str] = field(default_factory=set)
    elapsed_seconds: float = 0.0
    retry_exhausted_scenarios: set[str] = field(default_factory=set)
    phase_completed: bool = False
    total_cost_usd: float | None = 0.0

    def __post_init__(self) -> None:
        if self.quality_level is not None:
            self.quality_level = QualityLevel.of(self.quality_level)
        for name in ("gate_score", "gate_threshold", "elapsed_seconds"):
            check_number(name, getattr(self, name))
        if self.total_cost_usd is not None:
            check_number("total_cost_usd", self.total_cost_usd)
        for name in ("completed_roles", "failed_roles", "all_roles", "retry_exhausted_scenarios"):
            setattr(self, name, set(getattr(self, name)))


class PolicyCondition(ABC):
    """Base class of policy conditions."""

    @abstractmethod
    def matches(self, ctx: PhaseContext) -> Matched:
        """Return True if this policy condition is met.

        Subclasses may implement this method as a coroutine.
        """


@dataclass(frozen=True)
class And(PolicyCondition):
    """Policy condition that is met if all of the given conditions are met.

    Without conditions, this condition is always met.

    Attributes:
        conditions: Conditions to combine.
    """

    conditions: Sequence[PolicyCondition]

    def matches(self, ctx: PhaseContext) -> Matched:
        """Return True if all conditions are met, evaluating them in order until one is not met."""
        return _evaluate_in_order(iter(self.conditions), ctx, until=False)


@dataclass(frozen=True)
class Or(PolicyCondition):
    """Policy condition that is met if at least one of the given conditions is met.

    Without conditions, this condition is never met.

    Attributes:
        conditions: Conditions to combine.
    """

    conditions: Sequence[PolicyCondition]

    def matches(self, ctx: PhaseContext) -> Matched:
        """Return True if any condition is met, evaluating them in order until one is met."""
        return _evaluate_in_order(iter(self.conditions), ctx, until=True)


def _evaluate_in_order(
    conditions: Iterable[PolicyCondition], ctx: PhaseContext, *, until: bool
) -> Matched:
    for condition in conditions:
        matched = condition.matches(ctx)
        if inspect.isawaitable(matched):
            return _evaluate_rest(matched, conditions, ctx, until=until)
        if bool(matched) is until:
            return until
    return not until


async def _evaluate_rest(
    matched: Awaitable[bool],
    conditions: Iterable[PolicyCondition],
    ctx: PhaseContext,
    *,
    until: bool,
) -> bool:
    if bool(await matched) is until:
        return until
    rest = _evaluate_in_order(conditions, ctx, until=until)
    return bool(await maybe_await(rest))


@dataclass(frozen=True)
class QualityAt(PolicyCondition):
    """Policy condition that is met if the observed quality level reaches a minimum level.

    Attributes:
        level: Minimum level.
    """

    level: QualityLevel

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the observed quality level reaches the required minimum.

        An unknown quality level does not match.
        """
        return ctx.quality_level is not None and ctx.quality_level >= self.level


class PhaseCompleted(PolicyCondition):
    """Policy condition that is met if the current phase is complete."""

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the current phase is complete."""
        return ctx.phase_completed


@dataclass(frozen=True)
class AgentFailed(PolicyCondition):
    """Policy condition that is met if the work of a given role, or of any role, failed.

    Attributes:
        role: Role to check. ``None`` means any role.
    """

    role: str | None = None

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the work of the given role, or of any role, failed."""
        return self.role in ctx.failed_roles if self.role else bool(ctx.failed_roles)


@dataclass(frozen=True)
class GateBelow(PolicyCondition):
    """Policy condition that is met if the score of a quality gate is below a threshold.

    Attributes:
        threshold: Minimum sufficient score.
    """

    threshold: float

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the quality gate's score is below the threshold."""
        return ctx.gate_score < self.threshold


@dataclass(frozen=True)
class RetryExhausted(PolicyCondition):
    """Policy condition that is met if a failure scenario has no retries left.

    Attributes:
        scenario: Failure scenario to check. ``None`` means any scenario.
    """

    scenario: str | None = None

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the given failure scenario, or any scenario, has no retries left."""
        known = ctx.retry_exhausted_scenarios
        return self.scenario in known if self.scenario else bool(known)


@dataclass(frozen=True)
class TimedOut(PolicyCondition):
    """Policy condition that is met if the current phase exceeds a time limit.

    Attributes:
        seconds: Time limit in seconds.
    """

    seconds: float

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds)

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the current phase has exceeded the time limit."""
        return ctx.elapsed_seconds > self.seconds


class AllAgentsComplete(PolicyCondition):
    """Policy condition that is met if all roles have completed or failed.

    Without roles, this condition is not met.
    """

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if at least one role exists and all roles have completed or failed."""
        return bool(ctx.all_roles) and ctx.completed_roles | ctx.failed_roles >= ctx.all_roles


@dataclass(frozen=True)
class CostExceeded(PolicyCondition):
    """Policy condition that is met if the total cost exceeds a budget or is unknown.

    Attributes:
        budget_usd: Budget in US dollars.
    """

    budget_usd: float

    def __post_init__(self) -> None:
        check_number("budget_usd", self.budget_usd)

    def matches(self, ctx: PhaseContext) -> bool:
        """Return True if the total cost exceeds the budget or is unknown."""
        return ctx.total_cost_usd is None or ctx.total_cost_usd > self.budget_usd


class PolicyAction(StrEnum):
    """Action of a policy rule."""

    ADVANCE_PHASE = "advance_phase"
    """Continue without the failed step and the steps that depend on it."""
    RETRY_AGENT = "retry_agent"
    """Retry the failed step once more than its retry policy allows."""
    RETRY_PHASE = "retry_phase"
    """Create a new plan."""
    RECOVER_ONCE = "recover_once"
    """Run the recovery recipe of the failure, then retry."""
    ESCALATE = "escalate"
    """Ask a person to review the plan before it continues."""
    STORE_GATE_FEEDBACK = "store_gate_feedback"
    """Pass the gate's feedback to the next plan."""
    GENERATE_HANDOFF = "generate_handoff"
    """Report finished and open work to the person or agent that continues it."""
    NOTIFY = "notify"
    """Send an event to the sinks."""
    ABORT_PHASE = "abort_phase"
    """Stop the turn."""


@dataclass(frozen=True, slots=True)
class PolicyActionData:
    """Action that a policy rule takes, with its parameters.

    Attributes:
        action: Action to take.
        params: Parameters. In a graph: ``message``, and for actions that retry, ``switch_model``
            (use the engine's next model) and ``smaller_context`` (shorten the conversation).

    Raises:
        ValueError: The action is unknown.
    """

    action: PolicyAction
    params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", PolicyAction(self.action))
        # A copy, so that later changes by the caller have no effect.
        object.__setattr__(self, "params", copy.deepcopy(self.params))

    def to_dict(self) -> dict[str, Any]:
        """Return the action as plain data."""
        params = {"params": copy.deepcopy(self.params)} if self.params else {}
        return {"action": self.action.value, **params}


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Policy rule that runs a list of actions if its condition is met.

    Attributes:
        name: Name of the rule, for logs and events.
        condition: Condition of the rule.
        actions: Actions, in order.
        priority: Rules with lower numbers apply first.

    Raises:
        ValueError: The name or the actions are empty, or the condition has no ``matches`` method.
    """

    name: str
    condition: PolicyCondition
    actions: Sequence[PolicyActionData]
    priority: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(self.actions))
        right = all(isinstance(action, PolicyActionData) for action in self.actions)
        can_match = callable(getattr(self.condition, "matches", None))
        if not self.name.strip() or not self.actions or not right or not can_match:
            raise ValueError(
                f"The rule {self.name!r} is invalid: its condition is {self.condition!r} and its"
                f" actions are {self.actions!r}. Fix: pass a name, a PolicyCondition, and"
                " PolicyActionData."
            )


class PolicyEngine:
    """Policy engine that applies all matching rules, by priority.

    As one of a graph's ``policies``, the engine also executes the actions.

    Args:
        rules: Rules to apply.
        models: Models for ``switch_model`` in a graph, in order: chat models or
            ``"provider:name"``.
        max_uses_per_turn: Maximum number of times that each rule applies in a turn of a graph.

    Raises:
        ValueError: Two rules have the same name, or ``max_uses_per_turn`` is below 1.

    >>> engine = PolicyEngine(
    ...     [
    ...         PolicyRule("late", TimedOut(60), [PolicyActionData("notify")]),
    ...         PolicyRule("stop", AgentFailed(), [PolicyActionData("abort_phase")], priority=1),
    ...     ]
    ... )
    >>> found = engine.evaluate(PhaseContext(failed_roles={"pay"}, elapsed_seconds=61))
    >>> [item.action.value for item in found]
    ['abort_phase', 'notify']
    """

    def __init__(
        self, rules: Iterable[PolicyRule], *, models: Sequence[Any] = (), max_uses_per_turn: int = 1
    ) -> None:
        self._rules = tuple(sorted(rules, key=lambda rule: rule.priority))
        names = [rule.name for rule in self._rules]
        if len({*names}) < len(names) or max_uses_per_turn < 1:
            raise ValueError(
                f"The policy rule names in {names} are not unique, or"
                f" max_uses_per_turn={max_uses_per_turn} is below 1. Fix: use unique names and a"
                " number of at least 1."
            )
        self.models: tuple[Any, ...] = tuple(models)
        self.max_uses_per_turn = max_uses_per_turn

    @property
    def rules(self) -> list[PolicyRule]:
        """Policy rules in order of priority."""
        return list(self._rules)

    def evaluate(self, ctx: PhaseContext) -> Any:
        """Return the actions of all policy rules whose condition is met.

        The result is an awaitable if any condition is asynchronous. A condition that raises an
        exception counts as not met, and the exception is logged with the name of the rule.
        """
        found = self.matching(ctx)
        if inspect.isawaitable(found):
            return _await_actions(found)
        return _list_actions(found)

    async def evaluate_async(self, ctx: PhaseContext) -> list[PolicyActionData]:
        """Return the actions of all policy rules whose condition is met.

        Asynchronous conditions are awaited.
        """
        actions: list[PolicyActionData] = await maybe_await(self.evaluate(ctx))
        return actions

    def matching(self, ctx: PhaseContext) -> Any:
        """Return the policy rules whose condition is met, in order of priority.

        The result is an awaitable if any condition is asynchronous.
        """
        found = [(rule, _evaluate_condition(rule, ctx)) for rule in self._rules]
        if any(inspect.isawaitable(matched) for _, matched in found):
            return _await_matching(found)
        return [rule for rule, matched in found if matched]


def _evaluate_condition(rule: PolicyRule, ctx: PhaseContext) -> Any:
    try:
        return rule.condition.matches(ctx)
    except Exception:
        _log_failure(rule)
        return False


def _log_failure(rule: PolicyRule) -> None:
    get_logger("framework", "policy").exception(
        "The condition of the rule %r raised an error, so the rule does not apply", rule.name
    )


async def _await_matching(candidates: Sequence[tuple[PolicyRule, Any]]) -> list[PolicyRule]:
    matching = []
    for rule, matched in candidates:
        try:
            if await maybe_await(matched):
                matching.append(rule)
        except Exception:
            _log_failure(rule)
    return matching


def _list_actions(rules: Iterable[PolicyRule]) -> list[PolicyActionData]:
    # Copies, because the caller may change the parameters.
    return [PolicyActionData(a.action, a.params) for rule in rules for a in rule.actions]


async def _await_actions(rules: Awaitable[list[PolicyRule]]) -> list[PolicyActionData]:
    return _list_actions(await rules)
