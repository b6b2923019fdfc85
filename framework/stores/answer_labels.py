"""Data-provenance labels of a server's answers, for clients that send them back as history.

A client of ``/v1`` sends earlier messages with each request. The labels of an answer are found by a
digest of its text, so that they apply again. An unknown message comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from capgraph.helpers.clock import Clock
from capgraph.stores.atomic_values import AtomicValueStore

_PREFIX = "answer/"


class AnswerLabels:
    """Store for the data-provenance labels of the answers that a server sent to each user.

    Args:
        values: Store of the labels.
    """

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values

    async def record(
        self, owner: str, text: str, labels: Mapping[str, str], seconds: float, clock: Clock
    ) -> None:
        """Record the data-provenance labels of an answer sent to a user.

        Args:
            owner: Prefix of the user's threads.
            text: Text of the answer.
            labels: Labels with their sources; empty for an answer without labels.
            seconds: Lifetime of the record, in seconds.
            clock: Clock of the graph.
        """
        # Equal answers of several turns have the labels of all of them.
        await self._values.achange(
            _name(owner, text),
            lambda stored, _: ({**(stored or {}), **labels}, seconds, None),
            clock,
        )

    async def find(self, owner: str, text: str, clock: Clock) -> Mapping[str, str] | None:
        """Return the labels of an answer, or ``None`` if this user did not receive the answer."""
        name = _name(owner, text)
        cells, _now = await self._values.aread(name, clock)
        labels: Mapping[str, str] | None = cells.get(name)
        return labels


def _name(owner: str, text: str) -> str:
    content = f"{owner}\0{text.strip()}".encode("utf-8", "surrogatepass")
    return _PREFIX + sha256(content).hexdigest()
