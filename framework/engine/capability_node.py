"""Execution of a capability as a node: in a custom graph, after a ``goto``, or in a unit test.

The step passes the same stages as in a plan. The node also does the work of the router: it asks a
person in a separate LangGraph task, and writes the step's record to the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from langchain_core.messages import convert_to_messages
from langgraph.config import get_config

from capgraph.approvals import ApprovalDecision, build_request, load_active_rules, request_entry
from capgraph.base.argument_injection import argument_getters
from capgraph.base.errors import (
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    InfrastructureError,
    PersistenceError,
    StoppedError,
    ValidationError,
)
from capgraph.base.plan import PlannedStep
from capgraph.base.ports import ApprovalRequest, Attempt, Caller, Failure, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.base.step_context import EXECUTE_ARGUMENTS
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.suggestions import suggest_fix
from capgraph.engine.approval_decisions import record_answer
from capgraph.engine.approval_requests import ask_in_task, create_answer_reader, save_standing_rules
from capgraph.engine.bind import unbound_services
from capgraph.engine.run_scope import end_run, find_enclosing_services, find_services, run_scope
from capgraph.engine.services import ParametersOfState, Services
from capgraph.engine.step_tasks import AskScope, ConcurrentRequests, single_request
from capgraph.engine.undo import load_failed_visit_update, offer_undo_in_node
from capgraph.governance.budget_enforcement import current_spending
from capgraph.helpers.argument_validation import matches_annotation
from capgraph.helpers.async_calls import maybe_await
from capgraph.langgraph_compat import (
    add_callbacks,
    count_request,
    get_node_run_value,
    is_resuming,
    plain_values,
    run_input,
    running_graph_channels,
)
from capgraph.pipeline.call import check_extra_arguments
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.failures import clear_failure_update, failure_update, stop_update
from capgraph.pipeline.journal import Journal, RunStart
from capgraph.pipeline.run_config import (
    acting_for_turn,
    billed_to,
    caller_from_configurable,
    current_runtime,
    current_sender,
)
from capgraph.pipeline.state_update import last_result, to_state
from capgraph.pipeline.step_execution import (
    AttemptContext,
    ResultOptions,
    count_nested_request,
    enclosing_execution,
)
from capgraph.planning.parameters import required_parameters
from capgraph.state import TurnView
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK, charge_to
from capgraph.telemetry.usage_callback import USAGE_CALLBACK, count_model_calls

_JUMP_FACTOR = 2
"""Factor of ``limits.max_attempts`` for steps outside the plan in a turn."""


async def run_capability_node(
    spec: CapabilitySpec,
    state: Mapping[str, Any],
    services: Services | None = None,
    parameters: ParametersOfState | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Run a capability as a graph node, either as the current step of a plan or without a plan.

    Args:
        spec: Declarations of the capability.
        state: State of the graph.
        services: Services of ``bind`` or ``build_graph``. Defaults to the services of the
            enclosing run, or to default limits if the capability is not registered there.
        parameters: State key of each parameter. By default, a plan in the state supplies
            parameters.
        **extra: Additional arguments of ``execute``.

    Returns:
        The state updates of the capability and the state entry of the step.

    Raises:
        ConfigurationError: The capability declares a guarantee, such as approval, that is
            available only with ``bind``.
        InfrastructureError: The graph's state has no key for the result.
        ValidationError: ``execute`` does not accept an argument in ``extra``.
    """
    if extra:
        supplied = {*EXECUTE_ARGUMENTS, *argument_getters(spec.cls.execute)}
        check_extra_arguments(spec.cls, extra, supplied)
    in_run = current_runtime() is not None
    bound = services or find_services(spec) or unbound_services(spec)
    view, earlier_steps = await _read_turn(bound, state) if in_run else (bound.view(state), 0)
    attempt = _create_attempt(spec, view, earlier_steps, uses_plan=parameters is None)
    is_planned = bool(attempt.step)
    if parameters is not None:
        values = await _read_parameters(spec, parameters, state)
        attempt = replace(attempt, step=PlannedStep(parameters=values))
    elif in_run and not (is_planned or view.has_turn):
        _check_parameter_sources(spec)
    # Without turns, the budget applies to this visit of the node.
    budget = TurnBudget.from_plain(view.budget if view.has_turn else {})

    async def run(attempt: Attempt, failures: int = 0) -> StepRecord:
        return await _run_until_answered(
            attempt,
            view,
            bound,
            budget,
            is_planned=is_planned,
            is_standalone=in_run and not view.has_turn and not is_planned,
            result_options=ResultOptions(
                running_graph_channels() if in_run else None, keeps_dictionary=not in_run
            ),
            failures=failures,
            extra_arguments=extra,
        )

    alone = in_run and not view.has_turn
    async with _node_scope(view, bound, budget):
        update = await load_failed_visit_update(bound) if alone else {}
        if not update:
            record, stopped = await _run_with_policies(partial(run, attempt), view, bound, budget)
            update = _create_node_update(record, view, outside_graph=not in_run)
            if stopped is not None:
                update |= failure_update([stopped])
        if alone and update.get("control_has_error"):
            update = await offer_undo_in_node(update, view, bound, run)
    if in_run:
        if view.has_turn:
            update["control_budget"] = budget.to_plain()
        return _filter_update(update, spec)
    return update


async def run_standalone_step(
    spec: CapabilitySpec,
    step: PlannedStep,
    contexts: Mapping[str, Mapping[str, Any]] | None = None,
    services: Services | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    raw_errors: bool = False,
    work: Any = None,
    can_ask: bool = True,
) -> StepRecord:
    """Run a capability without a plan or a graph state, for example for a tool call.

    The step passes through the same stages as a step of a plan. In a LangGraph task, the step
    can ask a person for approval, and the task distinguishes the step from identical steps.

    Args:
        spec: Declarations of the capability.
        step: Objective, parameters, and inputs of the step.
        contexts: Plain data of the inputs, by context type and key.
        services: Services of ``bind`` or ``build_graph``. Defaults to the services of the
            enclosing run, or to default limits if the capability is not registered there.
        labels: Labels (provenance tags) of the data that the caller has read, with their
            sources.
        state: State of the calling graph, for injected arguments.
        raw_errors: True to raise the original exception of a failure.
        work: Function of the caller that the capability's ``execute`` runs.
        can_ask: True if the step may ask a person. Synchronous code cannot suspend the run.

    Returns:
        The record of the step, even if the step failed.
    """
    bound = services or find_services(spec) or unbound_services(spec)
    view = bound.view({**(state or {}), "capability_context_data": contexts or {}})
    key = "_".join((spec.name, *_create_request_key_parts(spec.name)))
    planned_step: PlannedStep = {"context_key": key, "capability": spec.name, **step}
    attempt = view.create_attempt(spec.name, planned_step, key=key, total=1)
    # A capability waits for its nested requests, and they must not wait for it.
    request_scope = (asyncio.get_running_loop(), id(enclosing_execution()))
    concurrent = get_node_run_value(request_scope, ConcurrentRequests)
    budget = TurnBudget()
    result_options = ResultOptions(frozenset(), raw_errors=raw_errors)
    options: Any = {
        "is_standalone": current_runtime() is not None,
        "result_options": result_options,
    }
    options |= {"labels": labels or {}, "work": work}
    async with concurrent.request() if concurrent else single_request() as ask_scope:
        options["ask_scope"] = ask_scope if can_ask else partial(_raise_cannot_ask, spec.name)
        run = partial(_run_until_answered, attempt, view, bound, budget, **options)
        async with _node_scope(view, bound, budget):
            run_again = lambda failures: run(failures=failures)  # noqa: E731
            record, stopped = await _run_with_policies(run_again, view, bound, budget)
    if stopped is None:
        return record
    return replace(record, error=stopped, updates=stop_update(StoppedError(stopped.message)))


@asynccontextmanager
async def member_scope(services: Services | None, name: str) -> AsyncIterator[None]:
    """Async context manager in which a team member, workflow, or agent uses the given services.

    Args:
        services: Services of the team. Defaults to the services of the enclosing run.
        name: Name of the member, which must be unique within the run and stable across
            restarts.
    """
    if services is None or any(enclosing is services for enclosing in find_enclosing_services()):
        yield
        return
    async with _node_scope(services.view({}), services, TurnBudget()):
        spending = current_spending()
        has_reservation = spending is None or spending.current_reservations()
        async with (
            nullcontext() if has_reservation or spending is None else spending.reserve_for(name)
        ):
            yield


async def _run_with_policies(
    run: Callable[[int], Awaitable[StepRecord]],
    view: TurnView,
    services: Services,
    budget: TurnBudget,
) -> tuple[StepRecord, Failure | None]:
    """Run a step, and apply the policy rules to its record if the graph has no router.

    In a graph with a router, the router applies the rules.
    """
    started_at = services.clock.now()
    record = await run(0)
    if not services.policy_engines or view.has_turn:
        return record, None
    from capgraph.engine.policy_actions import govern_node  # only needed with rules

    return await govern_node(record, view, services, budget, started_at, run)


@asynccontextmanager
async def _node_scope(
    view: TurnView, services: Services, budget: TurnBudget
) -> AsyncIterator[None]:
    """Set up the run context for a capability node in a custom graph.

    In a graph created by ``build_graph``, ``AgentGraph`` sets up the run context.
    """
    in_run = current_runtime() is not None
    scope = run_scope(
        services, get_config() if in_run else {}, has_subscriber=None if in_run else False
    )
    try:
        # The budget of an agent or team also covers its members.
        outer = current_spending()
        nested = outer is not None and outer.belongs_to(services.budget_policy)
        callbacks = (
            (USAGE_CALLBACK, BUDGET_CALLBACK)
            if services.budget_policy.budgets
            else (USAGE_CALLBACK,)
        )
        calls = count_model_calls(budget, services.limits.max_model_calls)
        view.default_owner = await _find_billing_caller(view, services)
        run = "" if nested else await _find_run_id(view, services)
        acting = acting_for_turn(view.caller, view.sender)
        with scope, calls, add_callbacks(*callbacks), billed_to(view.default_owner), acting:  # noqa: SIM117
            with charge_to(
                None if nested else services.spending(view, run_id=run)
            ):  # the owner is known
                yield
    finally:
        await end_run(scope)


async def _find_billing_caller(view: TurnView, services: Services) -> Caller:
    """Return the caller whose budget pays for a step.

    This is the caller who started the turn or, in a custom graph without turns, the run.
    """
    owner = view.owner
    start = await _find_run_start(services, per_user=True) if owner is None else None
    if owner is not None or start is None:
        return owner or view.caller
    # The metadata contains the authenticated user as well as keys that a caller may set.
    metadata: Mapping[str, Any] = start.metadata
    caller = view.caller
    if caller.authenticated:
        user = metadata.get("langgraph_auth_user_id") or caller.user_id
        if user == caller.user_id:
            return caller
        opener = Caller(user, tenant=caller.tenant, authenticated=True)
    else:
        opener = caller_from_configurable(metadata)
    view.act_for(opener)
    return opener


async def _find_run_id(view: TurnView, services: Services) -> str:
    """Return the ID of the run whose nodes share a budget, or ``""`` if the turn has an ID."""
    start = None if view.turn_id else await _find_run_start(services, per_user=False)
    return "" if start is None else start.checkpoint_id


async def _find_run_start(services: Services, *, per_user: bool) -> RunStart | None:
    """Return the start of the run if budgets apply per user or per turn, otherwise ``None``."""
    counted_by = {"user", "tenant"} if per_user else {"turn"}
    with suppress(PersistenceError):  # without checkpoints, each visit is a run
        if per_user and is_resuming():
            return await services.journal().run_start(services.run_starts, is_resumed=True)
        # A later superstep of a resumed run is not marked as resuming.
        needs_start = per_user and current_sender() != Caller()
        if needs_start or counted_by.intersection(
            budget.per for budget in services.budget_policy.budgets
        ):
            return await services.journal().run_start(services.run_starts)
    return None


async def _read_turn(services: Services, state: Mapping[str, Any]) -> tuple[TurnView, int]:
    """Return the view of the current turn, and the number of steps that belong to earlier runs.

    Custom graphs have no turns. In a custom graph, a plan in the run's input starts at its
    first step unless the caller sets a different step.
    """
    view = services.view(state)
    if (
        view.has_turn
        or not view.steps
        or (start := await services.journal().starting_checkpoint()) is None
    ):
        return view, 0
    run_values = run_input(start) or {}
    if "planning_execution_plan" not in run_values:
        return view, 0
    configurable = start.config["configurable"]
    earlier_steps = plain_values(start).get("planning_current_step_index") or 0
    turn_view = TurnView(
        state,
        thread_id=view.thread_id,
        caller=view.caller,
        sender=view.sender,
        opener_id=configurable["checkpoint_id"],
    )
    return turn_view, 0 if "planning_current_step_index" in run_values else earlier_steps


def _check_parameter_sources(spec: CapabilitySpec) -> None:
    if needed := required_parameters(spec.parameters):
        example = ", ".join(f'"{name}": "<state key>"' for name in needed)
        raise ConfigurationError(
            f"The node of {spec.name!r} has no values for its required parameters {', '.join(needed)}, "
            "because the state contains no plan with a step for this capability.",
            fix=f"use services.node({spec.cls.__name__}, parameters={{{example}}}).",
        )


async def _read_parameters(
    spec: CapabilitySpec, parameters: ParametersOfState, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the parameter values of a step from the state of a custom graph.

    Each parameter is read from a state key, or a callback computes all parameters from the
    state.
    """
    if not callable(parameters):
        channels = running_graph_channels()
        unknown = sorted({*parameters.values()} - {*(channels or parameters.values())})
        if unknown:
            raise ConfigurationError(
                f"The parameters of the node of {spec.name!r} name unknown state keys:"
                f" {', '.join(map(repr, unknown))}.",
                fix=suggest_fix(*unknown, candidates=channels or ()),
            )
        return {name: state[key] for name, key in parameters.items() if key in state}
    values = await maybe_await(parameters(state))
    if not matches_annotation(values, Mapping[str, Any]):
        raise InfrastructureError(
            f"Invalid parameters of {spec.name!r}: the function returned {values!r:.80}.",
            fix="return a mapping of parameter names to values.",
        )
    return dict(values)


def _create_attempt(
    spec: CapabilitySpec, view: TurnView, earlier_steps: int, *, uses_plan: bool
) -> Attempt:
    steps = view.steps if uses_plan else []
    index = (view.state.get("planning_current_step_index") or 0) - earlier_steps
    step = steps[index] if 0 <= index < len(steps) else PlannedStep()
    if step.get("capability", spec.name) != spec.name:
        step = PlannedStep()
    key = step.get("context_key") or "_".join(
        (str(index), spec.name, *_create_request_key_parts(spec.name))
    )
    return view.create_attempt(spec.name, step, key=key, index=index)


def _create_request_key_parts(name: str) -> list[str]:
    """Create the parts of an idempotency key that distinguish repeated calls of a capability.

    The parts are the name of the node, the index in a ``Send`` fan-out, and the number of the
    call within ``execute`` of the enclosing capability or node.
    """
    try:
        metadata: Mapping[str, Any] = get_config().get("metadata") or {}
    except RuntimeError:
        return []
    node = str(metadata.get("langgraph_node") or name)
    numbers = [str(part) for part in metadata.get("langgraph_path") or () if type(part) is int]
    if (outer := enclosing_execution()) is not None:
        times = count_nested_request(outer, str(metadata.get("langgraph_checkpoint_ns")), name)
    else:
        runtime = current_runtime()
        info = runtime.execution_info if runtime is not None else None
        times = count_request(name, info.node_attempt if info is not None else 1)
    numbers += [str(times)] if times > 1 else []
    return [*([node] if node != name else []), *numbers]


async def _run_until_answered(
    attempt: Attempt,
    view: TurnView,
    services: Services,
    budget: TurnBudget,
    *,
    is_planned: bool = True,
    is_standalone: bool,
    result_options: ResultOptions,
    failures: int = 0,
    labels: Mapping[str, str] | None = None,
    work: Any = None,
    extra_arguments: Mapping[str, Any] | None = None,
    ask_scope: AskScope = nullcontext,
) -> StepRecord:
    """Run a step, and ask a person whenever the step requires a decision.

    In a plan, identical steps are distinguished by their keys. Without a plan
    (``is_standalone``), they are distinguished by their LangGraph tasks.
    """
    runtime = current_runtime()
    if is_standalone and services.registry.capabilities[attempt.capability].effect != "none":
        await _check_new_message(services.journal())
    ledger = services.ledger(view, visit_id=runtime.execution_info.task_id if is_standalone else "")
    if not view.has_turn and services.requires_other_approver:
        start = await services.journal().starting_checkpoint()
        run = start.config["configurable"]["checkpoint_id"] if start is not None else "run"
        await ledger.approvals.record_requester(view.caller, run)
    # The attempts of the turn are limited by its plan. A step outside the plan has its own limit.
    is_outside_plan = not (is_planned or services.limits.max_turn_attempts)
    bound = _JUMP_FACTOR * services.limits.max_attempts if budget.allowed_attempts else 0
    tries = TurnBudget(attempts=budget.jumps, allowed_attempts=bound) if is_outside_plan else budget
    context = AttemptContext(
        view=view,
        ledger=ledger,
        plan_keys=[step["context_key"] for step in view.steps if "context_key" in step],
        failures=view.failed_attempts.get(attempt.key, 0)
        if is_planned and view.has_turn
        else failures,
        result_options=result_options,
        budget=tries,
        labels=labels or {},
        work=work,
        extra_arguments=extra_arguments or {},
    )
    while True:
        result = await services.runner.run(attempt, context)
        if is_outside_plan:
            budget.jumps = tries.attempts
        if isinstance(result, StepRecord):
            return result
        if result is None:
            raise InfrastructureError(
                f"Step {attempt.key!r} was interrupted, because the process is shutting down.",
                fix="run the graph again. It continues with this node.",
            )
        async with ask_scope():
            answer, by = await _ask_person(result, attempt, view, services)
        if answer.decision in {"reject", "respond"}:
            return _create_rejected_record(attempt, answer)
        await record_answer(attempt.key, result.to_state(), answer, ledger, services, by)
        if answer.decision == "edit":
            changed: Any = {**attempt.step, "parameters": answer.parameters}
            attempt = replace(attempt, step=changed)


async def _check_new_message(journal: Journal) -> None:
    """Raise an error if the last message was already processed by an earlier run.

    Custom graphs need this check, because they have no turns that detect a repeated message.

    Raises:
        ValidationError: An earlier run has processed the message.
    """
    if journal.namespace or (start := await journal.starting_checkpoint()) is None:
        return  # the task of a nested graph identifies the request
    message_input = (run_input(start) or {}).get("messages") or []
    messages = convert_to_messages(
        message_input if isinstance(message_input, list) else [message_input]
    )
    message = next((m for m in reversed(messages) if m.type == "human"), None)
    if message is None or message.id is None:
        return
    name = f"begun/{compute_digest([message.id, message.content])}"
    run = start.config["configurable"]["checkpoint_id"]
    record = await journal.read(name)
    if record.get("run", run) != run:
        raise ValidationError(
            "The input has no new message: an earlier run has processed the last one.",
            fix="send a new message, or None to continue an unfinished run.",
        )
    if not record:
        await journal.write(name, {"run": run})


def _raise_cannot_ask(name: str) -> NoReturn:
    raise ConfigurationError(
        f"{name!r} requires a person's decision: synchronous code cannot wait for the answer.",
        fix="run the graph with ainvoke or astream, and call the tool with ainvoke.",
    )


async def _ask_person(
    question: ApprovalRequest, attempt: Attempt, view: TurnView, services: Services
) -> tuple[ApprovalDecision, Caller]:
    if not services.journal().is_durable:
        raise ConfigurationError(
            f"{attempt.capability!r} requires a person's decision, but the graph has no "
            "checkpointer to store the request.",
            fix="compile the graph with a checkpointer.",
        )
    request = question.to_state()
    store = getattr(current_runtime(), "store", None)
    rules = await load_active_rules(store, services.clock.now())
    if rules.find_rule(request, view):
        return ApprovalDecision(decision="approve"), Caller()
    step = {**attempt.step, "context_key": attempt.key, "capability": attempt.capability}
    question_payload = build_request(
        {}, [request_entry(step, request, view.contexts, services.registry)]
    )
    if rules.problem:
        question_payload["note"] = rules.problem
    read = create_answer_reader(question_payload, view, services, store)
    answers, by = await ask_in_task(question_payload, read)
    await save_standing_rules(answers, question_payload, view, store)
    return answers[attempt.key], by


def _create_rejected_record(attempt: Attempt, answer: ApprovalDecision) -> StepRecord:
    reason = answer.reason or answer.message or "no reason was given"
    failure = Failure(
        severity=ErrorSeverity.CRITICAL,
        message=f"A person rejected {attempt.capability!r}: {reason}.",
        metadata={"rejected_by_person": {attempt.key: answer.reason}, "category": "rejected"},
        capability=attempt.capability,
        key=attempt.key,
    )
    return StepRecord.from_attempt(attempt, error=failure)


def _create_node_update(
    record: StepRecord, view: TurnView, *, outside_graph: bool
) -> dict[str, Any]:
    update = to_state(record, view.plan_id)
    update["execution_last_result"] = last_result(record.to_state_entry(), record.error)
    if record.plan is not None:
        update["planning_execution_plan"] = record.plan
    if record.error is None:
        index = view.state.get("planning_current_step_index") or 0
        update |= {"planning_current_step_index": index + 1}
        # A success must not clear the failure of a parallel node.
        if outside_graph or view.failure is not None:
            update |= clear_failure_update()
        return update
    failures = (view.state.get("control_retry_count") or 0) + record.error.attempts
    return {
        **update,
        **failure_update([record.error]),
        "control_retry_count": failures,
        "control_current_step_retry_count": failures,
    }


def _filter_update(update: dict[str, Any], spec: CapabilitySpec) -> dict[str, Any]:
    """Remove framework keys that the state of a custom graph does not define from an update.

    Raises:
        InfrastructureError: A result would be lost, because the state has no key for it.
        CapabilityError: The step failed, and the state has no key for the failure.
    """
    channels = running_graph_channels()
    if channels is None:
        return update
    if update.get("control_has_error") and "control_error_info" not in channels:
        info = update["control_error_info"]
        raise CapabilityError(
            f"{spec.name!r} failed: {info['user_message']}",
            fix="use AgentState (or a subclass) as the graph's state to handle failures there.",
        )
    result_keys = {
        "capability_context_data",
        "capability_context_labels",
        "messages",
        "planning_execution_plan",
    }
    lost = sorted(name for name in result_keys & set(update) if name not in channels)
    if lost:
        raise InfrastructureError(
            f"{spec.name!r} returned {lost}, which is not defined in the graph's state.",
            fix="use AgentState (or a subclass) as the graph's state, or declare the key.",
        )
    return {name: value for name, value in update.items() if name in channels}
