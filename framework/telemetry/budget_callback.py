"""Who pays for the model calls of a turn, and how they are told of each call.

A call on the event loop is reserved by :data:`CASHIER`, a call of a thread by the meter, which waits
for the loop meanwhile. A call that holds up the loop itself is counted when it ended: nothing could be
reserved while the loop stands still.
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

_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
_TOKENS_OF_A_BLOCK = 1000  # an image or a file; none of them says how many


class ModelCall(NamedTuple):
    """A call of a model that is about to be sent.

    Attributes:
        run_id: Names it.
        model: The model.
        prompt_tokens: About how long the prompt is.
        max_output_tokens: The most tokens that it may answer; ``None`` when nobody said.
        task: The task that waits for it; ``None`` for one that a thread makes.
    """

    run_id: UUID
    model: str
    prompt_tokens: int
    max_output_tokens: int | None = None
    task: asyncio.Task[Any] | None = None


class Account(Protocol):
    """Pays for the calls of a turn; lives on the event loop on which the turn does."""

    loop: asyncio.AbstractEventLoop

    def has_reserved(self, run_id: UUID) -> bool:
        """Tell whether a call was reserved."""

    async def reserve_call(self, call: ModelCall) -> None:
        """Reserve for a call; what is raised keeps it from being sent."""

    async def settle_call(
        self, run_id: UUID, model: str, usage: UsageSnapshot | None, *, failed: bool = False
    ) -> None:
        """Settle a call that was reserved."""

    def record_call(self, run_id: UUID, model: str, role: str, usage: UsageSnapshot) -> None:
        """Take up what a call used; one that was not reserved counts now."""


def charge_to(account: Account | None) -> AbstractContextManager[None]:
    """Have an account pay for the model calls of what runs inside, beside those around it."""
    around = current_accounts()
    return override_run_context(accounts=around if account is None else (account, *around))


def current_accounts() -> tuple[Account, ...]:
    """Return who pays for calls made here, the innermost turn's first."""
    return run_context().accounts


def reported_usage(
    response: LLMResult, default_model: str = ""
) -> tuple[str, UsageSnapshot | None]:
    """Return the model and what it used, as it says itself."""
    for generation in (item for row in response.generations for item in row):
        if isinstance(generation, ChatGeneration):
            message = generation.message
            if (usage := UsageSnapshot.of_message(message)) is not None:
                return (message.response_metadata or {}).get("model_name") or default_model, usage
    return default_model, None


class BudgetCallback(AsyncCallbackHandler):
    """Pays for the calls that the event loop waits for."""

    raise_error = True
    run_inline = True  # in the task that makes the call
    ignore_chain = ignore_agent = ignore_retriever = True

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        **more: Any,
    ) -> None:
        """Reserve for a call before it is sent."""
        for account in _here():
            call = estimate_call(run_id, serialized, messages, more)
            await account.reserve_call(call._replace(task=asyncio.current_task()))

    async def on_llm_start(
        self, serialized: dict[str, Any] | None, prompts: list[str], **more: Any
    ) -> None:
        """Reserve for a call of a model without messages."""
        await self.on_chat_model_start(serialized, [prompts], **more)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Settle a call."""
        for account in _here():
            await account.settle_call(run_id, *reported_usage(response))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Settle a call that failed."""
        for account in _here():
            await account.settle_call(run_id, "", None, failed=True)


BUDGET_CALLBACK = BudgetCallback()


def reserve_from_thread(
    run_id: UUID,
    serialized: Any,
    messages: Sequence[Sequence[Any]],
    callback_kwargs: Mapping[str, Any],
) -> None:
    """Reserve for a call that a thread without an event loop is about to send."""
    if not _on_a_loop():
        for account in current_accounts():
            _wait(
                account,
                account.reserve_call(estimate_call(run_id, serialized, messages, callback_kwargs)),
            )


def record_model_usage(run_id: UUID, model: str, role: str, usage: UsageSnapshot | None) -> None:
    """Take up what a call used, and settle it where a thread made it."""
    for account in current_accounts():
        if usage is not None:
            account.record_call(run_id, model, role, usage)
        if not _on_a_loop():
            _wait(account, account.settle_call(run_id, model, usage))


def settle_failed_call(run_id: UUID) -> None:
    """Settle a call that failed where a thread made it."""
    if not _on_a_loop():
        for account in current_accounts():
            _wait(account, account.settle_call(run_id, "", None, failed=True))


def _here() -> list[Account]:
    here = asyncio.get_running_loop()
    return [account for account in current_accounts() if account.loop is here]


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _wait(account: Account, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, account.loop).result()


def estimate_call(
    run_id: UUID,
    serialized: Any,
    messages: Sequence[Sequence[Any]],
    callback_kwargs: Mapping[str, Any],
) -> ModelCall:
    """Estimate a call: four letters of the Latin alphabet make a token, of others one."""
    metadata = callback_kwargs.get("metadata") or {}
    name = metadata.get("ls_model_name") or (serialized or {}).get("name") or ""
    options = {
        **(callback_kwargs.get("invocation_params") or {}),
        **(callback_kwargs.get("options") or {}),
    }
    caps = [options[name] for name in _CAPS if isinstance(options.get(name), int)]
    caps += [cap for cap in [metadata.get("ls_max_tokens")] if isinstance(cap, int)]
    tokens = estimate_tokens(str(options["tools"])) if options.get("tools") else 0
    for message in (item for row in messages for item in row):
        text = message if isinstance(message, str) else str(message.text)
        content = getattr(message, "content", "")
        blocks = content if isinstance(content, list) else []
        others = sum(isinstance(b, dict) and b.get("type") != "text" for b in blocks)
        tokens += 4 + estimate_tokens(text) + others * _TOKENS_OF_A_BLOCK
    return ModelCall(run_id, str(name), tokens, min(caps) if caps else None)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    latin = len(text.encode("ascii", "ignore"))
    return latin // 4 + len(text) - latin
