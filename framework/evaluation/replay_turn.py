"""Replay of a recorded turn with current code, without external effects."""

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
    create_recorded_nodes,
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
    """Single difference between a recorded turn and its replay.

    Attributes:
        part: ``plan``, ``result``, ``question``, ``answer``, ``outcome``, or ``cost``.
        name: Name of the step, approval request, or metric.
        recorded: Recorded value, or ``None``.
        replayed: Value in the replay, or ``None``.
    """

    part: str
    name: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of replaying a recorded turn, with both outcomes and their differences.

    Attributes:
        recorded: Outcome of the recorded turn.
        replayed: Outcome of the replay.
        differences: Differences between the two. Costs are compared only if a model was called.
        unrecorded: Descriptions of the results that were not recorded.
        ran: Context keys of the steps that ran again.
    """

    recorded: RecordedOutcome
    replayed: RecordedOutcome
    differences: tuple[Difference, ...]
    unrecorded: tuple[str, ...]
    ran: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """True if the replay produced the same outcome as the recorded turn."""
        return not self.differences

    def as_data(self) -> dict[str, Any]:
        """Return the replay result as plain data, with secrets masked."""
        data: dict[str, Any] = mask_data(
            {
                "same": self.is_same,
                "differences": [asdict(difference) for difference in self.differences],
                "unrecorded": list(self.unrecorded),
                "ran": list(self.ran),
                "recorded": self.recorded.model_dump(mode="json"),
                "replayed": self.replayed.model_dump(mode="json"),
            }
        )
        return data


async def replay(
    recording: Recording,
    registry: Registry | Iterable[Any],
    *,
    settings: Settings | None = None,
    model: Any = None,
    from_step: str | None = None,
    **options: Any,
) -> ReplayResult:
    """Replay a recorded turn with the current code and return the differences.

    Recorded steps are not executed, and nothing is written outside this process. Plan checks,
    policies, validation, and routing do run again. If the replay needs a result that was not
    recorded, the turn ends and reports the missing record.

    Args:
        recording: Recording of the turn.
        registry: Registry, or capabilities of the agent.
        settings: Settings of the agent. Defaults to the configured settings.
        model: Model, as for ``build_graph``, which selects, plans, and answers again. Without it,
            no model is called, and the recorded selection, plan, and answer are used.
        from_step: Context key of the first step to run again. This step and all later ones must not
            have an effect.
        **options: Other options of ``build_graph``.

    Raises:
        ValidationError: The plan has no step ``from_step``, or a step from there on has an effect.
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
    reused, recorded_works = _find_reused_steps(recording, registry, from_step), None
    if model is not None:  # a first run finds the inputs of the recorded steps
        first_script = ReplayScript(recording, None, registry)
        await _replay_once(first_script, settings, None, options)
        recorded_works = first_script.records_by_work
    script = ReplayScript(recording, reused, registry, recorded_works)
    end = await _replay_once(script, settings, model, options)
    differences = tuple(compare_outcomes(recording.end, end, compare_costs=model is not None))
    return ReplayResult(
        recording.end, end, differences, tuple(script.unrecorded), tuple(script.ran)
    )


def _find_reused_steps(
    recording: Recording, registry: Registry, from_step: str | None
) -> frozenset[str] | None:
    """Return the keys of the steps whose recorded results a replay reuses.

    ``None`` means that all recorded results are reused.
    """
    if from_step is None:
        return None
    steps = recording.end.plan
    keys = [str(step["context_key"]) for step in steps]
    if from_step not in keys:
        raise ValidationError(
            f"The recorded plan does not contain a step {from_step!r}.",
            fix=f"Use one of {', '.join(keys)}.",
        )
    start = keys.index(from_step)
    for step in steps[start:]:
        spec = registry.capabilities.get(step["capability"])
        if spec is not None and spec.effect != "none":
            raise ValidationError(
                f"The step {step['context_key']!r} ({spec.name}) has the effect {spec.effect!r}, which"
                " a replay must not repeat.",
                fix="Start at a later step, or omit --from.",
            )
    return frozenset(keys[:start])


class UsageMeter(UsageMetadataCallbackHandler):
    """Callback handler that counts model calls and the tokens that they use."""

    calls: int = 0

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a call, even if it fails."""
        self.calls += 1

    def cost(self) -> TurnCost:
        """Return the model usage so far, with costs based on the prices in this process."""
        prices = PriceTable.of_process()
        costs = []
        for name, usage in self.usage_metadata.items():
            snapshot = UsageSnapshot.of_message(AIMessage("", usage_metadata=usage))
            costs.append(prices.cost(name, snapshot) if snapshot is not None else None)
        is_complete = None not in costs and (bool(costs) or not self.calls)
        return TurnCost(
            model_calls=self.calls,
            input_tokens=sum(usage["input_tokens"] for usage in self.usage_metadata.values()),
            output_tokens=sum(usage["output_tokens"] for usage in self.usage_metadata.values()),
            cost_usd=sum(cost or 0.0 for cost in costs) if is_complete else None,
        )


def _build_graph(
    script: ReplayScript, settings: Settings, model: Any, options: Mapping[str, Any], saver: Any
) -> Any:
    has_model = bool(script.recording.end.cost.model_calls or settings.model or settings.models)
    strategies = (
        RecordedStrategies(script)
        if has_model or "planner" in options
        else RecordedOfflineStrategies(script)
    )
    unlimited = dict.fromkeys(("keep_turns", "keep_checkpoints", "keep_days"))
    overrides: dict[str, Any] = {"model": None, "models": {}, "sinks": []}
    overrides |= {"persistence": settings.persistence.model_copy(update=unlimited)}
    if model is None:
        replaced: dict[str, Any] = {
            "extractor": strategies,
            "selector": strategies,
            "planner": strategies,
        }
        options = {**options, **replaced, "answerer": strategies, "answer_gate": None}
        overrides |= {"selection": settings.selection.model_copy(update={"strategy": "auto"})}
        # A replay must not consume shared budgets.
        private_budgets = [
            {k: v for k, v in budget.items() if k != "store"} for budget in settings.budgets
        ]
        overrides |= {"budgets": private_budgets, "answer_gate": None}
    behaviors = [
        *options.get("behaviors", ()),
        RecordedResultMarker(script),
        RecordedResults(script),
    ]
    graph: Any = build_graph(
        script.registry.with_(*create_recorded_nodes(script)),
        model=model,
        checkpointer=saver,
        store=InMemoryStore(),
        settings=settings.model_copy(update=overrides),
        **{"clock": RecordedClock(script), **options, "behaviors": behaviors, "audit": False},
    )
    if model is None and has_model:  # a model must be present, but calls to it are blocked
        graph.services.runner_config.chat_model = lambda _role: GenericFakeChatModel(
            messages=iter(())
        )
    return graph


async def _replay_once(
    script: ReplayScript, settings: Settings, model: Any, options: Mapping[str, Any]
) -> RecordedOutcome:
    """Replay a recorded turn once, using a temporary in-memory database.

    Raises:
        ConfigurationError: The graph cannot be built.
    """
    async with open_saver("sqlite://:memory:") as saver:
        graph = await asyncio.to_thread(_build_graph, script, settings, model, options, saver)
        return await _run_turn(graph, script, saver, uses_models=model is not None)


async def _run_turn(
    graph: Any, script: ReplayScript, saver: Any, *, uses_models: bool
) -> RecordedOutcome:
    meter, recording = UsageMeter(), script.recording
    callbacks: list[Any] = [meter] if uses_models else [ModelCallBlocker(script)]
    thread = {"thread_id": recording.thread}

    def config(by: Mapping[str, str]) -> Any:
        return {"configurable": {**by, **thread}, "callbacks": callbacks}

    known_keys = graph.services.runner_config.schema.names
    before = {
        name: value for name, value in restore_state(recording.before).items() if name in known_keys
    }
    turn_input: Any = restore_state(recording.given)
    by, raised = recording.caller, ""
    try:
        if before:
            await graph.aupdate_state(config({}), before, as_node="error")
        for key, value in recording.signals.items():
            await store_signal(saver, recording.thread, key, value, "")
        continues = True
        while continues:
            values, turn_input = await graph.ainvoke(turn_input, config(by)), None
            interrupts = values.get(INTERRUPT, ())
            waits = [wait for question in interrupts for wait in _list_waits(question.value)]
            wake_time = min(
                (next_wake_time(wait, script.now) for wait in waits), default=script.now
            )
            # After the last checkpoint, the recorded turn still waited.
            continues = script.now < wake_time <= recording.until
            script.now = wake_time if continues else script.now
            for open_question in interrupts[:1]:
                keys = frozenset(
                    entry["context_key"] for entry in question_steps(open_question.value)
                )
                if (answer := script.find_answer(keys)) is not None:
                    turn_input, by, script.now = Command(resume=answer.given), answer.by, answer.at
                    continues = True
    except TruncatedRecordingError:
        pass  # the recorded turn ended here too
    except Exception as exc:
        # An exception is an outcome that is compared like any other.
        raised = f"{type(exc).__name__}: {exc}"
    try:
        end = (await record(saver, recording.thread)).end
    except PersistenceError:  # the turn was rejected before it began
        end = RecordedOutcome()
    if raised:
        end.status, end.reason = "raised", raised
    end.asked = [entry for entry in end.asked if entry["context_key"] not in script.rule_approved]
    end.cost = meter.cost()
    return end


def _list_waits(question: Any) -> Sequence[Mapping[str, Any]]:
    return question.get("waits") or () if isinstance(question, Mapping) else ()


def compare_outcomes(
    recorded: RecordedOutcome, replayed: RecordedOutcome, *, compare_costs: bool
) -> Iterator[Difference]:
    """Yield the differences between the outcomes of a recorded and a replayed turn."""
    for part, old, new in (
        ("plan", _index_by_key(recorded.plan), _index_by_key(replayed.plan)),
        ("result", recorded.results, replayed.results),
        ("question", _index_by_key(recorded.asked), _index_by_key(replayed.asked)),
        ("answer", {"answer": recorded.answer}, {"answer": replayed.answer}),
        ("outcome", _format_outcome(recorded), _format_outcome(replayed)),
        (
            "cost",
            recorded.cost.model_dump(),
            replayed.cost.model_dump() if compare_costs else recorded.cost.model_dump(),
        ),
    ):
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                yield Difference(part, name, old.get(name), new.get(name))


def _format_outcome(outcome: RecordedOutcome) -> dict[str, str]:
    return {"status": outcome.status, "reason": outcome.reason}


def _index_by_key(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Index plan steps or approval requests by context key.

    A number is appended to repeated keys, such as ``mail #2``.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        key = str(entry.get("context_key"))
        number = sum(name == key or name.startswith(f"{key} #") for name in found)
        found[f"{key} #{number + 1}" if number else key] = entry
    return found
