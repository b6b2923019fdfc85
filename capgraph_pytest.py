"""Pytest plugin of capgraph: fixtures for testing agents. Loaded by itself where it is installed.

It is loaded in every pytest run of the environment, also in those that have nothing to do with
agents and in those of projects with a package ``framework`` or ``configs`` of their own. So its
name is its own, and it imports nothing of capgraph before a fixture is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from framework.registry import Registry
    from framework.testing.clock import FakeClock


@pytest.fixture
def registry() -> Registry:
    """An empty registry with the built-in nodes."""
    made: Registry = _load("framework.registry").Registry()
    return made


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock on which waiting takes no time; give it to ``build_graph(..., clock=...)``."""
    made: FakeClock = _load("framework.testing.clock").FakeClock()
    return made


def _load(module: str) -> Any:
    """Import a module of capgraph, and say so when its name is somebody else's."""
    framework = importlib.import_module("framework")
    if not hasattr(framework, "capability_node"):
        where = getattr(framework, "__file__", None) or list(framework.__path__)
        raise ImportError(
            f"A fixture of capgraph needs its package 'framework', and Python finds another one in"
            f" {where}. Fix: rename that package, or define this fixture in your conftest.py."
        )
    return importlib.import_module(module)
