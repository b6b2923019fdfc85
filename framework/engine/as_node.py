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

from capgraph.approvals import Answer, question_entry, question_of, standing_rules
from capgraph.base.awaiting import awaited
from capgraph.base.budget import TurnBudget
from capgraph.base.checked import fits
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
from capgraph.base.ports import Attempt, Caller, Failure, Question, StepRecord
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.apply_answers import take_up
from capgraph.engine.asking import ask_apart, reader, remember
from capgraph.engine.bind import unbound_services
from capgraph.engine.envelopes import Asking, RequestsSideBySide, alone
from capgraph.engine.run_scope import enclosing_services, end_run, run_scope, services_around
from capgraph.engine.services import ParametersOfState, Services
from capgraph.engine.undo import failed_before, offered_apart
from capgraph.governance.spending import running_spending
from capgraph.langgraph_compat import (
    called_back,
    channels_of_graph,
    given_to_run,
    goes_on,
    held_by_node_run,
    plain_values,
    times_asked,
)
from capgraph.pipeline.effect_ledger import digest_of
from capgraph.pipeline.failures import clear_failure, killed, raise_failure
from capgraph.pipeline.job import Door, ResultReading, nth_request, outer_job
from capgraph.pipeline.journal import Journal, Opening
from capgraph.pipeline.run_config import current_runtime, paid_by
from capgraph.pipeline.state_update import last_result, to_state
from capgraph.planning.parameters import required_parameters
from capgraph.state import TurnView
from capgraph.telemetry.accounts import CASHIER, paying
from capgraph.telemetry.metered import METER, counting

_JUMPS = 2
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
    bound = services or services_around(spec) or unbound_services(spec)
    view, behind = await _turn(bound, state) if in_run else (bound.view(state), 0)
    attempt = _attempt(spec, view, behind, planned=parameters is None)
    is_planned = bool(attempt.step)
    if parameters is not None:
        values = await _parameters_of(spec, parameters, state)
        attempt = replace(attempt, step=PlannedStep(parameters=values))
    elif in_run and not (is_planned or view.begun):
        _refuse_missing(spec)
    # Without turns nothing would ever begin a new budget: then it is that of this visit.
    budget = TurnBudget.from_plain(view.budget if view.begun else {})

    async def run(attempt: Attempt, failures: int = 0) -> StepRecord:
        return await _answered(
            attempt,
            view,
            bound,
            budget,
            is_planned=is_planned,
            apart=in_run and not view.begun and not is_planned,
            reading=ResultReading(channels_of_graph() if in_run else None, unsorted=not in_run),
            failures=failures,
        )

    alone = in_run and not view.begun
    async with _entered(view, bound, budget):
        update = await failed_before(bound) if alone else {}
        if not update:
            record, stopped = await _governed(partial(run, attempt), view, bound, budget)
            update = _update(record, view, plain=not in_run)
            if stopped is not None:
                update |= raise_failure([stopped])
        if alone and update.get("control_has_error"):
            update = await offered_apart(update, view, bound, run)
    if in_run:
        if view.begun:
            update["control_budget"] = budget.to_plain()
        return _kept(update, spec)
    return update


async def run_request(
    spec: CapabilitySpec,
    step: PlannedStep,
    contexts: Mapping[str, Mapping[str, Any]] | None = None,
    services: Services | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    raw_errors: bool = False,
    work: Any = None,
    may_ask: bool = True,
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
        may_ask: Whether a person can be asked here; synchronous code cannot suspend the run.

    Returns:
        What it left behind, a failure included.
    """
    bound = services or services_around(spec) or unbound_services(spec)
    view = bound.view({**(state or {}), "capability_context_data": contexts or {}})
    key = "_".join((spec.name, *_apart(spec.name)))
    asked: PlannedStep = {"context_key": key, "capability": spec.name, **step}
    attempt = view.attempt(spec.name, asked, key=key, total=1)
    # A capability that asks for others in its body waits for these, and they not for it.
    place = (asyncio.get_running_loop(), id(outer_job()))
    beside = held_by_node_run(place, RequestsSideBySide)
    budget = TurnBudget()
    reading = ResultReading(frozenset(), raw_errors=raw_errors)
    about: Any = {"apart": current_runtime() is not None, "reading": reading}
    about |= {"labels": labels or {}, "work": work}
    async with beside.request() if beside else alone() as asking:
        about["asking"] = asking if may_ask else partial(_refuse_to_ask, spec.name)
        run = partial(_answered, attempt, view, bound, budget, **about)
        async with _entered(view, bound, budget):
            again = lambda failures: run(failures=failures)  # noqa: E731
            record, stopped = await _governed(again, view, bound, budget)
    if stopped is None:
        return record
    return replace(record, error=stopped, updates=killed(StoppedError(stopped.message)))


@asynccontextmanager
async def members_of(services: Services | None, name: str) -> AsyncIterator[None]:
    """Run a member of a team, a workflow, or an agent in the block, under these services.

    Args:
        services: Those of the whole; without any, those around it apply.
        name: Names the member within the run, the same after a restart.
    """
    if services is None or any(known is services for known in enclosing_services()):
        yield
        return
    async with _entered(services.view({}), services, TurnBudget()):
        spending = running_spending()
        held = spending is None or spending.held()
        async with nullcontext() if held or spending is None else spending.reserved(name):
            yield


async def _governed(
    run: Callable[[int], Awaitable[StepRecord]],
    view: TurnView,
    services: Services,
    budget: TurnBudget,
) -> tuple[StepRecord, Failure | None]:
    """Run a step; where no router does it, have the rules of the operator act about it."""
    began = services.clock.now()
    record = await run(0)
    if not services.engines or view.begun:
        return record, None
    from capgraph.engine.consult_policies import govern_node  # of no use without rules

    return await govern_node(record, view, services, budget, began, run)


@asynccontextmanager
async def _entered(view: TurnView, services: Services, budget: TurnBudget) -> AsyncIterator[None]:
    """Say what holds inside a node: in a graph of one's own nobody has, so far."""
    in_run = current_runtime() is not None
    inside = run_scope(services, get_config() if in_run else {}, listened=None if in_run else False)
    try:
        # What an agent or a team does inside its own visit is paid by that one's account.
        outer = running_spending()
        nested = outer is not None and outer.draws_on(services.purse)
        told = (METER, CASHIER) if services.purse.budgets else (METER,)
        calls = counting(budget, services.limits.max_model_calls)
        view.payer = await _payer(view, services)
        run = "" if nested else await _run(view, services)
        with inside, calls, called_back(*told), paid_by(view.payer):  # noqa: SIM117
            with paying(None if nested else services.spending(view, run=run)):  # for whom is known
                yield
    finally:
        await end_run(inside)


async def _payer(view: TurnView, services: Services) -> Caller:
    """Return whose turn it is; of a graph of one's own, who began the run that is gone on with."""
    known = view.begun_by
    began = await _opening(services, people=True) if known is None else None
    if known is not None or began is None:
        return known or view.caller
    # What a server made sure of stands beside what a caller may say.
    told: Mapping[str, Any] = began.metadata
    caller = view.caller
    if caller.authenticated:
        return replace(caller, user_id=told.get("langgraph_auth_user_id") or caller.user_id)
    return Caller(told.get("user_id"), tenant=told.get("tenant"))


async def _run(view: TurnView, services: Services) -> str:
    """Name the run whose visits are one turn for budgets, where nothing else opened one."""
    began = None if view.turn_id else await _opening(services, people=False)
    return "" if began is None else began.checkpoint_id


async def _opening(services: Services, *, people: bool) -> Opening | None:
    """Return with what the run began that goes on, where budgets count by people, or by turns."""
    counted = {"user", "tenant"} if people else {"turn"}
    with suppress(PersistenceError):  # nothing keeps it before it ends: each visit is one
        if people and goes_on():
            return await services.journal().opening(services.openings, before=True)
        apart = people and services.runner.counts_people
        if apart or counted.intersection(budget.per for budget in services.purse.budgets):
            return await services.journal().opening(services.openings)
    return None


async def _turn(services: Services, state: Mapping[str, Any]) -> tuple[TurnView, int]:
    """Return the reading of the turn, and how many steps earlier runs of the thread went.

    A graph of one's own keeps no turns. A plan that its run was given opens one, and where the
    caller did not say at which step it begins, it begins at its first.
    """
    view = services.view(state)
    if view.begun or not view.steps or (began := await services.journal().began()) is None:
        return view, 0
    given = given_to_run(began) or {}
    if "planning_execution_plan" not in given:
        return view, 0
    here = began.config["configurable"]
    behind = plain_values(began).get("planning_current_step_index") or 0
    own = TurnView(
        state,
        thread_id=view.thread_id,
        caller=view.caller,
        sender=view.sender,
        opened_by=here["checkpoint_id"],
    )
    return own, 0 if "planning_current_step_index" in given else behind


def _refuse_missing(spec: CapabilitySpec) -> None:
    if needed := required_parameters(spec.parameters):
        shown = ", ".join(f'"{name}": "<state key>"' for name in needed)
        raise ConfigurationError(
            f"The node of {spec.name!r} needs the parameters {', '.join(needed)}, and no plan in the"
            " state has a step for it.",
            fix=f"Write services.node({spec.cls.__name__}, parameters={{{shown}}}).",
        )


async def _parameters_of(
    spec: CapabilitySpec, parameters: ParametersOfState, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a step that a graph of one's own keeps in its state."""
    if not callable(parameters):
        return {name: state[key] for name, key in parameters.items() if key in state}
    found = await awaited(parameters(state))
    if not fits(found, Mapping[str, Any]):
        raise InfrastructureError(
            f"The function given as parameters of {spec.name!r} returned {found!r:.80}.",
            fix="Return values by parameter name.",
        )
    return dict(found)


def _attempt(spec: CapabilitySpec, view: TurnView, behind: int, *, planned: bool) -> Attempt:
    steps = view.steps if planned else []
    index = (view.state.get("planning_current_step_index") or 0) - behind
    step = steps[index] if 0 <= index < len(steps) else PlannedStep()
    if step.get("capability", spec.name) != spec.name:
        step = PlannedStep()
    key = step.get("context_key") or "_".join((str(index), spec.name, *_apart(spec.name)))
    return view.attempt(spec.name, step, key=key, index=index)


def _apart(name: str) -> list[str]:
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
    if (outer := outer_job()) is not None:
        times = nth_request(outer, str(known.get("langgraph_checkpoint_ns")), name)
    else:
        runtime = current_runtime()
        info = runtime.execution_info if runtime is not None else None
        times = times_asked(name, info.node_attempt if info is not None else 1)
    numbers += [str(times)] if times > 1 else []
    return [*([node] if node != name else []), *numbers]


async def _answered(
    attempt: Attempt,
    view: TurnView,
    services: Services,
    budget: TurnBudget,
    *,
    is_planned: bool = True,
    apart: bool,
    reading: ResultReading,
    failures: int = 0,
    labels: Mapping[str, str] | None = None,
    work: Any = None,
    asking: Asking = nullcontext,
) -> StepRecord:
    """Run the step; ask a person whatever it needs to know, as often as it asks.

    A plan tells equal steps apart; without one (``apart``) it is LangGraph's task that is one
    request.
    """
    runtime = current_runtime()
    if apart and services.registry.capabilities[attempt.capability].effect != "none":
        await _refuse_old(services.journal())
    ledger = services.ledger(view, visit=runtime.execution_info.task_id if apart else "")
    if not view.begun and services.asks_another_than_requester:
        began = await services.journal().began()
        run = began.config["configurable"]["checkpoint_id"] if began is not None else "run"
        await ledger.agreements.opened_by(view.caller, run)
    # The turn's bound is made of what its plan can need; a jump beside the plan has its own.
    beside = not (is_planned or services.limits.max_turn_attempts)
    bound = _JUMPS * services.limits.max_attempts if budget.allowed_attempts else 0
    tries = TurnBudget(attempts=budget.jumps, allowed_attempts=bound) if beside else budget
    door = Door(
        view=view,
        ledger=ledger,
        plan_keys=[step["context_key"] for step in view.steps if "context_key" in step],
        failures=view.attempts.get(attempt.key, 0) if is_planned and view.begun else failures,
        reading=reading,
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
            return _refused(attempt, answer)
        await take_up(attempt.key, result.to_state(), answer, ledger, services, by)
        if answer.decision == "edit":
            changed: Any = {**attempt.step, "parameters": answer.parameters}
            attempt = replace(attempt, step=changed)


async def _refuse_old(journal: Journal) -> None:
    """Act once for one message: a graph of one's own has nobody else who would remember it.

    Raises:
        ValidationError: The message that this run was given has had a run before.
    """
    if journal.room or (began := await journal.began()) is None:
        return  # inside another graph its task says what is new
    given = (given_to_run(began) or {}).get("messages") or []
    messages = convert_to_messages(given if isinstance(given, list) else [given])
    said = next((m for m in reversed(messages) if m.type == "human"), None)
    if said is None or said.id is None:
        return
    name = f"begun/{digest_of([said.id, said.content])}"
    run = began.config["configurable"]["checkpoint_id"]
    known = await journal.read(name)
    if known.get("run", run) != run:
        raise ValidationError(
            "There is nothing new: the last message has had its run.",
            fix="Send a new message, or None to go on with an unfinished run.",
        )
    if not known:
        await journal.write(name, {"run": run})


def _refuse_to_ask(name: str) -> NoReturn:
    raise ConfigurationError(
        f"A person has to decide about {name!r}, and it was called synchronously, where nothing"
        " can wait for the answer.",
        fix="Run the graph with ainvoke or astream, and call the tool with ainvoke.",
    )


async def _ask(
    question: Question, attempt: Attempt, view: TurnView, services: Services
) -> tuple[Answer, Caller]:
    if not services.journal().durable:
        raise ConfigurationError(
            f"A person has to decide about {attempt.capability!r}, and nothing would keep the"
            " question until then.",
            fix="Compile the graph with a checkpointer.",
        )
    asked = question.to_state()
    store = getattr(current_runtime(), "store", None)
    rules = await standing_rules(store, services.clock.now())
    if rules.covering(asked, view):
        return Answer(decision="approve"), Caller()
    step = {**attempt.step, "context_key": attempt.key, "capability": attempt.capability}
    shown = question_of({}, [question_entry(step, asked, view.contexts, services.registry)])
    if rules.problem:
        shown["note"] = rules.problem
    read = reader(shown, view, services, store)
    answers, by = await ask_apart(shown, read)
    await remember(answers, shown, view, store)
    return answers[attempt.key], by


def _refused(attempt: Attempt, answer: Answer) -> StepRecord:
    said = answer.reason or answer.message or "no reason was given"
    failure = Failure(
        severity=ErrorSeverity.CRITICAL,
        message=f"A person rejected {attempt.capability!r}: {said}.",
        metadata={"rejected_by_person": {attempt.key: answer.reason}, "category": "rejected"},
        capability=attempt.capability,
        key=attempt.key,
    )
    return StepRecord.of(attempt, error=failure)


def _update(record: StepRecord, view: TurnView, *, plain: bool) -> dict[str, Any]:
    update = to_state(record, view.plan_id)
    update["execution_last_result"] = last_result(record.entry(), record.error)
    if record.plan is not None:
        update["planning_execution_plan"] = record.plan
    if record.error is None:
        index = view.state.get("planning_current_step_index") or 0
        update |= {"planning_current_step_index": index + 1}
        # Beside a node that failed, a success must not take the failure back.
        if plain or view.failure is not None:
            update |= clear_failure()
        return update
    failures = (view.state.get("control_retry_count") or 0) + record.error.attempts
    return {
        **update,
        **raise_failure([record.error]),
        "control_retry_count": failures,
        "control_current_step_retry_count": failures,
    }


def _kept(update: dict[str, Any], spec: CapabilitySpec) -> dict[str, Any]:
    """Leave out bookkeeping that the graph has no place for; a result without one is an error.

    Raises:
        InfrastructureError: The result, or the failure, would be lost.
    """
    channels = channels_of_graph()
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
