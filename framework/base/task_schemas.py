"""Input and output schemas of agents, workflows, and teams that run as graphs."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class TaskInput(TypedDict):
    """Input of a graph that executes a single task.

    Attributes:
        task: Text of the task, which must be understandable on its own.
    """

    task: str


class NamedInputs(TaskInput):
    """Input of a task graph that accepts named values in addition to the task.

    Attributes:
        inputs: Input values by name, for parameters and nested nodes.
    """

    inputs: NotRequired[dict[str, Any]]


class TaskOutput(TypedDict):
    """Output of a graph that executes a single task.

    Attributes:
        output: Result of the task as text or plain JSON data.
        success: True if the task was completed. Reaching a limit counts as a failure. The
            default is True.
        error: Reason for the failure, or None.
    """

    output: Any
    success: NotRequired[bool]
    error: NotRequired[str | None]
