"""Middleware for steps, nodes, agents, and model calls."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.behaviors.audit import AuditBehavior as AuditBehavior
    from capgraph.behaviors.base import BaseBehavior as BaseBehavior
    from capgraph.behaviors.base import BehaviorContext as BehaviorContext
    from capgraph.behaviors.cache import CacheBehavior as CacheBehavior
    from capgraph.behaviors.circuit_breaker import AsyncCircuitBreaker as AsyncCircuitBreaker
    from capgraph.behaviors.circuit_breaker import CircuitBreaker as CircuitBreaker
    from capgraph.behaviors.circuit_breaker import CircuitBreakerBehavior as CircuitBreakerBehavior
    from capgraph.behaviors.circuit_breaker import CircuitOpenError as CircuitOpenError
    from capgraph.behaviors.circuit_breaker import CircuitState as CircuitState
    from capgraph.behaviors.fallback import FallbackBehavior as FallbackBehavior
    from capgraph.behaviors.function_middleware import middleware as middleware
    from capgraph.behaviors.guardrail_behavior import GuardrailBehavior as GuardrailBehavior
    from capgraph.behaviors.guardrails import AllowAllGuardrail as AllowAllGuardrail
    from capgraph.behaviors.guardrails import AsyncGuardrail as AsyncGuardrail
    from capgraph.behaviors.guardrails import Guardrail as Guardrail
    from capgraph.behaviors.guardrails import GuardrailOutcome as GuardrailOutcome
    from capgraph.behaviors.guardrails import GuardrailStage as GuardrailStage
    from capgraph.behaviors.guardrails import GuardrailViolatedError as GuardrailViolatedError
    from capgraph.behaviors.guardrails import GuardrailViolation as GuardrailViolation
    from capgraph.behaviors.guardrails import GuardrailViolationError as GuardrailViolationError
    from capgraph.behaviors.guardrails import Guards as Guards
    from capgraph.behaviors.human_in_loop import HumanApprovalRequired as HumanApprovalRequired
    from capgraph.behaviors.human_in_loop import HumanInLoopBehavior as HumanInLoopBehavior
    from capgraph.behaviors.human_in_loop import PendingApproval as PendingApproval
    from capgraph.behaviors.model_guardrail import ModelGuardrail as ModelGuardrail
    from capgraph.behaviors.model_guardrail import SchemaGuardrail as SchemaGuardrail
    from capgraph.behaviors.personal_data import PIIGuardrail as PIIGuardrail
    from capgraph.behaviors.providers import ProviderRouter as ProviderRouter
    from capgraph.behaviors.providers import RoundRobinProviderRouter as RoundRobinProviderRouter
    from capgraph.behaviors.providers import StaticProviderRouter as StaticProviderRouter
    from capgraph.behaviors.providers import WeightedProviderRouter as WeightedProviderRouter
    from capgraph.behaviors.rate_limit import RateLimitBehavior as RateLimitBehavior
    from capgraph.behaviors.rate_limit import RateLimiter as RateLimiter
    from capgraph.behaviors.rate_limit import RateLimitExceededError as RateLimitExceededError
    from capgraph.behaviors.text_guardrails import GuardrailRule as GuardrailRule
    from capgraph.behaviors.text_guardrails import PatternGuardrail as PatternGuardrail
    from capgraph.behaviors.text_guardrails import (
        PromptInjectionGuardrail as PromptInjectionGuardrail,
    )
    from capgraph.behaviors.timeout import TimeoutBehavior as TimeoutBehavior
    from capgraph.pipeline.retry_policy import RetryBehavior as RetryBehavior
    from capgraph.pipeline.retry_policy import backoff_delay as backoff_delay

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.behaviors.audit": ("AuditBehavior",),
        "capgraph.behaviors.base": ("BaseBehavior", "BehaviorContext"),
        "capgraph.behaviors.circuit_breaker": (
            "AsyncCircuitBreaker",
            "CircuitBreaker",
            "CircuitBreakerBehavior",
            "CircuitOpenError",
            "CircuitState",
        ),
        "capgraph.behaviors.cache": ("CacheBehavior",),
        "capgraph.behaviors.fallback": ("FallbackBehavior",),
        "capgraph.behaviors.function_middleware": ("middleware",),
        "capgraph.behaviors.guardrail_behavior": ("GuardrailBehavior",),
        "capgraph.behaviors.text_guardrails": (
            "GuardrailRule",
            "PatternGuardrail",
            "PromptInjectionGuardrail",
        ),
        "capgraph.behaviors.guardrails": (
            "AllowAllGuardrail",
            "AsyncGuardrail",
            "Guardrail",
            "GuardrailOutcome",
            "GuardrailStage",
            "GuardrailViolatedError",
            "GuardrailViolation",
            "GuardrailViolationError",
            "Guards",
        ),
        "capgraph.behaviors.human_in_loop": (
            "HumanApprovalRequired",
            "HumanInLoopBehavior",
            "PendingApproval",
        ),
        "capgraph.behaviors.model_guardrail": ("ModelGuardrail", "SchemaGuardrail"),
        "capgraph.behaviors.personal_data": ("PIIGuardrail",),
        "capgraph.behaviors.providers": (
            "ProviderRouter",
            "RoundRobinProviderRouter",
            "StaticProviderRouter",
            "WeightedProviderRouter",
        ),
        "capgraph.behaviors.rate_limit": (
            "RateLimitBehavior",
            "RateLimitExceededError",
            "RateLimiter",
        ),
        "capgraph.behaviors.timeout": ("TimeoutBehavior",),
        "capgraph.pipeline.retry_policy": ("RetryBehavior", "backoff_delay"),
    },
)
