"""Typed, read-only view of a turn, so that other packages do not depend on the state keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key
from capgraph.base.ports import Attempt, Caller
from capgraph.configs.run_context import run_context

_ANONYMOUS = Caller()

RESUMED_KEY = "woken"
"""Field of ``runtime_info`` with the keys of resumed steps."""


STATE_KIND = "state/"
"""Prefix under which the labels of state keys are stored, among those of context types."""


class TurnView:
    """Read-only view of the current turn in the state of a graph.

    Args:
        state: State of the graph.
        thread_id: ID of the thread. None without persistence.
        caller: User on whose behalf the run executes.
        sender: User who sent the run's input, if that is a different user, such as an approver.
        opener_id: ID of the message or plan that began the turn, if the state does not contain it.
        default_owner: Owner of the enclosing turn, if the state does not contain an owner.

    >>> TurnView({"task_current_task": "Sing"}).task
    'Sing'
    >>> TurnView({}).steps
    []
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        thread_id: str | None = None,
        caller: Caller = _ANONYMOUS,
        sender: Caller | None = None,
        opener_id: str | None = None,
        default_owner: Caller | None = None,
    ) -> None:
        self.state = state
        self._opened_by = opener_id
        self.default_owner: Caller | None = default_owner
        self.thread_id = thread_id
        self.sender: Caller = caller if sender is None else sender
        opener = self._recorded_caller()
        self.caller: Caller = caller if opener is None or _is_same_user(opener, caller) else opener
        identities = [self.caller]
        if opener is not None and self.caller == self.sender:
            identities.append(opener)
        # A server looked up the role of the caller when it resumed the turn.
        current_roles = run_context().current_roles
        if current_roles is not None and _is_same_user(current_roles, self.caller):
            identities.append(current_roles)
        self.callers: tuple[Caller, ...] = tuple(dict.fromkeys(identities))

    def act_for(self, opener: Caller) -> None:
        """Replace the caller with the user who started the run.

        This applies to custom graphs, whose state does not record turns.
        """
        if not _is_same_user(opener, self.caller):
            self.caller, self.callers = opener, (opener,)

    def _recorded_caller(self) -> Caller | None:
        """Return the recorded caller who started the turn, or ``None`` if none was recorded."""
        record = self.turn.get("caller")
        if not isinstance(record, Mapping):
            return None
        return Caller(
            record.get("user_id"),
            record.get("role"),
            record.get("tenant"),
            authenticated=record.get("authenticated") is True,
        )

    @property
    def user_ids(self) -> tuple[str, ...]:
        """IDs of the user who sent the run's input and the user who owns the turn."""
        opener = self.owner or _ANONYMOUS
        return tuple(user for user in (self.sender.user_id, opener.user_id) if user)

    @property
    def owner(self) -> Caller | None:
        """Caller to whose limits and usage the turn counts, or ``None`` without recorded turns."""
        if not self.has_turn:
            return self.default_owner
        if (recorded := self._recorded_caller()) is not None:
            return recorded
        return Caller(self.turn.get("user"), tenant=self.turn.get("tenant"))

    @property
    def turn_id(self) -> str:
        """ID of the user message or plan that started the turn."""
        if self.has_turn or self._opened_by:
            return str(self.turn.get("id") or self._opened_by or "")
        messages = (m for m in reversed(self.messages) if getattr(m, "type", "") == "human")
        return str(getattr(next(messages, None), "id", None) or "")

    @property
    def has_turn(self) -> bool:
        """True if the state records turns. The state of a custom LangGraph graph does not."""
        return bool(self.turn)

    @cached_property
    def event_ids(self) -> dict[str, str | None]:
        """Return the IDs of the turn and the plan, for inclusion in events."""
        ids: dict[str, str | None] = {
            "turn_id": self.turn_id or None,
            "plan_id": self.plan_id or None,
        }
        if trace := self.turn.get("trace"):  # of the run that started the turn, in any process
            ids["turn_trace"] = str(trace)
        return ids

    @property
    def turn_number(self) -> int:
        """Number of the turn within its thread, counted from 1."""
        number = self.turn.get("number")
        return number if isinstance(number, int) else 0

    @property
    def turn(self) -> Mapping[str, Any]:
        """State entry of the current turn, such as its ``id``, ``number``, and ``caller``."""
        return _mapping(self.state.get("control_turn"))

    @property
    def approval_scope(self) -> str:
        """ID that scopes the turn's approvals. A replay of the turn has a different ID."""
        return str(self.turn.get("approval_scope") or "")

    @property
    def messages(self) -> Sequence[AnyMessage]:
        """The conversation."""
        return self.state.get("messages") or []

    @property
    def task(self) -> str:
        """The task of the turn."""
        return self.state.get("task_current_task") or ""

    @property
    def request_text(self) -> str:
        """Task of the turn, or the text of the last user message if the turn began with a plan."""
        messages = (m for m in reversed(self.messages) if isinstance(m, HumanMessage))
        return self.task or next((str(m.text) for m in messages), "")

    def step_objective(self, step: Mapping[str, Any]) -> str:
        """Return the objective of a step, or the task of the turn if the step has none."""
        return step.get("task_objective") or self.task or f"Execute {step['capability']}"

    def create_attempt(
        self,
        capability: str,
        step: PlannedStep,
        *,
        key: str = "",
        index: int = 0,
        total: int | None = None,
    ) -> Attempt:
        """Create the attempt (execution request) for a planned step.

        Args:
            capability: Name of the capability.
            step: The planned step, or the requested step if there is no plan.
            key: Context key to use if the step has none.
            index: Index of the step in the plan, from 0.
            total: Number of steps. Defaults to the number of steps in the current plan.

        >>> TurnView({"task_current_task": "Sing"}).create_attempt("sing", {"context_key": "song"}).objective
        'Sing'
        """
        return Attempt(
            capability=capability,
            step=step,
            key=key or step["context_key"],
            index=index,
            total=len(self.steps) if total is None else total,
            objective=self.step_objective({"capability": capability, **step}),
        )

    @property
    def selected_capabilities(self) -> tuple[str, ...] | None:
        """Names of the capabilities selected for the turn, or ``None`` before the selection."""
        chosen = self.state.get("planning_active_capabilities")
        return None if chosen is None else tuple(chosen)

    @property
    def excluded_capabilities(self) -> Mapping[str, str]:
        """Capabilities that are excluded from selection for the rest of this turn.

        Maps the name of each capability to the reason.
        """
        return _mapping(self.state.get("planning_excluded"))

    @cached_property
    def plan(self) -> ExecutionPlan:
        """Current plan of the turn, or a plan without steps if none exists."""
        plan = self.state.get("planning_execution_plan")
        return plan if isinstance(plan, dict) else ExecutionPlan(steps=[])  # type: ignore[return-value]

    @property
    def has_plan(self) -> bool:
        """True if the state contains a plan, even if the plan has not been accepted yet."""
        return self.state.get("planning_execution_plan") is not None

    @property
    def plan_id(self) -> str:
        """ID of the current plan."""
        return str(_mapping(self.plan.get("stamp")).get("id") or "")

    @property
    def steps(self) -> list[PlannedStep]:
        """Steps of the plan."""
        return self.plan.get("steps") or []

    @cached_property
    def steps_by_key(self) -> Mapping[str, PlannedStep]:
        """Steps of the plan, by context key."""
        steps = self.steps if isinstance(self.steps, list) else ()
        valid = [step for step in steps if isinstance(step, dict) and "context_key" in step]
        return {str(step["context_key"]): step for step in valid}

    def get_step(self, key: str) -> PlannedStep:
        """Return the planned step for a context key.

        The key may also belong to a ``for_each`` copy of the step.
        """
        step = self.steps_by_key[plan_key(key)]
        return step if step["context_key"] == key else {**step, "context_key": key}

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """Recorded results of the finished steps, by context key."""
        return _mapping(self.state.get("execution_step_results"))

    @cached_property
    def succeeded_keys(self) -> set[str]:
        """Keys of the steps that succeeded."""
        return {key for key, record in self.results.items() if record.get("success")}

    @cached_property
    def skipped_keys(self) -> set[str]:
        """Context keys of the skipped steps, which will not run."""
        return {key for key, record in self.results.items() if record.get("skipped")}

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Context data of the thread, by context type and context key."""
        data = _mapping(self.state.get("capability_context_data"))
        return {kind: _mapping(entries) for kind, entries in data.items()}

    @property
    def labels(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """Data-provenance labels of context data, by context type and key, with their sources."""
        return _mapping(self.state.get("capability_context_labels"))

    @property
    def thread_labels(self) -> Mapping[str, str]:
        """Data-provenance labels that steps of the thread have produced, with their sources."""
        return _mapping(self.state.get("control_labels"))

    @property
    def pending_approvals(self) -> Mapping[str, Mapping[str, Any]]:
        """Open approval requests, by context key of the step that waits for approval."""
        return _mapping(self.state.get("execution_pending_approvals"))

    @property
    def resumed_keys(self) -> Sequence[str]:
        """Context keys of suspended steps and ``for_each`` copies that the current run resumes."""
        return _mapping(self.state.get("runtime_info")).get(RESUMED_KEY) or ()

    @property
    def suspended_keys(self) -> set[str]:
        """Context keys of steps that wait for a decision, except those that this run resumes."""
        return {plan_key(key) for key in self.pending_approvals} - {
            plan_key(key) for key in self.resumed_keys
        }

    @property
    def decisions(self) -> Mapping[str, Mapping[str, Any]]:
        """Approval decisions made during this turn, by context key. They are for display only."""
        return _mapping(self.state.get("approval_decisions"))

    @property
    def effects(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of this turn's external side effects, by effect key."""
        return _mapping(self.state.get("execution_effects"))

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The current failure, or None."""
        info = self.state.get("control_error_info")
        return info if self.state.get("control_has_error") and isinstance(info, Mapping) else None

    @property
    def last_failure(self) -> Mapping[str, Any]:
        """Record of the failure that led to the current plan or selection, or an empty mapping."""
        return _mapping(self.state.get("control_last_error"))

    @property
    def failed_attempts(self) -> Mapping[str, int]:
        """Number of failed attempts, by the context key of a step or the name of a node."""
        return _mapping(self.state.get("control_attempts"))

    @property
    def budget(self) -> Mapping[str, int]:
        """Budget counters of the turn, such as ``plans``, ``attempts``, and ``model_calls``."""
        return _mapping(self.state.get("control_budget"))

    @property
    def caller_switches(self) -> Mapping[str, Any]:
        """Switches that the caller set in ``agent_control``."""
        return _mapping(self.state.get("agent_control"))

    @property
    def waited_seconds(self) -> float | None:
        """Seconds that the turn waited for a time or an event, or ``None`` without a wait."""
        seconds = _mapping(self.state.get("runtime_info")).get("waited_seconds")
        return float(seconds) if seconds is not None else None

    @property
    def seconds_used(self) -> float:
        """Total execution time of this turn's steps so far, in seconds."""
        return float(_mapping(self.state.get("runtime_info")).get("seconds_used") or 0.0)


def _mapping(value: Any) -> Mapping[str, Any]:
    # Check for dict first: it is the usual type, and checking for Mapping is slow.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def _is_same_user(opener: Caller, caller: Caller) -> bool:
    """Return True if two callers are the same user, even if their roles differ."""
    return (opener.user_id, opener.tenant) == (caller.user_id, caller.tenant)
