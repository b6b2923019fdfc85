"""Agent that reasons and answers in one model call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

from capgraph.agents.base import BaseAgent, RunOutput, RunState
from capgraph.agents.model_with_tools import ModelWithTools, require_model
from capgraph.agents.result import AgentStep, to_conversation
from capgraph.base.errors import ConfigurationError
from capgraph.helpers.argument_validation import validate_arguments

_SYSTEM_PROMPT = """\
Think step by step inside <thinking> and </thinking>; then write the answer, and nothing else."""
_MAX_ATTEMPTS = 3


class ChainOfThoughtAgent(BaseAgent):
    """Agent whose model reasons in ``<thinking>`` tags before it answers. It does not use tools.

    Args:
        model: Chat model that reasons and answers.
        system_prompt: System prompt that replaces the default.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.

    Raises:
        ConfigurationError: There is no model, or tools are passed, which this agent does not
            support.

    >>> import asyncio
    >>> from capgraph.testing import ScriptedModel
    >>> model = ScriptedModel(responses=["<thinking>Two and two.</thinking> 4"])
    >>> result = asyncio.run(ChainOfThoughtAgent(model).execute("2 + 2?"))
    >>> result.output, result.steps[0].thought
    ('4', 'Two and two.')
    """

    @validate_arguments
    def __init__(
        self, model: Any = None, *, system_prompt: str | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.model: Any = require_model(self, model)
        if self.tools:
            raise ConfigurationError(
                "ChainOfThoughtAgent does not call tools.", fix="Use ReActAgent instead."
            )
        self.system_prompt: str = system_prompt or _SYSTEM_PROMPT

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        asker = ModelWithTools(self)

        async def think(state: RunState) -> dict[str, Any]:
            messages: list[BaseMessage] = [*(state.get("conversation") or ())]
            messages.append(HumanMessage(state["task"]))
            attempts = 0
            while True:
                message = await asker.ask(messages, self.system_prompt)
                thought, answer = parse_thought(str(message.text))
                attempts += 1
                if answer or attempts == _MAX_ATTEMPTS:
                    return _end_run(state, thought, answer, attempts)
                messages += [
                    message,
                    HumanMessage("There is no answer. Write it behind </thinking>."),
                ]

        builder = StateGraph(RunState, output_schema=RunOutput)
        builder.add_node("think", think)
        builder.add_conditional_edges(START, _route_start, ["think", END])
        builder.add_edge("think", END)
        return builder


def _end_run(state: Mapping[str, Any], thought: str, answer: str, attempts: int) -> dict[str, Any]:
    error = None if answer else f"The model returned no answer in {attempts} attempts."
    step = AgentStep(thought, "chain_of_thought", {"task": state["task"]}, answer)
    return {
        "steps": [step.to_plain()],
        "metadata": {"thinking": thought},
        "output": answer or None,
        "success": bool(answer),
        "error": error,
        "conversation": to_conversation(state["task"], answer or error),
    }


async def _route_start(state: Mapping[str, Any]) -> str:
    return END if state.get("going_on") and state.get("success") is not None else "think"


def parse_thought(text: str) -> tuple[str, str]:
    """Split a model's text into its reasoning and its answer.

    If the ``<thinking>`` tag is not closed, the answer is empty.

    >>> parse_thought("<thinking>hm</thinking> 4"), parse_thought("4"), parse_thought("<thinking>hm")
    (('hm', '4'), ('', '4'), ('hm', ''))
    """
    tag = re.compile(r"<thinking>(.*?)(?:</thinking>|\Z)", re.DOTALL | re.IGNORECASE)
    thought = "\n".join(part.strip() for part in tag.findall(text))
    return thought, tag.sub("", text).strip()
