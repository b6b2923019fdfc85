"""Policies: rules that look at how a turn stands and say what is to be done about it."""

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
    """How a phase, such as a turn, stands.

    Attributes:
        phase: What it is about.
        quality_level: The lowest level that was observed; ``None`` for nothing observed.
        gate_score: The same as a number, or any other score of a gate.
        gate_threshold: What a gate asks for.
        completed_roles: Who has done the work: in a graph, capabilities.
        failed_roles: Whose work failed.
        all_roles: Who has work to do.
        elapsed_seconds: How long it has taken.
        retry_exhausted_scenarios: Kinds of failures for which no try is left.
        phase_completed: Whether all is done.
        total_cost_usd: What it cost; ``None`` for a cost that is not known.

    Raises:
        ValueError: A number is negative or none.
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
    """Says whether a rule applies."""

    @abstractmethod
    def matches(self, ctx: PhaseContext) -> Matched:
        """Tell whether it does; may be a coroutine function."""


@dataclass(frozen=True)
class And(PolicyCondition):
    """All of several conditions; true for none.

    Attributes:
        conditions: The conditions.
    """

    conditions: Sequence[PolicyCondition]

    def matches(self, ctx: PhaseContext) -> Matched:
        """Ask them in their order, up to the first that does not match."""
        return _in_turn(iter(self.conditions), ctx, until=False)


@dataclass(frozen=True)
class Or(PolicyCondition):
    """Any of several conditions; false for none.

    Attributes:
        conditions: The conditions.
    """

    conditions: Sequence[PolicyCondition]

    def matches(self, ctx: PhaseContext) -> Matched:
        """Ask them in their order, up to the first that matches."""
        return _in_turn(iter(self.conditions), ctx, until=True)


def _in_turn(left: Iterable[PolicyCondition], ctx: PhaseContext, *, until: bool) -> Matched:
    for condition in left:
        found = condition.matches(ctx)
        if inspect.isawaitable(found):
            return _later(found, left, ctx, until=until)
        if bool(found) is until:
            return until
    return not until


async def _later(
    found: Awaitable[bool], left: Iterable[PolicyCondition], ctx: PhaseContext, *, until: bool
) -> bool:
    if bool(await found) is until:
        return until
    rest = _in_turn(left, ctx, until=until)
    return bool(await maybe_await(rest))


@dataclass(frozen=True)
class QualityAt(PolicyCondition):
    """The observed level is at least this one; never where nothing was observed.

    Attributes:
        level: The level.
    """

    level: QualityLevel

    def matches(self, ctx: PhaseContext) -> bool:
        """Hold what was observed against it."""
        return ctx.quality_level is not None and ctx.quality_level >= self.level


class PhaseCompleted(PolicyCondition):
    """All is done."""

    def matches(self, ctx: PhaseContext) -> bool:
        """Look at the phase."""
        return ctx.phase_completed


@dataclass(frozen=True)
class AgentFailed(PolicyCondition):
    """Somebody's work failed.

    Attributes:
        role: Whose; ``None`` for anybody's.
    """

    role: str | None = None

    def matches(self, ctx: PhaseContext) -> bool:
        """Look who failed."""
        return self.role in ctx.failed_roles if self.role else bool(ctx.failed_roles)


@dataclass(frozen=True)
class GateBelow(PolicyCondition):
    """The score of a gate is below this.

    Attributes:
        threshold: The least score that is enough.
    """

    threshold: float

    def matches(self, ctx: PhaseContext) -> bool:
        """Hold the score against it."""
        return ctx.gate_score < self.threshold


@dataclass(frozen=True)
class RetryExhausted(PolicyCondition):
    """No try is left.

    Attributes:
        scenario: For this kind of failure; ``None`` for any.
    """

    scenario: str | None = None

    def matches(self, ctx: PhaseContext) -> bool:
        """Look for which kinds no try is left."""
        known = ctx.retry_exhausted_scenarios
        return self.scenario in known if self.scenario else bool(known)


@dataclass(frozen=True)
class TimedOut(PolicyCondition):
    """It takes longer than this.

    Attributes:
        seconds: How long it may take.
    """

    seconds: float

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds)

    def matches(self, ctx: PhaseContext) -> bool:
        """Look at the time."""
        return ctx.elapsed_seconds > self.seconds


class AllAgentsComplete(PolicyCondition):
    """Everybody who has work to do is through with it, well or not; never where nobody has."""

    def matches(self, ctx: PhaseContext) -> bool:
        """Look whose work is over."""
        return bool(ctx.all_roles) and ctx.completed_roles | ctx.failed_roles >= ctx.all_roles


@dataclass(frozen=True)
class CostExceeded(PolicyCondition):
    """It costs more than this; a cost that is not known counts as too much.

    Attributes:
        budget_usd: What it may cost.
    """

    budget_usd: float

    def __post_init__(self) -> None:
        check_number("budget_usd", self.budget_usd)

    def matches(self, ctx: PhaseContext) -> bool:
        """Look at the cost."""
        return ctx.total_cost_usd is None or ctx.total_cost_usd > self.budget_usd


class PolicyAction(StrEnum):
    """What a rule can have done."""

    ADVANCE_PHASE = "advance_phase"
    """Go on without the step that failed, and what needs it."""
    RETRY_AGENT = "retry_agent"
    """Try what failed again, once more than its own policy says."""
    RETRY_PHASE = "retry_phase"
    """Write another plan."""
    RECOVER_ONCE = "recover_once"
    """Do what the recipe for the failure says, then try again."""
    ESCALATE = "escalate"
    """Have a person look at the plan before it goes on."""
    STORE_GATE_FEEDBACK = "store_gate_feedback"
    """Tell the next plan what was not good enough."""
    GENERATE_HANDOFF = "generate_handoff"
    """Tell whoever takes over what is done and what is not."""
    NOTIFY = "notify"
    """Tell the sinks."""
    ABORT_PHASE = "abort_phase"
    """Stop the turn."""


@dataclass(frozen=True, slots=True)
class PolicyActionData:
    """An action with what it is given.

    Attributes:
        action: The action.
        params: In a graph: ``switch_model`` and ``smaller_context`` (with a new try: the next model
            of the engine, a shorter conversation), ``message``.

    Raises:
        ValueError: There is no such action.
    """

    action: PolicyAction
    params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", PolicyAction(self.action))
        # A copy of one's own: nobody changes a rule by changing what it was made of.
        object.__setattr__(self, "params", copy.deepcopy(self.params))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        params = {"params": copy.deepcopy(self.params)} if self.params else {}
        return {"action": self.action.value, **params}


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """What is to be done under a condition.

    Attributes:
        name: Names it, in logs and events.
        condition: When it applies.
        actions: What is done, in order.
        priority: Rules with a lower number come first.

    Raises:
        ValueError: It has no name, no action, or no condition that could match.
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
                f"The rule {self.name!r} has the condition {self.condition!r} and the actions"
                f" {self.actions!r}. Fix: give a name, a condition and PolicyActionData."
            )


class PolicyEngine:
    """Holds rules against how a phase stands: all that match apply, by priority.

    Among the ``policies`` of a graph its actions act; each rule at most ``max_uses_per_turn`` times a turn.

    Args:
        rules: The rules.
        models: In a graph: what ``switch_model`` goes on with, one after the other: chat models or
            ``"provider:name"``.
        max_uses_per_turn: In a graph: how often one rule may act in a turn.

    Raises:
        ValueError: Two rules have one name, or none may ever act.

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
                f"The rules are called {names}, and each may act {max_uses_per_turn} times."
                " Fix: give each a name of its own, and at least one time."
            )
        self.models: tuple[Any, ...] = tuple(models)
        self.max_uses_per_turn = max_uses_per_turn

    @property
    def rules(self) -> list[PolicyRule]:
        """The rules, in the order in which they apply."""
        return list(self._rules)

    def evaluate(self, ctx: PhaseContext) -> Any:
        """Return the actions of all rules that match; awaitable where a condition is asynchronous.

        A condition that raises does not match; its rule is named in the log.
        """
        found = self.matching(ctx)
        if inspect.isawaitable(found):
            return _actions_later(found)
        return _actions(found)

    async def evaluate_async(self, ctx: PhaseContext) -> list[PolicyActionData]:
        """Return the actions of all rules that match."""
        actions: list[PolicyActionData] = await maybe_await(self.evaluate(ctx))
        return actions

    def matching(self, ctx: PhaseContext) -> Any:
        """Return the rules that match; awaitable where a condition is asynchronous."""
        found = [(rule, _asked(rule, ctx)) for rule in self._rules]
        if any(inspect.isawaitable(matched) for _, matched in found):
            return _matching_later(found)
        return [rule for rule, matched in found if matched]


def _asked(rule: PolicyRule, ctx: PhaseContext) -> Any:
    try:
        return rule.condition.matches(ctx)
    except Exception:
        _log(rule)
        return False


def _log(rule: PolicyRule) -> None:
    get_logger("framework", "policy").exception(
        "the condition of the rule %r failed, and the rule does not apply", rule.name
    )


async def _matching_later(found: Sequence[tuple[PolicyRule, Any]]) -> list[PolicyRule]:
    matching = []
    for rule, matched in found:
        try:
            if await maybe_await(matched):
                matching.append(rule)
        except Exception:
            _log(rule)
    return matching


def _actions(rules: Iterable[PolicyRule]) -> list[PolicyActionData]:
    # A copy of each: who gets the actions may change what they are given.
    return [PolicyActionData(a.action, a.params) for rule in rules for a in rule.actions]


async def _actions_later(found: Awaitable[list[PolicyRule]]) -> list[PolicyActionData]:
    return _actions(await found)
