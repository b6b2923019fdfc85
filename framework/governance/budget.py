"""Budgets: limited amounts that are reserved before use and settled (charged) afterwards.

A reservation takes all requested amounts or none. Settling it returns unused amounts. If more was
used than reserved, the full usage counts, and the next reservation is refused.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

from capgraph.base.errors import LimitError, ValidationError
from capgraph.base.ports import normalize_user_id
from capgraph.governance.budget_counters import (
    FAILURES,
    METRICS,
    CounterChange,
    CounterKey,
    LimitRefusal,
)
from capgraph.helpers.async_calls import shielded
from capgraph.helpers.clock import Clock, as_clock, current_clock
from capgraph.helpers.number_validation import check_number
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore, MemoryValues
from capgraph.stores.leases import LeaseOwner, Leases
from capgraph.stores.persistence import open_values
from capgraph.telemetry.usage import ModelPricing

Per = Literal["step", "turn", "thread", "user", "tenant"]
Window = Literal["hour", "day", "month"]
T = TypeVar("T")

# Counters are integers, so that ten times $0.10 is exactly $1.
_UNITS = {"cost_usd": 1_000_000_000, "seconds": 1_000_000}
_TTL_SECONDS = {
    "hour": 2 * 3_600,
    "day": 2 * 86_400,
    "month": 32 * 86_400,
}  # seconds, with a margin
_MAX_COUNTERS = 100_000
_PERIODS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}


class BudgetExceededError(LimitError):
    """Raised if a reservation exceeds a budget. No amount is reserved in that case.

    Attributes:
        limit: Name of the limit, such as ``tokens``.
        value: Value of the limit.
        used: Amount that is used or reserved.
        asked: Requested amount.
        budget_usd: Budget of a session, in US dollars.
        current_cost_usd: Cost of that session. ``None`` if a price is unknown.
    """

    limit: str = ""
    value: float = 0
    used: float = 0
    asked: float = 0
    budget_usd: float | None = None
    current_cost_usd: float | None = None

    def with_message(self, message: str) -> BudgetExceededError:
        """Return a copy of this budget error with a different message."""
        fields: Any = {name: getattr(self, name) for name in ("limit", "value", "used", "asked")}
        return type(self)(message, fix=self.fix, **fields)


class Budget:
    """Limits on the usage of a step, turn, thread, user, or tenant, in total or per time window.

    Args:
        requests: Maximum number of model calls.
        tokens: Maximum number of prompt and output tokens.
        cost_usd: Maximum cost in US dollars.
        tool_calls: Maximum number of step attempts and of tool calls in application code.
        steps: Maximum number of step attempts.
        seconds: Maximum total duration of steps in seconds.
        consecutive_failures: Number of consecutive failures after which no further step starts.
        per: Subject of the budget: ``step``, ``turn``, ``thread``, ``user``, or ``tenant``. In a
            custom graph without messages, each run with a saver counts as a turn.
        window: ``hour``, ``day``, or ``month`` (in UTC) after which usage resets. ``None`` means that it
            never resets.
        clock: A ``Clock``, or a function that returns seconds since the epoch. Defaults to the
            graph's clock.
        store: ``sqlite:///file.db``, ``postgresql://…``, or ``redis://…`` for counters shared
            between processes. By default, a graph counts in its saver's database, and other code in
            memory.
        name: Name that distinguishes budgets of the same kind in one store.
        unknown_price: ``refuse``, or the price to assume for models without a known price. With
            ``refuse``, their calls are refused if the cost is limited.
        assumed_output_tokens: Number of tokens to reserve for an answer without a length limit. If
            fewer remain, these are reserved.

    Raises:
        ValidationError: A limit is negative or not a number, or an option is unknown.

    >>> async def main():
    ...     budget = Budget(requests=2, tokens=100)
    ...     call = await budget.reserve(requests=1, tokens=80)
    ...     await call.settle(requests=1, tokens=30)
    ...     return await budget.remaining()
    >>> asyncio.run(main())
    {'requests': 1, 'tokens': 70}
    """

    def __init__(
        self,
        *,
        requests: float | None = None,
        tokens: float | None = None,
        cost_usd: float | None = None,
        tool_calls: float | None = None,
        steps: float | None = None,
        seconds: float | None = None,
        consecutive_failures: float | None = None,
        per: Per = "turn",
        window: Window | None = None,
        clock: Clock | Callable[[], float] | None = None,
        store: str | None = None,
        name: str = "",
        unknown_price: Literal["refuse"] | ModelPricing = "refuse",
        assumed_output_tokens: int = 1024,
    ) -> None:
        if per not in get_args(Per) or window not in (None, *get_args(Window)):
            raise ValidationError(
                f"The budget has the invalid value per={per!r} or window={window!r}.",
                fix="Use per='step', 'turn', 'thread', 'user', or 'tenant', and window='hour', 'day',"
                " 'month', or None.",
            )
        if unknown_price != "refuse" and not isinstance(unknown_price, ModelPricing):
            raise ValidationError(
                f"Invalid value for the budget option unknown_price: {unknown_price!r}.",
                fix="Pass 'refuse' or a ModelPricing.",
            )
        limits = {
            "requests": requests,
            "tokens": tokens,
            "cost_usd": cost_usd,
            "tool_calls": tool_calls,
            "steps": steps,
            "seconds": seconds,
            "consecutive_failures": consecutive_failures,
        }
        self.limits: dict[str, float] = {
            name: value for name, value in limits.items() if value is not None
        }
        self._bounds = to_units(self.limits)
        self.per: Per = per
        self.window: Window | None = window
        self.name = name
        self.unknown_price = unknown_price
        self.assumed_output_tokens = assumed_output_tokens
        self._clock = None if clock is None else as_clock(clock)
        self._values = MemoryValues(_MAX_COUNTERS) if store is None else open_values(store)
        self._has_own_store = store is not None
        self._leases = Leases(None)
        self._live_reservations: set[str] = set()
        self.in_flight: InFlightCalls = InFlightCalls()

    @property
    def scope(self) -> str:
        """Name that groups the counters of this budget in their store."""
        return "/".join(part for part in (self.per, self.window or "", self.name) if part)

    def with_clock(self, clock: Clock | None) -> Budget:
        """Return a copy of the budget that uses a clock, unless the budget has its own clock."""
        found = copy.copy(self)
        found._clock = self._clock or clock
        return found

    def with_counters(self, values: AtomicValueStore, leases: Leases | None = None) -> Budget:
        """Return a copy of the budget that keeps its counters in a given store.

        A budget that was created with its own store is returned unchanged.

        Args:
            values: Store of the counters.
            leases: Leases of the runs in the same database, to detect runs that ended.
        """
        if self._has_own_store:
            return self
        found = copy.copy(self)
        found._values, found._leases = values, leases or self._leases
        return found

    async def reserve(
        self,
        key: str = "",
        *,
        requests: float = 0,
        tokens: float = 0,
        cost_usd: float = 0,
        tool_calls: float = 0,
        steps: float = 0,
        seconds: float = 0,
        resume_key: str = "",
    ) -> Reservation:
        """Reserve all of the requested amounts from the budget, or none of them.

        Args:
            key: ID that the budget counts for, such as a turn or user ID.
            requests: Number of model calls.
            tokens: Number of tokens.
            cost_usd: Amount in US dollars.
            tool_calls: Number of tool calls.
            steps: Number of step attempts.
            seconds: Number of seconds.
            resume_key: Key of the work to reserve for. If a process died that made a reservation
                with the same key, that reservation is removed first.

        Raises:
            BudgetExceededError: The amounts exceed the budget. Nothing was reserved.
            ValidationError: An amount is negative or not a number.
        """
        requested = to_units(
            {
                "requests": requests,
                "tokens": tokens,
                "cost_usd": cost_usd,
                "tool_calls": tool_calls,
                "steps": steps,
                "seconds": seconds,
            }
        )
        reservation = self.open_reservation(key, resume_key=resume_key)
        await reservation.take(requested)
        return reservation

    def open_reservation(
        self, key: str = "", *, resume_key: str = "", thread_id: str | None = None
    ) -> Reservation:
        """Create an empty reservation, to which :meth:`Reservation.draw` adds amounts as needed.

        Args:
            key: ID that the budget counts for.
            resume_key: Key of the work; see :meth:`reserve`.
            thread_id: Thread of the run that the reservation belongs to.
        """
        lease = self._leases.find_held(thread_id or "")
        owner = lease.owner.owner_id if lease is not None and lease.is_acquired else ""
        return Reservation(self, self._get_counter_key(key), resume_key, owner)

    async def remaining(self, key: str = "") -> dict[str, float]:
        """Return the remaining amount of each budget limit, excluding reserved amounts."""
        cell = await self._change_value(self._get_counter_key(key), lambda cell: (cell, cell))
        found = cell[0] if cell else {}
        return {
            name: from_units(name, max(0, bound - found.get(name, 0)))
            for name, bound in self._bounds.items()
        }

    def _get_counter_key(self, key: str) -> CounterKey:
        moment = datetime.fromtimestamp(self._current_clock.now(), UTC)
        period = moment.strftime(_PERIODS[self.window]) if self.window else ""
        # Another spelling of a user ID must not open another account.
        subject = normalize_user_id(key) if self.per == "user" else key
        return CounterKey(self.scope, subject, period)

    @property
    def _current_clock(self) -> Clock:
        return self._clock or current_clock()

    async def apply_change(
        self, counter: CounterKey, change: CounterChange, resume_key: str = ""
    ) -> None:
        """Change the budget's counters if the result stays within the limits.

        If a limit would be exceeded, reservations of ended runs are removed and the change is
        attempted again.

        Raises:
            BudgetExceededError: The change exceeds a limit.
        """
        bounded = change._replace(bounds=self._bounds)
        same_work = f"{_hash(resume_key)}|"

        def is_stale(reservation_id: str) -> bool:
            return (
                bool(resume_key)
                and reservation_id.startswith(same_work)
                and reservation_id not in self._live_reservations
            )

        refusal = await self._change_value(counter, lambda cell: bounded.apply(cell, is_stale))
        if refusal is not None and (abandoned := await self._find_abandoned(counter)):

            def is_ended(reservation_id: str) -> bool:
                return reservation_id in abandoned or is_stale(reservation_id)

            refusal = await self._change_value(counter, lambda cell: bounded.apply(cell, is_ended))
        if refusal is not None:
            raise self._create_exceeded_error(counter, refusal)

    async def _find_abandoned(self, place: CounterKey) -> set[str]:
        """Return the IDs of budget reservations whose run has ended without releasing them."""
        if isinstance(self._values, MemoryValues):
            return set()  # counters of this process, which is alive
        cell = await self._change_value(place, lambda cell: (cell, cell))
        ended: dict[LeaseOwner, bool] = {}
        found = set()
        for reservation_id in {*(cell[1] if cell else ())} - self._live_reservations:
            _, _, owner, process, machine = [*reservation_id.split("|", 4), "", "", ""][:5]
            lease_owner = LeaseOwner(owner, machine, process.replace("-", "|"))
            if lease_owner not in ended:
                ended[lease_owner] = await self._leases.has_ended(lease_owner)
            if ended[lease_owner]:
                found.add(reservation_id)
        return found

    async def record_change(self, counter: CounterKey, change: CounterChange) -> None:
        """Change the budget's counters without checking limits.

        The limits do not apply because the usage has already happened.
        """
        await self._change_value(counter, lambda cell: change.apply(cell, lambda mark: False))

    async def _change_value(self, place: CounterKey, compute: Callable[[Any], tuple[Any, T]]) -> T:
        ttl = _TTL_SECONDS[self.window] if self.window else FOREVER

        def change(cell: Any, now: float) -> tuple[Any, float, T]:
            new_value, result = compute(cell)
            return new_value, ttl, result

        return await self._values.achange(place.name, change, self._current_clock)

    def _create_exceeded_error(
        self, place: CounterKey, refusal: LimitRefusal
    ) -> BudgetExceededError:
        limit_name = refusal.limit
        limit, used = self.limits[limit_name], from_units(limit_name, refusal.used)
        requested = from_units(limit_name, refusal.requested)
        # A turn ID means nothing to a person, and differs in a replay.
        subject = place.subject if self.per not in ("turn", "step") else ""
        owner = f"{self.per} {subject!r}" if subject else f"the {self.per}"
        shortage = f", and {requested:g} more is required" if requested else ""
        return BudgetExceededError(
            f"The budget of {owner} is exceeded: {limit_name} is limited to {limit:g}"
            f"{' per ' + self.window if self.window else ''}, {used:g} is used or reserved{shortage}.",
            fix=f"Request less, {'wait for the next ' + self.window + ', ' if self.window else ''}"
            f"or raise Budget({limit_name}=…).",
            limit=limit_name,
            value=limit,
            used=used,
            asked=requested,
        )


class Reservation:
    """Amounts held back from a budget until they are settled (charged) or released."""

    def __init__(
        self, budget: Budget, counter: CounterKey, resume_key: str = "", owner: str = ""
    ) -> None:
        self.budget: Budget = budget
        self.counter: CounterKey = counter
        self._resumable = resume_key
        self._base = dict.fromkeys(METRICS, 0)  # reserved directly
        self._drawn = dict.fromkeys(METRICS, 0)  # reserved by open draws
        self._reserved = dict.fromkeys(METRICS, 0)
        # Work, unique ID, lease owner, and (later) process and machine.
        self._reservation_id = (
            f"{_hash(resume_key) if resume_key else ''}|{uuid.uuid4().hex[:12]}|{owner}"
        )
        self._has_owner = isinstance(budget._values, MemoryValues)
        self._is_closed = False
        self._in_flight: dict[BudgetDraw, asyncio.Task[Any] | None] = {}
        self._lock = asyncio.Lock()

    async def take(self, amounts: Mapping[str, int]) -> None:
        """Reserve additional amounts from the budget.

        Raises:
            BudgetExceededError: The amounts exceed the budget.
        """
        await self.run_to_completion(
            self._move({**self._base, **amounts}, self._drawn, bounded=True), self.release
        )

    async def settle(self, **used: float) -> None:
        """Charge the actual usage to the budget and close the reservation.

        A reserved amount that is not passed is charged in full.

        Args:
            **used: Used amounts by limit name. ``consecutive_failures=1`` records a failure.
                Without it, the count of consecutive failures is reset.

        Raises:
            ValidationError: An amount is negative or not a number, or its name is unknown.
        """
        counted = to_units(used)
        failed = bool(counted.pop(FAILURES, 0)) if FAILURES in self.budget.limits else None
        if self._is_closed:
            return
        self._is_closed = True
        final, zero = {**self._base, **counted}, dict.fromkeys(METRICS, 0)
        await self.run_to_completion(self._move(zero, zero, usage=final, failed=failed))
        self._end_in_flight(*self._in_flight)

    async def release(self) -> None:
        """Return all reserved amounts to the budget without charging any usage."""
        if self._is_closed:
            return
        self._is_closed = True
        zero = dict.fromkeys(METRICS, 0)
        await self.run_to_completion(self._move(zero, zero))
        self._end_in_flight(*self._in_flight)

    def _end_in_flight(self, *draws: BudgetDraw) -> None:
        for draw in draws:
            if draw.is_in_flight:
                draw.is_in_flight = False
                self.budget.in_flight.end(self.counter)

    async def remaining(self) -> dict[str, float]:
        """Return the amount of each budget limit that is still available to this reservation."""
        left = await self.budget.remaining(self.counter.subject)
        free = {name: self._reserved[name] - self._drawn[name] for name in METRICS}
        return {name: value + from_units(name, free.get(name, 0)) for name, value in left.items()}

    async def count(self, **used: float) -> None:
        """Charge usage that was not reserved."""
        await BudgetDraw(self, dict.fromkeys(METRICS, 0)).settle(**used)

    async def draw(self, **amounts: float) -> BudgetDraw:
        """Draw amounts from the reservation, extending the reservation only if necessary.

        Args:
            **amounts: Amounts by limit name.

        Raises:
            BudgetExceededError: The amounts exceed the budget. Nothing was reserved.
        """
        new_draw = BudgetDraw(self, {**dict.fromkeys(METRICS, 0), **to_units(amounts)})

        async def take() -> None:
            async with self._lock:
                drawn = {name: self._drawn[name] + new_draw.amounts[name] for name in METRICS}
                await self._move(self._base, drawn, bounded=True)

        await self.run_to_completion(take(), new_draw.release)
        return new_draw

    def track_in_flight(self, draw: BudgetDraw, task: asyncio.Task[Any] | None) -> None:
        """Register a draw as in progress until the draw, or the given task, has ended.

        Other tasks can wait for draws in progress.
        """
        self._in_flight[draw] = task
        draw.is_in_flight = True
        self.budget.in_flight.begin(self.counter)
        if task is not None:
            task.add_done_callback(lambda _: self._end_in_flight(draw))

    def orphaned_draws(self, task: asyncio.Task[Any] | None) -> list[BudgetDraw]:
        """Return the budget draws that will never be settled.

        A draw is orphaned if its task has ended or is already making the next call.
        """
        found = [
            (draw, draw_task)
            for draw, draw_task in self._in_flight.items()
            if draw_task is not None
        ]
        return [draw for draw, draw_task in found if draw_task is task or draw_task.done()]

    async def _move(
        self,
        base: Mapping[str, int],
        open_draws: Mapping[str, int],
        *,
        usage: Mapping[str, int] | None = None,
        failed: bool | None = None,
        bounded: bool = False,
    ) -> None:
        reserved = {name: max(base[name], open_draws[name]) for name in METRICS}
        if (
            reserved != self._reserved
            or any((usage or {}).values())
            or failed is not None
            or bounded
        ):
            if not self._has_owner:
                machine, process = await self.budget._leases.identity()
                self._reservation_id += f"|{process.replace('|', '-')}|{machine}"
                self._has_owner = True
            change = CounterChange(self._reservation_id, reserved, usage or {}, failed)
            if bounded:
                self.budget._live_reservations.add(self._reservation_id)
                try:
                    await self.budget.apply_change(self.counter, change, self._resumable)
                except BaseException:
                    if not any(self._reserved.values()):
                        self.budget._live_reservations.discard(self._reservation_id)
                    raise
            else:
                await self.budget.record_change(self.counter, change)
        if not any(reserved.values()):
            self.budget._live_reservations.discard(self._reservation_id)
        self._base, self._drawn, self._reserved = dict(base), dict(open_draws), reserved

    async def run_to_completion(
        self,
        work: Coroutine[Any, Any, None],
        undo: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    ) -> None:
        """Finish a counter change even if the caller is canceled, then undo the change.

        The change is undone only after a cancellation.
        """
        if isinstance(self.budget._values, MemoryValues):
            await work  # in memory, the work never suspends
            return

        async def revert(_: None) -> None:
            if undo is not None:
                await undo()

        await shielded(work, revert)


class BudgetDraw:
    """Part of a budget reservation, such as the part for one model call in a step."""

    def __init__(self, reservation: Reservation, amounts: Mapping[str, int]) -> None:
        self._reservation = reservation
        self.amounts: Mapping[str, int] = amounts
        self._is_closed = self.is_in_flight = False

    @property
    def budget(self) -> Budget:
        """Budget of the reservation."""
        return self._reservation.budget

    async def settle_as_reserved(self) -> None:
        """Charge the reserved amounts as used."""
        await self._end(self.amounts)

    async def settle(self, **used: float) -> None:
        """Charge the actual usage of this budget draw.

        For a step, pass ``consecutive_failures=1`` to record a failure.
        """
        counted = to_units(used)
        failure_count = counted.pop(FAILURES, None) if FAILURES in self.budget.limits else None
        failed = None if failure_count is None else bool(failure_count)
        counted.pop(FAILURES, None)
        await self._end({**dict.fromkeys(METRICS, 0), **counted}, failed=failed)

    async def release(self) -> None:
        """Return the drawn amounts to their reservation without charging any usage."""
        await self._end(dict.fromkeys(METRICS, 0))

    async def _end(self, usage: Mapping[str, int], *, failed: bool | None = None) -> None:
        reservation = self._reservation
        if self._is_closed:
            return
        self._is_closed = True

        async def move() -> None:
            async with reservation._lock:
                drawn = {
                    name: max(0, reservation._drawn[name] - self.amounts[name]) for name in METRICS
                }
                base = {name: max(0, reservation._base[name] - usage[name]) for name in METRICS}
                await reservation._move(base, drawn, usage=usage, failed=failed)

        await reservation.run_to_completion(move())
        reservation._in_flight.pop(self, None)
        reservation._end_in_flight(self)


class InFlightCalls:
    """Thread-safe counter of model calls in progress, whose budget draws are not yet settled.

    The counter also works across event loops.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[CounterKey] = Counter()
        self._waiting: dict[CounterKey, list[asyncio.Future[None]]] = {}

    def begin(self, counter: CounterKey) -> None:
        """Increment the number of budget draws in progress."""
        with self._lock:
            self._counts[counter] += 1

    def end(self, counter: CounterKey) -> None:
        """Decrement the number of budget draws in progress and wake all waiting tasks."""
        with self._lock:
            self._counts[counter] -= 1
            if not self._counts[counter]:
                del self._counts[counter]
            waiting = self._waiting.pop(counter, [])
        for future in waiting:
            with suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_wake, future)

    async def wait(self, counter: CounterKey) -> bool:
        """Wait until a budget draw ends. Return False immediately if no draw is in progress."""
        with self._lock:
            if not self._counts[counter]:
                del self._counts[counter]
                return False
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(counter, []).append(future)
        await future
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def to_units(amounts: Mapping[str, float]) -> dict[str, int]:
    """Convert budget amounts to integers in the smallest unit of each limit.

    Raises:
        ValidationError: An amount is negative or not a number, or its name is unknown.

    >>> to_units({"cost_usd": 0.1})
    {'cost_usd': 100000000}
    """
    found = {}
    for name, value in amounts.items():
        if name not in (*METRICS, FAILURES):
            raise ValidationError(
                f"The budget limit {name!r} is unknown.",
                fix=f"Use {', '.join((*METRICS, FAILURES))}.",
            )
        check_number(name, value)
        found[name] = round(value * _UNITS.get(name, 1))
    return found


def from_units(name: str, amount: int) -> float:
    """Convert a budget amount from the smallest unit of a limit to a regular number."""
    return amount / _UNITS[name] if name in _UNITS else amount


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
