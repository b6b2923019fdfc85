"""Current roles of users, as servers authenticated them last.

A turn or an approval stores the role that its person had at that time. Before the turn continues,
or the approval counts, the person's current role is read from here.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from capgraph.base.ports import Caller, normalize_user_id
from capgraph.helpers.clock import SystemClock
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore

_PREFIX = "role/"
_CLOCK = SystemClock()
"""Clock of the store; roles do not expire, so they do not depend on it."""


class CurrentRoles:
    """Store of the current role of each authenticated user.

    Args:
        values: Value store for the roles.
    """

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values

    async def record(self, caller: Caller) -> None:
        """Record the current role of an authenticated user, unless it is already recorded."""
        if not caller.authenticated or caller.user_id is None:
            return
        name, role = _name(caller), [caller.role]
        if await self._read(name) != role:
            await self._values.achange(name, lambda *_: (role, FOREVER, None), _CLOCK)

    async def find(self, caller: Caller) -> Caller:
        """Return a user with their current role.

        A user who was not authenticated by a server is returned unchanged.
        """
        if not caller.authenticated or caller.user_id is None:
            return caller
        stored = await self._read(_name(caller))
        return caller if stored is None else replace(caller, role=stored[0])

    async def _read(self, name: str) -> list[str | None] | None:
        values, _now = await self._values.aread(name, _CLOCK)
        stored: list[str | None] | None = values.get(name)
        return stored


def _name(caller: Caller) -> str:
    person = f"{normalize_user_id(caller.user_id or '')}\0{caller.tenant or ''}"
    return _PREFIX + sha256(person.encode("utf-8", "surrogatepass")).hexdigest()
