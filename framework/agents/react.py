"""An agent that thinks, calls tools and looks at what came back, until it has the answer."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Annotated, Any, NotRequired

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Overwrite, Send
from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError

from capgraph.agents.base import RUN_DEFAULTS, BaseAgent, RunOutput, RunState
from capgraph.agents.memory import Memory
from capgraph.agents.model_with_tools import ModelWithTools, require_model
from capgraph.agents.result import FINAL_ANSWER, AgentStep, to_conversation
from capgraph.agents.text_protocol import parse_json
from capgraph.agents.tool_calls import build_tool_node
from capgraph.base.errors import ConfigurationError
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.plain_data import validation_messages

_MAX_UNREADABLE = 2
"""How often a model is told that its answer cannot be used."""


_RUN_START: dict[str, Any] = {**RUN_DEFAULTS, "messages": [], "turns": 0, "unusable": 0}


class ReActState(RunState):
    """The state of the loop; ``messages`` are those of one run."""

    messages: NotRequired[Annotated[list[AnyMessage], operator.add]]
    turns: NotRequired[int]
    unusable: NotRequired[int]


class ReActAgent(BaseAgent):
    """Thinks, calls tools, looks at what came back, and so on, until it has the answer.

    The calls of one message run side by side, each a LangGraph task of its own: what has ended is
    not repeated after a kill. What goes wrong in a tool, an unknown tool and arguments that do not fit its
    schema are observations; a call that fails twice with the same arguments ends the run. A model that
    cannot be given tools calls them by a protocol in text, and a call that a model wrote as JSON text is
    read as a call.

    Args:
        model: A chat model.
        max_steps: How many messages of the model there may be.
        system_prompt: What the model is told first; ``{tool_descriptions}`` stands for the tools.
        response_format: A pydantic type; the output is an instance of it.
        memory: What of a long conversation the model is shown; see ``Memory``.
        **options: As for :class:`~capgraph.agents.base.BaseAgent`.

    Raises:
        ConfigurationError: ``max_steps`` is below 1, or there is no model.

    >>> import asyncio
    >>> from langchain_core.messages import AIMessage
    >>> from capgraph.testing import ScriptedModel
    >>> def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> call = {"name": "add", "args": {"a": 2, "b": 2}, "id": "1"}
    >>> model = ScriptedModel(responses=[AIMessage("", tool_calls=[call]), "It is 4."])
    >>> result = asyncio.run(ReActAgent(model, tools=[add]).execute("What is 2 + 2?"))
    >>> result.output, [(step.action, step.observation) for step in result.steps]
    ('It is 4.', [('add', '4'), ('Final Answer', 'It is 4.')])
    """

    @validate_arguments
    def __init__(
        self,
        model: Any = None,
        *,
        max_steps: int = 10,
        system_prompt: str | None = None,
        response_format: type[BaseModel] | None = None,
        memory: Memory | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.model: Any = require_model(self, model)
        self.max_steps: int = check_minimum(self, 1, max_steps=max_steps)
        self.response_format = response_format
        self.system_prompt: str = system_prompt or ""
        self.memory = memory

    def _build(self) -> StateGraph[Any, Any, Any, Any]:
        memory = self.memory
        tools = [*self.tools, *(memory.fact_tools() if memory is not None else ())]
        node = build_tool_node(tools, self.services, self.behaviors) if tools else None
        known = list(node.tools_by_name.values()) if node is not None else []
        form = [self.response_format] if self.response_format is not None else []
        asker = ModelWithTools(self, [*known, *form])
        system = insert_tool_descriptions(self.system_prompt, known)

        builder = StateGraph(ReActState, output_schema=RunOutput)
        to = ("model", END) if node is None else ("model", "tools", END)
        builder.add_node(
            "begin", partial(self._call_model, asker, system, is_first=True), destinations=to
        )
        builder.add_node("model", partial(self._call_model, asker, system), destinations=to)
        builder.add_edge(START, "begin")
        if node is not None:
            builder.add_node("tools", node)
            builder.add_edge("tools", "model")
        return builder

    async def _call_model(
        self,
        model: ModelWithTools,
        system_prompt: str,
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        *,
        is_first: bool = False,
    ) -> Command[Any]:
        """Ask the model once, and say what its message means."""
        if is_first and state.get("going_on"):
            return Command(update={"going_on": False}, goto=_next_nodes(state))
        if is_first:
            state = {**state, **_RUN_START}
        messages = state["messages"]
        if (ended := self._limit_error(state)) is not None:
            return Command(update=self._end_run(state, [], _last_observation(state), ended))
        update: dict[str, Any] = dict(_RUN_START) if is_first else {}
        said = [*(state.get("conversation") or ()), HumanMessage(state["task"])]
        if self.memory is not None:
            kept = await self.memory.recall(said, messages, state, runtime, ModelWithTools(self))
            said, messages, system_prompt = (
                kept.conversation,
                kept.messages,
                kept.extend_system_prompt(system_prompt),
            )
            update["summary"] = kept.summary
        message = await model.ask([*said, *messages], system_prompt)
        update["turns"] = state["turns"] + 1
        found = self._handle_message(state, message)
        update |= found
        goto = _next_nodes(update)
        if is_first:
            update["messages"] = Overwrite(found["messages"])
        return Command(update=update, goto=goto)

    def _limit_error(self, state: Mapping[str, Any], calls: int | None = None) -> str | None:
        """Say which limit is reached, before the model is asked or when it has asked for calls."""
        if calls is None and (failed := self._repeated_failure(state["messages"])) is not None:
            return failed
        if calls is not None or state["turns"] < self.max_steps:
            return None
        return f"Reached max_steps={self.max_steps} without a final answer."

    def _repeated_failure(self, messages: Sequence[BaseMessage]) -> str | None:
        """Return an error if one call of a tool failed in two messages with the same arguments."""
        form = self.response_format.__name__ if self.response_format is not None else None
        failed: set[str] = set()
        for _, pairs in _iter_turns(messages):
            wrong = {
                json.dumps([call["name"], call["args"]], sort_keys=True, default=str): answer
                for call, answer in pairs
                if answer is not None and answer.status == "error" and call["name"] != form
            }
            for call, answer in wrong.items():
                if call in failed:
                    said = str(answer.text)
                    return f"{answer.name} failed twice with the same arguments. {said}"
            failed |= wrong.keys()
        return None

    def _handle_message(self, state: Mapping[str, Any], message: AIMessage) -> dict[str, Any]:
        """Return what a message of the model means for the state."""
        calls, form = message.tool_calls, self.response_format
        answers = [call for call in calls if form is not None and call["name"] == form.__name__]
        why = message.additional_kwargs.get("unreadable")
        broken = [
            _error_message(c, "the arguments are no JSON") for c in message.invalid_tool_calls
        ]
        if (calls or broken) and not answers:
            ended = self._limit_error(state, len(calls) + len(broken))
            if ended is not None:
                return self._end_run(state, [message], _last_observation(state), ended)
            return {"messages": [message, *broken]}
        if why is None and form is None:
            return self._end_run(state, [message], str(message.text), None)
        given = parse_json(str(message.text))
        if form is not None and not calls and isinstance(given, dict):
            why = None  # in whatever form it was asked for, this is an answer
        if why is None and form is not None:
            if len(calls) > len(answers):
                why = f"{form.__name__} ends the work, so it stands alone."
            else:
                given = answers[0]["args"] if answers else given
                try:
                    output = form.model_validate(given).model_dump(mode="json")
                    return self._end_run(state, [message], output, None)
                except PydanticValidationError as exc:
                    why = f"It is no {form.__name__}: {'; '.join(validation_messages(exc))}"
        told = state["unusable"] + 1
        if told > _MAX_UNREADABLE:
            name = form.__name__ if form is not None else "an action or an answer"
            error = f"The model gave {told} answers that are not of the form of {name}: {why}"
            if self.tools:
                error += (
                    " The model may not be able to call tools."
                    " Fix: Use a model that supports tool calls."
                )
            return self._end_run(state, [message], None, error)
        back: list[BaseMessage] = [_error_message(call, str(why)) for call in calls]
        wanted = (
            f"Answer by calling {form.__name__}." if form is not None else "Answer in the form."
        )
        back = back or [HumanMessage(f"That cannot be used. {why} {wanted}")]
        return {"messages": [message, *back], "unusable": told}

    def _end_run(
        self,
        state: Mapping[str, Any],
        new_messages: list[BaseMessage],
        output: Any,
        error: str | None,
    ) -> dict[str, Any]:
        steps = _to_steps([*state["messages"], *new_messages])
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        if error is None:
            steps.append(AgentStep("", FINAL_ANSWER, {"answer": output}, text).to_plain())
        return {
            "messages": new_messages,
            "steps": steps,
            "output": output,
            "success": error is None,
            "error": error,
            "conversation": self._to_conversation(
                state["task"],
                {"messages": [*state["messages"], *new_messages]},
                output if error is None else error,
            ),
        }

    def _to_conversation(
        self, task: str, values: Mapping[str, Any], answer: Any
    ) -> list[BaseMessage]:
        asked, said = to_conversation(task, answer)
        last = next(reversed(values.get("messages") or ()), None)
        if last is not None and last.text == said.text:
            said.id = last.id  # a stream that has it shows it once
        if self.memory is None or not self.memory.tools:
            return [asked, said]
        answered = [
            [message, *(found for _, found in pairs if found is not None)]
            for message, pairs in _iter_turns(values.get("messages") or ())
            if pairs and all(found is not None for _, found in pairs)
        ]
        return [asked, *(one for unit in answered for one in unit), said]

    def _read_steps(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if values.get("success") is not None:
            return list(values.get("steps") or ())
        return _to_steps(values.get("messages") or ())


def _next_nodes(state: Mapping[str, Any]) -> Any:
    if state.get("success") is not None:
        return END
    turns = list(_iter_turns(state.get("messages") or ()))
    calls = [call for call, answer in turns[-1][1] if answer is None] if turns else []
    return [Send("tools", [call]) for call in calls] or "model"


def _iter_turns(
    messages: Sequence[BaseMessage],
) -> Iterator[tuple[AIMessage, list[tuple[ToolCall, ToolMessage | None]]]]:
    """Yield what the model said, with each call and its answer; models use an id more than once."""
    for place, message in enumerate(messages):
        if isinstance(message, AIMessage):
            behind = takewhile(lambda m: not isinstance(m, AIMessage), messages[place + 1 :])
            left = [m for m in behind if isinstance(m, ToolMessage)]
            pairs: list[tuple[ToolCall, ToolMessage | None]] = []
            for call in message.tool_calls:
                found = next((m for m in left if m.tool_call_id == call["id"]), None)
                if found is not None:
                    left.remove(found)
                pairs.append((call, found))
            yield message, pairs


def _to_steps(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return the steps that messages tell of: one for each call that was answered."""
    return [
        AgentStep(
            str(message.text),
            call["name"],
            call["args"],
            str(answer.text),
            {"error": True} if answer.status == "error" else {},
        ).to_plain()
        for message, pairs in _iter_turns(messages)
        for call, answer in pairs
        if answer is not None
    ]


def _last_observation(state: Mapping[str, Any]) -> Any:
    steps = _to_steps(state["messages"])
    return steps[-1]["observation"] if steps else None


def _error_message(call: Any, reason: str) -> ToolMessage:
    return ToolMessage(
        f"Tool error: {reason}", tool_call_id=call["id"] or "", name=call["name"], status="error"
    )


def insert_tool_descriptions(prompt: str, tools: Sequence[Any]) -> str:
    """Return a prompt with the tools in their place; other braces stay what they are."""
    lines = "\n".join(f"- {tool.name}: {tool.description}" for tool in tools)
    return prompt.replace("{tool_descriptions}", lines or "No tools available.")


def check_minimum(agent: BaseAgent, minimum: int, **values: int) -> int:
    """Return a number of an agent's.

    Raises:
        ConfigurationError: It is too low.
    """
    [(name, number)] = values.items()
    if type(number) is not int or number < minimum:
        raise ConfigurationError(
            f"{type(agent).__name__} got {name}={number!r}.", fix=f"Give {minimum} or more."
        )
    return number
