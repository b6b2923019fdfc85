"""Results and steps of agent runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from capgraph.helpers.plain_data import to_plain
from capgraph.langgraph_compat import exclude_from_message_stream

FINAL_ANSWER = "Final Answer"
"""Action name of the step that ends a run."""


def to_conversation(task: str, answer: Any) -> list[BaseMessage]:
    """Convert a task and its answer to a pair of conversation messages."""
    text = answer if isinstance(answer, str) else json.dumps(to_plain(answer), ensure_ascii=False)
    question = HumanMessage(task)
    exclude_from_message_stream(question)  # the task is the caller's own message
    return [question, AIMessage(text)]


@dataclass(slots=True)
class AgentStep:
    """Single step of an agent run, with a thought, an action, and the result.

    Attributes:
        thought: Reasoning text of the model.
        action: Name of the called tool, or of another action, such as the final answer.
        action_input: Arguments of the action.
        observation: Result of the action as text.
        metadata: Additional details about the step.

    >>> AgentStep("I need the level.", "read_level", {"tank": 3}, "7 litres").action
    'read_level'
    """

    thought: str
    action: str
    action_input: dict[str, Any] = field(default_factory=dict)
    observation: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Convert the agent step to plain data for a graph's state."""
        return asdict(self)


@dataclass(slots=True)
class AgentResult:
    """Result of an agent run.

    Attributes:
        output: Answer, which is an instance of ``response_format`` if the agent has one.
        steps: Steps of the run, in order.
        metadata: ``execution_id``, additional entries from the agent, and the ``labels`` of the
            data that it read.
        success: True if the task was completed. Reaching a limit is not a success.
        error: Reason for the failure, or None.

    >>> AgentResult("4").success
    True
    """

    output: Any
    steps: list[AgentStep] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    success: bool = True
    error: str | None = None

    @classmethod
    def coerce(cls, value: Any) -> AgentResult:
        """Convert a value to an agent result."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping) and "output" in value:
            success = value.get("success")
            return cls(
                output=value["output"],
                steps=[AgentStep(**step) for step in value.get("steps") or ()],
                metadata=dict(value.get("metadata") or {}),
                success=True if success is None else bool(success),
                error=value.get("error"),
            )
        if hasattr(value, "output") and hasattr(value, "success"):
            return cls(value.output, success=bool(value.success), error=value.error)
        return cls(value)

    def to_plain(self) -> dict[str, Any]:
        """Convert the agent result to plain data for a graph's state."""
        output = self.output
        return {
            "output": output.model_dump(mode="json") if hasattr(output, "model_dump") else output,
            "steps": [step.to_plain() for step in self.steps],
            "metadata": self.metadata,
            "success": self.success,
            "error": self.error,
        }

    def with_output(self, output: Any) -> AgentResult:
        """Return a copy of the agent result with a different output.

        If the last step's observation was the old output, it is replaced, too.
        """
        steps = list(self.steps)
        if steps and steps[-1].observation == str(self.output):
            last_step, text = steps[-1], str(output)
            action_input = (
                {"answer": text} if "answer" in last_step.action_input else last_step.action_input
            )
            steps[-1] = AgentStep(
                last_step.thought, last_step.action, action_input, text, last_step.metadata
            )
        return AgentResult(output, steps, self.metadata, self.success, self.error)
