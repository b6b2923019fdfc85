"""Runs a recorded turn again, on its own records and without the outside."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, messages_from_dict
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from configs.logger import mask_data
from framework.base import BaseInfrastructureNode, infrastructure_node
from framework.base.clock import SystemClock
from framework.base.errors import (
    ErrorSeverity,
    FatalExecutionError,
    PersistenceError,
    PolicyError,
    StoppedError,
    ValidationError,
)
from framework.base.plan import ExecutionPlan
from framework.base.ports import Attempt, CallNext, Failure, Given, Question, StepRecord
from framework.engine.default_strategies import ChainPlanner, LastMessageExtractor
from framework.evaluation.recording import (
    Cost,
    Recording,
    Said,
    TurnEnd,
    Visit,
    asked_of,
    record,
)
from framework.graph import build_graph
from framework.langgraph_compat import INTERRUPT
from framework.pipeline.effect_ledger import digest_of, plain_inputs
from framework.pipeline.job import STOPPED
from framework.pipeline.settle import Skipped
from framework.pipeline.sort_result import KEPT_BY_THE_GRAPH
from framework.planning.strategies import AnswerRequest, ExtractedTask, PlanRequest
from framework.registry import Registry
from framework.registry.registry import DEFAULT_INFRASTRUCTURE
from framework.selection import Selection
from framework.stores import open_saver
from framework.telemetry.usage import PriceTable, UsageSnapshot

if TYPE_CHECKING:
    from configs.settings import Settings

_LIVE_NODES = frozenset({"begin_turn", "router", "approval"})
"""Nodes that decide from the state alone, also where they are one's own."""
_STOPPED = ("control_is_killed", "control_kill_reason")
_OUTSIDE_SETTLE = frozenset({"step", "missing_capability"})
"""Questions that are put before a step is handed back, so that they arise anew."""


class NoRecordError(PolicyError):
    """A replay would need what was never recorded, and does not do it anew."""

    severity = ErrorSeverity.CRITICAL


class _BrokeOffError(FatalExecutionError):
    """The record ends here, in the middle of the turn."""


class _RecordedFailureError(PolicyError):
    """What failed then fails again."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that came out in another way.

    Attributes:
        part: ``plan``, ``result``, ``question``, ``answer``, ``outcome`` or ``cost``.
        name: Which step, question or figure.
        recorded: What it was; ``None`` for nothing.
        replayed: What it is now; ``None`` for nothing.
    """

    part: str
    name: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of running a recorded turn again.

    Attributes:
        recorded: What came of the turn.
        replayed: What came of it now.
        differences: What is not the same; what models used counts only where one was asked.
        unrecorded: What there is no record of, in words.
        ran: Context keys of the steps that ran anew.
    """

    recorded: TurnEnd
    replayed: TurnEnd
    differences: tuple[Difference, ...]
    unrecorded: tuple[str, ...]
    ran: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all is as it was."""
        return not self.differences

    def as_data(self) -> dict[str, Any]:
        """Return plain data, in which secrets are masked."""
        found: dict[str, Any] = mask_data(
            {
                "same": self.same,
                "differences": [
                    {name: getattr(one, name) for name in one.__slots__} for one in self.differences
                ],
                "unrecorded": list(self.unrecorded),
                "ran": list(self.ran),
                "recorded": self.recorded.model_dump(mode="json"),
                "replayed": self.replayed.model_dump(mode="json"),
            }
        )
        return found


async def replay(
    recording: Recording,
    registry: Registry,
    *,
    settings: Settings | None = None,
    model: Any = None,
    from_step: str | None = None,
    **options: Any,
) -> Replay:
    """Run a recorded turn again, with today's code, and say what is different.

    No body of a capability runs for a step that has a record, and nothing is written outside of this
    process. Plan, gate, policies, validation and routing are today's. What there is no record of
    ends the turn and says so.

    Args:
        recording: The turn.
        registry: What the agent is made of.
        settings: All settings of the agent; the defaults when not given.
        model: As for ``build_graph``: chooses, plans and answers anew. Without one no model is
            called, and choice, plan and answer are the recorded ones.
        from_step: Context key of the step from which on steps run anew; they may have no effect.
        **options: Anything else for ``build_graph``.

    Raises:
        ValidationError: There is no step ``from_step``, or one from there on has an effect.
        ConfigurationError: The graph cannot be built.

    >>> import asyncio
    >>> from framework import Registry
    >>> asyncio.run(replay(Recording(thread="t", turn=1), Registry())).replayed.status
    'failed'
    """
    if settings is None:
        from configs.settings import load_settings

        settings = await asyncio.to_thread(load_settings)
    anew, works = _anew(recording, registry, from_step), None
    if model is not None:  # what the steps worked on comes out of the recorded plan
        learned = _Script(recording, None, registry)
        await _run(learned, settings, None, options)
        works = learned.works
    script = _Script(recording, anew, registry, works)
    end = await _run(script, settings, model, options)
    differences = tuple(_differences(recording.end, end, costs=model is not None))
    return Replay(recording.end, end, differences, tuple(script.unrecorded), tuple(script.ran))


def _anew(recording: Recording, registry: Registry, from_step: str | None) -> frozenset[str] | None:
    """Return the keys of the steps that are still handed back; ``None`` for all."""
    if from_step is None:
        return None
    steps = recording.end.plan
    keys = [str(step["context_key"]) for step in steps]
    if from_step not in keys:
        raise ValidationError(
            f"The recorded plan has no step {from_step!r}.", fix=f"Its steps are {', '.join(keys)}."
        )
    place = keys.index(from_step)
    for step in steps[place:]:
        spec = registry.capabilities.get(step["capability"])
        if spec is not None and spec.effect != "none":
            raise ValidationError(
                f"The step {step['context_key']!r} ({spec.name}) has an effect ({spec.effect}), and"
                " a replay does not act.",
                fix="Begin behind it, or leave out --from.",
            )
    return frozenset(keys[:place])


class _Script:
    """What a recorded turn did, handed out piece by piece to whoever would do it anew."""

    def __init__(
        self,
        recording: Recording,
        anew: frozenset[str] | None,
        registry: Registry,
        works: dict[str, deque[dict[str, Any]]] | None = None,
    ) -> None:
        self.recording = recording
        self.registry = registry
        self.anew = anew
        self.unrecorded: list[str] = []
        self.ran: list[str] = []
        self.works: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._by_work = works
        self._visits: dict[str, deque[Visit]] = defaultdict(deque)
        self._steps: dict[tuple[str, str], deque[dict[str, Any]]] = defaultdict(deque)
        self._asked: list[tuple[frozenset[str], Said]] = []
        self.now = recording.at
        self.ruled: set[str] = set()
        self._failures = 0
        self._put_off: Counter[str] = Counter()
        for visit in recording.visits:
            self._visits[visit.node].append(visit)
            decided = visit.writes.get("approval_decisions") or {}
            self.ruled |= {key for key, entry in decided.items() if entry.get("rule")}
            keys = frozenset(entry["context_key"] for entry in asked_of(visit.question))
            if visit.node != "router":  # what a body asked was answered in it
                self._asked += [(keys, said) for said in visit.answers if keys]
            for envelope in visit.steps or _jumped(visit, registry):
                self._failures += "failure" in envelope
                if (envelope.get("question") or {}).get("kind") not in _OUTSIDE_SETTLE:
                    self._steps[_capability_of(envelope), envelope["key"]].append(envelope)
        last = recording.visits[-1] if recording.visits else None
        # A question out of the body of a capability, which nobody has answered.
        waits = last is not None and last.node != "approval" and recording.end.status == "waiting"
        self._open = last.question if last is not None and waits else None

    def missing(self, what: str) -> NoRecordError:
        """Return the error that says that there is no record of something."""
        self.unrecorded.append(what)
        return NoRecordError(f"There is no record of {what}, and a replay does nothing anew.")

    def visit(self, node: str) -> Visit:
        """Return what a node did at its next visit.

        Raises:
            NoRecordError: It was not visited so often.
            _RecordedFailureError: It failed.
        """
        if not self._visits[node]:
            raise self.missing(f"another visit of {node!r}")
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

    def answer(self, keys: frozenset[str]) -> Said | None:
        """Return what was answered to a question about steps; ``None`` for nothing."""
        ruled = {key: {"decision": "approve"} for key in keys & self.ruled}
        left = keys - self.ruled
        if ruled and not left:
            return Said(given=ruled, at=self.now)
        for place, (asked, said) in enumerate(self._asked):
            if asked == left:
                del self._asked[place]
                given = {**ruled, **said.given} if ruled else said.given
                return said.model_copy(update={"given": given})
        return None

    def is_live(self, attempt: Attempt, *, sought: bool = False) -> bool:
        """Tell whether a step runs anew; with another plan, once it was looked for in vain."""
        if self.anew is None or self.registry.capabilities[attempt.capability].effect != "none":
            return False
        live = sought if self._by_work is not None else attempt.key not in self.anew
        self.ran += [attempt.key] if live else []
        return live

    def step(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return what was saved of a step: by its key, or with another plan by what it works on.

        Returns:
            ``None`` for a step that a failure kept from beginning; nothing for one that runs anew.

        Raises:
            NoRecordError: Nothing was.
        """
        work = digest_of([attempt.capability, attempt.values, plain_inputs(attempt.inputs)])
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
        if self.is_live(attempt, sought=True):
            return {}
        if self._open:
            interrupt(self._open)
        if self._put_off[attempt.key] < self._failures and self._by_work is None:
            # The failure of a step beside it is under way, before which it did not begin.
            self._put_off[attempt.key] += 1
            return None
        if self.recording.end.status == "unfinished" and self._by_work is None:
            self.unrecorded.append(f"what came of {attempt.key!r}, in which the turn broke off")
            raise _BrokeOffError
        raise self.missing(f"the step {attempt.key!r} ({attempt.capability}) on these values")


def _jumped(visit: Visit, registry: Registry) -> list[dict[str, Any]]:
    """Return what a step left that a node sent the turn to, beside the plan."""
    if visit.node not in registry.capabilities:
        return []
    info = visit.writes.get("control_error_info")
    failed = {"failure": info} if visit.writes.get("control_has_error") else {}
    keys = visit.writes.get("execution_step_results") or {}
    return [{"key": key, "update": visit.writes, **failed} for key in keys]


def _capability_of(envelope: Mapping[str, Any]) -> str:
    entry = (envelope["update"].get("execution_step_results") or {}).get(envelope["key"]) or {}
    return str(entry.get("capability") or (envelope.get("question") or {}).get("capability"))


class _Announced:
    """Says of every step that its result is there, so that hooks around it do not run again."""

    stage = "observe"
    order = 0
    stands_around = ("step", "effect")

    def __init__(self, script: _Script) -> None:
        self._script = script

    async def around(self, attempt: Attempt, call_next: CallNext) -> Any:
        if self._script.is_live(attempt):
            return await call_next(attempt)
        return await call_next(replace(attempt, given=Given(None, "record")))


class _HandedBack:
    """Hands back what was saved of a step, through ``settle``, which checks it as it is today."""

    stage = "retry"
    order = 0
    stands_around = ("step", "effect")

    def __init__(self, script: _Script) -> None:
        self._script = script

    async def around(self, attempt: Attempt, call_next: CallNext) -> Any:
        if attempt.given is None:
            return await call_next(attempt)
        saved = self._script.step(attempt)
        if saved is None:
            return await call_next(replace(attempt, given=Given(STOPPED, "record")))
        if not saved:
            return await call_next(replace(attempt, given=None))
        if "question" in saved:
            return Question(**saved["question"])
        if "failure" in saved:
            about = (attempt.key, attempt.capability, attempt.index, attempt.objective)
            failure = replace(Failure.from_state(saved["failure"]), key=attempt.key)
            stopped = {k: v for k, v in saved["update"].items() if k in _STOPPED}
            return StepRecord(*about, error=failure, attempts=failure.attempts, updates=stopped)
        entry = saved["update"]["execution_step_results"][saved["key"]]
        given = Given(_returned(saved, entry), "record")
        found = await call_next(replace(attempt, number=entry.get("attempts", 1), given=given))
        if not isinstance(found, StepRecord):
            return found
        return replace(found, effect=entry.get("effect"), quality=entry.get("quality"))


def _returned(saved: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
    """Return what a step left in a form in which its capability could have returned it."""
    if entry.get("skipped"):
        return Skipped(entry["error"])
    update = {k: v for k, v in saved["update"].items() if k not in KEPT_BY_THE_GRAPH}
    stored = {
        kind: dict(found) for kind, found in update.get("capability_context_data", {}).items()
    }
    given = [{kind: stored[kind].pop(key)} for kind, key in entry.get("outputs", {}).items()]
    update["capability_context_data"] = {kind: left for kind, left in stored.items() if left}
    if "plan" in saved:
        update["planning_execution_plan"] = saved["plan"]
    return [*given, {name: value for name, value in update.items() if value}]


class _Strategies:
    """Extractor, selector, planner and answerer that say what was said then."""

    can_correct = False

    def __init__(self, script: _Script) -> None:
        self._script = script

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        writes = self._script.visit("task_extraction").writes
        names = ("depends_on_chat_history", "depends_on_user_memory")
        flags = {name: bool(writes.get(f"task_{name}")) for name in names}
        return ExtractedTask(task=writes["task_current_task"], **flags)

    async def select(self, *_: Any, **__: Any) -> Selection:
        writes = self._script.visit("classifier").writes
        told = writes["planning_selection"]
        answer = writes.get("task_custom_message") or ""
        return Selection(
            tuple(told["chosen"]), reason=told["reason"], answer=answer, deferred=told["deferred"]
        )

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        writes = self._script.visit("orchestrator").writes
        plan: ExecutionPlan = writes["planning_history"][-1]["plan"]
        return {**plan, "answer": writes.get("task_custom_message") or ""}  # type: ignore[typeddict-unknown-key]

    async def answer(self, request: AnswerRequest) -> str | BaseModel:
        writes = self._script.visit("clarify" if request.purpose == "clarify" else "respond").writes
        if request.form is not None:
            return request.form.model_validate(writes["execution_answer"])
        return str(messages_from_dict(writes["messages"])[-1].text)


class _Offline(_Strategies, ChainPlanner, LastMessageExtractor):
    """The same for a turn that had no model: whose words a plan holds is known by who made it."""


class _Hasty(SystemClock):
    """It is as late as it was; and it waits for nothing: what was waited for is in the record."""

    def __init__(self, script: _Script) -> None:
        self._script = script

    def now(self) -> float:
        return self._script.now

    async def sleep(self, seconds: float) -> None:
        del seconds


class Meter(UsageMetadataCallbackHandler):
    """Counts the calls of models and what they used."""

    calls = 0

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a call, whatever becomes of it."""
        self.calls += 1

    def cost(self) -> Cost:
        """Return what they used, by the prices of the process."""
        prices = PriceTable.of_process()
        costs = []
        for name, used in self.usage_metadata.items():
            snapshot = UsageSnapshot.of_message(AIMessage("", usage_metadata=used))
            costs.append(prices.cost(name, snapshot) if snapshot is not None else None)
        known = None not in costs and (bool(costs) or not self.calls)
        return Cost(
            model_calls=self.calls,
            input_tokens=sum(used["input_tokens"] for used in self.usage_metadata.values()),
            output_tokens=sum(used["output_tokens"] for used in self.usage_metadata.values()),
            cost_usd=sum(cost or 0.0 for cost in costs) if known else None,
        )


class _NoModel(BaseCallbackHandler):
    """Refuses every call of a model."""

    raise_error = True
    run_inline = True

    def __init__(self, script: _Script) -> None:
        self._script = script

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        raise self._script.missing("this call of a model")

    on_llm_start = on_chat_model_start


def _build(
    script: _Script, settings: Settings, model: Any, options: Mapping[str, Any], saver: Any
) -> Any:
    modelled = bool(script.recording.end.cost.model_calls or settings.model or settings.models)
    told = _Strategies(script) if modelled or "planner" in options else _Offline(script)
    kept = dict.fromkeys(("keep_turns", "keep_checkpoints", "keep_days"))
    ours: dict[str, Any] = {"model": None, "models": {}, "sinks": []}
    ours |= {"persistence": settings.persistence.model_copy(update=kept)}
    if model is None:
        same: dict[str, Any] = {"extractor": told, "selector": told, "planner": told}
        options = {**options, **same, "answerer": told, "answer_gate": None}
        ours |= {"selection": settings.selection.model_copy(update={"strategy": "auto"})}
        # What is used up in a replay is nobody's.
        free = [{k: v for k, v in one.items() if k != "store"} for one in settings.budgets]
        ours |= {"budgets": free, "answer_gate": None}
    behaviors = [*options.get("behaviors", ()), _Announced(script), _HandedBack(script)]
    graph: Any = build_graph(
        script.registry.with_(*_stand_ins(script)),
        model=model,
        checkpointer=saver,
        store=InMemoryStore(),
        settings=settings.model_copy(update=ours),
        **{"clock": _Hasty(script), **options, "behaviors": behaviors, "audit": False},
    )
    if model is None and modelled:  # it could have read and talked; asked, it would be refused
        graph.services.runner.chat_model = lambda _role: GenericFakeChatModel(messages=iter(()))
    return graph


async def _run(
    script: _Script, settings: Settings, model: Any, options: Mapping[str, Any]
) -> TurnEnd:
    """Run the turn once, in a database of its own, which is also that of limits and breakers.

    Raises:
        ConfigurationError: The graph cannot be built.
    """
    async with open_saver("sqlite://:memory:") as saver:
        graph = await asyncio.to_thread(_build, script, settings, model, options, saver)
        return await _turn(graph, script, saver, asks_models=model is not None)


async def _turn(graph: Any, script: _Script, saver: Any, *, asks_models: bool) -> TurnEnd:
    meter, taken = Meter(), script.recording
    callbacks: list[Any] = [meter] if asks_models else [_NoModel(script)]
    thread = {"thread_id": taken.thread}

    def config(by: Mapping[str, str]) -> Any:
        return {"configurable": {**by, **thread}, "callbacks": callbacks}

    known = graph.services.runner.schema.names
    before = {name: value for name, value in _state(taken.before).items() if name in known}
    given: Any = _state(taken.given)
    by, raised = taken.caller, ""
    try:
        if before:
            await graph.aupdate_state(config({}), before, as_node="error")
        while given is not None:
            values, given = await graph.ainvoke(given, config(by)), None
            for found in values.get(INTERRUPT, ())[:1]:
                keys = frozenset(entry["context_key"] for entry in asked_of(found.value))
                if (said := script.answer(keys)) is not None:
                    given, by, script.now = Command(resume=said.given), said.by, said.at
    except _BrokeOffError:
        pass  # as it did then
    except Exception as exc:
        # A turn that raises is a finding like any other.
        raised = f"{type(exc).__name__}: {exc}"
    try:
        end = (await record(saver, taken.thread)).end
    except PersistenceError:  # it was refused at the door
        end = TurnEnd()
    if raised:
        end.status, end.reason = "raised", raised
    end.asked = [entry for entry in end.asked if entry["context_key"] not in script.ruled]
    end.cost = meter.cost()
    return end


def _state(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: messages_from_dict(v) if k == "messages" else v for k, v in values.items()}


def _stand_ins(script: _Script) -> Iterator[type[Any]]:
    """Make nodes that write what nodes of one's own wrote."""
    for name, spec in script.registry.infrastructure.items():
        ours = spec.cls.__module__.partition(".")[0] in DEFAULT_INFRASTRUCTURE
        if not ours and name not in _LIVE_NODES:
            yield _stand_in(script, name, spec)


def _stand_in(script: _Script, name: str, spec: Any) -> type[Any]:
    async def execute(state: Any) -> Any:
        del state
        writes = script.visit(name).writes
        goto = writes.get("control_goto")
        kept = {k: v for k, v in _state(writes).items() if k not in KEPT_BY_THE_GRAPH}
        return Command(update=kept, goto=goto) if goto else kept

    parts = {name: getattr(spec, name) for name in ("name", "description", "before", "after")}
    parts |= {"execute": staticmethod(execute)}
    return infrastructure_node(type(spec.cls.__name__, (BaseInfrastructureNode,), parts))


def _differences(was: TurnEnd, now: TurnEnd, *, costs: bool) -> Iterator[Difference]:
    for part, old, new in (
        ("plan", _by_key(was.plan), _by_key(now.plan)),
        ("result", was.results, now.results),
        ("question", _by_key(was.asked), _by_key(now.asked)),
        ("answer", {"answer": was.answer}, {"answer": now.answer}),
        ("outcome", _outcome(was), _outcome(now)),
        ("cost", was.cost.model_dump(), now.cost.model_dump() if costs else was.cost.model_dump()),
    ):
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                yield Difference(part, name, old.get(name), new.get(name))


def _outcome(end: TurnEnd) -> dict[str, str]:
    return {"status": end.status, "reason": end.reason}


def _by_key(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return entries by context key; one that stands several times is numbered."""
    found: dict[str, Any] = {}
    for entry in entries:
        key = str(entry.get("context_key"))
        number = sum(name == key or name.startswith(f"{key} #") for name in found)
        found[f"{key} #{number + 1}" if number else key] = entry
    return found
