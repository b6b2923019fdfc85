"""Strategies that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import AnyMessage

import capgraph.telemetry as telemetry
from capgraph.base.errors import ErrorSeverity, PlanError
from capgraph.base.plan import ExecutionPlan
from capgraph.planning.fallbacks import find_unprovided_types
from capgraph.planning.person_message import describe_failure

if TYPE_CHECKING:  # only needed when a graph runs
    from capgraph.planning.strategies import AnswerRequest, ExtractedTask, PlanRequest


class LastMessageExtractor:
    """Task extractor that uses the last message."""

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Extract the task without a model, as the text of the user's last message."""
        from capgraph.planning.strategies import ExtractedTask, last_request

        return ExtractedTask(task=last_request(messages))


class ChainPlanner:
    """Planner that needs no model and chains capabilities backward from the selected ones.

    The planner adds the capabilities that supply missing inputs, until every input is
    available.
    """

    can_correct = False
    chooses_parameters = False
    reads_results = False

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Create a plan from the selected capabilities and those that supply their inputs.

        Raises:
            PlanError: A required input has no supplier, or the only possible plan has already
                failed.
        """
        from capgraph.planning import StaticCatalog, chain_plan  # not needed with a planning model

        if request.look_again:
            return ExecutionPlan(steps=[])  # the plan continues unchanged
        active = [n for n in _find_available(request) if n != request.failed_capability]
        avoided, catalog = (
            {*request.unavailable_capabilities, request.failed_capability},
            request.catalog,
        )
        if avoided != {None}:
            available = {k: v for k, v in catalog.capabilities.items() if k not in avoided}
            catalog = StaticCatalog(available, catalog.infrastructure, catalog.provided_types)
        if request.failed_capability is None:
            try:
                return chain_plan(
                    request.task, active, catalog, request.available, previous=request.previous
                )
            except PlanError as exc:
                raise _add_unavailable(exc, request) from exc
        # Without a model, the only alternative is a plan that avoids the failed capability.
        reason = (request.failure or {}).get("user_message") or "it failed"
        try:
            plan = chain_plan(
                request.task, active, catalog, request.available, previous=request.previous
            )
        except PlanError as exc:
            raise PlanError(
                f"{reason} No plan without {request.failed_capability!r} is possible: {exc.message}",
                fix=exc.fix,
                severity=ErrorSeverity.CRITICAL,
                person_message=describe_failure(request.failure or {}),
            ) from exc
        missing_outputs = set(_list_outputs(request.previous)) - set(_list_outputs(plan))
        if request.failed_capability in _steps_without_output(request.previous):
            missing_outputs = {
                f"the result of {request.failed_capability!r}"
            }  # equivalent capabilities are unknown
        if missing_outputs:
            raise PlanError(
                f"{reason} No other capability provides {', '.join(sorted(missing_outputs))}.",
                severity=ErrorSeverity.CRITICAL,
                person_message=describe_failure(request.failure or {}),
            )
        return plan


def _find_available(request: PlanRequest) -> list[str]:
    """Return the names of the selected capabilities that are currently available.

    Raises:
        PlanError: A selected capability is unavailable, and no other capability provides its
            output types.
    """
    specs = request.catalog.capabilities
    names = [name for name in request.active if name not in request.unavailable_capabilities]
    for name, why in request.unavailable_capabilities.items():
        if name in request.active and find_unprovided_types(name, names, specs, request.available):
            raise PlanError(
                f"Capability {name!r} is {why}, and no other capability can replace it.",
                fix="try again then.",
                severity=ErrorSeverity.CRITICAL,
                person_message=f"{name!r} is {why}. Please try again then.",
            )
    return names


def _add_unavailable(problem: PlanError, request: PlanRequest) -> PlanError:
    """Extend a planning error with the unavailable capabilities that may have caused it."""
    if not request.unavailable_capabilities:
        return problem
    away = "; ".join(f"{name!r} is {why}" for name, why in request.unavailable_capabilities.items())
    return PlanError(
        f"{problem.message} ({away}.)", fix=problem.fix, severity=ErrorSeverity.CRITICAL
    )


def _list_outputs(plan: ExecutionPlan | None) -> list[str]:
    steps = (plan or {}).get("steps") or []
    return [output for step in steps if (output := step.get("expected_output"))]


def _steps_without_output(plan: ExecutionPlan | None) -> list[str]:
    steps = (plan or {}).get("steps") or []
    return [step["capability"] for step in steps if not step.get("expected_output")]


class SummaryAnswerer:
    """Answerer that needs no model and joins the summaries of the step results."""

    async def answer(self, request: AnswerRequest) -> str:
        """Compose the answer without a model, and stream it word by word."""
        text = self.compose(request)
        for piece in _split_into_words(text):
            telemetry.emit(telemetry.AnswerToken(text=piece))
        return text

    def compose(self, request: AnswerRequest) -> str:
        """Compose the text of the answer from result summaries, or a clarifying question."""
        if request.purpose == "clarify":
            return request.question or "Please say more precisely what you need."
        if request.purpose == "conversation":
            return (
                f"Nothing here can do that: {_shorten(request.task)}\n\n"
                f"This is what I can do:\n{request.abilities or '(no capabilities are registered)'}"
            )
        summaries = [
            result.summary for result in request.results if result.terminal and result.summary
        ]
        parts = summaries or [result.summary for result in request.results if result.summary]
        if request.missing:
            parts.append("Not done: " + " ".join(request.missing))
        return "\n\n".join(parts) or "Done. The steps returned no data."


def _shorten(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def _split_into_words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if n == 0 else f" {word}" for n, word in enumerate(words)]
