"""Choice of strategies: model-based if a model is configured, offline otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capgraph.configs.errors import ConfigurationError
from capgraph.engine.configured_objects import model_behaviors
from capgraph.engine.default_strategies import ChainPlanner, LastMessageExtractor, SummaryAnswerer
from capgraph.engine.services import OperatorOptions
from capgraph.helpers.clock import Clock
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


def resolve_models(model: Any, settings: Settings) -> Any:
    """Return the configured models, preferring the ``model`` argument over the settings.

    The setting ``model`` is the default for roles that the setting ``models`` does not list.
    """
    configured = model if model is not None else (settings.model or settings.models or None)
    if isinstance(configured, str) and configured == settings.model and settings.models:
        return {"default": configured, **settings.models}
    return configured


def choose_strategies(
    registry: Registry,
    settings: Settings,
    model: Any,
    options: OperatorOptions,
    clock: Clock | None,
) -> dict[str, Any]:
    """Choose the selector, extractor, planner, answerer, and chat model of an agent.

    The result maps ``selector``, ``extractor``, ``planner``, ``answerer``, and ``chat_model``
    to the chosen objects.

    Args:
        registry: Registered capabilities.
        settings: Settings of the agent.
        model: Chat model, name of a model, mapping from role to model, or ``None``.
        options: Options of the operator; strategies in them take precedence.
        clock: Clock of the graph.

    Raises:
        ConfigurationError: The configured selection strategy requires a chat model, and none is
            configured.
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

        behaviors_by_role = role_behaviors(configured)
        chosen |= model_strategies(
            configured,
            registry,
            settings,
            offline,
            options.get("behaviors", ()),
            role_behaviors={
                role: model_behaviors(custom, f"models.{role}.behaviors")
                for role, custom in behaviors_by_role.items()
                if custom
            },
            has_custom_planner="planner" in options,
            clock=clock,
        )
    elif strategy in {"model", "per_capability"}:
        raise ConfigurationError(
            f"selection.strategy {strategy!r} requires a chat model: none is configured.",
            fix="set 'model', or use the strategy 'auto'.",
        )
    custom: dict[str, Any] = dict(options)
    return {name: custom.get(name, default) for name, default in chosen.items()}
