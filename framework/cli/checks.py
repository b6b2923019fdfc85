"""What ``capgraph check`` looks at: each finding says what is wrong and how to mend it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from configs.errors import CapgraphError

if TYPE_CHECKING:
    from configs.settings import Settings
    from framework.registry import Registry

MODEL_SECONDS = 20.0
"""How long a model has to answer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        area: What it belongs to.
        level: ``ok``, ``warning`` (works, but …) or ``error``.
        text: What was found.
        fix: How to mend it.
    """

    area: str
    level: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""

    @classmethod
    def of_error(cls, area: str, error: Exception) -> Finding:
        """Return the finding that an error makes."""
        if isinstance(error, CapgraphError):
            return cls(area, "error", error.message, error.fix or "")
        return cls(area, "error", f"{type(error).__name__}: {error}", "Correct what it names.")


def check_registry(settings: Settings) -> tuple[Registry | None, list[Finding]]:
    """Load every module by itself, so that one that is broken does not hide the next."""
    from framework.base import RegistryError
    from framework.graph.validate import problems_of
    from framework.registry import Registry

    findings: list[Finding] = []
    try:
        registry = Registry(infrastructure=settings.infrastructure, given=settings.given)
    except RegistryError as exc:
        return None, [Finding.of_error("registry", exc)]
    for module in settings.modules:
        try:
            registry.discover(module)
        except CapgraphError as exc:
            findings.append(Finding.of_error("registry", exc))
    try:
        registry.configure(
            include=settings.include, exclude=settings.exclude, override=settings.override
        )
    except RegistryError as exc:
        findings.append(Finding.of_error("registry", exc))
    for problem in problems_of(registry):
        text, _, fix = problem.partition(" Fix: ")
        findings.append(Finding("registry", "error", text, fix))
    for name in registry.capabilities:
        findings += _guides(registry, name)
    findings += _uncounted(registry)
    if not registry.capabilities:
        findings.append(
            Finding(
                "registry",
                "warning",
                "No capability is registered, so every question ends in 'Nothing here can do that'.",
                "Name modules that hold capabilities under 'modules'.",
            )
        )
    elif not findings:
        text = f"{len(registry.capabilities)} capabilities: {', '.join(registry.capabilities)}"
        findings.append(Finding("registry", "ok", text))
    return registry, findings


def _guides(registry: Registry, name: str) -> Iterator[Finding]:
    try:
        held = registry.capability(name)
        examples = held.classifier_guide
        _ = held.orchestrator_guide
    except Exception as exc:
        fix = "Correct _create_classifier_guide or _create_orchestrator_guide."
        yield Finding("registry", "error", f"The guides of {name!r} cannot be made: {exc!r}", fix)
        return
    if examples is None and not registry.capabilities[name].always_active:
        yield Finding(
            "registry",
            "warning",
            f"The capability {name!r} has no examples, so it is chosen by its description alone.",
            "Give it examples of requests that need it.",
        )


def _uncounted(registry: Registry) -> Iterator[Finding]:
    from framework.models.uncounted import uncounted_calls

    for module in sorted({spec.cls.__module__ for spec in registry.capabilities.values()}):
        for line in uncounted_calls(module):
            yield Finding(
                "registry",
                "warning",
                f"{module}, line {line}: a call with callbacks of its own does not inherit the"
                " run's; if it reaches a chat model, nobody counts it.",
                "Leave 'callbacks' out, or add yours to the configuration of the run.",
            )


def check_promises(
    registry: Registry, settings: Settings, model: str | None, url: str
) -> list[Finding]:
    """Find what works, but not as one may think: effects without a saver, parameters offline."""
    from framework.cli.agent import MEMORY
    from framework.graph.validate import warnings_of

    offline = not (model or settings.model or settings.models)
    found = []
    for text in warnings_of(registry, offline=offline, saved=url not in ("", MEMORY)):
        told, _, fix = text.partition(" Fix: ")
        found.append(Finding("registry", "warning", told, fix))
    return found


def check_settings(settings: Settings, registry: Registry) -> list[Finding]:
    """Find sections that name nothing, and context data that does not fit."""
    from framework.base import ValidationError
    from framework.state import load_context

    findings = [
        Finding(
            "configuration",
            "warning",
            f"capabilities.{name} configures a capability that is not registered.",
            f"Use one of: {', '.join(registry.capabilities) or 'none is registered'}.",
        )
        for name in settings.capabilities
        if name not in registry.capabilities
    ]
    for kind, entries in settings.context.items():
        if kind not in registry.context_types:
            text = f"context.{kind} is of a type that is not registered."
            findings.append(Finding("configuration", "warning", text, "Check the spelling."))
            continue
        for key, data in entries.items():
            try:
                load_context(kind, key, data, registry.context_types)
            except ValidationError as exc:
                findings.append(Finding("configuration", "error", exc.message, "Correct it."))
    return findings


def check_extras(settings: Settings) -> list[Finding]:
    """Find the optional packages that a run loads late; loading tells of all others."""
    from framework.base.errors import MissingExtraError, require_extra

    findings = []
    wanted = {} if settings.model or settings.models else {"offline": "numpy"}
    if any(module.split(".")[0] == "capabilities" for module in settings.modules):
        wanted["data"] = "duckdb"
    for extra, module in wanted.items():
        try:
            require_extra(module, extra)
        except MissingExtraError as exc:
            findings.append(Finding.of_error("extras", exc))
        else:
            findings.append(Finding("extras", "ok", f"{extra}: installed"))
    return findings


async def check_database(url: str, settings: Settings) -> Finding:
    """Open the database and read from it."""
    from configs.logger import mask_secrets
    from framework.cli.agent import MEMORY, open_database

    if url == MEMORY:
        return Finding("database", "ok", "in memory; threads end with the process")
    try:
        async with open_database(url, settings) as (saver, store):
            await saver.aget_tuple({"configurable": {"thread_id": "capgraph-check"}})
            await store.aget(("capgraph",), "check")
    except Exception as exc:
        return Finding.of_error("database", exc)
    return Finding("database", "ok", f"{mask_secrets(url)} can be read and written")


async def check_models(settings: Settings, model: str | None, *, ask: bool) -> list[Finding]:
    """Make every configured model, and ask each one for a word.

    Args:
        settings: All settings.
        model: What ``--model`` says.
        ask: Whether to ask; that costs a few tokens.
    """
    configured: Any = model or settings.model or dict(settings.models)
    if not configured:
        return [Finding("models", "ok", "none configured; the agent runs without one")]
    from framework.models import chat_models
    from framework.models.roles import model_name

    try:
        made = await asyncio.to_thread(chat_models, configured)
    except Exception as exc:
        return [Finding.of_error("models", exc)]
    roles: dict[int, list[str]] = {}
    for role, chat_model in made.items():
        roles.setdefault(id(chat_model), []).append(role)
    models = {id(chat_model): chat_model for chat_model in made.values()}
    names = {number: ", ".join(found) for number, found in roles.items()}
    if not ask:
        return [
            Finding("models", "ok", f"{model_name(models[n])} for {text}: made, not asked")
            for n, text in names.items()
        ]
    return list(await asyncio.gather(*(_ask(models[n], text) for n, text in names.items())))


async def _ask(model: Any, roles: str) -> Finding:
    from configs.logger import mask_secrets
    from framework.models.roles import model_name

    name = f"{model_name(model)} for {roles}"
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            await model.ainvoke("Answer with the one word: ready")
    except TimeoutError:
        text = f"{name}: no answer within {MODEL_SECONDS:g} s"
        return Finding("models", "error", text, "Check base_url and the network.")
    except Exception as exc:
        text = f"{name}: {type(exc).__name__}: {mask_secrets(str(exc))}"
        return Finding("models", "error", text, "Check the model's name, its key and base_url.")
    return Finding("models", "ok", f"{name}: answered")


def named_files(files: list[Path]) -> str:
    """Return the configuration files in words."""
    return ", ".join(str(file) for file in files) or "what CAPGRAPH_CONFIG names"
