"""Finding the task with a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AnyMessage, BaseMessage

from capgraph.models.calls import structured
from capgraph.models.prompt import prompt_of, split_last, transcript
from capgraph.models.recovery import ask_with_fewer
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
        earlier, _ = split_last(messages)
        if not earlier:
            return ExtractedTask(task=request)

        async def ask(kept: Sequence[BaseMessage]) -> ExtractedTask:
            # The conversation is one text here, so it is shortened before it is written.
            context = {"history": transcript(kept), "message": request}
            prompt = prompt_of(self.prompt, context, messages=messages)
            answer: ExtractedTask = await structured(self.role, ExtractedTask, prompt)
            return answer

        found = await ask_with_fewer(self.role, earlier, ask)
        return found if found.task.strip() else found.model_copy(update={"task": request})
