"""Pytest plugin of capgraph with fixtures for testing agents, loaded when capgraph is installed.

Every pytest run of the environment loads the plugin, even in projects without agents. It imports
capgraph only when a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from capgraph.registry import Registry
    from capgraph.testing import FakeClock


@pytest.fixture
def registry() -> Registry:
    """Return an empty registry with the built-in nodes."""
    from capgraph.registry import Registry

    return Registry()


@pytest.fixture
def fake_clock() -> FakeClock:
    """Return a clock that never waits, for ``build_graph(..., clock=...)``."""
    from capgraph.testing import FakeClock

    return FakeClock()
