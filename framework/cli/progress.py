"""What a run has come to, built up from its events. Pure: no clock, no output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from framework import telemetry as told
from framework.planning import CLOSING

State = Literal["pending", "running", "retrying", "done", "failed", "skipped", "waiting"]


@dataclass(slots=True)
class Step:
    """One step of the plan in force.

    Attributes:
        key: Its context key.
        capability: What runs.
        needs: Context keys that it reads.
        state: How far it is.
        started: Seconds since the epoch at which its last attempt began.
        seconds: How long its last attempt took.
        attempt: Number of its last attempt.
        note: What it says at the moment, or why it failed.
    """

    key: str
    capability: str
    needs: tuple[str, ...] = ()
    state: State = "pending"
    started: float | None = None
    seconds: float | None = None
    attempt: int = 1
    note: str = ""


@dataclass(slots=True)
class Span:
    """Something that took time, for the picture of a run.

    Attributes:
        label: What it was.
        start: Seconds since the epoch.
        end: The same; ``None`` while it runs.
        kind: ``framework``, or the state of the step's attempt.
        detail: More about it.
    """

    label: str
    start: float
    end: float | None
    kind: str
    detail: str = ""


@dataclass(slots=True)
class Progress:
    """The run as its events tell it.

    Attributes:
        phase: What the framework is doing at the moment.
        selected: The chosen capabilities.
        version: Version of the plan in force; 0 before there is one.
        steps: The steps of the plan in force, in its order.
        answer: The answer so far.
        spans: What took time.
        tokens: Tokens sent to and received from models, and the number of calls.
        outcome: How the turn ended, once it did.
    """

    phase: str = ""
    selected: list[str] = field(default_factory=list)
    version: int = 0
    steps: list[Step] = field(default_factory=list)
    answer: str = ""
    spans: list[Span] = field(default_factory=list)
    tokens: tuple[int, int, int] = (0, 0, 0)
    outcome: Mapping[str, Any] | None = None

    @classmethod
    def of_state(cls, values: Mapping[str, Any]) -> Progress:
        """Return what a stored thread tells about its turn, to go on from there."""
        progress = cls(selected=list(values.get("planning_active_capabilities") or []))
        plan = values.get("planning_execution_plan")
        if plan:
            progress.version = (plan.get("stamp") or {}).get("version", 1)
            progress.steps = steps_of_plan(plan)
        waiting = values.get("execution_pending_approvals") or {}
        for step in progress.steps:
            record = (values.get("execution_step_results") or {}).get(step.key)
            if record:
                step.state = "done" if record.get("success") else "failed"
                step.state = "skipped" if record.get("skipped") else step.state
                step.seconds = record.get("execution_time")
                step.note = record.get("error") or ""
            elif step.key in waiting:
                step.state = "waiting"
        return progress

    def apply(self, event: told.Event) -> None:
        """Take in the next event."""
        at = _seconds(event.timestamp)
        match event:
            case told.Status():
                self._phase(event, at)
            case told.StepStarted() | told.StepProgress() | told.StepFinished() | told.StepFailed():
                self._step(event, at)
            case told.Retry() | told.ApprovalAsked():
                self._pause(event, at)
            case told.AnswerToken():
                self.answer += event.text
            case told.Usage():
                calls, sent, received = self.tokens
                sent, received = sent + event.input_tokens, received + event.output_tokens
                self.tokens = (calls + 1, sent, received)
            case told.TurnFinished():
                self._close_framework(at)
                self.outcome = event.outcome
            case _:
                self._decision(event)

    def _decision(self, event: told.Event) -> None:
        match event:
            case told.CapabilitiesSelected():
                self.selected = list(event.capabilities)
            case told.PlanMade():
                self._plan(event)
            case told.Replan() | told.Reclassify():
                self.phase = "Planning again"
            case _:
                pass

    def _pause(self, event: told.Retry | told.ApprovalAsked, at: float) -> None:
        self._close_framework(at)
        if isinstance(event, told.Retry):
            step = self.step(event.context_key)
            if step is not None:
                step.state, step.note = "retrying", retry_text(event)
            return
        for asked in event.steps:
            step = self.step(asked.get("context_key"))
            if step is not None:
                step.state = "waiting"

    def settle(self, status: str) -> None:
        """Leave nothing that looks as if it still ran, once the turn stands still."""
        for step in self.steps:
            if step.state in {"running", "retrying"}:
                step.state = "pending"
                step.note = "interrupted" if status in {"cancelled", "drained"} else step.note

    def step(self, key: str | None) -> Step | None:
        """Return the step of the plan in force that has a key."""
        return next((step for step in self.steps if step.key == key), None)

    def _phase(self, event: told.Status, at: float) -> None:
        if getattr(event, "source", None) != "framework" or not event.message:
            return
        self._close_framework(at)
        self.phase = event.message
        self.spans.append(Span(event.component, at, None, "framework", event.message))

    def _close_framework(self, at: float) -> None:
        for span in self.spans:
            if span.end is None and span.kind == "framework":
                span.end = at

    def _plan(self, event: told.PlanMade) -> None:
        before = {step.key: step for step in self.steps}
        self.version = event.version
        self.steps = steps_of_plan(event.plan)
        for step in self.steps:
            earlier = before.get(step.key)
            if earlier is not None and earlier.state == "done" and _same(earlier, step):
                step.state, step.seconds, step.note = "done", earlier.seconds, "kept"

    def _step(
        self,
        event: told.StepStarted | told.StepProgress | told.StepFinished | told.StepFailed,
        at: float,
    ) -> None:
        self._close_framework(at)
        step = self.step(event.context_key)
        if step is None:  # an event of a step that the plan does not name: show it all the same
            step = Step(event.context_key, event.capability)
            self.steps.append(step)
        step.attempt = event.attempt
        match event:
            case told.StepStarted():
                step.state, step.started, step.seconds, step.note = "running", at, None, ""
                self.spans.append(Span(step.key, at, None, "running", step.capability))
            case told.StepProgress():
                percent = "" if event.progress is None else f" ({event.progress:.0%})"
                step.note = f"{event.message}{percent}"
            case told.StepFinished():
                self._close(step, "done", at, event.duration)
            case _:
                self._close(step, "failed", at, event.duration)
                step.note = event.message

    def _close(self, step: Step, state: Literal["done", "failed"], at: float, took: float) -> None:
        step.state, step.seconds, step.note = state, took, ""
        for span in reversed(self.spans):
            if span.label == step.key and span.end is None:
                span.end, span.kind = at, state
                return


def steps_of_plan(plan: Mapping[str, Any]) -> list[Step]:
    """Return the steps that a plan names, but for the one that only answers.

    >>> steps_of_plan({"steps": [{"context_key": "a", "capability": "look"}]})[0].key
    'a'
    """
    return [
        Step(
            key=str(step.get("context_key") or index),
            capability=str(step.get("capability") or "?"),
            needs=tuple(key for entry in step.get("inputs") or [] for key in entry.values()),
        )
        for index, step in enumerate(plan.get("steps") or [])
        if step.get("capability") not in CLOSING
    ]


def retry_text(event: told.Retry) -> str:
    """Say when something is tried again, and why."""
    text = f"attempt {event.attempt} of {event.max_attempts} in {event.delay:.1f} s"
    return f"{text}: {event.message}" if event.message else text


def _same(one: Step, other: Step) -> bool:
    return one.capability == other.capability and one.needs == other.needs


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
