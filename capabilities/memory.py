"""Capability that stores facts about a user and recalls them in later threads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from langgraph.store.base import BaseStore
from pydantic import BaseModel, ConfigDict, Field

from capgraph.base import CapabilityContext, ValidationError, capability_node
from capgraph.base.capability import ContextType
from capgraph.base.spec import Effect
from capgraph.capabilities.guided import GuidedCapability
from capgraph.helpers.clock import utc_now_text
from capgraph.pipeline.run_config import current_caller, current_configurable

MAX_FACTS = 200  # facts that one step shows
_PAGE_SIZE = 200
_REMEMBER_PHRASE = re.compile(
    r"^\W*(?:please\s+)?(?:can you\s+|could you\s+)?"
    r"(?:remember|note(?: down)?|keep in mind|don'?t forget|save|memori[sz]e)"
    r"(?:\s+for me)?(?:\s+the fact)?(?:\s+that)?\s*[:,]?\s+(?P<fact>.+)$",
    re.IGNORECASE | re.DOTALL,
)
_FORGET_PHRASE = re.compile(
    r"^\W*(?:please\s+)?(?:forget|delete|remove|erase)(?:\s+(?:that|what you know about|about))?"
    r"\s*[:,]?\s+(?P<fact>.+)$",
    re.IGNORECASE | re.DOTALL,
)
_EVERYTHING_PHRASE = re.compile(r"\b(?:everything|all|anything)\b", re.IGNORECASE)
_STOP_WORD_LIST = """
    a about all am an and any anything are as at be can did do does everything for from had
    has have how i in is it know me my of on or please recall remember remembered said tell
    that the this to told was we what when where which who you your
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


class Fact(BaseModel):
    """Fact that the user asked the agent to remember.

    Attributes:
        text: Statement as the user made it.
        at: Time of the statement (UTC, ISO 8601).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    text: str
    at: str


class Memory(CapabilityContext):
    """Facts that a memory step stored, recalled, or deleted.

    Attributes:
        action: Performed action: ``remember``, ``recall``, or ``forget``.
        facts: Facts that the action applies to, best match first, at most 200.
        more: Number of further facts that ``facts`` omits.
        thread_only: True if the facts belong to this thread because no user is known.

    >>> Memory(action="recall", facts=[]).get_summary()
    'I remember nothing about that.'
    """

    CONTEXT_TYPE: ClassVar[str] = "MEMORY"
    CONTEXT_CATEGORY: ClassVar[str] = "ANSWER"

    action: Literal["remember", "recall", "forget"]
    facts: list[Fact] = Field(default_factory=list)
    more: int = 0
    thread_only: bool = False

    def get_summary(self) -> str:
        """Return a sentence that tells the user which facts were stored, recalled, or deleted."""
        texts = "; ".join(fact.text for fact in self.facts)
        texts += f"; and {self.more:,} more" if self.more else ""
        scope = " in this conversation" if self.thread_only else ""
        if self.action == "remember":
            return f"I will remember{scope}: {texts}."
        if self.action == "forget":
            return f"I have forgotten: {texts}." if self.facts else "There was nothing to forget."
        if not self.facts:
            return f"I remember nothing about that{' from' + scope[3:] if scope else ''}."
        return f"You told me{scope}: {texts}."


class MemoryParameters(BaseModel):
    """Parameters of a memory step. Without them, the task text determines the action.

    Attributes:
        action: ``remember``, ``recall``, or ``forget``.
        fact: Statement to remember or forget.
        query: Text that the recalled facts must match.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    action: Literal["remember", "recall", "forget"] | None = None
    fact: str | None = Field(None, max_length=2000)
    query: str | None = Field(None, max_length=2000)


@capability_node
class MemoryCapability(GuidedCapability):
    """Capability that stores facts about each user in the LangGraph store."""

    name = "memory"
    description = "Remember facts that the user states about themselves, and recall them later"
    provides: Sequence[ContextType] = ["MEMORY"]
    effect: Effect = "idempotent"
    parses_task = True
    Parameters: ClassVar[type[BaseModel] | None] = MemoryParameters

    async def execute(self) -> Memory:
        """Store, recall, or delete facts, as requested by the parameters or the task.

        Raises:
            ValidationError: The graph has no store, or the run has neither a user ID nor a thread
                ID.
        """
        store = getattr(self.runtime, "store", None)
        if store is None:
            raise ValidationError(
                "The graph has no store, which memory needs to keep facts across threads.",
                fix="Pass a LangGraph store, such as build_graph(..., store=InMemoryStore()).",
            )
        namespace, thread_only = _get_memory_namespace()
        action, text = parse_request(self.task, self.parameters)
        if action == "remember":
            fact = Fact(text=text, at=utc_now_text())
            # The key depends on the normalized text, so a repeated statement is one fact.
            key = hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:32]
            await store.aput(namespace, key, fact.model_dump())
            facts_by_key = {key: fact}
        else:
            facts_by_key = match_facts(text, await _load_facts(store, namespace))
            for key in facts_by_key if action == "forget" else ():
                await store.adelete(namespace, key)
        facts = list(facts_by_key.values())
        return Memory(
            action=action,
            facts=facts[:MAX_FACTS],
            more=max(0, len(facts) - MAX_FACTS),
            thread_only=thread_only,
        )


def parse_request(
    task: str, parameters: MemoryParameters
) -> tuple[Literal["remember", "recall", "forget"], str]:
    """Return the memory action that a task requests, and the fact or query that it applies to.

    >>> parse_request("Remember that I live in Oslo.", MemoryParameters())
    ('remember', 'I live in Oslo')
    >>> parse_request("Where do I live?", MemoryParameters())
    ('recall', 'Where do I live?')
    """
    text = (parameters.fact or parameters.query or task).strip()
    if parameters.action:
        return parameters.action, text
    if match := _REMEMBER_PHRASE.match(task):
        return "remember", match["fact"].rstrip(".! ")
    if match := _FORGET_PHRASE.match(task):
        return "forget", match["fact"].rstrip(".! ")
    return "recall", text


def match_facts(query: str, facts: dict[str, Fact]) -> dict[str, Fact]:
    """Find the facts that share words with a query, best match first.

    A query that asks for everything matches all facts.

    >>> facts = {"1": Fact(text="I live in Oslo", at=""), "2": Fact(text="My dog is Rex", at="")}
    >>> list(match_facts("what is my dog called?", facts))
    ['2']
    """
    words = _words(query)
    if not words or _EVERYTHING_PHRASE.search(query):
        return dict(facts)
    shared = {key: len(words & _words(fact.text)) for key, fact in facts.items()}
    best = sorted(filter(shared.get, facts), key=lambda key: (-shared[key], facts[key].at))
    return {key: facts[key] for key in best}


def _words(text: str) -> set[str]:
    found = re.findall(r"\w+", text.casefold())
    # Removing a plural "s" suffices: people repeat their own words.
    return {word.removesuffix("s") for word in found if word not in _STOP_WORDS}


async def _load_facts(store: BaseStore, namespace: tuple[str, ...]) -> dict[str, Fact]:
    """Load all facts from a namespace of the store, one page at a time."""
    facts: dict[str, Fact] = {}
    while items := await store.asearch(namespace, limit=_PAGE_SIZE, offset=len(facts)):
        facts |= {item.key: Fact.model_validate(item.value) for item in items}
    return facts


def _get_memory_namespace() -> tuple[tuple[str, ...], bool]:
    """Return the store namespace for remembered facts, and whether it belongs to the thread.

    The namespace belongs to the user if the user is known, and to the thread otherwise. An
    authenticated user takes precedence over a ``user_id`` that a client sends.
    """
    caller = current_caller()
    if user := caller.user_id:
        if tenant := caller.tenant:  # user IDs are unique only within a tenant
            namespace = (
                "capgraph",
                "memory of a tenant",
                _escape_label(str(tenant)),
                _escape_label(user),
            )
            return namespace, False
        return ("capgraph", "memory", _escape_label(user)), False
    thread = current_configurable().get("thread_id")
    if not thread:
        raise ValidationError(
            "The memory has no owner: the run has neither a user_id nor a thread_id.",
            fix=(
                "Pass {'configurable': {'user_id': ...}}, or a thread_id for memory of one thread."
            ),
        )
    return ("capgraph", "memory of a thread", _escape_label(str(thread))), True


def _escape_label(text: str) -> str:
    """Escape dots in a name, because the store forbids dots in namespace labels.

    >>> _escape_label("ada@example.org")
    'ada@example%2Eorg'
    """
    return text.replace("%", "%25").replace(".", "%2E").replace("\0", "%00")
