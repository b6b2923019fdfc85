"""Routers that select the next model provider after a failure."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from capgraph.base.errors import ConfigurationError
from capgraph.helpers.number_validation import check_number


class ProviderRouter(Protocol):
    """Protocol of routers that select the next model provider after a failure."""

    def select(
        self, *, scenario: Any, attempt: int, current: str | None, exclude: Sequence[str] = ()
    ) -> str | None:
        """Select the model provider to use after a failure.

        Args:
            scenario: Scenario that describes the failure.
            attempt: Number of the provider switch in this recovery, from 1.
            current: Name of the failed provider.
            exclude: Names of additional providers to skip.

        Returns:
            Name of the next provider, or ``None`` if no provider is left.
        """


class StaticProviderRouter:
    """Provider router that selects the first remaining provider in order of preference.

    Args:
        available_providers: Names of the providers in order of preference.

    Raises:
        ConfigurationError: A provider name is empty or repeated. The error is also a
            ``ValueError``.

    >>> router = StaticProviderRouter(("a", "b"))
    >>> router.select(scenario=None, attempt=1, current="a")
    'b'
    """

    def __init__(self, available_providers: Sequence[str]) -> None:
        self.available_providers: tuple[str, ...] = _validate_names(available_providers)

    def select(
        self, *, scenario: Any, attempt: int, current: str | None, exclude: Sequence[str] = ()
    ) -> str | None:
        """Return the next provider; see :class:`ProviderRouter`."""
        return next((n for n in self.available_providers if n not in {current, *exclude}), None)


class RoundRobinProviderRouter:
    """Provider router that cycles through the providers across all calls.

    Args:
        available_providers: Names of the providers in the order of selection.

    Raises:
        ConfigurationError: A provider name is empty or repeated. The error is also a
            ``ValueError``.

    >>> router = RoundRobinProviderRouter(("a", "b", "c"))
    >>> [router.select(scenario=None, attempt=1, current=None) for _ in range(4)]
    ['a', 'b', 'c', 'a']
    """

    def __init__(self, available_providers: Sequence[str]) -> None:
        self.available_providers: tuple[str, ...] = _validate_names(available_providers)
        self._next = 0
        self._lock = threading.Lock()

    def select(
        self, *, scenario: Any, attempt: int, current: str | None, exclude: Sequence[str] = ()
    ) -> str | None:
        """Return the next provider; see :class:`ProviderRouter`."""
        excluded = {current, *exclude}
        with self._lock:
            candidates = [*self.available_providers[self._next :], *self.available_providers]
            chosen = next((name for name in candidates if name not in excluded), None)
            if chosen is not None:
                following = self.available_providers.index(chosen) + 1
                self._next = following % len(self.available_providers)
        return chosen


class WeightedProviderRouter:
    """Provider router that selects the remaining provider with the largest weight.

    Args:
        providers: Pairs of provider name and weight. A weight of 0 excludes the provider.
        rng: Random number generator for a random choice in proportion to the weights. If None,
            the largest weight wins.

    Raises:
        ConfigurationError: A name is empty or repeated, or a weight is negative or not a
            number. The error is a ``ValueError``.

    >>> router = WeightedProviderRouter((("a", 9.0), ("b", 1.0)))
    >>> router.select(scenario=None, attempt=1, current=None)
    'a'
    >>> router.select(scenario=None, attempt=1, current="a", exclude=("b",)) is None
    True
    """

    def __init__(
        self, providers: Sequence[tuple[str, float]], *, rng: random.Random | None = None
    ) -> None:
        self.providers: tuple[tuple[str, float], ...] = tuple(
            (name, float(weight)) for name, weight in providers
        )
        _validate_names([name for name, _ in self.providers])
        for name, weight in self.providers:
            check_number(f"The weight of {name!r}", weight, error=ConfigurationError)
        self._rng = rng

    def select(
        self, *, scenario: Any, attempt: int, current: str | None, exclude: Sequence[str] = ()
    ) -> str | None:
        """Return the next provider; see :class:`ProviderRouter`."""
        excluded = {current, *exclude}
        remaining = {
            name: weight for name, weight in self.providers if weight and name not in excluded
        }
        if not remaining:
            return None
        if self._rng is None:
            return max(remaining, key=lambda name: remaining[name])
        return self._rng.choices(list(remaining), list(remaining.values()))[0]


def _validate_names(providers: Sequence[str]) -> tuple[str, ...]:
    names = tuple(providers)
    is_valid = not isinstance(providers, str) and all(
        isinstance(n, str) and n.strip() for n in names
    )
    if not is_valid or len(set(names)) < len(names):
        raise ConfigurationError(
            f"The provider names {providers!r} are invalid: each must be unique and not empty.",
            fix="Pass each name once.",
        )
    return names
