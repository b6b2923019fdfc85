"""Workflows: directed acyclic, state machine, event-driven; each compiles to a LangGraph graph."""

from framework.workflows.dag import DAGWorkflow
from framework.workflows.events import EventDrivenWorkflow, WorkflowEvent
from framework.workflows.load import load_workflow
from framework.workflows.nodes import (
    BaseWorkflow,
    NodeResult,
    WorkflowEdge,
    WorkflowNode,
    WorkflowResult,
)
from framework.workflows.state_machine import StateMachineWorkflow

__all__ = [
    "BaseWorkflow",
    "DAGWorkflow",
    "EventDrivenWorkflow",
    "NodeResult",
    "StateMachineWorkflow",
    "WorkflowEdge",
    "WorkflowEvent",
    "WorkflowNode",
    "WorkflowResult",
    "load_workflow",
]
