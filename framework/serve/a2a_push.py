"""A2A push notifications, which post a task's updates to a URL of the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from fnmatch import fnmatch
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from a2a.server.tasks import BasePushNotificationSender, PushNotificationConfigStore
from a2a.server.tasks.push_notification_sender import PushNotificationEvent
from a2a.types import TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict

from capgraph.base.errors import CapgraphError
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import ServeSettings
from capgraph.engine.services import Services
from capgraph.serve.deliveries import DeliveryStore, deliver_in_background, repeat
from capgraph.serve.problems import NotFoundError

_CONFIGS = "a2a_push/"
_LEASES = "a2a_push_lease/"
_LEASE_SECONDS = 30.0
_POLL_SECONDS = 2.0
_TIMEOUT_SECONDS = 10.0
_MAX_CONFIGS = 10
"""Maximum number of configurations of a task."""

FollowTask = Callable[[Caller, str], AsyncGenerator[PushNotificationEvent]]


class PushNotifications:
    """Storage and delivery of push notifications for A2A tasks.

    Each task's updates are delivered by one server process. If that process dies, a different
    process takes over and starts with the current state of the task.

    Args:
        services: Services of the graph.
        settings: Settings of the server.
        follow: Function that yields a task and its updates.
    """

    def __init__(self, services: Services, settings: ServeSettings, follow: FollowTask) -> None:
        self._deliveries = DeliveryStore(services.persistence, services.clock)
        self._values, self._clock = self._deliveries.values, services.clock
        self._follow = follow
        self._hosts = settings.a2a.push_hosts
        self._retention_seconds = settings.keep_runs_days * 86_400
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- configurations -------------------------------------------------------------------

    def check(self, config: TaskPushNotificationConfig) -> None:
        """Reject a push notification URL whose scheme or host is not allowed.

        Raises:
            InvalidParamsError: The host is not in ``serve.a2a.push_hosts``.
        """
        parts = urlsplit(config.url)
        allowed = any(fnmatch(parts.hostname or "", pattern) for pattern in self._hosts)
        if parts.scheme not in ("http", "https") or parts.username or not allowed:
            raise InvalidParamsError("Notifications to this URL are not allowed.")

    async def add(
        self, config: TaskPushNotificationConfig, caller: Caller
    ) -> TaskPushNotificationConfig:
        """Store a task's push notification configuration and return the stored copy.

        Raises:
            InvalidParamsError: The URL is not allowed, or the task has too many configurations.
        """
        self.check(config)
        stored = TaskPushNotificationConfig()
        stored.CopyFrom(config)
        stored.id = config.id or config.task_id

        def change(value: Any, _: float) -> tuple[Any, float, bool]:
            configs = {**(value or {}).get("configs", {}), stored.id: MessageToDict(stored)}
            if len(configs) > _MAX_CONFIGS:
                return value, self._retention_seconds, False
            return {"caller": asdict(caller), "configs": configs}, self._retention_seconds, True

        if not await self._values.achange(_CONFIGS + config.task_id, change, self._clock):
            raise InvalidParamsError(
                f"The task already has {_MAX_CONFIGS} push notification configurations, the maximum."
            )
        await self._deliver_all()
        return stored

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Return a task's push notification configurations.

        The notification sender of the A2A SDK requires this method name.
        """
        values, _ = await self._values.aread(_CONFIGS + task_id, self._clock)
        configs = (values.get(_CONFIGS + task_id) or {}).get("configs") or {}
        return [ParseDict(one, TaskPushNotificationConfig()) for one in configs.values()]

    async def remove(self, task_id: str, config_id: str) -> None:
        """Delete one of a task's push notification configurations."""

        def change(value: Any, _: float) -> tuple[Any, float, None]:
            kept = {
                name: one
                for name, one in (value or {}).get("configs", {}).items()
                if name != config_id
            }
            if not kept:
                return None, 0.0, None
            return {**value, "configs": kept}, self._retention_seconds, None

        await self._values.achange(_CONFIGS + task_id, change, self._clock)

    # --- delivery -------------------------------------------------------------------------

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Context manager: deliver notifications in the background."""
        if not self._hosts:
            yield
            return
        warning = "Push configurations cannot be read: %s"
        polling = repeat(self._deliver_all, _POLL_SECONDS, "a2a", warning)
        async with deliver_in_background(polling, self._tasks):
            yield

    async def _deliver_all(self) -> None:
        """Start delivering the updates of each task that no server process delivers yet."""
        values, _ = await self._values.aread(_CONFIGS, self._clock)
        for name, value in values.items():
            task_id = name.removeprefix(_CONFIGS)
            if value.get("is_over"):
                continue
            if task_id not in self._tasks and await self._claim(task_id):
                self._start_delivery(Caller(**value["caller"]), task_id)

    def _start_delivery(self, caller: Caller, task_id: str) -> None:
        task = self._tasks[task_id] = asyncio.create_task(self._deliver(caller, task_id))
        task.add_done_callback(lambda _: self._tasks.pop(task_id, None))

    async def _deliver(self, caller: Caller, task_id: str) -> None:
        """Send a task's updates to its push notification URLs until the task ends."""
        heartbeat = asyncio.create_task(self._keep_lease(task_id))
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as client,
                aclosing(self._follow(caller, task_id)) as events,
            ):
                sender = BasePushNotificationSender(
                    client, cast("PushNotificationConfigStore", self)
                )
                async for event in events:
                    await sender.send_notification(task_id, event)
        except NotFoundError:
            pass  # the thread was deleted
        except CapgraphError as exc:
            get_logger("serve", "a2a").warning("Push notifications were interrupted: %s", exc)
            return
        finally:
            heartbeat.cancel()
            with suppress(asyncio.CancelledError):
                await heartbeat
        # Clients may read the configurations of a task that is over.
        await self._values.achange(_CONFIGS + task_id, self._mark_over, self._clock)

    def _mark_over(self, value: Any, _: float) -> tuple[Any, float, None]:
        return value and {**value, "is_over": True}, self._retention_seconds, None

    async def _keep_lease(self, task_id: str) -> None:
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 3)
            await self._claim(task_id, renew=True)

    async def _claim(self, task_id: str, *, renew: bool = False) -> bool:
        return await self._deliveries.claim(_LEASES + task_id, _LEASE_SECONDS, renew=renew)
