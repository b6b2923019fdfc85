"""What of a long conversation a model is shown."""

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
    """What a model is shown.

    Attributes:
        conversation: The conversation, the task last.
        messages: What happened in this run.
        summary: What is known of the rest: ``text``, and how many messages it covers (``upto``).
        facts: What the store holds.
    """

    conversation: list[BaseMessage]
    messages: list[BaseMessage]
    summary: dict[str, Any]
    facts: list[str]

    def extend_system_prompt(self, prompt: str) -> str:
        """Return a system prompt with what is known besides."""
        told = [prompt]
        if self.summary.get("text"):
            told.append(f"What happened before, in short:\n{self.summary['text']}")
        if self.facts:
            told.append("What is known:\n" + "\n".join(f"- {fact}" for fact in self.facts))
        return "\n\n".join(part for part in told if part)


@validate_arguments
@dataclass(frozen=True, slots=True)
class Memory:
    """Bounds for what a model is shown of a conversation; the task always is.

    What does not fit goes from the oldest on, a call of tools and its observations together.

    Attributes:
        tools: Whether the calls of tools of earlier runs on the thread are shown, with what came
            back; else only the tasks and the answers.
        window: Most messages.
        max_tokens: Most tokens, counted roughly.
        summarize: Whether the agent's model writes a summary of what goes.
        facts: Namespace in the graph's store: what it holds is shown, and the model gets a tool
            ``remember`` that writes there.
        max_facts: How many facts are shown; the ones nearest to the task, where the store can
            search by meaning.

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
        for name in ("window", "max_tokens", "most_facts"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(f"Memory got {name}={number!r}.", fix="Give 1 or more.")

    async def recall(
        self,
        conversation: Sequence[BaseMessage],
        messages: Sequence[BaseMessage],
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        model: Any,
    ) -> RecalledContext:
        """Return what the model is shown now.

        Args:
            conversation: The conversation, the task last.
            messages: What happened in this run.
            state: The state, for the summary so far.
            runtime: For the store.
            model: Asks the model for a summary.
        """
        *before, task = conversation
        units = _group_conversation(before) + _group_messages(messages)
        size = sum(map(len, units))
        while len(units) > 1 and not self._fits([task, *(m for unit in units for m in unit)]):
            units.pop(0)
        shown = [message for unit in units for message in unit]
        gone = size - len(shown)
        rest = max(0, len(before) - gone)
        summary = dict(state.get("summary") or {})
        upto = summary.get("upto", 0)
        if not messages:  # a new run: the messages of the one before have other places
            tasks = [at for at, message in enumerate(before) if isinstance(message, HumanMessage)]
            upto = min(upto, tasks[-1] if tasks else 0)
        if self.summarize and gone > upto:
            new = [*before, *messages][upto:gone]
            known = f"So far: {summary['text']}\n\n" if summary.get("text") else ""
            asked = HumanMessage(_SUMMARY_PROMPT + known + get_buffer_string(new))
            summary = {"text": str((await model.ask([asked])).text), "upto": gone}
        facts = await self._search_facts(str(task.text), runtime)
        return RecalledContext([*shown[:rest], task], shown[rest:], summary, facts)

    def _fits(self, messages: Sequence[BaseMessage]) -> bool:
        if self.window is not None and len(messages) > self.window:
            return False
        return self.max_tokens is None or count_tokens_approximately(messages) <= self.max_tokens

    async def _search_facts(self, task: str, runtime: Runtime[Any]) -> list[str]:
        if not self.facts:
            return []
        if runtime.store is None:
            raise ConfigurationError(
                "The memory has facts, and the graph has no store.",
                fix="Compile the agent with a store: agent.compile(store=…).",
            )
        found = await runtime.store.asearch(self.facts, query=task, limit=self.max_facts)
        return [str(item.value.get("fact", item.value)) for item in found]

    def fact_tools(self) -> list[Any]:
        """Return the tools that write to the memory."""
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
    """Put each call of tools in earlier runs together with what came back."""
    units: list[list[BaseMessage]] = []
    for message in conversation:
        if not isinstance(message, ToolMessage) or not units:
            units.append([])
        units[-1].append(message)
    return units


def _group_messages(messages: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """Put messages that belong together into one: what the model said, and what came back."""
    units: list[list[BaseMessage]] = []
    for message in messages:
        if isinstance(message, AIMessage) or not units:
            units.append([])
        units[-1].append(message)
    return units
