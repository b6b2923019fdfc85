"""One PostgreSQL server for all fault tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.databases import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with postgres() as started:
        yield started
