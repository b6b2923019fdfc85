"""Budgets: what may be used up, reserved before it is used and settled after.

A reservation takes all of what it names or nothing. What was reserved and not used comes back when
it is settled; used more than that, the whole is counted, so the next one is refused.
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

# Counters are whole numbers, so that ten times a tenth of a dollar is a dollar.
_UNITS = {"cost_usd": 1_000_000_000, "seconds": 1_000_000}
_LENGTHS = {"hour": 2 * 3_600, "day": 2 * 86_400, "month": 32 * 86_400}  # seconds, and some more
_MOST_PLACES = 100_000
_PERIODS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}


class BudgetExceededError(LimitError):
    """A budget does not hold what was asked for; nothing was taken.

    Attributes:
        limit: Name of the limit, such as ``tokens``.
        value: What it allows.
        used: What is used or reserved of it.
        asked: What was asked for.
    """

    limit: str = ""
    value: float = 0
    used: float = 0
    asked: float = 0

    def with_message(self, message: str) -> BudgetExceededError:
        """Return the same error with other words."""
        told: Any = {name: getattr(self, name) for name in ("limit", "value", "used", "asked")}
        return type(self)(message, fix=self.fix, **told)


class Budget:
    """What may be used up by a step, a turn, a thread, a person or a tenant, for ever or in a window.

    Args:
        requests: Calls of models.
        tokens: Tokens of prompts and answers.
        cost_usd: US dollars.
        tool_calls: Tries of steps, and calls of tools in one's own code.
        steps: Tries of steps.
        seconds: Seconds that steps take, added up.
        consecutive_failures: Failures in a row, after which nothing more begins.
        per: What has such a budget each: ``step``, ``turn``, ``thread``, ``user`` or ``tenant``. A
            run of a graph of one's own that a saver keeps is a turn, where no message opened one.
        window: ``hour``, ``day`` or ``month`` (of UTC) after which it begins anew; ``None`` for never.
        clock: Tells the time: a ``Clock``, or a function that returns seconds since the epoch; a
            graph's own when not given.
        store: ``sqlite:///file.db``, ``postgresql://…`` or ``redis://…`` to share it between
            processes. Without one, a graph counts in the database of its saver, and all else in
            memory.
        name: Tells budgets of the same kind apart that count in one place.
        unknown_price: ``refuse`` calls of models whose price nobody knows where money is limited;
            or the price to count for them.
        assumed_output_tokens: What is reserved for an answer whose length nobody bounds; less
            where less is left.

    Raises:
        ValidationError: A limit is negative or no number, or a word is unknown.

    >>> async def main():
    ...     budget = Budget(requests=2, tokens=100)
    ...     call = await budget.reserve(requests=1, tokens=80)
    ...     await call.settle(requests=1, tokens=30)
    ...     return await budget.left()
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
                f"A budget per {per!r} with the window {window!r} does not exist.",
                fix="Use per='step', 'turn', 'thread', 'user' or 'tenant', and window='hour', 'day',"
                " 'month' or None.",
            )
        if unknown_price != "refuse" and not isinstance(unknown_price, ModelPricing):
            raise ValidationError(
                f"unknown_price is {unknown_price!r}.", fix="Give 'refuse' or a ModelPricing."
            )
        given = {
            "requests": requests,
            "tokens": tokens,
            "cost_usd": cost_usd,
            "tool_calls": tool_calls,
            "steps": steps,
            "seconds": seconds,
            "consecutive_failures": consecutive_failures,
        }
        self.limits: dict[str, float] = {
            name: value for name, value in given.items() if value is not None
        }
        self._bounds = to_units(self.limits)
        self.per: Per = per
        self.window: Window | None = window
        self.name = name
        self.unknown_price = unknown_price
        self.assumed_output_tokens = assumed_output_tokens
        self._clock = None if clock is None else as_clock(clock)
        self._cells = MemoryValues(_MOST_PLACES) if store is None else open_values(store)
        self._own_store = store is not None
        self._leases = Leases(None)
        self._live: set[str] = set()
        self.in_flight: InFlightCalls = InFlightCalls()

    @property
    def scope(self) -> str:
        """What its counters are called where they lie."""
        return "/".join(part for part in (self.per, self.window or "", self.name) if part)

    def with_clock(self, clock: Clock | None) -> Budget:
        """Return the same budget with a graph's clock, unless it has one of its own."""
        found = copy.copy(self)
        found._clock = self._clock or clock
        return found

    def with_counters(self, values: AtomicValueStore, leases: Leases | None = None) -> Budget:
        """Return the same budget with its counters elsewhere, unless it has a store of its own.

        Args:
            values: Where.
            leases: Know which runs on the same database go on.
        """
        if self._own_store:
            return self
        found = copy.copy(self)
        found._cells, found._leases = values, leases or self._leases
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
        """Take what something will need, all of it or nothing.

        Args:
            key: Whose budget: a turn, a person.
            requests: Calls of models.
            tokens: Tokens.
            cost_usd: US dollars.
            tool_calls: Calls of tools.
            steps: Tries of steps.
            seconds: Seconds.
            resume_key: Names what it is for. If a process died that had reserved for the same, that
                reservation goes first.

        Raises:
            BudgetExceededError: It does not fit; nothing was taken.
            ValidationError: An amount is negative or no number.
        """
        asked = to_units(
            {
                "requests": requests,
                "tokens": tokens,
                "cost_usd": cost_usd,
                "tool_calls": tool_calls,
                "steps": steps,
                "seconds": seconds,
            }
        )
        made = self.open_reservation(key, resume_key=resume_key)
        await made.take(asked)
        return made

    def open_reservation(
        self, key: str = "", *, resume_key: str = "", thread_id: str | None = None
    ) -> Reservation:
        """Return a reservation of nothing yet, for parts that take what they need.

        Args:
            key: Whose budget.
            resume_key: Names what it is for; see :meth:`reserve`.
            thread_id: The thread whose run it is for.
        """
        held = self._leases.find_held(thread_id or "")
        owner = held.owner.owner_id if held is not None and held.is_acquired else ""
        return Reservation(self, self._place(key), resume_key, owner)

    async def left(self, key: str = "") -> dict[str, float]:
        """Return what is left of each limit, reservations taken off."""
        cell = await self._turn(self._place(key), lambda cell: (cell, cell))
        found = cell[0] if cell else {}
        return {
            name: from_units(name, max(0, bound - found.get(name, 0)))
            for name, bound in self._bounds.items()
        }

    def _place(self, key: str) -> CounterKey:
        moment = datetime.fromtimestamp(self._time.now(), UTC)
        period = moment.strftime(_PERIODS[self.window]) if self.window else ""
        return CounterKey(self.scope, key, period)

    @property
    def _time(self) -> Clock:
        return self._clock or current_clock()

    async def apply_change(
        self, counter: CounterKey, change: CounterChange, resume_key: str = ""
    ) -> None:
        """Change the counters; bounded by the limits where something is added.

        What a process had reserved for the same and died goes first; where that is not enough, what
        runs had reserved that are over, whatever it was for.

        Raises:
            BudgetExceededError: They do not hold it.
        """
        bounded = change._replace(bounds=self._bounds)
        of_the_same = f"{_short(resume_key)}|"

        def stale(mark: str) -> bool:
            return bool(resume_key) and mark.startswith(of_the_same) and mark not in self._live

        refusal = await self._turn(counter, lambda cell: bounded.apply(cell, stale))
        if refusal is not None and (left := await self._left_behind(counter)):
            gone = lambda mark: mark in left or stale(mark)  # noqa: E731
            refusal = await self._turn(counter, lambda cell: bounded.apply(cell, gone))
        if refusal is not None:
            raise self._exceeded(counter, refusal)

    async def _left_behind(self, place: CounterKey) -> set[str]:
        """Return the marks of reservations that nobody will give back."""
        if isinstance(self._cells, MemoryValues):
            return set()  # of this process, which lives
        cell = await self._turn(place, lambda cell: (cell, cell))
        over: dict[LeaseOwner, bool] = {}
        found = set()
        for mark in {*(cell[1] if cell else ())} - self._live:
            _, _, owner, process, machine = [*mark.split("|", 4), "", "", ""][:5]
            holder = LeaseOwner(owner, machine, process.replace("-", "|"))
            if holder not in over:
                over[holder] = await self._leases.has_ended(holder)
            if over[holder]:
                found.add(mark)
        return found

    async def record_change(self, counter: CounterKey, change: CounterChange) -> None:
        """Change the counters, whatever the limits say: it has happened."""
        await self._turn(counter, lambda cell: change.apply(cell, lambda mark: False))

    async def _turn(self, place: CounterKey, work: Callable[[Any], tuple[Any, T]]) -> T:
        kept = _LENGTHS[self.window] if self.window else FOREVER

        def change(cell: Any, now: float) -> tuple[Any, float, T]:
            new, result = work(cell)
            return new, kept, result

        return await self._cells.achange(place.name, change, self._time)

    def _exceeded(self, place: CounterKey, refusal: LimitRefusal) -> BudgetExceededError:
        over = refusal.limit
        limit, used = self.limits[over], from_units(over, refusal.used)
        asked = from_units(over, refusal.requested)
        # The name of a turn says nothing to a person, and is another one in a replay.
        known = place.subject if self.per not in ("turn", "step") else ""
        whose = f"{self.per} {known!r}" if known else f"the {self.per}"
        more = f", and {asked:g} more would be needed" if asked else ""
        return BudgetExceededError(
            f"The budget of {whose} does not hold it: {over} is limited to {limit:g}"
            f"{' per ' + self.window if self.window else ''}, {used:g} is used or reserved{more}.",
            fix=f"Ask for less, {'wait for the next ' + self.window + ', ' if self.window else ''}"
            f"or raise Budget({over}=…).",
            limit=over,
            value=limit,
            used=used,
            asked=asked,
        )


class Reservation:
    """What was taken of a budget, until it is settled or released; each counts once."""

    def __init__(
        self, budget: Budget, counter: CounterKey, resume_key: str = "", owner: str = ""
    ) -> None:
        self.budget: Budget = budget
        self.counter: CounterKey = counter
        self._resumable = resume_key
        self._base = dict.fromkeys(METRICS, 0)  # what is reserved for the whole of it
        self._open = dict.fromkeys(METRICS, 0)  # what is reserved for parts under way
        self._held = dict.fromkeys(METRICS, 0)
        # For what it is, by whose run, of which process.
        self._mark = f"{_short(resume_key) if resume_key else ''}|{uuid.uuid4().hex[:12]}|{owner}"
        self._named = isinstance(budget._cells, MemoryValues)
        self._over = False
        self._passing: dict[BudgetDraw, asyncio.Task[Any] | None] = {}
        self._lock = asyncio.Lock()

    async def take(self, amounts: Mapping[str, int]) -> None:
        """Take what is asked for.

        Raises:
            BudgetExceededError: It does not fit.
        """
        await self.run_to_completion(
            self._move({**self._base, **amounts}, self._open, bounded=True), self.release
        )

    async def settle(self, **used: float) -> None:
        """Say what was used in the end; what is not named was used as it was reserved.

        Args:
            **used: Amounts by the names of the limits. ``consecutive_failures=1`` says that it
                failed; without it, the failures in a row are over.

        Raises:
            ValidationError: An amount is negative or no number, or its name is unknown.
        """
        counted = to_units(used)
        failed = bool(counted.pop(FAILURES, 0)) if FAILURES in self.budget.limits else None
        if self._over:
            return
        self._over = True
        final, zero = {**self._base, **counted}, dict.fromkeys(METRICS, 0)
        await self.run_to_completion(self._move(zero, zero, used=final, failed=failed))
        self._landed(*self._passing)

    async def release(self) -> None:
        """Give everything back: nothing was used."""
        if self._over:
            return
        self._over = True
        zero = dict.fromkeys(METRICS, 0)
        await self.run_to_completion(self._move(zero, zero))
        self._landed(*self._passing)

    def _landed(self, *parts: BudgetDraw) -> None:
        for part in parts:
            if part.is_in_flight:
                part.is_in_flight = False
                self.budget.in_flight.end(self.counter)

    async def left(self) -> dict[str, float]:
        """Return what a part of it could take of each limit."""
        left = await self.budget.left(self.counter.subject)
        free = {name: self._held[name] - self._open[name] for name in METRICS}
        return {name: value + from_units(name, free.get(name, 0)) for name, value in left.items()}

    async def count(self, **used: float) -> None:
        """Count what was used without having been reserved."""
        await BudgetDraw(self, dict.fromkeys(METRICS, 0)).settle(**used)

    async def draw(self, **amounts: float) -> BudgetDraw:
        """Take what a part of it needs: of what is reserved, and only what is missing besides.

        Args:
            **amounts: Amounts by the names of the limits.

        Raises:
            BudgetExceededError: It does not fit; nothing was taken.
        """
        part = BudgetDraw(self, {**dict.fromkeys(METRICS, 0), **to_units(amounts)})

        async def take() -> None:
            async with self._lock:
                more = {name: self._open[name] + part.amounts[name] for name in METRICS}
                await self._move(self._base, more, bounded=True)

        await self.run_to_completion(take(), part.release)
        return part

    def track_in_flight(self, draw: BudgetDraw, task: asyncio.Task[Any] | None) -> None:
        """Let others wait for the end of a part, or of the task that it is the one thing in."""
        self._passing[draw] = task
        draw.is_in_flight = True
        self.budget.in_flight.begin(self.counter)
        if task is not None:
            task.add_done_callback(lambda _: self._landed(draw))

    def orphaned_draws(self, task: asyncio.Task[Any] | None) -> list[BudgetDraw]:
        """Return the parts that will not end by themselves: their task goes on, or is over."""
        found = [(part, known) for part, known in self._passing.items() if known is not None]
        return [part for part, known in found if known is task or known.done()]

    async def _move(
        self,
        base: Mapping[str, int],
        opened: Mapping[str, int],
        *,
        used: Mapping[str, int] | None = None,
        failed: bool | None = None,
        bounded: bool = False,
    ) -> None:
        held = {name: max(base[name], opened[name]) for name in METRICS}
        if held != self._held or any((used or {}).values()) or failed is not None or bounded:
            if not self._named:
                machine, process = await self.budget._leases.identity()
                self._mark += f"|{process.replace('|', '-')}|{machine}"
                self._named = True
            change = CounterChange(self._mark, held, used or {}, failed)
            if bounded:
                self.budget._live.add(self._mark)
                try:
                    await self.budget.apply_change(self.counter, change, self._resumable)
                except BaseException:
                    if not any(self._held.values()):
                        self.budget._live.discard(self._mark)
                    raise
            else:
                await self.budget.record_change(self.counter, change)
        if not any(held.values()):
            self.budget._live.discard(self._mark)
        self._base, self._open, self._held = dict(base), dict(opened), held

    async def run_to_completion(
        self,
        work: Coroutine[Any, Any, None],
        undo: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    ) -> None:
        """Let a change of counters come to its end, whoever cancels; then undo it."""
        if isinstance(self.budget._cells, MemoryValues):
            await work  # nothing in it waits
            return

        async def take_back(_: None) -> None:
            if undo is not None:
                await undo()

        await shielded(work, take_back)


class BudgetDraw:
    """What a part of something reserved needs: a model call inside a step."""

    def __init__(self, reservation: Reservation, amounts: Mapping[str, int]) -> None:
        self._whole = reservation
        self.amounts: Mapping[str, int] = amounts
        self._over = self.is_in_flight = False

    @property
    def budget(self) -> Budget:
        """Whose part it is."""
        return self._whole.budget

    async def settle_as_reserved(self) -> None:
        """Say that it used what was reserved."""
        await self._end(self.amounts)

    async def settle(self, **used: float) -> None:
        """Say what it used; ``consecutive_failures`` of a step, whether it failed."""
        counted = to_units(used)
        ended = counted.pop(FAILURES, None) if FAILURES in self.budget.limits else None
        failed = None if ended is None else bool(ended)
        counted.pop(FAILURES, None)
        await self._end({**dict.fromkeys(METRICS, 0), **counted}, failed=failed)

    async def release(self) -> None:
        """Give it back: nothing was used."""
        await self._end(dict.fromkeys(METRICS, 0))

    async def _end(self, used: Mapping[str, int], *, failed: bool | None = None) -> None:
        whole = self._whole
        if self._over:
            return
        self._over = True

        async def move() -> None:
            async with whole._lock:
                opened = {name: max(0, whole._open[name] - self.amounts[name]) for name in METRICS}
                base = {name: max(0, whole._base[name] - used[name]) for name in METRICS}
                await whole._move(base, opened, used=used, failed=failed)

        await whole.run_to_completion(move())
        whole._passing.pop(self, None)
        whole._landed(self)


class InFlightCalls:
    """What is under way and may give something back when it ends; by several loops and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[CounterKey] = Counter()
        self._waiting: dict[CounterKey, list[asyncio.Future[None]]] = {}

    def begin(self, counter: CounterKey) -> None:
        """Note that something began."""
        with self._lock:
            self._counts[counter] += 1

    def end(self, counter: CounterKey) -> None:
        """Note that something ended; who waits for that goes on."""
        with self._lock:
            self._counts[counter] -= 1
            if not self._counts[counter]:
                del self._counts[counter]
            waiting = self._waiting.pop(counter, [])
        for future in waiting:
            with suppress(RuntimeError):  # its loop was closed
                future.get_loop().call_soon_threadsafe(_wake, future)

    async def wait(self, counter: CounterKey) -> bool:
        """Wait until something ended; ``False``, at once, when nothing is under way."""
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
    """Return amounts as whole numbers of their smallest unit.

    Raises:
        ValidationError: One is negative or no number, or its name is unknown.

    >>> to_units({"cost_usd": 0.1})
    {'cost_usd': 100000000}
    """
    found = {}
    for name, value in amounts.items():
        if name not in (*METRICS, FAILURES):
            raise ValidationError(
                f"{name!r} is nothing that a budget counts.",
                fix=f"Use {', '.join((*METRICS, FAILURES))}.",
            )
        check_number(name, value)
        found[name] = round(value * _UNITS.get(name, 1))
    return found


def from_units(name: str, amount: int) -> float:
    """Return an amount in the unit in which it is given."""
    return amount / _UNITS[name] if name in _UNITS else amount


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
