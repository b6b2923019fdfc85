"""Agents and agent teams, each compiled to a LangGraph graph."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.agents.base import BaseAgent as BaseAgent
    from capgraph.agents.blackboard import Blackboard as Blackboard
    from capgraph.agents.blackboard import BlackboardEntry as BlackboardEntry
    from capgraph.agents.chain_of_thought import ChainOfThoughtAgent as ChainOfThoughtAgent
    from capgraph.agents.debate import DebateOrchestrator as DebateOrchestrator
    from capgraph.agents.discovery import AgentDiscoveryBehavior as AgentDiscoveryBehavior
    from capgraph.agents.handoffs import handoff as handoff
    from capgraph.agents.handoffs import handoff_tool as handoff_tool
    from capgraph.agents.memory import Memory as Memory
    from capgraph.agents.pipeline import PipelineOrchestrator as PipelineOrchestrator
    from capgraph.agents.plan_execute import PlanExecuteAgent as PlanExecuteAgent
    from capgraph.agents.react import ReActAgent as ReActAgent
    from capgraph.agents.reflexion import ReflexionAgent as ReflexionAgent
    from capgraph.agents.result import AgentResult as AgentResult
    from capgraph.agents.result import AgentStep as AgentStep
    from capgraph.agents.supervisor import SupervisorOrchestrator as SupervisorOrchestrator
    from capgraph.agents.swarm import SwarmOrchestrator as SwarmOrchestrator
    from capgraph.agents.teams import BaseOrchestrator as BaseOrchestrator
    from capgraph.agents.teams import OrchestratorResult as OrchestratorResult

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.agents.base": ("BaseAgent",),
        "capgraph.agents.blackboard": ("Blackboard", "BlackboardEntry"),
        "capgraph.agents.chain_of_thought": ("ChainOfThoughtAgent",),
        "capgraph.agents.debate": ("DebateOrchestrator",),
        "capgraph.agents.discovery": ("AgentDiscoveryBehavior",),
        "capgraph.agents.handoffs": ("handoff", "handoff_tool"),
        "capgraph.agents.memory": ("Memory",),
        "capgraph.agents.pipeline": ("PipelineOrchestrator",),
        "capgraph.agents.plan_execute": ("PlanExecuteAgent",),
        "capgraph.agents.react": ("ReActAgent",),
        "capgraph.agents.reflexion": ("ReflexionAgent",),
        "capgraph.agents.result": ("AgentResult", "AgentStep"),
        "capgraph.agents.supervisor": ("SupervisorOrchestrator",),
        "capgraph.agents.swarm": ("SwarmOrchestrator",),
        "capgraph.agents.teams": ("BaseOrchestrator", "OrchestratorResult"),
    },
)
