"""Behavior with fallbacks for failures: a default result, another model, or a shorter prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage

from capgraph.base.error_classification import diagnose
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.base.ports import Attempt, CallNext
from capgraph.behaviors.base import BaseBehavior, BehaviorContext
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.async_calls import maybe_await

_UNSET: Any = object()


class FallbackBehavior(BaseBehavior):
    """Behavior that replaces the final failure of a step, a node, or a model call by a fallback.

    Pass one of these:

    - ``default``: a result, or a function of ``(context, error)``, sync or async, that returns a
      result, or ``None`` to keep the failure. The default is validated like the capability's own
      result, and its record has the source ``fallback``. Steps with an effect get no default,
      because it would report an effect that did not happen.
    - ``models``: models to call, one after another, when the model of a role fails. ``router``
      selects among them by name instead of by order.
    - ``keep_messages``: number of messages to keep, in addition to system messages, when a prompt
      is too long. The call is then repeated with the shorter prompt.

    Args:
        default: Default result, as above.
        models: Chat models or ``"provider:name"``, or a mapping from names to these.
        router: Router with ``select(*, scenario, attempt, current, exclude)``, such as
            ``RoundRobinProviderRouter``.
        keep_messages: Number of messages to keep, as above.

    Raises:
        ConfigurationError: Not exactly one of them is passed, or a model cannot be created.

    >>> FallbackBehavior(default={"litres": 0})
    FallbackBehavior(default)
    """

    @validate_arguments
    def __init__(
        self,
        *,
        default: Any = _UNSET,
        models: Sequence[Any] | Mapping[str, Any] = (),
        router: Any = None,
        keep_messages: int | None = None,
    ) -> None:
        strategies = {
            "default": default is not _UNSET and default is not None,
            "models": bool(models),
            "keep_messages": keep_messages is not None and keep_messages > 0,
        }
        selected = [name for name, used in strategies.items() if used]
        if len(selected) != 1 or (router is not None and not models):
            raise ConfigurationError(
                f"FallbackBehavior has {', '.join(selected) or 'no fallback'}{(' and a router' if router is not None else '')}: it must have exactly one fallback.",
                fix=(
                    "Pass one of default=…, models=[…] (optionally with a router), and"
                    " keep_messages=…."
                ),
            )
        self._strategy = selected[0]
        self._default = default
        self._keep_messages = keep_messages or 0
        self._router = router
        self._models = _index_models(models)
        self.applies_to: tuple[str, ...] = ("step", "model", "node")
        if self._strategy != "default":
            self.stage = "call"
            self.applies_to = ("model",)

    def __repr__(self) -> str:
        return f"FallbackBehavior({getattr(self, '_strategy', '')})"

    async def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Return the default result as a fallback for a failed step, or None without a default."""
        if self._strategy != "default":
            return None
        if callable(self._default):
            return await maybe_await(self._default(context, error))
        return await maybe_await(self._default)

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Retry a failed model call with a different model or with a shorter prompt."""
        try:
            return await call_next(attempt)
        except ModelError as exc:
            error = exc
        if self._strategy == "keep_messages":
            shorter = self._truncate(attempt.inputs["messages"])
            if diagnose(error).category != "context_too_long" or shorter is None:
                raise error
            return await call_next(_replace_inputs(attempt, messages=shorter))
        from capgraph.models.roles import without_streaming

        failed: list[str] = []
        while (name := self._choose_model(attempt, failed)) is not None:
            failed.append(name)
            model = self._models[name]
            unstreamed_model = without_streaming(model, attempt.capability)
            try:
                return await call_next(_replace_inputs(attempt, model=unstreamed_model))
            except ModelError as exc:
                exc.add_note(f"An earlier model failed: {error}")
                error = exc
        raise error

    def _choose_model(self, attempt: Attempt, failed: Sequence[str]) -> str | None:
        from capgraph.models.roles import model_name

        remaining = [name for name in self._models if name not in failed]
        if self._router is None or not remaining:
            return remaining[0] if remaining else None
        chosen = self._router.select(
            scenario="provider_failure",
            attempt=len(failed) + 1,
            current=failed[-1] if failed else model_name(attempt.inputs["model"]),
            exclude=tuple(failed),
        )
        return chosen if chosen in remaining else None

    def _truncate(self, messages: Sequence[BaseMessage]) -> list[BaseMessage] | None:
        system = [message for message in messages if isinstance(message, SystemMessage)]
        others = [message for message in messages if not isinstance(message, SystemMessage)]
        return (
            [*system, *others[-self._keep_messages :]]
            if len(others) > self._keep_messages
            else None
        )


def _replace_inputs(attempt: Attempt, **changes: Any) -> Attempt:
    return replace(attempt, inputs={**attempt.inputs, **changes})


def _index_models(models: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if not models:
        return {}
    from capgraph.models.roles import chat_models, model_name

    if isinstance(models, Mapping):
        return {name: chat_models(model)["answer"] for name, model in models.items()}
    chat_models_list = [chat_models(model)["answer"] for model in models]
    names = [model_name(model) for model in chat_models_list]
    # Models of the same name, such as two accounts of one provider, are numbered.
    return {
        name if names.count(name) == 1 else f"{name}#{index + 1}": model
        for index, (name, model) in enumerate(zip(names, chat_models_list, strict=True))
    }
