"""Current roles of users, as servers authenticated them last.

A turn or an approval stores the role that its person had at that time. Before the turn continues,
or the approval counts, the person's current role is read from here.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from capgraph.base.ports import Caller, normalize_user_id
from capgraph.helpers.clock import SystemClock
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore

_PREFIX = "role/"


class CurrentRoles:
    """Current roles of authenticated users.

    Args:
        values: Store of the roles.
    """

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values

    async def record(self, caller: Caller) -> None:
        """Record the current role of an authenticated user."""
        if caller.authenticated and caller.user_id is not None:
            await self._values.achange(
                _name(caller), lambda *_: ([caller.role], FOREVER, None), SystemClock()
            )

    async def find(self, caller: Caller) -> Caller:
        """Return a user with the current role; unchanged if no server has authenticated the user."""
        if not caller.authenticated or caller.user_id is None:
            return caller

        def read(stored: Any, _now: float) -> tuple[Any, float, Any]:
            return stored, FOREVER, stored

        stored = await self._values.achange(_name(caller), read, SystemClock())
        return caller if stored is None else replace(caller, role=stored[0])


def _name(caller: Caller) -> str:
    person = f"{normalize_user_id(caller.user_id or '')}\0{caller.tenant or ''}"
    return _PREFIX + sha256(person.encode("utf-8", "surrogatepass")).hexdigest()
