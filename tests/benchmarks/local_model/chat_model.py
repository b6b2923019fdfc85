"""The LangChain client of the local model, with the options that every system has."""

from __future__ import annotations

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel

from tests.benchmarks.local_model.systems import (
    CALL_TIMEOUT_SECONDS,
    MAX_TOKENS,
    MODEL,
    TEMPERATURE,
)


def chat_model(url: str) -> BaseChatModel:
    """Return a chat model for an OpenAI endpoint."""
    return init_chat_model(
        f"openai:{MODEL}",
        base_url=url,
        api_key="none",
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
        timeout=CALL_TIMEOUT_SECONDS,
        max_retries=0,
    )
