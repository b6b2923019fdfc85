"""Workflows: directed acyclic, state machine, event-driven; each compiles to a LangGraph graph."""

from configs.lazy import contents
from framework.workflows.dag import DAGWorkflow as DAGWorkflow
from framework.workflows.events import EventDrivenWorkflow as EventDrivenWorkflow
from framework.workflows.events import WorkflowEvent as WorkflowEvent
from framework.workflows.load import load_workflow as load_workflow
from framework.workflows.nodes import BaseWorkflow as BaseWorkflow
from framework.workflows.nodes import NodeResult as NodeResult
from framework.workflows.nodes import WorkflowEdge as WorkflowEdge
from framework.workflows.nodes import WorkflowNode as WorkflowNode
from framework.workflows.nodes import WorkflowResult as WorkflowResult
from framework.workflows.state_machine import StateMachineWorkflow as StateMachineWorkflow

__getattr__, __dir__ = contents(__name__)
