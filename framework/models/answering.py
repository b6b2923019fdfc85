"""Answer generation with a chat model."""

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
    """Answer strategy that asks a chat model for a turn's final message and streams it.

    Args:
        role: Chat model for the answer role.
        prompts: Provider of the prompt builders.
    """

    def __init__(self, role: RoleModel, prompts: PromptProvider) -> None:
        self._role = role
        self._answer = prompts.get_response_generation_prompt_builder()
        self._question = prompts.get_clarification_prompt_builder()

    @property
    def keeps_answers(self) -> bool:
        """True if results that are answers in words become the answer without a model call.

        Most models of grammar servers are small, and small models omit values of the results.
        """
        return self._role.schema_style == "grammar"

    async def answer(self, request: AnswerRequest) -> AIMessage | BaseModel:
        """Generate the answer as a message, or as a ``request.response_format`` instance if set.

        The returned message has the ID of the streamed chunks. Prompt tags that the model repeats
        are removed, unless the request itself contains such tags.

        Raises:
            ModelError: The call failed, the answer is empty, or it does not match the response
                format.
        """
        results = [
            (_format_heading(result, request.task), result.summary) for result in request.results
        ]
        messages = build_prompt(
            self._question if request.purpose == "clarify" else self._answer,
            {**request_fields(request), "results": results},
            instructions=request.instructions,
            history=split_conversation(request.messages)[0],
            messages=request.messages,
        )
        if request.response_format is None:
            keep_tags = has_prompt_tags(request.task)
            return await stream_text(self._role, messages, keep_prompt_tags=keep_tags)
        answer_data: BaseModel = await generate_structured(
            self._role,
            request.response_format,
            messages,
            on_partial=lambda value: emit(AnswerPart(value=value)),
        )
        return answer_data


def _format_heading(result: StepSummary, task: str) -> str:
    """Format the heading for a step's result.

    The step's objective is omitted if it equals the task.
    """
    name = f"{result.kind} {result.context_key}"
    return name if result.objective == task else f"{name}: {result.objective}"
