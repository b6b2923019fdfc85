"""What holds inside a run of a graph: its secrets are masked, its events stamped, its prompts used."""

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


@dataclass(frozen=True, slots=True)
class OpenQuestions:
    """Questions that are open on a thread.

    Attributes:
        ids: LangGraph's ids of the questions.
        steps: Keys of the steps that asked, each with its capability.
    """

    ids: list[str]
    steps: dict[str, str | None]


def find_services(spec: CapabilitySpec) -> Services | None:
    """Return the services of the runs around the caller that decide about a capability.

    The innermost services that register the name decide: the capability that they register runs.
    Where none registers it, the innermost services decide, with the capability added to theirs.
    """
    around = enclosing_services()
    known = next((s for s in around if spec.name in s.registry.capabilities), None)
    return known or (around[0].with_capabilities(spec.cls) if around else None)


def enclosing_services() -> list[Services]:
    """Return the services that operators bound for the runs around the caller, innermost first."""
    around: Iterator[Services] = reversed(run_context().services)
    return [services for services in around if services.rebind is not None]


def compile_scope(services: Services | None) -> AbstractContextManager[None]:
    """Have members that are compiled in the block know the services that they will run with."""
    around = run_context().services
    return override_run_context(services=around if services is None else (*around, services))


async def _ask_about_text(
    services: Services, subject: str, text: Any, reasons: Sequence[str]
) -> Verdict:
    from capgraph.engine.approval_requests import (
        ask_about_text,
    )  # few runs ask, and it brings a lot

    return await ask_about_text(services, subject, text, reasons)


def may_bring_answer() -> bool:
    """Tell whether an answer that is found is that of the run's own caller.

    A run whose process died when it had been answered is gone on with by anybody.
    """
    return run_context().has_own_answer


def dropped_questions() -> OpenQuestions | None:
    """Return the questions that the message of this run dropped."""
    found: OpenQuestions | None = run_context().dropped_requests
    return found


def run_scope(
    services: Services,
    config: Mapping[str, Any],
    *,
    has_subscriber: bool | None = None,
    may_answer: bool = True,
    dropped: OpenQuestions | None = None,
) -> AbstractContextManager[None]:
    """Return what a run goes on in.

    A stream goes on piece by piece, and what reads it must not see what holds inside, so the
    block is entered anew for each piece. A run inside another one is masked with the secrets of
    both, and its events go to the sinks of both, under the ids of the outer one.

    Args:
        services: Whose run it is.
        config: The run's configuration.
        has_subscriber: Whether anybody beside the sinks takes up the run's events; as LangGraph, or the
            run around this one, has it when not given.
        may_answer: Whether the run may bring an answer; one that goes on by itself finds it saved.
        dropped: The questions that the run's message drops.
    """
    around: tuple[Services, ...] = run_context().services
    if any(known is services for known in around):
        return nullcontext()
    ids: dict[str, str | None] = {}
    if not around:
        thread = (config.get("configurable") or {}).get("thread_id")
        ids["run_id"] = str(config.get("run_id") or uuid.uuid4())
        ids["thread_id"] = None if thread is None else str(thread)
    if has_subscriber is None:
        has_subscriber = has_listener() if around else has_custom_stream()
    changes: dict[str, Any] = {
        "services": (*around, services),
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
    return _Scope(services, {**changes, **services.events.run_context_fields(**ids)})


async def end_run(scope: AbstractContextManager[None], error: BaseException | None = None) -> None:
    """Write what waits for the audit, and tell the sinks that what went on in a scope is over.

    Args:
        scope: What :func:`run_scope` gave; the scope of an outer run is left to that one.
        error: What the run was ended by.
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
    """The context of a run, worked out once and entered for each piece of it."""

    def __init__(self, services: Services, changes: Mapping[str, Any]) -> None:
        super().__init__(**changes)
        self.services = services
