"""Which strategy each node uses: with a model where there is one, offline otherwise."""

from __future__ import annotations

from typing import Any

from capgraph.configs.errors import ConfigurationError
from capgraph.engine.configured_objects import model_behaviors
from capgraph.engine.default_strategies import ChainPlanner, LastMessageExtractor, SummaryAnswerer
from capgraph.engine.services import OperatorOptions
from capgraph.helpers.clock import Clock
from capgraph.registry import Registry


def resolve_models(model: Any, settings: Any) -> Any:
    """Return the models of an agent: those that its caller names, else those of the settings.

    A setting ``model`` is the default of the roles that ``models`` leaves out.
    """
    configured = model if model is not None else (settings.model or settings.models or None)
    if isinstance(configured, str) and configured == settings.model and settings.models:
        return {"default": configured, **settings.models}
    return configured


def choose_strategies(
    registry: Registry,
    settings: Any,
    model: Any,
    options: OperatorOptions,
    clock: Clock | None,
) -> dict[str, Any]:
    """Return ``selector``, ``extractor``, ``planner``, ``answerer`` and ``chat_model``.

    Args:
        registry: What the agent is made of.
        settings: All settings.
        model: A model, a description of one, one for each role, or ``None``.
        options: What the operator decided; strategies that are given win.
        clock: Source of time.

    Raises:
        ConfigurationError: A strategy that needs a model is set, and there is none.
    """
    from capgraph.selection import EmbeddingSelector, LexicalSelector

    embeddings = options.get("embeddings")
    offline = EmbeddingSelector(embeddings) if embeddings is not None else LexicalSelector()
    chosen: dict[str, Any] = {
        "selector": offline,
        "extractor": LastMessageExtractor(),
        "planner": ChainPlanner(),
        "answerer": SummaryAnswerer(),
    }
    strategy = settings.selection.strategy
    configured = resolve_models(model, settings)
    if configured is not None:
        from capgraph.models import model_strategies, role_behaviors

        own = role_behaviors(configured)
        chosen |= model_strategies(
            configured,
            registry,
            settings,
            offline,
            options.get("behaviors", ()),
            role_behaviors={
                role: model_behaviors(given, f"models.{role}.behaviors")
                for role, given in own.items()
                if given
            },
            has_custom_planner="planner" in options,
            clock=clock,
        )
    elif strategy in {"model", "per_capability"}:
        raise ConfigurationError(
            f"selection.strategy is {strategy!r}, and no chat model is configured.",
            fix="Set 'model', or use the strategy 'auto'.",
        )
    given: dict[str, Any] = dict(options)
    return {name: given.get(name, found) for name, found in chosen.items()}
