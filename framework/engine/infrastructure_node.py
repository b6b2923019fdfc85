"""Execution of an infrastructure node.

A node has no inputs, effects, or slots. Of the stages, only ``observe``, ``finalize``, and ``call``
apply: timing and usage, checks of the update and classification of failures, and the call itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from capgraph.configs.limits import Limits
from capgraph.configs.logger import get_logger
from capgraph.configs.streaming import get_streamer
from capgraph.engine.caller_plan import AcceptedDigest
from capgraph.engine.node_behaviors import execute_with_behaviors
from capgraph.engine.services import Services
from capgraph.engine.turn_guardrails import CLOSING_NODES, AnswerGuard
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.governance.budget_enforcement import charge_node
from capgraph.langgraph_compat import running_graph_channels
from capgraph.pipeline.call import accepted_arguments, check_extra_arguments
from capgraph.pipeline.failures import (
    classify_failure,
    clear_failure_update,
    create_fatal_error,
    failure_update,
    stop_update,
)
from capgraph.pipeline.middleware import find_last_of_type
from capgraph.pipeline.result_normalization import serialize_state_value
from capgraph.pipeline.retry_policy import apply_retry_rule
from capgraph.pipeline.run_config import (
    acting_for_turn,
    billed_to,
    billing_subject,
    current_runtime,
    wants_raw_errors,
)
from capgraph.state import STATE_KEYS, TurnView
from capgraph.telemetry.event_dispatcher import event_context
from capgraph.telemetry.usage_callback import count_model_calls

_BUDGET_COUNTERS = {"orchestrator": "plans", "classifier": "classifications", "router": "routings"}
_MAX_ROUTINGS = 100
"""Maximum number of routing decisions in a turn, in addition to those for its steps."""
_SUPPLIED_ARGUMENTS = ("logger", "streamer", "runtime", "services")
_BEGIN_TURN = "begin_turn"
_ACCEPTED_KEY = "planning_accepted"


async def run_infrastructure_node(
    spec: InfrastructureSpec,
    state: Mapping[str, Any],
    services: Services | None = None,
    **extra: Any,
) -> Any:
    """Run an infrastructure node, such as the router, and return its state updates.

    Args:
        spec: Declarations of the node.
        state: State of the graph.
        services: Services of ``build_graph``.
        **extra: Additional arguments of ``execute``.

    Returns:
        The state updates or the ``Command`` of the node, or the state's error entry after a
        failure.

    Raises:
        FatalExecutionError: The failure was classified as FATAL. The original exception is
            chained.
        ValidationError: ``execute`` does not accept an argument in ``extra``.
    """
    check_extra_arguments(spec.cls, extra, _SUPPLIED_ARGUMENTS)
    logger = get_logger("framework", spec.name)
    started = time.perf_counter()
    view = TurnView(state)
    # Before a turn starts, the state still contains the previous turn.
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
        payer = TurnView(paid).owner or billing_subject()  # of the enclosing turn, if there is one
        turn = services.view(paid) if services is not None else TurnView(paid)
        # Nested code acts for the caller who started the turn, even if another one resumes it.
        with (
            acting_for_turn(turn.caller, turn.sender),
            billed_to(payer),
            event_context(**ids),
            count_model_calls(budget, limits.max_model_calls),
        ):
            account = None if services is None else services.spending(turn)
            async with charge_node(account, spec.name):
                arguments = _create_arguments(spec, state, services, logger, extra)
                work = closing.withhold_events(partial(spec.cls.execute, state, **arguments))
                if spec.behaviors:
                    read = partial(_classify, spec, view=view)
                    result = await execute_with_behaviors(spec, view, limits, work, read)
                else:
                    result = await work()
                update = await closing.guard_update(_check_result(spec, result, services))
    except (GraphBubbleUp, FatalExecutionError, PersistenceError):
        # The run must end, because its results cannot be saved.
        raise
    except Exception as exc:
        if wants_raw_errors() or not _can_store_failures(services):
            raise
        with event_context(**ids):
            failure = _log_failure(spec, exc, time.perf_counter() - started, view)
        _count_plans(spec, budget, failure)
        update = {**failure_update([failure]), "control_attempts": {spec.name: failure.attempts}}
        update |= stop_update(exc) | _create_budget_update(spec, budget, before, services)
        if spec.name == "error":  # the last node of the turn, which must end with a message
            messages = {"messages": [AIMessage(content=failure.message)]}
            outcome = describe_outcome({**state, **update})
            closing.emit_replacement(failure.message, outcome)
            return {**update, **messages, "execution_outcome": outcome}
        # No node after the router handles its failure.
        return Command(update=update, goto="error") if spec.name == "router" else update
    if not spec.quiet:
        logger.info("Completed %s in %.2fs", spec.description, time.perf_counter() - started)
    _count_plans(spec, budget, None, update)
    if (
        isinstance(update, Command)
        and spec.name in CLOSING_NODES
        and (endless or update.goto in (END, ()))
    ):
        # A node that ends the turn always writes a message.
        update = dict(update_pairs(update.update))
    budget_update = _create_budget_update(spec, budget, before, services)
    if isinstance(update, Command):
        return replace(update, update=[*update_pairs(update.update), *budget_update.items()])
    final_update = _ensure_message(
        spec, {**_create_recovered_update(spec, view), **update, **budget_update}, view, services
    )
    if (
        final_update.get("execution_outcome")
        and account is not None
        and (remaining := await account.remaining())
    ):
        final_update["execution_outcome"] = {
            **final_update["execution_outcome"],
            "budget_left": remaining,
        }
    return final_update


async def _check_may_run(
    spec: InfrastructureSpec,
    services: Services | None,
    budget: TurnBudget,
    view: TurnView,
    *,
    is_endless: bool,
) -> None:
    """Raise an error if a node may not run, because the turn was stopped or reached its limit.

    Nodes that end the turn may always run.

    Raises:
        LimitError: The turn reached its limit of routing decisions.
        StoppedError: A user stopped the turn.
    """
    if spec.name in CLOSING_NODES:
        return
    if is_endless:
        raise LimitError(
            f"The turn was stopped after {budget.routings} routing decisions, because it exceeded "
            "its limit.",
            fix="check custom nodes that route to the router or return Command(goto=…).",
        )
    # If a node already found that the turn was stopped, the router only ends it.
    is_known_stop = spec.name == "router" and view.state.get("control_is_killed")
    if services is not None and spec.name != _BEGIN_TURN and not is_known_stop:
        await services.journal().raise_if_stopped(view.user_ids)


def _create_arguments(
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
            f"{spec.name!r} returned an unsupported {type(result).__name__}.",
            fix="return a dictionary of state updates, a Command, or None.",
        )
    if services is not None:
        keys = services.runner_config.schema.names
    else:
        keys = running_graph_channels() or STATE_KEYS
    plain = check_state_writes(
        spec.name, result.update if isinstance(result, Command) else result, keys
    )
    if isinstance(result, Command):
        _check_goto(spec, result, services)
        return replace(result, update=plain)
    return dict(plain)


def _can_store_failures(services: Services | None) -> bool:
    """Return True unless the state of a custom graph has no key for storing a failure."""
    channels = running_graph_channels() if services is None else None
    return channels is None or "control_error_info" in channels


def check_state_writes(writer: str, update: Any, keys: frozenset[str]) -> list[tuple[str, Any]]:
    """Validate a state update, and convert it to key-value pairs in stored form.

    Args:
        writer: Name of the node, or description of the person who calls ``update_state``.
        update: State update of the node.
        keys: Names of the state keys.

    Raises:
        InfrastructureError: A key is unknown, or only the graph may write it.
        ValidationError: A value has the wrong type for its key.
    """
    pairs = update_pairs(update)
    unknown = sorted({name for name, _ in pairs} - keys)
    if unknown:
        raise InfrastructureError(
            f"{writer!r} returned unknown state keys {unknown}.",
            fix="use keys of the graph's state, or declare them in its state_schema.",
        )
    if any(name == "control_goto" and item is not None for name, item in pairs):
        raise InfrastructureError(
            f"{writer!r} cannot write the state key 'control_goto', which is reserved for the "
            "graph.",
            fix="return Command(goto=…) to continue with another node.",
        )
    if any(
        name == _ACCEPTED_KEY and not isinstance(item, AcceptedDigest | None)
        for name, item in pairs
    ):
        raise InfrastructureError(
            f"{writer!r} cannot write {_ACCEPTED_KEY!r}: only plan acceptance writes this state key.",
            fix="return only 'planning_execution_plan'; the plan is checked before it runs.",
        )
    return [
        (
            name,
            str(item)
            if name == _ACCEPTED_KEY and item
            else serialize_state_value(name, item, writer),
        )
        for name, item in pairs
        # No node can reset the used budget of a turn.
        if name != "control_budget" or not isinstance(item, Overwrite)
    ]


def _check_goto(spec: InfrastructureSpec, result: Command[Any], services: Services | None) -> None:
    """Raise an error if a node returned a ``goto`` to an unknown node.

    Without this check, LangGraph would silently end the run.
    """
    if services is None or result.graph is not None:
        return
    known_nodes = {*services.registry.infrastructure, *services.registry.capabilities, END}
    places = result.goto if isinstance(result.goto, (list, tuple)) else [result.goto]
    names = [
        destination.node if isinstance(destination, Send) else destination for destination in places
    ]
    if unknown := [name for name in names if name not in known_nodes]:
        raise InfrastructureError(
            f"The goto returned by {spec.name!r} refers to unknown nodes: {unknown}.",
            fix=f"use one of: {', '.join(sorted(known_nodes - {END}))}.",
        )


def update_pairs(update: Any) -> list[tuple[str, Any]]:
    """Convert a state update to key-value pairs.

    LangGraph also accepts updates as pairs, in which a key may occur more than once.
    """
    return list(update.items()) if isinstance(update, Mapping) else list(update or ())


def _create_recovered_update(spec: InfrastructureSpec, view: TurnView) -> dict[str, Any]:
    # A node that succeeds clears its own earlier failure.
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
    return apply_retry_rule(failure, find_last_of_type(spec.behaviors, RetryRule), exc)


def _log_failure(
    spec: InfrastructureSpec, exc: Exception, duration: float, view: TurnView
) -> Failure:
    failure = _classify(spec, exc, duration, view=view)
    if failure.severity is ErrorSeverity.FATAL:
        raise create_fatal_error(spec.name, failure) from exc
    get_logger("framework", spec.name).warning(
        "%s failed (%s): %s", spec.name, failure.severity.value, failure.message
    )
    return failure


def _count_plans(
    spec: InfrastructureSpec, budget: TurnBudget, failure: Failure | None, update: Any = None
) -> None:
    """Increment the turn's counters for plans and capability selections, including failed ones."""
    goto = update.goto if isinstance(update, Command) and spec.name != "router" else ()
    if goto:
        budget.routings += 1
    name = _BUDGET_COUNTERS.get(spec.name)
    if name is None or (failure is not None and failure.severity is ErrorSeverity.RETRIABLE):
        return
    if goto not in ((), "router"):
        return  # the node continues with a capability instead of a plan or a selection
    increment = 1
    reported = update.get("control_budget") if isinstance(update, Mapping) else None
    if isinstance(reported, Mapping):
        reviews = int(reported.get("looks", 0))
        increment = (
            0
            if reviews > budget.looks
            else max(1, int(reported.get(name, 0)) - getattr(budget, name))
        )
        budget.looks = max(budget.looks, reviews)
        budget.allowed_attempts = max(
            budget.allowed_attempts, int(reported.get("allowed_attempts", 0))
        )
    setattr(budget, name, getattr(budget, name) + increment)


def _create_budget_update(
    spec: InfrastructureSpec,
    budget: TurnBudget,
    previous_budget: Mapping[str, Any],
    services: Services | None,
) -> dict[str, Any]:
    """Create the state update for the turn's budget counters, or ``{}`` if nothing changed.

    At the start of a turn, the stored counters are overwritten.
    """
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
    spec: InfrastructureSpec, update: dict[str, Any], view: TurnView, services: Services | None
) -> dict[str, Any]:
    """Add a default message to the update of a node that ends the turn without a message."""
    if spec.name not in CLOSING_NODES or services is None or update.get("control_has_error"):
        return update
    outcome = update.get("execution_outcome") or describe_outcome(view.state)
    if update.get("messages"):
        return {**update, "execution_outcome": outcome}
    text = f"The turn ended ({outcome['status']}), and {spec.name!r} wrote no message."
    return {**update, "messages": [AIMessage(content=text)], "execution_outcome": outcome}
