"""Which strategy each node uses: with a model where there is one, offline otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ConfigurationError
from framework.base.ports import Middleware
from framework.engine.default_strategies import ChainPlanner, LastMessageExtractor, SummaryAnswerer
from framework.registry import Registry


def choose_strategies(
    registry: Registry,
    settings: Any,
    model: Any,
    embeddings: Any,
    given: Mapping[str, Any],
    behaviors: Sequence[Middleware] = (),
) -> dict[str, Any]:
    """Return ``selector``, ``extractor``, ``planner``, ``answerer`` and ``chat_model``.

    Args:
        registry: What the agent is made of.
        settings: All settings.
        model: A model, a description of one, one for each role, or ``None``.
        embeddings: LangChain ``Embeddings`` for the offline choice.
        given: Strategies that the caller brings; they win.
        behaviors: What stands around each model call.

    Raises:
        TypeError: ``given`` names an unknown strategy.
        ConfigurationError: A strategy that needs a model is set, and there is none.
    """
    unknown = set(given) - {"selector", "extractor", "planner", "answerer"}
    if unknown:
        raise TypeError(f"build_graph got unexpected arguments {sorted(unknown)}.")
    from framework.selection import EmbeddingSelector, LexicalSelector

    offline = EmbeddingSelector(embeddings) if embeddings is not None else LexicalSelector()
    chosen: dict[str, Any] = {
        "selector": offline,
        "extractor": LastMessageExtractor(),
        "planner": ChainPlanner(),
        "answerer": SummaryAnswerer(),
    }
    strategy = settings.selection.strategy
    configured = model if model is not None else (settings.model or settings.models or None)
    if configured is not None:
        from framework.models import model_strategies

        chosen |= model_strategies(
            configured, registry, settings, offline, behaviors, own_planner="planner" in given
        )
    elif strategy in {"model", "per_capability"}:
        raise ConfigurationError(
            f"selection.strategy is {strategy!r}, and no chat model is configured.",
            fix="Set 'model', or use the strategy 'auto'.",
        )
    return {**chosen, **given}
