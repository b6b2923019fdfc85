"""Both engines, each over a database of its own; the capabilities are those of a tank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scale.crew import Crew
from tests.support.sweeps import LONG, SEED

ENGINES = ["postgres", pytest.param("temporal", marks=pytest.mark.service)]


@pytest.fixture(params=ENGINES)
def crew(request: pytest.FixtureRequest, server: Any, tmp_path: Path) -> Iterator[Crew]:
    address = None
    if request.param == "temporal":
        # The seed chooses what the short form tries on Temporal, too.
        chosen = random.Random(f"{SEED}{request.node.originalname}").random() < 0.5
        if not LONG and (request.module.__name__.endswith("processes") or not chosen):
            pytest.skip("LONG_TESTS=1 tries both engines")
        address = request.getfixturevalue("temporal_server").address
    with Crew(tmp_path, server, request.param, address) as made:
        yield made
