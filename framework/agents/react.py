"""Agent that reasons, calls tools and reads their results in a loop until it has the answer."""

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
"""Maximum number of times a model is asked to correct an unreadable answer."""


_RUN_START: dict[str, Any] = {**RUN_DEFAULTS, "messages": [], "turns": 0, "unusable": 0}


class ReActState(RunState):
    """State of a reasoning loop with tool calls.

    The ``messages`` belong to a single run.
    """

    messages: NotRequired[Annotated[list[AnyMessage], operator.add]]
    turns: NotRequired[int]
    unusable: NotRequired[int]


class ReActAgent(BaseAgent):
    """Agent that reasons, calls tools and reads their results until it has the answer.

    The tool calls of one message run in parallel. Each is a LangGraph task, so a finished call is
    not repeated after a crash. Errors of a tool, unknown tools and arguments that do not match the
    schema become observations. The run ends if a call fails twice with the same arguments.

    A model without tool calling uses a text protocol. A tool call written as JSON text is
    executed.

    Args:
        model: Chat model.
        max_steps: Maximum number of model messages.
        system_prompt: System prompt. ``{tool_descriptions}`` is replaced by the tool descriptions.
        response_format: Pydantic type of the output.
        memory: Limits for the conversation that the model sees.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.

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
        bound_tools = list(node.tools_by_name.values()) if node is not None else []
        answer_types = [self.response_format] if self.response_format is not None else []
        asker = ModelWithTools(self, [*bound_tools, *answer_types])
        system = insert_tool_descriptions(self.system_prompt, bound_tools)

        builder = StateGraph(ReActState, output_schema=RunOutput)
        destinations = ("model", END) if node is None else ("model", "tools", END)
        builder.add_node(
            "begin",
            partial(self._call_model, asker, system, is_first=True),
            destinations=destinations,
        )
        builder.add_node(
            "model", partial(self._call_model, asker, system), destinations=destinations
        )
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
        """Call the model once and return a command with the state update and the next nodes."""
        if is_first and state.get("going_on"):
            return Command(update={"going_on": False}, goto=_next_nodes(state))
        if is_first:
            state = {**state, **_RUN_START}
        messages = state["messages"]
        if (error := self._limit_error(state)) is not None:
            return Command(update=self._end_run(state, [], _last_observation(state), error))
        update: dict[str, Any] = dict(_RUN_START) if is_first else {}
        conversation = [*(state.get("conversation") or ()), HumanMessage(state["task"])]
        if self.memory is not None:
            context = await self.memory.recall(
                conversation, messages, state, runtime, ModelWithTools(self)
            )
            conversation, messages, system_prompt = (
                context.conversation,
                context.messages,
                context.extend_system_prompt(system_prompt),
            )
            update["summary"] = context.summary
        message = await model.ask([*conversation, *messages], system_prompt)
        update["turns"] = state["turns"] + 1
        message_update = self._handle_message(state, message)
        update |= message_update
        goto = _next_nodes(update)
        if is_first:
            update["messages"] = Overwrite(message_update["messages"])
        return Command(update=update, goto=goto)

    def _limit_error(self, state: Mapping[str, Any], calls: int | None = None) -> str | None:
        """Return an error message if the agent has reached a limit, or None.

        The limits are checked before each model call and for the tool calls that the model
        requests.
        """
        if calls is None and (failed := self._find_repeated_failure(state["messages"])) is not None:
            return failed
        if calls is not None or state["turns"] < self.max_steps:
            return None
        return f"Reached max_steps={self.max_steps} without Final Answer"

    def _find_repeated_failure(self, messages: Sequence[BaseMessage]) -> str | None:
        """Return an error message if a tool call failed twice with the same arguments, or None."""
        answer_name = self.response_format.__name__ if self.response_format is not None else None
        failed: set[str] = set()
        for _, pairs in _iter_turns(messages):
            failures = {
                json.dumps([call["name"], call["args"]], sort_keys=True, default=str): answer
                for call, answer in pairs
                if answer is not None and answer.status == "error" and call["name"] != answer_name
            }
            for call, answer in failures.items():
                if call in failed:
                    text = str(answer.text)
                    return f"{answer.name} failed twice with the same arguments. {text}"
            failed |= failures.keys()
        return None

    def _handle_message(self, state: Mapping[str, Any], message: AIMessage) -> dict[str, Any]:
        """Convert a model message to a state update."""
        calls, answer_type = message.tool_calls, self.response_format
        answer_calls = [
            call
            for call in calls
            if answer_type is not None and call["name"] == answer_type.__name__
        ]
        reason = message.additional_kwargs.get("unreadable")
        invalid_calls = [
            _error_message(c, "the arguments are no JSON") for c in message.invalid_tool_calls
        ]
        if (calls or invalid_calls) and not answer_calls:
            limit_error = self._limit_error(state, len(calls) + len(invalid_calls))
            if limit_error is not None:
                return self._end_run(state, [message], _last_observation(state), limit_error)
            return {"messages": [message, *invalid_calls]}
        if reason is None and answer_type is None:
            return self._end_run(state, [message], str(message.text), None)
        value = parse_json(str(message.text))
        if answer_type is not None and not calls and isinstance(value, dict):
            reason = None  # a JSON object is an answer, even outside the text protocol
        if reason is None and answer_type is not None:
            if len(calls) > len(answer_calls):
                reason = f"{answer_type.__name__} ends the work, so it stands alone."
            else:
                value = answer_calls[0]["args"] if answer_calls else value
                try:
                    output = answer_type.model_validate(value).model_dump(mode="json")
                    return self._end_run(state, [message], output, None)
                except PydanticValidationError as exc:
                    reason = (
                        f"It is no {answer_type.__name__}: {'; '.join(validation_messages(exc))}"
                    )
        unreadable_count = state["unusable"] + 1
        if unreadable_count > _MAX_UNREADABLE:
            name = answer_type.__name__ if answer_type is not None else "an action or an answer"
            error = f"The model returned {unreadable_count} answers that are not {name}: {reason}"
            if self.tools:
                error += (
                    " The model may not support tool calls."
                    " Fix: use a model that supports tool calls."
                )
            return self._end_run(state, [message], None, error)
        corrections: list[BaseMessage] = [_error_message(call, str(reason)) for call in calls]
        instruction = (
            f"Answer by calling {answer_type.__name__}."
            if answer_type is not None
            else "Answer in the form."
        )
        corrections = corrections or [HumanMessage(f"That cannot be used. {reason} {instruction}")]
        return {"messages": [message, *corrections], "unusable": unreadable_count}

    def _end_run(
        self,
        state: Mapping[str, Any],
        new_messages: list[BaseMessage],
        output: Any,
        error: str | None,
    ) -> dict[str, Any]:
        steps = _convert_to_steps([*state["messages"], *new_messages])
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
        question, reply = to_conversation(task, answer)
        last_message = next(reversed(values.get("messages") or ()), None)
        if last_message is not None and last_message.text == reply.text:
            reply.id = last_message.id  # a message stream deduplicates by ID
        if self.memory is None or not self.memory.tools:
            return [question, reply]
        complete_groups = [
            [message, *(answer for _, answer in pairs if answer is not None)]
            for message, pairs in _iter_turns(values.get("messages") or ())
            if pairs and all(answer is not None for _, answer in pairs)
        ]
        return [question, *(message for group in complete_groups for message in group), reply]

    def _read_steps(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if values.get("success") is not None:
            return list(values.get("steps") or ())
        return _convert_to_steps(values.get("messages") or ())


def _next_nodes(state: Mapping[str, Any]) -> Any:
    if state.get("success") is not None:
        return END
    turns = list(_iter_turns(state.get("messages") or ()))
    calls = [call for call, answer in turns[-1][1] if answer is None] if turns else []
    return [Send("tools", [call]) for call in calls] or "model"


def _iter_turns(
    messages: Sequence[BaseMessage],
) -> Iterator[tuple[AIMessage, list[tuple[ToolCall, ToolMessage | None]]]]:
    """Yield each model message with its tool calls and their results.

    Results are matched per message, because call IDs may repeat.
    """
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            following = takewhile(lambda m: not isinstance(m, AIMessage), messages[index + 1 :])
            unmatched = [m for m in following if isinstance(m, ToolMessage)]
            pairs: list[tuple[ToolCall, ToolMessage | None]] = []
            for call in message.tool_calls:
                answer = next((m for m in unmatched if m.tool_call_id == call["id"]), None)
                if answer is not None:
                    unmatched.remove(answer)
                pairs.append((call, answer))
            yield message, pairs


def _convert_to_steps(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert each tool call that has a result to an agent step."""
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
    steps = _convert_to_steps(state["messages"])
    return steps[-1]["observation"] if steps else None


def _error_message(call: Any, reason: str) -> ToolMessage:
    return ToolMessage(
        f"Tool error: {reason}", tool_call_id=call["id"] or "", name=call["name"], status="error"
    )


def insert_tool_descriptions(prompt: str, tools: Sequence[Any]) -> str:
    """Replace ``{tool_descriptions}`` in a prompt, leaving all other braces unchanged."""
    lines = "\n".join(f"- {tool.name}: {tool.description}" for tool in tools)
    return prompt.replace("{tool_descriptions}", lines or "No tools available.")


def check_minimum(agent: BaseAgent, minimum: int, **values: int) -> int:
    """Return an integer option of an agent after checking its minimum.

    Raises:
        ConfigurationError: The value is not an integer or is below the minimum.
    """
    [(name, number)] = values.items()
    if type(number) is not int or number < minimum:
        raise ConfigurationError(
            f"Invalid {name} {number!r} of {type(agent).__name__}: it must be at least {minimum}.",
            fix=f"Pass {minimum} or more.",
        )
    return number
