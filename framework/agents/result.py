"""What an agent did and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from capgraph.helpers.plain_data import to_plain

FINAL_ANSWER = "Final Answer"
"""The action of a step that ends the work."""


def to_conversation(task: str, answer: Any) -> list[BaseMessage]:
    """Return what stands in a conversation of a task and its answer."""
    text = answer if isinstance(answer, str) else json.dumps(to_plain(answer), ensure_ascii=False)
    return [HumanMessage(task), AIMessage(text)]


@dataclass(slots=True)
class AgentStep:
    """One thing that an agent did.

    Attributes:
        thought: What it thought.
        action: The tool it called, or what else it did.
        action_input: With what.
        observation: What came back.
        metadata: Further details.

    >>> AgentStep("I need the level.", "read_level", {"tank": 3}, "7 litres").action
    'read_level'
    """

    thought: str
    action: str
    action_input: dict[str, Any] = field(default_factory=dict)
    observation: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return the plain form, which stands in a graph's state."""
        return asdict(self)


@dataclass(slots=True)
class AgentResult:
    """What came of an agent's work.

    Attributes:
        output: The answer; of ``response_format`` an instance.
        steps: What it did, in order.
        metadata: ``execution_id``, and what an agent says besides; ``labels`` of what it has read.
        success: Whether the task was done; reaching a limit is no success.
        error: Why it was not.

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
        """Read what an agent or a behaviour gave: a result, what a graph left, or an output."""
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
        """Return what a graph leaves in its state."""
        output = self.output
        return {
            "output": output.model_dump(mode="json") if hasattr(output, "model_dump") else output,
            "steps": [step.to_plain() for step in self.steps],
            "metadata": self.metadata,
            "success": self.success,
            "error": self.error,
        }

    def with_output(self, output: Any) -> AgentResult:
        """Return it with another output, in its last step too."""
        steps = list(self.steps)
        if steps and steps[-1].observation == str(self.output):
            last, text = steps[-1], str(output)
            given = {"answer": text} if "answer" in last.action_input else last.action_input
            steps[-1] = AgentStep(last.thought, last.action, given, text, last.metadata)
        return AgentResult(output, steps, self.metadata, self.success, self.error)
