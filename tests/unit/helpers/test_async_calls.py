"""Shielding from cancellation, and undoing the result of canceled work."""

from __future__ import annotations

import asyncio

import pytest

from capgraph.helpers.async_calls import shielded


@pytest.mark.parametrize("times", [1, 3])
async def test_shielded_work_ends_and_is_undone_when_its_caller_is_cancelled_repeatedly(
    times: int,
) -> None:
    done: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        done.append("worked")
        return "result"

    async def undo(result: str) -> None:
        await asyncio.sleep(0)
        done.append(f"took back {result}")

    task = asyncio.create_task(shielded(work(), undo))
    await begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert done == []
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["worked", "took back result"]


async def test_a_failure_of_cancelled_work_is_a_note() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(0)
        raise OSError("disk full")

    task = asyncio.create_task(shielded(work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert "disk full" in caught.value.__notes__[0]


async def test_undo_is_not_called_without_cancellation() -> None:
    async def work() -> int:
        return 4

    async def undo(_: int) -> None:
        pytest.fail("it was taken back")

    assert await shielded(work(), undo) == 4
