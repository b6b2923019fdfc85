"""Spreading work over capabilities that can stand in for one another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from threading import Lock

from framework.base import ValidationError


class LoadBalancer:
    """Chooses among equivalent capabilities by smooth weighted round-robin.

    Each choice adds every weight to its name's credit, takes the name with the most and
    lowers it by the sum of the weights. So shares follow the weights exactly over a cycle
    and a heavy name does not get all its turns in a row. The credits belong to the
    instance; choosing is atomic, also between threads.

    Args:
        weights: Share of each capability; 0 takes one out without forgetting it.

    Raises:
        ValidationError: No weight is above 0, or one is negative or not a finite number.

    >>> balancer = LoadBalancer({"a": 3, "b": 1})
    >>> [balancer.choose() for _ in range(4)]
    ['a', 'a', 'b', 'a']
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if not math.isfinite(weight) or weight < 0:
                raise ValidationError(
                    f"The weight of {name!r} is {weight!r}.", fix="Give a number from 0 upwards."
                )
        if not any(weights.values()):
            raise ValidationError(
                f"No weight of {dict(weights)!r} is above 0, so nothing could be chosen.",
                fix="Give at least one capability a weight above 0.",
            )
        self._weights = dict(weights)
        self._credits = dict.fromkeys(weights, 0.0)
        self._lock = Lock()

    def choose(self, available: Collection[str] | None = None) -> str:
        """Return the next name.

        Args:
            available: The names that can be used now; ``None`` for all.

        Raises:
            ValidationError: None of the available names has a weight above 0.
        """
        with self._lock:
            usable = {
                name: weight
                for name, weight in self._weights.items()
                if weight > 0 and (available is None or name in available)
            }
            if not usable:
                raise ValidationError(
                    f"None of the available capabilities {sorted(available or ())} has a "
                    f"weight above 0 in {self._weights!r}.",
                    fix="Make one of them available, or give an available one a weight.",
                )
            for name, weight in usable.items():
                self._credits[name] += weight
            chosen = max(usable, key=lambda name: self._credits[name])
            self._credits[chosen] -= sum(usable.values())
            return chosen
