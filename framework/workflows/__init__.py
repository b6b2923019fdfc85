"""Workflows that compile to LangGraph graphs: directed acyclic, state machine, and event-driven."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.workflows.dag import DAGWorkflow as DAGWorkflow
    from capgraph.workflows.events import EventDrivenWorkflow as EventDrivenWorkflow
    from capgraph.workflows.events import WorkflowEvent as WorkflowEvent
    from capgraph.workflows.inputs import WorkflowNode as WorkflowNode
    from capgraph.workflows.load import load_workflow as load_workflow
    from capgraph.workflows.nodes import BaseWorkflow as BaseWorkflow
    from capgraph.workflows.nodes import NodeResult as NodeResult
    from capgraph.workflows.nodes import WorkflowEdge as WorkflowEdge
    from capgraph.workflows.nodes import WorkflowResult as WorkflowResult
    from capgraph.workflows.state_machine import StateMachineWorkflow as StateMachineWorkflow

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.workflows.dag": ("DAGWorkflow",),
        "capgraph.workflows.events": ("EventDrivenWorkflow", "WorkflowEvent"),
        "capgraph.workflows.inputs": ("WorkflowNode",),
        "capgraph.workflows.load": ("load_workflow",),
        "capgraph.workflows.nodes": (
            "BaseWorkflow",
            "NodeResult",
            "WorkflowEdge",
            "WorkflowResult",
        ),
        "capgraph.workflows.state_machine": ("StateMachineWorkflow",),
    },
)
