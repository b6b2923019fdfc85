"""Comparison of a worker's agent with the agent of the client that submitted a run.

The request of a run contains the capabilities of the client's agent and the rules that apply to
the caller. A worker leaves a run to other workers if it has fewer capabilities or weaker rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from pydantic import BaseModel

from capgraph.base.ports import Caller
from capgraph.base.spec import CapabilitySpec
from capgraph.engine.services import Services
from capgraph.pipeline.effect_ledger import compute_digest


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
    objects += [one for one in (services.flow, services.guard) if one is not None]
    rules += [["object", type(one).__module__, type(one).__qualname__] for one in objects]
    return sorted(compute_digest(rule) for rule in rules)


def _spec_digest(spec: CapabilitySpec) -> str:
    fields: list[Any] = [spec.effect, spec.effect_key, spec.provides, spec.on_unknown, spec.labels]
    fields += [str(spec.requires_approval), str(spec.permission), *map(str, spec.requires)]
    return compute_digest([*fields, _schema_digest(spec.parameters)])


@lru_cache(maxsize=4096)
def _schema_digest(model: type[BaseModel] | None) -> str:
    return "" if model is None else compute_digest(model.model_json_schema())
