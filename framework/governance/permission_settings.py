"""Function that creates permissions from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capgraph.base.errors import ConfigurationError
from capgraph.configs.suggestions import suggest_fix
from capgraph.governance.caller_permissions import unknown_names
from capgraph.governance.cedar import CedarPermissions
from capgraph.governance.permissions import PermissionPolicy, Permissions, RolePermissionConfig
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import PermissionSettings


def permissions_from_settings(
    settings: PermissionSettings | None, registry: Registry
) -> Permissions | None:
    """Create the permissions that the settings define, or return ``None`` without settings.

    Raises:
        ConfigurationError: A mode or a list is invalid, or a name matches no capability. Such a
            name would have no effect.
    """
    if settings is None:
        return None
    if settings.cedar is not None:
        return CedarPermissions(settings.cedar, overseer_roles=settings.overseer_roles)
    allowed = {name for role in settings.roles for name in role.allowed_tools or ()}
    denied = {name for role in settings.roles for name in role.denied_tools}
    named = sorted({*settings.tool_requirements, *allowed, *denied})
    if unknown := unknown_names(named, allowed, registry.capabilities):
        raise ConfigurationError(
            f"The permissions name the unknown capabilities {', '.join(map(repr, unknown))}.",
            fix=suggest_fix(*unknown, candidates=registry.capabilities),
        )
    try:
        return PermissionPolicy(
            [RolePermissionConfig(**role.model_dump()) for role in settings.roles],
            settings.tool_requirements,  # type: ignore[arg-type]
            overseer_roles=settings.overseer_roles,
        )
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"The permissions are invalid: {exc}", fix="Correct the permissions in the settings."
        ) from exc
