"""Permissions that are defined by Cedar policies (extra ``cedar``)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from capgraph.base.errors import ConfigurationError, require_extra
from capgraph.base.ports import PermissionMode
from capgraph.governance.permissions import PermissionOutcome


class CedarPermissions:
    """Permissions defined by Cedar policies, for ``build_graph(permissions=…)``.

    Each request asks whether ``User::"<user_id>"`` may perform ``Action::"use"`` on
    ``Capability::"<name>"``. The user is a member of ``Role::"<role>"`` and, if the caller has a
    tenant, of ``Tenant::"<tenant>"``. The capability has the attributes ``mode`` (name) and
    ``level`` (1 to 3) of its required permission mode. A request is denied if no policy permits it,
    if a policy fails, or if the caller has no role.

    Args:
        policies: Cedar policies as text.
        entities: Additional entities, in Cedar's JSON format.
        schema: Cedar schema to validate the policies with.
        overseer_roles: Roles whose users approve the steps of turns without a known user.

    Raises:
        ConfigurationError: The policies cannot be parsed, or do not match the schema.
        MissingExtraError: ``cedarpy`` is not installed.

    >>> cedar = CedarPermissions('''
    ...     permit (principal in Role::"clerk", action, resource) when { resource.level == 1 };
    ... ''')
    >>> cedar.authorize("clerk", "look").allowed, cedar.authorize("guest", "look").allowed
    (True, False)
    """

    def __init__(
        self,
        policies: str,
        *,
        entities: Sequence[Mapping[str, Any]] = (),
        schema: str | Mapping[str, Any] | None = None,
        overseer_roles: Collection[str] = (),
    ) -> None:
        self.overseer_roles: frozenset[str] = frozenset(overseer_roles)
        self._cedar: Any = require_extra("cedarpy", "cedar")
        try:
            self._policies = self._cedar.PolicySet.from_str(policies)
            self._entities = self._cedar.Entities.from_json_str(json.dumps(list(entities)))
            validation = None
            if schema is not None:
                text = schema if isinstance(schema, str) else json.dumps(schema)
                validation = self._cedar.validate_policies(policies, text)
        except ValueError as exc:
            raise ConfigurationError(
                f"The Cedar policies cannot be parsed: {exc}.", fix="Correct the policies."
            ) from exc
        if validation is not None and not validation.validation_passed:
            errors = "; ".join(str(error) for error in validation.errors)
            raise ConfigurationError(
                f"The Cedar policies do not match their schema: {errors}.",
                fix="Correct the policies or the schema.",
            )

    def authorize(
        self,
        role: str | None,
        name: str,
        *,
        tenant: str | None = None,
        user_id: str | None = None,
        required: PermissionMode = PermissionMode.READ_ONLY,
    ) -> PermissionOutcome:
        """Decide whether a caller may use a capability, according to the Cedar policies.

        See ``Permissions.authorize`` for the arguments.
        """
        if not role:
            return PermissionOutcome(False, f"the caller of {name!r} has no role")
        groups = [_create_uid("Role", role), *([_create_uid("Tenant", tenant)] if tenant else [])]
        user, capability = _create_uid("User", user_id or ""), _create_uid("Capability", name)
        required_attrs = {"mode": required.name, "level": int(required)}
        request_entities = [
            {"uid": user, "attrs": {}, "parents": groups},
            {"uid": capability, "attrs": required_attrs, "parents": []},
        ]
        request = {
            "principal": user,
            "action": _create_uid("Action", "use"),
            "resource": capability,
        }
        try:
            entities = self._entities.with_added_json_str(json.dumps(request_entities))
            response = self._cedar.is_authorized(
                {**request, "context": {}}, self._policies, entities
            )
        except ValueError as exc:
            return PermissionOutcome(False, f"Cedar could not decide about {name!r}: {exc}")
        if errors := response.diagnostics.errors:
            # Cedar skips a failed "forbid" policy, which would allow the request.
            return PermissionOutcome(
                False, f"a Cedar policy failed at {name!r}: {'; '.join(map(str, errors))}"
            )
        reason = None if response.allowed else f"no Cedar policy lets {role!r} use {name!r}"
        return PermissionOutcome(response.allowed, reason, role, required.name)


def _create_uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}
