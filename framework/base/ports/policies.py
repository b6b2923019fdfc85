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
    """Decision of a policy on a plan or a step, with reasons.

    Attributes:
        decision: ``allow``, ``deny``, or ``ask`` (require approval).
        problems: Reasons for the decision as sentences, which the approver and the planner
            read.

    Raises:
        ValueError: ``decision`` is not a valid value, or ``problems`` is a string.

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
    """Level of access that a caller has or that a capability requires.

    Higher levels include all lower levels.

    >>> PermissionMode.READ_ONLY < PermissionMode.of("workspace_write") < PermissionMode.FULL_ACCESS
    True
    """

    READ_ONLY = 1
    WORKSPACE_WRITE = 2
    FULL_ACCESS = 3

    @classmethod
    def of(cls, value: Any) -> PermissionMode:
        """Convert a permission mode, its name, or its number to a permission mode.

        Raises:
            ValueError: The value does not match any permission mode.
        """
        name = value.strip().upper() if isinstance(value, str) else None
        for mode in cls:
            if mode.name == name or (type(value) in (int, cls) and mode == value):
                return mode
        names = ", ".join(mode.name for mode in cls)
        raise ValueError(f"{value!r} is not a permission mode. Fix: use one of {names}.")


class GateResult(NamedTuple):
    """Evaluation of a step result that a quality gate accepts.

    Attributes:
        level: Quality level. Higher values are better.
        approval_reason: Reason why the result requires approval, or an empty string.
    """

    level: int | None = None
    approval_reason: str = ""


class ResultGate(Protocol):
    """Gate that checks the quality of a result, such as ``capgraph.governance.QualityGate``."""

    async def evaluate_result(self, result: Any, subject: str) -> GateResult:
        """Evaluate the quality of a result.

        Args:
            result: Result of the step.
            subject: Name of the step or answer, for error messages.

        Raises:
            CapgraphError: The quality is too low. The severity of the error determines how the turn
                continues.
        """


class TurnSnapshot(Protocol):
    """Read-only view of the current turn, as passed to policies.

    ``capgraph.state.TurnView`` implements this protocol.
    """

    @property
    def task(self) -> str:
        """The task of the turn."""

    @property
    def plan(self) -> ExecutionPlan:
        """The current plan."""

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """State entries for the results of finished steps, by context key."""

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Stored context data of the turn, by context type and context key."""

    @property
    def thread_id(self) -> str | None:
        """ID of the thread."""

    @property
    def caller(self) -> Caller:
        """The caller of the turn."""

    @property
    def callers(self) -> Sequence[Caller]:
        """Caller with the role at the start of the turn, and caller with the current role.

        A step is permitted only if both roles permit the step.
        """


class PlanPolicy(Protocol):
    """Policy that reviews each plan before the plan is accepted."""

    async def review(self, plan: ExecutionPlan, view: TurnSnapshot) -> Verdict:
        """Review an execution plan and allow it, deny it, or require approval."""


class StepPolicy(Protocol):
    """Policy that allows or denies individual steps.

    Each step is evaluated when the plan is accepted, and again before the step starts.

    A policy with the attribute ``decides_by_name = True`` considers only the caller and the
    capability's name. It is evaluated before guardrails, hooks, and parameter validation.
    """

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Decide whether a step is allowed, denied, or requires approval."""


class FlowPolicy(Protocol):
    """Information-flow policy that tracks data labels.

    The policy decides which steps may receive labeled data.
    """

    def labels_for_step(
        self, spec: Any, step: PlannedStep, view: Any, *, include_plan_text: bool = True
    ) -> Mapping[str, str]:
        """Return the data labels of a step's input data, each with its source.

        Args:
            spec: ``CapabilitySpec`` of the step's capability.
            step: Planned step.
            view: ``TurnView`` of the current turn.
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
        """Return the data labels of a stored context, each with its source.

        Args:
            kind: Name of the context type.
            key: Context key of the stored data.
            view: ``TurnView`` of the current turn.
        """

    def label_record(
        self, record: StepRecord, spec: Any, labels: Mapping[str, str], view: Any
    ) -> StepRecord:
        """Return a copy of a step record with the data labels of the step's outputs.

        Args:
            record: Outcome of the step.
            spec: ``CapabilitySpec`` of the step's capability.
            labels: Labels of the step's inputs, each with its source.
            view: ``TurnView`` of the current turn.
        """
