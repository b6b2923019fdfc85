"""Checks of the caller's permissions: on plans, before steps, and on the planner's catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from capgraph.base.approval_policy import ApprovalPolicy
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

_MAX_CACHED = 64
"""Maximum number of cached registries, one per set of denied capabilities."""


def unknown_names(
    names: Iterable[str], case_sensitive: Collection[str], registered: Collection[str]
) -> list[str]:
    """Return the capability names in permissions that match no registered capability.

    Args:
        names: All capability names in the permissions.
        case_sensitive: Names to compare with case. Case is ignored for the others.
        registered: Names of the registered capabilities.
    """
    folded = {normalize_name(name) for name in registered}
    return [
        name
        for name in names
        if normalize_name(name) not in folded
        or (name in case_sensitive and name.strip() not in registered)
    ]


def required_mode(spec: CapabilitySpec) -> PermissionMode:
    """Return the permission mode that a caller needs to use a capability.

    A capability with an effect needs at least ``WORKSPACE_WRITE``.
    """
    least = PermissionMode.READ_ONLY if spec.effect == "none" else PermissionMode.WORKSPACE_WRITE
    return max(spec.permission or least, least)


class CallerPermissions:
    """Step policy that restricts a graph's capabilities according to the caller's permissions.

    Args:
        registry: Registered capabilities.
        permissions: Permissions to apply.

    Attributes:
        permissions: Permissions to apply.
        decides_by_name: True, so that the stage ``validate`` evaluates the policy first. Otherwise
            guardrails and hooks would receive the arguments of a denied step.
    """

    decides_by_name = True

    def __init__(self, registry: Registry, permissions: Permissions) -> None:
        self._registry = registry
        self.permissions: Permissions = permissions
        self._overseer_roles: Collection[str] = getattr(permissions, "overseer_roles", ())
        self._restricted: BoundedDict[frozenset[str], Registry] = BoundedDict(_MAX_CACHED)

    def unknown_name_warnings(self) -> list[str]:
        """Return a warning if the permissions name capabilities that are not registered.

        Otherwise, return an empty list.
        """
        names = getattr(self.permissions, "capability_names", ())
        exact = getattr(self.permissions, "allowed_names", ())
        unknown = unknown_names(names, exact, self._registry.capabilities)
        if not unknown:
            return []
        return [
            f"The permissions name {', '.join(map(repr, unknown))}, but no registered capability has"
            " this name, so the entry has no effect."
            f" Fix: {suggest_fix(*unknown, candidates=self._registry.capabilities)}"
        ]

    def outcome(self, name: str, *callers: Caller) -> PermissionOutcome:
        """Decide whether a caller may use a capability.

        With several roles, access is denied if any of them is denied.

        Args:
            name: Name of the capability.
            *callers: The caller, with each role that applies.
        """
        outcomes = [self._decide_for_caller(name, caller) for caller in callers]
        return next((one for one in outcomes if not one.allowed), outcomes[0])

    def _decide_for_caller(self, name: str, caller: Caller) -> PermissionOutcome:
        """Decide whether a single caller may use a capability.

        If the permission check raises an exception, access is denied.
        """
        # The caller controls these values, so their types are unchecked.
        role, tenant, user = (
            str(given) if isinstance(given, (str, int)) else None
            for given in (caller.role, caller.tenant, caller.user_id)
        )
        if role is None or (tenant is None and caller.tenant is not None):
            role, tenant = None, None
        needed = required_mode(self._registry.capabilities[name])
        try:
            return self.permissions.authorize(
                role, name, tenant=tenant, user_id=user, required=needed
            )
        except Exception as exc:
            get_logger("framework", "permissions").exception(
                "The permissions for %r could not be evaluated", name
            )
            return PermissionOutcome(
                False,
                f"the permissions for {name!r} could not be evaluated ({type(exc).__name__}: {exc})",
            )

    def needs_overseer(self, *callers: Caller) -> bool:
        """Return True if an overseer must approve the steps because the callers are unknown."""
        return bool(self._overseer_roles) and not any(one.user_id or one.role for one in callers)

    def is_overseer(self, person: Caller) -> bool:
        """Return True if a person may approve steps of a turn that has no known user."""
        return bool(person.user_id) and person.role in self._overseer_roles

    def plan_outcome(self, name: str, *callers: Caller) -> PermissionOutcome:
        """Decide whether callers may include a capability in a plan.

        Steps of unknown callers may be planned if an overseer can approve them.
        """
        outcome = self.outcome(name, *callers)
        if outcome.allowed or not self.needs_overseer(*callers):
            return outcome
        tenant = callers[0].tenant
        roles = sorted(self._overseer_roles)
        outcomes = (self.outcome(name, Caller(None, role, tenant)) for role in roles)
        reason = f"the turn has no known user, and no overseer role may use {name!r}"
        return next((one for one in outcomes if one.allowed), replace(outcome, reason=reason))

    def roles_allowed(
        self,
        names: Collection[str],
        tenant: str | None = None,
        *,
        is_overseer: bool = False,
    ) -> list[str]:
        """Return the roles of a tenant that may use all of the given capabilities.

        Args:
            names: Names of the capabilities.
            tenant: Tenant of the roles.
            is_overseer: True to return overseer roles only.
        """
        return [
            role
            for role, role_tenant in getattr(self.permissions, "roles", ())
            if role_tenant in (None, tenant)
            and (not is_overseer or role in self._overseer_roles)
            and all(self.outcome(name, Caller(None, role, tenant)).allowed for name in names)
        ]

    def approver_problems(self) -> list[str]:
        """Describe each capability that needs a restricted approval that no role may give."""
        tenants = {tenant for _, tenant in getattr(self.permissions, "roles", ())}
        return [
            f"The capability {name!r} requires approvals by other users, but no role may use it."
            " Fix: allow it to a role in 'permissions', or remove the approval policy."
            for name, spec in self._registry.capabilities.items()
            if spec.requires_approval
            and ApprovalPolicy.from_declaration(spec.requires_approval).restricts_approvers
            and tenants
            and not any(self.roles_allowed([name], tenant) for tenant in tenants)
            and not self.outcome(name, Caller()).allowed
        ]

    def visible_registry(self, *callers: Caller) -> Registry:
        """Return a registry limited to the capabilities that all callers may use.

        Planners see only these capabilities.
        """
        names = self._registry.capabilities
        found_denied = {name for name in names if not self.plan_outcome(name, *callers).allowed}
        for name in names:
            # A recipe is denied if any of its steps is denied.
            if found_denied.intersection(underlying_capabilities(name, self._registry)):
                found_denied.add(name)
        denied = frozenset(found_denied)
        if not denied:
            return self._registry
        found = self._restricted.get(denied) or self._registry.with_(without=denied).freeze()
        self._restricted[denied] = found  # most recently used, so evicted last
        return found

    def check_plan(self, plan: Any, view: TurnSnapshot) -> None:
        """Check that the caller may use every capability in a plan.

        Finished steps are always accepted.

        Raises:
            PermissionDeniedError: At least one step is denied. The message names all of them.
        """
        steps = plan.get("steps") if isinstance(plan, Mapping) else None
        denied: dict[str, PermissionOutcome] = {}
        for step in steps if isinstance(steps, list) else ():
            name = step.get("capability") if isinstance(step, Mapping) else None
            if isinstance(name, str) and name in self._registry.capabilities:
                record = view.results.get(str(step.get("context_key"))) or {}
                done = record.get("success") and record.get("capability") == name
                outcome = self.plan_outcome(name, *view.callers)
                if not (outcome.allowed or done):
                    denied[name] = outcome
        if denied:
            first = next(iter(denied.values()))
            reasons = "; ".join(str(outcome.reason) for outcome in denied.values())
            raise PermissionDeniedError(
                PermissionOutcome(False, reasons, first.active_mode, first.required_mode)
            )

    async def decide(self, step: PlannedStep, view: TurnSnapshot) -> Verdict:
        """Decide whether the current caller may run a planned step.

        A step of an unknown caller requires approval by an overseer.

        Raises:
            PermissionDeniedError: The caller may not use the capability.
        """
        name = step["capability"]
        if self.outcome(name, *view.callers).allowed:
            return Verdict("allow")
        if not (outcome := self.plan_outcome(name, *view.callers)).allowed:
            raise PermissionDeniedError(outcome)
        return Verdict("ask", ["The turn has no known user, so an overseer must approve the step."])
