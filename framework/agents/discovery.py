"""Keeping the members of a team up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from capgraph.agents.supervisor import SupervisorOrchestrator
from capgraph.base.errors import ConfigurationError
from capgraph.configs.logger import get_logger
from capgraph.helpers.argument_validation import matches_annotation, validate_arguments
from capgraph.helpers.async_calls import maybe_await

DiscoverAgents = Callable[[], Awaitable[tuple[Mapping[str, Any], Mapping[str, str]]]]


class AgentDiscoveryBehavior:
    """Looks again and again for the members of a supervisor, and swaps them where they changed.

    A run under way keeps the members that it has.

    Args:
        discovery_fn: Gives the members by name, and what each is for.
        interval_seconds: How long it waits between two looks.

    Raises:
        ValueError: The interval is not above 0.

    >>> from capgraph.testing import ScriptedModel
    >>> async def found():
    ...     return {"level": lambda task: "3 m"}, {"level": "Reads the level."}
    >>> async def look():
    ...     discovery = AgentDiscoveryBehavior(found)
    ...     team = SupervisorOrchestrator(ScriptedModel(responses=[]))
    ...     await discovery.start(team)
    ...     await discovery.stop()
    ...     return list(team.agents)
    >>> asyncio.run(look())
    ['level']
    """

    @validate_arguments
    def __init__(self, discovery_fn: DiscoverAgents, interval_seconds: float = 30.0) -> None:
        if not interval_seconds > 0:
            raise ValueError(f"interval_seconds is {interval_seconds!r}. Fix: give more than 0.")
        self._discover = discovery_fn
        self._interval = interval_seconds
        self._team: SupervisorOrchestrator | None = None
        self._task: asyncio.Task[None] | None = None
        self._known: tuple[dict[str, Any], dict[str, str]] | None = None

    @validate_arguments
    async def start(self, supervisor: SupervisorOrchestrator) -> None:
        """Look once, and from then on in the background.

        Args:
            supervisor: Whose members are kept up to date.

        Raises:
            RuntimeError: It is looking already.
        """
        if self._task is not None:
            raise RuntimeError("It is looking already. Fix: stop() it first.")
        self._team = supervisor
        await self._refresh_safely()
        self._task = asyncio.create_task(self._refresh_periodically())

    async def stop(self) -> None:
        """End the looking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def refresh_once(self) -> None:
        """Look once, and swap the members if anything changed.

        Raises:
            RuntimeError: :meth:`start` was not called.
        """
        if self._team is None:
            raise RuntimeError("There is no team to keep up to date. Fix: start(supervisor) first.")
        found = await maybe_await(self._discover())
        if not matches_annotation(found, tuple[Mapping[str, Any], Mapping[str, str]]):
            raise ConfigurationError(
                f"Looking for agents gave {found!r:.80}.",
                fix="Return two dictionaries by name: the agents, and what each is for.",
            )
        found = (dict(found[0]), dict(found[1]))
        if self._known is None or not _is_same(self._known, found):
            self._team.replace_agents(*found)
            self._known = found

    async def _refresh_safely(self) -> None:
        try:
            await self.refresh_once()
        except Exception as exc:
            # The members that there are go on; the next look may find more.
            get_logger("framework", "discovery").warning("Looking for agents failed: %s", exc)

    async def _refresh_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._refresh_safely()


def _is_same(old: tuple[dict[str, Any], Any], new: tuple[dict[str, Any], Any]) -> bool:
    """Tell whether the very same members are there, not only their names."""
    instances = old[0].keys() == new[0].keys() and all(old[0][k] is new[0][k] for k in new[0])
    return instances and bool(old[1] == new[1])
