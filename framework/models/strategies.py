"""Function that creates the strategies that use chat models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from capgraph.base import require_extra
from capgraph.base.ports import AnyBehavior
from capgraph.configs.settings import Settings
from capgraph.helpers.clock import Clock
from capgraph.models.answering import ModelAnswerer
from capgraph.models.catalog import DeferringSelector, PlannerCatalog
from capgraph.models.extraction import ModelExtractor
from capgraph.models.planning import ModelPlanner
from capgraph.models.roles import (
    RoleModel,
    chat_models,
    fallback_models,
    structured_methods,
    without_streaming,
)
from capgraph.models.selection import ModelSelector, PerCapabilitySelector
from capgraph.models.wrapped_model import wrap_model
from capgraph.pipeline.middleware import model_middleware
from capgraph.prompts import PromptProvider, get_framework_prompts
from capgraph.prompts.nodes import IterativePlanningPrompt, OrchestratorPrompt
from capgraph.registry import Registry
from capgraph.selection import LexicalSelector, Selector


def model_strategies(
    configuration: Any,
    registry: Registry,
    settings: Settings,
    offline_selector: LexicalSelector,
    behaviors: Sequence[AnyBehavior] = (),
    *,
    role_behaviors: Mapping[str, Sequence[Any]] | None = None,
    has_custom_planner: bool = False,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Create the selection, planning, and answer strategies for roles that have a model.

    Args:
        configuration: Same as for :func:`~capgraph.models.roles.chat_models`.
        registry: Registry of the agent.
        settings: Settings of the agent.
        offline_selector: Selector that narrows the choice among many capabilities.
        behaviors: Middleware configured by the operator. Only middleware with a stage applies
            to model calls.
        role_behaviors: Middleware and hooks of each role, which run inside ``behaviors``.
        has_custom_planner: True if the application has its own planner, so that the selection
            of capabilities cannot be left to the planner.
        clock: Clock of the graph. ``None`` means the system clock.

    Returns:
        ``chat_model`` and, for roles that have a model, ``extractor``, ``selector``, ``planner``,
            and ``answerer``.

    Raises:
        ConfigurationError: A model cannot be created.
        MissingExtraError: A required package is not installed.
    """
    models, fallbacks = chat_models(configuration), fallback_models(configuration)
    prompts: PromptProvider = get_framework_prompts(getattr(settings, "prompts", None))
    limit = settings.limits.step_timeout_seconds
    shared = model_middleware(behaviors)
    role_extras = role_behaviors or {}
    methods = structured_methods(configuration)
    roles = {
        role: RoleModel(
            role,
            without_streaming(model, role),
            limit,
            (*shared, *role_extras.get(role, ())),
            clock,
            [without_streaming(model, role) for model in fallbacks[role]],
            methods[role],
        )
        for role, model in models.items()
    }
    wrapped = {
        role: wrap_model(replace(roles[role], model=models[role], fallbacks=fallbacks[role]))
        for role in models
    }
    strategies: dict[str, Any] = {"chat_model": wrapped.get}
    if "extraction" in roles:
        builder = prompts.get_task_extraction_prompt_builder()
        strategies["extractor"] = ModelExtractor(roles["extraction"], builder)
    selection = settings.selection
    mode = settings.planning.mode
    catalog = PlannerCatalog(
        registry,
        selection.max_catalog_tokens,
        is_brief=mode != "plan",
        # Models of grammar servers are small, and a parser reads a task more reliably.
        omits_parsed_parameters="planning" in roles and roles["planning"].schema_style == "grammar",
    )
    if "selection" in roles and selection.strategy != "lexical":
        if len(registry.capabilities) > selection.shortlist:
            require_extra("numpy", "offline")  # fail at build time, not at the first request
        is_per_capability = selection.strategy == "per_capability"
        builder = prompts.get_classification_prompt_builder()
        selector: Selector = (PerCapabilitySelector if is_per_capability else ModelSelector)(
            roles["selection"], builder, offline_selector, selection
        )
        # A separate selection model makes the choice itself.
        shares_model = models.get("planning") is models["selection"] and not has_custom_planner
        if shares_model and selection.strategy == "auto":
            recipe_selector = offline_selector if find_spec("numpy") else None
            selector = DeferringSelector(catalog, selector, recipe_selector)
        strategies["selector"] = selector
    if "planning" in roles:
        builder = prompts.get_orchestrator_prompt_builder()
        if mode == "look" and type(builder) is OrchestratorPrompt:
            builder = IterativePlanningPrompt()
        strategies["planner"] = ModelPlanner(
            roles["planning"],
            builder,
            catalog,
            settings.planning.features,
            mode,
            settings.planning.max_result_tokens,
            settings.planning.max_stored_results,
            isinstance(strategies.get("selector"), DeferringSelector),
        )
    if "answer" in roles:
        strategies["answerer"] = ModelAnswerer(roles["answer"], prompts)
    return strategies
