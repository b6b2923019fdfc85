"""One Temporal server for all tests of a session that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.temporal_server import Server, temporal


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[Server]:
    with temporal() as server:
        yield server
