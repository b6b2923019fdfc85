"""Enforcement of budgets for step attempts and model calls.

A step or graph node is one reservation per budget. Model calls inside it draw on the reservation,
so nothing counts twice. A model call reserves its prompt and maximum output, and is charged with
the usage that the model reports.
"""

from __future__ import annotations

import asyncio
import math
import sys
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import UUID

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import ApprovalRequest, Attempt, Caller, CallNext
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.governance.budget import (
    Budget,
    BudgetDraw,
    BudgetExceededError,
    Reservation,
    to_units,
)
from capgraph.governance.budget_counters import METRICS, CounterKey
from capgraph.governance.plan_estimate import estimate_plan
from capgraph.helpers.clock import Clock
from capgraph.pipeline.run_config import billing_subject, current_runtime
from capgraph.pipeline.step_execution import STOPPED, current_execution, enclosing_execution
from capgraph.state import TurnView
from capgraph.stores.database import SqlTables
from capgraph.stores.persistence import Persistence
from capgraph.telemetry.budget_callback import ModelCall, charge_to, current_accounts
from capgraph.telemetry.event_dispatcher import current_event_ids
from capgraph.telemetry.usage import ModelPricing, PriceTable, UsageSnapshot
from capgraph.telemetry.usage_recorder import UsageRecorder, average_capability_usage

_MIN_SECONDS = 1e-6
Draws = list[tuple[BudgetDraw, float | None]]


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """Budgets and prices that apply to all turns of a graph. Holds no state of a run.

    Attributes:
        budgets: Budgets that the operator configured.
        prices: Prices of models.
        recorder: Recorder that stores the usage.
    """

    budgets: tuple[Budget, ...] = ()
    prices: PriceTable = field(default_factory=PriceTable.of_process)
    recorder: UsageRecorder = field(default_factory=UsageRecorder)

    @classmethod
    def from_option(
        cls, budget: Any, prices: PriceTable | None, clock: Clock | None = None
    ) -> BudgetPolicy:
        """Create a budget policy from the ``budget`` option, which may be one budget or several.

        Raises:
            ConfigurationError: The option is not a budget, or two budgets share their counters.
        """
        is_list = isinstance(budget, (list, tuple))
        budgets = () if budget is None else tuple(budget) if is_list else (budget,)
        for one_budget in budgets:
            if not isinstance(one_budget, Budget):
                raise ConfigurationError(
                    f"{one_budget!r} is not a Budget.", fix="Pass Budget(tokens=…)."
                )
        scopes = [one_budget.scope for one_budget in budgets]
        if duplicates := sorted({scope for scope in scopes if scopes.count(scope) > 1}):
            raise ConfigurationError(
                (
                    f"The scope {duplicates[0]!r} belongs to two budgets, which would share their"
                    " counters."
                ),
                fix="Pass name= to one of the budgets.",
            )
        table = prices or PriceTable.of_process()
        return cls(
            tuple(one_budget.with_clock(clock) for one_budget in budgets),
            table,
            UsageRecorder(table),
        )

    def for_turn(
        self,
        view: TurnView,
        persistence: Persistence | None,
        *,
        has_saver: bool = True,
        plan_limits: Mapping[str, float] | None = None,
        run_id: str = "",
    ) -> TurnSpending | None:
        """Create the spending tracker of a turn, or return ``None`` if there is nothing to track.

        Args:
            view: View of the turn.
            persistence: Persistence of the graph's threads.
            has_saver: True if a saver stores the thread. Without one, each run is a separate turn.
            plan_limits: Limits in the current plan.
            run_id: ID of the run, for custom graphs without turns.
        """
        plan_budgets = [Budget(**plan_limits, name="plan")] if plan_limits else []  # type: ignore[arg-type]
        tables = persistence.tables if persistence is not None else None
        if tables is None and not self.budgets and not plan_budgets:
            return None
        budgets = [*self.budgets, *plan_budgets]
        if persistence is not None and tables is not None:
            values, leases = persistence.values, persistence.leases
            budgets = [item.with_counters(values, leases) for item in budgets]
        run_identity = run_id or _get_run_identity(view, has_saver=has_saver)
        return TurnSpending(budgets, self.prices, view, tables, self.recorder, visit=run_identity)


def budgets_from_settings(entries: Sequence[Mapping[str, Any]]) -> list[Budget]:
    """Create budgets from the ``budgets`` entries in the settings.

    Raises:
        ConfigurationError: A name is unknown, or a value is invalid.

    >>> [budget.per for budget in budgets_from_settings([{"tokens": 100, "per": "user"}])]
    ['user']
    """
    budgets = []
    for index, entry in enumerate(entries):
        price = entry.get("unknown_price", "refuse")
        try:
            priced = ModelPricing(**price) if isinstance(price, Mapping) else price
            budgets.append(Budget(**{**entry, "unknown_price": priced}))
        except (TypeError, ValueError) as exc:
            raise ConfigurationError(
                f"The setting budgets.{index} {dict(entry)!r} is invalid: {exc}",
                fix="Use the arguments of Budget.",
            ) from exc
    return budgets


def prices_from_settings(entries: Mapping[str, Mapping[str, float]]) -> PriceTable | None:
    """Create a price table from the ``prices`` setting, or return ``None`` if it is empty.

    Raises:
        ConfigurationError: A name is unknown, or a value is invalid.
    """
    try:
        prices = {model: ModelPricing(**price) for model, price in entries.items()}
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"The setting prices is invalid: {exc}", fix="Use the arguments of ModelPricing."
        ) from exc
    return PriceTable(prices) if prices else None


def _get_run_identity(view: TurnView, *, has_saver: bool) -> str:
    """Return a unique ID for a run without a durable turn ID.

    This applies to runs without a saver and to nodes of graphs without turns.
    """
    if view.turn_id:
        return "" if has_saver else current_event_ids().get("run_id", "")
    runtime = current_runtime()
    return runtime.execution_info.task_id if runtime is not None else uuid.uuid4().hex


def _get_subjects(view: TurnView, payer: Caller, run: str) -> dict[str, str]:
    turn = "/".join(part for part in (view.thread_id, view.turn_id, run) if part)
    return {
        "turn": turn,
        "step": turn,
        "thread": view.thread_id or turn,
        "user": payer.user_id or "",
        "tenant": payer.tenant or "",
    }


class TurnSpending:
    """Budgets of one turn, to which the turn's steps and model calls are charged."""

    def __init__(
        self,
        budgets: Sequence[Budget],
        prices: PriceTable,
        view: TurnView,
        rows: SqlTables | None,
        book: UsageRecorder,
        *,
        visit: str,
    ) -> None:
        self._budgets, self._prices, self._tables, self._recorder = budgets, prices, rows, book
        payer = billing_subject()
        self._subjects = _get_subjects(view, payer, visit)
        self._usage_context = {
            "thread_id": view.thread_id,
            "turn_id": view.turn_id,
            "user_id": payer.user_id,
            "tenant": payer.tenant,
        }
        self._calls: dict[UUID, tuple[str, Draws]] = {}
        self._settled: set[UUID] = set()  # settled calls
        self._late_usage: list[tuple[Reservation, dict[str, float]]] = []
        self._plan_reservations: dict[int, Reservation] = {}  # of the current plan, by budget
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def belongs_to(self, policy: BudgetPolicy) -> bool:
        """Return True if this spending tracker was created by the given budget policy."""
        return self._recorder is policy.recorder

    @property
    def has_budgets(self) -> bool:
        """True if at least one budget applies to the current turn."""
        return bool(self._budgets)

    def current_reservations(self) -> tuple[Reservation, ...]:
        """Return the budget reservations of the enclosing step or node."""
        reservations: Mapping[int, tuple[Reservation, ...]] = run_context().reservations
        return reservations.get(id(self), ())

    @asynccontextmanager
    async def reserve_for(self, name: str, **amounts: float) -> AsyncIterator[dict[str, float]]:
        """Context manager that reserves budget for a step or node and then charges its usage.

        Model calls inside the block draw on the reservation.

        Args:
            name: Name of the step or node, unique within the turn and stable across restarts.
            **amounts: Amounts that the step itself needs.

        Yields:
            Dictionary that the block fills with the actual usage. If it remains empty,
                the amounts are released.

        Raises:
            BudgetExceededError: The amounts exceed a budget. Nothing was reserved.
        """
        draws: list[Reservation | BudgetDraw] = []
        reservations: list[Reservation] = []
        used: dict[str, float] = {}
        try:
            for budget in self._budgets:
                plan = self._plan_reservations.get(id(budget)) if amounts else None
                if plan is not None:
                    draws.append(await plan.draw(**amounts))
                    reservations.append(plan)
                else:
                    draws.append(made := await self._open_and_take(budget, name, amounts))
                    reservations.append(made)
            outer = run_context().reservations
            with override_run_context(reservations={**outer, id(self): tuple(reservations)}):
                yield used
        finally:
            for reservation in reservations:
                late = [entry for entry in self._late_usage if entry[0] is reservation]
                self._late_usage = [
                    entry for entry in self._late_usage if entry[0] is not reservation
                ]
                for _, amount in late:
                    await reservation.count(**amount)
            for part in draws:
                if used:
                    await part.settle(**{**dict.fromkeys(METRICS, 0.0), **used})
                else:
                    await part.release()

    @asynccontextmanager
    async def reserve_plan(
        self, capabilities: Sequence[str], specs: Mapping[str, CapabilitySpec]
    ) -> AsyncIterator[None]:
        """Context manager that reserves a plan's estimated usage while the plan's steps run.

        Args:
            capabilities: Capability of each step that has to run.
            specs: Specifications of the capabilities.

        Raises:
            BudgetExceededError: The estimate exceeds a budget. The message states the amounts.
        """
        rows, plan = self._tables, dict[int, Reservation]()
        history = (
            await average_capability_usage(rows, sorted(set(capabilities)))
            if rows and capabilities
            else {}
        )
        needs = estimate_plan(capabilities, specs, history).to_limits()
        try:
            for budget in self._budgets:
                if budget.per != "step":
                    asked = {name: value for name, value in needs.items() if name in budget.limits}
                    plan[id(budget)] = await self._open_and_take(budget, "plan", asked)
            self._plan_reservations = plan
            yield
        except BudgetExceededError as error:
            if self._plan_reservations is plan:
                raise
            raise error.with_message(
                f"The estimated usage of the plan exceeds a budget. {error.message}"
            ) from None
        finally:
            self._plan_reservations = {}
            for made in plan.values():
                await made.release()

    async def _open_and_take(
        self, budget: Budget, name: str, amounts: Mapping[str, float]
    ) -> Reservation:
        subject = self._subjects[budget.per]
        key = f"{subject}/{name}" if budget.per == "step" else subject
        resumable = f"{self._subjects['turn']}/{name}"
        made = budget.open_reservation(
            key, resume_key=resumable, thread_id=self._usage_context["thread_id"]
        )
        if amounts:
            await made.take(to_units(amounts))
        return made

    async def check_plan_fits(
        self, capabilities: Sequence[str], specs: Mapping[str, CapabilitySpec]
    ) -> None:
        """Check that a plan's estimated usage fits within the budgets.

        Nothing stays reserved; see :meth:`reserve_plan`.

        Raises:
            BudgetExceededError: The estimate exceeds a budget.
        """
        async with self.reserve_plan(capabilities, specs):
            pass

    async def remaining(self) -> dict[str, float]:
        """Return the remaining amount of each limit, using the strictest budget.

        Budgets that apply to single steps are omitted.
        """
        found: dict[str, float] = {}
        for budget in self._budgets:
            if budget.per == "step":
                continue
            for name, value in (await budget.remaining(self._subjects[budget.per])).items():
                found[name] = min(value, found.get(name, value))
        return found

    def has_reserved(self, run_id: UUID) -> bool:
        """Return True if budget is currently reserved for a model call."""
        return run_id in self._calls

    async def reserve_call(self, call: ModelCall) -> None:
        """Reserve budget for a model call before the call is sent.

        Raises:
            BudgetExceededError: A budget is exceeded. The call must not be sent.
        """
        if call.run_id in self._calls:
            return
        if any("cost_usd" in budget.limits for budget in self._budgets):
            await self._load_prices(call.model)
        taken: Draws = []
        self._calls[call.run_id] = (call.model, taken)
        try:
            inner = takewhile(lambda account: account is not self, current_accounts())
            others = {
                r.counter
                for a in inner
                if isinstance(a, TurnSpending)
                for r in a.current_reservations()
            }
            for reservation in self.current_reservations():
                if (
                    reservation.counter not in others
                ):  # a nested graph's reservation covers the call
                    taken.append(await self._draw(reservation, call))
        except BaseException:
            del self._calls[call.run_id]
            for part, _ in taken:
                await part.release()
            raise

    async def _load_prices(self, model: str) -> None:
        # Loading genai_prices is slow and must not block the event loop.
        if "genai_prices" not in sys.modules and self._prices.find(model) is None:
            await asyncio.to_thread(self._prices.cost, model, UsageSnapshot())

    async def _draw(
        self, reservation: Reservation, call: ModelCall
    ) -> tuple[BudgetDraw, float | None]:
        budget = reservation.budget
        answer = (
            call.max_output_tokens
            if call.max_output_tokens is not None
            else budget.assumed_output_tokens
        )
        requested: dict[str, float] = {"requests": 1, "tokens": call.prompt_tokens + answer}
        minimum: dict[str, float] = {"requests": 1, "tokens": call.prompt_tokens}
        if "cost_usd" in budget.limits:
            requested["cost_usd"] = self._compute_cost(
                budget, call.model, call.prompt_tokens, answer
            )
            minimum["cost_usd"] = self._compute_cost(budget, call.model, call.prompt_tokens, 0)
        while True:
            for draw in reservation.orphaned_draws(call.task):
                await draw.settle(requests=1)  # it was sent, and no response arrived
            try:
                part = await reservation.draw(**requested)
                reservation.track_in_flight(part, call.task)
                return part, requested.get("cost_usd")
            except BudgetExceededError as error:
                if error.limit not in ("tokens", "cost_usd"):
                    raise
                # Other calls release unused amounts when they end.
                if await budget.in_flight.wait(reservation.counter):
                    continue
                if call.max_output_tokens is not None:
                    raise
                # Without a length limit, reserve what is left.
                left = await reservation.remaining()
                for name, value in minimum.items():
                    if name in ("tokens", "cost_usd") and left.get(name, math.inf) <= value:
                        raise
                for name in minimum.keys() - {"requests"}:
                    requested[name] = min(requested[name], left.get(name, math.inf))

    def _compute_cost(self, budget: Budget, model: str, prompt: int, answer: int) -> float:
        used = UsageSnapshot(input_tokens=prompt, output_tokens=answer)
        cost = self._prices.cost(model, used)
        if cost is not None:
            return cost
        if isinstance(budget.unknown_price, str):
            raise BudgetExceededError(
                f"The price of the model {model!r} is unknown, but cost_usd is limited to"
                f" {budget.limits['cost_usd']:g}.",
                fix="Call register_pricing(…), run pip install 'capgraph[costs]', or pass"
                " Budget(unknown_price=ModelPricing(…)).",
                limit="price",
                value=budget.limits["cost_usd"],
            )
        return budget.unknown_price.cost(used)

    async def settle_call(
        self, run_id: UUID, model: str, usage: UsageSnapshot | None, *, failed: bool = False
    ) -> None:
        """Charge the usage of a finished model call to the budgets.

        If the model reported no usage, the reserved amounts are charged.

        Args:
            run_id: ID of the call.
            model: Model name in the response.
            usage: Usage in the response.
            failed: True if the call was sent and failed.
        """
        if (found := self._calls.pop(run_id, None)) is None:
            return
        # LangChain notifies handlers in any order, so record_call may follow.
        self._settled.add(run_id)
        requested_model, taken = found
        for part, _ in taken:
            if failed:
                await part.settle(requests=1)
            elif usage is None:
                await part.settle_as_reserved()
            else:
                await part.settle(
                    **self._compute_amounts(
                        part.budget, model or requested_model, requested_model, usage
                    )
                )

    def _compute_amounts(
        self, budget: Budget, model: str, requested_model: str, usage: UsageSnapshot
    ) -> dict[str, float]:
        used: dict[str, float] = {"requests": 1, "tokens": usage.total_tokens}
        if "cost_usd" in budget.limits:
            cost = self._prices.cost(model, usage)
            if cost is None:
                cost = self._prices.cost(requested_model, usage)
            if cost is None and not isinstance(budget.unknown_price, str):
                cost = budget.unknown_price.cost(usage)
            used["cost_usd"] = cost or 0.0
        return used

    def record_call(self, run_id: UUID, model: str, role: str, usage: UsageSnapshot) -> None:
        """Record the token usage of a model call.

        A call without a reservation is charged when its step ends.
        """
        if self._tables is not None:
            job, ids = enclosing_execution(), current_event_ids()
            step_fields = {
                "step_id": ids.get("step_id"),
                "capability": job.spec.name if job else None,
            }
            context = {**self._usage_context, **step_fields, "role": role}
            self._recorder.record(self._tables, str(run_id), model, usage, context)
        if run_id not in self._calls and run_id not in self._settled:
            for reservation in self.current_reservations():
                used = self._compute_amounts(reservation.budget, model, model, usage)
                self._late_usage.append((reservation, used))


def current_spending() -> TurnSpending | None:
    """Return the spending tracker of the innermost turn that is running, or ``None``."""
    return next((item for item in current_accounts() if isinstance(item, TurnSpending)), None)


@asynccontextmanager
async def charge_node(spending: TurnSpending | None, node: str) -> AsyncIterator[None]:
    """Context manager that charges the model calls of a graph node to a turn's budgets.

    Args:
        spending: Budgets of the turn, or ``None`` to charge nothing.
        node: Name of the node.
    """
    if spending is None:
        yield
        return
    async with spending.reserve_for(node):
        with charge_to(spending):
            yield


@asynccontextmanager
async def _draw_from_enclosing_steps(
    accounts: Sequence[TurnSpending],
    own: Mapping[str, float],
    usage: Mapping[str, float],
    excluded: Collection[CounterKey] = (),
) -> AsyncIterator[None]:
    """Context manager that charges a nested step to the reservations of its enclosing steps."""
    held = {
        made.counter: made
        for one in accounts
        for made in one.current_reservations()
        if made.counter not in excluded
    }
    parts: list[BudgetDraw] = []
    try:
        for reservation in held.values():
            parts.append(await reservation.draw(**own))  # noqa: PERF401  draws must be settled on error
        yield
    finally:
        for part in parts:
            await (part.settle(**own) if usage else part.release())


class BudgetStage:
    """Middleware that reserves budget for each step attempt and then charges the actual usage."""

    stage = "acquire"
    order = 10

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Reserve budget for a step attempt, run the attempt, and charge the actual usage.

        Raises:
            BudgetExceededError: A budget is exceeded. The attempt has not started.
        """
        job, accounts = current_execution(), current_accounts()
        bounded = [a for a in accounts if isinstance(a, TurnSpending) and a.has_budgets]
        if job is None or not bounded:
            return await call_next(attempt)
        spending, clock = bounded[0], job.config.clock
        own: dict[str, float] = {"steps": 1, "tool_calls": 1}
        if job.spec.cost_usd:
            own["cost_usd"] = job.spec.cost_usd
        began = clock.monotonic()
        reserved: Any = spending.reserve_for(attempt.key, **own, seconds=_MIN_SECONDS)
        inside = job.outer is not None and bool(spending.current_reservations())
        async with nullcontext({}) if inside else reserved as used:
            # Only nested steps draw on the step's own reservation.
            taken = (
                set[CounterKey]()
                if inside
                else {made.counter for made in spending.current_reservations()}
            )
            async with _draw_from_enclosing_steps(bounded, own, used, taken):
                try:
                    result = await call_next(attempt)
                except GraphBubbleUp:
                    raise
                except Exception as exc:
                    used |= {**own, "seconds": max(0.0, clock.monotonic() - began)}
                    if not isinstance(exc, BudgetExceededError):
                        used["consecutive_failures"] = 1
                    raise
                if (
                    not (result is STOPPED or isinstance(result, ApprovalRequest))
                    and job.attempt_state.source == "run"
                ):
                    used |= {**own, "seconds": max(0.0, clock.monotonic() - began)}
                    used["consecutive_failures"] = 0
                return result
