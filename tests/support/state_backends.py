"""The four state stores for tests, each over a place that processes can share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capgraph.stores import StateStoreFactory
from tests.support.redis_server import redis_server

KINDS = [
    "memory",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.service),
    pytest.param("redis", marks=pytest.mark.service),
]
Where = tuple[str, dict[str, str]]
"""A backend and the arguments that name its place."""


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


def place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Where:
    if kind == "postgres":
        return kind, {"url": request.getfixturevalue("server").database()}
    if kind == "redis":
        return kind, {"url": request.getfixturevalue("redis_url"), "key_prefix": f"{folder}:"}
    return kind, {"path": str(folder / "state.db")} if kind == "sqlite" else {}


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return place(request.param, request, tmp_path)


@pytest.fixture(params=KINDS[1:])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return place(request.param, request, tmp_path)


@pytest.fixture
def open_store(where: Where) -> Callable[..., Any]:
    kind, named = where
    return lambda **more: StateStoreFactory.create(kind, **{**named, **more})


@pytest.fixture
def store(open_store: Callable[..., Any]) -> Any:
    return open_store()
