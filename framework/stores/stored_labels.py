"""Data-provenance labels of data that leaves the agent and may come back: answers and files.

A client of ``/v1`` sends earlier messages with each request, and a step can read a file that another
step wrote. The labels are found by a digest of the answer's text or of the file's path.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from capgraph.helpers.clock import Clock
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore


class StoredLabels:
    """Store for the data-provenance labels of answers or files.

    Args:
        values: Store of the labels.
        prefix: Prefix of the names in the store.
    """

    def __init__(self, values: AtomicValueStore, prefix: str) -> None:
        self._values, self._prefix = values, prefix

    async def record(
        self,
        owner: str,
        text: str,
        labels: Mapping[str, str],
        clock: Clock,
        seconds: float = FOREVER,
    ) -> None:
        """Record the data-provenance labels of an answer sent to a user, or of a file.

        Args:
            owner: Prefix of the user's threads. Empty for a file.
            text: Text of the answer, or resolved path of the file.
            labels: Labels with their sources; empty for an answer without labels.
            clock: Clock of the graph.
            seconds: Lifetime of the record, in seconds.
        """
        # Equal answers of several turns have the labels of all of them.
        await self._values.achange(
            self._name(owner, text),
            lambda stored, _: ({**(stored or {}), **labels}, seconds, None),
            clock,
        )

    async def find(self, owner: str, text: str, clock: Clock) -> Mapping[str, str] | None:
        """Return the labels of an answer or a file, or ``None`` if none were recorded."""
        name = self._name(owner, text)
        cells, _now = await self._values.aread(name, clock)
        labels: Mapping[str, str] | None = cells.get(name)
        return labels

    def _name(self, owner: str, text: str) -> str:
        content = f"{owner}\0{text.strip()}".encode("utf-8", "surrogatepass")
        return self._prefix + sha256(content).hexdigest()
