"""Runs a recorded turn again, on its own records and without the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.configs.logger import mask_data
from capgraph.engine.bind import as_registry
from capgraph.evaluation.recording import (
    RecordedOutcome,
    Recording,
    TurnCost,
    question_steps,
    record,
)
from capgraph.evaluation.replay_script import (
    ModelCallBlocker,
    RecordedClock,
    RecordedOfflineStrategies,
    RecordedResultMarker,
    RecordedResults,
    RecordedStrategies,
    ReplayScript,
    TruncatedRecordingError,
    recorded_nodes,
    restore_state,
)
from capgraph.graph import build_graph
from capgraph.langgraph_compat import INTERRUPT
from capgraph.pipeline.step_waits import next_wake_time
from capgraph.registry import Registry
from capgraph.stores import open_saver
from capgraph.stores.waits import store_signal
from capgraph.telemetry.usage import PriceTable, UsageSnapshot

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that came out in another way.

    Attributes:
        part: ``plan``, ``result``, ``question``, ``find_answer``, ``outcome`` or ``cost``.
        name: Which step, question or figure.
        recorded: What it was; ``None`` for nothing.
        replayed: What it is now; ``None`` for nothing.
    """

    part: str
    name: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of running a recorded turn again.

    Attributes:
        recorded: What came of the turn.
        replayed: What came of it now.
        differences: What is not the same; what models used counts only where one was asked.
        unrecorded: What there is no record of, in words.
        ran: Context keys of the steps that ran anew.
    """

    recorded: RecordedOutcome
    replayed: RecordedOutcome
    differences: tuple[Difference, ...]
    unrecorded: tuple[str, ...]
    ran: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether all is as it was."""
        return not self.differences

    def as_data(self) -> dict[str, Any]:
        """Return plain data, in which secrets are masked."""
        found: dict[str, Any] = mask_data(
            {
                "same": self.is_same,
                "differences": [asdict(one) for one in self.differences],
                "unrecorded": list(self.unrecorded),
                "ran": list(self.ran),
                "recorded": self.recorded.model_dump(mode="json"),
                "replayed": self.replayed.model_dump(mode="json"),
            }
        )
        return found


async def replay(
    recording: Recording,
    registry: Registry | Iterable[Any],
    *,
    settings: Settings | None = None,
    model: Any = None,
    from_step: str | None = None,
    **options: Any,
) -> ReplayResult:
    """Run a recorded turn again, with today's code, and say what is different.

    No body of a capability runs for a step that has a record, and nothing is written outside of this
    process. Plan, gate, policies, validation and routing are today's. What there is no record of
    ends the turn and says so.

    Args:
        recording: The turn.
        registry: What the agent is made of: a registry, or capabilities.
        settings: All settings of the agent; the defaults when not given.
        model: As for ``build_graph``: chooses, plans and answers anew. Without one no model is
            called, and choice, plan and answer are the recorded ones.
        from_step: Context key of the step from which on steps run anew; they may have no effect.
        **options: Anything else for ``build_graph``.

    Raises:
        ValidationError: There is no step ``from_step``, or one from there on has an effect.
        ConfigurationError: The graph cannot be built.

    >>> import asyncio
    >>> from capgraph import Registry
    >>> asyncio.run(replay(Recording(thread="t", turn=1), Registry())).replayed.status
    'failed'
    """
    if settings is None:
        from capgraph.configs.settings import load_settings

        settings = await asyncio.to_thread(load_settings)
    registry = as_registry(registry)
    anew, works = _reused_steps(recording, registry, from_step), None
    if model is not None:  # what the steps worked on comes out of the recorded plan
        learned = ReplayScript(recording, None, registry)
        await _run_script(learned, settings, None, options)
        works = learned.works
    script = ReplayScript(recording, anew, registry, works)
    end = await _run_script(script, settings, model, options)
    differences = tuple(_compare_outcomes(recording.end, end, compare_costs=model is not None))
    return ReplayResult(
        recording.end, end, differences, tuple(script.unrecorded), tuple(script.ran)
    )


def _reused_steps(
    recording: Recording, registry: Registry, from_step: str | None
) -> frozenset[str] | None:
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


class UsageMeter(UsageMetadataCallbackHandler):
    """Counts the calls of models and what they used."""

    calls: int = 0

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a call, whatever becomes of it."""
        self.calls += 1

    def cost(self) -> TurnCost:
        """Return what they used, by the prices of the process."""
        prices = PriceTable.of_process()
        costs = []
        for name, used in self.usage_metadata.items():
            snapshot = UsageSnapshot.of_message(AIMessage("", usage_metadata=used))
            costs.append(prices.cost(name, snapshot) if snapshot is not None else None)
        known = None not in costs and (bool(costs) or not self.calls)
        return TurnCost(
            model_calls=self.calls,
            input_tokens=sum(used["input_tokens"] for used in self.usage_metadata.values()),
            output_tokens=sum(used["output_tokens"] for used in self.usage_metadata.values()),
            cost_usd=sum(cost or 0.0 for cost in costs) if known else None,
        )


def _build_graph(
    script: ReplayScript, settings: Settings, model: Any, options: Mapping[str, Any], saver: Any
) -> Any:
    modelled = bool(script.recording.end.cost.model_calls or settings.model or settings.models)
    told = (
        RecordedStrategies(script)
        if modelled or "planner" in options
        else RecordedOfflineStrategies(script)
    )
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
    behaviors = [
        *options.get("behaviors", ()),
        RecordedResultMarker(script),
        RecordedResults(script),
    ]
    graph: Any = build_graph(
        script.registry.with_(*recorded_nodes(script)),
        model=model,
        checkpointer=saver,
        store=InMemoryStore(),
        settings=settings.model_copy(update=ours),
        **{"clock": RecordedClock(script), **options, "behaviors": behaviors, "audit": False},
    )
    if model is None and modelled:  # it could have read and talked; asked, it would be refused
        graph.services.runner_config.chat_model = lambda _role: GenericFakeChatModel(messages=iter(()))
    return graph


async def _run_script(
    script: ReplayScript, settings: Settings, model: Any, options: Mapping[str, Any]
) -> RecordedOutcome:
    """Run the turn once, in a database of its own, which is also that of limits and breakers.

    Raises:
        ConfigurationError: The graph cannot be built.
    """
    async with open_saver("sqlite://:memory:") as saver:
        graph = await asyncio.to_thread(_build_graph, script, settings, model, options, saver)
        return await _run_turn(graph, script, saver, uses_models=model is not None)


async def _run_turn(
    graph: Any, script: ReplayScript, saver: Any, *, uses_models: bool
) -> RecordedOutcome:
    meter, taken = UsageMeter(), script.recording
    callbacks: list[Any] = [meter] if uses_models else [ModelCallBlocker(script)]
    thread = {"thread_id": taken.thread}

    def config(by: Mapping[str, str]) -> Any:
        return {"configurable": {**by, **thread}, "callbacks": callbacks}

    known = graph.services.runner_config.schema.names
    before = {name: value for name, value in restore_state(taken.before).items() if name in known}
    given: Any = restore_state(taken.given)
    by, raised = taken.caller, ""
    try:
        if before:
            await graph.aupdate_state(config({}), before, as_node="error")
        for key, value in taken.signals.items():
            await store_signal(saver, taken.thread, key, value, "")
        goes_on = True
        while goes_on:
            values, given = await graph.ainvoke(given, config(by)), None
            open_ = values.get(INTERRUPT, ())
            waits = [wait for asked in open_ for wait in _waits_of(asked.value)]
            moment = min((next_wake_time(wait, script.now) for wait in waits), default=script.now)
            goes_on = script.now < moment <= taken.until  # until then it had not come to more
            script.now = moment if goes_on else script.now
            for found in open_[:1]:
                keys = frozenset(entry["context_key"] for entry in question_steps(found.value))
                if (said := script.find_answer(keys)) is not None:
                    given, by, script.now = Command(resume=said.given), said.by, said.at
                    goes_on = True
    except TruncatedRecordingError:
        pass  # as it did then
    except Exception as exc:
        # A turn that raises is a finding like any other.
        raised = f"{type(exc).__name__}: {exc}"
    try:
        end = (await record(saver, taken.thread)).end
    except PersistenceError:  # it was refused at the door
        end = RecordedOutcome()
    if raised:
        end.status, end.reason = "raised", raised
    end.asked = [entry for entry in end.asked if entry["context_key"] not in script.ruled]
    end.cost = meter.cost()
    return end


def _waits_of(asked: Any) -> Sequence[Mapping[str, Any]]:
    return asked.get("waits") or () if isinstance(asked, Mapping) else ()


def _compare_outcomes(
    recorded: RecordedOutcome, replayed: RecordedOutcome, *, compare_costs: bool
) -> Iterator[Difference]:
    for part, old, new in (
        ("plan", _index_by_key(recorded.plan), _index_by_key(replayed.plan)),
        ("result", recorded.results, replayed.results),
        ("question", _index_by_key(recorded.asked), _index_by_key(replayed.asked)),
        ("answer", {"answer": recorded.answer}, {"answer": replayed.answer}),
        ("outcome", _outcome_fields(recorded), _outcome_fields(replayed)),
        (
            "cost",
            recorded.cost.model_dump(),
            replayed.cost.model_dump() if compare_costs else recorded.cost.model_dump(),
        ),
    ):
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                yield Difference(part, name, old.get(name), new.get(name))


def _outcome_fields(outcome: RecordedOutcome) -> dict[str, str]:
    return {"status": outcome.status, "reason": outcome.reason}


def _index_by_key(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return entries by context key; one that stands several times is numbered."""
    found: dict[str, Any] = {}
    for entry in entries:
        key = str(entry.get("context_key"))
        number = sum(name == key or name.startswith(f"{key} #") for name in found)
        found[f"{key} #{number + 1}" if number else key] = entry
    return found
