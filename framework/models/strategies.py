"""The strategies that use chat models, for the roles that have one."""

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
from capgraph.models.extraction import ModelExtractor
from capgraph.models.planning import DeferringSelector, ModelPlanner, PlannerCatalog
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
    """Return strategies for the roles that have a model.

    Args:
        configuration: ``"provider:name"``, a chat model or ``ModelSettings`` for every role, or a
            mapping from role (or ``default``) to one of these.
        registry: What the agent is made of.
        settings: All settings.
        offline_selector: Narrows the choice where there are many capabilities.
        behaviors: What the operator puts around attempts; those with a stage stand around model
            calls too.
        role_behaviors: Role to what stands around its calls besides, inside of those; hooks too.
        has_custom_planner: Whether the application plans itself, so that nothing is left to the planner.
        clock: The graph's clock; ``None`` for the machine's.

    Returns:
        ``chat_model`` and, as far as there are models for them, ``extractor``, ``selector``,
        ``planner`` and ``answerer``.

    Raises:
        ConfigurationError: A model cannot be made.
        MissingExtraError: A package is not installed.
    """
    models, fallbacks = chat_models(configuration), fallback_models(configuration)
    prompts: PromptProvider = get_framework_prompts(getattr(settings, "prompts", None))
    limit = settings.limits.step_timeout_seconds
    shared = model_middleware(behaviors)
    own = role_behaviors or {}
    methods = structured_methods(configuration)
    roles = {
        role: RoleModel(
            role,
            without_streaming(model, role),
            limit,
            (*shared, *own.get(role, ())),
            clock,
            [without_streaming(model, role) for model in fallbacks[role]],
            methods[role],
        )
        for role, model in models.items()
    }
    around = {
        role: wrap_model(replace(roles[role], model=models[role], fallbacks=fallbacks[role]))
        for role in models
    }
    chosen: dict[str, Any] = {"chat_model": around.get}
    if "extraction" in roles:
        builder = prompts.get_task_extraction_prompt_builder()
        chosen["extractor"] = ModelExtractor(roles["extraction"], builder)
    wanted = settings.selection
    mode = settings.planning.mode
    catalogue = PlannerCatalog(registry, wanted.max_catalog_tokens, is_brief=mode != "plan")
    if "selection" in roles and wanted.strategy != "lexical":
        if len(registry.capabilities) > wanted.shortlist:
            require_extra("numpy", "offline")  # now, not at the first request
        each = wanted.strategy == "per_capability"
        builder = prompts.get_classification_prompt_builder()
        selector: Selector = (PerCapabilitySelector if each else ModelSelector)(
            roles["selection"], builder, offline_selector, wanted
        )
        # Who gives the choice a model of its own wants it made by that.
        one = models.get("planning") is models["selection"] and not has_custom_planner
        if one and wanted.strategy == "auto":
            taught = offline_selector if find_spec("numpy") else None
            selector = DeferringSelector(catalogue, selector, taught)
        chosen["selector"] = selector
    if "planning" in roles:
        builder = prompts.get_orchestrator_prompt_builder()
        if mode == "look" and type(builder) is OrchestratorPrompt:
            builder = IterativePlanningPrompt()
        chosen["planner"] = ModelPlanner(
            roles["planning"],
            builder,
            catalogue,
            settings.planning.features,
            mode,
            settings.planning.max_result_tokens,
            settings.planning.max_stored_results,
            isinstance(chosen.get("selector"), DeferringSelector),
        )
    if "answer" in roles:
        chosen["answerer"] = ModelAnswerer(roles["answer"], prompts)
    return chosen
