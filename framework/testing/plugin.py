"""Pytest plugin: fixtures for testing agents. Loaded by itself where capgraph is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# Everything of the framework is imported inside: the plugin is loaded in every pytest run of
# the environment, also in those that have nothing to do with agents.
if TYPE_CHECKING:
    from framework.registry import Registry
    from framework.testing.clock import FakeClock


@pytest.fixture
def registry() -> Registry:
    """An empty registry with the built-in nodes."""
    from framework.registry import Registry

    return Registry()


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock on which waiting takes no time; give it to ``build_graph(..., clock=...)``."""
    from framework.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def no_network() -> Iterator[None]:
    """Refuse every connection that leaves this machine, and so every hosted model."""
    from framework.testing.network import loopback_only

    with loopback_only():
        yield
