"""Restrictive profile for pilot projects, which denies by default and limits all usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capgraph.base.ports import PermissionMode
from capgraph.behaviors import GuardrailBehavior, PatternGuardrail, PromptInjectionGuardrail
from capgraph.compat.session_limits import (
    GovernancePlane,
    MaxBudgetLimit,
    MaxConsecutiveFailuresLimit,
    MaxIterationsLimit,
    MaxToolCallsLimit,
)
from capgraph.governance.permissions import (
    PermissionEnforcer,
    PermissionPolicy,
    RolePermissionConfig,
)


@dataclass(frozen=True, slots=True)
class PilotRuntimeProfile:
    """Permissions, guardrails, and limits of a pilot project; see :func:`build_pilot_profile`.

    Attributes:
        permissions: Permissions of the role.
        guardrails: Guardrails for tool calls and results.
        governance: Limits of a session.
        max_iterations: Maximum number of turns per session.
    """

    permissions: PermissionEnforcer
    guardrails: tuple[Any, ...]
    governance: GovernancePlane
    max_iterations: int

    def agent_session_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments that apply this profile to an ``AgentSession``.

        The limits start at zero in each session.
        """
        return {
            "permissions": self.permissions,
            "guardrails": list(self.guardrails),
            "governance": GovernancePlane(self.governance.limits),
            "max_iterations": self.max_iterations,
        }

    def graph_options(self) -> dict[str, Any]:
        """Return keyword arguments for ``build_graph`` or ``bind``."""
        return {
            "permissions": self.permissions.policy,
            "behaviors": [GuardrailBehavior(guardrails=list(self.guardrails))],
        }


def build_pilot_profile(
    *,
    role: str,
    allowed_tools: Sequence[str],
    budget_usd: float,
    permission_mode: PermissionMode | int = PermissionMode.READ_ONLY,
    denied_tools: Sequence[str] = (),
    tool_requirements: Mapping[str, PermissionMode] | None = None,
    max_iterations: int = 25,
    max_tool_calls: int = 100,
    max_consecutive_failures: int = 3,
    prompt_injection_stages: Sequence[str] = ("post",),
    extra_prompt_injection_patterns: Sequence[str] = (),
    tool_deny_patterns: Sequence[str] = (),
) -> PilotRuntimeProfile:
    """Build restrictive permissions, guardrails, and limits for a pilot project.

    Args:
        role: Name of the role.
        allowed_tools: Capabilities that the role may use.
        budget_usd: Maximum cost of a session in US dollars.
        permission_mode: Permission mode of the role.
        denied_tools: Capabilities that the role may not use. This list takes precedence.
        tool_requirements: Minimum mode by capability.
        max_iterations: Maximum number of turns per session.
        max_tool_calls: Maximum number of capability calls per session.
        max_consecutive_failures: Maximum number of consecutive failures.
        prompt_injection_stages: Stages at which to search for injected instructions.
        extra_prompt_injection_patterns: Additional patterns of injected instructions.
        tool_deny_patterns: Patterns that tool arguments must not contain.

    Raises:
        ValueError: A name is empty or repeated, a limit is not above 0, or no tool is allowed.

    >>> pilot = build_pilot_profile(role="clerk", allowed_tools=["look"], budget_usd=1.0)
    >>> [pilot.permissions.is_allowed("clerk", name) for name in ("look", "pay")]
    [True, False]
    """
    names = [name.strip().casefold() for name in allowed_tools]
    maximums = (budget_usd, max_iterations, max_tool_calls, max_consecutive_failures)
    if isinstance(allowed_tools, str) or not names or len({*names}) < len(names):
        raise ValueError(
            f"allowed_tools is {allowed_tools!r}: it must be a list of unique capability names."
            " Fix: pass at least one name."
        )
    if not all(bound > 0 for bound in maximums):
        raise ValueError(
            f"The limits are {maximums}: they must be positive numbers. Fix: raise them above 0."
        )
    config = RolePermissionConfig(
        role, PermissionMode.of(permission_mode), list(allowed_tools), list(denied_tools)
    )
    stages: frozenset[Any] = frozenset(prompt_injection_stages)
    if not stages or not stages <= {"pre", "post"}:
        raise ValueError(
            f"prompt_injection_stages is {prompt_injection_stages!r}: a stage is unknown. Fix:"
            " use 'pre', 'post', or both."
        )
    guardrails: list[PatternGuardrail] = [
        PromptInjectionGuardrail(extra_prompt_injection_patterns, stages=stages)
    ]
    if tool_deny_patterns:
        deny = PatternGuardrail(tool_deny_patterns, name="pilot_tool_deny", stages=["pre"])
        guardrails.append(deny)
    limits = (
        MaxIterationsLimit(value=max_iterations, on_breach="terminate"),
        MaxBudgetLimit(value=budget_usd, on_breach="terminate"),
        MaxConsecutiveFailuresLimit(value=max_consecutive_failures, on_breach="terminate"),
        MaxToolCallsLimit(value=max_tool_calls, on_breach="terminate"),
    )
    return PilotRuntimeProfile(
        PermissionEnforcer(PermissionPolicy([config], tool_requirements)),
        tuple(guardrails),
        GovernancePlane(limits),
        max_iterations,
    )
