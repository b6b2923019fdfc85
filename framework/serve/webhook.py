"""Tells an address of the operator's that a person is asked something.

Questions are read from the log of the runs, so no run waits for this, and it is told of those that
workers ask, too. Messages are signed as Standard Webhooks has it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from capgraph.base.errors import CapgraphError, ConfigurationError
from capgraph.configs.logger import get_logger
from capgraph.helpers.clock import Clock
from capgraph.scale.run_executor import identify_question
from capgraph.stores.atomic_values import AtomicValueStore, MemoryValues
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import thread_config
from capgraph.stores.threads import open_questions

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings, WebhookSettings
    from capgraph.serve.threads import Threads
    from capgraph.stores.run_log import LoggedRun, RunLog

_POLL_SECONDS = 2.0
_CLAIM_SECONDS = 1800.0
"""So long one process tries; after its death another one does."""
_RETRY_DELAYS = (0.0, 1.0, 5.0, 30.0, 120.0, 600.0)
_TIMEOUT_SECONDS = 10.0
_MAX_CONCURRENT = 4
_GONE = 410


class Webhook:
    """Posts each new question to an address, once, and again while that fails.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        threads: The threads, user by user.
        log: The runs.
        settings: How the server answers.

    Raises:
        ConfigurationError: The address cannot be used, or nobody knows the server's own.
    """

    def __init__(self, graph: Any, threads: Threads, log: RunLog, settings: ServeSettings) -> None:
        assert settings.webhook is not None
        self._settings: WebhookSettings = settings.webhook
        self._base_url = (settings.base_url or "").rstrip("/")
        parts = urlsplit(self._settings.url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username:
            raise ConfigurationError(
                f"serve.webhook.url is {self._settings.url!r}.", fix="Give an https address."
            )
        if not self._base_url:
            raise ConfigurationError(
                "serve.webhook tells links, and nobody says where people reach the server.",
                fix="Set serve.base_url.",
            )
        kept: Persistence = graph.persistence
        self._values: AtomicValueStore = (
            kept.values if kept.tables is not None else MemoryValues(10_000)
        )
        self._clock: Clock = graph.services.clock
        self._saver, self._threads, self._log = graph.checkpointer, threads, log
        self._retention_seconds = settings.keep_runs_days * 86_400
        self._key = _decode_secret(self._settings.secret.get_secret_value())
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._delivered: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Tell of questions inside the block."""
        looking = asyncio.create_task(self._poll_forever())
        try:
            yield
        finally:
            tasks = [looking, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.poll()
            except CapgraphError as exc:
                get_logger("serve", "webhook").warning("Questions were not looked for: %s", exc)
            await asyncio.sleep(_POLL_SECONDS)

    async def poll(self) -> None:
        """Begin to tell of the questions that nobody was told of."""
        waiting = {run.run_id: run for run in await self._log.waiting_runs()}
        self._delivered &= waiting.keys()
        for run_id in waiting.keys() - self._delivered - self._tasks.keys():
            self._tasks[run_id] = asyncio.create_task(self._deliver(waiting[run_id]))

    async def _deliver(self, run: LoggedRun) -> None:
        try:
            await self._deliver_questions(run)
            self._delivered.add(run.run_id)
        except CapgraphError as exc:
            get_logger("serve", "webhook").warning("Nobody was told of a question: %s", exc)
        finally:
            del self._tasks[run.run_id]

    async def _deliver_questions(self, run: LoggedRun) -> None:
        config: Any = thread_config(run.thread_id)
        found = await self._saver.aget_tuple(config)
        asked = open_questions(found) if found is not None else {}
        async with self._slots:
            for key, value in asked.items():
                question = identify_question(run.thread_id, key, value)
                name = f"webhook/{question['question_id']}"
                if await self._claim(name, _CLAIM_SECONDS):
                    await self._send(self.build_message(run, question), question["question_id"])
                    await self._claim(name, self._retention_seconds, renew=True)

    async def _claim(self, name: str, seconds: float, *, renew: bool = False) -> bool:
        """Take a question for a time; tells whether nobody else had it."""

        def change(value: Any, now: float) -> tuple[Any, float, bool]:
            if value is not None and value > now and not renew:
                return value, value - now, False
            return now + seconds, seconds, True

        return await self._values.achange(name, change, self._clock)

    def build_message(self, run: LoggedRun, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is told of a question; nothing that the thread holds unless the settings say so."""
        thread = run.thread_id.removeprefix(self._threads.prefix_of(run.thread_id))
        told = {
            "type": "question",
            "question_id": question["question_id"],
            "link": f"{self._base_url}/?thread={quote(thread, safe='')}",
        }
        if self._settings.content:
            named = ("context_key", "capability", "description", "reason")
            steps = question.get("steps") or []
            told["steps"] = [{name: step.get(name) for name in named} for step in steps]
            told["user"] = run.request["caller"]["user_id"]
        return told

    async def _send(self, message: Mapping[str, Any], message_id: str) -> None:
        body = json.dumps(message).encode()
        for pause in _RETRY_DELAYS:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads tries
            try:
                status = await self._post(body, message_id)
            except OSError as exc:
                problem = str(exc)
            else:
                if 200 <= status < 300:
                    return
                problem = f"HTTP {status}"
                if status == _GONE:
                    break
        get_logger("serve", "webhook").error("Nobody was told of %s: %s", message_id, problem)

    async def _post(self, body: bytes, message_id: str) -> int:
        """Send a message; redirects are not followed.

        Raises:
            OSError: It cannot be reached.
        """
        import httpx

        now = str(int(time.time()))
        signed = hmac.digest(self._key, f"{message_id}.{now}.".encode() + body, hashlib.sha256)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": now,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as client,
                client.stream("POST", self._settings.url, content=body, headers=headers) as got,
            ):
                return got.status_code
        except httpx.HTTPError as exc:
            raise OSError(f"{type(exc).__name__}: {exc}") from exc


def _decode_secret(secret: str) -> bytes:
    """Return the key of a secret; ``whsec_`` and base64 as Standard Webhooks writes it, or any text."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as exc:
        raise ConfigurationError(
            "serve.webhook.secret begins with 'whsec_' and is no base64 behind it.",
            fix="Give the secret as it was made, or any other text.",
        ) from exc
