"""Quality gates: how good a result has to be, and what happens when it is not."""

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
    """A result is not as good as its gate asks for; the severity is that of ``below``."""

    code = "CG-QUALITY"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class QualityLevel(IntEnum):
    """How good something is; more is stricter.

    >>> QualityLevel.STRICT >= QualityLevel.STANDARD, QualityLevel.STRICT.label
    (True, 'Strict')
    """

    MINIMAL = 1
    STANDARD = 2
    STRICT = 3
    RELEASE = 4

    @property
    def label(self) -> str:
        """The name as a word."""
        return self.name.title()

    @classmethod
    def of(cls, value: Any) -> QualityLevel:
        """Return the level that is given as itself or by its number.

        Raises:
            ValueError: It is neither.
        """
        if type(value) not in (int, cls):
            raise ValueError(f"{value!r} is no quality level. Fix: give a QualityLevel.")
        return cls(value)


@dataclass(frozen=True, slots=True)
class QualityGateOutcome:
    """What a gate says about an observed level.

    Attributes:
        satisfied: Whether it is enough.
        required_level: What is asked for.
        observed_level: What there is; ``None`` for nothing that could be judged.
    """

    satisfied: bool
    required_level: QualityLevel
    observed_level: QualityLevel | None

    def is_satisfied(self) -> bool:
        """Tell whether it is enough."""
        return self.satisfied

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "satisfied": self.satisfied,
            "required_level": self.required_level.name,
            "observed_level": self.observed_level.name if self.observed_level else None,
        }


@dataclass(frozen=True, slots=True)
class QualityGate:
    """Asks for a level of quality.

    As ``gate`` of a capability it stands on each result; among ``policies`` of a graph on each plan;
    as ``answer_gate`` of a graph on the answer.

    Attributes:
        required_level: The least level that is enough.
        check: Gives the level of a result: a function (also an async one, such as a model that
            judges) that returns a ``QualityLevel``, or ``None`` for nothing that is good at all; what
            it asserts in vain counts as that. Or a pydantic model that the result has to fit.
        below: What happens below the level: ``retry`` (a plan, or an answer, is written again),
            ``replan``, ``approval_reason`` a person, or ``fail``.

    Raises:
        ValueError: The level or ``below`` makes no sense.

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
            raise ValueError(f"below={self.below!r}. Fix: use one of {', '.join(get_args(Below))}.")

    def evaluate(self, observed: QualityLevel | int | None) -> QualityGateOutcome:
        """Hold an observed level against what is asked for; nothing observed is not enough."""
        level = None if observed is None else QualityLevel.of(observed)
        satisfied = level is not None and level >= self.required_level
        return QualityGateOutcome(satisfied, self.required_level, level)

    def is_satisfied_by(self, observed: QualityLevel | int | None) -> bool:
        """Tell whether an observed level is enough."""
        return self.evaluate(observed).satisfied

    async def evaluate_result(self, result: Any, subject: str) -> GateResult:
        """Let a result pass; see :class:`capgraph.base.ports.ResultGate`.

        Raises:
            QualityGateError: It is not good enough, or the check itself failed.
        """
        fault = ""
        try:
            outcome = self.evaluate(await self._observed(result))
        except AssertionError as exc:
            outcome, fault = self.evaluate(None), f" ({exc})" if str(exc) else ""
        except CapgraphError:
            raise
        except Exception as exc:
            # Nobody knows how good it is: what cannot be judged does not pass.
            raise QualityGateError(
                f"The check of {subject} failed: {type(exc).__name__}: {exc}.",
                fix="Mend the check.",
            ) from exc
        if outcome.satisfied:
            return GateResult(outcome.observed_level)
        seen = outcome.observed_level.label if outcome.observed_level else "nothing"
        told = f"The gate on {subject} asks for {self.required_level.label} and observed {seen}{fault}."
        if self.below == "ask":
            return GateResult(outcome.observed_level, told)
        raise QualityGateError(
            told, fix="Give a better result, or lower the gate.", severity=_SEVERITY[self.below]
        )

    async def review(self, plan: ExecutionPlan, view: TurnSnapshot) -> Verdict:
        """Look at a plan before it is accepted, as a policy does.

        Raises:
            QualityGateError: It is not good enough.
        """
        try:
            seen = await self.evaluate_result(plan, "the plan")
        except QualityGateError as exc:
            if exc.severity is ErrorSeverity.RETRIABLE:  # to try a plan again is to plan again
                exc.severity = ErrorSeverity.REPLANNING
            raise
        return Verdict("ask", [seen.approval_reason]) if seen.approval_reason else Verdict("allow")

    async def _observed(self, result: Any) -> Any:
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
