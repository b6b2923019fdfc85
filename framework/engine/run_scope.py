"""What holds inside a run of a graph: its secrets are masked, its events stamped, its prompts used."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar, Token, copy_context
from functools import partial
from typing import Any

from capgraph.base.ports import Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.logger import use_masker
from capgraph.configs.streaming import heard, is_heard
from capgraph.engine.services import Services
from capgraph.langgraph_compat import is_streamed
from capgraph.pipeline.run_config import use_asker, use_models
from capgraph.prompts.provider import use_prompts
from capgraph.telemetry.audit import auditing, current_audit

_inside: ContextVar[tuple[Services, ...]] = ContextVar("capgraph_run_scope", default=())
_answering: ContextVar[bool] = ContextVar("capgraph_answering", default=True)
_UNSET = object()


def services_around(spec: CapabilitySpec) -> Services | None:
    """Return what the runs around the caller decided about a capability, the innermost first."""
    around = reversed(_inside.get())
    return next((s for s in around if s.registry.capabilities.get(spec.name) is spec), None)


async def _ask(services: Services, about: str, said: Any, reasons: Sequence[str]) -> Verdict:
    from capgraph.engine.asking import ask_about_words  # few runs ask, and it brings a lot

    return await ask_about_words(services, about, said, reasons)


def brings_answer() -> bool:
    """Tell whether an answer that is found is that of the run's own caller.

    A run whose process died when it had been answered is gone on with by anybody.
    """
    return _answering.get()


def run_scope(
    services: Services,
    config: Mapping[str, Any],
    *,
    listened: bool | None = None,
    answering: bool = True,
) -> AbstractContextManager[None]:
    """Return what a run goes on in.

    A stream goes on piece by piece, and what reads it must not see what holds inside, so the
    block is entered anew for each piece. A run inside another one is masked with the secrets of
    both, and its events go to the sinks of both, under the ids of the outer one.

    Args:
        services: Whose run it is.
        config: The run's configuration.
        listened: Whether anybody beside the sinks takes up the run's events; as LangGraph, or the
            run around this one, has it when not given.
        answering: Whether the run may bring an answer; one that goes on by itself finds it saved.
    """
    around = _inside.get()
    if any(known is services for known in around):
        return nullcontext()
    ids: dict[str, str | None] = {}
    if not around:
        thread = (config.get("configurable") or {}).get("thread_id")
        ids["run_id"] = str(config.get("run_id") or uuid.uuid4())
        ids["thread_id"] = None if thread is None else str(thread)
    if listened is None:
        listened = is_heard() if around else is_streamed()
    before = copy_context()
    with ExitStack() as stack:
        stack.enter_context(heard(listened or services.events.has_sinks))
        stack.enter_context(use_masker(services.masker))
        stack.enter_context(use_models(services.chat_model))
        stack.enter_context(use_asker(partial(_ask, services)))
        if services.prompts is not None:
            stack.enter_context(use_prompts(services.prompts))
        if services.auditor is not None:
            stack.enter_context(auditing(services.auditor.of(config)))
        stack.enter_context(services.events.run(**ids))
        held = {
            var: value
            for var, value in copy_context().items()
            if before.get(var, _UNSET) is not value
        }
    held[_inside] = (*around, services)
    held[_answering] = answering
    return _Scope(held, services)


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


class _Scope(AbstractContextManager[None]):
    """Values of context variables, worked out once and set for each piece of a run."""

    def __init__(self, held: Mapping[ContextVar[Any], Any], services: Services) -> None:
        self._held, self.services = held, services
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> None:
        self._tokens = [var.set(value) for var, value in self._held.items()]

    def __exit__(self, *_: object) -> None:
        for token in self._tokens:
            token.var.reset(token)
