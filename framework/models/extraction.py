"""Task extraction with a chat model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AnyMessage, BaseMessage

from capgraph.models.calls import generate_structured
from capgraph.models.prompt import build_prompt, format_transcript, split_conversation
from capgraph.models.recovery import call_with_fewer_messages
from capgraph.models.roles import RoleModel
from capgraph.planning.strategies import ExtractedTask, last_request
from capgraph.prompts import PromptBuilder


@dataclass(eq=False)
class ModelExtractor:
    """Task extractor that asks a chat model to read a conversation's last message.

    The first message of a conversation becomes the task without a model call.

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
        if not earlier:
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
