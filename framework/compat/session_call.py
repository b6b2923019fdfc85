"""Turns and tool calls of a session as capabilities of the pipeline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from capgraph.base import BaseCapability, capability_node
from capgraph.base.ports import Attempt, CallNext
from capgraph.behaviors import GuardrailViolationError, RateLimitBehavior
from capgraph.helpers.plain_data import to_plain
from capgraph.pipeline.run_config import acting_as
from capgraph.pipeline.step_execution import requested_work
from capgraph.telemetry import UsageSnapshot

RESULT_TYPE = "SESSION_RESULT"
"""Context type of the result of a call."""


class SessionCall:
    """State of one turn or tool call while a session runs it.

    Args:
        run: Coroutine function that performs the call.
        prepare: Coroutine function that runs the hooks, which may change the arguments, and
            returns the arguments.
        usage: Estimated token usage of a turn.

    Attributes:
        usage: Token usage of a turn: first the estimate, then the actual usage.
        arguments: Arguments checked by guardrails; ``None`` before the hooks have run.
        result: Result of the call.
        plain_result: Result as plain data, which guardrails check.
        error: Exception raised by the call or the hooks.
    """

    def __init__(
        self,
        run: Callable[[], Awaitable[Any]],
        prepare: Callable[[], Awaitable[Mapping[str, Any]]],
        usage: UsageSnapshot | None = None,
    ) -> None:
        self._run, self._prepare = run, prepare
        self.usage: UsageSnapshot = usage or UsageSnapshot()
        self.arguments: dict[str, Any] | None = None
        self.result: Any = None
        self.plain_result: Any = None
        self.error: Exception | None = None

    async def prepare(self) -> dict[str, Any]:
        """Run the hooks of the call and return its arguments as plain data.

        The hooks run only once, even if the call was paused for approval.
        """
        if self.arguments is None:
            arguments = await self._run_guarded(self._prepare)
            self.arguments = {
                str(name): to_plain(value, lenient=True) for name, value in arguments.items()
            }
        return self.arguments

    async def run(self) -> Any:
        """Perform the call, store its result, and return the result as plain data."""
        self.result = await self._run_guarded(self._run)
        self.plain_result = to_plain(self.result, lenient=True)
        return self.plain_result

    async def _run_guarded(self, function: Callable[[], Awaitable[Any]]) -> Any:
        try:
            with acting_as(None):
                return await function()
        except Exception as exc:
            self.error = exc
            raise


class PrepareCall:
    """Middleware that runs the session hooks of a call before guardrails check the call."""

    stage = "validate"
    order = 1_000

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Run the session hooks, and continue with the arguments that the hooks return.

        Raises:
            GuardrailViolationError: A person edited the arguments, which a session does not
                support.
        """
        call: SessionCall = requested_work()
        arguments = await call.prepare()
        if "parameters" in attempt.step:  # the call has none, so a person edited them
            _check_arguments(attempt.values, arguments)
        return await call_next(replace(attempt, parameters=arguments, values=arguments))


class TurnRateLimit(RateLimitBehavior):
    """Rate limit for the turns of a session, based on the token usage that the session counts."""

    def _get_estimate(self, attempt: Attempt) -> dict[str, int] | None:
        return _count_tokens(requested_work().usage)

    def _get_usage(self, result: Any) -> dict[str, int] | None:
        return _count_tokens(requested_work().usage)


def _check_arguments(changed: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise an error if a guardrail or a person has changed the arguments of a session call."""
    if dict(changed) != arguments:
        reason = "A session's tool is called by its own function: arguments are fixed."
        raise GuardrailViolationError("rewriting", reason)


def _count_tokens(usage: UsageSnapshot) -> dict[str, int]:
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.output_tokens}


@lru_cache(maxsize=256)
def session_capability(call_name: str) -> Any:
    """Create a capability that performs a session's calls of a model or tool."""

    class Work(BaseCapability):
        name = call_name
        description = f"Call of {call_name!r} in a session."
        provides = (RESULT_TYPE,)

        async def execute(self) -> Any:
            work: SessionCall = requested_work()
            _check_arguments(self.parameters, await work.prepare())
            return {RESULT_TYPE: await work.run()}

    return capability_node(Work)
