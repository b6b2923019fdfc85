"""Function that runs an agent on an evaluation set and measures the results."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from capgraph.approvals.grounding import ungrounded_steps
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.suggestions import closest_match
from capgraph.evaluation.dataset import NO_CAPABILITY, Case, Dataset
from capgraph.evaluation.judge import AnswerJudge
from capgraph.evaluation.metrics import plan_edges, plan_nodes
from capgraph.evaluation.recording import RecordedOutcome, TurnCost, load_recording
from capgraph.evaluation.replay_turn import UsageMeter, replay
from capgraph.evaluation.report import CaseResult, Report
from capgraph.graph import build_graph
from capgraph.graph.turn_runner import last_answer
from capgraph.pipeline.run_config import configurable_for, configured_caller
from capgraph.planning.recipes import underlying_capabilities
from capgraph.registry import Registry
from capgraph.state import TurnView

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


async def evaluate(
    dataset: Dataset,
    registry: Registry,
    *,
    settings: Settings | None = None,
    model: Any = None,
    jobs: int = 1,
    label: str = "",
    on_case: Callable[[CaseResult], None] | None = None,
    **options: Any,
) -> Report:
    """Run all cases of an evaluation set and compare the results with the expectations.

    Each case has its own in-memory thread and store, so it cannot affect other cases or
    existing threads. Effects outside the agent are real, such as a sent email. A case with a
    recording is replayed instead, which has no external effects and calls no model other than
    ``model``.

    Args:
        dataset: Evaluation set.
        registry: Registry of the agent.
        settings: Settings of the agent. Cases run as the caller that they configure.
        model: Model, as for ``build_graph``.
        jobs: Maximum number of concurrent cases. Durations are comparable only if it is 1.
        label: Name of the configuration in the report.
        on_case: Function that is called with each result.
        **options: Other options of ``build_graph``.

    Raises:
        ConfigurationError: A case names a capability that the agent does not have.

    >>> import asyncio
    >>> from capgraph import Registry
    >>> cases = [{"name": "song", "request": "Sing", "capabilities": []}]
    >>> report = asyncio.run(
    ...     evaluate(Dataset(version=1, name="tiny", cases=cases), Registry())
    ... )
    >>> report.figures["passed"]
    1.0
    """
    validate_dataset(dataset, registry)
    has_live_cases = any(case.recording is None for case in dataset.cases)
    build: Any = build_graph if has_live_cases else lambda *_, **__: None
    graph = build(registry, model=model, checkpointer=InMemorySaver(), settings=settings, **options)
    gate = asyncio.Semaphore(jobs)
    judge = AnswerJudge(dataset.judge) if dataset.judge is not None else None
    caller = configurable_for(configured_caller(graph.services.settings)) if has_live_cases else {}

    def expand_recipes(names: Iterable[str] | None) -> list[str] | None:
        # The plan contains the steps of a recipe instead of the recipe.
        return (
            None
            if names is None
            else [run_one for name in names for run_one in underlying_capabilities(name, registry)]
        )

    async def run_one(case: Case) -> CaseResult:
        async with gate:
            case = case.model_copy(update={"capabilities": expand_recipes(case.capabilities)})
            if case.recording is not None:
                result = await _replay_case(case, registry, settings, model, options)
            else:
                result = await _run_case(
                    case, graph.copy(update={"store": InMemoryStore()}), caller
                )
            result = replace(result, chosen=tuple(expand_recipes(result.chosen) or ()))
            if judge is not None and result.answer:
                result = replace(result, verdict=await judge.judge(case.request, result.answer))
        if on_case is not None:
            on_case(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_one(case)) for case in dataset.cases]
    labels = await judge.judge_labels(jobs) if judge is not None else ()
    return Report(tuple(task.result() for task in tasks), label, tuple(labels))


async def _replay_case(
    case: Case, registry: Registry, settings: Settings | None, model: Any, options: dict[str, Any]
) -> CaseResult:
    started = time.perf_counter()
    recording = await asyncio.to_thread(load_recording, case.recording or "")
    result = await replay(recording, registry, settings=settings, model=model, **options)
    end = result.replayed
    figures = _measure_plan({"steps": end.plan}, end.cost)
    status = end.status
    if case.outcome == NO_CAPABILITY and not figures["nodes"] and status in ("completed", "failed"):
        status = NO_CAPABILITY
    return CaseResult(
        case,
        **figures,
        chosen=tuple(dict.fromkeys(figures["nodes"])),
        answer=end.answer,
        outcome=status,
        reason=end.reason,
        seconds=time.perf_counter() - started,
        results=_format_results(end),
        recorded=_format_results(recording.end),
    )


def _measure_plan(plan: Mapping[str, Any] | None, cost: TurnCost) -> dict[str, Any]:
    return {"nodes": tuple(plan_nodes(plan)), "edges": tuple(plan_edges(plan)), **cost.model_dump()}


def _format_results(end: RecordedOutcome) -> tuple[str, ...]:
    """Serialize step results for comparison, without keys, because keys differ between plans."""
    return tuple(json.dumps(entry, sort_keys=True) for entry in end.results.values())


async def _run_case(case: Case, graph: Any, caller: Mapping[str, Any]) -> CaseResult:
    thread = uuid.uuid4().hex
    meter = UsageMeter()
    values: dict[str, Any] = {}
    context_input: dict[str, Any] = (
        {"capability_context_data": case.context} if case.context else {}
    )
    configurable = {"thread_id": thread, **caller}
    started = time.perf_counter()
    try:
        for request in case.earlier:
            await graph.ainvoke(
                {"messages": [("user", request)], **context_input}, {"configurable": configurable}
            )
            context_input = {}
        started = time.perf_counter()
        values = await graph.ainvoke(
            {"messages": [("user", case.request)], **context_input},
            {"configurable": configurable, "callbacks": [meter]},
        )
        outcome, reason = _read_outcome(values, case)
    except Exception as exc:
        # An exception is the outcome of its case. The remaining cases still run.
        outcome, reason = "raised", f"{type(exc).__name__}: {exc}"
    seconds = time.perf_counter() - started
    return CaseResult(
        case,
        **_measure_plan(values.get("planning_execution_plan"), meter.cost()),
        chosen=tuple(values.get("planning_active_capabilities") or ()),
        answer=last_answer(values),
        outcome=outcome,
        reason=reason,
        seconds=seconds,
        ungrounded=sum(
            map(len, ungrounded_steps(TurnView(values), graph.services.registry).values())
        ),
    )


def _read_outcome(values: dict[str, Any], case: Case) -> tuple[str, str]:
    if values.get("__interrupt__"):
        return "waiting", "The turn waits for an answer."
    outcome = values.get("execution_outcome") or {}
    status, reason = outcome.get("status", "failed"), outcome.get("reason") or ""
    if case.outcome == NO_CAPABILITY and not plan_nodes(values.get("planning_execution_plan")):
        # A model answers such a request itself. Offline, the agent reports that nothing fits.
        code = outcome.get("code")
        if status == "completed" or (status == "failed" and code in (None, NO_CAPABILITY)):
            status = NO_CAPABILITY
    return status, reason


def validate_dataset(dataset: Dataset, registry: Registry) -> None:
    """Validate the capability and context type names in an evaluation set against a registry.

    Raises:
        ConfigurationError: A name is unknown. The message lists all problems with their paths.
    """
    problems = []
    for number, case in enumerate(dataset.cases):
        for field in ("capabilities", "optional"):
            for position, name in enumerate(getattr(case, field) or []):
                if name not in registry.capabilities:
                    near = closest_match(name, registry.capabilities)
                    hint = f" Did you mean {near!r}?" if near else ""
                    problems.append(
                        f"  cases[{number}].{field}[{position}]: unknown capability {name!r}.{hint}"
                    )
        problems += [
            f"  cases[{number}].context.{context_type}: unknown context type {context_type!r}."
            for context_type in case.context
            if context_type not in registry.context_types
        ]
    if problems:
        raise ConfigurationError(
            f"The evaluation set {dataset.name!r} does not match the agent:\n" + "\n".join(problems)
        )
