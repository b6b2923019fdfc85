"""A capability as a node: of a graph of one's own, by ``Command(goto=...)``, or in a unit test.

It passes the same stages as in a plan. What a plan's router does around a step, the node does
itself: it tries again, asks a person by a LangGraph task that does nothing else, and writes down
what the step left behind.
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
from capgraph.base.turn_budget import TurnBudget
from capgraph.engine.approval_decisions import record_answer
from capgraph.engine.approval_requests import answer_reader, ask_in_task, save_standing_rules
from capgraph.engine.bind import unbound_services
from capgraph.engine.run_scope import enclosing_services, end_run, find_services, run_scope
from capgraph.engine.services import ParametersOfState, Services
from capgraph.engine.step_tasks import AskScope, ConcurrentRequests, single_request
from capgraph.engine.undo import failed_visit_update, offer_undo_in_node
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
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.failures import clear_failure_update, failure_update, stop_update
from capgraph.pipeline.journal import Journal, RunStart
from capgraph.pipeline.run_config import billed_to, current_runtime
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
"""How many steps beside its plan a turn may try as often as the settings allow."""


async def run_capability_node(
    spec: CapabilitySpec,
    state: Mapping[str, Any],
    services: Services | None = None,
    parameters: ParametersOfState | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Run the plan's current step with one capability, or the capability by itself.

    Args:
        spec: What the capability declares.
        state: The graph's state.
        services: What ``bind`` or ``build_graph`` decided; without, what the run around it goes by,
            and where none knows the capability, default limits.
        parameters: Where the state holds the parameters; without, a plan in it has them.

    Returns:
        State updates: the capability's own, and the bookkeeping of the step.

    Raises:
        ConfigurationError: The capability needs what only bound services give.
        InfrastructureError: The graph's state has no place for the result.
    """
    in_run = current_runtime() is not None
    bound = services or find_services(spec) or unbound_services(spec)
    view, behind = await _read_turn(bound, state) if in_run else (bound.view(state), 0)
    attempt = _make_attempt(spec, view, behind, uses_plan=parameters is None)
    is_planned = bool(attempt.step)
    if parameters is not None:
        values = await _read_parameters(spec, parameters, state)
        attempt = replace(attempt, step=PlannedStep(parameters=values))
    elif in_run and not (is_planned or view.has_turn):
        _check_parameter_sources(spec)
    # Without turns nothing would ever begin a new budget: then it is that of this visit.
    budget = TurnBudget.from_plain(view.budget if view.has_turn else {})

    async def run(attempt: Attempt, failures: int = 0) -> StepRecord:
        return await _run_until_answered(
            attempt,
            view,
            bound,
            budget,
            is_planned=is_planned,
            apart=in_run and not view.has_turn and not is_planned,
            reading=ResultOptions(
                running_graph_channels() if in_run else None, keeps_dictionary=not in_run
            ),
            failures=failures,
        )

    alone = in_run and not view.has_turn
    async with _node_scope(view, bound, budget):
        update = await failed_visit_update(bound) if alone else {}
        if not update:
            record, stopped = await _run_with_policies(partial(run, attempt), view, bound, budget)
            update = _node_update(record, view, outside_graph=not in_run)
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
    """Run a capability for somebody who keeps neither plan nor state: a tool call, a task.

    It passes the same stages as in a plan; inside a LangGraph task a person is asked there, and
    the task is what tells equal requests apart.

    Args:
        spec: What the capability declares.
        step: What is asked for: objective, parameters, inputs.
        contexts: Context type to key to plain data, for the inputs.
        services: What ``bind`` or ``build_graph`` decided; without, what the run around it goes by,
            and where none knows the capability, default limits.
        labels: Of what whoever asks has heard, with their sources.
        state: State of the graph that asks, which injected arguments read.
        raw_errors: Whether a failure is raised as it is.
        work: The caller's own work, which the capability's body only runs.
        can_ask: Whether a person can be asked here; synchronous code cannot suspend the run.

    Returns:
        What it left behind, a failure included.
    """
    bound = services or find_services(spec) or unbound_services(spec)
    view = bound.view({**(state or {}), "capability_context_data": contexts or {}})
    key = "_".join((spec.name, *_request_key_parts(spec.name)))
    asked: PlannedStep = {"context_key": key, "capability": spec.name, **step}
    attempt = view.create_attempt(spec.name, asked, key=key, total=1)
    # A capability that asks for others in its body waits for these, and they not for it.
    place = (asyncio.get_running_loop(), id(enclosing_execution()))
    beside = get_node_run_value(place, ConcurrentRequests)
    budget = TurnBudget()
    reading = ResultOptions(frozenset(), raw_errors=raw_errors)
    about: Any = {"apart": current_runtime() is not None, "reading": reading}
    about |= {"labels": labels or {}, "work": work}
    async with beside.request() if beside else single_request() as asking:
        about["asking"] = asking if can_ask else partial(_raise_cannot_ask, spec.name)
        run = partial(_run_until_answered, attempt, view, bound, budget, **about)
        async with _node_scope(view, bound, budget):
            again = lambda failures: run(failures=failures)  # noqa: E731
            record, stopped = await _run_with_policies(again, view, bound, budget)
    if stopped is None:
        return record
    return replace(record, error=stopped, updates=stop_update(StoppedError(stopped.message)))


@asynccontextmanager
async def member_scope(services: Services | None, name: str) -> AsyncIterator[None]:
    """Run a member of a team, a workflow, or an agent in the block, under these services.

    Args:
        services: Those of the whole; without any, those around it apply.
        name: Names the member within the run, the same after a restart.
    """
    if services is None or any(known is services for known in enclosing_services()):
        yield
        return
    async with _node_scope(services.view({}), services, TurnBudget()):
        spending = current_spending()
        held = spending is None or spending.current_reservations()
        async with nullcontext() if held or spending is None else spending.reserve_for(name):
            yield


async def _run_with_policies(
    run: Callable[[int], Awaitable[StepRecord]],
    view: TurnView,
    services: Services,
    budget: TurnBudget,
) -> tuple[StepRecord, Failure | None]:
    """Run a step; where no router does it, have the rules of the operator act about it."""
    began = services.clock.now()
    record = await run(0)
    if not services.policy_engines or view.has_turn:
        return record, None
    from capgraph.engine.policy_actions import govern_node  # of no use without rules

    return await govern_node(record, view, services, budget, began, run)


@asynccontextmanager
async def _node_scope(
    view: TurnView, services: Services, budget: TurnBudget
) -> AsyncIterator[None]:
    """Say what holds inside a node: in a graph of one's own nobody has, so far."""
    in_run = current_runtime() is not None
    inside = run_scope(
        services, get_config() if in_run else {}, has_subscriber=None if in_run else False
    )
    try:
        # What an agent or a team does inside its own visit is paid by that one's account.
        outer = current_spending()
        nested = outer is not None and outer.belongs_to(services.budget_policy)
        told = (
            (USAGE_CALLBACK, BUDGET_CALLBACK)
            if services.budget_policy.budgets
            else (USAGE_CALLBACK,)
        )
        calls = count_model_calls(budget, services.limits.max_model_calls)
        view.default_owner = await _billing_caller(view, services)
        run = "" if nested else await _run_id(view, services)
        with inside, calls, add_callbacks(*told), billed_to(view.default_owner):  # noqa: SIM117
            with charge_to(
                None if nested else services.spending(view, run_id=run)
            ):  # for whom is known
                yield
    finally:
        await end_run(inside)


async def _billing_caller(view: TurnView, services: Services) -> Caller:
    """Return whose turn it is; of a graph of one's own, who began the run that is gone on with."""
    known = view.owner
    began = await _find_run_start(services, per_user=True) if known is None else None
    if known is not None or began is None:
        return known or view.caller
    # What a server made sure of stands beside what a caller may say.
    told: Mapping[str, Any] = began.metadata
    caller = view.caller
    if caller.authenticated:
        return replace(caller, user_id=told.get("langgraph_auth_user_id") or caller.user_id)
    return Caller(told.get("user_id"), tenant=told.get("tenant"))


async def _run_id(view: TurnView, services: Services) -> str:
    """Name the run whose visits are one turn for budgets, where nothing else opened one."""
    began = None if view.turn_id else await _find_run_start(services, per_user=False)
    return "" if began is None else began.checkpoint_id


async def _find_run_start(services: Services, *, per_user: bool) -> RunStart | None:
    """Return with what the run began that goes on, where budgets count by people, or by turns."""
    counted = {"user", "tenant"} if per_user else {"turn"}
    with suppress(PersistenceError):  # nothing keeps it before it ends: each visit is one
        if per_user and is_resuming():
            return await services.journal().run_start(services.run_starts, is_resumed=True)
        apart = per_user and services.runner.has_per_user_limits
        if apart or counted.intersection(budget.per for budget in services.budget_policy.budgets):
            return await services.journal().run_start(services.run_starts)
    return None


async def _read_turn(services: Services, state: Mapping[str, Any]) -> tuple[TurnView, int]:
    """Return the reading of the turn, and how many steps earlier runs of the thread went.

    A graph of one's own keeps no turns. A plan that its run was given opens one, and where the
    caller did not say at which step it begins, it begins at its first.
    """
    view = services.view(state)
    if (
        view.has_turn
        or not view.steps
        or (began := await services.journal().starting_checkpoint()) is None
    ):
        return view, 0
    given = run_input(began) or {}
    if "planning_execution_plan" not in given:
        return view, 0
    here = began.config["configurable"]
    behind = plain_values(began).get("planning_current_step_index") or 0
    own = TurnView(
        state,
        thread_id=view.thread_id,
        caller=view.caller,
        sender=view.sender,
        opener_id=here["checkpoint_id"],
    )
    return own, 0 if "planning_current_step_index" in given else behind


def _check_parameter_sources(spec: CapabilitySpec) -> None:
    if needed := required_parameters(spec.parameters):
        shown = ", ".join(f'"{name}": "<state key>"' for name in needed)
        raise ConfigurationError(
            f"The node of {spec.name!r} needs the parameters {', '.join(needed)}, and no plan in the"
            " state has a step for it.",
            fix=f"Write services.node({spec.cls.__name__}, parameters={{{shown}}}).",
        )


async def _read_parameters(
    spec: CapabilitySpec, parameters: ParametersOfState, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a step that a graph of one's own keeps in its state."""
    if not callable(parameters):
        return {name: state[key] for name, key in parameters.items() if key in state}
    found = await maybe_await(parameters(state))
    if not matches_annotation(found, Mapping[str, Any]):
        raise InfrastructureError(
            f"The function given as parameters of {spec.name!r} returned {found!r:.80}.",
            fix="Return values by parameter name.",
        )
    return dict(found)


def _make_attempt(
    spec: CapabilitySpec, view: TurnView, earlier_steps: int, *, uses_plan: bool
) -> Attempt:
    steps = view.steps if uses_plan else []
    index = (view.state.get("planning_current_step_index") or 0) - earlier_steps
    step = steps[index] if 0 <= index < len(steps) else PlannedStep()
    if step.get("capability", spec.name) != spec.name:
        step = PlannedStep()
    key = step.get("context_key") or "_".join(
        (str(index), spec.name, *_request_key_parts(spec.name))
    )
    return view.create_attempt(spec.name, step, key=key, index=index)


def _request_key_parts(name: str) -> list[str]:
    """Tell requests for one capability apart.

    By the node's name, the number in a ``Send`` wave, and the number in the body that asks: of
    another capability, or of a node of one's own.
    """
    try:
        known: Mapping[str, Any] = get_config().get("metadata") or {}
    except RuntimeError:
        return []
    node = str(known.get("langgraph_node") or name)
    numbers = [str(part) for part in known.get("langgraph_path") or () if type(part) is int]
    if (outer := enclosing_execution()) is not None:
        times = count_nested_request(outer, str(known.get("langgraph_checkpoint_ns")), name)
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
    apart: bool,
    reading: ResultOptions,
    failures: int = 0,
    labels: Mapping[str, str] | None = None,
    work: Any = None,
    asking: AskScope = nullcontext,
) -> StepRecord:
    """Run the step; ask a person whatever it needs to know, as often as it asks.

    A plan tells equal steps apart; without one (``apart``) it is LangGraph's task that is one
    request.
    """
    runtime = current_runtime()
    if apart and services.registry.capabilities[attempt.capability].effect != "none":
        await _check_new_message(services.journal())
    ledger = services.ledger(view, visit_id=runtime.execution_info.task_id if apart else "")
    if not view.has_turn and services.requires_other_approver:
        began = await services.journal().starting_checkpoint()
        run = began.config["configurable"]["checkpoint_id"] if began is not None else "run"
        await ledger.approvals.record_requester(view.caller, run)
    # The turn's bound is made of what its plan can need; a jump beside the plan has its own.
    beside = not (is_planned or services.limits.max_turn_attempts)
    bound = _JUMP_FACTOR * services.limits.max_attempts if budget.allowed_attempts else 0
    tries = TurnBudget(attempts=budget.jumps, allowed_attempts=bound) if beside else budget
    door = AttemptContext(
        view=view,
        ledger=ledger,
        plan_keys=[step["context_key"] for step in view.steps if "context_key" in step],
        failures=view.failed_attempts.get(attempt.key, 0)
        if is_planned and view.has_turn
        else failures,
        result_options=reading,
        budget=tries,
        labels=labels or {},
        work=work,
    )
    while True:
        result = await services.runner.run(attempt, door)
        if beside:
            budget.jumps = tries.attempts
        if isinstance(result, StepRecord):
            return result
        if result is None:
            raise InfrastructureError(
                f"The step {attempt.key!r} was put off, and no router is there to take it up.",
                fix="Run the graph again; it goes on with this node.",
            )
        async with asking():
            answer, by = await _ask(result, attempt, view, services)
        if answer.decision in {"reject", "respond"}:
            return _rejected_record(attempt, answer)
        await record_answer(attempt.key, result.to_state(), answer, ledger, services, by)
        if answer.decision == "edit":
            changed: Any = {**attempt.step, "parameters": answer.parameters}
            attempt = replace(attempt, step=changed)


async def _check_new_message(journal: Journal) -> None:
    """Act once for one message: a graph of one's own has nobody else who would remember it.

    Raises:
        ValidationError: The message that this run was given has had a run before.
    """
    if journal.namespace or (began := await journal.starting_checkpoint()) is None:
        return  # inside another graph its task says what is new
    given = (run_input(began) or {}).get("messages") or []
    messages = convert_to_messages(given if isinstance(given, list) else [given])
    said = next((m for m in reversed(messages) if m.type == "human"), None)
    if said is None or said.id is None:
        return
    name = f"begun/{compute_digest([said.id, said.content])}"
    run = began.config["configurable"]["checkpoint_id"]
    known = await journal.read(name)
    if known.get("run", run) != run:
        raise ValidationError(
            "There is nothing new: the last message has had its run.",
            fix="Send a new message, or None to go on with an unfinished run.",
        )
    if not known:
        await journal.write(name, {"run": run})


def _raise_cannot_ask(name: str) -> NoReturn:
    raise ConfigurationError(
        f"A person has to decide about {name!r}, and it was called synchronously, where nothing"
        " can wait for the answer.",
        fix="Run the graph with ainvoke or astream, and call the tool with ainvoke.",
    )


async def _ask(
    question: ApprovalRequest, attempt: Attempt, view: TurnView, services: Services
) -> tuple[ApprovalDecision, Caller]:
    if not services.journal().is_durable:
        raise ConfigurationError(
            f"A person has to decide about {attempt.capability!r}, and nothing would keep the"
            " question until then.",
            fix="Compile the graph with a checkpointer.",
        )
    asked = question.to_state()
    store = getattr(current_runtime(), "store", None)
    rules = await load_active_rules(store, services.clock.now())
    if rules.find_rule(asked, view):
        return ApprovalDecision(decision="approve"), Caller()
    step = {**attempt.step, "context_key": attempt.key, "capability": attempt.capability}
    shown = build_request({}, [request_entry(step, asked, view.contexts, services.registry)])
    if rules.problem:
        shown["note"] = rules.problem
    read = answer_reader(shown, view, services, store)
    answers, by = await ask_in_task(shown, read)
    await save_standing_rules(answers, shown, view, store)
    return answers[attempt.key], by


def _rejected_record(attempt: Attempt, answer: ApprovalDecision) -> StepRecord:
    said = answer.reason or answer.message or "no reason was given"
    failure = Failure(
        severity=ErrorSeverity.CRITICAL,
        message=f"A person rejected {attempt.capability!r}: {said}.",
        metadata={"rejected_by_person": {attempt.key: answer.reason}, "category": "rejected"},
        capability=attempt.capability,
        key=attempt.key,
    )
    return StepRecord.from_attempt(attempt, error=failure)


def _node_update(record: StepRecord, view: TurnView, *, outside_graph: bool) -> dict[str, Any]:
    update = to_state(record, view.plan_id)
    update["execution_last_result"] = last_result(record.to_state_entry(), record.error)
    if record.plan is not None:
        update["planning_execution_plan"] = record.plan
    if record.error is None:
        index = view.state.get("planning_current_step_index") or 0
        update |= {"planning_current_step_index": index + 1}
        # Beside a node that failed, a success must not take the failure back.
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
    """Leave out bookkeeping that the graph has no place for; a result without one is an error.

    Raises:
        InfrastructureError: The result, or the failure, would be lost.
    """
    channels = running_graph_channels()
    if channels is None:
        return update
    if update.get("control_has_error") and "control_error_info" not in channels:
        info = update["control_error_info"]
        raise CapabilityError(
            f"{spec.name!r} failed: {info['user_message']}",
            fix="Give the graph AgentState (or a subclass) as its state, to handle failures there.",
        )
    carried = {
        "capability_context_data",
        "capability_context_labels",
        "messages",
        "planning_execution_plan",
    }
    lost = sorted(name for name in carried & set(update) if name not in channels)
    if lost:
        raise InfrastructureError(
            f"{spec.name!r} gave {lost}, and the graph's state has no such key, so it would be"
            " lost.",
            fix="Give the graph AgentState (or a subclass) as its state, or declare the key.",
        )
    return {name: value for name, value in update.items() if name in channels}
