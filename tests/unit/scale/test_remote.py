"""Steps that run on another worker than their turn, over one database in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from framework import capability_node
from framework.base.context import CapabilityContext
from tests.faults.databases import postgres
from tests.support.remote_steps import Place, place, plan, thread

_ = asyncio, os


@pytest.fixture(scope="module")
def server() -> Any:
    with postgres() as started:
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{tmp_path}/threads.db"
    if request.param == "postgres":
        url = request.getfixturevalue("server").database()
    async with place(url) as made:
        yield made


class Frame(CapabilityContext):
    CONTEXT_TYPE = "FRAME"
    number: int


class Mask(CapabilityContext):
    CONTEXT_TYPE = "MASK"
    of: int
    who: str


@capability_node
async def grab() -> Frame:
    """Grab a frame."""
    return Frame(number=7)


def segment(who: str, **more: Any) -> Any:
    @capability_node(name="segment", queue="gpu", **more)
    async def work(frame: Frame) -> Mask:
        """Segment a frame."""
        return Mask(of=frame.number, who=who)

    return work


STEPS = (("f", "grab"), ("m", "segment", {"inputs": [{"FRAME": "f"}]}))


def masks(out: Any) -> Any:
    return out["capability_context_data"]["MASK"]


async def test_a_step_runs_where_its_queue_is_served(shared: Place) -> None:
    router = await shared.worker([grab, segment("router")], "turns")
    gpu = await shared.worker([grab, segment("gpu")], "gpu")
    gpu.serve()
    out = await router.graph.ainvoke(plan(*STEPS), thread())
    assert masks(out) == {"m": {"of": 7, "who": "gpu"}}
    assert out["execution_step_results"]["m"]["success"]
    [order] = shared.engine.seen
    assert order.queue == "gpu"
    assert len(str(order)) < 400
