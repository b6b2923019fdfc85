"""techrevati-runtime's session hooks.

A graph uses ``PIIGuardrail``, ``AuditBehavior``, and ``Budget`` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from capgraph.base.errors import CapgraphError
from capgraph.behaviors import GuardrailViolationError, PIIGuardrail
from capgraph.compat.session import HookContext
from capgraph.helpers.number_validation import check_number

_CHARS_PER_TOKEN = 4


class RedactPIIHook:
    """Hook that redacts personal data in prompts, responses, and tool arguments.

    The hook redacts strings, dictionaries, lists, and LangChain messages. Other objects and the
    parts of a streamed response are left unchanged.

    Args:
        guardrail: Guardrail that detects personal data. Defaults to pattern matching only. A
            guardrail whose action is not ``rewrite`` rejects the call instead.
        name: Name of the hook.

    >>> hook = RedactPIIHook()
    >>> context = HookContext("writer", "draft", prompt="Write to ann@example.com.")
    >>> hook.before_model(context)
    >>> context.prompt
    'Write to [e-mail address].'
    """

    def __init__(self, guardrail: PIIGuardrail | None = None, *, name: str = "redact_pii") -> None:
        self.name = name
        self._guardrail = guardrail or PIIGuardrail(action="rewrite", analyzer=None)

    def before_model(self, context: HookContext) -> None:
        """Redact personal data in the prompt before the model is called."""
        context.prompt = self._redact(context.prompt)

    def after_model(self, context: HookContext, result: Any) -> Any:
        """Return the model response with personal data redacted."""
        return self._redact(result)

    def before_tool(self, context: HookContext) -> None:
        """Redact personal data in the arguments of a tool before it is called."""
        context.args = self._redact(context.args)

    def _redact(self, value: Any) -> Any:
        if isinstance(value, BaseMessage):
            return value.model_copy(update={"content": self._redact(value.content)})
        if isinstance(value, Mapping):
            return {name: self._redact(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._redact, value))
        if not isinstance(value, str):
            return value
        outcome = self._guardrail.check_post(value, role="", tool="")
        if outcome.decision not in ("allow", "rewrite"):
            raise GuardrailViolationError(self.name, outcome.reason or "")
        return value if outcome.decision == "allow" else outcome.value


class LogModelIOHook:
    """Hook that logs each model call, by default without the prompt and the response.

    Args:
        logger: Logger to use. Defaults to the logger of this module.
        level: Log level of the records.
        include_prompt: True to log prompts.
        include_result: True to log responses.
        max_chars: Maximum number of characters logged per prompt or response.
        name: Name of the hook.
    """

    def __init__(
        self,
        *,
        logger: logging.Logger | None = None,
        level: int = logging.INFO,
        include_prompt: bool = False,
        include_result: bool = False,
        max_chars: int = 4000,
        name: str = "log_model_io",
    ) -> None:
        check_number("max_chars", max_chars, above=0, integer=True)
        self.name = name
        self._logger, self._level = logger or logging.getLogger(__name__), level
        self._is_included = {"prompt": include_prompt, "result": include_result}
        self._max_chars = max_chars

    def before_model(self, context: HookContext) -> None:
        """Log the start of a model call as ``model_input``."""
        self._log("model_input", context, "prompt", context.prompt)

    def after_model(self, context: HookContext, result: Any) -> Any:
        """Log the end of a model call as ``model_output``, and return the response unchanged."""
        self._log("model_output", context, "result", result)
        return result

    def _log(self, message: str, context: HookContext, field: str, value: Any) -> None:
        is_included = self._is_included[field]
        extra: dict[str, Any] = {
            name: getattr(context, name) for name in ("role", "phase", "model")
        }
        extra[f"{field}_logged"] = is_included
        if is_included:
            text = value if isinstance(value, str) else repr(value)
            is_long = len(text) > self._max_chars
            extra[field] = f"{text[: self._max_chars]}…(truncated)" if is_long else text
        self._logger.log(self._level, message, extra=extra)


class HookBudgetExceededError(CapgraphError):
    """Raised if a prompt exceeds the token limit of a ``TokenBudgetCheckHook``.

    Attributes:
        estimated: Estimated number of tokens.
        limit: Maximum number of tokens.
        model: Name of the model.
    """

    code = "CG-LIMIT"
    estimated: int = 0
    limit: int = 0
    model: str = ""


class TokenBudgetCheckHook:
    """Hook that rejects a prompt with too many tokens before the model is called.

    The rejection is classified as the recovery scenario ``context_overflow``.

    Args:
        token_limit: Maximum number of tokens allowed in a prompt.
        estimator: Function that estimates a prompt's token count. By default, one token for every
            four characters.
        name: Name of the hook.
    """

    def __init__(
        self,
        *,
        token_limit: int,
        estimator: Callable[[Any], float] | None = None,
        name: str = "token_budget_check",
    ) -> None:
        check_number("token_limit", token_limit, above=0, integer=True)
        self.name: str = name
        self.token_limit: int = token_limit
        self._estimator = estimator or (lambda prompt: len(str(prompt)) // _CHARS_PER_TOKEN)

    def before_model(self, context: HookContext) -> None:
        """Raise an error if the estimated number of tokens in the prompt exceeds the limit.

        Raises:
            HookBudgetExceededError: The prompt has too many tokens.
        """
        estimated = self._estimator(context.prompt)
        check_number("the estimated number of tokens", estimated)
        if estimated > self.token_limit:
            raise HookBudgetExceededError(
                f"The prompt has about {estimated:g} tokens: the token limit is {self.token_limit}.",
                fix="Shorten the prompt, or raise token_limit.",
                estimated=int(estimated),
                limit=self.token_limit,
                model=context.model,
            )
