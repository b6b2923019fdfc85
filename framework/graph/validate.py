"""Validation of a registry before a graph is compiled."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args

from capgraph.base.capability import BaseCapability
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ConfigurationError, RegistryError
from capgraph.base.spec import INFRASTRUCTURE_ROLES
from capgraph.configs.suggestions import suggest_fix
from capgraph.pipeline.remote_dispatch import NOT_TRANSFERRED
from capgraph.pipeline.runner import capability_queue
from capgraph.planning.catalog import required_type, types_satisfied_by
from capgraph.planning.parameters import required_parameters
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.governance.caller_permissions import CallerPermissions

RESERVED_NODE_NAMES = frozenset({"capabilities", "fatal"})
_UNAVAILABLE_ON_WORKERS = {
    "interrupt": "interrupts are possible only in the process of the turn",
    "runtime": "a step on another worker has no 'context' from the caller",
    **dict.fromkeys(
        sorted(NOT_TRANSFERRED), "this key of the state does not travel to another worker"
    ),
}


def find_registry_problems(registry: Registry) -> list[str]:
    """Return the registry problems that prevent building a graph, each with its fix."""
    problems = [
        f"The infrastructure node {role!r} is missing. Fix: register one, or keep the built-in"
        " modules in 'infrastructure'."
        for role in INFRASTRUCTURE_ROLES
        if role not in registry.infrastructure
    ]
    provided = {
        kind for spec in registry.capabilities.values() for kind in types_satisfied_by(spec)
    }
    provided |= _find_element_types(registry)
    for name, spec in registry.capabilities.items():
        if name in registry.infrastructure or name in RESERVED_NODE_NAMES:
            problems.append(
                f"The capability name {name!r} is reserved for a node of the framework."
                " Fix: rename the capability."
            )
        if spec.undo is not None and spec.undo.name not in registry.capabilities:
            fix = suggest_fix(spec.undo.name, candidates=registry.capabilities)
            problems.append(
                f"The capability {name!r} has undo={spec.undo.name!r}, which is not registered."
                f" Fix: register it, or remove 'undo'. {fix}"
            )
        problems += [
            f"The capability {name!r} requires {item.type!r}, which no capability provides. Fix:"
            " register a capability that provides it, or, if callers supply it, call"
            f" registry.declare_provided({item.type!r})."
            for item in spec.requires
            if item.cardinality != "optional"
            and required_type(item) not in provided
            and item.type not in registry.provided_types
        ]
    return problems


def check_persistence(checkpointer: Any, settings: Settings) -> None:
    """Check that a graph has a saver if the settings contain a database URL.

    Raises:
        ConfigurationError: ``persistence.url`` is set and there is no saver.
    """
    if checkpointer is None and settings.persistence.url is not None:
        raise ConfigurationError(
            "The setting persistence.url is set, but build_graph does not open databases.",
            fix="Use 'async with open_graph(...) as graph', or pass checkpointer=. Remove"
            " persistence.url if a server supplies the saver.",
        )


def _find_element_types(registry: Registry) -> set[str]:
    """Return the context types of list elements that ``for_each`` steps may receive."""
    kinds = {kind for spec in registry.capabilities.values() for kind in spec.context_types}
    arguments = [
        argument
        for kind in kinds
        for field in kind.model_fields.values()
        for argument in get_args(field.annotation)
    ]
    return {
        argument.CONTEXT_TYPE
        for argument in arguments
        if isinstance(argument, type) and issubclass(argument, CapabilityContext)
    }


def find_registry_warnings(
    registry: Registry,
    *,
    offline: bool,
    has_saver: bool,
    permissions: CallerPermissions | None = None,
) -> list[str]:
    """Return warnings about the capabilities in a registry, each with its fix.

    Args:
        registry: Registry to check.
        offline: True if the agent plans without a model.
        has_saver: True if the graph has a saver.
        permissions: Permissions of callers, if they are configured.
    """
    # Several graphs may share permissions, so unknown names are not an error.
    texts = [] if permissions is None else permissions.unknown_name_warnings()
    for name, spec in registry.capabilities.items():
        missing = required_parameters(spec.parameters)
        extract = getattr(spec.cls, "parameters_from", BaseCapability.parameters_from)
        if offline and missing and extract is BaseCapability.parameters_from:
            texts.append(
                f"The capability {name!r} requires the parameters {', '.join(missing)}, which"
                " planning without a model cannot supply. Fix: add defaults, define"
                " parameters_from(task), or configure a chat model."
            )
        if spec.effect == "once" and not has_saver:
            texts.append(
                f"The capability {name!r} has effect='once', but there is no saver to store its"
                " effects when the process ends. Fix: pass a checkpointer, or set persistence.url"
                " and use open_graph. A server may supply its own saver."
            )
    return texts


def find_queue_warnings(registry: Registry, settings: Settings) -> list[str]:
    """Return warnings about queued capabilities that use features unsupported by workers."""
    texts = []
    for name, spec in registry.capabilities.items():
        if capability_queue(spec, settings) is None:
            continue
        for word, reason in _UNAVAILABLE_ON_WORKERS.items():
            if word in _find_used_names(spec.cls):
                texts.append(
                    f"The capability {name!r} has a queue but uses {word!r}: {reason}."
                    " Fix: remove its queue, so that it runs in the process of the turn."
                )
    return texts


def _find_used_names(cls: type[Any]) -> set[str]:
    """Return the names and strings that a capability's ``execute`` method uses.

    The names are read from the bytecode of the method.
    """
    function = inspect.unwrap(getattr(cls, "__wrapped__", cls.execute))
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    strings = {const for const in code.co_consts if isinstance(const, str)}
    return {*code.co_names, *code.co_varnames[: code.co_argcount], *strings}


def validate_registry(registry: Registry) -> None:
    """Check that a graph can be built from a registry.

    Raises:
        RegistryError: The registry has problems. The message lists all of them.
    """
    problems = find_registry_problems(registry)
    if problems:
        listed = "\n".join(f"  {n}. {text}" for n, text in enumerate(problems, start=1))
        raise RegistryError(f"The registry has {len(problems)} problem(s):\n{listed}")
    for name in registry.capabilities:
        check_guides(registry, name)


def check_guides(registry: Registry, name: str) -> bool:
    """Create the prompt guides of a capability to detect errors before the first request.

    Returns:
        True if the capability has examples for the classifier.

    Raises:
        RegistryError: The guides cannot be created.
    """
    try:
        capability = registry.capability(name)
        getattr(capability, "orchestrator_guide", None)
        return getattr(capability, "classifier_guide", None) is not None
    except Exception as exc:
        raise RegistryError(
            f"The guides of the capability {name!r} cannot be created: {type(exc).__name__}: {exc}.",
            fix="Correct its __init__, _create_classifier_guide or _create_orchestrator_guide.",
            facts={"capability": name},
        ) from exc
