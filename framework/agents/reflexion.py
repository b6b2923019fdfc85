"""Agent that critiques the answers of another agent and retries rejected ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NotRequired

from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph

from capgraph.adapters.task_graph import task_graph
from capgraph.agents.base import RUN_DEFAULTS, BaseAgent, RunOutput, RunState
from capgraph.agents.model_with_tools import ModelWithTools, require_model
from capgraph.agents.react import check_minimum
from capgraph.agents.result import FINAL_ANSWER, AgentStep
from capgraph.helpers.argument_validation import validate_arguments

_CRITIQUE_PROMPT = """\
Does this answer do the task, wholly and correctly? Answer with the one word YES; or with NO: and
what is wrong with it.

Task: {task}

Answer: {answer}"""
_RETRY_PROMPT = """\
{task}

An earlier answer was: {answer}
It was not good enough: {critique}
Give a better one."""


class ReflexionState(RunState):
    """State of the reflection rounds."""

    answer: NotRequired[dict[str, Any]]
    critiques: NotRequired[list[str]]


class ReflexionAgent(BaseAgent):
    """Agent whose model critiques an inner agent's answers and retries rejected ones.

    Args:
        inner_agent: Agent that answers. Any object that can be a workflow node is accepted.
        max_reflections: Maximum number of retries after a rejected answer.
        model: Model that critiques the answers. Defaults to the inner agent's model.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.

    Raises:
        ConfigurationError: ``max_reflections`` is below 0, or there is no model.

    >>> import asyncio
    >>> from capgraph.agents import ChainOfThoughtAgent
    >>> from capgraph.testing import ScriptedModel
    >>> model = ScriptedModel(responses=["5", "NO: it is less", "4", "YES"])
    >>> asyncio.run(ReflexionAgent(ChainOfThoughtAgent(model)).execute("2 + 2?")).output
    '4'
    """

    @validate_arguments
    def __init__(
        self, inner_agent: Any, max_reflections: int = 2, *, model: Any = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.inner_agent = inner_agent
        self.model: Any = require_model(self, model or getattr(inner_agent, "model", None))
        self.max_reflections: int = check_minimum(self, 0, max_reflections=max_reflections)

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        inner = task_graph(self.inner_agent, services=self.services)
        asker = ModelWithTools(self)

        async def begin(state: ReflexionState) -> dict[str, Any]:
            result = await inner.ainvoke({"task": state["task"]})
            return {**RUN_DEFAULTS, "critiques": [], **_record_answer([], result)}

        async def again(state: ReflexionState) -> dict[str, Any]:
            previous, last_critique = state["answer"]["output"], state["critiques"][-1]
            task = _RETRY_PROMPT.format(task=state["task"], answer=previous, critique=last_critique)
            return _record_answer(state["steps"], await inner.ainvoke({"task": task}))

        async def judge(state: ReflexionState) -> dict[str, Any]:
            answer = state["answer"]
            critique = answer["error"]
            if answer["success"]:
                prompt = _CRITIQUE_PROMPT.format(task=state["task"], answer=answer["output"])
                critique = parse_critique(str((await asker.ask([HumanMessage(prompt)])).text))
            return self._apply_critique(state, critique)

        builder = StateGraph(ReflexionState, output_schema=RunOutput)
        builder.add_node("begin", begin)
        builder.add_node("again", again)
        builder.add_node("judge", judge)
        builder.add_conditional_edges(START, _route_start, ["begin", "judge", "again", END])
        builder.add_edge("begin", "judge")
        builder.add_edge("again", "judge")
        builder.add_conditional_edges("judge", _route_next, ["judge", "again", END])
        return builder

    def _apply_critique(self, state: Mapping[str, Any], critique: str | None) -> dict[str, Any]:
        answer, steps = state["answer"], list(state["steps"])
        text = str(answer["output"])
        critiques = [*state["critiques"], *([] if critique is None else [critique])]
        update = {"metadata": {"critiques": critiques}, "critiques": critiques}
        if critique is None:
            steps.append(AgentStep("", FINAL_ANSWER, {"answer": answer["output"]}, text).to_plain())
            return {**update, "steps": steps, "output": answer["output"], "success": True}
        steps.append(AgentStep("", "critique", {"answer": answer["output"]}, critique).to_plain())
        if len(critiques) <= self.max_reflections:
            return {**update, "steps": steps, "answer": {**answer, "judged": True}}
        error = f"The run reached max_reflections={self.max_reflections}: {critique}"
        return {
            **update,
            "steps": steps,
            "output": answer["output"],
            "success": False,
            "error": error,
        }


def _record_answer(steps: list[dict[str, Any]], result: Mapping[str, Any]) -> dict[str, Any]:
    success = result.get("success") is not False
    answer = {"output": result["output"], "success": success, "error": result.get("error")}
    if not success:
        answer["error"] = answer["error"] or "It gave no answer."
    new_steps = list(result.get("steps") or ())
    if not new_steps:
        new_steps = [AgentStep("", "answer", {}, str(result["output"])).to_plain()]
    return {"answer": answer, "steps": [*steps, *new_steps]}


async def _route_start(state: Mapping[str, Any]) -> str:
    return await _route_next(state) if state.get("going_on") else "begin"


async def _route_next(state: Mapping[str, Any]) -> str:
    if state.get("success") is not None:
        return END
    return "again" if state["answer"].get("judged") else "judge"


def parse_critique(text: str) -> str | None:
    """Return the objection in a critique, or None if the critique approves the answer.

    >>> parse_critique("YES."), parse_critique("NO: too short"), parse_critique("Yes, but it is late")
    (None, 'too short', 'Yes, but it is late')
    >>> parse_critique("Yes: all of it"), parse_critique("Yes: but it is late")
    (None, 'Yes: but it is late')
    """
    critique = text.strip()
    if re.fullmatch(
        r"yes(\W*|:(?!\s*(but|however|except)\b).*)", critique, re.IGNORECASE | re.DOTALL
    ):
        return None
    rejection = re.fullmatch(r"no\b\W*(.*)", critique, re.IGNORECASE | re.DOTALL)
    return (rejection[1].strip() if rejection is not None else critique) or "It was not accepted."
