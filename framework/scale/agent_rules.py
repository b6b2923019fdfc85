"""Comparison of a worker's agent with the agent of the client that submitted a run.

The request of a run contains the capabilities of the client's agent and the rules that apply to
the caller. A worker leaves a run to other workers if it has fewer capabilities or weaker rules.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from pydantic import BaseModel

from capgraph.base.ports import Caller
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.services import Services
from capgraph.pipeline.effect_ledger import compute_digest

_MAX_DEPTH = 6
"""Maximum depth to which the arguments of a policy are compared."""


class AgentRules:
    """Description of an agent's capabilities and of the rules that apply to its callers.

    Args:
        services: Services of the agent's graph.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        # Cached, because the digests of a thousand capabilities take longer than a turn.
        specs = self._services.registry.capabilities
        return {
            "capabilities": {name: _spec_digest(spec) for name, spec in specs.items()},
            "capability_rules": {
                name: facts
                for name, spec in specs.items()
                if any(facts := _capability_rules(spec, self._services.runner.own_behaviors(spec)))
            },
            "limits": self._services.limits.model_dump(),
            "rules": _rule_digests(self._services),
        }

    def describe(self, caller: Caller) -> dict[str, Any]:
        """Describe the agent's capabilities and a caller's rules as plain data.

        Clients and workers compare these descriptions.
        """
        permissions = self._services.permissions
        allowed = sorted(
            name
            for name in self._services.registry.capabilities
            if permissions is None or permissions.outcome(name, caller).allowed
        )
        return {**self._fixed, "allowed": allowed}

    def find_mismatch(
        self, submitted: Mapping[str, Any], caller: Caller, *, is_decision: bool
    ) -> str | None:
        """Return the reason why a worker with this agent must not execute a run, or ``None``.

        Args:
            submitted: Description of the client's agent, as returned by :meth:`describe`.
            caller: Caller of the run.
            is_decision: Whether the run continues with a person's decision, which is valid only for
                capabilities with unchanged declarations.
        """
        own, expected = self.describe(caller), submitted["capabilities"]
        if missing := expected.keys() - own["capabilities"].keys():
            return f"it has no capability {min(missing)!r}"
        changed = [name for name, digest in expected.items() if own["capabilities"][name] != digest]
        if is_decision and changed:
            return f"its capability {min(changed)!r} has other declarations"
        own_rules, expected_rules = own["capability_rules"], submitted.get("capability_rules", {})
        # Runs that were submitted by an earlier version have no such rules.
        for name in expected if "capability_rules" in submitted else ():
            required, exceptions = own_rules.get(name, _NO_RULES)
            submitted_required, submitted_exceptions = expected_rules.get(name, _NO_RULES)
            weaker = Counter(submitted_required) - Counter(required)
            if weaker or set(exceptions) - set(submitted_exceptions):
                return f"its capability {name!r} has weaker rules"
        if wider := set(own["allowed"]) - set(submitted["allowed"]):
            return f"its permissions allow {min(wider)!r}"
        for name, limit in submitted["limits"].items():
            own_limit = own["limits"].get(name)
            if limit is not None and (own_limit is None or own_limit > limit):
                return f"its limit {name} is {own_limit}, not {limit}"
        if Counter(submitted["rules"]) - Counter(own["rules"]):
            return "it lacks a policy, budget, behavior, or approval setting"
        return None


def _rule_digests(services: Services) -> list[str]:
    settings, config = services.runner_config.settings, services.runner_config
    rules: list[Any] = [["approvals", settings.approvals.model_dump()]]
    for section in ("policies", "budgets", "behaviors"):
        rules += [[section, entry] for entry in getattr(settings, section)]
    objects = [*services.plan_policies, *services.policy_engines, *config.step_policies]
    objects += [*services.runner.behaviors, *services.budget_policy.budgets]
    objects += [] if services.flow is None else [services.flow]
    # What the permissions allow is compared by capability.
    rules += [
        ["object", _type_name(one) if one is services.permissions else _describe(one)]
        for one in objects
    ]
    return sorted(compute_digest(rule) for rule in rules)


_NO_RULES: tuple[list[str], list[str]] = ([], [])


def _capability_rules(spec: CapabilitySpec, behaviors: list[Any]) -> tuple[list[str], list[str]]:
    """Return digests of the rules that a capability declares, and of its exceptions to rules."""
    declared: list[tuple[str, Any]] = [
        ("approval", spec.requires_approval),
        ("permission", spec.permission),
        ("effect", spec.effect if spec.effect != "none" else None),
        ("sends_externally", spec.sends_externally),
        ("gate", spec.gate),
        *(("label", label) for label in spec.labels),
        *(("behavior", behavior) for behavior in behaviors),
    ]
    exceptions: list[tuple[str, Any]] = [("repeatable", spec.repeatable)]
    exceptions += [("removes_label", label) for label in spec.removes_labels]
    required, allowed = (
        sorted(compute_digest([kind, _describe(value)]) for kind, value in rules if value)
        for rules in (declared, exceptions)
    )
    return required, allowed


def _describe(value: Any, depth: int = 0) -> Any:
    """Describe an object as plain data that is equal in all processes.

    An object is described by its class and by the arguments of its constructor, because other
    attributes, such as counters and connections, may differ between processes.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if depth >= _MAX_DEPTH:
        return _type_name(value)
    if isinstance(value, Mapping):
        return sorted([str(key), _describe(item, depth + 1)] for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_describe(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(compute_digest(_describe(item, depth + 1)) for item in value)
    names = set(_argument_names(type(value)))
    if type(value).__module__.startswith("capgraph."):
        # These store some arguments in a different form, but counters in private attributes only.
        names |= {name for name in getattr(value, "__dict__", ()) if not name.startswith("_")}
    arguments = {
        name: _describe(argument, depth + 1)
        for name in names - {"clock"}
        if (argument := getattr(value, name, getattr(value, f"_{name}", None))) is not None
    }
    return [_type_name(value), arguments]


def _argument_names(cls: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(cls).parameters)
    except (TypeError, ValueError):  # a class in C
        return ()


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _spec_digest(spec: CapabilitySpec) -> str:
    fields: list[Any] = [spec.effect, spec.effect_key, spec.provides, spec.on_unknown, spec.labels]
    fields += [str(spec.requires_approval), str(spec.permission), *map(str, spec.requires)]
    return compute_digest([*fields, _schema_digest(spec.parameters)])


@lru_cache(maxsize=4096)
def _schema_digest(model: type[BaseModel] | None) -> str:
    return "" if model is None else compute_digest(model.model_json_schema())
