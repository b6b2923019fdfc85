"""What stands in when something fails: a default, another model, a shorter conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage

from capgraph.base.error_classification import diagnose
from capgraph.base.errors import ConfigurationError, ModelError
from capgraph.base.ports import Attempt, CallNext
from capgraph.behaviors.base import BaseBehavior, BehaviorContext
from capgraph.helpers.async_calls import maybe_await

_UNSET: Any = object()


class FallbackBehavior(BaseBehavior):
    """Gives something else when a step, a node or a model call failed for good.

    One of these:

    - ``default``: a result, or a function of ``(context, error)``, sync or async, that gives one
      (``None`` lets the failure stand). It is checked like the capability's own, and the record
      says ``fallback``. Never for what has an effect: a default would say that something happened.
    - ``models``: of a model call, the models that are asked one after the other when the role's
      own fails. ``router`` chooses among them by name, in place of their order.
    - ``keep_messages``: of a model call, when its prompt is too long, it is sent again with the
      system messages and the last so many others.

    Args:
        default: See above.
        models: Chat models or ``"provider:name"``; or name to one of these.
        router: Has ``select(*, scenario, attempt, current, exclude)``, such as
            ``RoundRobinProviderRouter``.
        keep_messages: See above.

    Raises:
        ConfigurationError: Not exactly one is given, or a model cannot be made.

    >>> FallbackBehavior(default={"litres": 0})
    FallbackBehavior(default)
    """

    def __init__(
        self,
        *,
        default: Any = _UNSET,
        models: Sequence[Any] | Mapping[str, Any] = (),
        router: Any = None,
        keep_messages: int | None = None,
    ) -> None:
        ways = {
            "default": default is not _UNSET and default is not None,
            "models": bool(models),
            "keep_messages": keep_messages is not None and keep_messages > 0,
        }
        given = [name for name, used in ways.items() if used]
        if len(given) != 1 or (router is not None and not models):
            raise ConfigurationError(
                f"FallbackBehavior got {', '.join(given) or 'nothing'} to fall back on"
                f"{' and a router' if router is not None else ''}.",
                fix="Give one of default=…, models=[…] (with a router, if you like) and"
                " keep_messages=….",
            )
        self._strategy = given[0]
        self._default = default
        self._keep_messages = keep_messages or 0
        self._router = router
        self._models = _models_by_name(models)
        self.applies_to: tuple[str, ...] = ("step", "model", "node")
        if self._strategy != "default":
            self.stage = "call"
            self.applies_to = ("model",)

    def __repr__(self) -> str:
        return f"FallbackBehavior({getattr(self, '_strategy', '')})"

    async def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        """Give the default."""
        if self._strategy != "default":
            return None
        if callable(self._default):
            return await maybe_await(self._default(context, error))
        return await maybe_await(self._default)

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Ask another model, or ask with less, when a model call fails."""
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

        tried: list[str] = []
        while (name := self._choose_model(attempt, tried)) is not None:
            tried.append(name)
            model = self._models[name]
            whole = without_streaming(model, attempt.capability)
            try:
                return await call_next(_replace_inputs(attempt, model=whole))
            except ModelError as exc:
                exc.add_note(f"Before it failed: {error}")
                error = exc
        raise error

    def _choose_model(self, attempt: Attempt, tried: Sequence[str]) -> str | None:
        from capgraph.models.roles import model_name

        left = [name for name in self._models if name not in tried]
        if self._router is None or not left:
            return left[0] if left else None
        chosen = self._router.select(
            scenario="provider_failure",
            attempt=len(tried) + 1,
            current=tried[-1] if tried else model_name(attempt.inputs["model"]),
            exclude=tuple(tried),
        )
        return chosen if chosen in left else None

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


def _models_by_name(models: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if not models:
        return {}
    from capgraph.models.roles import chat_models, model_name

    if isinstance(models, Mapping):
        return {name: chat_models(model)["answer"] for name, model in models.items()}
    made = [chat_models(model)["answer"] for model in models]
    names = [model_name(model) for model in made]
    # Models of one name, such as two accounts of one provider, are told apart by their place.
    return {
        name if names.count(name) == 1 else f"{name}#{place + 1}": model
        for place, (name, model) in enumerate(zip(names, made, strict=True))
    }
