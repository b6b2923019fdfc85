"""Which provider comes next when one failed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from capgraph.base.errors import ConfigurationError
from capgraph.helpers.number_validation import check_number


class ProviderRouter(Protocol):
    """Chooses another provider."""

    def select(
        self, *, scenario: Any, attempt: int, current: str | None, exclude: Sequence[str] = ()
    ) -> str | None:
        """Return the next provider.

        Args:
            scenario: What went wrong.
            attempt: Which switch of this recovery it is, from 1.
            current: The provider that failed.
            exclude: Further ones that are not wanted.

        Returns:
            Its name; ``None`` when none is left.
        """


class StaticProviderRouter:
    """Takes the first that is left.

    Args:
        available_providers: Names in the order of preference.

    Raises:
        ConfigurationError: A name is empty or stands twice; it is a ``ValueError``.

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
    """Takes one after the other, whoever asks.

    Args:
        available_providers: Names in their order.

    Raises:
        ConfigurationError: A name is empty or stands twice; it is a ``ValueError``.

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
        denied = {current, *exclude}
        with self._lock:
            ahead = [*self.available_providers[self._next :], *self.available_providers]
            chosen = next((name for name in ahead if name not in denied), None)
            if chosen is not None:
                place = self.available_providers.index(chosen) + 1
                self._next = place % len(self.available_providers)
        return chosen


class WeightedProviderRouter:
    """Takes the heaviest that is left, or draws by weight.

    Args:
        providers: Names, each with its weight; 0 takes one out.
        rng: Draws in proportion to the weights; without it the heaviest comes first.

    Raises:
        ConfigurationError: A name is empty or stands twice, or a weight is negative or no number;
            it is a ``ValueError``.

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
        denied = {current, *exclude}
        left = {name: weight for name, weight in self.providers if weight and name not in denied}
        if not left:
            return None
        if self._rng is None:
            return max(left, key=lambda name: left[name])
        return self._rng.choices(list(left), list(left.values()))[0]


def _validate_names(providers: Sequence[str]) -> tuple[str, ...]:
    names = tuple(providers)
    sound = not isinstance(providers, str) and all(isinstance(n, str) and n.strip() for n in names)
    if not sound or len(set(names)) < len(names):
        raise ConfigurationError(
            f"{providers!r} are no names of providers.",
            fix="Give each name once, none of them empty.",
        )
    return names
