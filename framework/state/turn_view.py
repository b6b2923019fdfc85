"""Typed, read-only view of a turn, so that other packages need not know the state keys."""

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
    """Read-only view of the current turn.

    Args:
        state: State of the graph.
        thread_id: ID of the thread. None if nothing is stored.
        caller: Caller of the run.
        sender: Sender of the run's input, if it is another user, such as an approver.
        opener_id: ID of the message or plan that opened the turn, if state does not contain it.
        default_owner: Owner of the enclosing turn, if state does not contain one.

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
        """Make the user who started the run of a custom graph the caller; its state has no turns."""
        if not _is_same_user(opener, self.caller):
            self.caller, self.callers = opener, (opener,)

    def _recorded_caller(self) -> Caller | None:
        """Return the caller who started the turn, as ``begin_turn`` recorded it. Callers cannot write it."""
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
        """User IDs of the run: the sender of its input and the owner of the turn."""
        opener = self.owner or _ANONYMOUS
        return tuple(user for user in (self.sender.user_id, opener.user_id) if user)

    @property
    def owner(self) -> Caller | None:
        """Caller to whom limits and usage of the turn count. None if nothing records turns."""
        if not self.has_turn:
            return self.default_owner
        if (recorded := self._recorded_caller()) is not None:
            return recorded
        return Caller(self.turn.get("user"), tenant=self.turn.get("tenant"))

    @property
    def turn_id(self) -> str:
        """ID of the message or plan that opened the turn."""
        if self.has_turn or self._opened_by:
            return str(self.turn.get("id") or self._opened_by or "")
        messages = (m for m in reversed(self.messages) if getattr(m, "type", "") == "human")
        return str(getattr(next(messages, None), "id", None) or "")

    @property
    def has_turn(self) -> bool:
        """True if the graph records turns. A user's own graph does not."""
        return bool(self.turn)

    @cached_property
    def event_ids(self) -> dict[str, str | None]:
        """IDs of the turn and the plan, as events carry them."""
        ids: dict[str, str | None] = {
            "turn_id": self.turn_id or None,
            "plan_id": self.plan_id or None,
        }
        if trace := self.turn.get("trace"):  # of the run that started the turn, in any process
            ids["turn_trace"] = str(trace)
        return ids

    @property
    def turn_number(self) -> int:
        """Number of the turn in its thread, from 1."""
        number = self.turn.get("number")
        return number if isinstance(number, int) else 0

    @property
    def turn(self) -> Mapping[str, Any]:
        """Record of the turn: ``id``, ``number``, ``caller``, ``plan`` that opened it, ``asks``, ``trace``."""
        return _mapping(self.state.get("control_turn"))

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
        """The task, or the text of the last user message if the turn began with a plan."""
        messages = (m for m in reversed(self.messages) if isinstance(m, HumanMessage))
        return self.task or next((str(m.text) for m in messages), "")

    def step_objective(self, step: Mapping[str, Any]) -> str:
        """Return the objective of a step."""
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
        """Return an attempt at a step. Every entry point uses this method.

        Args:
            capability: Name of the capability.
            step: The planned step, or the requested one outside a plan.
            key: Context key, if the step has none.
            index: Index of the step in the plan, from 0.
            total: Number of steps. Defaults to that of the current plan.

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
        """Names of the selected capabilities. None before the selection."""
        chosen = self.state.get("planning_active_capabilities")
        return None if chosen is None else tuple(chosen)

    @property
    def excluded_capabilities(self) -> Mapping[str, str]:
        """Capabilities that requested another selection in this turn, with the reasons."""
        return _mapping(self.state.get("planning_excluded"))

    @cached_property
    def plan(self) -> ExecutionPlan:
        """The current plan. It has no steps if there is none."""
        plan = self.state.get("planning_execution_plan")
        return plan if isinstance(plan, dict) else ExecutionPlan(steps=[])  # type: ignore[return-value]

    @property
    def has_plan(self) -> bool:
        """True if state contains a plan, accepted or not."""
        return self.state.get("planning_execution_plan") is not None

    @property
    def plan_id(self) -> str:
        """ID of the current plan, from its stamp."""
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
        """Return a step of the plan, or its copy for one list element, by context key."""
        step = self.steps_by_key[plan_key(key)]
        return step if step["context_key"] == key else {**step, "context_key": key}

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the finished steps, by context key."""
        return _mapping(self.state.get("execution_step_results"))

    @cached_property
    def succeeded_keys(self) -> set[str]:
        """Keys of the steps that succeeded."""
        return {key for key, record in self.results.items() if record.get("success")}

    @cached_property
    def skipped_keys(self) -> set[str]:
        """Keys of the skipped steps, which will not run."""
        return {key for key, record in self.results.items() if record.get("skipped")}

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Context data, by context type and context key."""
        data = _mapping(self.state.get("capability_context_data"))
        return {kind: _mapping(entries) for kind, entries in data.items()}

    @property
    def labels(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """Labels of context data: context type to context key to label to source."""
        return _mapping(self.state.get("capability_context_labels"))

    @property
    def thread_labels(self) -> Mapping[str, str]:
        """Labels of all data that steps of the thread produced, including failures, with their sources."""
        return _mapping(self.state.get("control_labels"))

    @property
    def pending_approvals(self) -> Mapping[str, Mapping[str, Any]]:
        """Steps that wait for a decision, with their approval requests."""
        return _mapping(self.state.get("execution_pending_approvals"))

    @property
    def resumed_keys(self) -> Sequence[str]:
        """Keys of the steps and step copies that waited and now resume."""
        return _mapping(self.state.get("runtime_info")).get(RESUMED_KEY) or ()

    @property
    def suspended_keys(self) -> set[str]:
        """Keys of the steps that wait for a decision and have no copy that resumes."""
        return {plan_key(key) for key in self.pending_approvals} - {
            plan_key(key) for key in self.resumed_keys
        }

    @property
    def decisions(self) -> Mapping[str, Mapping[str, Any]]:
        """Approval decisions of this turn, by context key. For display only."""
        return _mapping(self.state.get("approval_decisions"))

    @property
    def effects(self) -> Mapping[str, Mapping[str, Any]]:
        """Effect records of this turn, by effect key."""
        return _mapping(self.state.get("execution_effects"))

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The current failure, or None."""
        info = self.state.get("control_error_info")
        return info if self.state.get("control_has_error") and isinstance(info, Mapping) else None

    @property
    def last_failure(self) -> Mapping[str, Any]:
        """The failure to which the current plan or selection responds. Empty if there is none."""
        return _mapping(self.state.get("control_last_error"))

    @property
    def failed_attempts(self) -> Mapping[str, int]:
        """Number of failed attempts, by context key or node name."""
        return _mapping(self.state.get("control_attempts"))

    @property
    def budget(self) -> Mapping[str, int]:
        """Counters of the turn, such as ``plans``, ``attempts``, and ``model_calls``."""
        return _mapping(self.state.get("control_budget"))

    @property
    def caller_switches(self) -> Mapping[str, Any]:
        """Switches that the caller set in ``agent_control``."""
        return _mapping(self.state.get("agent_control"))

    @property
    def waited_seconds(self) -> float | None:
        """Seconds for which the turn was suspended to wait for a time or an event. None if it was not."""
        seconds = _mapping(self.state.get("runtime_info")).get("waited_seconds")
        return float(seconds) if seconds is not None else None

    @property
    def seconds_used(self) -> float:
        """Seconds for which steps of this turn have run."""
        return float(_mapping(self.state.get("runtime_info")).get("seconds_used") or 0.0)


def _mapping(value: Any) -> Mapping[str, Any]:
    # Check for dict first: it is the usual type, and checking for Mapping is slow.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def _is_same_user(opener: Caller, caller: Caller) -> bool:
    """Return True if both are the same user. The role may have changed since the turn started."""
    return (opener.user_id, opener.tenant) == (caller.user_id, caller.tenant)
