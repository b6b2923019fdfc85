"""Webhook that notifies the operator of open questions.

Questions are read from the run log, so runs do not wait for deliveries, and questions asked by
workers are included. Messages are signed according to Standard Webhooks.
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
from capgraph.scale.run_executor import identify_question
from capgraph.serve.deliveries import DeliveryStore, deliver_in_background, repeat
from capgraph.stores.records import thread_config
from capgraph.stores.threads import open_questions

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings, WebhookSettings
    from capgraph.serve.threads import Threads
    from capgraph.stores.run_log import LoggedRun, RunLog

_POLL_SECONDS = 2.0
_CLAIM_SECONDS = 1800.0
"""Seconds that a process owns the delivery of a question. Afterwards another process may take over."""
_RETRY_DELAYS = (0.0, 1.0, 5.0, 30.0, 120.0, 600.0)
_TIMEOUT_SECONDS = 10.0
_MAX_CONCURRENT = 4
_GONE = 410


class Webhook:
    """Webhook that posts each open question once and retries failed requests.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        log: Log of the runs.
        settings: Settings of the server.

    Raises:
        ConfigurationError: The webhook URL or the secret is invalid, or ``serve.base_url`` is
            missing.
    """

    def __init__(self, graph: Any, threads: Threads, log: RunLog, settings: ServeSettings) -> None:
        assert settings.webhook is not None
        self._settings: WebhookSettings = settings.webhook
        self._base_url = (settings.base_url or "").rstrip("/")
        parts = urlsplit(self._settings.url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username:
            raise ConfigurationError(
                f"Invalid serve.webhook.url {self._settings.url!r}: expected an HTTP(S) URL"
                " without credentials.",
                fix="Use an https:// URL.",
            )
        if not self._base_url:
            raise ConfigurationError(
                "serve.webhook requires serve.base_url, because messages contain links to the "
                "console.",
                fix="Set serve.base_url.",
            )
        self._deliveries = DeliveryStore(graph.persistence, graph.services.clock)
        self._saver, self._threads, self._log = graph.checkpointer, threads, log
        self._retention_seconds = settings.keep_runs_days * 86_400
        self._key = _decode_secret(self._settings.secret.get_secret_value())
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._delivered: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Context manager: deliver notifications in the background."""
        polling = repeat(self.poll, _POLL_SECONDS, "webhook", "Questions cannot be read: %s")
        async with deliver_in_background(polling, self._tasks):
            yield

    async def poll(self) -> None:
        """Start delivering each open question that has not been delivered yet."""
        waiting = {run.run_id: run for run in await self._log.waiting_runs()}
        self._delivered &= waiting.keys()
        for run_id in waiting.keys() - self._delivered - self._tasks.keys():
            self._tasks[run_id] = asyncio.create_task(self._deliver(waiting[run_id]))

    async def _deliver(self, run: LoggedRun) -> None:
        try:
            await self._deliver_questions(run)
            self._delivered.add(run.run_id)
        except CapgraphError as exc:
            get_logger("serve", "webhook").warning("A question was not delivered: %s", exc)
        finally:
            del self._tasks[run.run_id]

    async def _deliver_questions(self, run: LoggedRun) -> None:
        config: Any = thread_config(run.thread_id)
        checkpoint = await self._saver.aget_tuple(config)
        interrupts = open_questions(checkpoint) if checkpoint is not None else {}
        async with self._slots:
            for key, value in interrupts.items():
                question = identify_question(run.thread_id, key, value)
                claim = f"webhook/{question['question_id']}"
                if await self._deliveries.claim(claim, _CLAIM_SECONDS):
                    await self._send(self.build_message(run, question), question["question_id"])
                    await self._deliveries.claim(claim, self._retention_seconds, renew=True)

    def build_message(self, run: LoggedRun, question: Mapping[str, Any]) -> dict[str, Any]:
        """Build the webhook message for a question, with thread content only if that is enabled."""
        thread_id = run.thread_id.removeprefix(self._threads.prefix_of(run.thread_id))
        message = {
            "type": "question",
            "question_id": question["question_id"],
            "link": f"{self._base_url}/?thread={quote(thread_id, safe='')}",
        }
        if self._settings.content:
            field_names = ("context_key", "capability", "description", "reason")
            steps = question.get("steps") or []
            message["steps"] = [{name: step.get(name) for name in field_names} for step in steps]
            message["user"] = run.request["caller"]["user_id"]
        return message

    async def _send(self, message: Mapping[str, Any], message_id: str) -> None:
        body = json.dumps(message).encode()
        for pause in _RETRY_DELAYS:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
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
        get_logger("serve", "webhook").error(
            "Question %s was not delivered: %s", message_id, problem
        )

    async def _post(self, body: bytes, message_id: str) -> int:
        """Post a signed message to the webhook URL and return the HTTP status.

        Redirects are not followed.

        Raises:
            OSError: The request failed.
        """
        import httpx

        now = str(int(time.time()))
        signature = hmac.digest(self._key, f"{message_id}.{now}.".encode() + body, hashlib.sha256)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": now,
            "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
        }
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as client,
                client.stream(
                    "POST", self._settings.url, content=body, headers=headers
                ) as response,
            ):
                return response.status_code
        except httpx.HTTPError as exc:
            raise OSError(f"{type(exc).__name__}: {exc}") from exc


def _decode_secret(secret: str) -> bytes:
    """Decode the signing key of the webhook.

    Text after the prefix ``whsec_`` is decoded as Base64. Any other secret is used as bytes.
    """
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as exc:
        raise ConfigurationError(
            "Invalid serve.webhook.secret: the text after 'whsec_' is not Base64.",
            fix="Copy the complete secret, or use any other text.",
        ) from exc
