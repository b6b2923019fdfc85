"""Node that ends a turn with the answer."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import AIMessage
from pydantic import BaseModel

from capgraph.base import (
    BaseInfrastructureNode,
    CapgraphError,
    InfrastructureError,
    infrastructure_node,
)
from capgraph.engine import Services
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.plan_facts import describe_ignored_values, describe_missing_names
from capgraph.engine.recipes import matched_recipe
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.planning.strategies import AnswerRequest
from capgraph.planning.summaries import are_answers, describe_missing_steps, step_summaries
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import AnswerToken, TurnFinished, emit


@infrastructure_node
class RespondNode(BaseInfrastructureNode):
    """Node that writes the final answer from the results of the plan."""

    name = "respond"
    description = "Answer"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Write the final answer and record the outcome of the turn."""
        custom = state.get("task_custom_message")
        if custom:
            emit(AnswerToken(text=custom))
            return final_update(custom, without_answer_failure(state), services)
        # A plan of the caller has steps although no capability was selected.
        has_results = state.get("planning_active_capabilities") or state.get(
            "execution_step_results"
        )
        streamer.status("Writing the answer")
        text = await write_answer(state, services, "results" if has_results else "conversation")
        if not has_results and services.chat_model("answer") is None:
            # A list of capabilities does not answer the request.
            reason = (state.get("planning_selection") or {}).get("reason")
            return final_update(
                text,
                state,
                services,
                {"status": "failed", "reason": reason, "code": "no_capability"},
            )
        return final_update(text, without_answer_failure(state), services)

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for transient model-service errors."""
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 2.0}


def list_capabilities(services: Services, view: TurnView) -> str:
    """List the capabilities that the caller may use as text for the user."""
    usable = services.registry_for(view).describe()
    if usable or not services.registry.capabilities:
        return usable
    return "(you may not use any capability)"


async def write_answer(
    state: AgentState,
    services: Services,
    purpose: Literal["results", "conversation", "clarify"],
    question: str = "",
) -> str | AIMessage | BaseModel:
    """Use the answerer to write the message that ends a turn.

    Args:
        state: State of the graph.
        services: Services of the graph.
        purpose: ``results`` to report results, ``conversation`` to reply without results, or
            ``clarify`` to ask a question.
        question: Question to ask if ``purpose`` is ``clarify``.

    Raises:
        InfrastructureError: The answer is not an instance of the requested answer type.
        CapgraphError: The answer does not pass its quality gate.
    """
    form = None if purpose == "clarify" else services.answer_type_of(state)
    view = services.view(state)
    instructions = await services.instructions(view)
    recipe = (
        matched_recipe(view, services)
        if purpose == "results" and not (form or instructions)
        else None
    )
    results = step_summaries(state, services.registry.context_types)
    missing = (*describe_missing_steps(state), *describe_ignored_values(view, services))
    if purpose == "results":
        missing = (*missing, *describe_missing_names(view, results, services))
    problem = _find_rejection_reason(view)
    has_free_form = purpose == "results" and not (form or instructions or missing or problem)
    by_results = (recipe is not None and recipe.answer == "results") or (
        has_free_form
        and getattr(services.answerer, "keeps_answers", False)
        and are_answers(results)
    )
    answerer = SummaryAnswerer() if by_results else services.answerer
    written = await answerer.answer(
        AnswerRequest(
            task=view.request_text,
            purpose=purpose,
            results=results,
            missing=missing,
            abilities=list_capabilities(services, view),
            messages=view.messages,
            question=question,
            instructions=instructions,
            response_format=form,
            problem=problem,
        )
    )
    gate = services.answer_gate
    if gate is not None and purpose == "results":
        text = written.text if isinstance(written, AIMessage) else written
        try:
            await gate.evaluate_result(text, "the answer")
        except CapgraphError:
            emit(AnswerToken(text="", resets=True))  # the answer was already streamed
            raise
    if form is not None and not isinstance(written, form):
        raise InfrastructureError(
            f"The answerer returned {type(written).__name__}: the type of answers is {form.__name__}.",
            fix="Return an instance of the request's response_format.",
        )
    return written


def _find_rejection_reason(view: TurnView) -> str:
    """Return the reason why the previous answer was rejected, or an empty string.

    Model-service failures are ignored, because they are unrelated to the text of the answer.
    """
    failure = view.failure or {}
    details = (failure.get("classification") or {}).get("metadata") or {}
    is_rejection = failure.get("node_name") == "respond" and details.get("category") == "declared"
    return str(failure["user_message"]) if is_rejection else ""


def without_answer_failure(state: AgentState) -> AgentState:
    """Return the state without the error from an earlier attempt to write the answer."""
    info = state.get("control_error_info") or {}
    if info.get("node_name") in {"respond", "clarify"}:
        return {**state, "control_has_error": False}
    return state


def final_update(
    text: str | AIMessage | BaseModel,
    state: AgentState,
    services: Services,
    outcome_fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Create the state update that ends a turn with a final message.

    Args:
        text: Final message, or a Pydantic model as a structured answer.
        state: State at the end of the turn.
        services: Services of the graph.
        outcome_fields: Fields that override the outcome derived from the state.
    """
    outcome = {**describe_outcome(state), **(outcome_fields or {})}
    started = state.get("execution_start_time")
    typed = None
    if isinstance(text, BaseModel) and not isinstance(text, AIMessage):
        typed = text.model_dump(mode="json")
        text = text.model_dump_json()
        emit(AnswerToken(text=text))
    emit(TurnFinished(outcome=outcome))
    return {
        "messages": [text if isinstance(text, AIMessage) else AIMessage(content=text)],
        "execution_answer": typed,
        "execution_outcome": outcome,
        "execution_total_time": services.clock.now() - started if started else None,
    }
