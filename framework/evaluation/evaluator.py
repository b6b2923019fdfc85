"""Runs an agent over an evaluation set."""

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
    """Run every case and judge it.

    Each case has a thread and a store of its own, in memory: nothing that one case leaves behind
    reaches another, or the user's own threads. What capabilities write elsewhere is real. A case
    with a recording is replayed instead, which touches nothing outside, and calls no model but one
    that is given here.

    Args:
        dataset: The set.
        registry: What the agent is made of.
        settings: All settings of the agent; every case runs as the caller that they name.
        model: As for ``build_graph``.
        jobs: Cases that run at once; times are only worth comparing with one.
        label: Name of this configuration in the report.
        on_case: Called with each result as it comes.
        **options: Anything else for ``build_graph``.

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
    live = any(case.recording is None for case in dataset.cases)
    build: Any = build_graph if live else lambda *_, **__: None
    graph = build(registry, model=model, checkpointer=InMemorySaver(), settings=settings, **options)
    gate = asyncio.Semaphore(jobs)
    judge = AnswerJudge(dataset.judge) if dataset.judge is not None else None
    caller = configurable_for(configured_caller(graph.services.settings)) if live else {}

    def written_out(names: Iterable[str] | None) -> list[str] | None:
        # A recipe stands for its steps: they are what runs.
        return (
            None
            if names is None
            else [one for name in names for one in underlying_capabilities(name, registry)]
        )

    async def one(case: Case) -> CaseResult:
        async with gate:
            case = case.model_copy(update={"capabilities": written_out(case.capabilities)})
            if case.recording is not None:
                result = await _replay_case(case, registry, settings, model, options)
            else:
                result = await _run_case(
                    case, graph.copy(update={"store": InMemoryStore()}), caller
                )
            result = replace(result, chosen=tuple(written_out(result.chosen) or ()))
            if judge is not None and result.answer:
                result = replace(result, verdict=await judge.judge(case.request, result.answer))
        if on_case is not None:
            on_case(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in dataset.cases]
    labels = await judge.judge_labels(jobs) if judge is not None else ()
    return Report(tuple(task.result() for task in tasks), label, tuple(labels))


async def _replay_case(
    case: Case, registry: Registry, settings: Settings | None, model: Any, options: dict[str, Any]
) -> CaseResult:
    started = time.perf_counter()
    recording = await asyncio.to_thread(load_recording, case.recording or "")
    found = await replay(recording, registry, settings=settings, model=model, **options)
    end = found.replayed
    told = _plan_figures({"steps": end.plan}, end.cost)
    status = end.status
    if case.outcome == NO_CAPABILITY and not told["nodes"] and status in ("completed", "failed"):
        status = NO_CAPABILITY
    return CaseResult(
        case,
        **told,
        chosen=tuple(dict.fromkeys(told["nodes"])),
        answer=end.answer,
        outcome=status,
        reason=end.reason,
        seconds=time.perf_counter() - started,
        results=_result_texts(end),
        recorded=_result_texts(recording.end),
    )


def _plan_figures(plan: Mapping[str, Any] | None, cost: TurnCost) -> dict[str, Any]:
    return {
        "nodes": tuple(plan_nodes(plan)),
        "edges": tuple(plan_edges(plan)),
        **cost.model_dump(),
    }


def _result_texts(end: RecordedOutcome) -> tuple[str, ...]:
    """Return what steps gave, whatever their keys: another plan may call them by other names."""
    return tuple(json.dumps(entry, sort_keys=True) for entry in end.results.values())


async def _run_case(case: Case, graph: Any, caller: Mapping[str, Any]) -> CaseResult:
    thread = uuid.uuid4().hex
    meter = UsageMeter()
    values: dict[str, Any] = {}
    given: dict[str, Any] = {"capability_context_data": case.context} if case.context else {}
    configurable = {"thread_id": thread, **caller}
    started = time.perf_counter()
    try:
        for request in case.earlier:
            await graph.ainvoke(
                {"messages": [("user", request)], **given}, {"configurable": configurable}
            )
            given = {}
        started = time.perf_counter()
        values = await graph.ainvoke(
            {"messages": [("user", case.request)], **given},
            {"configurable": configurable, "callbacks": [meter]},
        )
        outcome, reason = _read_outcome(values, case)
    except Exception as exc:
        # A case that raises is a finding like any other; the rest of the set still runs.
        outcome, reason = "raised", f"{type(exc).__name__}: {exc}"
    seconds = time.perf_counter() - started
    return CaseResult(
        case,
        **_plan_figures(values.get("planning_execution_plan"), meter.cost()),
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
        return "waiting", "A person is asked."
    outcome = values.get("execution_outcome") or {}
    status, reason = outcome.get("status", "failed"), outcome.get("reason") or ""
    if case.outcome == NO_CAPABILITY and not plan_nodes(values.get("planning_execution_plan")):
        # A model answers such a request itself; offline the agent reports that nothing fits.
        code = outcome.get("code")
        if status == "completed" or (status == "failed" and code in (None, NO_CAPABILITY)):
            status = NO_CAPABILITY
    return status, reason


def validate_dataset(dataset: Dataset, registry: Registry) -> None:
    """Check that an agent has the capabilities and context types that a set names.

    Raises:
        ConfigurationError: It has not; lists every problem with its path.
    """
    problems = []
    for number, case in enumerate(dataset.cases):
        for field in ("capabilities", "optional"):
            for position, name in enumerate(getattr(case, field) or []):
                if name not in registry.capabilities:
                    near = closest_match(name, registry.capabilities)
                    hint = f" Did you mean {near!r}?" if near else ""
                    problems.append(
                        f"  cases[{number}].{field}[{position}]: there is no capability"
                        f" {name!r}.{hint}"
                    )
        problems += [
            f"  cases[{number}].context.{kind}: there is no context type {kind!r}."
            for kind in case.context
            if kind not in registry.context_types
        ]
    if problems:
        raise ConfigurationError(
            f"The evaluation set {dataset.name!r} does not fit the agent:\n" + "\n".join(problems)
        )
