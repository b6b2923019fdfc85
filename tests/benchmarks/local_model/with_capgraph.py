"""capgraph: the graph that ``build_graph`` makes of the capabilities and a chat model."""

from __future__ import annotations

import uuid
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import build_graph
from tests.benchmarks.local_model.cases import Domain
from tests.benchmarks.local_model.chat_model import chat_model
from tests.benchmarks.local_model.systems import MAX_ROUNDS, Ask, Messages, Reply

NO_PLAN = "no plan"
QUESTION = "question"
"""Kinds of failures: no plan was accepted; a person was asked for more than an approval."""


def prepare(domain: Domain, url: str, _: str = "") -> Ask:
    """Build the graph; approvals are granted."""
    graph = build_graph(
        list(domain.capabilities), model=chat_model(url), checkpointer=InMemorySaver()
    )

    async def ask(messages: Messages) -> Reply:
        config: Any = {"configurable": {"thread_id": uuid.uuid4().hex}}
        given: Any = {"messages": list(messages)}
        for _ in range(MAX_ROUNDS):
            out = await graph.ainvoke(given, config)
            interrupts = out.get("__interrupt__")
            if not interrupts:
                return Reply(_answer(out), _problem(out))
            if not all(_is_approval(interrupt.value) for interrupt in interrupts):
                return Reply(str(interrupts[0].value), QUESTION)
            given = Command(resume="approve")
        return Reply("", QUESTION)

    return ask


def _answer(out: dict[str, Any]) -> str:
    last = out["messages"][-1]
    return str(last.content) if last.type == "ai" else ""


def _problem(out: dict[str, Any]) -> str:
    """Return a kind of failure if the turn failed before any step.

    That no capability can do a request is an answer; the judge decides whether it is right.
    """
    outcome = out.get("execution_outcome") or {}
    code = outcome.get("code")
    if outcome.get("status") != "failed" or outcome.get("done") or code == "no_capability":
        return ""
    return f"{NO_PLAN} ({code})" if code else NO_PLAN


def _is_approval(question: Any) -> bool:
    return question.get("type") == "approval" and all(
        "approve" in step["decisions"] for step in question["steps"]
    )
