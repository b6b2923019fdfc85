"""A module of one's own replaces a built-in node by naming it again."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from framework import BaseInfrastructureNode, Registry, build_graph, infrastructure_node
from framework.base import ErrorSeverity


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("own_nodes")

    @infrastructure_node
    class OwnErrorNode(BaseInfrastructureNode):
        name = "error"
        description = "Reports in one word"

        @staticmethod
        async def execute(state: Any, **_: Any) -> dict[str, Any]:
            return {"messages": [("ai", "Sorry.")]}

    OwnErrorNode.__module__ = module.__name__
    module.OwnErrorNode = OwnErrorNode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_nodes", module)
    return "own_nodes"


async def test_a_later_module_replaces_a_built_in_node(own_module: str) -> None:
    registry = Registry(infrastructure=["infrastructure", own_module])
    assert registry.infrastructure["error"].description == "Reports in one word"
    out = await build_graph(registry).ainvoke({"messages": [("user", "  ")]})
    assert out["messages"][-1].content == "Sorry."
    assert ErrorSeverity(out["control_error_info"]["classification"]["severity"])
