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
from capgraph.scale.engine import TURN_QUEUE, JobHandler
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.temporal_workflows import (
    LOCAL_ACTIVITY_TIMEOUT,
    ScheduledStart,
    ScheduleWorkflow,
    ThreadJob,
    ThreadWorkflow,
    activity_options,
)

_NAMESPACE = "default"
_ID_PREFIX = "capgraph/"
_CONNECT_TIMEOUT = timedelta(seconds=5)
# A worker waits for a server that is away; whoever asks for something does so by itself.
_WORKER_RETRY = RetryConfig(max_interval_millis=2000, max_elapsed_time_millis=90_000, max_retries=0)
_SECOND_ATTEMPT = 2
_IMMEDIATELY = timedelta(milliseconds=1)
_SHORT_DELAY = timedelta(milliseconds=100)
_GRACEFUL_SHUTDOWN = timedelta(days=1)
_WORKFLOW_TASKS = 4

_log = get_logger("scale", "temporal")
_JobFunction: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


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
        self._queue_suffix, self._id_prefix = (
            (f"@{database}", f"{database}/") if database else ("", "")
        )

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

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Hand a thread to a worker; its workflow is begun, or told.

        Args:
            job: The thread and its run.
            is_resubmission: Whether it was handed over before; then a workflow that is there is not told, for
                what it is told it keeps as long as it lives.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        queue, name = TURN_QUEUE + self._queue_suffix, _ID_PREFIX + job.thread
        at = queue if self._queue_suffix else ""
        kept = ThreadJob(job.thread, job.run, self._lease_seconds, at, at_hand=True)
        timeout = activity_options(self._lease_seconds)["heartbeat_timeout"]
        with _translate_errors(self._address):
            try:
                # Most threads have no workflow at the moment, and to be begun costs the server less.
                await self._client.start_workflow(
                    ThreadWorkflow.run, [kept], id=name, task_queue=queue, task_timeout=timeout
                )
            except WorkflowAlreadyStartedError:
                if await self._workflow_queue(name) not in {queue, None}:
                    # Another database has a thread of this name, whose workflow leaves ours alone.
                    await self._start_activity("advance", [job.thread, job.run], name, queue)
                elif not is_resubmission:
                    await self._client.start_workflow(
                        ThreadWorkflow.run,
                        [],
                        id=name,
                        task_queue=queue,
                        task_timeout=timeout,
                        start_signal="order",
                        start_signal_args=[kept],
                    )

    async def _workflow_queue(self, workflow_id: str) -> str | None:
        try:
            return (await self._client.get_workflow_handle(workflow_id).describe()).task_queue
        except RPCError as exc:
            if exc.status != RPCStatusCode.NOT_FOUND:
                raise
            return None  # it has ended meanwhile

    async def _start_activity(
        self, activity_name: str, args: list[Any], name: str, queue: str
    ) -> None:
        await self._client.start_activity(
            activity_name,
            args=args,
            id=self._id_prefix + name,
            task_queue=queue,
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
            **activity_options(self._lease_seconds),
        )

    async def enqueue_step(self, job: StepJob) -> None:
        """Hand a step to a worker of its queue; one that is under way is not begun again.

        Args:
            job: The step.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        with _translate_errors(self._address):
            await self._start_activity(
                "step", [asdict(job)], job.id, job.queue + self._queue_suffix
            )

    async def serve(
        self,
        handler: JobHandler,
        queues: Collection[str],
        *,
        worker_id: str,
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
            worker_id: Name of the worker.
            concurrency: Most orders at a time.
            draining: When set, no further order is taken.
            ready: Set here when orders are taken.
        """
        desk = _JobRunner(handler, concurrency, draining, len({*queues} - {TURN_QUEUE}))
        stop = asyncio.Event()
        home = asyncio.get_running_loop()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="capgraph-temporal", daemon=True)
        thread.start()
        work = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                self._run_workers(
                    desk, queues, worker_id, stop, lambda: home.call_soon_threadsafe(ready.set)
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
            desk.cancel_all()
            loop.call_soon_threadsafe(stop.set)
            await asyncio.wait({work}, timeout=_CONNECT_TIMEOUT.total_seconds())
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()
        work.result()

    async def _run_workers(
        self,
        runner: _JobRunner,
        queues: Collection[str],
        worker: str,
        stop: asyncio.Event,
        on_ready: Callable[[], object],
    ) -> None:
        """Run a worker for each queue, in the event loop of the engine's own thread."""
        runner.attach(asyncio.get_running_loop())
        # One connection has one worker for a queue.
        client = await _connect(self._address, _WORKER_RETRY)
        with ThreadPoolExecutor(_WORKFLOW_TASKS, "capgraph-workflow") as threads:
            workers = [
                _build_worker(client, runner, queue, self._queue_suffix, worker, threads)
                for queue in sorted(set(queues))
            ]
            runs = [asyncio.create_task(one.run()) for one in workers]
            on_ready()
            await asyncio.wait(
                [*runs, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            stop.set()
            await asyncio.gather(*(one.shutdown() for one in workers))
            await runner.wait_idle()
            with _translate_errors(self._address):
                await asyncio.gather(*runs)

    async def count_waiting(self) -> Mapping[str, int]:
        """Count the orders that nobody has taken, by queue."""
        with _translate_errors(self._address):
            steps = self._client.list_activities('ExecutionStatus = "Running"')
            found = {one.task_queue async for one in steps}
            queues = {TURN_QUEUE} | {
                queue.removesuffix(self._queue_suffix)
                for queue in found
                if queue.endswith(self._queue_suffix)
            }
            counts = {queue: await self._backlog(queue) for queue in sorted(queues)}
        return {queue: count for queue, count in counts.items() if count}

    async def _backlog(self, queue: str) -> int:
        kinds = [
            TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            # A thread whose workflow nobody has looked at.
            *([TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW] if queue == TURN_QUEUE else []),
        ]
        count = 0
        for kind in kinds:
            found = await self._client.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=_NAMESPACE,
                    task_queue=TaskQueue(name=queue + self._queue_suffix),
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
            ScheduledStart(name, self._lease_seconds),
            id=f"{_ID_PREFIX}schedule/{self._id_prefix}{name}",
            task_queue=TURN_QUEUE + self._queue_suffix,
        )
        # Moments at which no worker lived are not all made up for when one does.
        policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
        spec = ScheduleSpec(cron_expressions=_to_temporal_cron(cron))
        with _translate_errors(self._address), suppress(ScheduleAlreadyRunningError):
            await self._client.create_schedule(
                _ID_PREFIX + self._id_prefix + name,
                Schedule(action=action, spec=spec, policy=policy),
            )

    async def unschedule(self, name: str) -> None:
        """Forget the moments of a schedule.

        Args:
            name: Names it.

        Raises:
            PersistenceError: The server cannot be reached.
        """
        with _translate_errors(self._address):
            try:
                await self._client.get_schedule_handle(_ID_PREFIX + self._id_prefix + name).delete()
            except RPCError as exc:
                if exc.status != RPCStatusCode.NOT_FOUND:
                    raise

    async def close(self) -> None:
        """Do nothing: the connection goes with the engine."""


class _JobRunner:
    """The activities of a worker, and how many of them are under way.

    They are begun in the loop of the engine's thread and do their work in the one of the worker.
    """

    def __init__(
        self, handler: JobHandler, concurrency: int, draining: asyncio.Event, step_queues: int
    ) -> None:
        self._handler = handler
        self._draining = draining
        self._worker_loop = asyncio.get_running_loop()
        self._engine_loop = self._worker_loop
        self._running: dict[Hashable, asyncio.Future[None]] = {}
        self.concurrency, self.step_queues = concurrency, step_queues
        self.changed = asyncio.Event()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the loop of the engine's thread."""
        self._engine_loop = loop

    def is_full(self, steps: bool) -> bool:
        """Tell whether no other step, or turn, can be begun."""
        # A turn waits for its steps on other workers, so steps have places of their own.
        same = sum(isinstance(order, StepJob) is steps for order in tuple(self._running))
        return same >= self.concurrency

    @activity.defn
    async def advance(self, thread: str, run: str) -> None:
        order = TurnJob(thread, run)
        await self._run_job(order, lambda: self._handler.run_turn(order))

    @activity.defn
    async def at_hand(self, thread: str, run: str) -> str:
        """Do an order where it is looked at; tells why it has to be handed on, if it has."""
        order = TurnJob(thread, run)
        if self._draining.is_set():
            return "draining"
        future = self._start(order, lambda: self._handler.run_turn(order))
        if future is None:
            return "no place"
        await asyncio.wait({future}, timeout=LOCAL_ACTIVITY_TIMEOUT.total_seconds())
        failed = _failure(future) if future.done() else TimeoutError()
        return "" if failed is None else type(failed).__name__

    @activity.defn
    async def step(self, fields: dict[str, str]) -> None:
        order = StepJob(**fields)
        await self._run_job(order, lambda: self._handler.run_step(order))

    @activity.defn
    async def scheduled(self, schedule: str, moment: float) -> None:
        await self._run_job(
            (schedule, moment), lambda: self._handler.start_scheduled(schedule, moment)
        )

    async def _run_job(self, order: Hashable, work: _JobFunction) -> None:
        """Have the worker's loop do the work to its end, and let the server know of it meanwhile.

        What the server gives up goes on, for the lease says who has the thread. Where the server
        then gives the order to this worker again, it is what is under way.
        """
        info = activity.info()
        assert info.heartbeat_timeout is not None
        patience = info.heartbeat_timeout.total_seconds()
        # Whoever comes after one that is not heard of meets the lease that it left.
        second = info.attempt == _SECOND_ATTEMPT
        future = self._start(
            order, lambda: self._retry_while_busy(work, patience) if second else work()
        )
        if future is None:
            raise _retry_error("NoPlaceError", _SHORT_DELAY)
        while not (await asyncio.wait({future}, timeout=patience / 4))[0]:
            activity.heartbeat()
        if (failed := _failure(future)) is not None:
            at_once = self._draining.is_set() or future.cancelled()
            raise _retry_error(type(failed).__name__, _IMMEDIATELY if at_once else None)

    def _start(self, order: Hashable, work: _JobFunction) -> asyncio.Future[None] | None:
        """Have the worker's loop do the work, unless it does; nothing where there is no place."""
        if (future := self._running.get(order)) is None:
            # Of several queues that were asked, more than one may have had an order.
            if self.is_full(isinstance(order, StepJob)):
                return None
            future = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(work(), self._worker_loop)
            )
            self._running[order] = future
            future.add_done_callback(lambda ended: self._finish(order, ended))
        return future

    async def _retry_while_busy(self, work: _JobFunction, seconds: float) -> None:
        """Do the work as soon as the thread is free; the server's own pauses are longer."""
        until = time.monotonic() + seconds
        while True:
            try:
                return await work()
            except ThreadBusyError:
                if self._draining.is_set() or time.monotonic() > until:
                    raise
            await asyncio.sleep(seconds / 10)

    def _finish(self, order: Hashable, future: asyncio.Future[None]) -> None:
        if (failed := _failure(future)) is not None:
            _log.warning("The order %r is given back: %r", order, failed)
        del self._running[order]
        self._wake()

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self._running:
            await asyncio.wait(self._running.values())

    def notify(self) -> None:
        """Let whoever waits for a place look again; runs in any thread."""
        self._engine_loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def cancel_all(self) -> None:
        """Cancel what is under way."""
        for future in tuple(self._running.values()):
            self._engine_loop.call_soon_threadsafe(future.cancel)


class _SharedSlotSupplier(CustomSlotSupplier):
    """The places of a queue of steps beside others: none while those fill them."""

    def __init__(self, desk: _JobRunner) -> None:
        self._runner = desk
        self._reserved = 0
        self._lock = threading.Lock()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        while (permit := self.try_reserve_slot(ctx)) is None:
            await self._runner.changed.wait()
        return permit

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        # Places are given back, and some are asked for, by the SDK's own threads.
        with self._lock:
            if self._runner.is_full(steps=True) or self._reserved >= self._runner.concurrency:
                return None
            self._reserved += 1
        return SlotPermit()

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        pass

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        with self._lock:
            self._reserved -= 1
        self._runner.notify()


def _build_worker(
    client: Client,
    runner: _JobRunner,
    queue: str,
    queue_suffix: str,
    name: str,
    threads: ThreadPoolExecutor,
) -> Worker:
    # Whoever looks at an order does it at the same time.
    fixed = FixedSizeSlotSupplier(max(_WORKFLOW_TASKS, runner.concurrency))
    turns = queue == TURN_QUEUE
    # Places that queues share are asked for in Python, which costs as much as a small activity.
    shared = not turns and runner.step_queues > 1
    return Worker(
        client,
        task_queue=queue + queue_suffix,
        identity=name,
        workflows=[ThreadWorkflow, ScheduleWorkflow] if turns else [],
        activities=[runner.advance, runner.at_hand, runner.scheduled, runner.step]
        if turns
        else [runner.step],
        # What it holds is of ours and imports nothing, so nothing has to be kept from it.
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_task_executor=threads,
        tuner=WorkerTuner.create_composite(
            workflow_supplier=fixed,
            activity_supplier=_SharedSlotSupplier(runner)
            if shared
            else FixedSizeSlotSupplier(runner.concurrency),
            local_activity_supplier=fixed,
            nexus_supplier=fixed,
        ),
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(2),
        activity_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
        graceful_shutdown_timeout=_GRACEFUL_SHUTDOWN,
    )


def _failure(future: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _retry_error(error_name: str, delay: timedelta | None) -> ApplicationError:
    """Return what makes the server give an order to somebody again.

    It is told no text of an error: that may hold what a thread is about.
    """
    return ApplicationError(
        error_name, category=ApplicationErrorCategory.BENIGN, next_retry_delay=delay
    )


def _to_temporal_cron(cron: str) -> list[str]:
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
    until = time.monotonic() + _CONNECT_TIMEOUT.total_seconds()
    while True:
        try:
            with _translate_errors(address):
                return await Client.connect(
                    address,
                    namespace=_NAMESPACE,
                    retry_config=retry,
                    connect_timeout=_CONNECT_TIMEOUT,
                    runtime=runtime,
                )
        except PersistenceError:
            # A server that has just been started is away for a moment.
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


@contextmanager
def _translate_errors(address: str) -> Iterator[None]:
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
            is_unavailable=True,
        ) from exc
