"""Isolation of the test suite: blocked network access and blocking calls."""

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


def test_external_addresses_are_blocked() -> None:
    with pytest.raises(NetworkRefusedError, match=r"192\.0\.2\.1.*Fix:"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_name_lookup_is_blocked() -> None:
    with pytest.raises(NetworkRefusedError, match=r"api\.openai\.com"):
        socket.getaddrinfo("api.openai.com", 443)


def test_loopback_is_allowed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()


async def test_blocking_call_is_detected(tmp_path: Path) -> None:
    @capability_node
    async def nap() -> None:
        """Sleep with the loop."""
        time.sleep(0.001)

    with pytest.raises(BlockingError):
        await run_capability(nap)


async def test_concurrent_fake_sleeps_overlap() -> None:
    import asyncio

    clock = FakeClock(start=0.0)
    await asyncio.gather(clock.sleep(5), clock.sleep(3))
    assert clock.now() == 5
    assert clock.sleeps == [5, 3]
    clock.advance(1)
    assert clock.monotonic() == 6
    with pytest.raises(ValueError, match="must be 0 or more"):
        clock.advance(-1)
