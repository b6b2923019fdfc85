"""Storage of agent run states, with lookup by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from capgraph.helpers.plain_data import to_plain

ReadSteps = Callable[[Mapping[str, Any]], list[Any]]
_MESSAGE_KEYS = ("messages", "conversation")


def snapshot_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the state of an agent's graph to plain data that can be stored."""
    plain = {name: value for name, value in values.items() if not name.startswith("__")}
    for name in _MESSAGE_KEYS:
        if name in plain:
            plain[name] = messages_to_dict(plain[name])
    # The artifact of a tool message may be any value that converts to plain data.
    snapshot: dict[str, Any] = to_plain(plain, "state")
    return snapshot


async def restore_state(
    manager: Any, execution_id: str, from_step: int | None, read_steps: ReadSteps
) -> dict[str, Any]:
    """Load the state of a run from a ``CheckpointManager``.

    Args:
        manager: Checkpoint manager that stores the run.
        execution_id: ID of the run.
        from_step: Index of the step after which the state was saved; None selects the latest
            state.
        read_steps: Function that returns the steps recorded in a state.

    Raises:
        ValueError: The run or the step is not stored.
    """
    if from_step is None:
        latest = await manager.load_latest_for_execution(execution_id)
        states = [] if latest is None else [_restore_messages(latest.state)]
    else:
        stored = [
            _restore_messages(item.state) for item in await manager.list_by_execution(execution_id)
        ]
        states = [values for values in stored if 0 <= from_step < len(read_steps(values))]
    if not states:
        position = "" if from_step is None else f" at step {from_step}"
        raise ValueError(
            f"No state is stored for the run {execution_id!r}{position}. Fix: pass "
            "metadata['execution_id'] from a result, and a zero-based step index."
        )
    return states[0]


def _restore_messages(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored state with its serialized messages converted back to message objects."""
    messages = {name: messages_from_dict(state[name]) for name in _MESSAGE_KEYS if name in state}
    return {**state, **messages}


async def find_state_after_step(
    graph: Any,
    thread: Mapping[str, Any],
    from_step: int,
    read_steps: ReadSteps,
    *,
    is_wrapped: bool,
) -> Any:
    """Return the earliest stored state of a run that contains the given step.

    Args:
        graph: Graph of the agent, with a checkpointer.
        thread: LangGraph config that selects the thread.
        from_step: Zero-based index of the step.
        read_steps: Function that returns the steps recorded in a state.
        is_wrapped: True if behaviors or services wrap the agent's graph, which then has a separate
            checkpoint namespace.

    Raises:
        ValueError: The run does not contain the step.
    """
    configs = [thread]
    if is_wrapped:
        checkpoints = [
            item.config["configurable"] async for item in graph.checkpointer.alist(thread)
        ]
        namespaces = dict.fromkeys(checkpoint["checkpoint_ns"] for checkpoint in checkpoints)
        own_namespaces = [space for space in namespaces if space and "|" not in space]
        configs = [
            {"configurable": {**thread["configurable"], "checkpoint_ns": space}}
            for space in own_namespaces
        ]
    for config in configs:
        history = [snapshot async for snapshot in graph.aget_state_history(config)]
        for snapshot in reversed(history):
            if 0 <= from_step < len(read_steps(snapshot.values)):
                return snapshot
    raise ValueError(
        f"from_step is {from_step}, but the run has no step with this index. Fix: pass a step "
        "index, counted from 0."
    )
