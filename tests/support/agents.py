"""Tools, calls and behaviours for agents."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph.agents import AgentResult
from capgraph.behaviors import BaseBehavior


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(why: str) -> str:
    """Fail."""
    raise RuntimeError(why)


def call(name: str, id: str = "1", /, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "id": id}


def calls(*several: dict[str, Any], said: str = "") -> AIMessage:
    return AIMessage(said, tool_calls=[{**one, "type": "tool_call"} for one in several])


PAID: Counter[str] = Counter()


@pytest.fixture
def nobody_paid() -> None:
    """Forget what was paid before a test."""
    PAID.clear()


def pay(whom: str) -> str:
    """Pay somebody."""
    PAID[whom] += 1
    return f"paid {whom}"


SUM = [calls(call("add", a=2, b=2), said="I add."), "It is 4."]
"""A script: one call of ``add``, then the answer."""


class Seen(BaseBehavior):
    """Notes which hooks are called, with what."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.contexts: list[Any] = []
        self.results: list[AgentResult] = []
        self.errors: list[Exception] = []

    async def before_execute(self, context: Any) -> None:
        self.hooks.append("before")
        self.contexts.append(context)

    async def after_execute(self, context: Any, result: Any) -> None:
        self.hooks.append("after")
        self.results.append(result)

    async def on_error(self, context: Any, error: Exception) -> None:
        self.hooks.append("error")
        self.errors.append(error)
