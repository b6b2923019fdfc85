"""One typed reading of a turn, so that no room spells state keys for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key
from capgraph.base.ports import Attempt, Caller

_NOBODY = Caller()

RESUMED_KEY = "woken"
"""Where the counts of a turn name what goes on that had waited, or asked."""


class TurnView:
    """What a state says about the turn that is under way. It reads and never writes.

    Args:
        state: The graph's state.
        thread_id: The thread; ``None`` when nothing is kept.
        caller: Who asks, or for whom the run around acts.
        sender: Who sent the run's input, if that is another person: somebody who answers, too.
        opener_id: What opened the turn, where the state does not say so.
        default_owner: Who began the turn around, where the state does not say so.

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
        caller: Caller = _NOBODY,
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
        self.caller: Caller = caller if opener is None or _is_same(opener, caller) else opener

    def _recorded_caller(self) -> Caller | None:
        """Return who began the turn, as ``begin_turn`` recorded it; no caller can write it."""
        known = self.turn.get("caller")
        if not isinstance(known, Mapping):
            return None
        return Caller(
            known.get("user_id"),
            known.get("role"),
            known.get("tenant"),
            authenticated=known.get("authenticated") is True,
        )

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Whose run it is: who sent its input, and who opened the turn."""
        opener = self.owner or _NOBODY
        return tuple(user for user in (self.sender.user_id, opener.user_id) if user)

    @property
    def owner(self) -> Caller | None:
        """For whom the turn's limits and usage count; ``None`` where nothing keeps turns."""
        if not self.has_turn:
            return self.default_owner
        if (recorded := self._recorded_caller()) is not None:
            return recorded
        return Caller(self.turn.get("user"), tenant=self.turn.get("tenant"))

    @property
    def turn_id(self) -> str:
        """What opened the turn: the id of a message or of a brought plan."""
        if self.has_turn or self._opened_by:
            return str(self.turn.get("id") or self._opened_by or "")
        said = (m for m in reversed(self.messages) if getattr(m, "type", "") == "human")
        return str(getattr(next(said, None), "id", None) or "")

    @property
    def has_turn(self) -> bool:
        """Whether the graph keeps turns; one of one's own does not."""
        return bool(self.turn)

    @cached_property
    def event_ids(self) -> dict[str, str | None]:
        """The turn and the plan, as events name them."""
        found: dict[str, str | None] = {
            "turn_id": self.turn_id or None,
            "plan_id": self.plan_id or None,
        }
        if trace := self.turn.get("trace"):  # of the run that began it, in whichever process
            found["turn_trace"] = str(trace)
        return found

    @property
    def turn_number(self) -> int:
        """Which turn of its thread it is, from 1."""
        number = self.turn.get("number")
        return number if isinstance(number, int) else 0

    @property
    def turn(self) -> Mapping[str, Any]:
        """What is kept of it: ``id``, ``number``, ``caller``, ``plan`` that opened it, ``asks``, ``trace``."""
        return _mapping(self.state.get("control_turn"))

    @property
    def messages(self) -> Sequence[AnyMessage]:
        """The conversation."""
        return self.state.get("messages") or []

    @property
    def task(self) -> str:
        """What is to be done."""
        return self.state.get("task_current_task") or ""

    @property
    def request_text(self) -> str:
        """The task, or beside a plan that was brought the words of the last message."""
        said = (m for m in reversed(self.messages) if isinstance(m, HumanMessage))
        return self.task or next((str(m.text) for m in said), "")

    def step_objective(self, step: Mapping[str, Any]) -> str:
        """Return what a step is for."""
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
        """Return the attempt at a step: every entry point makes it here.

        Args:
            capability: Name of the capability.
            step: The planned step; what is asked for, where no plan holds it.
            key: Context key, where the step does not name it.
            index: Place of the step in the plan, from 0.
            total: Number of steps; that of the plan in force when not given.

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
        """The chosen capabilities; ``None`` before anything is chosen."""
        chosen = self.state.get("planning_active_capabilities")
        return None if chosen is None else tuple(chosen)

    @property
    def excluded_capabilities(self) -> Mapping[str, str]:
        """Capabilities that asked for another choice in this turn, with their reasons."""
        return _mapping(self.state.get("planning_excluded"))

    @cached_property
    def plan(self) -> ExecutionPlan:
        """The plan in force; without steps when there is none."""
        plan = self.state.get("planning_execution_plan")
        return plan if isinstance(plan, dict) else ExecutionPlan(steps=[])  # type: ignore[return-value]

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan, be it in force or not."""
        return self.state.get("planning_execution_plan") is not None

    @property
    def plan_id(self) -> str:
        """The stamp of the plan in force."""
        return str(_mapping(self.plan.get("stamp")).get("id") or "")

    @property
    def steps(self) -> list[PlannedStep]:
        """The plan's steps."""
        return self.plan.get("steps") or []

    @cached_property
    def steps_by_key(self) -> Mapping[str, PlannedStep]:
        """The plan's steps by context key."""
        steps = self.steps if isinstance(self.steps, list) else ()
        known = [step for step in steps if isinstance(step, dict) and "context_key" in step]
        return {str(step["context_key"]): step for step in known}

    def get_step(self, key: str) -> PlannedStep:
        """Return a step of the plan, or its copy for one element, by the context key."""
        step = self.steps_by_key[plan_key(key)]
        return step if step["context_key"] == key else {**step, "context_key": key}

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the steps so far, by context key."""
        return _mapping(self.state.get("execution_step_results"))

    @cached_property
    def succeeded_keys(self) -> set[str]:
        """Keys of the steps that succeeded."""
        return {key for key, record in self.results.items() if record.get("success")}

    @cached_property
    def skipped_keys(self) -> set[str]:
        """Keys of the steps that nobody will run."""
        return {key for key, record in self.results.items() if record.get("skipped")}

    @property
    def contexts(self) -> Mapping[str, Mapping[str, Any]]:
        """Context type to context key to plain data; a type that holds none has no contexts."""
        found = _mapping(self.state.get("capability_context_data"))
        return {kind: _mapping(stored) for kind, stored in found.items()}

    @property
    def labels(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """Context type to context key to label to its source, where a step left word of it."""
        return _mapping(self.state.get("capability_context_labels"))

    @property
    def thread_labels(self) -> Mapping[str, str]:
        """Labels of all that steps of the thread left behind, failures too, with their sources."""
        return _mapping(self.state.get("control_labels"))

    @property
    def pending_approvals(self) -> Mapping[str, Mapping[str, Any]]:
        """Steps that wait for a person, with what is asked."""
        return _mapping(self.state.get("execution_pending_approvals"))

    @property
    def resumed_keys(self) -> Sequence[str]:
        """Keys of steps, or copies, that waited or asked, and go on."""
        return _mapping(self.state.get("runtime_info")).get(RESUMED_KEY) or ()

    @property
    def suspended_keys(self) -> set[str]:
        """Keys of the steps that wait or ask, and of which no copy goes on."""
        return {plan_key(key) for key in self.pending_approvals} - {
            plan_key(key) for key in self.resumed_keys
        }

    @property
    def decisions(self) -> Mapping[str, Mapping[str, Any]]:
        """What a person decided in this turn, by context key, for showing."""
        return _mapping(self.state.get("approval_decisions"))

    @property
    def effects(self) -> Mapping[str, Mapping[str, Any]]:
        """What was done to the world in this turn, by the name of the effect."""
        return _mapping(self.state.get("execution_effects"))

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The error entry, when something has failed and is not taken back."""
        info = self.state.get("control_error_info")
        return info if self.state.get("control_has_error") and isinstance(info, Mapping) else None

    @property
    def last_failure(self) -> Mapping[str, Any]:
        """The failure that the present plan or choice answers; empty when there is none."""
        return _mapping(self.state.get("control_last_error"))

    @property
    def failed_attempts(self) -> Mapping[str, int]:
        """Failed tries by context key or node name."""
        return _mapping(self.state.get("control_attempts"))

    @property
    def budget(self) -> Mapping[str, int]:
        """What the turn has used: ``plans``, ``classifications``, ``failed_attempts``, ``model_calls``."""
        return _mapping(self.state.get("control_budget"))

    @property
    def caller_switches(self) -> Mapping[str, Any]:
        """The caller's switches."""
        return _mapping(self.state.get("agent_control"))

    @property
    def waited_seconds(self) -> float | None:
        """How long the turn was ended to wait for a moment or an event; ``None`` when it was not."""
        found = _mapping(self.state.get("runtime_info")).get("waited_seconds")
        return float(found) if found is not None else None

    @property
    def seconds_used(self) -> float:
        """Seconds that steps have run in this turn."""
        return float(_mapping(self.state.get("runtime_info")).get("seconds_used") or 0.0)


def _mapping(value: Any) -> Mapping[str, Any]:
    # Almost always a plain dictionary, which is much faster to tell than a mapping.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def _is_same(opener: Caller, caller: Caller) -> bool:
    """Return whether a run is of the person who began the turn, whose role may have changed since."""
    return (opener.user_id, opener.tenant) == (caller.user_id, caller.tenant)
