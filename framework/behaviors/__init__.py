"""What can be put around a step or a model call, declared once."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.behaviors.audit import AuditBehavior as AuditBehavior
    from framework.behaviors.base import BaseBehavior as BaseBehavior
    from framework.behaviors.base import BehaviorContext as BehaviorContext
    from framework.behaviors.breaker import AsyncCircuitBreaker as AsyncCircuitBreaker
    from framework.behaviors.breaker import CircuitBreaker as CircuitBreaker
    from framework.behaviors.breaker import CircuitBreakerBehavior as CircuitBreakerBehavior
    from framework.behaviors.breaker import CircuitOpenError as CircuitOpenError
    from framework.behaviors.breaker import CircuitState as CircuitState
    from framework.behaviors.cache import CacheBehavior as CacheBehavior
    from framework.behaviors.fallback import FallbackBehavior as FallbackBehavior
    from framework.behaviors.guarding import GuardrailBehavior as GuardrailBehavior
    from framework.behaviors.guardrail_texts import GuardrailRule as GuardrailRule
    from framework.behaviors.guardrail_texts import PatternGuardrail as PatternGuardrail
    from framework.behaviors.guardrail_texts import (
        PromptInjectionGuardrail as PromptInjectionGuardrail,
    )
    from framework.behaviors.guardrails import AllowAllGuardrail as AllowAllGuardrail
    from framework.behaviors.guardrails import AsyncGuardrail as AsyncGuardrail
    from framework.behaviors.guardrails import Guardrail as Guardrail
    from framework.behaviors.guardrails import GuardrailOutcome as GuardrailOutcome
    from framework.behaviors.guardrails import GuardrailStage as GuardrailStage
    from framework.behaviors.guardrails import GuardrailViolatedError as GuardrailViolatedError
    from framework.behaviors.guardrails import GuardrailViolation as GuardrailViolation
    from framework.behaviors.guardrails import GuardrailViolationError as GuardrailViolationError
    from framework.behaviors.guardrails import Guards as Guards
    from framework.behaviors.human_in_loop import HumanApprovalRequired as HumanApprovalRequired
    from framework.behaviors.human_in_loop import HumanInLoopBehavior as HumanInLoopBehavior
    from framework.behaviors.human_in_loop import PendingApproval as PendingApproval
    from framework.behaviors.judged import ModelGuardrail as ModelGuardrail
    from framework.behaviors.judged import SchemaGuardrail as SchemaGuardrail
    from framework.behaviors.personal_data import PIIGuardrail as PIIGuardrail
    from framework.behaviors.providers import ProviderRouter as ProviderRouter
    from framework.behaviors.providers import RoundRobinProviderRouter as RoundRobinProviderRouter
    from framework.behaviors.providers import StaticProviderRouter as StaticProviderRouter
    from framework.behaviors.providers import WeightedProviderRouter as WeightedProviderRouter
    from framework.behaviors.rate_limit import RateLimitBehavior as RateLimitBehavior
    from framework.behaviors.rate_limit import RateLimiter as RateLimiter
    from framework.behaviors.rate_limit import RateLimitExceededError as RateLimitExceededError
    from framework.behaviors.retry import RetryBehavior as RetryBehavior
    from framework.behaviors.retry import TimeoutBehavior as TimeoutBehavior
    from framework.pipeline.retry_policy import backoff_delay as backoff_delay

__getattr__, __dir__ = contents(__name__)
