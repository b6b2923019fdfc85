"""Opening an engine: what is refused before anything is asked of it."""

from __future__ import annotations

import pytest

from capgraph import build_graph, capability_node
from capgraph.base.errors import PersistenceError
from capgraph.configs.settings import load_settings
from capgraph.scale import open_engine
from tests.faults.databases import postgres

pytestmark = [pytest.mark.service, pytest.mark.may_block]


@capability_node(examples=["how full is the tank?"])
def tank_level() -> float:
    """Read the water level of the tank, in metres."""
    return 2.5


async def test_wrong_encryption_key_fails_before_any_turn() -> None:
    with postgres() as server:
        url = server.database()

        async def opened(key: str | None) -> None:
            persistence = {} if key is None else {"encryption_key": key}
            settings = load_settings(persistence=persistence)
            graph = build_graph([tank_level], settings=settings)
            async with open_engine(url, graph=graph):
                pass

        for _ in range(2):
            await opened("a" * 32)
        for other in ("b" * 32, None):
            with pytest.raises(PersistenceError, match="encryption key") as told:
                await opened(other)
            assert "in this database" in str(told.value)
