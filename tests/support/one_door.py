"""What the tests of the one door share: a payment that counts itself, and ways to be refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, ConfigDict

from capgraph import (
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityContext,
    Registry,
    capability_node,
    infrastructure_node,
)
from capgraph.base.errors import CapgraphError
from capgraph.state import AgentState


class Receipt(CapabilityContext):
    """What a payment leaves."""

    paid: int

    def get_summary(self) -> str:
        return f"Paid {self.paid}."


class Reading(CapabilityContext):
    """A number."""

    value: float

    def get_summary(self) -> str:
        return f"The value is {self.value:g}."


class Amount(BaseModel):
    """Parameters of a payment."""

    model_config = ConfigDict(extra="forbid")

    amount: int = 5
    order: str = "A"


def payer(paid: list[Any], **declared: Any) -> Any:
    """Return a payment that acts once; ``paid`` collects the amounts, keywords declare more."""

    async def execute(self: Any) -> Receipt:
        paid.append(self.parameters.amount)
        return Receipt(paid=self.parameters.amount)

    body = {
        "name": "pay",
        "description": "Pay an amount",
        "provides": ["RECEIPT"],
        "effect": "once",
        "Parameters": Amount,
        "execute": execute,
        "__module__": __name__,
    }
    return capability_node(type("Pay", (BaseCapability,), {**body, **declared}))


def measurer(runs: list[Any], **declared: Any) -> Any:
    """Return a harmless capability; ``runs`` collects the keys of its steps."""

    async def execute(self: Any) -> Reading:
        runs.append(self.step.get("context_key"))
        return Reading(value=7)

    body = {
        "name": "measure",
        "description": "Measure the value",
        "provides": ["READING"],
        "execute": execute,
        "__module__": __name__,
    }
    return capability_node(type("Measure", (BaseCapability,), {**body, **declared}))


def breaker(name: str, error: BaseException, runs: list[Any] | None = None, **declared: Any) -> Any:
    """Return a capability that always fails with one error."""

    async def execute(self: Any) -> Any:
        if runs is not None:
            runs.append(self.step.get("context_key"))
        raise error

    body = {
        "name": name,
        "description": f"Always fails: {name}",
        "execute": execute,
        "get_retry_policy": staticmethod(
            lambda: {"max_attempts": 3, "delay_seconds": 0.0, "backoff_factor": 1.0}
        ),
        "__module__": __name__,
    }
    return capability_node(type(name.title(), (BaseCapability,), {**body, **declared}))


def registered(*items: Any, **options: Any) -> Registry:
    """Return a registry that holds ``items``."""
    registry = Registry(**options)
    for item in items:
        registry.register(item)
    return registry


def said(out: dict[str, Any]) -> str:
    """Return the last message, which must be the agent's."""
    assert out["messages"][-1].type == "ai", "the turn ended without a message"
    return str(out["messages"][-1].content)


def status(out: dict[str, Any]) -> str:
    """Return how the turn ended."""
    return str((out.get("execution_outcome") or {}).get("status"))


def names_one_of(error: BaseException, *names: str) -> None:
    """Assert that an error's text holds one of ``names``."""
    assert any(name in str(error) for name in names), f"none of {names} is named in: {error}"


async def refused(run: Awaitable[Any], *names: str) -> str:
    """Assert that a call is refused with the project's own error, which names all of ``names``."""
    with pytest.raises(CapgraphError) as caught:
        await run
    text = str(caught.value)
    for name in names:
        assert name in text, f"{name!r} is not named in: {text}"
    return text


async def declined(run: Awaitable[Any], *names: str) -> str:
    """Assert that a call is refused, or its turn ends failed; either text names all ``names``."""
    try:
        out = await run
    except CapgraphError as exc:
        text = str(exc)
    else:
        info = out.get("control_error_info") or {}
        assert out.get("control_has_error") or status(out) in {"failed", "stopped"}, out
        last = out["messages"][-1].content if out.get("messages") else ""
        text = f"{info.get('user_message')} {last}"
    for name in names:
        assert name in text, f"{name!r} is not named in: {text}"
    return text


def own_node(role: str, **places: str) -> Callable[[Any], Any]:
    """Turn a coroutine of the state into an infrastructure node; ``before=`` or ``after=`` place it."""

    def made(execute: Any) -> Any:
        async def run(state: Any, **_: Any) -> Any:
            return await execute(state)

        body = {
            "name": role,
            "description": f"The {role} of a test",
            "execute": staticmethod(run),
            "__module__": execute.__module__,
        }
        return infrastructure_node(
            type(execute.__name__, (BaseInfrastructureNode,), {**body, **places})
        )

    return made


def own_nodes(monkeypatch: pytest.MonkeyPatch, *nodes: Any) -> list[str]:
    """Return the infrastructure modules of a house in which ``nodes`` replace built-in ones."""
    module = types.ModuleType("nodes_of_ones_own")
    for node in nodes:
        node.__module__ = module.__name__
        setattr(module, node.__name__, node)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ["capgraph.infrastructure", module.__name__]


def in_a_row(schema: Any = AgentState, saver: Any = None, **nodes: Any) -> Any:
    """Compile a graph whose nodes run one after the other."""
    builder = StateGraph(schema)
    before = START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def bound(*items: Any, **options: Any) -> Any:
    """Bind capabilities to services for nodes of one's own graph."""
    from capgraph import bind

    return bind(registered(*items), **options)


def planned(*steps: dict[str, Any]) -> dict[str, Any]:
    """Return an input that brings a plan."""
    return {"messages": [("user", "Do it")], "planning_execution_plan": {"steps": list(steps)}}
