"""Function that loads workflows from YAML files, and the models of the file format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.suggestions import suggest_fix
from capgraph.configs.yaml_files import format_validation_errors, read_yaml
from capgraph.engine.configured_objects import import_attribute
from capgraph.engine.services import Services
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.conditions import MISSING, describe_condition, iter_condition_errors
from capgraph.planning.conditions import evaluate_condition as condition_holds
from capgraph.workflows.dag import DAGWorkflow
from capgraph.workflows.events import EventDrivenWorkflow
from capgraph.workflows.inputs import WorkflowNode
from capgraph.workflows.nodes import BaseWorkflow, NodeResult, WorkflowEdge
from capgraph.workflows.state_machine import StateMachineWorkflow


@validate_arguments
def load_workflow(
    file: str | os.PathLike[str],
    agents: Mapping[str, Any] | None = None,
    *,
    services: Services | None = None,
) -> BaseWorkflow:
    """Load a workflow from a YAML file.

    The ``kind`` of a workflow is ``dag`` (``nodes``, ``edges``), ``state_machine`` (``states``,
    ``transitions``, ``initial_state``, ``terminal_states``), or ``event_driven`` (``handlers``,
    ``terminal_event``). A ``when`` condition has the same form as the condition of a plan step.
    The condition can test ``output``, a field such as ``output.score``, ``success``, or
    ``error``.

    Args:
        file: Path of the file.
        agents: Agents by the names used in the file. They extend the ``agents`` section of the
            file (``name: "module:attribute"``).
        services: Services for the capabilities and tools among the agents.

    Raises:
        ConfigurationError: The file is invalid, refers to an unknown agent, or defines nodes
            that are incompatible.

    >>> import asyncio, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flow.yml"
    >>> _ = path.write_text('''
    ... kind: dag
    ... nodes: [{id: first, agent: up}, {id: second, agent: up, inputs: {task: first}}]
    ... edges: [{source: first, target: second, when: {of: output, is: "!=", than: ""}}]
    ... ''')
    >>> flow = load_workflow(path, {"up": lambda task: task.upper() + "!"})
    >>> asyncio.run(flow.run({"task": "hello"})).final_output
    'HELLO!!'
    """
    try:
        document = _DOCUMENT.validate_python(read_yaml(file))
    except ValidationError as exc:
        raise ConfigurationError(
            f"The workflow file {os.fspath(file)!r} is invalid:\n{format_validation_errors(exc)}"
        ) from exc
    agents_by_name = {
        n: import_attribute(path, f"agents.{n}") for n, path in document.agents.items()
    } | {**(agents or {})}

    def agent(name: str) -> Any:
        if name not in agents_by_name:
            raise ConfigurationError(
                f"The workflow file {os.fspath(file)!r} names the agent {name!r}, which is"
                " unknown.",
                fix=f"{suggest_fix(name, candidates=agents_by_name)} Pass other agents in agents=.",
            )
        return agents_by_name[name]

    workflow = document.build(agent, {"services": services, "name": document.name})
    workflow.compile()
    return workflow


def _validate_condition(condition: Any) -> Any:
    for path, _, cause in iter_condition_errors(condition):
        raise ValueError(f"{'.'.join(map(str, path)) or 'it'} {cause}")
    return condition


_Condition = Annotated[
    dict[str, Any] | None, BeforeValidator(lambda c: c and _validate_condition(c))
]


def _build_condition(condition: dict[str, Any] | None) -> Callable[[NodeResult], bool] | None:
    if condition is None:
        return None

    def is_met(result: NodeResult) -> bool:
        def read_path(path: str) -> Any:
            value: Any = {"output": result.output, "success": result.success, "error": result.error}
            for field in path.split("."):
                if not isinstance(value, Mapping) or field not in value:
                    return MISSING
                value = value[field]
            return value

        return condition_holds(condition, read_path) is True

    is_met.__name__ = describe_condition(condition)
    return is_met


class _DocumentModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class _Document(_DocumentModel):
    name: str | None = None
    agents: dict[str, str] = Field(default_factory=dict)


class _Node(_DocumentModel):
    id: str
    agent: str
    inputs: dict[str, str] = Field(default_factory=dict)
    outputs: dict[str, str] = Field(default_factory=dict)


class _Edge(_DocumentModel):
    source: str
    target: str
    when: _Condition = None


class _Dag(_Document):
    kind: Literal["dag"]
    nodes: list[_Node]
    edges: list[_Edge] = Field(default_factory=list)

    def build(self, find_agent: Callable[[str], Any], options: dict[str, Any]) -> BaseWorkflow:
        return DAGWorkflow(
            [WorkflowNode(n.id, find_agent(n.agent), n.inputs, n.outputs) for n in self.nodes],
            [WorkflowEdge(e.source, e.target, _build_condition(e.when)) for e in self.edges],
            **options,
        )


class _Transition(_DocumentModel):
    to: str
    when: _Condition = None


class _State(_DocumentModel):
    agent: str
    inputs: dict[str, str] = Field(default_factory=dict)
    outputs: dict[str, str] = Field(default_factory=dict)


class _StateMachine(_Document):
    kind: Literal["state_machine"]
    states: dict[str, str | _State]
    transitions: dict[str, list[_Transition]] = Field(default_factory=dict)
    initial_state: str
    terminal_states: list[str] = Field(default_factory=list)
    max_transitions: int = 50

    def build(self, find_agent: Callable[[str], Any], options: dict[str, Any]) -> BaseWorkflow:
        states = {
            state: _State(agent=state_agent) if isinstance(state_agent, str) else state_agent
            for state, state_agent in self.states.items()
        }
        return StateMachineWorkflow(
            {
                state: WorkflowNode(
                    state, find_agent(state_agent.agent), state_agent.inputs, state_agent.outputs
                )
                for state, state_agent in states.items()
            },
            {
                state: [
                    (_build_condition(transition.when), transition.to) for transition in transitions
                ]
                for state, transitions in self.transitions.items()
            },
            self.initial_state,
            self.terminal_states,
            max_transitions=self.max_transitions,
            **options,
        )


class _Handler(_DocumentModel):
    event: str
    agent: str
    gives: str | None = None


class _EventDriven(_Document):
    kind: Literal["event_driven"]
    handlers: list[_Handler]
    terminal_event: str | None = None
    max_events: int = 100

    def build(self, find_agent: Callable[[str], Any], options: dict[str, Any]) -> BaseWorkflow:
        workflow = EventDrivenWorkflow(self.max_events, self.terminal_event, **options)
        for handler in self.handlers:
            workflow.on(handler.event, find_agent(handler.agent), gives=handler.gives)
        return workflow


_DOCUMENT: TypeAdapter[_Dag | _StateMachine | _EventDriven] = TypeAdapter(
    Annotated[_Dag | _StateMachine | _EventDriven, Field(discriminator="kind")]
)
