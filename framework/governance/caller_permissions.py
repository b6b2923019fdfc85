"""What the one who calls may use: on the whole plan, at dispatch, and in what planners are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from capgraph.base.plan import PlannedStep
from capgraph.base.ports import Caller, PermissionMode, TurnSnapshot, Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.configs.logger import get_logger
from capgraph.configs.suggestions import suggest_fix
from capgraph.governance.permissions import (
    PermissionDeniedError,
    PermissionOutcome,
    Permissions,
    normalize_name,
)
from capgraph.planning.recipes import underlying_capabilities
from capgraph.registry import Registry

_KEPT = 64
"""How many cuts of the registry are kept, one for each set of capabilities that somebody may use."""


def unknown_names(
    names: Iterable[str], case_sensitive: Collection[str], known: Collection[str]
) -> list[str]:
    """Return the names of permissions that no capability is registered by.

    Args:
        names: All names.
        case_sensitive: Those that are compared exactly; the case of others does not count.
        known: Names of the capabilities.
    """
    folded = {normalize_name(name) for name in known}
    return [
        name
        for name in names
        if normalize_name(name) not in folded
        or (name in case_sensitive and name.strip() not in known)
    ]


def required_mode(spec: CapabilitySpec) -> PermissionMode:
    """Return what a capability asks for: what it declares, and for an effect at least write."""
    least = PermissionMode.READ_ONLY if spec.effect == "none" else PermissionMode.WORKSPACE_WRITE
    return max(spec.permission or least, least)


class CallerPermissions:
    """Holds permissions against the capabilities of a graph; a step policy.

    Args:
        registry: The capabilities.
        permissions: What decides.
    """

    def __init__(self, registry: Registry, permissions: Permissions) -> None:
        self._registry = registry
        self._permissions = permissions
        self._cuts: BoundedDict[frozenset[str], Registry] = BoundedDict(_KEPT)

    def unknown_name_warnings(self) -> list[str]:
        """Return a warning if the permissions name capabilities that are not registered."""
        names = getattr(self._permissions, "capability_names", ())
        exact = getattr(self._permissions, "allowed_names", ())
        unknown = unknown_names(names, exact, self._registry.capabilities)
        if not unknown:
            return []
        return [
            f"The permissions name {', '.join(map(repr, unknown))}, and no registered capability"
            " has this name, so the entry decides nothing here."
            f" Fix: {suggest_fix(*unknown, candidates=self._registry.capabilities)}"
        ]

    def outcome(self, name: str, caller: Caller) -> PermissionOutcome:
        """Decide about one capability; what cannot be decided is denied."""
        # A caller's configuration holds whatever the caller likes.
        role, tenant, user = (
            str(given) if isinstance(given, (str, int)) else None
            for given in (caller.role, caller.tenant, caller.user_id)
        )
        if role is None or (tenant is None and caller.tenant is not None):
            role, tenant = None, None
        needed = required_mode(self._registry.capabilities[name])
        try:
            return self._permissions.authorize(
                role, name, tenant=tenant, user_id=user, required=needed
            )
        except Exception as exc:
            get_logger("framework", "permissions").exception("nobody knows who may use %r", name)
            return PermissionOutcome(
                False, f"it cannot be said who may use {name!r} ({type(exc).__name__}: {exc})"
            )

    def visible_registry(self, caller: Caller) -> Registry:
        """Return what the caller may use of the registry: nothing else is shown to whoever plans."""
        names = self._registry.capabilities
        found_denied = {name for name in names if not self.outcome(name, caller).allowed}
        for name in names:
            # Whoever may not use a step of a recipe may not use the recipe.
            if found_denied.intersection(underlying_capabilities(name, self._registry)):
                found_denied.add(name)
        denied = frozenset(found_denied)
        if not denied:
            return self._registry
        found = self._cuts.get(denied) or self._registry.with_(without=denied).freeze()
        self._cuts[denied] = found  # the last one used is the last to go
        return found

    def check_plan(self, plan: Any, view: TurnSnapshot) -> None:
        """Refuse a plan with a step that its caller may not use; what is done stays done.

        Raises:
            PermissionDeniedError: There is one; all are named.
        """
        steps = plan.get("steps") if isinstance(plan, Mapping) else None
        denied: dict[str, PermissionOutcome] = {}
        for step in steps if isinstance(steps, list) else ():
            name = step.get("capability") if isinstance(step, Mapping) else None
            if isinstance(name, str) and name in self._registry.capabilities:
                record = view.results.get(str(step.get("context_key"))) or {}
                done = record.get("success") and record.get("capability") == name
                found = self.outcome(name, view.caller)
                if not (found.allowed or done):
                    denied[name] = found
        if denied:
            first = next(iter(denied.values()))
            reasons = "; ".join(str(outcome.reason) for outcome in denied.values())
            raise PermissionDeniedError(
                PermissionOutcome(False, reasons, first.active_mode, first.required_mode)
            )

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Allow a step to whoever calls now.

        Raises:
            PermissionDeniedError: The caller may not use its capability.
        """
        found = self.outcome(step["capability"], view.caller)
        if not found.allowed:
            raise PermissionDeniedError(found)
        return Verdict("allow")
