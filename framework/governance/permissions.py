"""Permission policy by role and tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.base.ports import PermissionMode

ToolT = TypeVar("ToolT")
_NOT_APPLICABLE = "N/A"


def normalize_name(name: str) -> str:
    """Normalize a capability name for case-insensitive comparison.

    >>> normalize_name(" Send_Mail ")
    'send_mail'
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(
            f"The capability name {name!r} is invalid: it must be a non-empty string. Fix: pass"
            " a name."
        )
    return name.strip().casefold()


@dataclass(frozen=True, slots=True)
class PermissionOutcome:
    """Decision on whether a caller may use a capability, with the reason for a denial.

    Attributes:
        allowed: True if the caller may use it.
        reason: Reason for a denial.
        active_mode: Name of the caller's mode.
        required_mode: Name of the mode that the capability requires.

    >>> PermissionOutcome(False, "it is denied").to_dict()
    {'allowed': False, 'reason': 'it is denied'}
    """

    allowed: bool
    reason: str | None = None
    active_mode: str = ""
    required_mode: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the permission decision as plain data, without empty fields."""
        named = {name: getattr(self, name) for name in ("reason", "active_mode", "required_mode")}
        return {"allowed": self.allowed, **{name: text for name, text in named.items() if text}}


class PermissionDeniedError(PolicyError):
    """Raised if a caller does not have permission to use a capability.

    Args:
        outcome: Decision on the capability.

    Attributes:
        outcome: Decision on the capability.
    """

    code = "CG-PERMISSION"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL

    def __init__(self, outcome: PermissionOutcome) -> None:
        self.outcome = outcome
        super().__init__(
            f"Permission denied: {outcome.reason or 'the caller may not do this'}.",
            fix="Ask an operator to change the role's permissions.",
        )


@dataclass(slots=True)
class RolePermissionConfig:
    """Permissions of one role for the capabilities of an agent.

    Attributes:
        role: Name of the role, as the authentication provides it.
        mode: Permission mode, or its name.
        allowed_tools: Capabilities that the role may use. ``None`` means all that its mode allows.
        denied_tools: Capabilities that the role may not use. This list takes precedence.
        tenant: Tenant that the entry applies to, instead of the entry for all tenants.

    Raises:
        ValueError: A name is empty, or the mode is unknown.
        TypeError: A list of names is a string or missing.
    """

    role: str
    mode: PermissionMode
    allowed_tools: list[str] | None = None
    denied_tools: list[str] = field(default_factory=list)
    tenant: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or not self.role.strip():
            raise ValueError(
                f"The role {self.role!r} is invalid: it must be a non-empty string. Fix: pass"
                " its name."
            )
        self.role = self.role.strip()
        self.mode = PermissionMode.of(self.mode)
        for name in ("allowed_tools", "denied_tools"):
            names = getattr(self, name)
            if isinstance(names, str) or (names is None and name == "denied_tools"):
                raise TypeError(
                    f"{name} of the role {self.role!r} is {names!r}: it must be a list of names."
                    " Fix: pass a list."
                )
            if names is not None:
                # A copy, so that later changes to the caller's list have no effect.
                setattr(self, name, [tool.strip() for tool in names if normalize_name(tool)])


class Permissions(Protocol):
    """Interface for permission checks, implemented by :class:`PermissionPolicy` and others.

    ``CedarPermissions`` is another implementation.
    """

    def authorize(
        self,
        role: str | None,
        name: str,
        *,
        tenant: str | None = None,
        user_id: str | None = None,
        required: PermissionMode = PermissionMode.READ_ONLY,
    ) -> PermissionOutcome:
        """Decide whether a caller may use a capability.

        Args:
            role: Role of the caller. ``None`` if unknown.
            name: Name of the capability.
            tenant: Tenant of the caller.
            user_id: ID of the caller.
            required: Permission mode that the capability requires.
        """


@dataclass(frozen=True, slots=True)
class _Role:
    mode: PermissionMode
    allowed: frozenset[str] | None
    denied: frozenset[str]

    @classmethod
    def of(cls, config: RolePermissionConfig) -> _Role:
        allowed = config.allowed_tools
        return cls(
            PermissionMode.of(config.mode),
            None if allowed is None else frozenset(name.strip() for name in allowed),
            frozenset(map(normalize_name, config.denied_tools)),
        )


class PermissionPolicy:
    """Permission policy by role, which checks the deny list, then the mode, then the allow list.

    Allowed names must match the registered name exactly. Case is ignored in denied names and
    requirements, so no spelling bypasses them. A role without an entry may use nothing.

    Args:
        role_configs: Entries of the roles, as a list or a dictionary by role.
        tool_requirements: Minimum mode by capability, in addition to what capabilities declare.
        default_allow_unknown_roles: True if callers without a configured role may use everything.
        overseer_roles: Roles whose users approve each step of a turn without a known user. Without
            such a role, these steps are denied.

    Attributes:
        capability_names: Capability names in all lists, as written.
        allowed_names: Capability names in allow lists.

    Raises:
        ValueError: Two entries have the same role and tenant, a key differs from its entry's role,
            or an overseer role has no entry.
        TypeError: An entry is not a ``RolePermissionConfig``.

    >>> policy = PermissionPolicy(
    ...     [RolePermissionConfig("clerk", PermissionMode.READ_ONLY, denied_tools=["audit"])],
    ...     {"pay": PermissionMode.FULL_ACCESS},
    ... )
    >>> [policy.authorize("clerk", name).allowed for name in ("look", "AUDIT", "Pay")]
    [True, False, False]
    >>> policy.authorize("visitor", "look").reason
    "no permissions are configured for the role 'visitor'"
    """

    def __init__(
        self,
        role_configs: Mapping[str, RolePermissionConfig]
        | Iterable[RolePermissionConfig]
        | None = None,
        tool_requirements: Mapping[str, PermissionMode] | None = None,
        *,
        default_allow_unknown_roles: bool = False,
        overseer_roles: Collection[str] = (),
    ) -> None:
        entries = (
            list(role_configs.items())
            if isinstance(role_configs, Mapping)
            else [(getattr(entry, "role", ""), entry) for entry in role_configs or ()]
        )
        self._roles: dict[tuple[str, str | None], _Role] = {}
        for role, config in entries:
            if not isinstance(config, RolePermissionConfig):
                raise TypeError(
                    f"{config!r} is not a RolePermissionConfig. Fix: pass one"
                    " RolePermissionConfig for each role."
                )
            key = (config.role, config.tenant)
            if role.strip() != config.role or key in self._roles:
                raise ValueError(
                    f"The role {config.role!r} has the key {role!r}, or two entries for one"
                    " tenant. Fix: use the role as its key, with one entry per tenant."
                )
            self._roles[key] = _Role.of(config)
        self._required: dict[str, PermissionMode] = {}
        for tool, mode in (tool_requirements or {}).items():
            # For two spellings of one name, the stricter mode applies.
            current = self._required.get(normalize_name(tool), PermissionMode.READ_ONLY)
            self._required[normalize_name(tool)] = max(current, PermissionMode.of(mode))
        self._allow_unknown = default_allow_unknown_roles is True
        self.roles: tuple[tuple[str, str | None], ...] = tuple(self._roles)
        self.overseer_roles: frozenset[str] = frozenset(overseer_roles)
        if unknown := sorted(self.overseer_roles - {role for role, _ in self._roles}):
            raise ValueError(
                f"The overseer role {unknown[0]!r} has no permissions. Fix: configure the role, or"
                " remove it from overseer_roles."
            )
        self.allowed_names: frozenset[str] = frozenset(
            name for _, config in entries for name in config.allowed_tools or ()
        )
        listed = [
            name
            for _, config in entries
            for name in (*(config.allowed_tools or ()), *config.denied_tools)
        ]
        self.capability_names: tuple[str, ...] = tuple(
            dict.fromkeys([*listed, *(tool_requirements or ())])
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
        """Decide whether a caller may use a capability; see :class:`Permissions`."""
        tool = normalize_name(name)
        role_name = role.strip() if isinstance(role, str) else None
        entry = self._roles.get((role_name or "", tenant)) or self._roles.get(
            (role_name or "", None)
        )
        required_mode = max(required, self._required.get(tool, PermissionMode.READ_ONLY))
        if entry is None:
            if self._allow_unknown:
                return PermissionOutcome(True, "callers without a configured role are allowed")
            problem = f"the caller of {name!r} has no role"
            if role_name:
                problem = f"no permissions are configured for the role {role_name!r}"
            return PermissionOutcome(False, problem, _NOT_APPLICABLE, _NOT_APPLICABLE)
        if tool in entry.denied:
            return PermissionOutcome(
                False,
                f"{name!r} is in denied_tools of the role {role_name!r}",
                entry.mode.name,
                _NOT_APPLICABLE,
            )
        reason: str | None = None
        if entry.mode < required_mode:
            reason = f"{name!r} requires {required_mode.name}, and the role {role_name!r} has {entry.mode.name}"
        elif entry.allowed is not None and name not in entry.allowed:
            reason = f"{name!r} is not in allowed_tools of the role {role_name!r}"
        return PermissionOutcome(reason is None, reason, entry.mode.name, required_mode.name)


class PermissionEnforcer:
    """Convenience wrapper around a permission policy.

    Args:
        policy: Permission policy to apply.

    >>> enforcer = PermissionEnforcer(
    ...     PermissionPolicy([RolePermissionConfig("clerk", PermissionMode.READ_ONLY, ["look"])])
    ... )
    >>> enforcer.is_allowed("clerk", "look"), enforcer.is_allowed("clerk", "pay")
    (True, False)
    """

    def __init__(self, policy: Permissions) -> None:
        self.policy = policy

    def check(
        self, role: str | None, tool_name: str, *, tenant: str | None = None
    ) -> PermissionOutcome:
        """Decide whether a role may use a capability, and return the decision with its reason."""
        return self.policy.authorize(role, tool_name, tenant=tenant)

    def is_allowed(self, role: str | None, tool_name: str, *, tenant: str | None = None) -> bool:
        """Return True if a role has permission to use a capability."""
        return self.check(role, tool_name, tenant=tenant).allowed

    def filter_tools(
        self, role: str | None, tools: Iterable[ToolT], *, tenant: str | None = None
    ) -> list[ToolT]:
        """Return only the tools that a role has permission to use.

        Args:
            role: Role of the caller.
            tools: Names, functions, tools, or capabilities.
            tenant: Tenant of the caller.
        """
        return [tool for tool in tools if self.is_allowed(role, _get_name(tool), tenant=tenant)]


def _get_name(tool: Any) -> str:
    if isinstance(tool, str):
        return tool
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or tool)
