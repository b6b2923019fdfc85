"""Memory of agents: selection of the messages and facts that the model sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately, get_buffer_string
from langchain_core.tools import StructuredTool
from langgraph.runtime import Runtime, get_runtime

from capgraph.base.errors import ConfigurationError
from capgraph.helpers.argument_validation import validate_arguments

_SUMMARY_PROMPT = (
    "Write down what matters of this conversation for whoever goes on with it: facts, results,"
    " what was decided and what is open. Be brief.\n\n"
)


@dataclass(slots=True)
class RecalledContext:
    """Conversation context that is passed to a model call.

    Attributes:
        conversation: Messages of the conversation, ending with the task.
        messages: Messages of the current run.
        summary: Summary of the omitted messages, with its ``text`` and the number of messages
            it covers (``upto``).
        facts: Facts that were remembered in the store.
    """

    conversation: list[BaseMessage]
    messages: list[BaseMessage]
    summary: dict[str, Any]
    facts: list[str]

    def extend_system_prompt(self, prompt: str) -> str:
        """Append the conversation summary and the remembered facts to a system prompt."""
        parts = [prompt]
        if self.summary.get("text"):
            parts.append(f"What happened before, in short:\n{self.summary['text']}")
        if self.facts:
            parts.append("What is known:\n" + "\n".join(f"- {fact}" for fact in self.facts))
        return "\n\n".join(part for part in parts if part)


@validate_arguments
@dataclass(frozen=True, slots=True)
class Memory:
    """Limits for the conversation that the model sees. The task is always included.

    The oldest messages are omitted first. A tool call and its observations stay together.

    Attributes:
        tools: True to include tool calls of earlier runs of the thread and their results. Otherwise
            only tasks and answers are included.
        window: Maximum number of messages.
        max_tokens: Maximum number of tokens, counted approximately.
        summarize: True to let the agent's model summarize omitted messages.
        facts: Namespace of facts in the graph's store. The model sees them, and a tool ``remember``
            writes new ones.
        max_facts: Maximum number of facts. A store with semantic search returns the most relevant
            ones.

    Raises:
        ConfigurationError: A number is below 1.

    >>> Memory(window=20, summarize=True).window
    20
    """

    tools: bool = False
    window: int | None = None
    max_tokens: int | None = None
    summarize: bool = False
    facts: tuple[str, ...] = field(default=())
    max_facts: int = 20

    def __post_init__(self) -> None:
        for name in ("window", "max_tokens", "max_facts"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(
                    f"Invalid {name} {number!r}: it must be at least 1.", fix="Pass 1 or more."
                )

    async def recall(
        self,
        conversation: Sequence[BaseMessage],
        messages: Sequence[BaseMessage],
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        model: Any,
    ) -> RecalledContext:
        """Build the conversation context for the next model call.

        Older messages that do not fit are omitted and covered by a summary.

        Args:
            conversation: Messages of the conversation, ending with the task.
            messages: Messages of the current run.
            state: State of the graph, including the current summary.
            runtime: Runtime of the graph, which provides the store.
            model: Model that writes the summary.
        """
        *before, task = conversation
        units = _group_conversation(before) + _group_messages(messages)
        size = sum(map(len, units))
        while len(units) > 1 and not self._fits([task, *(m for unit in units for m in unit)]):
            units.pop(0)
        included = [message for unit in units for message in unit]
        omitted_count = size - len(included)
        conversation_length = max(0, len(before) - omitted_count)
        summary = dict(state.get("summary") or {})
        upto = summary.get("upto", 0)
        if not messages:  # messages of the previous run have different positions in a new run
            task_indexes = [
                index for index, message in enumerate(before) if isinstance(message, HumanMessage)
            ]
            upto = min(upto, task_indexes[-1] if task_indexes else 0)
        if self.summarize and omitted_count > upto:
            omitted = [*before, *messages][upto:omitted_count]
            previous = f"So far: {summary['text']}\n\n" if summary.get("text") else ""
            request = HumanMessage(_SUMMARY_PROMPT + previous + get_buffer_string(omitted))
            summary = {"text": str((await model.ask([request])).text), "upto": omitted_count}
        facts = await self._search_facts(str(task.text), runtime)
        return RecalledContext(
            [*included[:conversation_length], task], included[conversation_length:], summary, facts
        )

    def _fits(self, messages: Sequence[BaseMessage]) -> bool:
        if self.window is not None and len(messages) > self.window:
            return False
        return self.max_tokens is None or count_tokens_approximately(messages) <= self.max_tokens

    async def _search_facts(self, task: str, runtime: Runtime[Any]) -> list[str]:
        if not self.facts:
            return []
        if runtime.store is None:
            raise ConfigurationError(
                "The memory has a facts namespace, but the graph has no store.",
                fix="Compile the agent with a store: agent.compile(store=…).",
            )
        items = await runtime.store.asearch(self.facts, query=task, limit=self.max_facts)
        return [str(item.value.get("fact", item.value)) for item in items]

    def fact_tools(self) -> list[Any]:
        """Return the tools that let the model store facts for later conversations."""
        if not self.facts:
            return []

        async def remember(fact: str) -> str:
            """Keep a fact for later conversations."""
            store = get_runtime().store
            assert store is not None
            await store.aput(self.facts, uuid4().hex, {"fact": fact})
            return "Kept."

        return [StructuredTool.from_function(coroutine=remember)]


def _group_conversation(conversation: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """Group the messages of a conversation so that each tool call stays with its results."""
    units: list[list[BaseMessage]] = []
    for message in conversation:
        if not isinstance(message, ToolMessage) or not units:
            units.append([])
        units[-1].append(message)
    return units


def _group_messages(messages: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """Group each model message with the tool results that follow it."""
    units: list[list[BaseMessage]] = []
    for message in messages:
        if isinstance(message, AIMessage) or not units:
            units.append([])
        units[-1].append(message)
    return units
