"""Replay components that return recorded data: strategies, nodes, step middleware, and a clock."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, messages_from_dict
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.base.errors import ErrorSeverity, FatalExecutionError, PolicyError, StoppedError
from capgraph.base.plan import ExecutionPlan
from capgraph.base.ports import (
    ApprovalRequest,
    Attempt,
    CallNext,
    Failure,
    ShortCircuit,
    StepRecord,
)
from capgraph.engine.default_strategies import ChainPlanner, LastMessageExtractor
from capgraph.evaluation.recording import RecordedAnswer, RecordedNodeRun, Recording, question_steps
from capgraph.helpers.clock import SystemClock
from capgraph.pipeline.finalize import SkippedStep, compute_work_digest
from capgraph.pipeline.result_normalization import GRAPH_OWNED_KEYS
from capgraph.pipeline.step_execution import STOPPED
from capgraph.planning.strategies import AnswerRequest, ExtractedTask, PlanRequest
from capgraph.registry import Registry
from capgraph.registry.registry import DEFAULT_INFRASTRUCTURE
from capgraph.selection import Selection

_LIVE_NODES = frozenset({"begin_turn", "router", "approval"})
"""Nodes that run again even if the application replaces them, because they only read the state."""
_STOP_KEYS = ("control_is_killed", "control_kill_reason")
_QUESTIONS_BEFORE_RETRY = frozenset({"step", "missing_capability"})
"""Kinds of approval requests that arise before a recorded result is used, so they arise again."""


class NoRecordError(PolicyError):
    """Raised if a replay needs a recorded result that does not exist and must not be recomputed."""

    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class TruncatedRecordingError(FatalExecutionError):
    """Raised if a recording ends before the recorded turn was complete."""


class _RecordedFailureError(PolicyError):
    """Recorded failure, raised again in a replay."""


class ReplayScript:
    """Recorded results of a turn, which a replay consumes in order.

    Args:
        recording: Recording of the turn.
        reused_keys: Context keys of the steps whose records are used. ``None`` means all.
        registry: Registry of the agent.
        recorded_works: Records of steps by their capability and inputs, for a replay with a
            different plan.
    """

    def __init__(
        self,
        recording: Recording,
        reused_keys: frozenset[str] | None,
        registry: Registry,
        recorded_works: dict[str, deque[dict[str, Any]]] | None = None,
    ) -> None:
        self.recording = recording
        self.registry = registry
        self.reused_keys = reused_keys
        self.unrecorded: list[str] = []
        self.ran: list[str] = []
        self.records_by_work: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._recorded_works = recorded_works
        self._node_runs: dict[str, deque[RecordedNodeRun]] = defaultdict(deque)
        self._steps: dict[tuple[str, str], deque[dict[str, Any]]] = defaultdict(deque)
        self._answers: list[tuple[frozenset[str], RecordedAnswer]] = []
        self.now: float = recording.at
        self.rule_approved: set[str] = set()
        self._failures = 0
        self._skipped_counts: Counter[str] = Counter()
        for node_run in recording.visits:
            self._node_runs[node_run.node].append(node_run)
            decisions = node_run.writes.get("approval_decisions") or {}
            self.rule_approved |= {key for key, entry in decisions.items() if entry.get("rule")}
            keys = frozenset(entry["context_key"] for entry in question_steps(node_run.question))
            if node_run.node != "router":  # the router resumes questions from inside capabilities
                self._answers += [(keys, answer) for answer in node_run.answers if keys]
            for envelope in node_run.steps or _list_goto_steps(node_run, registry):
                self._failures += "failure" in envelope
                if (envelope.get("question") or {}).get("kind") not in _QUESTIONS_BEFORE_RETRY:
                    self._steps[_get_capability(envelope), envelope["key"]].append(envelope)
        last = recording.visits[-1] if recording.visits else None
        # An unanswered question from inside a capability.
        is_waiting = recording.end.status == "waiting"
        waits = is_waiting and last is not None and last.node != "approval"
        self._open_question = last.question if last is not None and waits else None

    def missing_record(self, subject: str) -> NoRecordError:
        """Create the error for a result that is missing from the recording."""
        self.unrecorded.append(subject)
        return NoRecordError(
            f"The recording has no record of {subject}, which a replay must not run again."
        )

    def next_node_run(self, node: str) -> RecordedNodeRun:
        """Return the next recorded run of a graph node in the replayed turn.

        Raises:
            NoRecordError: The node has no further recorded run.
            _RecordedFailureError: The recorded run failed.
            StoppedError: The turn was stopped in the recorded run.
        """
        if not self._node_runs[node]:
            raise self.missing_record(f"another run of the node {node!r}")
        node_run = self._node_runs[node].popleft()
        info = node_run.writes.get("control_error_info") or {}
        if node_run.writes.get("control_has_error") and info.get("node_name") == node:
            failure = Failure.from_state(info)
            stopped = node_run.writes.get("control_is_killed")
            error_class = StoppedError if stopped else _RecordedFailureError
            error = error_class(failure.message, severity=failure.severity)
            error.code = failure.metadata.get("code", error.code)  # decides how the turn ends
            raise error
        return node_run

    def find_answer(self, keys: frozenset[str]) -> RecordedAnswer | None:
        """Find the recorded answer to an approval request, or return ``None``.

        The answer must cover exactly the given step keys. Steps that a standing rule approved are
        counted as approved.
        """
        approved_by_rule = {key: {"decision": "approve"} for key in keys & self.rule_approved}
        unanswered = keys - self.rule_approved
        if approved_by_rule and not unanswered:
            return RecordedAnswer(given=approved_by_rule, at=self.now)
        for index, (keys_asked, answer) in enumerate(self._answers):
            if keys_asked == unanswered:
                del self._answers[index]
                value = {**approved_by_rule, **answer.given} if approved_by_rule else answer.given
                return answer.model_copy(update={"given": value})
        return None

    def should_run(self, attempt: Attempt, *, is_unrecorded: bool = False) -> bool:
        """Return True if a replay must run a step again instead of using its record.

        A step with an effect never runs again. If the replay uses a new plan, only steps without a
        record run again.
        """
        if (
            self.reused_keys is None
            or self.registry.capabilities[attempt.capability].effect != "none"
        ):
            return False
        runs = (
            is_unrecorded
            if self._recorded_works is not None
            else attempt.key not in self.reused_keys
        )
        self.ran += [attempt.key] if runs else []
        return runs

    def next_step(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return the recorded result of a step in a replay.

        The record is found by the key of the step, or by the inputs of the step if the replay uses
        a new plan.

        Returns:
            ``None`` for a step that did not start because of a failure, and an empty dictionary
                for a step that runs again.

        Raises:
            NoRecordError: The step has no record.
            TruncatedRecordingError: The recording ends in this step.
        """
        work_key = compute_work_digest(attempt)
        if self._recorded_works is None:
            records = self._steps[attempt.capability, attempt.key]
            if records:
                self.records_by_work[work_key].append(records[0])
        else:
            records = self._recorded_works[work_key]
            if self.reused_keys is not None:
                records = deque(saved for saved in records if saved["key"] in self.reused_keys)
                self._recorded_works[work_key] = records
        if records:
            return records.popleft()
        if self.should_run(attempt, is_unrecorded=True):
            return {}
        if self._open_question:
            interrupt(self._open_question)
        if self._skipped_counts[attempt.key] < self._failures and self._recorded_works is None:
            # A parallel step failed before this one started.
            self._skipped_counts[attempt.key] += 1
            return None
        if self.recording.end.status == "unfinished" and self._recorded_works is None:
            self.unrecorded.append(f"the result of {attempt.key!r}, where the recording ends")
            raise TruncatedRecordingError
        raise self.missing_record(
            f"the step {attempt.key!r} ({attempt.capability}) with these values"
        )


def _list_goto_steps(node_run: RecordedNodeRun, registry: Registry) -> list[dict[str, Any]]:
    """Return the records of unplanned steps that a node started with ``goto``."""
    if node_run.node not in registry.capabilities:
        return []
    info = node_run.writes.get("control_error_info")
    failure = {"failure": info} if node_run.writes.get("control_has_error") else {}
    keys = node_run.writes.get("execution_step_results") or {}
    return [{"key": key, "update": node_run.writes, **failure} for key in keys]


def _get_capability(envelope: Mapping[str, Any]) -> str:
    entry = (envelope["update"].get("execution_step_results") or {}).get(envelope["key"]) or {}
    return str(entry.get("capability") or (envelope.get("question") or {}).get("capability"))


class RecordedResultMarker:
    """Middleware that marks steps as recorded, so that a replay does not call their hooks."""

    stage = "observe"
    order = 0

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Mark a step attempt as recorded, unless the replay must run the step again."""
        if self._script.should_run(attempt):
            return await call_next(attempt)
        return await call_next(replace(attempt, short_circuit=ShortCircuit(None, "record")))


class RecordedResults:
    """Middleware that returns a step's recorded result instead of running the step.

    The ``finalize`` stage validates the recorded result again.
    """

    stage = "retry"
    order = 0

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Return a step's recorded result instead of running the step."""
        if attempt.short_circuit is None:
            return await call_next(attempt)
        saved = self._script.next_step(attempt)
        if saved is None:
            return await call_next(replace(attempt, short_circuit=ShortCircuit(STOPPED, "record")))
        if not saved:
            return await call_next(replace(attempt, short_circuit=None))
        if "question" in saved:
            return ApprovalRequest(**saved["question"])
        if "failure" in saved:
            failure = replace(Failure.from_state(saved["failure"]), key=attempt.key)
            stopped = {k: v for k, v in saved["update"].items() if k in _STOP_KEYS}
            fields = {"error": failure, "attempts": failure.attempts, "updates": stopped}
            return StepRecord.from_attempt(attempt, **fields)
        entry = saved["update"]["execution_step_results"][saved["key"]]
        short_circuit = ShortCircuit(_rebuild_return_value(saved, entry), "record")
        record = await call_next(
            replace(attempt, number=entry.get("attempts", 1), short_circuit=short_circuit)
        )
        if not isinstance(record, StepRecord):
            return record
        return replace(record, effect=entry.get("effect"), quality=entry.get("quality"))


def _rebuild_return_value(saved: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
    """Convert a step's recorded result to the return value of a capability."""
    if entry.get("skipped"):
        return SkippedStep(entry["error"])
    update = {k: v for k, v in saved["update"].items() if k not in GRAPH_OWNED_KEYS}
    context_data = {
        context_type: dict(entries)
        for context_type, entries in update.get("capability_context_data", {}).items()
    }
    outputs = [
        {context_type: context_data[context_type].pop(key)}
        for context_type, key in entry.get("outputs", {}).items()
    ]
    update["capability_context_data"] = {
        context_type: remaining for context_type, remaining in context_data.items() if remaining
    }
    if "plan" in saved:
        update["planning_execution_plan"] = saved["plan"]
    return [*outputs, {name: value for name, value in update.items() if value}]


class RecordedStrategies:
    """Extractor, selector, planner, and answerer that return the results of a recorded turn."""

    can_correct = False
    chooses_parameters = True  # recorded plans contain the parameters

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the task that was extracted in the recorded turn."""
        writes = self._script.next_node_run("task_extraction").writes
        names = ("depends_on_chat_history", "depends_on_user_memory")
        flags = {name: bool(writes.get(f"task_{name}")) for name in names}
        return ExtractedTask(task=writes["task_current_task"], **flags)

    async def select(self, *_: Any, **__: Any) -> Selection:
        """Return the recorded selection."""
        writes = self._script.next_node_run("classifier").writes
        selection = writes["planning_selection"]
        answer = writes.get("task_custom_message") or ""
        return Selection(
            tuple(selection["chosen"]),
            reason=selection["reason"],
            answer=answer,
            deferred=selection["deferred"],
        )

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return the plan that the planner created in the recorded turn."""
        writes = self._script.next_node_run("orchestrator").writes
        if request.look_again and "planning_history" not in writes:
            # The plan was unchanged, or the planner answered.
            return {"steps": [], "answer": writes.get("task_custom_message") or ""}  # type: ignore[typeddict-unknown-key]
        plan: ExecutionPlan = writes["planning_history"][-1]["plan"]
        return {**plan, "answer": writes.get("task_custom_message") or ""}  # type: ignore[typeddict-unknown-key]

    async def answer(self, request: AnswerRequest) -> str | BaseModel:
        """Return the answer of the recorded turn, in the requested format."""
        writes = self._script.next_node_run(
            "clarify" if request.purpose == "clarify" else "respond"
        ).writes
        if request.response_format is not None:
            return request.response_format.model_validate(writes["execution_answer"])
        return str(messages_from_dict(writes["messages"])[-1].text)


class RecordedOfflineStrategies(RecordedStrategies, ChainPlanner, LastMessageExtractor):
    """Recorded strategies for a turn without a model.

    The class inherits from the offline planner and extractor, so that the replayed plan is
    checked like a plan that was created without a model.
    """


class RecordedClock(SystemClock):
    """Clock for replays that returns recorded times and skips all delays."""

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    def now(self) -> float:
        """Return the recorded time at the current position of the replay."""
        return self._script.now

    async def sleep(self, seconds: float) -> None:
        """Return immediately, because a replay does not wait."""


class ModelCallBlocker(BaseCallbackHandler):
    """Callback that rejects every model call."""

    raise_error = True
    run_inline = True

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Raise an error, because a replay with recorded strategies must not call a model."""
        raise self._script.missing_record("this model call")

    on_llm_start = on_chat_model_start


def restore_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Restore recorded state values, converting serialized messages to message objects."""
    return {k: messages_from_dict(v) if k == "messages" else v for k, v in values.items()}


def create_recorded_nodes(script: ReplayScript) -> Iterator[type[Any]]:
    """Create replacements for an application's own nodes, which write the recorded values.

    Built-in nodes are not replaced.
    """
    for name, spec in script.registry.infrastructure.items():
        is_built_in = spec.cls.__module__.startswith(
            tuple(f"{name}." for name in DEFAULT_INFRASTRUCTURE)
        )
        if not is_built_in and name not in _LIVE_NODES:
            yield _create_node(script, name, spec)


def _create_node(script: ReplayScript, name: str, spec: Any) -> type[Any]:
    async def execute(state: Any) -> Any:
        del state
        writes = script.next_node_run(name).writes
        goto = writes.get("control_goto")
        update = {k: v for k, v in restore_state(writes).items() if k not in GRAPH_OWNED_KEYS}
        return Command(update=update, goto=goto) if goto else update

    parts = {name: getattr(spec, name) for name in ("name", "description", "before", "after")}
    parts |= {"execute": staticmethod(execute)}
    return infrastructure_node(type(spec.cls.__name__, (BaseInfrastructureNode,), parts))
