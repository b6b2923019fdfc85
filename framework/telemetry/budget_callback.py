"""LangChain callback that reserves budget for model calls.

:data:`BUDGET_CALLBACK` handles calls made on the event loop. For calls made in a worker thread, the
usage callback reserves the budget and waits for the loop. A synchronous call that blocks the loop
is charged when it ends, because nothing can be reserved while the loop is blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult

from capgraph.configs.run_context import override_run_context, run_context
from capgraph.telemetry.usage import UsageSnapshot

_OUTPUT_LIMIT_OPTIONS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
_TOKENS_PER_BLOCK = 1000  # estimate for an image or a file


class ModelCall(NamedTuple):
    """Model call that is about to be sent, with its estimated size.

    Attributes:
        run_id: ID of the call.
        model: Name of the model.
        prompt_tokens: Estimated number of prompt tokens.
        max_output_tokens: Maximum number of output tokens, or ``None`` for no limit.
        task: asyncio task that awaits the call, or ``None`` for a call made in a thread.
    """

    run_id: UUID
    model: str
    prompt_tokens: int
    max_output_tokens: int | None = None
    task: asyncio.Task[Any] | None = None


class Account(Protocol):
    """Protocol for a budget account to which a turn's model calls are charged.

    An account belongs to the event loop of its turn.
    """

    loop: asyncio.AbstractEventLoop

    def has_reserved(self, run_id: UUID) -> bool:
        """Return True if budget is reserved for a model call."""

    async def reserve_call(self, call: ModelCall) -> None:
        """Reserve budget for a model call. Raising an exception prevents the call."""

    async def settle_call(
        self, run_id: UUID, model: str, usage: UsageSnapshot | None, *, failed: bool = False
    ) -> None:
        """Charge the actual usage of a model call and release the rest of its reservation."""

    def record_call(self, run_id: UUID, model: str, role: str, usage: UsageSnapshot) -> None:
        """Record the usage of a model call, and charge the call if no budget was reserved."""


def charge_to(account: Account | None) -> AbstractContextManager[None]:
    """Context manager that charges model calls to an account and all enclosing accounts."""
    around = current_accounts()
    return override_run_context(accounts=around if account is None else (account, *around))


def current_accounts() -> tuple[Account, ...]:
    """Return the budget accounts that model calls are charged to, innermost turn first."""
    return run_context().accounts


def reported_usage(
    response: LLMResult, default_model: str = ""
) -> tuple[str, UsageSnapshot | None]:
    """Return the model name and token usage reported in a model response."""
    for generation in (item for row in response.generations for item in row):
        if isinstance(generation, ChatGeneration):
            message = generation.message
            if (usage := UsageSnapshot.of_message(message)) is not None:
                return (message.response_metadata or {}).get("model_name") or default_model, usage
    return default_model, None


class BudgetCallback(AsyncCallbackHandler):
    """LangChain callback that reserves budget for model calls and charges their usage.

    The callback handles model calls that are made on the event loop.
    """

    raise_error = True
    run_inline = True  # in the task that makes the call
    ignore_chain = ignore_agent = ignore_retriever = True

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        **callback_kwargs: Any,
    ) -> None:
        """Reserve budget for a chat model call before it is sent."""
        for account in _find_accounts():
            call = estimate_call(run_id, serialized, messages, callback_kwargs)
            await account.reserve_call(call._replace(task=asyncio.current_task()))

    async def on_llm_start(
        self, serialized: dict[str, Any] | None, prompts: list[str], **callback_kwargs: Any
    ) -> None:
        """Reserve budget for a text-completion model call before it is sent."""
        await self.on_chat_model_start(serialized, [prompts], **callback_kwargs)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Charge a finished model call with its actual usage."""
        for account in _find_accounts():
            await account.settle_call(run_id, *reported_usage(response))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Charge a failed model call and release its budget reservation."""
        for account in _find_accounts():
            await account.settle_call(run_id, "", None, failed=True)


BUDGET_CALLBACK = BudgetCallback()


def reserve_from_thread(
    run_id: UUID,
    serialized: Any,
    messages: Sequence[Sequence[Any]],
    callback_kwargs: Mapping[str, Any],
) -> None:
    """Reserve budget for a model call made in a thread without an event loop."""
    if not _is_on_event_loop():
        for account in current_accounts():
            _run_on_account_loop(
                account,
                account.reserve_call(estimate_call(run_id, serialized, messages, callback_kwargs)),
            )


def record_model_usage(run_id: UUID, model: str, role: str, usage: UsageSnapshot | None) -> None:
    """Record the usage of a model call, and charge the call if it was made in a thread."""
    for account in current_accounts():
        if usage is not None:
            account.record_call(run_id, model, role, usage)
        if not _is_on_event_loop():
            _run_on_account_loop(account, account.settle_call(run_id, model, usage))


def settle_failed_call(run_id: UUID) -> None:
    """Charge the budget for a failed model call that was made in a thread."""
    if not _is_on_event_loop():
        for account in current_accounts():
            _run_on_account_loop(account, account.settle_call(run_id, "", None, failed=True))


def _find_accounts() -> list[Account]:
    loop = asyncio.get_running_loop()
    return [account for account in current_accounts() if account.loop is loop]


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_on_account_loop(account: Account, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, account.loop).result()


def estimate_call(
    run_id: UUID,
    serialized: Any,
    messages: Sequence[Sequence[Any]],
    callback_kwargs: Mapping[str, Any],
) -> ModelCall:
    """Estimate the size of a model call before it is sent.

    The estimate counts one token per four ASCII characters and one per non-ASCII character.
    """
    metadata = callback_kwargs.get("metadata") or {}
    name = metadata.get("ls_model_name") or (serialized or {}).get("name") or ""
    options = {
        **(callback_kwargs.get("invocation_params") or {}),
        **(callback_kwargs.get("options") or {}),
    }
    limits = [options[name] for name in _OUTPUT_LIMIT_OPTIONS if isinstance(options.get(name), int)]
    limits += [limit for limit in [metadata.get("ls_max_tokens")] if isinstance(limit, int)]
    tokens = estimate_tokens(str(options["tools"])) if options.get("tools") else 0
    for message in (item for row in messages for item in row):
        text = message if isinstance(message, str) else str(message.text)
        content = getattr(message, "content", "")
        blocks = content if isinstance(content, list) else []
        other_blocks = sum(isinstance(b, dict) and b.get("type") != "text" for b in blocks)
        tokens += 4 + estimate_tokens(text) + other_blocks * _TOKENS_PER_BLOCK
    return ModelCall(run_id, str(name), tokens, min(limits) if limits else None)


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens in a string."""
    latin = len(text.encode("ascii", "ignore"))
    return latin // 4 + len(text) - latin
