"""Atomic values in Redis."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from capgraph.base.errors import ConfigurationError, PersistenceError, require_extra
from capgraph.configs.logger import mask_secrets
from capgraph.helpers.clock import Clock, SystemClock
from capgraph.stores.atomic_values import (
    AtomicValueStore,
    ChangeFunction,
    UndoFunction,
    write_with_undo,
)

T = TypeVar("T")

_KEY_PREFIX = "capgraph:"
_MAX_TTL_SECONDS = 1e10  # seconds; Redis does not support a longer time to live


class RedisValues(AtomicValueStore):
    """Atomic value store on a Redis server. Values expire after their time to live.

    Args:
        url: ``redis://…``, ``rediss://…``, or ``unix://…``.
        key_prefix: Prefix for the keys on the server.

    Raises:
        ConfigurationError: The URL is invalid.
        MissingExtraError: The extra ``redis`` is not installed.
    """

    def __init__(self, url: str, key_prefix: str = _KEY_PREFIX) -> None:
        self._prefix = key_prefix
        self._redis = require_extra("redis", "redis")
        try:
            self._client = self._redis.Redis.from_url(url, decode_responses=True)
        except ValueError as exc:
            raise ConfigurationError(
                f"Invalid Redis URL {mask_secrets(url)!r}: {exc}.",
                fix="Use redis://host:port/number, rediss://…, or unix://….",
            ) from exc

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Atomically change a stored value. Blocks the calling thread."""

        def update(pipe: Any) -> T:
            now = self._now(pipe, clock)
            text = pipe.get(key)
            value = None if text is None else json.loads(text)
            new_value, ttl, result = change(value, now)
            pipe.multi()
            if new_value is None or ttl <= 0:
                pipe.delete(key)
            elif (written := json.dumps(new_value)) != text:
                # Redis cannot expire keys by the caller's clock.
                has_no_expiry = ttl > _MAX_TTL_SECONDS or not isinstance(clock, SystemClock)
                pipe.set(key, written, px=None if has_no_expiry else math.ceil(ttl * 1000))
            return result

        key = self._prefix + name
        return cast(
            "T", self._call(self._client.transaction, update, key, value_from_callable=True)
        )

    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Atomically change a stored value without blocking the event loop."""
        return await write_with_undo(
            lambda change: asyncio.to_thread(self.change, name, change, clock), change, undo
        )

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return all values whose names start with a prefix, with the current time."""

        def read() -> tuple[dict[str, Any], float]:
            keys = self._scan(prefix)
            texts = self._client.mget(keys) if keys else []
            named = zip(keys, texts, strict=True)
            found = {k.removeprefix(self._prefix): json.loads(t) for k, t in named if t is not None}
            return found, self._now(self._client, clock)

        return await asyncio.to_thread(self._call, read)

    async def aclear(self, prefix: str) -> None:
        """Delete all values whose names start with a prefix."""

        def clear() -> None:
            if keys := self._scan(prefix):
                self._client.delete(*keys)

        await asyncio.to_thread(self._call, clear)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _scan(self, prefix: str) -> list[str]:
        escaped = re.sub(r"[*?\[\]\\^]", r"\\\g<0>", self._prefix + prefix)
        return list(self._client.scan_iter(match=f"{escaped}*", count=1000))

    def _now(self, client: Any, clock: Clock) -> float:
        if not isinstance(clock, SystemClock):
            return clock.now()
        seconds, millionths = client.time()
        moment: float = seconds + millionths / 1e6
        return moment

    def _call(self, command: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return command(*args, **kwargs)
        except self._redis.RedisError as exc:
            raise PersistenceError(
                f"Redis rejected the command: {str(exc).strip()}.",
                fix="Check the server, then try again.",
            ) from exc
