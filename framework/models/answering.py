"""Writing the answer with a model, piece by piece."""

from __future__ import annotations

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from framework.models.calls import streamed
from framework.models.history import split_last
from framework.models.roles import RoleModel
from framework.planning.strategies import AnswerRequest
from framework.prompts import PromptProvider


class ModelAnswerer:
    """Asks a model for the message that ends a turn, and streams it."""

    def __init__(self, role: RoleModel, prompts: PromptProvider) -> None:
        self._role = role
        self._answer = prompts.get_response_generation_prompt_builder()
        self._question = prompts.get_clarification_prompt_builder()

    async def answer(self, request: AnswerRequest) -> AIMessage:
        """Return the message; its id is that of the streamed pieces.

        Raises:
            ModelError: The model failed or wrote nothing.
        """
        return await streamed(self._role, self._messages(request))

    def _messages(self, request: AnswerRequest) -> list[BaseMessage]:
        builder = self._question if request.purpose == "clarify" else self._answer
        context = {
            "task": request.task,
            "purpose": request.purpose,
            "question": request.question,
            "results": [
                (f"{result.kind} {result.context_key}: {result.objective}", result.summary)
                for result in request.results
            ],
            "missing": request.missing,
            "abilities": request.abilities,
        }
        earlier, _ = split_last(request.messages)
        return [
            SystemMessage(builder.get_prefix(**context)),
            *earlier,
            HumanMessage(builder.get_dynamic_context(**context)),
        ]
