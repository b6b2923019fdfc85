"""Orders over Temporal: a workflow for each thread that has something to do, and no more than that.

A turn runs in an activity, outside what Temporal replays. Who runs a thread is decided by the lease
in its database alone: an activity that Temporal has given up goes on as long as it holds the lease,
and the one that was begun in its place finds the thread busy and is tried again.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TypeAlias

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.common import ActivityIDConflictPolicy
from temporalio.exceptions import (
    ApplicationError,
    ApplicationErrorCategory,
    WorkflowAlreadyStartedError,
)
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RetryConfig, RPCError, RPCStatusCode
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    PollerBehaviorSimpleMaximum,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerTuner,
)

from capgraph.base.errors import (
    ConfigurationError,
    PersistenceError,
    ThreadBusyError,
    ValidationError,
)
from capgraph.configs.logger import get_logger
from capgraph.scale.engine import TURNS, Handler
from capgraph.scale.order import StepOrder, TurnOrder
from capgraph.scale.turn_workflow import (
    AT_HAND,
    Begin,
    Order,
    ScheduleWorkflow,
    ThreadWorkflow,
    patience,
)

_NAMESPACE = "default"
_PREFIX = "capgraph/"
_CONNECT = timedelta(seconds=5)
# A worker waits for a server that is away; whoever asks for something does so by itself.
_RETRY = RetryConfig(max_interval_millis=2000, max_elapsed_time_millis=90_000, max_retries=0)
_SECOND = 2
_AT_ONCE = timedelta(milliseconds=1)
_SOON = timedelta(milliseconds=100)
_LONG = timedelta(days=1)
_WORKFLOW_TASKS = 4

_log = get_logger("scale", "temporal")
_Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class TemporalEngine:
    """The engine on a Temporal server.

    Args:
        client: Connected to the server.
        address: Where it is.
        lease_seconds: How long a worker is waited for that is not heard of.
        database: Names the threads' database, which may not be the only one on the server.
    """

    def __init__(
        self, client: Client, address: str, lease_seconds: float, database: str = ""
    ) -> None:
        self._client = client
        self._address = address
        self._lease_seconds = lease_seconds
        self._at, self._of = (f"@{database}", f"{database}/") if database else ("", "")

    @classmethod
    async def open(
        cls, address: str, *, lease_seconds: float, database: str = ""
    ) -> TemporalEngine:
        """Connect to a server.

        Args:
            address: Its host and port.
            lease_seconds: The length of a lease.
            database: Names the threads' database.

        Raises:
            ConfigurationError: It is no address.
            PersistenceError: It cannot be reached.
        """
        if not re.fullmatch(r"\S+:\d{1,5}", address):
            raise ConfigurationError(
                f"{address!r:.80} is no address of Temporal.", fix="Give HOST:PORT."
            )
        return cls(await _connect(address, RetryConfig()), address, lease_seconds, database)

    async def submit(self, order: TurnOrder, *, again: bool = False) -> None:
        """Hand a thread to a worker; its workflow is begun, or told.

        Args:
            order: The thread and its run.
            again: Whether it was handed over before; then a workflow that is there is not told, for
                what it is told it keeps as long as it lives.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        queue, name = TURNS + self._at, _PREFIX + order.thread
        at = queue if self._at else ""
        kept = Order(order.thread, order.run, self._lease_seconds, at, at_hand=True)
        timeout = patience(self._lease_seconds)["heartbeat_timeout"]
        with _reached(self._address):
            try:
                # Most threads have no workflow at the moment, and to be begun costs the server less.
                await self._client.start_workflow(
                    ThreadWorkflow.run, [kept], id=name, task_queue=queue, task_timeout=timeout
                )
            except WorkflowAlreadyStartedError:
                if await self._queue_of(name) not in {queue, None}:
                    # Another database has a thread of this name, whose workflow leaves ours alone.
                    await self._start("advance", [order.thread, order.run], name, queue)
                elif not again:
                    await self._client.start_workflow(
                        ThreadWorkflow.run,
                        [],
                        id=name,
                        task_queue=queue,
                        task_timeout=timeout,
                        start_signal="order",
                        start_signal_args=[kept],
                    )

    async def _queue_of(self, name: str) -> str | None:
        try:
            return (await self._client.get_workflow_handle(name).describe()).task_queue
        except RPCError as exc:
            if exc.status != RPCStatusCode.NOT_FOUND:
                raise
            return None  # it has ended meanwhile

    async def _start(self, activity_name: str, args: list[Any], name: str, queue: str) -> None:
        await self._client.start_activity(
            activity_name,
            args=args,
            id=self._of + name,
            task_queue=queue,
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
            **patience(self._lease_seconds),
        )

    async def run_step(self, order: StepOrder) -> None:
        """Hand a step to a worker of its queue; one that is under way is not begun again.

        Args:
            order: The step.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        with _reached(self._address):
            await self._start("step", [asdict(order)], order.id, order.queue + self._at)

    async def serve(
        self,
        handler: Handler,
        queues: Collection[str],
        *,
        worker: str,
        concurrency: int,
        draining: asyncio.Event,
        ready: asyncio.Event,
    ) -> None:
        """Take orders until ``draining`` is set and those that were taken have ended.

        The server is talked to in a thread of its own, so that it hears of a worker whose event
        loop is blocked by a capability.

        Args:
            handler: Does the work.
            queues: Orders of these are taken.
            worker: Name of the worker.
            concurrency: Most orders at a time.
            draining: When set, no further order is taken.
            ready: Set here when orders are taken.
        """
        desk = _Desk(handler, concurrency, draining, len({*queues} - {TURNS}))
        stop = asyncio.Event()
        home = asyncio.get_running_loop()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="capgraph-temporal", daemon=True)
        thread.start()
        work = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                self._work(
                    desk, queues, worker, stop, lambda: home.call_soon_threadsafe(ready.set)
                ),
                loop,
            )
        )
        drained = asyncio.create_task(draining.wait())
        either: set[asyncio.Future[Any]] = {work, drained}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            loop.call_soon_threadsafe(stop.set)
            await asyncio.wait({work})
        finally:
            drained.cancel()
            desk.give_up()
            loop.call_soon_threadsafe(stop.set)
            await asyncio.wait({work}, timeout=_CONNECT.total_seconds())
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()
        work.result()

    async def _work(
        self,
        desk: _Desk,
        queues: Collection[str],
        worker: str,
        stop: asyncio.Event,
        ready: Callable[[], object],
    ) -> None:
        """Run a worker for each queue, in the event loop of the engine's own thread."""
        desk.begin(asyncio.get_running_loop())
        # One connection has one worker for a queue.
        client = await _connect(self._address, _RETRY)
        with ThreadPoolExecutor(_WORKFLOW_TASKS, "capgraph-workflow") as threads:
            workers = [
                _worker(client, desk, queue, self._at, worker, threads)
                for queue in sorted(set(queues))
            ]
            runs = [asyncio.create_task(one.run()) for one in workers]
            ready()
            await asyncio.wait(
                [*runs, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            stop.set()
            await asyncio.gather(*(one.shutdown() for one in workers))
            await desk.ended()
            with _reached(self._address):
                await asyncio.gather(*runs)

    async def waiting(self) -> Mapping[str, int]:
        """Count the orders that nobody has taken, by queue."""
        with _reached(self._address):
            steps = self._client.list_activities('ExecutionStatus = "Running"')
            found = {one.task_queue async for one in steps}
            queues = {TURNS} | {
                queue.removesuffix(self._at) for queue in found if queue.endswith(self._at)
            }
            counts = {queue: await self._backlog(queue) for queue in sorted(queues)}
        return {queue: count for queue, count in counts.items() if count}

    async def _backlog(self, queue: str) -> int:
        kinds = [
            TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            # A thread whose workflow nobody has looked at.
            *([TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW] if queue == TURNS else []),
        ]
        count = 0
        for kind in kinds:
            found = await self._client.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=_NAMESPACE,
                    task_queue=TaskQueue(name=queue + self._at),
                    task_queue_type=kind,
                    report_stats=True,
                ),
                retry=True,
            )
            count += found.stats.approximate_backlog_count
        return count

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Have Temporal begin a workflow at each moment, unless it does already.

        Args:
            name: Names the schedule.
            cron: Five fields of cron, in UTC.
            after: The moment that has come; Temporal goes on by itself.

        Raises:
            ValidationError: Temporal knows no such times.
            PersistenceError: The server cannot be reached.
        """
        action = ScheduleActionStartWorkflow(
            ScheduleWorkflow.run,
            Begin(name, self._lease_seconds),
            id=f"{_PREFIX}schedule/{self._of}{name}",
            task_queue=TURNS + self._at,
        )
        # Moments at which no worker lived are not all made up for when one does.
        policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
        spec = ScheduleSpec(cron_expressions=_alike(cron))
        with _reached(self._address), suppress(ScheduleAlreadyRunningError):
            await self._client.create_schedule(
                _PREFIX + self._of + name, Schedule(action=action, spec=spec, policy=policy)
            )

    async def unschedule(self, name: str) -> None:
        """Forget the moments of a schedule.

        Args:
            name: Names it.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        with _reached(self._address):
            try:
                await self._client.get_schedule_handle(_PREFIX + self._of + name).delete()
            except RPCError as exc:
                if exc.status != RPCStatusCode.NOT_FOUND:
                    raise

    async def close(self) -> None:
        """Do nothing: the connection goes with the engine."""


class _Desk:
    """The activities of a worker, and how many of them are under way.

    They are begun in the loop of the engine's thread and do their work in the one of the worker.
    """

    def __init__(
        self, handler: Handler, concurrency: int, draining: asyncio.Event, step_queues: int
    ) -> None:
        self._handler = handler
        self._draining = draining
        self._home = asyncio.get_running_loop()
        self._loop = self._home
        self._under_way: dict[Hashable, asyncio.Future[None]] = {}
        self.concurrency, self.step_queues = concurrency, step_queues
        self.changed = asyncio.Event()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the loop of the engine's thread."""
        self._loop = loop

    def is_full(self, steps: bool) -> bool:
        """Tell whether no other step, or turn, can be begun."""
        # A turn waits for its steps on other workers, so steps have places of their own.
        same = sum(isinstance(order, StepOrder) is steps for order in tuple(self._under_way))
        return same >= self.concurrency

    @activity.defn
    async def advance(self, thread: str, run: str) -> None:
        order = TurnOrder(thread, run)
        await self._do(order, lambda: self._handler.turn(order))

    @activity.defn
    async def at_hand(self, thread: str, run: str) -> str:
        """Do an order where it is looked at; tells why it has to be handed on, if it has."""
        order = TurnOrder(thread, run)
        if self._draining.is_set():
            return "draining"
        future = self._begin(order, lambda: self._handler.turn(order))
        if future is None:
            return "no place"
        await asyncio.wait({future}, timeout=AT_HAND.total_seconds())
        failed = _failure(future) if future.done() else TimeoutError()
        return "" if failed is None else type(failed).__name__

    @activity.defn
    async def step(self, fields: dict[str, str]) -> None:
        order = StepOrder(**fields)
        await self._do(order, lambda: self._handler.step(order))

    @activity.defn
    async def scheduled(self, schedule: str, moment: float) -> None:
        await self._do((schedule, moment), lambda: self._handler.scheduled(schedule, moment))

    async def _do(self, order: Hashable, work: _Work) -> None:
        """Have the worker's loop do the work to its end, and let the server know of it meanwhile.

        What the server gives up goes on, for the lease says who has the thread. Where the server
        then gives the order to this worker again, it is what is under way.
        """
        info = activity.info()
        assert info.heartbeat_timeout is not None
        patience = info.heartbeat_timeout.total_seconds()
        # Whoever comes after one that is not heard of meets the lease that it left.
        second = info.attempt == _SECOND
        future = self._begin(
            order, lambda: self._after_a_lease(work, patience) if second else work()
        )
        if future is None:
            raise _given_back("NoPlaceError", _SOON)
        while not (await asyncio.wait({future}, timeout=patience / 4))[0]:
            activity.heartbeat()
        if (failed := _failure(future)) is not None:
            at_once = self._draining.is_set() or future.cancelled()
            raise _given_back(type(failed).__name__, _AT_ONCE if at_once else None)

    def _begin(self, order: Hashable, work: _Work) -> asyncio.Future[None] | None:
        """Have the worker's loop do the work, unless it does; nothing where there is no place."""
        if (future := self._under_way.get(order)) is None:
            # Of several queues that were asked, more than one may have had an order.
            if self.is_full(isinstance(order, StepOrder)):
                return None
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._home))
            self._under_way[order] = future
            future.add_done_callback(lambda ended: self._end(order, ended))
        return future

    async def _after_a_lease(self, work: _Work, seconds: float) -> None:
        """Do the work as soon as the thread is free; the server's own pauses are longer."""
        until = time.monotonic() + seconds
        while True:
            try:
                return await work()
            except ThreadBusyError:
                if self._draining.is_set() or time.monotonic() > until:
                    raise
            await asyncio.sleep(seconds / 10)

    def _end(self, order: Hashable, future: asyncio.Future[None]) -> None:
        if (failed := _failure(future)) is not None:
            _log.warning("The order %r is given back: %r", order, failed)
        del self._under_way[order]
        self._wake()

    async def ended(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    def notify(self) -> None:
        """Let whoever waits for a place look again; runs in any thread."""
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def give_up(self) -> None:
        """Cancel what is under way."""
        for future in tuple(self._under_way.values()):
            self._loop.call_soon_threadsafe(future.cancel)


class _Slots(CustomSlotSupplier):
    """The places of a queue of steps beside others: none while those fill them."""

    def __init__(self, desk: _Desk) -> None:
        self._desk = desk
        self._given = 0
        self._lock = threading.Lock()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        while (permit := self.try_reserve_slot(ctx)) is None:
            await self._desk.changed.wait()
        return permit

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        # Places are given back, and some are asked for, by the SDK's own threads.
        with self._lock:
            if self._desk.is_full(steps=True) or self._given >= self._desk.concurrency:
                return None
            self._given += 1
        return SlotPermit()

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        pass

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        with self._lock:
            self._given -= 1
        self._desk.notify()


def _worker(
    client: Client, desk: _Desk, queue: str, at: str, name: str, threads: ThreadPoolExecutor
) -> Worker:
    # Whoever looks at an order does it at the same time.
    fixed = FixedSizeSlotSupplier(max(_WORKFLOW_TASKS, desk.concurrency))
    turns = queue == TURNS
    # Places that queues share are asked for in Python, which costs as much as a small activity.
    shared = not turns and desk.step_queues > 1
    return Worker(
        client,
        task_queue=queue + at,
        identity=name,
        workflows=[ThreadWorkflow, ScheduleWorkflow] if turns else [],
        activities=[desk.advance, desk.at_hand, desk.scheduled, desk.step]
        if turns
        else [desk.step],
        # What it holds is of ours and imports nothing, so nothing has to be kept from it.
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_task_executor=threads,
        tuner=WorkerTuner.create_composite(
            workflow_supplier=fixed,
            activity_supplier=_Slots(desk) if shared else FixedSizeSlotSupplier(desk.concurrency),
            local_activity_supplier=fixed,
            nexus_supplier=fixed,
        ),
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(2),
        activity_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
        graceful_shutdown_timeout=_LONG,
    )


def _failure(future: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _given_back(why: str, delay: timedelta | None) -> ApplicationError:
    """Return what makes the server give an order to somebody again.

    It is told no text of an error: that may hold what a thread is about.
    """
    return ApplicationError(why, category=ApplicationErrorCategory.BENIGN, next_retry_delay=delay)


def _alike(cron: str) -> list[str]:
    """Return what means the same to Temporal as to cron."""
    if "#" in cron:
        raise ValidationError(
            f"Temporal reads no '#' in {cron!r:.80}: a comment begins there.",
            fix="Name weekdays, or days of the month, without it.",
        )
    match cron.split():
        case [minute, hour, day, month, weekday] if "*" not in {day, weekday}:
            # Where both are named, cron means either of them, and Temporal days that are both.
            return [f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"]
    return [cron]


async def _connect(address: str, retry: RetryConfig) -> Client:
    # Left to itself, the SDK writes what it logs to stdout, which is the command's.
    forwarding = LogForwardingConfig(_log.logger, append_target_to_name=False)
    logging = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding)
    runtime = Runtime(telemetry=TelemetryConfig(logging=logging))
    until = time.monotonic() + _CONNECT.total_seconds()
    while True:
        try:
            with _reached(address):
                return await Client.connect(
                    address,
                    namespace=_NAMESPACE,
                    retry_config=retry,
                    connect_timeout=_CONNECT,
                    runtime=runtime,
                )
        except PersistenceError:
            # A server that has just been started is away for a moment.
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


@contextmanager
def _reached(address: str) -> Iterator[None]:
    """Say in the project's words what a server refuses, or that it cannot be reached."""
    try:
        yield
    except (RPCError, RuntimeError, ValueError) as exc:
        status = exc.status if isinstance(exc, RPCError) else None
        if status == RPCStatusCode.NOT_FOUND:
            raise
        if status == RPCStatusCode.INVALID_ARGUMENT:
            raise ValidationError(
                f"Temporal refuses it: {exc}.",
                fix="Shorten names; write times as five fields of cron, such as '0 7 * * *'.",
            ) from exc
        # Below the connection's own words stand those of the machine.
        said = re.findall(r'message: "([^"]+)"', str(exc)) or [str(exc)]
        raise PersistenceError(
            f"The Temporal server at {address!r} cannot be reached: {said[-1]}.",
            fix="Start it, or give the address of one that runs (--temporal HOST:PORT).",
            away=True,
        ) from exc
