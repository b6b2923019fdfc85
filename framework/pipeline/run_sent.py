"""The other end of a step that runs on another worker than its turn: ``finalize``'s checks to ``call``.

What :mod:`capgraph.pipeline.away` sent is read, run with the services of this worker, and what came of it
told as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.budget import TurnBudget
from capgraph.base.errors import CapabilityError, CapgraphError, FatalExecutionError
from capgraph.base.ports import Attempt, Caller, Element, Question, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.pipeline.away import STAYS
from capgraph.pipeline.effect_ledger import Claim, EffectLedger
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.job import Agreement, Door, Job, Result, ResultReading, TurnControl
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.runner import StepRunner
from capgraph.pipeline.state_update import with_inside
from capgraph.planning.parameters import validated_parameters
from capgraph.state import ContextTypes, TurnView, load_context
from capgraph.telemetry.metered import current_budget


def view_of(request: Mapping[str, Any]) -> TurnView:
    """Return the reading of a turn that a step of it gets on another worker."""
    return TurnView(
        request["state"],
        thread_id=request["thread"],
        caller=Caller(**request["caller"]),
        opened_by=request["turn"],
    )


async def run_sent(
    runner: StepRunner,
    request: Mapping[str, Any],
    journal: Journal,
    *,
    seconds_left: Callable[[], float | None],
    draining: Callable[[], bool],
) -> dict[str, Any] | None:
    """Run a try that another worker's turn asks for; what comes back is plain data.

    Args:
        runner: The runner of this worker.
        request: What :func:`~capgraph.pipeline.away.away` sent.
        journal: The records of the thread.
        seconds_left: How long the turn may still run its steps.
        draining: Whether this process is to stop.

    Returns:
        What :func:`~capgraph.pipeline.away.away` reads; ``None`` where the process is to stop before the step began.

    Raises:
        PersistenceError: Nothing that the step did could be reported.
    """
    spec = runner.equipment.registry.capabilities[request["attempt"]["capability"]]
    job = _job_of(runner, spec, request, journal, seconds_left, draining)
    budget = current_budget() or TurnBudget()
    attempt = _attempt_of(job.view, request["attempt"], request["element"])
    try:
        prepared = _prepared(attempt, job, request)
        result: Result = await runner.inside(spec, bounded=job.bounded)(job, prepared)
        if isinstance(result, StepRecord):
            result = with_inside(result, job.inside)
    except GraphBubbleUp as signal:
        result = await failed_record(job, attempt, _cannot_ask(spec.name, signal))
    except FatalExecutionError as exc:
        return {"fatal": str(exc)}
    except CapgraphError as exc:
        if getattr(exc, "ends_the_run", False):
            raise
        result = await failed_record(job, attempt, exc)
    if result is None:
        return None
    failure = job.current.failure
    return {
        **_plain(result),
        "raised": _told(failure[0]) if failure is not None else None,
        "effect_done": job.effect_done,
        "acted_inside": job.acted_inside,
        "model_calls": budget.model_calls - request["model_calls"],
    }


def _job_of(
    runner: StepRunner,
    spec: CapabilitySpec,
    request: Mapping[str, Any],
    journal: Journal,
    seconds_left: Callable[[], float | None],
    draining: Callable[[], bool],
) -> Job:
    view, agreed, keys = view_of(request), request["agreed"], request["state_keys"]
    name, new, mine = request["claim"] or ("", False, False)
    claimed = Claim(name, {}, new=new, mine=mine) if name else None
    door = Door(
        view=view,
        ledger=EffectLedger(journal, view, visit=request["visit"], claimed=claimed),
        plan_keys=request["plan_keys"],
        control=TurnControl(seconds_left=seconds_left, draining=draining),
        reading=ResultReading(None if keys is None else frozenset(keys)),
        absent=STAYS,
    )
    return Job(
        spec,
        runner.equipment,
        door,
        key=request["attempt"]["key"],
        bounded=request["bounded"],
        flow=runner.equipment.flow,
        labels=request["labels"],
        agreement=None
        if agreed is None
        else Agreement(Question(**agreed), request["agreed_until"]),
    )


def _attempt_of(
    view: TurnView, about: Mapping[str, Any], element: Mapping[str, Any] | None
) -> Attempt:
    place = {name: about[name] for name in ("key", "index", "total")}
    return replace(
        view.attempt(about["capability"], about["step"], **place),
        number=about["number"],
        objective=about["objective"],
        element=None if element is None else Element(**element),
    )


def _prepared(attempt: Attempt, job: Job, request: Mapping[str, Any]) -> Attempt:
    """Return the attempt as ``validate`` left it where its turn runs."""
    types = job.equipment.registry.context_types
    parameters, values = validated_parameters(job.spec, request["values"])
    inputs = {
        label: _unpacked(value, f"{attempt.key}.{label}", types)
        for label, value in request["inputs"].items()
    }
    return replace(attempt, inputs=inputs, parameters=parameters, values=values)


def refused(error: Exception) -> dict[str, Any]:
    """Return what :func:`~capgraph.pipeline.away.away` reads of a step that a worker could not even begin."""
    return {"refused": _told(error)}


def _cannot_ask(name: str, signal: GraphBubbleUp) -> CapabilityError:
    return CapabilityError(
        f"{name!r} interrupted itself ({type(signal).__name__}), and it runs on another worker than"
        " its turn, which alone can ask a person.",
        fix="Leave out its queue; or declare requires_approval, which is asked before it is sent.",
    )


def _unpacked(value: Mapping[str, Any], key: str, types: ContextTypes) -> Any:
    if "type" in value:
        return load_context(value["type"], key, value["data"], types)
    if "many" in value:
        return [_unpacked(item, key, types) for item in value["many"]]
    return value["plain"]


def _plain(result: StepRecord | Question) -> dict[str, Any]:
    if isinstance(result, Question):
        return {"question": result.to_state()}
    record = {one.name: getattr(result, one.name) for one in fields(result)}
    if result.error is not None:
        error = {one.name: getattr(result.error, one.name) for one in fields(result.error)}
        record["error"] = {**error, "severity": result.error.severity.value}
    return {"record": record}


def _told(error: BaseException) -> dict[str, Any]:
    return {
        "types": [[cls.__module__, cls.__qualname__] for cls in type(error).__mro__],
        "message": getattr(error, "message", None) or str(error),
        "fix": getattr(error, "fix", None),
    }
