"""Which strategy each node uses: with a model where there is one, offline otherwise."""

from __future__ import annotations

from typing import Any

from configs.errors import ConfigurationError
from framework.base.ports import Middleware
from framework.engine.default_strategies import ChainPlanner, LastMessageExtractor, SummaryAnswerer
from framework.engine.services import OperatorOptions
from framework.registry import Registry


def choose_strategies(
    registry: Registry,
    settings: Any,
    model: Any,
    options: OperatorOptions,
) -> dict[str, Any]:
    """Return ``selector``, ``extractor``, ``planner``, ``answerer`` and ``chat_model``.

    Args:
        registry: What the agent is made of.
        settings: All settings.
        model: A model, a description of one, one for each role, or ``None``.
        options: What the operator decided; strategies that are given win.

    Raises:
        ConfigurationError: A strategy that needs a model is set, and there is none.
    """
    from framework.selection import EmbeddingSelector, LexicalSelector

    embeddings = options.get("embeddings")
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
            configured,
            registry,
            settings,
            offline,
            # Hooks without a stage are about steps; a model's role brings its own.
            [item for item in options.get("behaviors", ()) if isinstance(item, Middleware)],
            own_planner="planner" in options,
            clock=options.get("clock"),
        )
    elif strategy in {"model", "per_capability"}:
        raise ConfigurationError(
            f"selection.strategy is {strategy!r}, and no chat model is configured.",
            fix="Set 'model', or use the strategy 'auto'.",
        )
    given: dict[str, Any] = dict(options)
    return {name: given.get(name, found) for name, found in chosen.items()}
