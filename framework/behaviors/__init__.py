"""What can be put around a step or a model call, declared once."""

from framework.behaviors.base import BaseBehavior, BehaviorContext
from framework.behaviors.breaker import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitBreakerBehavior,
    CircuitOpenError,
    CircuitState,
)
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

__all__ = [
    "AsyncCircuitBreaker",
    "BaseBehavior",
    "BehaviorContext",
    "CircuitBreaker",
    "CircuitBreakerBehavior",
    "CircuitOpenError",
    "CircuitState",
    "ProviderRouter",
    "RateLimitBehavior",
    "RateLimitExceededError",
    "RateLimiter",
    "RoundRobinProviderRouter",
    "StaticProviderRouter",
    "WeightedProviderRouter",
]
