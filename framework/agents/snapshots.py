"""What is kept of an agent's runs: found again by step, and in stores that are no savers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from capgraph.helpers.plain_data import to_plain

ReadSteps = Callable[[Mapping[str, Any]], list[Any]]
_MESSAGE_KEYS = ("messages", "conversation")


def snapshot_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an agent's graph as plain data."""
    plain = {name: value for name, value in values.items() if not name.startswith("__")}
    for name in _MESSAGE_KEYS:
        if name in plain:
            plain[name] = messages_to_dict(plain[name])
    # What a tool hands over beside its text may be anything that has a plain form.
    found: dict[str, Any] = to_plain(plain, "state")
    return found


async def restore_state(
    manager: Any, execution_id: str, from_step: int | None, read_steps: ReadSteps
) -> dict[str, Any]:
    """Return the state that a ``CheckpointManager`` keeps of a run.

    Args:
        manager: The manager.
        execution_id: The run.
        from_step: The step behind which it is; ``None`` for the last.
        read_steps: Finds the steps of a state.

    Raises:
        ValueError: It keeps none.
    """
    if from_step is None:
        latest = await manager.load_latest_for_execution(execution_id)
        kept = [] if latest is None else [_restore_messages(latest.state)]
    else:
        found = [
            _restore_messages(item.state) for item in await manager.list_by_execution(execution_id)
        ]
        kept = [values for values in found if 0 <= from_step < len(read_steps(values))]
    if not kept:
        behind = "" if from_step is None else f" behind step {from_step}"
        raise ValueError(
            f"Nothing is kept of a run {execution_id!r}{behind}. Fix: give metadata['execution_id']"
            " of a result, and a step that it has, counted from 0."
        )
    return kept[0]


def _restore_messages(state: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: messages_from_dict(state[name]) for name in _MESSAGE_KEYS if name in state}
    return {**state, **found}


async def find_state_after_step(
    graph: Any,
    thread: Mapping[str, Any],
    from_step: int,
    read_steps: ReadSteps,
    *,
    is_wrapped: bool,
) -> Any:
    """Return the first state of a run that has a step.

    Args:
        graph: The agent's graph.
        thread: The thread.
        from_step: The step.
        read_steps: Finds the steps of a state.
        is_wrapped: Whether something stands around the agent's own graph, which then has a namespace
            of its own.

    Raises:
        ValueError: The run has not come as far as that.
    """
    configs = [thread]
    if is_wrapped:
        kept = [item.config["configurable"] async for item in graph.checkpointer.alist(thread)]
        spaces = dict.fromkeys(found["checkpoint_ns"] for found in kept)
        own = [space for space in spaces if space and "|" not in space]
        configs = [
            {"configurable": {**thread["configurable"], "checkpoint_ns": space}} for space in own
        ]
    for config in configs:
        history = [past async for past in graph.aget_state_history(config)]
        for past in reversed(history):
            if 0 <= from_step < len(read_steps(past.values)):
                return past
    raise ValueError(f"The run has no step {from_step}. Fix: give one that it has, counted from 0.")
