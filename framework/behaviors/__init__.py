"""What can be put around a step or a model call, declared once."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.behaviors.audit import AuditBehavior
    from framework.behaviors.base import BaseBehavior, BehaviorContext
    from framework.behaviors.breaker import (
        AsyncCircuitBreaker,
        CircuitBreaker,
        CircuitBreakerBehavior,
        CircuitOpenError,
        CircuitState,
    )
    from framework.behaviors.cache import CacheBehavior
    from framework.behaviors.fallback import FallbackBehavior
    from framework.behaviors.guarding import GuardrailBehavior
    from framework.behaviors.guardrail_texts import (
        GuardrailRule,
        PatternGuardrail,
        PromptInjectionGuardrail,
    )
    from framework.behaviors.guardrails import (
        AllowAllGuardrail,
        AsyncGuardrail,
        Guardrail,
        GuardrailOutcome,
        GuardrailStage,
        GuardrailViolatedError,
        GuardrailViolation,
        GuardrailViolationError,
        Guards,
    )
    from framework.behaviors.human_in_loop import (
        HumanApprovalRequired,
        HumanInLoopBehavior,
        PendingApproval,
    )
    from framework.behaviors.judged import ModelGuardrail, SchemaGuardrail
    from framework.behaviors.personal_data import PIIGuardrail
    from framework.behaviors.providers import (
        ProviderRouter,
        RoundRobinProviderRouter,
        StaticProviderRouter,
        WeightedProviderRouter,
    )
    from framework.behaviors.rate_limit import (
        RateLimitBehavior,
        RateLimiter,
        RateLimitExceededError,
    )
    from framework.behaviors.retry import RetryBehavior, TimeoutBehavior
    from framework.pipeline.retry_policy import backoff_delay

__all__ = [
    "AllowAllGuardrail",
    "AsyncCircuitBreaker",
    "AsyncGuardrail",
    "AuditBehavior",
    "BaseBehavior",
    "BehaviorContext",
    "CacheBehavior",
    "CircuitBreaker",
    "CircuitBreakerBehavior",
    "CircuitOpenError",
    "CircuitState",
    "FallbackBehavior",
    "Guardrail",
    "GuardrailBehavior",
    "GuardrailOutcome",
    "GuardrailRule",
    "GuardrailStage",
    "GuardrailViolatedError",
    "GuardrailViolation",
    "GuardrailViolationError",
    "Guards",
    "HumanApprovalRequired",
    "HumanInLoopBehavior",
    "ModelGuardrail",
    "PIIGuardrail",
    "PatternGuardrail",
    "PendingApproval",
    "PromptInjectionGuardrail",
    "ProviderRouter",
    "RateLimitBehavior",
    "RateLimitExceededError",
    "RateLimiter",
    "RetryBehavior",
    "RoundRobinProviderRouter",
    "SchemaGuardrail",
    "StaticProviderRouter",
    "TimeoutBehavior",
    "WeightedProviderRouter",
    "backoff_delay",
]

_PARTS = (
    "base",
    "framework.pipeline.retry_policy",
    "retry",
    "guardrails",
    "guardrail_texts",
    "guarding",
    "fallback",
    "cache",
    "audit",
    "human_in_loop",
    "providers",
    "rate_limit",
    "breaker",
    "judged",
    "personal_data",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
