"""Engine on Temporal: one workflow for each thread that has something to do.

A turn runs in an activity, outside of what Temporal replays. The lease in the database decides
which worker runs a thread. An activity that Temporal considers lost continues as long as it holds
the lease; its replacement finds the thread busy and is retried.
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
# Workers wait for an unavailable server. Clients retry by themselves.
_WORKER_RETRY = RetryConfig(max_interval_millis=2000, max_elapsed_time_millis=90_000, max_retries=0)
_SECOND_ATTEMPT = 2
_IMMEDIATELY = timedelta(milliseconds=1)
_SHORT_DELAY = timedelta(milliseconds=100)
_GRACEFUL_SHUTDOWN = timedelta(days=1)
_WORKFLOW_TASKS = 4

_log = get_logger("scale", "temporal")
_JobFunction: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class TemporalEngine:
    """Engine that delivers jobs through a Temporal server.

    Args:
        client: Temporal client connected to the server.
        address: Address of the server.
        lease_seconds: Seconds to wait for a worker that sends no heartbeat.
        database: ID of the database that stores the threads. Databases can share a server.
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
        """Connect to a Temporal server.

        Args:
            address: Host and port of the server.
            lease_seconds: Duration of a lease, in seconds.
            database: ID of the database that stores the threads.

        Raises:
            ConfigurationError: The address is invalid.
            PersistenceError: The server is unavailable.
        """
        if not re.fullmatch(r"\S+:\d{1,5}", address):
            raise ConfigurationError(
                f"The Temporal address {address!r:.80} is invalid: it must be HOST:PORT.",
                fix="Use HOST:PORT, such as localhost:7233.",
            )
        return cls(await _connect(address, RetryConfig()), address, lease_seconds, database)

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Start the workflow of a thread, or signal the job to the workflow if it is running.

        Args:
            job: Job that identifies the thread and its run.
            is_resubmission: Whether the run was submitted before. In this case, a running workflow
                is not signaled, because it never loses its jobs.

        Raises:
            PersistenceError: The server is unavailable.
        """
        queue, workflow_id = TURN_QUEUE + self._queue_suffix, _ID_PREFIX + job.thread
        queue_id = queue if self._queue_suffix else ""
        thread_job = ThreadJob(job.thread, job.run, self._lease_seconds, queue_id, at_hand=True)
        timeout = activity_options(self._lease_seconds)["heartbeat_timeout"]
        with _translate_errors(self._address):
            try:
                # Starting is cheaper than signaling, and most threads have no running workflow.
                await self._client.start_workflow(
                    ThreadWorkflow.run,
                    [thread_job],
                    id=workflow_id,
                    task_queue=queue,
                    task_timeout=timeout,
                )
            except WorkflowAlreadyStartedError:
                if await self._workflow_queue(workflow_id) not in {queue, None}:
                    # The workflow belongs to a thread with the same ID in another database.
                    await self._start_activity("advance", [job.thread, job.run], workflow_id, queue)
                elif not is_resubmission:
                    await self._client.start_workflow(
                        ThreadWorkflow.run,
                        [],
                        id=workflow_id,
                        task_queue=queue,
                        task_timeout=timeout,
                        start_signal="order",
                        start_signal_args=[thread_job],
                    )

    async def _workflow_queue(self, workflow_id: str) -> str | None:
        try:
            return (await self._client.get_workflow_handle(workflow_id).describe()).task_queue
        except RPCError as exc:
            if exc.status != RPCStatusCode.NOT_FOUND:
                raise
            return None  # the workflow has ended in the meantime

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
        """Enqueue a job that runs a step unless the step is already running.

        Args:
            job: Job that identifies the step.

        Raises:
            PersistenceError: The server is unavailable.
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
        """Run jobs until ``draining`` is set and all running jobs have ended.

        The Temporal worker uses an event loop in a separate thread, so heartbeats continue while a
        capability blocks the worker's event loop.

        Args:
            handler: Handler that runs the jobs.
            queues: Names of the queues to take jobs from.
            worker_id: ID of the worker.
            concurrency: Maximum number of concurrent jobs.
            draining: Event after which no new jobs are accepted.
            ready: Event that the engine sets once it accepts jobs.
        """
        runner = _JobRunner(handler, concurrency, draining, len({*queues} - {TURN_QUEUE}))
        stop = asyncio.Event()
        worker_loop = asyncio.get_running_loop()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="capgraph-temporal", daemon=True)
        thread.start()
        workers = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                self._run_workers(
                    runner,
                    queues,
                    worker_id,
                    stop,
                    lambda: worker_loop.call_soon_threadsafe(ready.set),
                ),
                loop,
            )
        )
        drained = asyncio.create_task(draining.wait())
        waited: set[asyncio.Future[Any]] = {workers, drained}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            loop.call_soon_threadsafe(stop.set)
            await asyncio.wait({workers})
        finally:
            drained.cancel()
            runner.cancel_all()
            loop.call_soon_threadsafe(stop.set)
            await asyncio.wait({workers}, timeout=_CONNECT_TIMEOUT.total_seconds())
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()
        workers.result()

    async def _run_workers(
        self,
        runner: _JobRunner,
        queues: Collection[str],
        worker: str,
        stop: asyncio.Event,
        on_ready: Callable[[], object],
    ) -> None:
        """Run one Temporal worker for each queue on the engine's event loop."""
        runner.attach(asyncio.get_running_loop())
        # A Temporal client allows one worker per queue.
        client = await _connect(self._address, _WORKER_RETRY)
        with ThreadPoolExecutor(_WORKFLOW_TASKS, "capgraph-workflow") as threads:
            workers = [
                _build_worker(client, runner, queue, self._queue_suffix, worker, threads)
                for queue in sorted(set(queues))
            ]
            tasks = [asyncio.create_task(temporal_worker.run()) for temporal_worker in workers]
            on_ready()
            await asyncio.wait(
                [*tasks, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            stop.set()
            await asyncio.gather(*(temporal_worker.shutdown() for temporal_worker in workers))
            await runner.wait_idle()
            with _translate_errors(self._address):
                await asyncio.gather(*tasks)

    async def count_waiting(self) -> Mapping[str, int]:
        """Return the number of waiting jobs in each queue."""
        with _translate_errors(self._address):
            steps = self._client.list_activities('ExecutionStatus = "Running"')
            task_queues = {one.task_queue async for one in steps}
            queues = {TURN_QUEUE} | {
                queue.removesuffix(self._queue_suffix)
                for queue in task_queues
                if queue.endswith(self._queue_suffix)
            }
            counts = {queue: await self._backlog(queue) for queue in sorted(queues)}
        return {queue: count for queue, count in counts.items() if count}

    async def _backlog(self, queue: str) -> int:
        kinds = [
            TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            # Threads whose workflow has not been picked up.
            *([TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW] if queue == TURN_QUEUE else []),
        ]
        count = 0
        for kind in kinds:
            description = await self._client.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=_NAMESPACE,
                    task_queue=TaskQueue(name=queue + self._queue_suffix),
                    task_queue_type=kind,
                    report_stats=True,
                ),
                retry=True,
            )
            count += description.stats.approximate_backlog_count
        return count

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Create a Temporal schedule unless it already exists.

        Args:
            name: ID of the schedule.
            cron: Cron expression with five fields, in UTC.
            after: Ignored, because Temporal triggers every due time itself.

        Raises:
            ValidationError: Temporal rejects the cron expression.
            PersistenceError: The server is unavailable.
        """
        action = ScheduleActionStartWorkflow(
            ScheduleWorkflow.run,
            ScheduledStart(name, self._lease_seconds),
            id=f"{_ID_PREFIX}schedule/{self._id_prefix}{name}",
            task_queue=TURN_QUEUE + self._queue_suffix,
        )
        # Catch up on at most one due time after a period without workers.
        policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
        spec = ScheduleSpec(cron_expressions=_to_temporal_cron(cron))
        with _translate_errors(self._address), suppress(ScheduleAlreadyRunningError):
            await self._client.create_schedule(
                _ID_PREFIX + self._id_prefix + name,
                Schedule(action=action, spec=spec, policy=policy),
            )

    async def unschedule(self, name: str) -> None:
        """Delete a Temporal schedule if it exists.

        Args:
            name: ID of the schedule.

        Raises:
            PersistenceError: The server is unavailable.
        """
        with _translate_errors(self._address):
            try:
                await self._client.get_schedule_handle(_ID_PREFIX + self._id_prefix + name).delete()
            except RPCError as exc:
                if exc.status != RPCStatusCode.NOT_FOUND:
                    raise

    async def close(self) -> None:
        """Close the engine without doing anything, because the client holds no open resources."""


class _JobRunner:
    """Temporal activities of a worker, with a limit on concurrent jobs.

    Activities start on the engine's event loop and run their jobs on the worker's event loop.
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
        """Set the event loop on which the engine's activities start."""
        self._engine_loop = loop

    def is_full(self, steps: bool) -> bool:
        """Return True if all slots of the worker are in use.

        Steps and turns have separate slots.
        """
        # A turn waits for its steps, so turns and steps must not share slots.
        running = sum(isinstance(order, StepJob) is steps for order in tuple(self._running))
        return running >= self.concurrency

    @activity.defn
    async def advance(self, thread: str, run: str) -> None:
        order = TurnJob(thread, run)
        await self._run_job(order, lambda: self._handler.run_turn(order))

    @activity.defn
    async def at_hand(self, thread: str, run: str) -> str:
        """Run a turn in a local activity.

        Returns an empty string, or the reason why a regular activity must run the turn instead.
        """
        order = TurnJob(thread, run)
        if self._draining.is_set():
            return "draining"
        future = self._start(order, lambda: self._handler.run_turn(order))
        if future is None:
            return "no place"
        await asyncio.wait({future}, timeout=LOCAL_ACTIVITY_TIMEOUT.total_seconds())
        failure = _failure(future) if future.done() else TimeoutError()
        return "" if failure is None else type(failure).__name__

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
        """Run a job on the worker's event loop and send heartbeats until it ends.

        A job that the server considers lost keeps running, because the lease decides which worker
        runs a thread. If the server assigns the same job to this worker again, the existing job is
        awaited.
        """
        info = activity.info()
        assert info.heartbeat_timeout is not None
        heartbeat_timeout = info.heartbeat_timeout.total_seconds()
        # The second attempt follows a lost worker, whose lease may not have expired yet.
        is_second = info.attempt == _SECOND_ATTEMPT
        future = self._start(
            order, lambda: self._retry_while_busy(work, heartbeat_timeout) if is_second else work()
        )
        if future is None:
            raise _retry_error("NoPlaceError", _SHORT_DELAY)
        while not (await asyncio.wait({future}, timeout=heartbeat_timeout / 4))[0]:
            activity.heartbeat()
        if (failure := _failure(future)) is not None:
            is_immediate = self._draining.is_set() or future.cancelled()
            raise _retry_error(type(failure).__name__, _IMMEDIATELY if is_immediate else None)

    def _start(self, order: Hashable, work: _JobFunction) -> asyncio.Future[None] | None:
        """Start a job unless it is already running, and return its future.

        Returns ``None`` if all slots are in use.
        """
        if (future := self._running.get(order)) is None:
            # Several queues are polled at once, so more jobs than slots may arrive.
            if self.is_full(isinstance(order, StepJob)):
                return None
            future = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(work(), self._worker_loop)
            )
            self._running[order] = future
            future.add_done_callback(lambda ended: self._finish(order, ended))
        return future

    async def _retry_while_busy(self, work: _JobFunction, seconds: float) -> None:
        """Retry a job for a limited time until its thread is no longer busy.

        The server's own retry delays are longer.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                return await work()
            except ThreadBusyError:
                if self._draining.is_set() or time.monotonic() > until:
                    raise
            await asyncio.sleep(seconds / 10)

    def _finish(self, order: Hashable, future: asyncio.Future[None]) -> None:
        if (failure := _failure(future)) is not None:
            _log.warning("The job %r is returned to the queue: %r", order, failure)
        del self._running[order]
        self._wake()

    async def wait_idle(self) -> None:
        """Wait until no job is running."""
        while self._running:
            await asyncio.wait(self._running.values())

    def notify(self) -> None:
        """Wake the tasks that are waiting for a free slot. This method is thread-safe."""
        self._engine_loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def cancel_all(self) -> None:
        """Cancel the running jobs."""
        for future in tuple(self._running.values()):
            self._engine_loop.call_soon_threadsafe(future.cancel)


class _SharedSlotSupplier(CustomSlotSupplier):
    """Temporal slot supplier that shares a worker's slots among several step queues."""

    def __init__(self, runner: _JobRunner) -> None:
        self._runner = runner
        self._reserved = 0
        self._lock = threading.Lock()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        while (permit := self.try_reserve_slot(ctx)) is None:
            await self._runner.changed.wait()
        return permit

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        # The SDK calls this from its own threads.
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
    # Workflow tasks run jobs as local activities, so they need as many slots.
    fixed = FixedSizeSlotSupplier(max(_WORKFLOW_TASKS, runner.concurrency))
    serves_turns = queue == TURN_QUEUE
    # A custom slot supplier calls Python, which costs as much as a small activity.
    shares_slots = not serves_turns and runner.step_queues > 1
    return Worker(
        client,
        task_queue=queue + queue_suffix,
        identity=name,
        workflows=[ThreadWorkflow, ScheduleWorkflow] if serves_turns else [],
        activities=[runner.advance, runner.at_hand, runner.scheduled, runner.step]
        if serves_turns
        else [runner.step],
        # The workflows import nothing that needs a sandbox.
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_task_executor=threads,
        tuner=WorkerTuner.create_composite(
            workflow_supplier=fixed,
            activity_supplier=_SharedSlotSupplier(runner)
            if shares_slots
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
    """Create an error that makes the Temporal server retry an activity.

    The original error message is omitted, because it may contain data from the thread.
    """
    return ApplicationError(
        error_name, category=ApplicationErrorCategory.BENIGN, next_retry_delay=delay
    )


def _to_temporal_cron(cron: str) -> list[str]:
    """Return the cron expressions in Temporal's syntax."""
    if "#" in cron:
        raise ValidationError(
            f"Invalid cron expression {cron!r:.80}: Temporal treats '#' as a comment.",
            fix="List weekdays or days of the month without '#'.",
        )
    match cron.split():
        case [minute, hour, day, month, weekday] if "*" not in {day, weekday}:
            # With both fields, cron matches either day; Temporal requires both to match.
            return [f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {weekday}"]
    return [cron]


async def _connect(address: str, retry: RetryConfig) -> Client:
    # By default, the SDK logs to stdout, which belongs to the command's output.
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
            # A server that has just started may need a moment.
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


@contextmanager
def _translate_errors(address: str) -> Iterator[None]:
    """Convert Temporal errors inside a ``with`` block to capgraph errors."""
    try:
        yield
    except (RPCError, RuntimeError, ValueError) as exc:
        status = exc.status if isinstance(exc, RPCError) else None
        if status == RPCStatusCode.NOT_FOUND:
            raise
        if status == RPCStatusCode.INVALID_ARGUMENT:
            raise ValidationError(
                f"Temporal rejected the request: {exc}.",
                fix="Shorten names; use cron expressions with five fields, such as '0 7 * * *'.",
            ) from exc
        # The innermost message names the actual cause.
        messages = re.findall(r'message: "([^"]+)"', str(exc)) or [str(exc)]
        raise PersistenceError(
            f"The Temporal server at {address!r} is unavailable: {messages[-1]}.",
            fix="Start it, or pass the address of a running server (--temporal HOST:PORT).",
            is_unavailable=True,
        ) from exc
