"""The context of a run, changed and restored by nested and overlapping blocks."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from capgraph.configs.run_context import RunContext, override_run_context, run_context


def test_a_block_changes_its_fields_and_no_others() -> None:
    with override_run_context(has_listener=False), override_run_context(step_position=(1, 2)):
        assert (run_context().has_listener, run_context().step_position) == (False, (1, 2))
    assert run_context() == RunContext()


def test_a_block_that_ends_before_a_nested_one_restores_only_its_own_fields() -> None:
    outer, inner = (
        override_run_context(has_listener=False),
        override_run_context(step_position=(1, 2)),
    )
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()
    assert (run_context().has_listener, run_context().step_position) == (True, (1, 2))
    inner.__exit__()
    assert run_context().step_position is None


def test_the_same_block_is_entered_again_for_each_chunk_of_a_stream() -> None:
    block = override_run_context(has_listener=False)
    for position in ((0, 2), (1, 2)):
        with override_run_context(step_position=position):
            with block:
                assert (run_context().has_listener, run_context().step_position) == (
                    False,
                    position,
                )
            assert run_context().has_listener


async def test_tasks_inherit_the_context_and_keep_their_changes() -> None:
    async def read() -> tuple[int, int] | None:
        with override_run_context(has_listener=False):
            await asyncio.sleep(0)
            return run_context().step_position

    with override_run_context(step_position=(1, 2)):
        assert await asyncio.gather(read(), read()) == [(1, 2), (1, 2)]
    assert run_context().has_listener


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no field clok"), override_run_context(clok=None):
        pass


def test_a_block_that_ends_late_keeps_the_values_of_a_later_block() -> None:
    def ends_late() -> tuple[int, int] | None:
        outer, inner = (
            override_run_context(step_position=(0, 2)),
            override_run_context(step_position=(1, 2)),
        )
        outer.__enter__()
        inner.__enter__()
        outer.__exit__()
        return run_context().step_position

    assert contextvars.copy_context().run(ends_late) == (1, 2)
