"""Writing the answer with a model, piece by piece."""

from __future__ import annotations

from langchain_core.messages import AIMessage
from pydantic import BaseModel

from capgraph.models.calls import streamed, structured
from capgraph.models.echo import has_marks
from capgraph.models.prompt import fields_of, prompt_of, split_last
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
        results = [(_label(result, request.task), result.summary) for result in request.results]
        messages = prompt_of(
            self._question if request.purpose == "clarify" else self._answer,
            {**fields_of(request), "results": results},
            instructions=request.instructions,
            earlier=split_last(request.messages)[0],
            messages=request.messages,
        )
        if request.form is None:
            marks = has_marks(request.task)
            return await streamed(self._role, messages, may_hold_marks=marks)
        found: BaseModel = await structured(
            self._role, request.form, messages, part=lambda value: emit(AnswerPart(value=value))
        )
        return found


def _label(result: StepSummary, task: str) -> str:
    """Name a result; a step that is for the whole of the request does not say it again."""
    name = f"{result.kind} {result.context_key}"
    return name if result.objective == task else f"{name}: {result.objective}"
