"""Protocols and results of policies, permissions, and quality gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.ports.callers import Caller
from capgraph.base.ports.steps import StepRecord


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a policy about a plan or a step.

    Attributes:
        decision: ``allow``, ``deny``, or ``ask`` (require approval).
        problems: Reasons, in sentences. The approver and the planner read them.

    Raises:
        ValueError: ``decision`` is none of the three, or ``problems`` is a string.

    >>> Verdict("deny", problems=["No payments on Sundays."]).decision
    'deny'
    """

    decision: Literal["allow", "deny", "ask"] = "allow"
    problems: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.decision not in ("allow", "deny", "ask"):
            raise ValueError(
                f"The decision {self.decision!r} is invalid. Fix: use 'allow', 'deny' or 'ask'."
            )
        if isinstance(self.problems, str):
            raise ValueError(
                f"problems is the string {self.problems!r:.80}, not a list."
                " Fix: write problems=[…]."
            )


class PermissionMode(IntEnum):
    """Level of access that a caller has or a capability requires. Higher levels include lower ones.

    >>> PermissionMode.READ_ONLY < PermissionMode.of("workspace_write") < PermissionMode.FULL_ACCESS
    True
    """

    READ_ONLY = 1
    WORKSPACE_WRITE = 2
    FULL_ACCESS = 3

    @classmethod
    def of(cls, value: Any) -> PermissionMode:
        """Return the mode for a member, a name, or a number.

        Raises:
            ValueError: The value does not match any mode.
        """
        name = value.strip().upper() if isinstance(value, str) else None
        for mode in cls:
            if mode.name == name or (type(value) in (int, cls) and mode == value):
                return mode
        names = ", ".join(mode.name for mode in cls)
        raise ValueError(f"{value!r} is not a permission mode. Fix: use one of {names}.")


class GateResult(NamedTuple):
    """Evaluation of a result that a gate accepts.

    Attributes:
        level: Quality level; higher is better.
        approval_reason: Reason why the result needs approval. Empty if it does not.
    """

    level: int | None = None
    approval_reason: str = ""


class ResultGate(Protocol):
    """Quality check of a result, such as ``capgraph.governance.QualityGate``."""

    async def evaluate_result(self, result: Any, subject: str) -> GateResult:
        """Evaluate a result.

        Args:
            result: Result of the step.
            subject: Name of the step or answer, for messages.

        Raises:
            CapgraphError: The quality is too low. The severity of the error decides how the turn
                continues.
        """


class TurnSnapshot(Protocol):
    """Read-only view of a turn that policies receive. ``capgraph.state.TurnView`` implements it."""

    @property
    def task(self) -> str:
        """The task of the turn."""

    @property
    def plan(self) -> ExecutionPlan:
        """The current plan."""

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """State entries of the finished steps, by context key."""

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Context data, by context type and context key."""

    @property
    def thread_id(self) -> str | None:
        """ID of the thread."""

    @property
    def caller(self) -> Caller:
        """The caller of the turn."""

    @property
    def callers(self) -> Sequence[Caller]:
        """The caller with the role at the start of the turn, and with the current role.

        A step is permitted only if both roles permit it.
        """


class PlanPolicy(Protocol):
    """Policy that reviews a plan before it is accepted."""

    async def review(self, plan: ExecutionPlan, view: TurnSnapshot) -> Verdict:
        """Allow a plan, deny it, or require approval."""


class StepPolicy(Protocol):
    """Policy that allows or denies a step when the plan is accepted and again before the step starts.

    A policy with the attribute ``decides_by_name = True`` reads only the caller and the capability's
    name. It is evaluated first, before guardrails and hooks run and parameters are validated.
    """

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Allow a step, deny it, or require approval."""


class FlowPolicy(Protocol):
    """Information-flow policy: tracks data labels and determines which steps may receive labeled data."""

    def labels_for_step(
        self, spec: Any, step: PlannedStep, view: Any, *, include_plan_text: bool = True
    ) -> Mapping[str, str]:
        """Return the labels of a step's input data.

        Args:
            spec: ``CapabilitySpec`` of the step's capability.
            step: Planned step.
            view: ``TurnView`` of the turn.
            include_plan_text: True to include the labels of the plan's own text.
        """

    def check(self, spec: Any, step: PlannedStep, labels: Mapping[str, str]) -> Verdict:
        """Decide whether a step may receive labeled data.

        Args:
            spec: ``CapabilitySpec`` of the step's capability.
            step: Planned step.
            labels: Labels of the data, each with its source.
        """

    def stored_labels(self, kind: str, key: str, view: Any) -> Mapping[str, str]:
        """Return the labels of a stored context, each with its source.

        Args:
            kind: Name of the context type.
            key: Context key.
            view: ``TurnView`` of the turn.
        """

    def label_record(
        self, record: StepRecord, spec: Any, labels: Mapping[str, str], view: Any
    ) -> StepRecord:
        """Return a copy of the record with the labels of the step's outputs.

        Args:
            record: Outcome of the step.
            spec: ``CapabilitySpec`` of the step's capability.
            labels: Labels of the step's inputs, each with its source.
            view: ``TurnView`` of the turn.
        """
