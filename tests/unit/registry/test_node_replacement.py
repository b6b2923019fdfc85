"""Tests of replacing a built-in node by a node of the same name."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import Registry, build_graph
from capgraph.base import ErrorSeverity
from tests.support.one_door import own_node, own_nodes


async def test_a_later_module_replaces_a_built_in_node(monkeypatch: pytest.MonkeyPatch) -> None:
    @own_node("error")
    async def own_error_node(state: Any) -> dict[str, Any]:
        return {"messages": [("ai", "Sorry.")]}

    registry = Registry(infrastructure=own_nodes(monkeypatch, own_error_node))
    assert registry.infrastructure["error"].description == "The error of a test"
    out = await build_graph(registry).ainvoke({"messages": [("user", "  ")]})
    assert out["messages"][-1].content == "Sorry."
    assert ErrorSeverity(out["control_error_info"]["classification"]["severity"])
