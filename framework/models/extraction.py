"""Finding the task with a model."""

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
    """Asks a model what the last message means, when there are earlier ones.

    A first message is its own task and costs no call.
    """

    role: RoleModel
    prompt: PromptBuilder

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the task of the last message in the light of the earlier ones.

        Raises:
            ValidationError: There is no message.
            ModelError: The model failed.
        """
        request = last_request(messages)
        earlier, _ = split_conversation(messages)
        if not earlier:
            return ExtractedTask(task=request)

        async def ask(kept: Sequence[BaseMessage]) -> ExtractedTask:
            # The conversation is one text here, so it is shortened before it is written.
            context = {"history": format_transcript(kept), "message": request}
            prompt = build_prompt(self.prompt, context, messages=messages)
            answer: ExtractedTask = await generate_structured(self.role, ExtractedTask, prompt)
            return answer

        found = await call_with_fewer_messages(self.role, earlier, ask)
        return found if found.task.strip() else found.model_copy(update={"task": request})
