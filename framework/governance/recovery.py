"""Recovery: recipes for kinds of failures that run, and a report of what ran."""

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
from capgraph.base.ports import Failure, utc_now_text
from capgraph.configs.logger import get_logger
from capgraph.helpers.async_calls import maybe_await, run_sync

_KEPT_EVENTS = 1000


class FailureScenario(StrEnum):
    """Kinds of failures for which there is a recipe."""

    LLM_TIMEOUT = "llm_timeout"
    LLM_ERROR = "llm_error"
    TOOL_EXECUTION_ERROR = "tool_execution_error"
    CONTEXT_OVERFLOW = "context_overflow"
    DEPENDENCY_TIMEOUT = "dependency_timeout"
    MEMORY_CORRUPTION = "memory_corruption"
    PROVIDER_FAILURE = "provider_failure"


RecoveryScenario = FailureScenario


class RecoveryStep(StrEnum):
    """What can be done about a failure."""

    RETRY_WITH_BACKOFF = "retry_with_backoff"
    RETRY_WITH_SMALLER_CONTEXT = "retry_with_smaller_context"
    SWITCH_PROVIDER = "switch_provider"
    RESTART_AGENT = "restart_agent"
    CLEAR_MEMORY_CACHE = "clear_memory_cache"
    REDUCE_TOOL_SET = "reduce_tool_set"
    ESCALATE_TO_HUMAN = "escalate_to_human"


class EscalationPolicy(StrEnum):
    """What to do when nothing is left to try."""

    ALERT_HUMAN = "alert_human"
    LOG_AND_CONTINUE = "log_and_continue"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class RecoveryRecipe:
    """What is done about a kind of failure, in order.

    Attributes:
        scenario: The kind.
        steps: What is done.
        max_attempts: How often, until it has helped.
        escalation_policy: What to do then.
        step_retries: How often a step is tried; once where it is not named.

    Raises:
        ValueError: There is no step, or no attempt.
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
                f"The recipe for {self.scenario} has {len(self.steps)} steps, {self.max_attempts}"
                f" attempts and tries of {list(self.step_retries)}."
                " Fix: give steps, at least one attempt, and tries of these steps."
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
    """Return what is done about a kind of failure.

    >>> [step.value for step in recipe_for("llm_error").steps]
    ['retry_with_backoff', 'switch_provider']
    """
    return _RECIPES[FailureScenario(scenario)]


@dataclass(slots=True)
class RecoveryResult:
    """What an attempt at recovery did.

    Attributes:
        outcome: ``recovered`` when every step of the recipe ran and succeeded,
            ``partial_recovery`` when only some did, or the first one failed;
            ``escalation_required`` when nothing was there to run, or the attempts are used up.
        steps_taken: How many succeeded.
        recovered_steps: Which.
        remaining_steps: Those that failed, were not reached, or that nothing is there to run for.
        reason: Why it is not recovered.
    """

    outcome: Literal["recovered", "partial_recovery", "escalation_required"]
    steps_taken: int = 0
    recovered_steps: list[str] = field(default_factory=list)
    remaining_steps: list[str] = field(default_factory=list)
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """An attempt at recovery, for the record.

    Attributes:
        event_type: ``succeeded``, ``failed`` or ``escalated``.
        scenario: The kind of failure.
        recipe_steps: What was to be done.
        result: What was done.
        timestamp: When, as ISO text.
    """

    event_type: str
    scenario: str
    recipe_steps: list[str]
    result: dict[str, Any]
    timestamp: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class RecoveryContext:
    """What attempts at recovery can do, and how often they did it.

    Args:
        actions: What runs for a step of a recipe: a function of no arguments, also an async one. It
            has failed when it raises or returns ``False``.
        recipes: Recipes in place of those that come along.
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

    def attempt_count(self, scenario: FailureScenario | str) -> int:
        """Return how often recovery was attempted since it last succeeded."""
        return self._attempts.get(FailureScenario(scenario), 0)

    def recipe(self, scenario: FailureScenario | str) -> RecoveryRecipe:
        """Return what is done here about a kind of failure."""
        return self._recipes[FailureScenario(scenario)]

    @property
    def events(self) -> list[RecoveryEvent]:
        """The last attempts, oldest first."""
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
        if kind == "succeeded":
            with self._lock:
                self._attempts.pop(recipe.scenario, None)
        self._events.append(
            RecoveryEvent(
                kind or "escalated", recipe.scenario.value, steps, result.to_dict(), utc_now_text()
            )
        )
        return result


def attempt_recovery(scenario: FailureScenario | str, ctx: RecoveryContext) -> RecoveryResult:
    """Run the recipe for a kind of failure, from code that is not asynchronous.

    >>> ctx = RecoveryContext({"retry_with_backoff": lambda: True})
    >>> attempt_recovery("llm_timeout", ctx).outcome
    'recovered'
    >>> attempt_recovery("llm_timeout", RecoveryContext()).outcome
    'escalation_required'
    """
    work = _attempt(scenario, ctx, _blocking)
    try:
        work.send(None)  # it waits for nothing that does not block, so this is all of it
    except StopIteration as done:
        found: RecoveryResult = done.value
        return found
    raise RuntimeError("The recovery did not come to its end.")


async def aattempt_recovery(
    scenario: FailureScenario | str, ctx: RecoveryContext
) -> RecoveryResult:
    """Run the recipe for a kind of failure.

    Returns:
        What ran, and what did not.
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
        told = f"{recipe.max_attempts} attempts for {recipe.scenario} are used up"
        return ctx._end(recipe, RecoveryResult("escalation_required", 0, [], steps, told))
    ran = False
    done: list[str] = []
    reasons: list[str] = []
    for place, step in enumerate(recipe.steps):
        action = ctx.actions.get(step)
        if action is None:
            reasons.append(f"nothing is there to run for {step.value}")
            continue
        ran = True
        fault = await _tried(step, action, recipe.step_retries.get(step, 1), wait)
        if fault:
            # What comes after it was meant for when it had succeeded.
            reasons += [
                fault,
                *(f"{left.value} was not reached" for left in recipe.steps[place + 1 :]),
            ]
            break
        done.append(step.value)
    left = [name for name in steps if name not in done]
    outcome: Any = "partial_recovery" if ran else "escalation_required"
    outcome = "recovered" if not left else outcome
    return ctx._end(recipe, RecoveryResult(outcome, len(done), done, left, "; ".join(reasons)))


async def _tried(
    step: RecoveryStep,
    action: Callable[[], Any],
    tries: int,
    wait: Callable[[Awaitable[Any]], Awaitable[Any]],
) -> str:
    fault = f"{step.value} may not be tried"
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


async def _blocking(found: Awaitable[Any]) -> Any:
    """Wait without ever suspending."""
    return run_sync(maybe_await(found))


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
# A number is a status only where the text says so: 4012 rows are no failed login.
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
    """Say which kind of failure an exception is: by types along its chain, then by what it says.

    >>> classify_exception(RuntimeError("processed 4012 rows")).value
    'llm_error'
    >>> classify_exception(KeyError("speed")).value
    'tool_execution_error'
    """
    for cause in iter_causes(error):
        if (found := _by_type(cause)) is not None:
            return found
    for cause in iter_causes(error):
        text = str(cause).lower()
        for pattern, scenario in _BY_TEXT:
            if re.search(pattern, text):
                return scenario
    return FailureScenario.LLM_ERROR


def classify_failure(failure: Failure) -> FailureScenario:
    """Say which kind a failure is that was read before."""
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


def _by_type(error: BaseException) -> FailureScenario | None:
    if isinstance(error, json.JSONDecodeError):
        return FailureScenario.MEMORY_CORRUPTION
    if isinstance(error, ModelError) and error.__cause__ is None:
        return FailureScenario.LLM_ERROR
    found = _BY_CATEGORY.get(categorize(error))
    if found is None and isinstance(error, OSError):
        return FailureScenario.DEPENDENCY_TIMEOUT
    return found


def next_provider(available_providers: Sequence[str], current_provider: str) -> str | None:
    """Return the first provider that is another one, or ``None``.

    >>> next_provider(["a", "b", "c"], "a")
    'b'
    """
    if isinstance(available_providers, str):
        raise TypeError(f"{available_providers!r} is one text. Fix: give a list of names.")
    return next((name for name in available_providers if name != current_provider), None)


def smaller_context_budget(current_chars: int, reduction: float = 0.75) -> int:
    """Return how many characters of a context are kept at the next try.

    Raises:
        ValueError: There is less than nothing, or more would be kept than there is.

    >>> smaller_context_budget(1000)
    750
    """
    if current_chars < 0 or not 0.0 <= reduction <= 1.0:
        raise ValueError(
            f"{reduction!r} of {current_chars!r} characters cannot be kept."
            " Fix: give a part between 0 and 1 of 0 or more."
        )
    return int(current_chars * reduction)
