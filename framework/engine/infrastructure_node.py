"""One infrastructure node: timed, metered, its failure read and its update checked.

The stages that apply to a node are ``observe`` (log, model calls), ``finalize`` (what it gave, what
its failure means) and ``call``; it has no inputs, no effect and no slot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END
from langgraph.types import Command, Overwrite, Send

from capgraph.base.errors import (
    ErrorSeverity,
    FatalExecutionError,
    InfrastructureError,
    LimitError,
    PersistenceError,
)
from capgraph.base.ports import Failure, RetryRule
from capgraph.base.spec import InfrastructureSpec
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.logger import get_logger
from capgraph.configs.settings_model import Limits
from capgraph.configs.streaming import get_streamer
from capgraph.engine.caller_plan import AcceptedDigest
from capgraph.engine.node_behaviors import execute_with_behaviors
from capgraph.engine.services import Services
from capgraph.engine.turn_guardrails import CLOSING_NODES, AnswerGuard
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.governance.budget_enforcement import charge_node
from capgraph.pipeline.call import accepted_arguments
from capgraph.pipeline.failures import (
    classify_failure,
    clear_failure_update,
    failure_update,
    fatal_error,
    stop_update,
)
from capgraph.pipeline.middleware import last_of_type
from capgraph.pipeline.result_normalization import serialize_state_value
from capgraph.pipeline.retry_policy import apply_retry_rule
from capgraph.pipeline.run_config import (
    acting_as,
    billed_to,
    billing_subject,
    current_runtime,
    wants_raw_errors,
)
from capgraph.state import STATE_KEYS, TurnView
from capgraph.telemetry.event_dispatcher import event_context
from capgraph.telemetry.usage_callback import count_model_calls

_BUDGET_COUNTERS = {
    "orchestrator": "plans",
    "classifier": "classifications",
    "router": "routings",
}
_MAX_ROUTINGS = 100
"""How often a turn may be sent on, by the router or a node of one's own, besides for its steps."""
_BEGIN_TURN = "begin_turn"
_ACCEPTED_KEY = "planning_accepted"


async def run_infrastructure_node(
    spec: InfrastructureSpec,
    state: Mapping[str, Any],
    services: Services | None = None,
    **extra: Any,
) -> Any:
    """Run one infrastructure node: timing, streaming, classification, bookkeeping.

    Returns:
        The node's state updates or ``Command``; after a failure, the error entry of the state.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
    """
    logger = get_logger("framework", spec.name)
    started = time.perf_counter()
    view = TurnView(state)
    # What the state says before a turn begins belongs to the last one.
    before, ids = ({}, {}) if spec.name == _BEGIN_TURN else (view.budget, view.event_ids)
    paid = {**state, "control_turn": None} if spec.name == _BEGIN_TURN else state
    budget = TurnBudget.from_plain(before)
    limits = services.limits if services is not None else Limits()
    endless = budget.routings > _MAX_ROUTINGS + 2 * budget.allowed_attempts
    closing = AnswerGuard(spec.name, view, services)
    if not spec.quiet:
        logger.info("Starting %s", spec.description)
    try:
        run = services.view(state) if services is not None else view
        await _check_may_run(spec, services, budget, run, is_endless=endless)
        payer = TurnView(paid).owner or billing_subject()  # of the turn around, where one is
        turn = services.view(paid) if services is not None else TurnView(paid)
        # What is nested in the node acts for who began the turn, whoever resumes it.
        acting = acting_as(turn.caller) if turn.caller != turn.sender else nullcontext()
        with (
            acting,
            billed_to(payer),
            event_context(**ids),
            count_model_calls(budget, limits.max_model_calls),
        ):
            account = None if services is None else services.spending(turn)
            async with charge_node(account, spec.name):
                given = _execute_arguments(spec, state, services, logger, extra)
                work = closing.withhold_events(partial(spec.cls.execute, state, **given))
                if spec.behaviors:
                    read = partial(_classify, spec, view=view)
                    result = await execute_with_behaviors(spec, view, limits, work, read)
                else:
                    result = await work()
                update = await closing.guard_update(_check_result(spec, result, services))
    except (GraphBubbleUp, FatalExecutionError, PersistenceError):
        # What cannot be saved must not be reported as done: the run stops, the thread stays.
        raise
    except Exception as exc:
        if wants_raw_errors():
            raise
        with event_context(**ids):
            failure = _log_failure(spec, exc, time.perf_counter() - started, view)
        _count(spec, budget, failure)
        update = {**failure_update([failure]), "control_attempts": {spec.name: failure.attempts}}
        update |= stop_update(exc) | _budget_update(spec, budget, before, services)
        if spec.name == "error":  # nothing comes after it, and a turn ends with a message
            told = {"messages": [AIMessage(content=failure.message)]}
            outcome = describe_outcome({**state, **update})
            closing.emit_replacement(failure.message, outcome)
            return {**update, **told, "execution_outcome": outcome}
        # The router has no node behind it that would look at its failure.
        return Command(update=update, goto="error") if spec.name == "router" else update
    if not spec.quiet:
        logger.info("Completed %s in %.2fs", spec.description, time.perf_counter() - started)
    _count(spec, budget, None, update)
    if (
        isinstance(update, Command)
        and spec.name in CLOSING_NODES
        and (endless or update.goto in (END, ()))
    ):
        update = dict(_pairs(update.update))  # it ends the turn, with a message in any case
    used = _budget_update(spec, budget, before, services)
    if isinstance(update, Command):
        return replace(update, update=[*_pairs(update.update), *used.items()])
    spoken = _ensure_message(
        spec, {**_recovered_update(spec, view), **update, **used}, view, services
    )
    if spoken.get("execution_outcome") and account is not None and (left := await account.left()):
        spoken["execution_outcome"] = {**spoken["execution_outcome"], "budget_left": left}
    return spoken


async def _check_may_run(
    spec: InfrastructureSpec,
    services: Services | None,
    budget: TurnBudget,
    view: TurnView,
    *,
    is_endless: bool,
) -> None:
    """Make sure that the turn may go on; what ends it may run in any case.

    Raises:
        LimitError: It goes round in circles.
        StoppedError: Somebody stopped it.
    """
    if spec.name in CLOSING_NODES:
        return
    if is_endless:
        raise LimitError(
            f"The turn was sent on {budget.routings} times, and it does not end.",
            fix="Look at the nodes of your own that send it to the router, or say goto.",
        )
    # The router of a turn that a node found stopped has only to end it.
    known = spec.name == "router" and view.state.get("control_is_killed")
    if services is not None and spec.name != _BEGIN_TURN and not known:
        await services.journal().raise_if_stopped(view.user_ids)


def _execute_arguments(
    spec: InfrastructureSpec,
    state: Mapping[str, Any],
    services: Services | None,
    logger: Any,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    offered = {
        **extra,
        "logger": logger,
        "streamer": get_streamer("framework", spec.name, state),
        "runtime": current_runtime(),
        "services": services,
    }
    names = accepted_arguments(spec.cls.execute)
    return offered if names is None else {n: v for n, v in offered.items() if n in names}


def _check_result(spec: InfrastructureSpec, result: Any, services: Services | None) -> Any:
    if result is None:
        return {}
    if not isinstance(result, (Mapping, Command)):
        raise InfrastructureError(
            f"{spec.name!r} returned {type(result).__name__}.",
            fix="Return a dictionary of state updates, a Command or None.",
        )
    keys = services.runner_config.schema.names if services is not None else STATE_KEYS
    plain = check_state_writes(
        spec.name, result.update if isinstance(result, Command) else result, keys
    )
    if isinstance(result, Command):
        _check_goto(spec, result, services)
        return replace(result, update=plain)
    return dict(plain)


def check_state_writes(writer: str, update: Any, keys: frozenset[str]) -> list[tuple[str, Any]]:
    """Return what is written into the state, as pairs, in the form in which it is kept.

    Args:
        writer: Who writes it: a node, or a person by ``update_state``.
        update: Keys and values.
        keys: The keys that the state has.

    Raises:
        InfrastructureError: A key is none of the state, or only the graph itself may write it.
        ValidationError: A value has another form than its key.
    """
    written = _pairs(update)
    unknown = sorted({name for name, _ in written} - keys)
    if unknown:
        raise InfrastructureError(
            f"{writer!r} returned {unknown}, which are no keys of the state and would be lost.",
            fix="Use keys of AgentState, or give build_graph a state_schema that has them.",
        )
    if any(name == "control_goto" and item is not None for name, item in written):
        raise InfrastructureError(
            f"{writer!r} returned 'control_goto', which only the graph itself may write.",
            fix="Return Command(goto=…) to go elsewhere.",
        )
    if any(
        name == _ACCEPTED_KEY and not isinstance(item, AcceptedDigest | None)
        for name, item in written
    ):
        raise InfrastructureError(
            f"{writer!r} returned {_ACCEPTED_KEY!r}, which only the gate of plans may write.",
            fix="Return 'planning_execution_plan' alone: the plan is checked, then it runs.",
        )
    return [
        (
            name,
            str(item)
            if name == _ACCEPTED_KEY and item
            else serialize_state_value(name, item, writer),
        )
        for name, item in written
        # What a turn has used up, no node can give back.
        if name != "control_budget" or not isinstance(item, Overwrite)
    ]


def _check_goto(spec: InfrastructureSpec, result: Command[Any], services: Services | None) -> None:
    """Refuse a place that does not exist: LangGraph would end the run there without a word."""
    if services is None or result.graph is not None:
        return
    known = {*services.registry.infrastructure, *services.registry.capabilities, END}
    places = result.goto if isinstance(result.goto, (list, tuple)) else [result.goto]
    names = [place.node if isinstance(place, Send) else place for place in places]
    if unknown := [name for name in names if name not in known]:
        raise InfrastructureError(
            f"{spec.name!r} sends the turn to {unknown}, which is no node.",
            fix=f"Use one of: {', '.join(sorted(known - {END}))}.",
        )


def _pairs(update: Any) -> list[tuple[str, Any]]:
    """Return an update as pairs, the form in which LangGraph takes a key twice."""
    return list(update.items()) if isinstance(update, Mapping) else list(update or ())


def _recovered_update(spec: InfrastructureSpec, view: TurnView) -> dict[str, Any]:
    # A node that succeeds after its own failure takes the error back.
    if view.failure is None or view.failure.get("node_name") != spec.name:
        return {}
    return {**clear_failure_update(), "control_attempts": {spec.name: 0}}


def _classify(
    spec: InfrastructureSpec, exc: Exception, duration: float = 0.0, *, view: TurnView
) -> Failure:
    context = {
        "infrastructure_node": spec.name,
        "execution_time": duration,
        "current_state": view.state,
    }
    tries = view.failed_attempts.get(spec.name, 0) + 1
    failure = classify_failure(spec.cls, exc, context, node=spec.name, attempts=tries)
    return apply_retry_rule(failure, last_of_type(spec.behaviors, RetryRule), exc)


def _log_failure(
    spec: InfrastructureSpec, exc: Exception, duration: float, view: TurnView
) -> Failure:
    failure = _classify(spec, exc, duration, view=view)
    if failure.severity is ErrorSeverity.FATAL:
        raise fatal_error(spec.name, failure) from exc
    get_logger("framework", spec.name).warning(
        "%s failed (%s): %s", spec.name, failure.severity.value, failure.message
    )
    return failure


def _count(
    spec: InfrastructureSpec,
    budget: TurnBudget,
    failure: Failure | None,
    update: Any = None,
) -> None:
    """Count plans and choices, whoever makes them; those whose making failed count as well."""
    if isinstance(update, Command) and update.goto and spec.name != "router":
        budget.routings += 1
    name = _BUDGET_COUNTERS.get(spec.name)
    if name is None or (failure is not None and failure.severity is ErrorSeverity.RETRIABLE):
        return
    made = 1
    told = update.get("control_budget") if isinstance(update, Mapping) else None
    if isinstance(told, Mapping):
        looks = int(told.get("looks", 0))
        made = 0 if looks > budget.looks else max(1, int(told.get(name, 0)) - getattr(budget, name))
        budget.looks = max(budget.looks, looks)
        budget.allowed_attempts = max(budget.allowed_attempts, int(told.get("allowed_attempts", 0)))
    setattr(budget, name, getattr(budget, name) + made)


def _budget_update(
    spec: InfrastructureSpec,
    budget: TurnBudget,
    previous_budget: Mapping[str, Any],
    services: Services | None,
) -> dict[str, Any]:
    """Return what the node used up; a turn begins with nothing used."""
    if services is None:
        return {}
    plain = budget.to_plain()
    if spec.name == _BEGIN_TURN:
        return {"control_budget": Overwrite(plain)}
    return (
        {}
        if plain == TurnBudget.from_plain(previous_budget).to_plain()
        else {"control_budget": plain}
    )


def _ensure_message(
    spec: InfrastructureSpec,
    update: dict[str, Any],
    view: TurnView,
    services: Services | None,
) -> dict[str, Any]:
    """Make sure that a turn ends with a message, whoever wrote the node that ends it."""
    if spec.name not in CLOSING_NODES or services is None or update.get("control_has_error"):
        return update
    outcome = update.get("execution_outcome") or describe_outcome(view.state)
    if update.get("messages"):
        return {**update, "execution_outcome": outcome}
    text = f"The turn ended ({outcome['status']}), and {spec.name!r} wrote no message."
    return {**update, "messages": [AIMessage(content=text)], "execution_outcome": outcome}
