"""Finds everything that would make a graph fail, before it is compiled."""

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
from capgraph.planning.catalog import needs_provided_by, required_need
from capgraph.planning.parameters import required_parameters
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.governance.caller_permissions import CallerPermissions

RESERVED_NODE_NAMES = frozenset({"capabilities", "fatal"})
_ONLY_WITH_THE_TURN = {
    "interrupt": "a person can only be asked where the turn runs, so on another worker it is refused",
    "runtime": "the run on another worker has no 'context' of the caller's",
    **dict.fromkeys(
        sorted(NOT_TRANSFERRED), "this key of the state does not travel to another worker"
    ),
}


def registry_problems(registry: Registry) -> list[str]:
    """Return all problems of a registry, each with its fix; empty when there are none."""
    problems = [
        f"There is no infrastructure node {role!r}. Fix: register one, or leave the built-in"
        " modules in 'infrastructure'."
        for role in INFRASTRUCTURE_ROLES
        if role not in registry.infrastructure
    ]
    provided = {need for spec in registry.capabilities.values() for need in needs_provided_by(spec)}
    provided |= _elements(registry)
    for name, spec in registry.capabilities.items():
        if name in registry.infrastructure or name in RESERVED_NODE_NAMES:
            problems.append(
                f"The capability {name!r} is named like a node of the framework."
                " Fix: give it another name."
            )
        if spec.undo is not None and spec.undo.name not in registry.capabilities:
            fix = suggest_fix(spec.undo.name, candidates=registry.capabilities)
            problems.append(
                f"The capability {name!r} is undone by {spec.undo.name!r}, which is not registered."
                f" Fix: register it, or leave 'undo' out. {fix}"
            )
        problems += [
            f"The capability {name!r} requires {need.type!r}, which nothing provides and the"
            f" caller is not said to give. Fix: register a capability that provides it, or call"
            f" registry.declare_provided({need.type!r})."
            for need in spec.requires
            if need.cardinality != "optional"
            and required_need(need) not in provided
            and need.type not in registry.provided_types
        ]
    return problems


def check_persistence(checkpointer: Any, settings: Settings) -> None:
    """Refuse a configured database that nothing opens.

    Raises:
        ConfigurationError: ``persistence.url`` is set without a saver.
    """
    if checkpointer is None and settings.persistence.url is not None:
        raise ConfigurationError(
            "The setting persistence.url is set, but build_graph opens no database.",
            fix="Use 'async with open_graph(...) as graph', which opens and closes it, or pass"
            " checkpointer=. Leave persistence.url out where a server brings its own saver.",
        )


def _elements(registry: Registry) -> set[str]:
    """Name the types of what lists in results hold: a step over such a list takes an element."""
    kinds = {kind for spec in registry.capabilities.values() for kind in spec.context_types}
    held = [
        one for kind in kinds for f in kind.model_fields.values() for one in get_args(f.annotation)
    ]
    return {
        one.CONTEXT_TYPE
        for one in held
        if isinstance(one, type) and issubclass(one, CapabilityContext)
    }


def registry_warnings(
    registry: Registry,
    *,
    offline: bool,
    has_saver: bool,
    permissions: CallerPermissions | None = None,
) -> list[str]:
    """Return what works, but not as one may think; each with its fix.

    Args:
        registry: The capabilities.
        offline: Whether no model plans.
        has_saver: Whether there is a saver.
        permissions: The permissions that callers have.
    """
    # A policy may serve several graphs, so names that one of them lacks are no error.
    told = [] if permissions is None else permissions.unknown_name_warnings()
    for name, spec in registry.capabilities.items():
        missing = required_parameters(spec.parameters)
        reads = getattr(spec.cls, "parameters_from", BaseCapability.parameters_from)
        if offline and missing and reads is BaseCapability.parameters_from:
            told.append(
                f"The capability {name!r} needs the parameters {', '.join(missing)}, which planning"
                " without a model cannot fill. Fix: give them defaults, write parameters_from(task),"
                " or configure a chat model."
            )
        if spec.effect == "once" and not has_saver:
            told.append(
                f"The capability {name!r} has effect='once' and there is no saver, so nothing is"
                " remembered of it when the process ends. Fix: pass a checkpointer, or set"
                " persistence.url and use open_graph; a server may bring its own saver."
            )
    return told


def queue_warnings(registry: Registry, settings: Settings) -> list[str]:
    """Return what capabilities with a queue ask for that only the worker of their turn has."""
    told = []
    for name, spec in registry.capabilities.items():
        if capability_queue(spec, settings) is None:
            continue
        for word, what in _ONLY_WITH_THE_TURN.items():
            if word in _words_of(spec.cls):
                told.append(
                    f"The capability {name!r} has a queue and uses {word!r}: {what}."
                    " Fix: leave out its queue, so that it runs where its turn does."
                )
    return told


def _words_of(cls: type[Any]) -> set[str]:
    """Name what the code of a capability's work reads, without what it calls elsewhere."""
    work = inspect.unwrap(getattr(cls, "__wrapped__", cls.execute))
    code = getattr(work, "__code__", None)
    if code is None:
        return set()
    strings = {const for const in code.co_consts if isinstance(const, str)}
    return {*code.co_names, *code.co_varnames[: code.co_argcount], *strings}


def validate_registry(registry: Registry) -> None:
    """Check that a graph can be built from a registry.

    Raises:
        RegistryError: It cannot; the message lists every problem.
    """
    problems = registry_problems(registry)
    if problems:
        listed = "\n".join(f"  {n}. {text}" for n, text in enumerate(problems, start=1))
        raise RegistryError(f"The registry has {len(problems)} problem(s):\n{listed}")
    for name in registry.capabilities:
        _check_guides(registry, name)


def _check_guides(registry: Registry, name: str) -> None:
    """Build a capability's guides now, so that a broken one does not wait for a request."""
    try:
        capability = registry.capability(name)
        for guide in ("classifier_guide", "orchestrator_guide"):
            getattr(capability, guide, None)
    except Exception as exc:
        raise RegistryError(
            f"The guides of the capability {name!r} cannot be built: {type(exc).__name__}: {exc}.",
            fix="Correct its __init__, _create_classifier_guide or _create_orchestrator_guide.",
        ) from exc
