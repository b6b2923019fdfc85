"""Quality gates: required quality levels of results, and reactions to a lower level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, get_args

from pydantic import BaseModel

from capgraph.base.errors import CapgraphError, ErrorSeverity, PolicyError
from capgraph.base.plan import ExecutionPlan
from capgraph.base.ports import GateResult, TurnSnapshot, Verdict
from capgraph.helpers.async_calls import maybe_await

Below = Literal["retry", "replan", "ask", "fail"]
_SEVERITY = {
    "retry": ErrorSeverity.RETRIABLE,
    "replan": ErrorSeverity.REPLANNING,
    "fail": ErrorSeverity.CRITICAL,
}


class QualityGateError(PolicyError):
    """Raised if a result is below the required quality level.

    The ``below`` option of the quality gate determines the severity.
    """

    code = "CG-QUALITY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class QualityLevel(IntEnum):
    """Quality level of a result, from lowest to highest.

    >>> QualityLevel.STRICT >= QualityLevel.STANDARD, QualityLevel.STRICT.label
    (True, 'Strict')
    """

    MINIMAL = 1
    STANDARD = 2
    STRICT = 3
    RELEASE = 4

    @property
    def label(self) -> str:
        """Name of the level in title case."""
        return self.name.title()

    @classmethod
    def of(cls, value: Any) -> QualityLevel:
        """Convert a level number to a ``QualityLevel``. A ``QualityLevel`` is returned unchanged.

        Raises:
            ValueError: The value is neither.
        """
        if type(value) not in (int, cls):
            raise ValueError(f"{value!r} is not a quality level. Fix: pass a QualityLevel.")
        return cls(value)


@dataclass(frozen=True, slots=True)
class QualityGateOutcome:
    """Result of comparing an observed quality level with the required level.

    Attributes:
        satisfied: True if the observed level is high enough.
        required_level: Required level.
        observed_level: Observed level. ``None`` if no level could be determined.
    """

    satisfied: bool
    required_level: QualityLevel
    observed_level: QualityLevel | None

    def is_satisfied(self) -> bool:
        """Return True if the observed quality level reaches the required level."""
        return self.satisfied

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "satisfied": self.satisfied,
            "required_level": self.required_level.name,
            "observed_level": self.observed_level.name if self.observed_level else None,
        }


@dataclass(frozen=True, slots=True)
class QualityGate:
    """Quality gate that requires a quality level.

    As ``gate`` of a capability, it checks each result. As one of a graph's ``policies``, it checks
    each plan. As ``answer_gate`` of a graph, it checks the answer.

    Attributes:
        required_level: Minimum quality level.
        check: Function, sync or async, that returns the ``QualityLevel`` of a result, or ``None``
            for a useless result. It may call a judge model. A failed assertion counts as ``None``.
            Alternatively, a pydantic model that the result must match.
        below: Reaction to a lower level: ``retry`` (plans and answers are generated again),
            ``replan``, ``ask`` (request a person's approval), or ``fail``.

    Raises:
        ValueError: The level or ``below`` is invalid.

    >>> gate = QualityGate(QualityLevel.STANDARD)
    >>> gate.evaluate(QualityLevel.STRICT).satisfied, gate.evaluate(None).satisfied
    (True, False)
    """

    required_level: QualityLevel
    check: Callable[[Any], Any] | type[BaseModel] | None = None
    below: Below = "fail"

    def __post_init__(self) -> None:
        object.__setattr__(self, "required_level", QualityLevel.of(self.required_level))
        if self.below not in get_args(Below):
            raise ValueError(
                f"below is {self.below!r}, which is not supported. Fix: use one of {', '.join(get_args(Below))}."
            )

    def evaluate(self, observed: QualityLevel | int | None) -> QualityGateOutcome:
        """Compare an observed quality level with the required level.

        An observed level of ``None`` never satisfies the gate.
        """
        level = None if observed is None else QualityLevel.of(observed)
        satisfied = level is not None and level >= self.required_level
        return QualityGateOutcome(satisfied, self.required_level, level)

    def is_satisfied_by(self, observed: QualityLevel | int | None) -> bool:
        """Return True if an observed quality level reaches the required level."""
        return self.evaluate(observed).satisfied

    async def evaluate_result(self, result: Any, subject: str) -> GateResult:
        """Check the quality of a step's result; see :class:`capgraph.base.ports.ResultGate`.

        Raises:
            QualityGateError: The result is below the required level, or the check itself failed.
        """
        fault = ""
        try:
            outcome = self.evaluate(await self._observe(result))
        except AssertionError as exc:
            outcome, fault = self.evaluate(None), f" ({exc})" if str(exc) else ""
        except CapgraphError:
            raise
        except Exception as exc:
            # A result that cannot be checked must not pass.
            raise QualityGateError(
                f"The quality check of {subject} failed: {type(exc).__name__}: {exc}.",
                fix="Correct the function passed as 'check'.",
            ) from exc
        if outcome.satisfied:
            return GateResult(outcome.observed_level)
        observed_label = outcome.observed_level.label if outcome.observed_level else "not rated"
        message = f"The gate on {subject} requires {self.required_level.label}, but the result is {observed_label}{fault}."
        if self.below == "ask":
            return GateResult(outcome.observed_level, message)
        raise QualityGateError(
            message,
            fix="Improve the result, or lower the required level.",
            severity=_SEVERITY[self.below],
        )

    async def review(self, plan: ExecutionPlan, view: TurnSnapshot) -> Verdict:
        """Check the quality of a plan before the plan is accepted for execution.

        Raises:
            QualityGateError: The plan is below the required level.
        """
        try:
            seen = await self.evaluate_result(plan, "the plan")
        except QualityGateError as exc:
            if exc.severity is ErrorSeverity.RETRIABLE:  # retrying a plan means planning again
                exc.severity = ErrorSeverity.REPLANNING
            raise
        return Verdict("ask", [seen.approval_reason]) if seen.approval_reason else Verdict("allow")

    async def _observe(self, result: Any) -> Any:
        if self.check is None:
            raise ValueError("the gate has no check")
        if isinstance(self.check, type) and issubclass(self.check, BaseModel):
            plain = result.model_dump() if isinstance(result, BaseModel) else result
            try:
                self.check.model_validate(plain)
            except ValueError as exc:
                raise AssertionError(str(exc)) from exc
            return self.required_level
        return await maybe_await(self.check(result))  # type: ignore[call-arg]
