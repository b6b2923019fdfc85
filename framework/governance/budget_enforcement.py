"""What the runs of a graph may spend: budgets around tries of steps and calls of models.

A step, or a node of the graph, is one reservation of each budget; the model calls inside draw on it,
so nothing counts twice. A call is reserved by its prompt and the most that it may answer, and settled
by what the model says it used.
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

_INSTANT = 1e-6
Draws = list[tuple[BudgetDraw, float | None]]


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """The budgets of a graph, and where prices come from. Holds nothing of a run.

    Attributes:
        budgets: What the operator allows.
        prices: What models cost.
        recorder: Takes up what was used.
    """

    budgets: tuple[Budget, ...] = ()
    prices: PriceTable = field(default_factory=PriceTable.of_process)
    recorder: UsageRecorder = field(default_factory=UsageRecorder)

    @classmethod
    def from_option(
        cls, budget: Any, prices: PriceTable | None, clock: Clock | None = None
    ) -> BudgetPolicy:
        """Read what an operator gave as ``budget``: one, several or none.

        Raises:
            ConfigurationError: Something else was given, or two would count in one place.
        """
        several = isinstance(budget, (list, tuple))
        budgets = () if budget is None else tuple(budget) if several else (budget,)
        for item in budgets:
            if not isinstance(item, Budget):
                raise ConfigurationError(f"{item!r} is no budget.", fix="Give Budget(tokens=…).")
        scopes = [item.scope for item in budgets]
        if twice := sorted({scope for scope in scopes if scopes.count(scope) > 1}):
            raise ConfigurationError(
                f"Two budgets count as {twice[0]!r}.", fix="Give one of them a name=."
            )
        table = prices or PriceTable.of_process()
        return cls(tuple(item.with_clock(clock) for item in budgets), table, UsageRecorder(table))

    def for_turn(
        self,
        view: TurnView,
        persistence: Persistence | None,
        *,
        has_saver: bool = True,
        plan_limits: Mapping[str, float] | None = None,
        run_id: str = "",
    ) -> TurnSpending | None:
        """Return the budgets of a turn; ``None`` when there are none and nothing is kept.

        Args:
            view: The turn.
            persistence: Where the graph stores its threads.
            has_saver: Whether a saver keeps the thread; without one each run is a turn of its own.
            plan_limits: What the plan in force may use up besides.
            run_id: Names the run that stands for a turn, in a graph of one's own that has none.
        """
        own = [Budget(**plan_limits, name="plan")] if plan_limits else []  # type: ignore[arg-type]
        rows = persistence.tables if persistence is not None else None
        if rows is None and not self.budgets and not own:
            return None
        budgets = [*self.budgets, *own]
        if persistence is not None and rows is not None:
            values, leases = persistence.values, persistence.leases
            budgets = [item.with_counters(values, leases) for item in budgets]
        visit = run_id or _visit(view, kept=has_saver)
        return TurnSpending(budgets, self.prices, view, rows, self.recorder, visit=visit)


def budgets_from_settings(entries: Sequence[Mapping[str, Any]]) -> list[Budget]:
    """Make budgets of what settings say.

    Raises:
        ConfigurationError: A name is unknown, or a value does not fit.

    >>> [budget.per for budget in budgets_from_settings([{"tokens": 100, "per": "user"}])]
    ['user']
    """
    made = []
    for place, item in enumerate(entries):
        price = item.get("unknown_price", "refuse")
        try:
            priced = ModelPricing(**price) if isinstance(price, Mapping) else price
            made.append(Budget(**{**item, "unknown_price": priced}))
        except (TypeError, ValueError) as exc:
            raise ConfigurationError(
                f"budgets.{place} of the settings is {dict(item)!r}: {exc}",
                fix="Use the arguments of Budget.",
            ) from exc
    return made


def prices_from_settings(entries: Mapping[str, Mapping[str, float]]) -> PriceTable | None:
    """Make a table of what settings say; ``None`` when they say nothing.

    Raises:
        ConfigurationError: A name is unknown, or a value does not fit.
    """
    try:
        prices = {model: ModelPricing(**price) for model, price in entries.items()}
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"prices of the settings cannot be used: {exc}",
            fix="Use the arguments of ModelPricing.",
        ) from exc
    return PriceTable(prices) if prices else None


def _visit(view: TurnView, *, kept: bool) -> str:
    """Tell apart what the turn's own name does not: runs that nobody keeps, visits without a turn."""
    if view.turn_id:
        return "" if kept else current_event_ids().get("run_id", "")
    runtime = current_runtime()
    return runtime.execution_info.task_id if runtime is not None else uuid.uuid4().hex


def _subjects(view: TurnView, payer: Caller, run: str) -> dict[str, str]:
    turn = "/".join(part for part in (view.thread_id, view.turn_id, run) if part)
    return {
        "turn": turn,
        "step": turn,
        "thread": view.thread_id or turn,
        "user": payer.user_id or "",
        "tenant": payer.tenant or "",
    }


class TurnSpending:
    """The budgets of one turn."""

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
        self._budgets, self._prices, self._rows, self._book = budgets, prices, rows, book
        payer = billing_subject()
        self._subjects = _subjects(view, payer, visit)
        self._about = {
            "thread_id": view.thread_id,
            "turn_id": view.turn_id,
            "user_id": payer.user_id,
            "tenant": payer.tenant,
        }
        self._calls: dict[UUID, tuple[str, Draws]] = {}
        self._paid: set[UUID] = set()  # calls that are settled
        self._late: list[tuple[Reservation, dict[str, float]]] = []
        self._plan: dict[int, Reservation] = {}  # of the plan under way, by its budget
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def belongs_to(self, policy: BudgetPolicy) -> bool:
        """Tell whether it is an account of some purse."""
        return self._book is policy.recorder

    @property
    def has_budgets(self) -> bool:
        """Whether anything is limited."""
        return bool(self._budgets)

    def current_reservations(self) -> tuple[Reservation, ...]:
        """Return what the step or node around holds."""
        reservations: Mapping[int, tuple[Reservation, ...]] = run_context().reservations
        return reservations.get(id(self), ())

    @asynccontextmanager
    async def reserve_for(self, name: str, **amounts: float) -> AsyncIterator[dict[str, float]]:
        """Reserve for a step or a node; model calls inside draw on it.

        Args:
            name: Names it within the turn, the same after a restart.
            **amounts: What it needs for itself.

        Yields:
            What it used for itself, for the body to fill; what is not there is nothing.

        Raises:
            BudgetExceededError: A budget does not hold it; nothing was taken.
        """
        taken: list[Reservation | BudgetDraw] = []
        held: list[Reservation] = []
        used: dict[str, float] = {}
        try:
            for budget in self._budgets:
                plan = self._plan.get(id(budget)) if amounts else None
                if plan is not None:
                    taken.append(await plan.draw(**amounts))
                    held.append(plan)
                else:
                    taken.append(made := await self._take(budget, name, amounts))
                    held.append(made)
            around = run_context().reservations
            with override_run_context(reservations={**around, id(self): tuple(held)}):
                yield used
        finally:
            for reservation in held:
                late = [entry for entry in self._late if entry[0] is reservation]
                self._late = [entry for entry in self._late if entry[0] is not reservation]
                for _, amount in late:
                    await reservation.count(**amount)
            for part in taken:
                if used:
                    await part.settle(**{**dict.fromkeys(METRICS, 0.0), **used})
                else:
                    await part.release()

    @asynccontextmanager
    async def reserve_plan(
        self, capabilities: Sequence[str], specs: Mapping[str, CapabilitySpec]
    ) -> AsyncIterator[None]:
        """Hold what the steps of a plan will need while they run; each draws on it.

        Args:
            capabilities: The capability of each step that has to run.
            specs: What they declare.

        Raises:
            BudgetExceededError: It does not fit at once; the message has the figure.
        """
        rows, plan = self._rows, dict[int, Reservation]()
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
                    plan[id(budget)] = await self._take(budget, "plan", asked)
            self._plan = plan
            yield
        except BudgetExceededError as error:
            if self._plan is plan:
                raise
            raise error.with_message(f"The plan is too dear. {error.message}") from None
        finally:
            self._plan = {}
            for made in plan.values():
                await made.release()

    async def _take(self, budget: Budget, name: str, asked: Mapping[str, float]) -> Reservation:
        subject = self._subjects[budget.per]
        key = f"{subject}/{name}" if budget.per == "step" else subject
        resumable = f"{self._subjects['turn']}/{name}"
        made = budget.open_reservation(
            key, resume_key=resumable, thread_id=self._about["thread_id"]
        )
        if asked:
            await made.take(to_units(asked))
        return made

    async def check_plan_fits(
        self, capabilities: Sequence[str], specs: Mapping[str, CapabilitySpec]
    ) -> None:
        """Make sure that all of a plan fits at once, before anything of it runs; see :meth:`planned`.

        Raises:
            BudgetExceededError: It does not fit.
        """
        async with self.reserve_plan(capabilities, specs):
            pass

    async def left(self) -> dict[str, float]:
        """Return the least that is left of each limit."""
        found: dict[str, float] = {}
        for budget in self._budgets:
            if budget.per == "step":
                continue
            for name, value in (await budget.left(self._subjects[budget.per])).items():
                found[name] = min(value, found.get(name, value))
        return found

    def has_reserved(self, run_id: UUID) -> bool:
        """Tell whether something is reserved for a call."""
        return run_id in self._calls

    async def reserve_call(self, call: ModelCall) -> None:
        """Reserve for a call of a model, before it is sent.

        Raises:
            BudgetExceededError: A budget does not hold it; it must not be sent.
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
                if reservation.counter not in others:  # a graph inside a step of this one pays
                    taken.append(await self._draw(reservation, call))
        except BaseException:
            del self._calls[call.run_id]
            for part, _ in taken:
                await part.release()
            raise

    async def _load_prices(self, model: str) -> None:
        # The prices of others are a large module, which must not hold up the event loop.
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
        wanted: dict[str, float] = {"requests": 1, "tokens": call.prompt_tokens + answer}
        least: dict[str, float] = {"requests": 1, "tokens": call.prompt_tokens}
        if "cost_usd" in budget.limits:
            wanted["cost_usd"] = self._cost(budget, call.model, call.prompt_tokens, answer)
            least["cost_usd"] = self._cost(budget, call.model, call.prompt_tokens, 0)
        while True:
            for cut in reservation.orphaned_draws(call.task):
                await cut.settle(requests=1)  # it was sent, and nothing came back
            try:
                part = await reservation.draw(**wanted)
                reservation.track_in_flight(part, call.task)
                return part, wanted.get("cost_usd")
            except BudgetExceededError as error:
                if error.limit not in ("tokens", "cost_usd"):
                    raise
                # What others have reserved and do not use comes back when their calls end.
                if await budget.in_flight.wait(reservation.counter):
                    continue
                if call.max_output_tokens is not None:
                    raise
                # Nobody said how long the answer may be: it may be as long as what is left.
                left = await reservation.left()
                for name, value in least.items():
                    if name in ("tokens", "cost_usd") and left.get(name, math.inf) <= value:
                        raise
                for name in least.keys() - {"requests"}:
                    wanted[name] = min(wanted[name], left.get(name, math.inf))

    def _cost(self, budget: Budget, model: str, prompt: int, answer: int) -> float:
        used = UsageSnapshot(input_tokens=prompt, output_tokens=answer)
        cost = self._prices.cost(model, used)
        if cost is not None:
            return cost
        if isinstance(budget.unknown_price, str):
            raise BudgetExceededError(
                f"Nobody knows the price of the model {model!r}, and cost_usd is limited to"
                f" {budget.limits['cost_usd']:g}.",
                fix="register_pricing(…), pip install 'capgraph[costs]', or give"
                " Budget(unknown_price=ModelPricing(…)).",
                limit="price",
                value=budget.limits["cost_usd"],
            )
        return budget.unknown_price.cost(used)

    async def settle_call(
        self, run_id: UUID, model: str, usage: UsageSnapshot | None, *, failed: bool = False
    ) -> None:
        """Settle a call; one that says nothing of what it used counts as it was reserved.

        Args:
            run_id: The call.
            model: The model's name, as it gave it itself.
            usage: What it used.
            failed: Whether it failed: it was sent, and nothing came back.
        """
        if (found := self._calls.pop(run_id, None)) is None:
            return
        # LangChain tells handlers of one call in any order: the count of it may come only now.
        self._paid.add(run_id)
        asked_model, taken = found
        for part, _ in taken:
            if failed:
                await part.settle(requests=1)
            elif usage is None:
                await part.settle_as_reserved()
            else:
                await part.settle(
                    **self._used(part.budget, model or asked_model, asked_model, usage)
                )

    def _used(
        self, budget: Budget, model: str, asked_model: str, usage: UsageSnapshot
    ) -> dict[str, float]:
        used: dict[str, float] = {"requests": 1, "tokens": usage.total_tokens}
        if "cost_usd" in budget.limits:
            cost = self._prices.cost(model, usage)
            if cost is None:
                cost = self._prices.cost(asked_model, usage)
            if cost is None and not isinstance(budget.unknown_price, str):
                cost = budget.unknown_price.cost(usage)
            used["cost_usd"] = cost or 0.0
        return used

    def record_call(self, run_id: UUID, model: str, role: str, usage: UsageSnapshot) -> None:
        """Take up what a call used; one that was not reserved counts when its step has ended."""
        if self._rows is not None:
            job, ids = enclosing_execution(), current_event_ids()
            own = {"step_id": ids.get("step_id"), "capability": job.spec.name if job else None}
            told = {**self._about, **own, "role": role}
            self._book.record(self._rows, str(run_id), model, usage, told)
        if run_id not in self._calls and run_id not in self._paid:
            for reservation in self.current_reservations():
                used = self._used(reservation.budget, model, model, usage)
                self._late.append((reservation, used))


def current_spending() -> TurnSpending | None:
    """Return what the turn that calls this may spend, the innermost one's."""
    return next((item for item in current_accounts() if isinstance(item, TurnSpending)), None)


@asynccontextmanager
async def charge_node(spending: TurnSpending | None, node: str) -> AsyncIterator[None]:
    """Have an account pay for what a node of the graph does.

    Args:
        spending: The account; ``None`` for nobody.
        node: The node.
    """
    if spending is None:
        yield
        return
    async with spending.reserve_for(node):
        with charge_to(spending):
            yield


@asynccontextmanager
async def _drawn(
    accounts: Sequence[TurnSpending],
    own: Mapping[str, float],
    used: Mapping[str, float],
    taken: Collection[CounterKey] = (),
) -> AsyncIterator[None]:
    """Draw what a step needs on the steps that it goes on inside of: their reservation covers it."""
    held = {
        made.counter: made
        for one in accounts
        for made in one.current_reservations()
        if made.counter not in taken
    }
    parts: list[BudgetDraw] = []
    try:
        for reservation in held.values():
            parts.append(await reservation.draw(**own))  # noqa: PERF401  what was taken is given back
        yield
    finally:
        for part in parts:
            await (part.settle(**own) if used else part.release())


class BudgetStage:
    """Reserves for each try of a step, outside of the slots, and settles when it ended."""

    stage = "acquire"
    order = 10

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Reserve, run, and settle by what the try used.

        Raises:
            BudgetExceededError: A budget does not hold it; nothing has begun.
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
        reserved: Any = spending.reserve_for(attempt.key, **own, seconds=_INSTANT)
        inside = job.outer is not None and bool(spending.current_reservations())
        async with nullcontext({}) if inside else reserved as used:
            # What it has reserved itself is drawn on by nobody but what goes on inside of it.
            taken = (
                set[CounterKey]()
                if inside
                else {made.counter for made in spending.current_reservations()}
            )
            async with _drawn(bounded, own, used, taken):
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
