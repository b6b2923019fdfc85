"""Permissions: who may use which capability, by role and by tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.base.ports import PermissionMode

ToolT = TypeVar("ToolT")
_NOT_APPLICABLE = "N/A"


def normalize_name(name: str) -> str:
    """Return a capability's name in the form in which names are compared, everywhere.

    >>> normalize_name(" Send_Mail ")
    'send_mail'
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(
            f"{name!r} is no name of a capability. Fix: give a text that is not empty."
        )
    return name.strip().casefold()


@dataclass(frozen=True, slots=True)
class PermissionOutcome:
    """What was decided about one capability.

    Attributes:
        allowed: Whether it may be used.
        reason: Why not; empty where nothing is to be said.
        active_mode: Name of the caller's mode.
        required_mode: Name of the mode that the capability asks for.

    >>> PermissionOutcome(False, "it is denied").to_dict()
    {'allowed': False, 'reason': 'it is denied'}
    """

    allowed: bool
    reason: str | None = None
    active_mode: str = ""
    required_mode: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is empty is left out."""
        named = {name: getattr(self, name) for name in ("reason", "active_mode", "required_mode")}
        return {"allowed": self.allowed, **{name: text for name, text in named.items() if text}}


class PermissionDeniedError(PolicyError):
    """The caller may not use a capability.

    Args:
        outcome: What was decided.

    Attributes:
        outcome: The same.
    """

    code = "CG-PERMISSION"
    severity: ErrorSeverity = ErrorSeverity.CRITICAL

    def __init__(self, outcome: PermissionOutcome) -> None:
        self.outcome = outcome
        super().__init__(
            f"Permission denied: {outcome.reason or 'the caller may not do this'}.",
            fix="Ask somebody who may, or have the permissions of the role changed.",
        )


@dataclass(slots=True)
class RolePermissionConfig:
    """What a role may do.

    Attributes:
        role: Name of the role, as whoever authenticates callers writes it.
        mode: How much it may do: a mode or its name.
        allowed_tools: The only capabilities that it may use; ``None`` for all that its mode allows.
        denied_tools: Capabilities that it may not use whatever else is said.
        tenant: The only tenant for which this holds, in place of what holds for all.

    Raises:
        ValueError: A name is empty, or the mode is none.
        TypeError: One text is given where a list of names belongs.
    """

    role: str
    mode: PermissionMode
    allowed_tools: list[str] | None = None
    denied_tools: list[str] = field(default_factory=list)
    tenant: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or not self.role.strip():
            raise ValueError(f"{self.role!r} is no role. Fix: give its name.")
        self.role = self.role.strip()
        self.mode = PermissionMode.of(self.mode)
        for name in ("allowed_tools", "denied_tools"):
            given = getattr(self, name)
            if isinstance(given, str) or (given is None and name == "denied_tools"):
                raise TypeError(f"{name} of {self.role!r} is {given!r}. Fix: give a list of names.")
            if given is not None:
                # A list of one's own: nobody changes a permission by changing his list.
                setattr(self, name, [tool.strip() for tool in given if normalize_name(tool)])


class Permissions(Protocol):
    """Decides who may use a capability; :class:`PermissionPolicy` is one, Cedar policies another."""

    def authorize(
        self,
        role: str | None,
        name: str,
        *,
        tenant: str | None = None,
        user_id: str | None = None,
        required: PermissionMode = PermissionMode.READ_ONLY,
    ) -> PermissionOutcome:
        """Decide about one capability.

        Args:
            role: The caller's role; ``None`` where nobody said.
            name: The capability.
            tenant: To whom the caller belongs.
            user_id: The caller.
            required: What the capability itself asks for.
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
    """Permissions by role: the deny list first, then the mode, then the allow list.

    What is allowed is compared exactly with the name that a capability is registered by. What is
    denied or required is compared without regard to case, so that no spelling gets around it. A
    role that is not configured may do nothing.

    Args:
        role_configs: The roles: a list, or a dictionary by role.
        tool_requirements: The least mode for a capability, beside what it declares itself.
        default_allow_unknown_roles: Whether callers without a configured role may do everything.

    Attributes:
        capability_names: Names of capabilities in all lists, as they are written.
        allowed_names: Those of the allow lists.

    Raises:
        ValueError: Two entries are for one role and tenant, or a key is not its entry's role.
        TypeError: An entry is no ``RolePermissionConfig``.

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
                    f"{config!r} is no RolePermissionConfig. Fix: give one for each role."
                )
            place = (config.role, config.tenant)
            if role.strip() != config.role or place in self._roles:
                raise ValueError(
                    f"The role {config.role!r} stands under {role!r}, or twice."
                    " Fix: give each role once for a tenant, under its own name."
                )
            self._roles[place] = _Role.of(config)
        self._required: dict[str, PermissionMode] = {}
        for tool, mode in (tool_requirements or {}).items():
            # Two spellings of one name: the stricter one holds.
            known = self._required.get(normalize_name(tool), PermissionMode.READ_ONLY)
            self._required[normalize_name(tool)] = max(known, PermissionMode.of(mode))
        self._allow_unknown = default_allow_unknown_roles is True
        self.allowed_names: frozenset[str] = frozenset(
            name for _, config in entries for name in config.allowed_tools or ()
        )
        named = [
            name
            for _, config in entries
            for name in (*(config.allowed_tools or ()), *config.denied_tools)
        ]
        self.capability_names: tuple[str, ...] = tuple(
            dict.fromkeys([*named, *(tool_requirements or ())])
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
        """Decide about one capability; see :class:`Permissions`."""
        tool = normalize_name(name)
        known = role.strip() if isinstance(role, str) else None
        found = self._roles.get((known or "", tenant)) or self._roles.get((known or "", None))
        needed = max(required, self._required.get(tool, PermissionMode.READ_ONLY))
        if found is None:
            if self._allow_unknown:
                return PermissionOutcome(True, "no role is configured, and such callers may")
            why = f"the caller of {name!r} has no role"
            if known:
                why = f"no permissions are configured for the role {known!r}"
            return PermissionOutcome(False, why, _NOT_APPLICABLE, _NOT_APPLICABLE)
        if tool in found.denied:
            return PermissionOutcome(
                False, f"{name!r} is denied to the role {known!r}", found.mode.name, _NOT_APPLICABLE
            )
        reason: str | None = None
        if found.mode < needed:
            reason = (
                f"{name!r} requires {needed.name}, and the role {known!r} has {found.mode.name}"
            )
        elif found.allowed is not None and name not in found.allowed:
            reason = f"{name!r} is not among what the role {known!r} may use"
        return PermissionOutcome(reason is None, reason, found.mode.name, needed.name)


class PermissionEnforcer:
    """Asks permissions in short.

    Args:
        policy: What decides.

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
        """Return what is decided about a capability, with the reason."""
        return self.policy.authorize(role, tool_name, tenant=tenant)

    def is_allowed(self, role: str | None, tool_name: str, *, tenant: str | None = None) -> bool:
        """Tell whether a role may use a capability."""
        return self.check(role, tool_name, tenant=tenant).allowed

    def filter_tools(
        self, role: str | None, tools: Iterable[ToolT], *, tenant: str | None = None
    ) -> list[ToolT]:
        """Return those that a role may use: names, functions, tools or capabilities."""
        return [tool for tool in tools if self.is_allowed(role, _name_of(tool), tenant=tenant)]


def _name_of(tool: Any) -> str:
    if isinstance(tool, str):
        return tool
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or tool)
