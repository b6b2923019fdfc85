"""Writing the answer with a model, piece by piece."""

from __future__ import annotations

from langchain_core.messages import AIMessage
from pydantic import BaseModel

from capgraph.models.calls import generate_structured, stream_text
from capgraph.models.prompt import build_prompt, request_fields, split_conversation
from capgraph.models.prompt_echo import has_prompt_tags
from capgraph.models.roles import RoleModel
from capgraph.planning.strategies import AnswerRequest, StepSummary
from capgraph.prompts import PromptProvider
from capgraph.telemetry import AnswerPart, emit


class ModelAnswerer:
    """Asks a model for the message that ends a turn, and streams it."""

    def __init__(self, role: RoleModel, prompts: PromptProvider) -> None:
        self._role = role
        self._answer = prompts.get_response_generation_prompt_builder()
        self._question = prompts.get_clarification_prompt_builder()

    async def answer(self, request: AnswerRequest) -> AIMessage | BaseModel:
        """Return the message; its id is that of the streamed pieces. With a form, return that.

        Marks of the prompt that the model repeats are removed, unless the request is about them.

        Raises:
            ModelError: The model failed, wrote nothing, or kept to no form.
        """
        results = [
            (_describe_result(result, request.task), result.summary) for result in request.results
        ]
        messages = build_prompt(
            self._question if request.purpose == "clarify" else self._answer,
            {**request_fields(request), "results": results},
            instructions=request.instructions,
            history=split_conversation(request.messages)[0],
            messages=request.messages,
        )
        if request.response_format is None:
            marks = has_prompt_tags(request.task)
            return await stream_text(self._role, messages, keep_prompt_tags=marks)
        found: BaseModel = await generate_structured(
            self._role,
            request.response_format,
            messages,
            on_partial=lambda value: emit(AnswerPart(value=value)),
        )
        return found


def _describe_result(result: StepSummary, task: str) -> str:
    """Name a result; a step that is for the whole of the request does not say it again."""
    name = f"{result.kind} {result.context_key}"
    return name if result.objective == task else f"{name}: {result.objective}"
