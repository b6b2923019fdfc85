"""The hostile defaults of the test suite bite."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

from capgraph.base import capability_node
from capgraph.testing import run_capability
from capgraph.testing.clock import FakeClock
from tests.support.network import NetworkRefusedError


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(NetworkRefusedError, match=r"192\.0\.2\.1.*Fix:"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_a_name_look_up_is_refused() -> None:
    with pytest.raises(NetworkRefusedError, match=r"api\.openai\.com"):
        socket.getaddrinfo("api.openai.com", 443)


def test_loopback_is_allowed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()


async def test_a_blocking_call_under_the_framework_is_found(tmp_path: Path) -> None:
    @capability_node
    async def nap() -> None:
        """Sleep with the loop."""
        time.sleep(0.001)

    with pytest.raises(BlockingError):
        await run_capability(nap)


async def test_fake_sleeps_that_begin_together_overlap() -> None:
    import asyncio

    clock = FakeClock(start=0.0)
    await asyncio.gather(clock.sleep(5), clock.sleep(3))
    assert clock.now() == 5
    assert clock.sleeps == [5, 3]
    clock.advance(1)
    assert clock.monotonic() == 6
    with pytest.raises(ValueError, match="must be 0 or more"):
        clock.advance(-1)
