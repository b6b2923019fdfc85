"""Input and output schemas of agents, workflows, and teams that run as graphs."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class TaskInput(TypedDict):
    """Input of a graph that executes a task.

    Attributes:
        task: The task, understandable without other text.
    """

    task: str


class NamedInputs(TaskInput):
    """A task with further input values.

    Attributes:
        inputs: Values by name, for parameters and nested nodes.
    """

    inputs: NotRequired[dict[str, Any]]


class TaskOutput(TypedDict):
    """Output of a graph that executes a task.

    Attributes:
        output: The result: text or plain JSON data.
        success: True if the task was completed. Reaching a limit counts as a failure. The default is
            True.
        error: Reason for the failure.
    """

    output: Any
    success: NotRequired[bool]
    error: NotRequired[str | None]
