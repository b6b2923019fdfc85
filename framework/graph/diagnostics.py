"""Checks that find errors and warnings in an agent's configuration before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capgraph.base.errors import RegistryError
from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.configs.suggestions import suggest_fix

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.governance.caller_permissions import CallerPermissions
    from capgraph.registry import Registry
    from capgraph.state.state_schema import StateSchema


@dataclass(frozen=True, slots=True)
class Finding:
    """Single result of a configuration check.

    Attributes:
        area: Area that was checked, such as ``registry``.
        level: ``ok``, ``warning``, or ``error``.
        text: Description of the result.
        fix: Instruction that solves the problem. Empty if there is no problem.
    """

    area: str
    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""

    @classmethod
    def from_error(cls, area: str, error: Exception) -> Finding:
        """Create a finding with level ``error`` from an exception."""
        if isinstance(error, CapgraphError):
            return cls(area, "error", error.message, error.fix or "")
        return cls(area, "error", f"{type(error).__name__}: {error}", "Correct the cause.")


def collect_findings(
    registry: Registry,
    settings: Settings,
    *,
    offline: bool,
    has_saver: bool,
    permissions: CallerPermissions | None = None,
    schema: StateSchema | None = None,
) -> Iterator[Finding]:
    """Check the configuration of an agent and yield a finding for each result.

    Args:
        registry: Registry of the agent.
        settings: Settings of the agent.
        offline: True if the agent plans without a model.
        has_saver: True if a saver stores threads.
        permissions: Permissions of callers, if they are configured.
        schema: State schema of the graph. Defaults to that of ``AgentState``.

    >>> from capgraph.configs.settings import Settings
    >>> from capgraph.registry import Registry
    >>> next(collect_findings(Registry(), Settings(), offline=False, has_saver=True)).level
    'warning'
    """
    from capgraph.graph.state_key_reads import find_state_key_warnings
    from capgraph.graph.validate import find_registry_problems, find_registry_warnings
    from capgraph.models.unmetered_calls import find_unmetered_calls
    from capgraph.state import AgentState
    from capgraph.state.state_schema import StateSchema

    names = ", ".join(registry.capabilities)
    if names:
        yield Finding("registry", "ok", f"{len(registry.capabilities)} capabilities: {names}")
    else:
        text = "No capability is registered, so every question ends in 'Nothing here can do that'."
        fix = "List modules with capabilities under 'modules'."
        yield Finding("registry", "warning", text, fix)
    denied = permissions.approver_problems() if permissions is not None else []
    for text in (*find_registry_problems(registry), *denied):
        yield _create_finding("error", text)
    for text in find_registry_warnings(
        registry, offline=offline, has_saver=has_saver, permissions=permissions
    ):
        yield _create_finding("warning", text)
    for text in find_state_key_warnings(registry, schema or StateSchema.from_class(AgentState)):
        yield _create_finding("warning", text)
    yield from _check_queues(registry, settings)
    for name in registry.capabilities:
        yield from _check_guides(registry, name)
    for module in sorted({spec.cls.__module__ for spec in registry.capabilities.values()}):
        for line in find_unmetered_calls(module):
            yield Finding(
                "registry",
                "warning",
                f"{module}, line {line}: a call with its own callbacks or in its own thread does"
                " not inherit the callbacks of the run. If it calls a chat model, the call is not"
                " counted.",
                "Remove 'callbacks', or add yours to the configuration of the run. Start threads"
                " with asyncio.to_thread.",
            )
    yield from collect_settings_findings(settings, registry)


def _create_finding(level: Literal["warning", "error"], text: str) -> Finding:
    text, _, fix = text.partition(" Fix: ")
    return Finding("registry", level, text, fix)


def _check_queues(registry: Registry, settings: Settings) -> Iterator[Finding]:
    from capgraph.graph.validate import find_queue_warnings

    try:
        found = find_queue_warnings(registry, settings)
    except ConfigurationError as exc:
        yield Finding.from_error("configuration", exc)
        return
    for text in found:
        yield _create_finding("warning", text)


def _check_guides(registry: Registry, name: str) -> Iterator[Finding]:
    from capgraph.graph.validate import check_guides

    try:
        has_examples = check_guides(registry, name)
    except RegistryError as exc:
        yield Finding.from_error("registry", exc)
        return
    if not has_examples and not registry.capabilities[name].always_active:
        text = f"The capability {name!r} has no examples, so only its description is used to select it."
        yield Finding("registry", "warning", text, "Add examples of requests that need it.")


def _check_declared_objects(settings: Settings, registry: Registry) -> Iterator[Finding]:
    """Check that the objects declared in the settings can be created, and yield the errors."""
    from capgraph.engine.bind import resolve_answer_gate, resolve_policies
    from capgraph.engine.configured_objects import (
        build_configured,
        capability_behaviors,
        model_behaviors,
    )
    from capgraph.governance.budget_enforcement import budgets_from_settings, prices_from_settings
    from capgraph.governance.permission_settings import permissions_from_settings
    from capgraph.pipeline.runner import StepRunner
    from capgraph.pipeline.runner_config import RunnerConfig

    def check_behaviors(**behaviors: Any) -> bool:
        # The runner refuses behaviors that cannot wrap a step.
        StepRunner(RunnerConfig(registry, settings), **behaviors)
        return any(behaviors.values())

    roles = {f"models.{role}.behaviors": entry.behaviors for role, entry in settings.models.items()}
    checks: list[tuple[str, Any]] = [
        (
            "behaviors",
            lambda: check_behaviors(behaviors=build_configured(settings.behaviors, "behaviors")),
        ),
        (
            "capabilities.*.behaviors",
            lambda: check_behaviors(own_behaviors=capability_behaviors(registry, settings)),
        ),
        *(
            (where, partial(model_behaviors, behaviors, where))
            for where, behaviors in roles.items()
        ),
        ("policies", lambda: settings.policies and resolve_policies((), settings)),
        ("answer_gate", partial(resolve_answer_gate, None, settings)),
        ("sinks", partial(build_configured, settings.sinks, "sinks", "sink")),
        ("permissions", lambda: permissions_from_settings(settings.permissions, registry)),
        ("budgets", lambda: budgets_from_settings(settings.budgets)),
        ("prices", lambda: prices_from_settings(settings.prices)),
    ]
    for where, check in checks:
        try:
            is_declared = check()
        except CapgraphError as exc:
            yield Finding.from_error(where, exc)
            continue
        if is_declared:
            yield Finding(where, "ok", "valid")


def collect_settings_findings(settings: Settings, registry: Registry) -> Iterator[Finding]:
    """Check the settings of an agent and yield a finding for each problem.

    Problems include unknown capability names and invalid context data.
    """
    from capgraph.base import ValidationError
    from capgraph.state import load_context

    yield from _check_declared_objects(settings, registry)
    for path in settings.recipes:
        if not Path(path).exists():
            text = f"The recipe folder {path!r} does not exist yet."
            yield Finding("recipes", "ok", text, "'capgraph recipe save' creates it.")
    for name in settings.capabilities:
        if name not in registry.capabilities:
            text = f"capabilities.{name}: no capability with this name is registered."
            fix = suggest_fix(name, candidates=registry.capabilities)
            yield Finding("configuration", "warning", text, fix)
    for kind, entries in settings.context.items():
        if kind not in registry.context_types:
            text = f"context.{kind}: no context type with this name is registered."
            fix = suggest_fix(kind, candidates=registry.context_types)
            yield Finding("configuration", "warning", text, fix)
            continue
        for key, data in entries.items():
            try:
                load_context(kind, key, data, registry.context_types)
            except ValidationError as exc:
                yield Finding("configuration", "error", exc.message, "Correct the data.")
