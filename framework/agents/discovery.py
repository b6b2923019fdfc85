"""Periodic discovery of a supervisor's members."""

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
    """Background task that periodically discovers a supervisor's members and updates the team.

    Runs that are already in progress keep their members.

    Args:
        discovery_fn: Function that returns two dictionaries: the members by name and their
            descriptions by name.
        interval_seconds: Interval between discoveries in seconds.

    Raises:
        ValueError: ``interval_seconds`` is not positive.

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
            raise ValueError(
                f"Invalid interval_seconds {interval_seconds!r}: it must be positive."
                " Fix: pass more than 0."
            )
        self._discover = discovery_fn
        self._interval = interval_seconds
        self._team: SupervisorOrchestrator | None = None
        self._task: asyncio.Task[None] | None = None
        self._known: tuple[dict[str, Any], dict[str, str]] | None = None

    @validate_arguments
    async def start(self, supervisor: SupervisorOrchestrator) -> None:
        """Discover the team's members now, and then periodically in the background.

        Args:
            supervisor: Team whose members are updated.

        Raises:
            RuntimeError: The discovery is already running.
        """
        if self._task is not None:
            raise RuntimeError("The discovery is already running. Fix: call stop() first.")
        self._team = supervisor
        await self._refresh_safely()
        self._task = asyncio.create_task(self._refresh_periodically())

    async def stop(self) -> None:
        """Stop the background discovery."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def refresh_once(self) -> None:
        """Discover the team's members once, and replace them if anything has changed.

        Raises:
            RuntimeError: :meth:`start` was not called.
        """
        if self._team is None:
            raise RuntimeError("The discovery has no team. Fix: call start(supervisor) first.")
        discovered = await maybe_await(self._discover())
        if not matches_annotation(discovered, tuple[Mapping[str, Any], Mapping[str, str]]):
            raise ConfigurationError(
                f"discovery_fn returned {discovered!r:.80}: expected two dictionaries.",
                fix="Return the agents and their descriptions, both by name.",
            )
        discovered = (dict(discovered[0]), dict(discovered[1]))
        if self._known is None or not _is_same(self._known, discovered):
            self._team.replace_agents(*discovered)
            self._known = discovered

    async def _refresh_safely(self) -> None:
        try:
            await self.refresh_once()
        except Exception as exc:
            # Keep the current members. The next discovery may succeed.
            get_logger("framework", "discovery").warning("The discovery of agents failed: %s", exc)

    async def _refresh_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._refresh_safely()


def _is_same(old: tuple[dict[str, Any], Any], new: tuple[dict[str, Any], Any]) -> bool:
    """Return True if two discoveries found the same member instances and descriptions."""
    instances = old[0].keys() == new[0].keys() and all(old[0][k] is new[0][k] for k in new[0])
    return instances and bool(old[1] == new[1])
