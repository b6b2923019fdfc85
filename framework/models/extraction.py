"""Task extraction with a chat model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage

from capgraph.models.calls import generate_structured
from capgraph.models.prompt import build_prompt, format_transcript, split_conversation
from capgraph.models.recovery import call_with_fewer_messages
from capgraph.models.roles import RoleModel
from capgraph.planning.strategies import ExtractedTask, last_request
from capgraph.prompts import PromptBuilder

# Only English text is recognized, so messages in other languages go to the model.
_ENGLISH = re.compile(
    r"\b(?:the|how|what|which|when|where|who|does|did|from|with|please|between)\b", re.IGNORECASE
)
_CONTINUATION = re.compile(r"\W*(?:and|in|on|at|for|with|from|to|of|so)\b", re.IGNORECASE)
_REFERRING = re.compile(
    r"\b(?:it|its|they|them|theirs?|th(?:is|at|ese|ose)|he|she|him|hers?|his|there|then|such|ones?"
    r"|an?other|others?|same|again|instead|else|also|too|more|less|fewer|both|n?either|former"
    r"|latter|previous|earlier|before|above|next|last|first|second|third|rest|all|any|none|my|mine"
    r"|ours?|we|us|usual|favou?rite|but|or|still|yet|only|yes|no|not|ok|okay|sure|(?:what|how)"
    r" about)\b",
    re.IGNORECASE,
)
_MIN_WORDS = 4
_EARLIER_REQUESTS = 3
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_NUMBER = re.compile(r"\d[\w:./-]*")
_NAME = re.compile(r"(?<=[\w,;:] )(?!I\b)[^\W\d_a-z][\w-]*")
# A superlative or a number without a noun, such as "the cheapest in Oslo" or "the two".
_NO_NOUN = re.compile(
    r"\bthe (?:\w+est|best|worst|most|least|two|three|four|\d+)\b"
    r"(?=\s*(?:$|[^\s\w])|\s+(?:in|on|at|for|from|to|of|with|by|and)\b)",
    re.IGNORECASE,
)


def is_self_contained(message: str, earlier: Sequence[BaseMessage]) -> bool:
    """Return True if an English message can be understood without the earlier messages.

    The check is strict, because a lost reference costs more than a model call. It returns False
    for a message that is short, refers to something, may answer a question, or has fewer names or
    numbers than a recent request, which the message may continue.

    Args:
        message: Last message of the user.
        earlier: Messages before it.

    >>> earlier = [HumanMessage("How warm was Oslo in May?"), AIMessage("12 degrees.")]
    >>> is_self_contained("How warm was Lima in June?", earlier)
    True
    >>> [is_self_contained(text, earlier) for text in ("And in June?", "How warm was June?")]
    [False, False]
    """
    is_short = len(_WORD.findall(message)) < _MIN_WORDS
    if is_short or _CONTINUATION.match(message) or not _ENGLISH.search(message):
        return False
    if _REFERRING.search(message) or _NO_NOUN.search(message):
        return False
    replies = [str(m.text) for m in earlier if isinstance(m, AIMessage)]
    if replies and "?" in replies[-1]:
        return False
    requests = [str(m.text) for m in earlier if isinstance(m, HumanMessage)]
    return all(
        len(pattern.findall(message)) >= len(pattern.findall(request))
        for request in requests[-_EARLIER_REQUESTS:]
        for pattern in (_NUMBER, _NAME)
    )


@dataclass(eq=False)
class ModelExtractor:
    """Task extractor that asks a chat model to read a conversation's last message.

    The first message of a conversation, and a message that needs no context (see
    :func:`is_self_contained`), become the task without a model call.

    Attributes:
        role: Chat model for the extraction role.
        prompt: Prompt builder.
    """

    role: RoleModel
    prompt: PromptBuilder

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Extract the task from the last message, in the context of the earlier messages.

        Raises:
            ValidationError: The conversation has no message.
            ModelError: The call failed.
        """
        request = last_request(messages)
        earlier, _ = split_conversation(messages)
        if not earlier or is_self_contained(request, earlier):
            return ExtractedTask(task=request)

        async def ask(history: Sequence[BaseMessage]) -> ExtractedTask:
            # The prompt holds the conversation as one text, so it is shortened here.
            context = {"history": format_transcript(history), "message": request}
            prompt = build_prompt(self.prompt, context, messages=messages)
            answer: ExtractedTask = await generate_structured(self.role, ExtractedTask, prompt)
            return answer

        extracted = await call_with_fewer_messages(self.role, earlier, ask)
        return (
            extracted if extracted.task.strip() else extracted.model_copy(update={"task": request})
        )
