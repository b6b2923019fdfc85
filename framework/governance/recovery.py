"""Recovery recipes for failure scenarios, and functions that run them."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from capgraph.base.error_classification import Category, categorize, iter_causes
from capgraph.base.errors import ModelError
from capgraph.base.ports import Failure
from capgraph.configs.logger import get_logger
from capgraph.helpers.async_calls import maybe_await, run_sync
from capgraph.helpers.clock import utc_now_text

_KEPT_EVENTS = 1000


class FailureScenario(StrEnum):
    """Failure scenario with a recovery recipe."""

    LLM_TIMEOUT = "llm_timeout"
    LLM_ERROR = "llm_error"
    TOOL_EXECUTION_ERROR = "tool_execution_error"
    CONTEXT_OVERFLOW = "context_overflow"
    DEPENDENCY_TIMEOUT = "dependency_timeout"
    MEMORY_CORRUPTION = "memory_corruption"
    PROVIDER_FAILURE = "provider_failure"


class RecoveryStep(StrEnum):
    """Step of a recovery recipe."""

    RETRY_WITH_BACKOFF = "retry_with_backoff"
    RETRY_WITH_SMALLER_CONTEXT = "retry_with_smaller_context"
    SWITCH_PROVIDER = "switch_provider"
    RESTART_AGENT = "restart_agent"
    CLEAR_MEMORY_CACHE = "clear_memory_cache"
    REDUCE_TOOL_SET = "reduce_tool_set"
    ESCALATE_TO_HUMAN = "escalate_to_human"


class EscalationPolicy(StrEnum):
    """Reaction when recovery attempts are exhausted."""

    ALERT_HUMAN = "alert_human"
    LOG_AND_CONTINUE = "log_and_continue"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class RecoveryRecipe:
    """Recovery steps to run in a failure scenario, with limits on the number of attempts.

    Attributes:
        scenario: Failure scenario.
        steps: Recovery steps, in order.
        max_attempts: Maximum number of attempts to run the recipe.
        escalation_policy: Reaction when the attempts are exhausted.
        step_retries: Maximum number of attempts by step. Steps without an entry have 1.

    Raises:
        ValueError: There are no steps or attempts, or ``step_retries`` names an unknown step.
    """

    scenario: FailureScenario
    steps: tuple[RecoveryStep, ...]
    max_attempts: int
    escalation_policy: EscalationPolicy
    step_retries: Mapping[RecoveryStep, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(map(RecoveryStep, self.steps)))
        if not self.steps or self.max_attempts < 1 or not {*self.step_retries} <= {*self.steps}:
            raise ValueError(
                f"The recipe for {self.scenario} is invalid: it has {len(self.steps)} steps,"
                f" {self.max_attempts} attempts, and step_retries for {list(self.step_retries)}."
                " Fix: pass steps, at least one attempt, and step_retries for these steps only."
            )


_RECIPES: Mapping[FailureScenario, RecoveryRecipe] = MappingProxyType(
    {
        FailureScenario(name): RecoveryRecipe(
            FailureScenario(name),
            tuple(map(RecoveryStep, steps.split())),
            tries,
            EscalationPolicy(escalation),
        )
        for name, steps, tries, escalation in (
            ("llm_timeout", "retry_with_backoff", 2, "alert_human"),
            ("llm_error", "retry_with_backoff switch_provider", 2, "alert_human"),
            ("tool_execution_error", "restart_agent", 1, "log_and_continue"),
            ("context_overflow", "retry_with_smaller_context reduce_tool_set", 1, "alert_human"),
            ("dependency_timeout", "retry_with_backoff", 1, "alert_human"),
            ("memory_corruption", "clear_memory_cache restart_agent", 1, "abort"),
            ("provider_failure", "switch_provider retry_with_backoff", 2, "abort"),
        )
    }
)


def recipe_for(scenario: FailureScenario | str) -> RecoveryRecipe:
    """Return the default recovery recipe (list of recovery steps) for a failure scenario.

    >>> [step.value for step in recipe_for("llm_error").steps]
    ['retry_with_backoff', 'switch_provider']
    """
    return _RECIPES[FailureScenario(scenario)]


@dataclass(slots=True)
class RecoveryResult:
    """Result of a recovery attempt.

    Attributes:
        outcome: ``recovered`` if all steps of the recipe succeeded. ``partial_recovery`` if only
            some did, or the first one failed. ``escalation_required`` if no step has an action, or
            the attempts are exhausted.
        steps_taken: Number of successful steps.
        recovered_steps: Successful steps.
        remaining_steps: Steps that failed, were not reached, or have no action.
        reason: Reason why recovery is incomplete.
    """

    outcome: Literal["recovered", "partial_recovery", "escalation_required"]
    steps_taken: int = 0
    recovered_steps: list[str] = field(default_factory=list)
    remaining_steps: list[str] = field(default_factory=list)
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """Log entry for one recovery attempt.

    Attributes:
        event_type: ``succeeded``, ``failed``, or ``escalated``.
        scenario: Failure scenario.
        recipe_steps: Steps of the recipe.
        result: Result of the attempt.
        timestamp: Time as an ISO 8601 string.
    """

    event_type: str
    scenario: str
    recipe_steps: list[str]
    result: dict[str, Any]
    timestamp: str

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)


class RecoveryContext:
    """Recovery actions of a run, with a count of the recovery attempts per failure scenario.

    Args:
        actions: Function for each step, without parameters, sync or async. A step fails if its
            function raises an error or returns ``False``.
        recipes: Recipes that replace the default ones.
    """

    def __init__(
        self,
        actions: Mapping[RecoveryStep | str, Callable[[], Any]] | None = None,
        *,
        recipes: Iterable[RecoveryRecipe] = (),
    ) -> None:
        self.actions: dict[RecoveryStep, Callable[[], Any]] = {
            RecoveryStep(step): call for step, call in (actions or {}).items()
        }
        self._recipes = {**_RECIPES, **{recipe.scenario: recipe for recipe in recipes}}
        self._attempts: dict[FailureScenario, int] = {}
        self._events: deque[RecoveryEvent] = deque(maxlen=_KEPT_EVENTS)
        self._lock = threading.Lock()
        self._resets_after_recovery = True

    def for_session(self) -> RecoveryContext:
        """Create a recovery context for one session, with the same actions but new counters.

        A failure may recur after a successful recovery, so only :meth:`record_success` resets the
        counters of a session.
        """
        context = RecoveryContext(recipes=self._recipes.values())
        context.actions = dict(self.actions)
        context._resets_after_recovery = False
        return context

    def record_success(self) -> None:
        """Reset all recovery attempt counters after the work has succeeded."""
        with self._lock:
            self._attempts.clear()

    def is_exhausted(self, scenario: FailureScenario | str) -> bool:
        """Return True if a failure scenario has no recovery attempts left."""
        return self.attempt_count(scenario) >= self.recipe(scenario).max_attempts

    def attempt_count(self, scenario: FailureScenario | str) -> int:
        """Return the number of recovery attempts for a failure scenario since the last success."""
        return self._attempts.get(FailureScenario(scenario), 0)

    def recipe(self, scenario: FailureScenario | str) -> RecoveryRecipe:
        """Return the recovery recipe that this context uses for a failure scenario."""
        return self._recipes[FailureScenario(scenario)]

    @property
    def events(self) -> list[RecoveryEvent]:
        """Latest recovery attempts, oldest first."""
        return list(self._events)

    def _begin(self, recipe: RecoveryRecipe) -> bool:
        with self._lock:
            used = self._attempts.get(recipe.scenario, 0)
            if used >= recipe.max_attempts:
                return False
            self._attempts[recipe.scenario] = used + 1
            return True

    def _end(self, recipe: RecoveryRecipe, result: RecoveryResult) -> RecoveryResult:
        kind = {"recovered": "succeeded", "partial_recovery": "failed"}.get(result.outcome)
        steps = [step.value for step in recipe.steps]
        if kind == "succeeded" and self._resets_after_recovery:
            with self._lock:
                self._attempts.pop(recipe.scenario, None)
        self._events.append(
            RecoveryEvent(
                kind or "escalated", recipe.scenario.value, steps, result.to_dict(), utc_now_text()
            )
        )
        return result


def attempt_recovery(scenario: FailureScenario | str, ctx: RecoveryContext) -> RecoveryResult:
    """Run the recovery steps for a failure scenario from synchronous code.

    >>> ctx = RecoveryContext({"retry_with_backoff": lambda: True})
    >>> attempt_recovery("llm_timeout", ctx).outcome
    'recovered'
    >>> attempt_recovery("llm_timeout", RecoveryContext()).outcome
    'escalation_required'
    """
    work = _attempt(scenario, ctx, _wait_blocking)
    try:
        work.send(None)  # it never suspends, so one send completes it
    except StopIteration as done:
        found: RecoveryResult = done.value
        return found
    raise RuntimeError(
        "The recovery suspended, which synchronous code cannot await. Fix: report this defect."
    )


async def aattempt_recovery(
    scenario: FailureScenario | str, ctx: RecoveryContext
) -> RecoveryResult:
    """Run the recovery steps for a failure scenario.

    Returns:
        The result, with the steps that succeeded and those that remain.
    """
    return await _attempt(scenario, ctx, maybe_await)


async def _attempt(
    scenario: FailureScenario | str,
    ctx: RecoveryContext,
    wait: Callable[[Awaitable[Any]], Awaitable[Any]],
) -> RecoveryResult:
    recipe = ctx.recipe(scenario)
    steps = [step.value for step in recipe.steps]
    if not ctx._begin(recipe):
        reason = f"{recipe.max_attempts} attempts for {recipe.scenario} are exhausted"
        return ctx._end(recipe, RecoveryResult("escalation_required", 0, [], steps, reason))
    ran = False
    done: list[str] = []
    reasons: list[str] = []
    for index, step in enumerate(recipe.steps):
        action = ctx.actions.get(step)
        if action is None:
            reasons.append(f"{step.value} has no action")
            continue
        ran = True
        fault = await _run_step(step, action, recipe.step_retries.get(step, 1), wait)
        if fault:
            # Later steps assume that this one succeeded.
            reasons += [
                fault,
                *(f"{remaining.value} was not reached" for remaining in recipe.steps[index + 1 :]),
            ]
            break
        done.append(step.value)
    remaining = [name for name in steps if name not in done]
    outcome: Any = "partial_recovery" if ran else "escalation_required"
    outcome = "recovered" if not remaining else outcome
    return ctx._end(recipe, RecoveryResult(outcome, len(done), done, remaining, "; ".join(reasons)))


async def _run_step(
    step: RecoveryStep,
    action: Callable[[], Any],
    tries: int,
    wait: Callable[[Awaitable[Any]], Awaitable[Any]],
) -> str:
    fault = f"{step.value} has no tries"
    for _ in range(tries):
        try:
            found = action()
            if inspect.isawaitable(found):
                found = await wait(found)
        except Exception as exc:
            get_logger("framework", "recovery").warning("%s failed: %r", step.value, exc)
            fault = f"{step.value} failed: {exc!r}"
            continue
        if found is not False:
            return ""
        fault = f"{step.value} returned False"
    return fault


async def _wait_blocking(awaitable: Awaitable[Any]) -> Any:
    """Block until an awaitable has finished, without suspending the calling coroutine."""
    return run_sync(maybe_await(awaitable))


_BY_CATEGORY: Mapping[Category, FailureScenario] = MappingProxyType(
    {
        "timeout": FailureScenario.LLM_TIMEOUT,
        "network": FailureScenario.PROVIDER_FAILURE,
        "overloaded": FailureScenario.PROVIDER_FAILURE,
        "authentication": FailureScenario.PROVIDER_FAILURE,
        "rate_limit": FailureScenario.LLM_ERROR,
        "context_too_long": FailureScenario.CONTEXT_OVERFLOW,
        "programming_error": FailureScenario.TOOL_EXECUTION_ERROR,
    }
)
# A number is a status only after such a word: "4012 rows" does not mean HTTP 401.
_STATUS = r"(?:^|\b(?:http|status|code|error)\b\W{0,3}(?:code\W{0,3})?)(?:%s)\b"
_BY_TEXT: tuple[tuple[str, FailureScenario], ...] = (
    (r"\btime[d]?[ -]?out\b", FailureScenario.LLM_TIMEOUT),
    (r"\brate[ _-]?limit|too many requests|" + _STATUS % "429", FailureScenario.LLM_ERROR),
    (
        r"context[_ ]length|token limit|maximum context|too many tokens|context window",
        FailureScenario.CONTEXT_OVERFLOW,
    ),
    (
        r"\bcorrupt|\bmalformed\b|\b(?:invalid|bad|not|not valid) json\b",
        FailureScenario.MEMORY_CORRUPTION,
    ),
    (
        r"connection (?:refused|reset)|service unavailable|bad gateway|\bunauthorized\b"
        r"|\bauthentication\b|" + _STATUS % "401|502|503",
        FailureScenario.PROVIDER_FAILURE,
    ),
    (r"\btool\b.*\b(?:error|failed)\b", FailureScenario.TOOL_EXECUTION_ERROR),
    (
        r"\bdependen|\b(?:downstream|upstream|database|sqlite|disk)\b|external service|i/?o error"
        r"|file ?system|no space left|read-only",
        FailureScenario.DEPENDENCY_TIMEOUT,
    ),
)


def classify_exception(error: BaseException) -> FailureScenario:
    """Classify an exception as a failure scenario for recovery.

    The types of the exception and its causes are checked first, then their messages.

    >>> classify_exception(RuntimeError("processed 4012 rows")).value
    'llm_error'
    >>> classify_exception(KeyError("speed")).value
    'tool_execution_error'
    """
    for cause in iter_causes(error):
        if (found := _classify_type(cause)) is not None:
            return found
    for cause in iter_causes(error):
        text = str(cause).lower()
        for pattern, scenario in _BY_TEXT:
            if re.search(pattern, text):
                return scenario
    return FailureScenario.LLM_ERROR


def classify_failure(failure: Failure) -> FailureScenario:
    """Classify a recorded failure as a failure scenario for recovery."""
    category: Any = failure.metadata.get("category")
    found = _BY_CATEGORY.get(category)
    if found is not None:
        return found
    text = failure.original_error.lower()
    named = (scenario for pattern, scenario in _BY_TEXT if re.search(pattern, text))
    plain = (
        FailureScenario.TOOL_EXECUTION_ERROR if failure.capability else FailureScenario.LLM_ERROR
    )
    return next(named, plain)


def _classify_type(error: BaseException) -> FailureScenario | None:
    if isinstance(error, json.JSONDecodeError):
        return FailureScenario.MEMORY_CORRUPTION
    if isinstance(error, ModelError) and error.__cause__ is None:
        return FailureScenario.LLM_ERROR
    found = _BY_CATEGORY.get(categorize(error))
    if found is None and isinstance(error, OSError):
        return FailureScenario.DEPENDENCY_TIMEOUT
    return found


def next_provider(available_providers: Sequence[str], current_provider: str) -> str | None:
    """Return the first available provider that differs from the current one, or ``None``.

    >>> next_provider(["a", "b", "c"], "a")
    'b'
    """
    if isinstance(available_providers, str):
        raise TypeError(
            f"available_providers is the string {available_providers!r}: it must be a list. Fix:"
            " pass a list of names."
        )
    return next((name for name in available_providers if name != current_provider), None)


def smaller_context_budget(current_chars: int, reduction: float = 0.75) -> int:
    """Return the reduced number of context characters to keep for the next attempt.

    Raises:
        ValueError: The number of characters is negative, or the factor is not between 0 and 1.

    >>> smaller_context_budget(1000)
    750
    """
    if current_chars < 0 or not 0.0 <= reduction <= 1.0:
        raise ValueError(
            f"The reduction {reduction!r} of {current_chars!r} characters is invalid. Fix: pass"
            " a factor between 0 and 1, and 0 or more characters."
        )
    return int(current_chars * reduction)
