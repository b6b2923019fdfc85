"""The other end of a step that runs on another worker than its turn: ``finalize``'s checks to ``call``.

What :mod:`capgraph.pipeline.remote_dispatch` sent is read, run with the services of this worker, and what came of it
told as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import CapabilityError, CapgraphError, FatalExecutionError
from capgraph.base.ports import ApprovalRequest, Attempt, Caller, ForEachElement, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.base.turn_budget import TurnBudget
from capgraph.pipeline.effect_ledger import Claim, EffectLedger
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.remote_dispatch import NOT_TRANSFERRED
from capgraph.pipeline.runner import StepRunner
from capgraph.pipeline.state_update import with_nested_effects
from capgraph.pipeline.step_execution import (
    AttemptContext,
    ResultOptions,
    StepApproval,
    StepExecution,
    StepResult,
    TurnControl,
)
from capgraph.planning.parameters import validated_parameters
from capgraph.state import ContextTypes, TurnView, load_context
from capgraph.telemetry.usage_callback import current_turn_budget


def remote_turn_view(request: Mapping[str, Any]) -> TurnView:
    """Return the reading of a turn that a step of it gets on another worker."""
    return TurnView(
        request["state"],
        thread_id=request["thread"],
        caller=Caller(**request["caller"]),
        opener_id=request["turn"],
    )


async def run_remote_step(
    runner: StepRunner,
    request: Mapping[str, Any],
    journal: Journal,
    *,
    seconds_left: Callable[[], float | None],
    is_draining: Callable[[], bool],
) -> dict[str, Any] | None:
    """Run a try that another worker's turn asks for; what comes back is plain data.

    Args:
        runner: The runner of this worker.
        request: What :func:`~capgraph.pipeline.remote_dispatch.away` sent.
        journal: The records of the thread.
        seconds_left: How long the turn may still run its steps.
        is_draining: Whether this process is to stop.

    Returns:
        What :func:`~capgraph.pipeline.remote_dispatch.away` reads; ``None`` where the process is to stop before the step began.

    Raises:
        PersistenceError: Nothing that the step did could be reported.
    """
    spec = runner.config.registry.capabilities[request["attempt"]["capability"]]
    job = _remote_execution(runner, spec, request, journal, seconds_left, is_draining)
    budget = current_turn_budget() or TurnBudget()
    attempt = _remote_attempt(job.view, request["attempt"], request["element"])
    try:
        prepared = _with_validated_inputs(attempt, job, request)
        result: StepResult = await runner.attempt_stages(spec, has_budget=job.bounded)(
            job, prepared
        )
        if isinstance(result, StepRecord):
            result = with_nested_effects(result, job.nested_effects)
    except GraphBubbleUp as signal:
        result = await failed_record(job, attempt, _interrupt_error(spec.name, signal))
    except FatalExecutionError as exc:
        return {"fatal": str(exc)}
    except CapgraphError as exc:
        if getattr(exc, "stops_run", False):
            raise
        result = await failed_record(job, attempt, exc)
    if result is None:
        return None
    failure = job.attempt_state.failure
    return {
        **_serialize_result(result),
        "raised": _describe_error(failure[0]) if failure is not None else None,
        "effect_done": job.effect_done,
        "acted_inside": job.nested_effect_done,
        "model_calls": budget.model_calls - request["model_calls"],
    }


def _remote_execution(
    runner: StepRunner,
    spec: CapabilitySpec,
    request: Mapping[str, Any],
    journal: Journal,
    seconds_left: Callable[[], float | None],
    is_draining: Callable[[], bool],
) -> StepExecution:
    view, agreed, keys = remote_turn_view(request), request["agreed"], request["state_keys"]
    name, new, mine = request["claim"] or ("", False, False)
    claimed = Claim(name, {}, is_new=new, is_own=mine) if name else None
    door = AttemptContext(
        view=view,
        ledger=EffectLedger(journal, view, visit_id=request["visit"], existing_claim=claimed),
        plan_keys=request["plan_keys"],
        control=TurnControl(seconds_left=seconds_left, is_draining=is_draining),
        result_options=ResultOptions(None if keys is None else frozenset(keys)),
        missing_state_keys=NOT_TRANSFERRED,
    )
    return StepExecution(
        spec,
        runner.config,
        door,
        key=request["attempt"]["key"],
        bounded=request["bounded"],
        flow=runner.config.flow,
        labels=request["labels"],
        approval=None
        if agreed is None
        else StepApproval(ApprovalRequest(**agreed), request["agreed_until"]),
    )


def _remote_attempt(
    view: TurnView, fields: Mapping[str, Any], element: Mapping[str, Any] | None
) -> Attempt:
    place = {name: fields[name] for name in ("key", "index", "total")}
    return replace(
        view.create_attempt(fields["capability"], fields["step"], **place),
        number=fields["number"],
        objective=fields["objective"],
        element=None if element is None else ForEachElement(**element),
    )


def _with_validated_inputs(
    attempt: Attempt, job: StepExecution, request: Mapping[str, Any]
) -> Attempt:
    """Return the attempt as ``validate`` left it where its turn runs."""
    types = job.config.registry.context_types
    parameters, values = validated_parameters(job.spec, request["values"])
    inputs = {
        label: _unpack_input(value, f"{attempt.key}.{label}", types)
        for label, value in request["inputs"].items()
    }
    return replace(attempt, inputs=inputs, parameters=parameters, values=values)


def refusal_reply(error: Exception) -> dict[str, Any]:
    """Return what :func:`~capgraph.pipeline.remote_dispatch.away` reads of a step that a worker could not even begin."""
    return {"refused": _describe_error(error)}


def _interrupt_error(name: str, signal: GraphBubbleUp) -> CapabilityError:
    return CapabilityError(
        f"{name!r} interrupted itself ({type(signal).__name__}), and it runs on another worker than"
        " its turn, which alone can ask a person.",
        fix="Leave out its queue; or declare requires_approval, which is asked before it is sent.",
    )


def _unpack_input(value: Mapping[str, Any], key: str, types: ContextTypes) -> Any:
    if "type" in value:
        return load_context(value["type"], key, value["data"], types)
    if "many" in value:
        return [_unpack_input(item, key, types) for item in value["many"]]
    return value["plain"]


def _serialize_result(result: StepRecord | ApprovalRequest) -> dict[str, Any]:
    if isinstance(result, ApprovalRequest):
        return {"question": result.to_state()}
    record = {one.name: getattr(result, one.name) for one in fields(result)}
    if result.error is not None:
        error = {one.name: getattr(result.error, one.name) for one in fields(result.error)}
        record["error"] = {**error, "severity": result.error.severity.value}
    return {"record": record}


def _describe_error(error: BaseException) -> dict[str, Any]:
    return {
        "types": [[cls.__module__, cls.__qualname__] for cls in type(error).__mro__],
        "message": getattr(error, "message", None) or str(error),
        "fix": getattr(error, "fix", None),
    }
