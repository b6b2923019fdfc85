"""What agents, workflows and teams share when they are graphs: a task goes in, an output comes out."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class TaskInput(TypedDict):
    """What a graph that works on a task is given.

    Attributes:
        task: What is to be done, complete in itself.
    """

    task: str


class NamedInputs(TaskInput):
    """A task with further values.

    Attributes:
        inputs: The values by name, for parameters and for nested nodes.
    """

    inputs: NotRequired[dict[str, Any]]


class TaskOutput(TypedDict):
    """What a graph that works on a task leaves behind.

    Attributes:
        output: What came of it; text, or plain JSON-able data.
        success: Whether the task was done; reaching a limit is no success. Missing means yes.
        error: Why not.
    """

    output: Any
    success: NotRequired[bool]
    error: NotRequired[str | None]
