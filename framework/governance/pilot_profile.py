"""A careful profile for a first use: what is not allowed is denied, and everything is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capgraph.base.ports import PermissionMode
from capgraph.behaviors import (
    GuardrailBehavior,
    PatternGuardrail,
    PromptInjectionGuardrail,
)
from capgraph.governance.permissions import (
    PermissionEnforcer,
    PermissionPolicy,
    RolePermissionConfig,
)
from capgraph.governance.usage_limits import (
    GovernancePlane,
    MaxBudgetLimit,
    MaxConsecutiveFailuresLimit,
    MaxIterationsLimit,
    MaxToolCallsLimit,
)


@dataclass(frozen=True, slots=True)
class PilotRuntimeProfile:
    """What :func:`build_pilot_profile` puts together.

    Attributes:
        permissions: Who may use what.
        guardrails: What is looked at, and where.
        governance: The bounds of a session.
        max_iterations: How many turns a session may have.
    """

    permissions: PermissionEnforcer
    guardrails: tuple[Any, ...]
    governance: GovernancePlane
    max_iterations: int

    def agent_session_kwargs(self) -> dict[str, Any]:
        """Return what an ``AgentSession`` is given; the bounds count anew for each."""
        return {
            "permissions": self.permissions,
            "guardrails": list(self.guardrails),
            "governance": GovernancePlane(self.governance.limits),
            "max_iterations": self.max_iterations,
        }

    def graph_options(self) -> dict[str, Any]:
        """Return what ``build_graph`` or ``bind`` is given."""
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
    """Put a careful profile together: role, tools and budget have to be said.

    Args:
        role: Who uses it.
        allowed_tools: The only capabilities that the role may use.
        budget_usd: The most that a session may cost.
        permission_mode: How much the role may do.
        denied_tools: What it may not use whatever else is said.
        tool_requirements: The least mode for a capability.
        max_iterations: How many turns a session may have.
        max_tool_calls: How many calls of capabilities.
        max_consecutive_failures: How many failures in a row.
        prompt_injection_stages: Where injected instructions are looked for.
        extra_prompt_injection_patterns: Further patterns of them.
        tool_deny_patterns: What the arguments of a call may not hold.

    Raises:
        ValueError: A name is empty or doubled, a bound is not above 0, or there is no tool.

    >>> pilot = build_pilot_profile(role="clerk", allowed_tools=["look"], budget_usd=1.0)
    >>> [pilot.permissions.is_allowed("clerk", name) for name in ("look", "pay")]
    [True, False]
    """
    names = [name.strip().casefold() for name in allowed_tools]
    bounds = (budget_usd, max_iterations, max_tool_calls, max_consecutive_failures)
    if isinstance(allowed_tools, str) or not names or len({*names}) < len(names):
        raise ValueError(
            f"allowed_tools is {allowed_tools!r}. Fix: name at least one capability, each once."
        )
    if not all(bound > 0 for bound in bounds):
        raise ValueError(f"The bounds are {bounds}. Fix: give numbers above 0.")
    config = RolePermissionConfig(
        role, PermissionMode.of(permission_mode), list(allowed_tools), list(denied_tools)
    )
    looked_at: frozenset[Any] = frozenset(prompt_injection_stages)
    if not looked_at or not looked_at <= {"pre", "post"}:
        raise ValueError(
            f"prompt_injection_stages is {prompt_injection_stages!r}. Fix: use 'pre', 'post' or both."
        )
    guardrails: list[PatternGuardrail] = [
        PromptInjectionGuardrail(extra_prompt_injection_patterns, stages=looked_at)
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
