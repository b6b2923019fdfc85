"""Pytest plugin of capgraph: fixtures for testing agents, loaded when capgraph is installed.

Every pytest run of the environment loads it, also runs that have nothing to do with agents. It
imports nothing of capgraph until a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from capgraph.registry import Registry
    from capgraph.testing import FakeClock


@pytest.fixture
def registry() -> Registry:
    """An empty registry with the built-in nodes."""
    from capgraph.registry import Registry

    return Registry()


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock on which waiting takes no time; pass it to ``build_graph(..., clock=...)``."""
    from capgraph.testing import FakeClock

    return FakeClock()
