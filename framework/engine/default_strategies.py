"""The strategies that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import AnyMessage

import capgraph.telemetry as telemetry
from capgraph.base.errors import ErrorSeverity, PlanError
from capgraph.base.plan import ExecutionPlan
from capgraph.planning.fallbacks import unprovided_types
from capgraph.planning.person_message import describe_failure

if TYPE_CHECKING:  # a graph that is only built needs no form of what a run asks
    from capgraph.planning.strategies import AnswerRequest, ExtractedTask, PlanRequest


class LastMessageExtractor:
    """Takes the last message as the task."""

    async def extract(self, messages: Sequence[AnyMessage]) -> ExtractedTask:
        """Return the text of the person's last message."""
        from capgraph.planning.strategies import ExtractedTask, last_request

        return ExtractedTask(task=last_request(messages))


class ChainPlanner:
    """Plans by backward chaining over what capabilities need and give."""

    can_correct = False
    chooses_parameters = False
    reads_results = False

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Chain from the chosen capabilities back to what is stored or given.

        Raises:
            PlanError: Something that is needed cannot be had, or the only way has failed already.
        """
        from capgraph.planning import StaticCatalog, chain_plan  # not where a model plans

        if request.look_again:
            return ExecutionPlan(steps=[])  # the plan goes on as it is
        active = [n for n in _available_active(request) if n != request.failed_capability]
        gone, catalog = (
            {*request.unavailable_capabilities, request.failed_capability},
            request.catalog,
        )
        if gone != {None}:
            left = {k: v for k, v in catalog.capabilities.items() if k not in gone}
            catalog = StaticCatalog(left, catalog.infrastructure, catalog.provided_types)
        if request.failed_capability is None:
            try:
                return chain_plan(
                    request.task, active, catalog, request.available, previous=request.previous
                )
            except PlanError as exc:
                raise _with_unavailable(exc, request) from exc
        # Without a model the only other way is one that avoids what failed.
        reason = (request.failure or {}).get("user_message") or "it failed"
        try:
            plan = chain_plan(
                request.task, active, catalog, request.available, previous=request.previous
            )
        except PlanError as exc:
            raise PlanError(
                f"{reason} There is no way around {request.failed_capability!r}: {exc.message}",
                fix=exc.fix,
                severity=ErrorSeverity.CRITICAL,
                person_message=describe_failure(request.failure or {}),
            ) from exc
        lost = set(_outputs(request.previous)) - set(_outputs(plan))
        if request.failed_capability in _steps_without_output(request.previous):
            lost = {f"what {request.failed_capability!r} does"}  # what does the same is unknown
        if lost:
            raise PlanError(
                f"{reason} Nothing else gives {', '.join(sorted(lost))}.",
                severity=ErrorSeverity.CRITICAL,
                person_message=describe_failure(request.failure or {}),
            )
        return plan


def _available_active(request: PlanRequest) -> list[str]:
    """Return what was chosen and can be called.

    Raises:
        PlanError: Something was chosen that cannot be, and nothing chosen gives the same.
    """
    specs = request.catalog.capabilities
    names = [name for name in request.active if name not in request.unavailable_capabilities]
    for name, why in request.unavailable_capabilities.items():
        if name in request.active and unprovided_types(name, names, specs, request.available):
            raise PlanError(
                f"{name!r} is {why}. Nothing else here can take its place.",
                fix="Ask again then.",
                severity=ErrorSeverity.CRITICAL,
                person_message=f"{name!r} is {why}. Please try again then.",
            )
    return names


def _with_unavailable(problem: PlanError, request: PlanRequest) -> PlanError:
    """Return the problem of a plan with what is out of reach, which may be why."""
    if not request.unavailable_capabilities:
        return problem
    away = "; ".join(f"{name!r} is {why}" for name, why in request.unavailable_capabilities.items())
    return PlanError(
        f"{problem.message} ({away}.)", fix=problem.fix, severity=ErrorSeverity.CRITICAL
    )


def _outputs(plan: ExecutionPlan | None) -> list[str]:
    steps = (plan or {}).get("steps") or []
    return [output for step in steps if (output := step.get("expected_output"))]


def _steps_without_output(plan: ExecutionPlan | None) -> list[str]:
    steps = (plan or {}).get("steps") or []
    return [step["capability"] for step in steps if not step.get("expected_output")]


class SummaryAnswerer:
    """Answers with each result's own summary."""

    async def answer(self, request: AnswerRequest) -> str:
        """Put the answer together and stream it piece by piece."""
        text = self.compose(request)
        for piece in _pieces(text):
            telemetry.emit(telemetry.AnswerToken(text=piece))
        return text

    def compose(self, request: AnswerRequest) -> str:
        """Return the answer as one text."""
        if request.purpose == "clarify":
            return request.question or "Please say more precisely what you need."
        if request.purpose == "conversation":
            return (
                f"Nothing here can do that: {_shorten(request.task)}\n\n"
                f"This is what I can do:\n{request.abilities or '(no capabilities are registered)'}"
            )
        said = [result.summary for result in request.results if result.terminal and result.summary]
        parts = said or [result.summary for result in request.results if result.summary]
        if request.missing:
            parts.append("Not done: " + " ".join(request.missing))
        return "\n\n".join(parts) or "Done; the steps left nothing to report."


def _shorten(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [word if n == 0 else f" {word}" for n, word in enumerate(words)]
