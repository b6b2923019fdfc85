"""Execution of an attempt that another process dispatched.

It reads a request of :mod:`capgraph.pipeline.remote_dispatch`, runs the stages from ``finalize`` to
``call`` with the services of this worker, and returns the reply as plain data.
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
from capgraph.pipeline.state_update import add_nested_effects
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
    """Create the turn view for a step that a remote worker runs, from the dispatch request."""
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
    """Run a dispatched attempt and return the reply as plain data.

    Args:
        runner: Step runner of this worker.
        request: Request that :func:`~capgraph.pipeline.remote_dispatch.dispatch_remote` sent.
        journal: Durable records of the thread.
        seconds_left: Function that returns the remaining time for the turn's steps.
        is_draining: Function that returns True if this process is shutting down.

    Returns:
        The reply, or ``None`` if the process began to shut down before the step started.

    Raises:
        PersistenceError: The step's result cannot be stored.
    """
    spec = runner.config.registry.capabilities[request["attempt"]["capability"]]
    execution = _create_execution(runner, spec, request, journal, seconds_left, is_draining)
    budget = current_turn_budget() or TurnBudget()
    attempt = _create_attempt(execution.view, request["attempt"], request["element"])
    try:
        prepared = _restore_validated_inputs(attempt, execution, request)
        result: StepResult = await runner.attempt_stages(spec, has_budget=execution.has_budget)(
            execution, prepared
        )
        if isinstance(result, StepRecord):
            result = add_nested_effects(result, execution.nested_effects)
    except GraphBubbleUp as signal:
        result = await failed_record(execution, attempt, _create_interrupt_error(spec.name, signal))
    except FatalExecutionError as exc:
        return {"fatal": str(exc)}
    except CapgraphError as exc:
        if getattr(exc, "stops_run", False):
            raise
        result = await failed_record(execution, attempt, exc)
    if result is None:
        return None
    failure = execution.attempt_state.failure
    return {
        **_serialize_result(result),
        "raised": _describe_error(failure[0]) if failure is not None else None,
        "effect_done": execution.effect_done,
        "acted_inside": execution.nested_effect_done,
        "model_calls": budget.model_calls - request["model_calls"],
    }


def _create_execution(
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
    context = AttemptContext(
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
        context,
        key=request["attempt"]["key"],
        has_budget=request["bounded"],
        flow=runner.config.flow,
        labels=request["labels"],
        approval=None
        if agreed is None
        else StepApproval(ApprovalRequest(**agreed), request["agreed_until"]),
    )


def _create_attempt(
    view: TurnView, fields: Mapping[str, Any], element: Mapping[str, Any] | None
) -> Attempt:
    position = {name: fields[name] for name in ("key", "index", "total")}
    return replace(
        view.create_attempt(fields["capability"], fields["step"], **position),
        number=fields["number"],
        objective=fields["objective"],
        element=None if element is None else ForEachElement(**element),
    )


def _restore_validated_inputs(
    attempt: Attempt, execution: StepExecution, request: Mapping[str, Any]
) -> Attempt:
    """Restore the inputs and parameters that the ``validate`` stage set in the turn's process."""
    types = execution.config.registry.context_types
    parameters, values = validated_parameters(execution.spec, request["values"])
    inputs = {
        label: _unpack_input(value, f"{attempt.key}.{label}", types)
        for label, value in request["inputs"].items()
    }
    return replace(attempt, inputs=inputs, parameters=parameters, values=values)


def refusal_reply(error: Exception) -> dict[str, Any]:
    """Create the reply to a dispatch request whose step the worker could not start."""
    return {"refused": _describe_error(error)}


def _create_interrupt_error(name: str, signal: GraphBubbleUp) -> CapabilityError:
    return CapabilityError(
        f"{name!r} cannot interrupt ({type(signal).__name__}): it runs on a remote worker, which"
        " cannot ask a person.",
        fix="remove its queue, or declare requires_approval, which is checked before dispatch.",
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
    record = {attribute.name: getattr(result, attribute.name) for attribute in fields(result)}
    if result.error is not None:
        error = {
            attribute.name: getattr(result.error, attribute.name)
            for attribute in fields(result.error)
        }
        record["error"] = {**error, "severity": result.error.severity.value}
    return {"record": record}


def _describe_error(error: BaseException) -> dict[str, Any]:
    return {
        "types": [[cls.__module__, cls.__qualname__] for cls in type(error).__mro__],
        "message": getattr(error, "message", None) or str(error),
        "fix": getattr(error, "fix", None),
    }
