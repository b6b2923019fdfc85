"""Values that describe the execution of one step: the request, its outcome, and its failure.

They are plain data. A step may therefore be requested in one process and run in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from capgraph.base.error_classification import ErrorClassification
from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import PlannedStep
from capgraph.helpers.clock import utc_now_text

STAGES = (
    "observe",
    "validate",
    "authorize",
    "retry",
    "finalize",
    "acquire",
    "idempotency",
    "timeout",
    "call",
)
"""Stages of an attempt, outermost first."""


Source = Literal["run", "ledger", "cache", "fallback", "record"]
"""Origin of a step's result."""


class ShortCircuit(NamedTuple):
    """Result that the ``finalize`` stage uses instead of calling the inner stages.

    Attributes:
        value: Result in any form that the capability may return.
        source: Origin of the result, which is stored in the step's record.
        is_emitted: True if the event for the end of the step has already been emitted.
    """

    value: Any
    source: Source
    is_emitted: bool = False


class ForEachElement(NamedTuple):
    """List element that is processed by one copy of a ``for_each`` step.

    Attributes:
        name: Name under which the step refers to the element.
        value: Value of the element as plain data.
        number: Zero-based index of the element.
        of: Total number of elements in the list.
    """

    name: str
    value: Any
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """Request to run a step, or to call a chat model, once.

    Attributes:
        capability: Name of the capability. For a model call, the role of the model.
        step: The planned step.
        key: Context key of the step.
        index: Index of the step in the plan, from 0.
        total: Number of steps in the plan.
        number: Number of this attempt, from 1.
        objective: Objective of the step.
        inputs: Validated inputs by context type, set by ``validate``. For a model call, ``model``
            and ``messages``.
        parameters: Validated parameters, set by ``validate``: a model instance, or a dictionary if
            the capability declares no model.
        values: The parameters as plain data, with defaults. Approval requests show and hash them.
        idempotency_key: Key of the effect. All attempts and all plans of a turn share it.
        kind: ``step`` or ``model``.
        short_circuit: Result to use instead of calling the capability. Middleware outside
            ``finalize`` sets it.
        approval_reasons: Reasons why the attempt needs approval. Added in the stage ``validate``.
        element: List element for which this copy of the step runs. None if the step has no
            ``for_each``.
    """

    capability: str
    step: PlannedStep = field(default_factory=PlannedStep)
    key: str = ""
    index: int = 0
    total: int = 0
    number: int = 1
    objective: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str = ""
    kind: Literal["step", "model"] = "step"
    short_circuit: ShortCircuit | None = None
    approval_reasons: tuple[str, ...] = ()
    element: ForEachElement | None = None

    @property
    def element_values(self) -> dict[str, Any]:
        """Current list element of a ``for_each`` step, as a dictionary with the element's name.

        The dictionary is empty for other steps.
        """
        return {} if self.element is None else {self.element.name: self.element.value}

    @property
    def is_replayed(self) -> bool:
        """True if the result was replayed from the recording of an earlier run."""
        return self.short_circuit is not None and self.short_circuit.source == "record"

    def event_fields(self) -> dict[str, Any]:
        """Return the fields that are common to all events of this attempt."""
        element = self.element
        return {
            **({"element": element.number, "elements": element.of} if element is not None else {}),
            "context_key": self.key,
            "capability": self.capability,
            "step": self.index + 1,
            "total_steps": self.total,
            "attempt": self.number,
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a step or a node, with its classification.

    Attributes:
        severity: Severity, which determines how the turn continues.
        message: Message for the user, with secrets masked.
        original_error: Type and text of the exception, with secrets masked.
        metadata: Details for developers and for the next planning prompt.
        capability: Name of the failed capability. None for a node.
        node: Name of the failed node. None for a step.
        key: Context key of the step.
        retry_policy: Retry policy of the capability or node.
        execution_time: Seconds until the failure.
        timestamp: Time of the failure, in ISO format.
        attempts: Number of attempts so far.
        final: True if no attempt is left. False if the failure of another step ended the retries.
        unclassified: True if the severity is the default because nothing classified the exception.
    """

    severity: ErrorSeverity
    message: str
    original_error: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    capability: str | None = None
    node: str | None = None
    key: str | None = None
    retry_policy: Mapping[str, Any] = field(default_factory=dict)
    execution_time: float = 0.0
    timestamp: str = field(default_factory=utc_now_text)
    attempts: int = 1
    final: bool = True
    unclassified: bool = False

    @property
    def classification(self) -> ErrorClassification:
        """Severity, message, and metadata as an ``ErrorClassification``."""
        return ErrorClassification(self.severity, self.message, dict(self.metadata))

    def to_state(self) -> dict[str, Any]:
        """Convert the failure to plain data for the graph state."""
        origin = {
            "capability_name": self.capability,
            "node_name": self.node,
            "context_key": self.key,
        }
        return {
            **{name: value for name, value in origin.items() if value is not None},
            "classification": self.classification.to_dict(),
            "retry_policy": dict(self.retry_policy),
            "original_error": self.original_error or self.message,
            "user_message": self.message,
            "execution_time": self.execution_time,
            "timestamp": self.timestamp,
            "attempts": self.attempts,
            "final": self.final,
        }

    @classmethod
    def from_state(cls, info: Mapping[str, Any]) -> Failure:
        """Create a failure from the output of :meth:`to_state`.

        An invalid severity is replaced with CRITICAL.
        """
        classification = info.get("classification") or {}
        try:
            severity = ErrorSeverity(classification.get("severity"))
        except ValueError:
            severity = ErrorSeverity.CRITICAL
        return cls(
            severity=severity,
            message=str(info.get("user_message") or info.get("original_error") or ""),
            original_error=str(info.get("original_error") or ""),
            metadata=classification.get("metadata") or {},
            capability=info.get("capability_name"),
            node=info.get("node_name"),
            key=info.get("context_key"),
            retry_policy=info.get("retry_policy") or {},
            execution_time=float(info.get("execution_time") or 0.0),
            timestamp=str(info.get("timestamp") or ""),
            attempts=int(info.get("attempts") or 1),
            final=info.get("final") is True,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Outcome of a step.

    Attributes:
        key: Context key of the step.
        capability: Name of the capability.
        index: Index of the step in the plan, from 0.
        objective: Objective of the step.
        success: True if the step succeeded.
        contexts: Outputs as plain data, by context type and context key.
        updates: Other state keys that the capability returned.
        plan: Plan that the step proposes. It is checked before any of its steps runs.
        error: The failure. None for a success.
        skipped: Reason why the step was skipped and will not run. None if it was not skipped.
        not_needed: True if the step was skipped because its ``when`` condition is false.
        observed: True if the planner reviews the failure and the turn continues.
        attempts: Number of the last attempt.
        execution_time: Seconds of the last attempt.
        timestamp: Time at which the step ended, in ISO format.
        source: ``run``; ``ledger`` for the recorded result of the same effect; ``cache``;
            ``fallback``; ``record`` in a replay.
        effect: Key of the effect record.
        values: Validated parameters, as plain data.
        labels: Labels of the outputs: context type to label to source. The labels of its texts,
            such as an error message, are under ``""``.
        quality: Quality level from the gate. None without a gate.
        approval_reasons: Reasons why the result needs approval before it is used. Added in the
            stage ``finalize``.
        elements: Number of list elements. None if the step has no ``for_each``.
        missing: Keys of the ``for_each`` copies without a result.
    """

    key: str
    capability: str
    index: int = 0
    objective: str = ""
    success: bool = False
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    plan: Any = None
    error: Failure | None = None
    skipped: str | None = None
    not_needed: bool = False
    observed: bool = False
    attempts: int = 1
    execution_time: float = 0.0
    timestamp: str = field(default_factory=utc_now_text)
    source: Source = "run"
    effect: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    quality: int | None = None
    approval_reasons: tuple[str, ...] = ()
    elements: int | None = None
    missing: tuple[str, ...] = ()

    @classmethod
    def from_attempt(cls, attempt: Attempt, **fields: Any) -> StepRecord:
        """Create a step record from an attempt.

        Args:
            attempt: Attempt that provides the key, capability, index, and objective of the step.
            **fields: Values for all other fields of the record.

        >>> attempt = Attempt("read", {}, "level")
        >>> StepRecord.from_attempt(attempt, skipped="not needed").key
        'level'
        """
        return cls(attempt.key, attempt.capability, attempt.index, attempt.objective, **fields)

    @property
    def outputs(self) -> dict[str, str]:
        """Context keys of the step's outputs, by context type."""
        return {kind: next(iter(entries)) for kind, entries in self.contexts.items()}

    def to_state_entry(self) -> dict[str, Any]:
        """Convert the step record to an ``execution_step_results`` entry for the graph state."""
        entry: dict[str, Any] = {
            "step_index": self.index,
            "capability": self.capability,
            "task_objective": self.objective,
            "success": self.success,
            "execution_time": self.execution_time,
            "timestamp": self.timestamp,
            "attempts": self.attempts,
        }
        if self.success:
            entry["outputs"] = self.outputs
        if self.effect is not None:
            entry["effect"] = self.effect
        if self.quality is not None:
            entry["quality"] = self.quality
        if self.elements is not None:
            entry |= {"elements": self.elements, "missing": list(self.missing)}
        if self.source != "run":
            entry["source"] = self.source
        if self.skipped is not None:
            entry |= {"skipped": True, "not_needed" if self.not_needed else "error": self.skipped}
            # The next plan drops the step, so the record contains its parameters.
            entry |= {"observed": True, "parameters": dict(self.values)} if self.observed else {}
        if self.error is not None:
            entry |= {"error": self.error.message, "severity": self.error.severity.value}
        return entry


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Request for a person's decision, for which a step waits.

    Attributes:
        kind: ``step`` (approve the step), ``result`` (approve its result), ``unknown_outcome``,
            ``acted_before``, or ``missing_capability``.
        capability: Name of the capability.
        reason: Reason for the request.
        digest: Digest of the shown data. An approval is valid only for this digest.
        shown: Further data to show in full: the parameters and the values of the inputs.
        run: Number of the effect's run.
        effect: Key of the effect record.
        idempotency_key: Key that identifies the effect in the external system.
        approvals: State of a request whose approvers or lifetime are restricted: ``needed`` (number
            of approvers), ``agreed`` (their user IDs), ``not_requester``, ``refused`` (why the last
            decision does not count), and ``until`` (expiry time).
    """

    kind: str
    capability: str
    reason: str = ""
    digest: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0
    effect: str = ""
    idempotency_key: str = ""
    approvals: Mapping[str, Any] = field(default_factory=dict)

    def to_state(self) -> dict[str, Any]:
        """Convert the approval request to plain data, omitting empty fields."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value}
