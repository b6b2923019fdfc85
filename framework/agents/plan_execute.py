"""Agent that plans first, then works on one step after another."""

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
    """State of a running plan."""

    plan: NotRequired[list[str]]
    results: NotRequired[list[str]]
    trouble: NotRequired[str | None]


class PlanExecuteAgent(BaseAgent):
    """Agent whose model writes a plan, then works on each step with the tools and earlier results.

    A step fails if it exceeds its tool calls or the model returns no usable answer. The remaining
    steps are then replanned once, and ``metadata["replanned"]`` contains the reason. The result
    has the output of the last step.

    Args:
        model: Chat model.
        max_plan_steps: Maximum number of steps of a plan.
        max_tool_calls_per_step: Maximum number of tool calls of one step. 0 disables tools.
        system_prompt: System prompt of each step.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.

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
            return self._build_step_update(state, found)

        builder = StateGraph(PlanState, output_schema=RunOutput)
        builder.add_node("plan", partial(self._plan, asker))
        builder.add_node("replan", partial(self._replan, asker))
        builder.add_node("step", step)
        builder.add_conditional_edges(START, _route_start, ["plan", "replan", "step", END])
        for node in ("plan", "replan", "step"):
            builder.add_conditional_edges(node, _route_next, ["replan", "step", END])
        return builder

    async def _plan(self, model: ModelWithTools, state: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {**RUN_DEFAULTS, "results": [], "trouble": None}
        prompt = _PLAN_PROMPT.format(most=self.max_plan_steps, task=state["task"])
        steps, error = self._parse_plan(await model.ask([HumanMessage(prompt)], self.system_prompt))
        if error is not None:
            return {**defaults, "plan": steps, "success": False, "error": error}
        return {**defaults, "plan": steps, "metadata": {"plan": steps}}

    async def _replan(self, model: ModelWithTools, state: Mapping[str, Any]) -> dict[str, Any]:
        trouble, results = state["trouble"], state["results"]
        prompt = _PLAN_PROMPT.format(most=self.max_plan_steps, task=state["task"])
        prompt += _REPLAN_PROMPT.format(done=_numbered_list(results), trouble=trouble)
        try:
            new_steps, error = self._parse_plan(
                await model.ask([HumanMessage(prompt)], self.system_prompt)
            )
        except ModelError as exc:
            new_steps, error = [], str(exc)
        metadata = {**state["metadata"], "replanned": trouble}
        if error is not None:
            message = f"{trouble} Replanning failed: {error}"
            return {"metadata": metadata, "success": False, "error": message}
        plan = [*state["plan"][: len(results)], *new_steps]
        step = AgentStep(str(trouble), "replan", {"done": len(results)}, json.dumps(new_steps))
        return {
            "plan": plan,
            "trouble": None,
            "metadata": {**metadata, "plan": plan},
            "steps": [*state["steps"], step.to_plain()],
        }

    def _parse_plan(self, message: AIMessage) -> tuple[list[str], str | None]:
        """Parse a model's plan. Return its steps and, if the plan is invalid, the reason."""
        steps = _parse_steps(str(message.text))
        if not steps:
            return [], f"The model returned no plan: {str(message.text)[:200]!r}."
        if len(steps) > self.max_plan_steps:
            return (
                steps,
                f"The plan has {len(steps)} steps, but max_plan_steps={self.max_plan_steps}.",
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

    def _build_step_update(
        self, state: Mapping[str, Any], result: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state update after a step."""
        number = len(state["results"]) + 1
        step = state["plan"][number - 1]
        output, error = result["output"], result["error"]
        agent_step = AgentStep(
            f"Step {number} of the plan",
            "plan_step",
            {"step": step},
            str(output if error is None else error),
            {"steps": result["steps"], **({} if error is None else {"error": True})},
        )
        update: dict[str, Any] = {"steps": [*state["steps"], agent_step.to_plain()]}
        if error is not None:
            trouble = f"Step {number} ({step!r}) failed: {error}"
            if "replanned" not in state["metadata"]:
                return {**update, "trouble": trouble}
            message = f"{trouble} The plan had already been replaced once."
            return {**update, "output": output, "success": False, "error": message}
        update["results"] = [*state["results"], str(output)]
        if number == len(state["plan"]):
            update |= {"output": output, "success": True, "error": None}
        return update


class _StepWorker(ReActAgent):
    """Agent that executes one step of a plan with a limited number of tool calls."""

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
            f"The step reached max_tool_calls_per_step={self._max_calls}, and the model asked for"
            " more tool calls."
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
    r"""Parse the steps of a plan from a JSON array or from lines.

    >>> _parse_steps('Here it is: ["a", "b"]'), _parse_steps("1. a\n2) b")
    (['a', 'b'], ['a', 'b'])
    >>> _parse_steps('{"steps": ["a"]}')
    ['a']
    """
    plan = parse_json(text)
    if isinstance(plan, str) and (array := re.search(r"\[.*\]", text, re.DOTALL)):
        plan = parse_json(array.group())
    if isinstance(plan, dict):
        plan = next((value for value in plan.values() if isinstance(value, list)), [])
    if isinstance(plan, str):
        plan = [re.sub(r"^\s*(?:[-*•]|\d+[.)])\s*", "", line) for line in plan.splitlines()]
    steps = [item if isinstance(item, str) else json.dumps(item) for item in plan or ()]
    return [step.strip() for step in steps if step.strip()]
