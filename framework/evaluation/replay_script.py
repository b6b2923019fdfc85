"""What a recorded turn did, handed out piece by piece to whoever would do it anew."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

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
from capgraph.pipeline.finalize import SkippedStep, work_digest
from capgraph.pipeline.result_normalization import GRAPH_OWNED_KEYS
from capgraph.pipeline.step_execution import STOPPED
from capgraph.planning.strategies import AnswerRequest, ExtractedTask, PlanRequest
from capgraph.registry import Registry
from capgraph.registry.registry import DEFAULT_INFRASTRUCTURE
from capgraph.selection import Selection

_LIVE_NODES = frozenset({"begin_turn", "router", "approval"})
"""Nodes that decide from the state alone, also where they are one's own."""
_STOP_KEYS = ("control_is_killed", "control_kill_reason")
_QUESTIONS_BEFORE_RETRY = frozenset({"step", "missing_capability"})
"""Questions that are put before a step is handed back, so that they arise anew."""


class NoRecordError(PolicyError):
    """A replay would need what was never recorded, and does not do it anew."""

    severity: ErrorSeverity = ErrorSeverity.CRITICAL


class TruncatedRecordingError(FatalExecutionError):
    """The record ends here, in the middle of the turn."""


class _RecordedFailureError(PolicyError):
    """What failed then fails again."""


class ReplayScript:
    """What a recorded turn did, handed out piece by piece to whoever would do it anew."""

    def __init__(
        self,
        recording: Recording,
        reused_keys: frozenset[str] | None,
        registry: Registry,
        recorded_works: dict[str, deque[dict[str, Any]]] | None = None,
    ) -> None:
        self.recording = recording
        self.registry = registry
        self.anew = reused_keys
        self.unrecorded: list[str] = []
        self.ran: list[str] = []
        self.works: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._by_work = recorded_works
        self._visits: dict[str, deque[RecordedNodeRun]] = defaultdict(deque)
        self._steps: dict[tuple[str, str], deque[dict[str, Any]]] = defaultdict(deque)
        self._asked: list[tuple[frozenset[str], RecordedAnswer]] = []
        self.now: float = recording.at
        self.ruled: set[str] = set()
        self._failures = 0
        self._put_off: Counter[str] = Counter()
        for visit in recording.visits:
            self._visits[visit.node].append(visit)
            decided = visit.writes.get("approval_decisions") or {}
            self.ruled |= {key for key, entry in decided.items() if entry.get("rule")}
            keys = frozenset(entry["context_key"] for entry in question_steps(visit.question))
            if visit.node != "router":  # what a body asked was answered in it
                self._asked += [(keys, said) for said in visit.answers if keys]
            for envelope in visit.steps or _goto_steps(visit, registry):
                self._failures += "failure" in envelope
                if (envelope.get("question") or {}).get("kind") not in _QUESTIONS_BEFORE_RETRY:
                    self._steps[_envelope_capability(envelope), envelope["key"]].append(envelope)
        last = recording.visits[-1] if recording.visits else None
        # A question out of the body of a capability, which nobody has answered.
        waits = last is not None and last.node != "approval" and recording.end.status == "waiting"
        self._open = last.question if last is not None and waits else None

    def missing_record(self, subject: str) -> NoRecordError:
        """Return the error that says that there is no record of something."""
        self.unrecorded.append(subject)
        return NoRecordError(f"There is no record of {subject}, and a replay does nothing anew.")

    def next_node_run(self, node: str) -> RecordedNodeRun:
        """Return what a node did at its next visit.

        Raises:
            NoRecordError: It was not visited so often.
            _RecordedFailureError: It failed.
        """
        if not self._visits[node]:
            raise self.missing_record(f"another visit of {node!r}")
        visit = self._visits[node].popleft()
        info = visit.writes.get("control_error_info") or {}
        if visit.writes.get("control_has_error") and info.get("node_name") == node:
            failure = Failure.from_state(info)
            stopped = visit.writes.get("control_is_killed")
            kind = StoppedError if stopped else _RecordedFailureError
            error = kind(failure.message, severity=failure.severity)
            error.code = failure.metadata.get("code", error.code)  # it says how the turn ends
            raise error
        return visit

    def find_answer(self, keys: frozenset[str]) -> RecordedAnswer | None:
        """Return what was answered to a question about steps; ``None`` for nothing."""
        ruled = {key: {"decision": "approve"} for key in keys & self.ruled}
        left = keys - self.ruled
        if ruled and not left:
            return RecordedAnswer(given=ruled, at=self.now)
        for place, (asked, said) in enumerate(self._asked):
            if asked == left:
                del self._asked[place]
                given = {**ruled, **said.given} if ruled else said.given
                return said.model_copy(update={"given": given})
        return None

    def should_run(self, attempt: Attempt, *, is_unrecorded: bool = False) -> bool:
        """Tell whether a step runs anew; with another plan, once it was looked for in vain."""
        if self.anew is None or self.registry.capabilities[attempt.capability].effect != "none":
            return False
        live = is_unrecorded if self._by_work is not None else attempt.key not in self.anew
        self.ran += [attempt.key] if live else []
        return live

    def next_step(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return what was saved of a step: by its key, or with another plan by what it works on.

        Returns:
            ``None`` for a step that a failure kept from beginning; nothing for one that runs anew.

        Raises:
            NoRecordError: Nothing was.
        """
        work = work_digest(attempt)
        if self._by_work is None:
            found = self._steps[attempt.capability, attempt.key]
            if found:
                self.works[work].append(found[0])
        else:
            found = self._by_work[work]
            if self.anew is not None:
                found = deque(one for one in found if one["key"] in self.anew)
                self._by_work[work] = found
        if found:
            return found.popleft()
        if self.should_run(attempt, is_unrecorded=True):
            return {}
        if self._open:
            interrupt(self._open)
        if self._put_off[attempt.key] < self._failures and self._by_work is None:
            # The failure of a step beside it is under way, before which it did not begin.
            self._put_off[attempt.key] += 1
            return None
        if self.recording.end.status == "unfinished" and self._by_work is None:
            self.unrecorded.append(f"what came of {attempt.key!r}, in which the turn broke off")
            raise TruncatedRecordingError
        raise self.missing_record(
            f"the step {attempt.key!r} ({attempt.capability}) on these values"
        )


def _goto_steps(node_run: RecordedNodeRun, registry: Registry) -> list[dict[str, Any]]:
    """Return what a step left that a node sent the turn to, beside the plan."""
    if node_run.node not in registry.capabilities:
        return []
    info = node_run.writes.get("control_error_info")
    failed = {"failure": info} if node_run.writes.get("control_has_error") else {}
    keys = node_run.writes.get("execution_step_results") or {}
    return [{"key": key, "update": node_run.writes, **failed} for key in keys]


def _envelope_capability(envelope: Mapping[str, Any]) -> str:
    entry = (envelope["update"].get("execution_step_results") or {}).get(envelope["key"]) or {}
    return str(entry.get("capability") or (envelope.get("question") or {}).get("capability"))


class RecordedResultMarker:
    """Says of every step that its result is there, so that hooks around it do not run again."""

    stage = "observe"
    order = 0
    applies_to: ClassVar[tuple[str, ...]] = ("step", "effect")

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Announce the result, unless the step runs anew."""
        if self._script.should_run(attempt):
            return await call_next(attempt)
        return await call_next(replace(attempt, short_circuit=ShortCircuit(None, "record")))


class RecordedResults:
    """Hands back what was saved of a step, through ``finalize``, which checks it as it is today."""

    stage = "retry"
    order = 0
    applies_to: ClassVar[tuple[str, ...]] = ("step", "effect")

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Give what was saved in place of trying."""
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
            told = {"error": failure, "attempts": failure.attempts, "updates": stopped}
            return StepRecord.from_attempt(attempt, **told)
        entry = saved["update"]["execution_step_results"][saved["key"]]
        given = ShortCircuit(_rebuild_return_value(saved, entry), "record")
        found = await call_next(
            replace(attempt, number=entry.get("attempts", 1), short_circuit=given)
        )
        if not isinstance(found, StepRecord):
            return found
        return replace(found, effect=entry.get("effect"), quality=entry.get("quality"))


def _rebuild_return_value(saved: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
    """Return what a step left in a form in which its capability could have returned it."""
    if entry.get("skipped"):
        return SkippedStep(entry["error"])
    update = {k: v for k, v in saved["update"].items() if k not in GRAPH_OWNED_KEYS}
    stored = {
        kind: dict(found) for kind, found in update.get("capability_context_data", {}).items()
    }
    given = [{kind: stored[kind].pop(key)} for kind, key in entry.get("outputs", {}).items()]
    update["capability_context_data"] = {kind: left for kind, left in stored.items() if left}
    if "plan" in saved:
        update["planning_execution_plan"] = saved["plan"]
    return [*given, {name: value for name, value in update.items() if value}]


class RecordedStrategies:
    """Extractor, selector, planner and answerer that say what was said then."""

    can_correct = False
    chooses_parameters = True  # the recorded turn asked where that was needed

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the recorded task."""
        writes = self._script.next_node_run("task_extraction").writes
        names = ("depends_on_chat_history", "depends_on_user_memory")
        flags = {name: bool(writes.get(f"task_{name}")) for name in names}
        return ExtractedTask(task=writes["task_current_task"], **flags)

    async def select(self, *_: Any, **__: Any) -> Selection:
        """Return the recorded choice."""
        writes = self._script.next_node_run("classifier").writes
        told = writes["planning_selection"]
        answer = writes.get("task_custom_message") or ""
        return Selection(
            tuple(told["chosen"]), reason=told["reason"], answer=answer, deferred=told["deferred"]
        )

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return the recorded plan."""
        writes = self._script.next_node_run("orchestrator").writes
        if request.look_again and "planning_history" not in writes:
            # The plan was kept, or the planner answered.
            return {"steps": [], "answer": writes.get("task_custom_message") or ""}  # type: ignore[typeddict-unknown-key]
        plan: ExecutionPlan = writes["planning_history"][-1]["plan"]
        return {**plan, "answer": writes.get("task_custom_message") or ""}  # type: ignore[typeddict-unknown-key]

    async def answer(self, request: AnswerRequest) -> str | BaseModel:
        """Return the recorded answer, in the form that is asked for today."""
        writes = self._script.next_node_run(
            "clarify" if request.purpose == "clarify" else "respond"
        ).writes
        if request.response_format is not None:
            return request.response_format.model_validate(writes["execution_answer"])
        return str(messages_from_dict(writes["messages"])[-1].text)


class RecordedOfflineStrategies(RecordedStrategies, ChainPlanner, LastMessageExtractor):
    """The same for a turn that had no model: whose words a plan holds is known by who made it."""


class RecordedClock(SystemClock):
    """It is as late as it was; and it waits for nothing: what was waited for is in the record."""

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    def now(self) -> float:
        """Return when the recorded turn was where the replay is."""
        return self._script.now

    async def sleep(self, seconds: float) -> None:
        """Wait for nothing."""


class ModelCallBlocker(BaseCallbackHandler):
    """Refuses every call of a model."""

    raise_error = True
    run_inline = True

    def __init__(self, script: ReplayScript) -> None:
        self._script = script

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuse the call."""
        raise self._script.missing_record("this call of a model")

    on_llm_start = on_chat_model_start


def restore_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded keys of the state with messages as what they are."""
    return {k: messages_from_dict(v) if k == "messages" else v for k, v in values.items()}


def recorded_nodes(script: ReplayScript) -> Iterator[type[Any]]:
    """Make nodes that write what nodes of one's own wrote."""
    for name, spec in script.registry.infrastructure.items():
        ours = spec.cls.__module__.startswith(tuple(f"{name}." for name in DEFAULT_INFRASTRUCTURE))
        if not ours and name not in _LIVE_NODES:
            yield _recorded_node(script, name, spec)


def _recorded_node(script: ReplayScript, name: str, spec: Any) -> type[Any]:
    async def execute(state: Any) -> Any:
        del state
        writes = script.next_node_run(name).writes
        goto = writes.get("control_goto")
        kept = {k: v for k, v in restore_state(writes).items() if k not in GRAPH_OWNED_KEYS}
        return Command(update=kept, goto=goto) if goto else kept

    parts = {name: getattr(spec, name) for name in ("name", "description", "before", "after")}
    parts |= {"execute": staticmethod(execute)}
    return infrastructure_node(type(spec.cls.__name__, (BaseInfrastructureNode,), parts))
