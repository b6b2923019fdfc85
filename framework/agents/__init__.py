"""Agents that call tools, and teams of them; each compiles to a LangGraph graph."""

from framework.agents.blackboard import Blackboard, BlackboardEntry

__all__ = ["Blackboard", "BlackboardEntry"]
