"""Run context: secret masking, event routing, and prompts of a run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from capgraph.base.ports import Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.configs.safe_text import current_masker
from capgraph.configs.streaming import has_listener
from capgraph.engine.services import Services
from capgraph.langgraph_compat import has_custom_stream
from capgraph.telemetry.audit import current_audit
from capgraph.telemetry.otel import CurrentTrace


@dataclass(frozen=True, slots=True)
class OpenQuestions:
    """Questions to a person that are still open on a thread.

    Attributes:
        ids: LangGraph interrupt IDs of the questions.
        steps: Capability of each step that waits for an answer, by context key.
    """

    ids: list[str]
    steps: dict[str, str | None]


def find_services(spec: CapabilitySpec) -> Services | None:
    """Return the services of the enclosing run that apply to a capability.

    These are the innermost services that have registered the capability. If none has, the
    capability is added to a copy of the innermost services. Return ``None`` outside a run.
    """
    enclosing = find_enclosing_services()
    matching = next((s for s in enclosing if spec.name in s.registry.capabilities), None)
    return matching or (enclosing[0].with_capabilities(spec.cls) if enclosing else None)


def find_enclosing_services() -> list[Services]:
    """Return the services of all enclosing runs, from the innermost to the outermost."""
    enclosing: Iterator[Services] = reversed(run_context().services)
    return [services for services in enclosing if services.rebind is not None]


def compile_scope(services: Services | None) -> AbstractContextManager[None]:
    """Context manager in which newly compiled team members use the given services."""
    enclosing = run_context().services
    return override_run_context(services=enclosing if services is None else (*enclosing, services))


async def _ask_about_text(
    services: Services, subject: str, text: Any, reasons: Sequence[str]
) -> Verdict:
    from capgraph.engine.approval_requests import ask_about_text  # a slow import that few runs need

    return await ask_about_text(services, subject, text, reasons)


def may_bring_answer() -> bool:
    """Return True if the caller of this run may have sent the answer in its input.

    If a process ends after it received an answer, a different caller may resume the run.
    """
    return run_context().has_own_answer


def find_dropped_questions() -> OpenQuestions | None:
    """Return the open questions that this run's new message replaced, or ``None``."""
    questions: OpenQuestions | None = run_context().dropped_requests
    return questions


def run_scope(
    services: Services,
    config: Mapping[str, Any],
    *,
    has_subscriber: bool | None = None,
    may_answer: bool = True,
    dropped: OpenQuestions | None = None,
) -> AbstractContextManager[None]:
    """Context manager that sets the events, secrets, and services of a run.

    The context is entered separately for each part of a stream, because code that consumes the
    stream must not see the run context. A nested run masks the secrets of both runs, and its
    events are sent to the sinks of both runs with the IDs of the outer run.

    Args:
        services: Services of the run.
        config: Configuration of the run.
        has_subscriber: True if a consumer other than a sink receives the events. By default, this
            is determined from LangGraph's configuration or the enclosing run.
        may_answer: True if the run may contain a new answer. A run that resumes automatically uses
            a saved answer.
        dropped: Open questions that the new message of the run drops.
    """
    enclosing: tuple[Services, ...] = run_context().services
    if any(existing is services for existing in enclosing):
        return nullcontext()
    ids: dict[str, str | None] = {}
    if not enclosing:
        thread = (config.get("configurable") or {}).get("thread_id")
        ids["run_id"] = str(config.get("run_id") or uuid.uuid4())
        ids["thread_id"] = None if thread is None else str(thread)
    if has_subscriber is None:
        has_subscriber = has_listener() if enclosing else has_custom_stream()
    changes: dict[str, Any] = {
        "services": (*enclosing, services),
        "has_own_answer": may_answer,
        "dropped_requests": dropped,
        "has_listener": has_subscriber or services.events.has_sinks,
        "masker": current_masker().merged_with(services.masker),
        "text_approver": partial(_ask_about_text, services),
    }
    if services.prompts is not None:
        changes["prompts"] = services.prompts
    if services.auditor is not None:
        changes["audit"] = services.auditor.for_run(config)
    changes |= services.events.run_context_fields(**ids)
    return _Scope(services, changes, None if enclosing else changes["ids"].get("turn_trace"))


async def end_run(scope: AbstractContextManager[None], error: BaseException | None = None) -> None:
    """Write a run's pending audit records and notify the event sinks that the run has ended.

    Args:
        scope: Result of :func:`run_scope`. If it is the scope of an outer run, nothing happens.
        error: Exception that ended the run.
    """
    if not isinstance(scope, _Scope):
        return
    services = scope.services
    with scope:
        if services.events.has_sinks:
            services.events.end_run(error)
        if services.auditor is not None and (audit := current_audit()) is not None:
            await services.auditor.close(audit)


class _Scope(override_run_context):
    """Run context that is created once and entered again for each part of a run's stream."""

    def __init__(
        self, services: Services, changes: Mapping[str, Any], traceparent: str | None
    ) -> None:
        super().__init__(**changes)
        self.services = services
        self._trace = None if traceparent is None else CurrentTrace(traceparent)

    def __enter__(self) -> None:
        super().__enter__()
        if self._trace is not None:
            self._trace.attach()

    def __exit__(self, *error: object) -> None:
        if self._trace is not None:
            self._trace.detach()
        super().__exit__(*error)
