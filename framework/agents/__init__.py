"""Agents that work on a task: one graph each, with one door."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.agents.base import BaseAgent as BaseAgent
    from framework.agents.blackboard import Blackboard as Blackboard
    from framework.agents.blackboard import BlackboardEntry as BlackboardEntry
    from framework.agents.chain_of_thought import ChainOfThoughtAgent as ChainOfThoughtAgent
    from framework.agents.debate import DebateOrchestrator as DebateOrchestrator
    from framework.agents.discovery import AgentDiscoveryBehavior as AgentDiscoveryBehavior
    from framework.agents.handing_over import handoff as handoff
    from framework.agents.memory import Memory as Memory
    from framework.agents.pipeline import PipelineOrchestrator as PipelineOrchestrator
    from framework.agents.plan_execute import PlanExecuteAgent as PlanExecuteAgent
    from framework.agents.react import ReActAgent as ReActAgent
    from framework.agents.reflexion import ReflexionAgent as ReflexionAgent
    from framework.agents.result import AgentResult as AgentResult
    from framework.agents.result import AgentStep as AgentStep
    from framework.agents.supervisor import SupervisorOrchestrator as SupervisorOrchestrator
    from framework.agents.swarm import SwarmOrchestrator as SwarmOrchestrator
    from framework.agents.teams import BaseOrchestrator as BaseOrchestrator
    from framework.agents.teams import OrchestratorResult as OrchestratorResult

__getattr__, __dir__ = contents(__name__)
