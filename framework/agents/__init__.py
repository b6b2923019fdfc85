"""Agents that work on a task: one graph each, with one door."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.agents.base import BaseAgent
    from framework.agents.blackboard import Blackboard, BlackboardEntry
    from framework.agents.chain_of_thought import ChainOfThoughtAgent
    from framework.agents.debate import DebateOrchestrator
    from framework.agents.discovery import AgentDiscoveryBehavior
    from framework.agents.handing_over import handoff, handoff_tool
    from framework.agents.memory import Memory
    from framework.agents.pipeline import PipelineOrchestrator
    from framework.agents.plan_execute import PlanExecuteAgent
    from framework.agents.react import ReActAgent
    from framework.agents.reflexion import ReflexionAgent
    from framework.agents.result import AgentResult, AgentStep
    from framework.agents.supervisor import SupervisorOrchestrator
    from framework.agents.swarm import SwarmOrchestrator
    from framework.agents.teams import BaseOrchestrator, OrchestratorResult

__all__ = [
    "AgentDiscoveryBehavior",
    "AgentResult",
    "AgentStep",
    "BaseAgent",
    "BaseOrchestrator",
    "Blackboard",
    "BlackboardEntry",
    "ChainOfThoughtAgent",
    "DebateOrchestrator",
    "Memory",
    "OrchestratorResult",
    "PipelineOrchestrator",
    "PlanExecuteAgent",
    "ReActAgent",
    "ReflexionAgent",
    "SupervisorOrchestrator",
    "SwarmOrchestrator",
    "handoff",
    "handoff_tool",
]

_IN = {
    "AgentDiscoveryBehavior": "discovery",
    "BaseOrchestrator": "teams",
    "DebateOrchestrator": "debate",
    "OrchestratorResult": "teams",
    "PipelineOrchestrator": "pipeline",
    "SupervisorOrchestrator": "supervisor",
    "SwarmOrchestrator": "swarm",
    "handoff": "handing_over",
    "handoff_tool": "handing_over",
    "AgentResult": "result",
    "AgentStep": "result",
    "BaseAgent": "base",
    "Blackboard": "blackboard",
    "BlackboardEntry": "blackboard",
    "ChainOfThoughtAgent": "chain_of_thought",
    "Memory": "memory",
    "PlanExecuteAgent": "plan_execute",
    "ReActAgent": "react",
    "ReflexionAgent": "reflexion",
}


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_IN[name]}"), name)
