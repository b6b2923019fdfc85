"""Retry arithmetic: pure, one place, one owner."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capgraph.base.ports import RetryRule
from capgraph.base.values import to_plain
from capgraph.configs.limits import Limits
from capgraph.configs.logger import get_logger

JITTER = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long.

    Attributes:
        max_attempts: Total tries, the first included.
        delay_seconds: Wait before the second try, in seconds.
        backoff_factor: Each further wait is this many times the one before.

    >>> RetryPolicy(3, 0.5, 2.0).delay(2)
    1.0
    """

    max_attempts: int = 3
    delay_seconds: float = 0.5
    backoff_factor: float = 1.5

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, limits: Limits) -> RetryPolicy:
        """Read what ``get_retry_policy`` returned; nonsense falls back to one try."""
        given = values or {}
        try:
            wanted = float(given.get("max_attempts", 1))
            attempts = limits.max_attempts if wanted == math.inf else int(wanted)
            delay = float(given.get("delay_seconds", 0.0))
            factor = float(given.get("backoff_factor", 1.0))
        except (TypeError, ValueError, OverflowError):
            return cls(1, 0.0, 1.0)
        return cls(max(1, min(attempts, limits.max_attempts)), max(0.0, delay), max(0.0, factor))

    def delay(self, failures: int) -> float:
        """Return the wait in seconds after this many failures, before cap and jitter."""
        try:
            return self.delay_seconds * self.backoff_factor ** max(0, failures - 1)
        except OverflowError:
            return math.inf


def declared_policy(cls: type[Any]) -> dict[str, Any]:
    """Return what a class says about its retries, as plain data; ``{}`` when it says nonsense.

    The failure that is being reported must not be hidden by a second one, in the policy.
    """
    try:
        policy = cls.get_retry_policy()
    except Exception as exc:
        get_logger("framework", "retry").error(
            "get_retry_policy of %s raised %r; it is not tried again", cls.__name__, exc
        )
        return {}
    return to_plain(policy, lenient=True) if isinstance(policy, Mapping) else {}


_JITTERS = ("none", "full", "equal", "decorrelated")


def backoff_delay(
    attempt: int,
    base: float = 2,
    jitter: str | bool = "decorrelated",
    cap: float = 60,
    prev_delay: float = 0,
    *,
    rng: random.Random | None = None,
) -> float:
    """Return how long to wait before a further try, in seconds, spread by chance.

    Args:
        attempt: Which try failed; the wait without jitter is ``base ** attempt``.
        base: Growth of the wait; of ``decorrelated`` its least.
        jitter: ``none``, ``full`` (up to the wait), ``equal`` (from half of it up) or
            ``decorrelated`` (between ``base`` and three times the last wait); ``True`` is ``full``
            and ``False`` is ``none``.
        cap: Upper bound.
        prev_delay: The last wait, for ``decorrelated``.
        rng: Source of chance.

    Raises:
        ValueError: The jitter is none of these.

    >>> backoff_delay(3, jitter="none")
    8.0
    >>> 2 <= backoff_delay(1, prev_delay=0.1) <= 60
    True
    """
    name = {True: "full", False: "none"}[jitter] if isinstance(jitter, bool) else jitter
    if name not in _JITTERS:
        raise ValueError(
            f"{jitter!r} is no jitter. Fix: use one of {', '.join(map(repr, _JITTERS))}."
        )
    uniform = rng.uniform if rng is not None else random.uniform
    if name == "decorrelated":
        return min(float(cap), uniform(base, max(base, 3 * (prev_delay or base))))
    try:
        whole = min(float(cap), float(base) ** attempt)
    except OverflowError:
        whole = float(cap)
    if name == "none":
        return whole
    return uniform(0, whole) if name == "full" else whole / 2 + uniform(0, whole / 2)


def wait_seconds(
    policy: RetryPolicy | RetryRule,
    failures: int,
    limits: Limits,
    *,
    retry_after: float | None = None,
    jitter: float = JITTER,
    rng: random.Random | None = None,
) -> float:
    """Return how long to wait before the next try.

    What the other side asked for (``Retry-After``) is a lower bound; the setting
    ``max_retry_delay_seconds`` is the upper one. Jitter spreads clients that failed together.

    >>> wait_seconds(RetryPolicy(3, 100.0, 1.0), 1, Limits(max_retry_delay_seconds=2.0))
    2.0
    """
    source = rng.random if rng is not None else random.random
    spread = 1.0 + jitter * source()
    delay = policy.delay(failures) * spread
    if retry_after is not None:
        delay = max(delay, retry_after)
    return min(delay, limits.max_retry_delay_seconds)
