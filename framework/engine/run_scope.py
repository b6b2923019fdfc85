"""What holds inside a run of a graph: its secrets are masked, its events stamped, its prompts used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from configs.logger import use_masker
from framework.engine.services import Services
from framework.prompts.provider import use_prompts

_inside: ContextVar[tuple[Services, ...]] = ContextVar("capgraph_run_scope", default=())


def run_scope(
    services: Services, config: Mapping[str, Any]
) -> Callable[[], AbstractContextManager[None]]:
    """Return what a run goes on in.

    A stream goes on piece by piece, and what reads it must not see what holds inside, so the
    block is entered anew for each piece. A run inside another one is masked with the secrets of
    both, and its events go to the sinks of both, under the ids of the outer one.

    Args:
        services: Whose run it is.
        config: The run's configuration.
    """
    around = _inside.get()
    if any(known is services for known in around):
        return nullcontext
    ids: dict[str, str | None] = {}
    if not around:
        thread = (config.get("configurable") or {}).get("thread_id")
        ids["run_id"] = str(config.get("run_id") or uuid.uuid4())
        ids["thread_id"] = None if thread is None else str(thread)

    @contextmanager
    def inside() -> Iterator[None]:
        token = _inside.set((*around, services))
        try:
            with ExitStack() as stack:
                stack.enter_context(use_masker(services.masker))
                if services.prompts is not None:
                    stack.enter_context(use_prompts(services.prompts))
                stack.enter_context(services.events.run(**ids))
                yield
        finally:
            _inside.reset(token)

    return inside
