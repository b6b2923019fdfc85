"""An agent that plans first, then works on one step after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NotRequired

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from capgraph.agents.base import RUN_DEFAULTS, BaseAgent, RunOutput, RunState
from capgraph.agents.model_with_tools import ModelWithTools, require_model
from capgraph.agents.react import ReActAgent, check_minimum
from capgraph.agents.result import AgentStep
from capgraph.agents.text_protocol import parse_json
from capgraph.base.errors import ModelError
from capgraph.helpers.argument_validation import validate_arguments

_PLAN_PROMPT = """\
Split the task into clear steps that are done one after the other, at most {most}. Answer with a
JSON array of texts, one for each step, and with nothing else.

Task: {task}"""
_REPLAN_PROMPT = """

Done so far:
{done}

The next step did not work: {trouble}
Give only the steps that are still to be done, in another way."""
_STEP_PROMPT = """\
You work on one step of a plan. Do this step only, and answer with its result.

Task: {task}

Plan:
{plan}

Results so far:
{done}

Step {number}: {step}"""


class PlanState(RunState):
    """The state of a plan that is worked on."""

    plan: NotRequired[list[str]]
    results: NotRequired[list[str]]
    trouble: NotRequired[str | None]


class PlanExecuteAgent(BaseAgent):
    """Has its model write a plan, then work on each step with the tools, with the results so far.

    When a step fails, because its calls of tools are used up or the model gives nothing that can be
    used, the rest is planned anew, once; ``metadata["replanned"]`` says why. The output is that of
    the last step.

    Args:
        model: A chat model.
        max_plan_steps: Most steps of a plan.
        max_tool_calls_per_step: Most calls of tools in one step; 0 for none.
        system_prompt: What the model is told first at each step.
        **options: As for :class:`~capgraph.agents.base.BaseAgent`.

    Raises:
        ConfigurationError: A number is too low, or there is no model.

    >>> import asyncio
    >>> from capgraph.testing import ScriptedModel
    >>> model = ScriptedModel(responses=['["Think of a number", "Double it"]', "4", "8"])
    >>> asyncio.run(PlanExecuteAgent(model).execute("Give me a number.")).output
    '8'
    """

    @validate_arguments
    def __init__(
        self,
        model: Any = None,
        *,
        max_plan_steps: int = 10,
        max_tool_calls_per_step: int = 3,
        system_prompt: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.model: Any = require_model(self, model)
        self.max_plan_steps: int = check_minimum(self, 1, max_plan_steps=max_plan_steps)
        self.max_tool_calls_per_step: int = check_minimum(
            self, 0, max_tool_calls_per_step=max_tool_calls_per_step
        )
        self.system_prompt: str = system_prompt or ""

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        worker = _StepWorker(self)._build().compile(name=f"{self.agent_id} step")
        asker = ModelWithTools(self)

        async def step(state: PlanState, runtime: Runtime[Any]) -> dict[str, Any]:
            found = await worker.ainvoke({"task": self._step_prompt(state)})
            return self._step_update(state, found)

        builder = StateGraph(PlanState, output_schema=RunOutput)
        builder.add_node("plan", partial(self._plan, asker))
        builder.add_node("replan", partial(self._replan, asker))
        builder.add_node("step", step)
        builder.add_conditional_edges(START, _route_start, ["plan", "replan", "step", END])
        for node in ("plan", "replan", "step"):
            builder.add_conditional_edges(node, _route_next, ["replan", "step", END])
        return builder

    async def _plan(self, model: ModelWithTools, state: Mapping[str, Any]) -> dict[str, Any]:
        clean = {**RUN_DEFAULTS, "results": [], "trouble": None}
        prompt = _PLAN_PROMPT.format(most=self.max_plan_steps, task=state["task"])
        steps, error = self._parse_plan(await model.ask([HumanMessage(prompt)], self.system_prompt))
        if error is not None:
            return {**clean, "plan": steps, "success": False, "error": error}
        return {**clean, "plan": steps, "metadata": {"plan": steps}}

    async def _replan(self, model: ModelWithTools, state: Mapping[str, Any]) -> dict[str, Any]:
        trouble, done = state["trouble"], state["results"]
        prompt = _PLAN_PROMPT.format(most=self.max_plan_steps, task=state["task"])
        prompt += _REPLAN_PROMPT.format(done=_numbered_list(done), trouble=trouble)
        try:
            rest, error = self._parse_plan(
                await model.ask([HumanMessage(prompt)], self.system_prompt)
            )
        except ModelError as exc:
            rest, error = [], str(exc)
        known = {**state["metadata"], "replanned": trouble}
        if error is not None:
            told = f"{trouble} No other plan was found: {error}"
            return {"metadata": known, "success": False, "error": told}
        plan = [*state["plan"][: len(done)], *rest]
        made = AgentStep(str(trouble), "replan", {"done": len(done)}, json.dumps(rest))
        return {
            "plan": plan,
            "trouble": None,
            "metadata": {**known, "plan": plan},
            "steps": [*state["steps"], made.to_plain()],
        }

    def _parse_plan(self, message: AIMessage) -> tuple[list[str], str | None]:
        """Return the steps of a plan, or why it is none."""
        steps = _parse_steps(str(message.text))
        if not steps:
            return [], f"The model gave no plan: {str(message.text)[:200]!r}."
        if len(steps) > self.max_plan_steps:
            return (
                steps,
                f"The plan has {len(steps)} steps, and max_plan_steps={self.max_plan_steps}.",
            )
        return steps, None

    def _step_prompt(self, state: Mapping[str, Any]) -> str:
        number = len(state["results"])
        return _STEP_PROMPT.format(
            task=state["task"],
            plan=_numbered_list(state["plan"]),
            done=_numbered_list(state["results"]),
            number=number + 1,
            step=state["plan"][number],
        )

    def _step_update(self, state: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the work on a step means for the state."""
        number = len(state["results"]) + 1
        step = state["plan"][number - 1]
        output, error = result["output"], result["error"]
        made = AgentStep(
            f"Step {number} of the plan",
            "plan_step",
            {"step": step},
            str(output if error is None else error),
            {"steps": result["steps"], **({} if error is None else {"error": True})},
        )
        update: dict[str, Any] = {"steps": [*state["steps"], made.to_plain()]}
        if error is not None:
            trouble = f"Step {number} ({step!r}) failed: {error}"
            if "replanned" not in state["metadata"]:
                return {**update, "trouble": trouble}
            told = f"{trouble} The plan had been made anew already."
            return {**update, "output": output, "success": False, "error": told}
        update["results"] = [*state["results"], str(output)]
        if number == len(state["plan"]):
            update |= {"output": output, "success": True, "error": None}
        return update


class _StepWorker(ReActAgent):
    """Works on one step, with so many calls of tools."""

    def __init__(self, agent: PlanExecuteAgent) -> None:
        most = agent.max_tool_calls_per_step
        super().__init__(
            agent.model,
            tools=agent.tools if most else [],
            services=agent.services,
            behaviors=agent.behaviors,
            system_prompt=agent.system_prompt,
            agent_id=agent.agent_id,
        )
        self._max_calls = most

    def _limit_error(self, state: Mapping[str, Any], calls: int | None = None) -> str | None:
        used = sum(message.type == "tool" for message in state["messages"])
        if calls is None or used + calls <= self._max_calls:
            return None
        return (
            f"Its calls of tools are used up (max_tool_calls_per_step={self._max_calls}), and the model"
            " asked for more."
        )


async def _route_start(state: Mapping[str, Any]) -> str:
    return await _route_next(state) if state.get("going_on") else "plan"


async def _route_next(state: Mapping[str, Any]) -> str:
    if state.get("success") is not None:
        return END
    return "replan" if state.get("trouble") is not None else "step"


def _numbered_list(items: list[str]) -> str:
    return "\n".join(f"{n}. {item}" for n, item in enumerate(items, start=1)) or "None yet."


def _parse_steps(text: str) -> list[str]:
    r"""Return the steps of a plan: a JSON array, or one in each line.

    >>> _parse_steps('Here it is: ["a", "b"]'), _parse_steps("1. a\n2) b"), _parse_steps('{"steps": ["a"]}')
    (['a', 'b'], ['a', 'b'], ['a'])
    """
    found = parse_json(text)
    if isinstance(found, str) and (inside := re.search(r"\[.*\]", text, re.DOTALL)):
        found = parse_json(inside.group())
    if isinstance(found, dict):
        found = next((value for value in found.values() if isinstance(value, list)), [])
    if isinstance(found, str):
        found = [re.sub(r"^\s*(?:[-*•]|\d+[.)])\s*", "", line) for line in found.splitlines()]
    steps = [item if isinstance(item, str) else json.dumps(item) for item in found or ()]
    return [step.strip() for step in steps if step.strip()]
