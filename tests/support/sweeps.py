"""How much of a sweep runs: a seeded sample in the short form, all of it in the long one.

``make test`` is the short form, ``make test-long`` (``LONG_TESTS=1``) the long one; ``SEED``
chooses another sample.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = bool(os.environ.get("LONG_TESTS"))
SEED = int(os.environ.get("SEED") or 20)


def examples(short: int) -> int:
    """Return how many examples of a property are tried."""
    return short * 20 if LONG else short


def sample(items: Iterable[T], short: int) -> list[T]:
    """Return the cases of a sweep, in an order that the seed chooses."""
    found = list(items)
    random.Random(SEED).shuffle(found)
    return found if LONG else found[:short]
