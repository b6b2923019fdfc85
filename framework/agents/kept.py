"""What is kept of an agent's runs: found again by step, and in stores that are no savers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from framework.base.values import to_plain

_MESSAGES = ("messages", "conversation")


def snapshot(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an agent's graph as plain data."""
    plain = {name: value for name, value in values.items() if not name.startswith("__")}
    for name in _MESSAGES:
        if name in plain:
            plain[name] = messages_to_dict(plain[name])
    # What a tool hands over beside its text may be anything that has a plain form.
    found: dict[str, Any] = to_plain(plain, "state")
    return found


async def restored(manager: Any, execution_id: str, from_step: int | None) -> dict[str, Any]:
    """Return the state that a ``CheckpointManager`` keeps of a run.

    Raises:
        ValueError: It keeps none.
    """
    if from_step is None:
        latest = await manager.load_latest_for_execution(execution_id)
        found = [] if latest is None else [latest]
    else:
        kept = await manager.list_by_execution(execution_id)
        found = [item for item in kept if len(item.state.get("steps") or ()) <= from_step + 1]
        total = max((len(item.state.get("steps") or ()) for item in kept), default=0)
        found = found if total > from_step else []
    if not found:
        raise ValueError(
            f"Nothing is kept of a run {execution_id!r}"
            f"{'' if from_step is None else f' behind step {from_step}'}."
            " Fix: give metadata['execution_id'] of a result, and a step that it has."
        )
    values = dict(found[-1].state)
    for name in _MESSAGES:
        if name in values:
            values[name] = messages_from_dict(values[name])
    return values


async def found_steps(
    graph: Any,
    thread: Mapping[str, Any],
    from_step: int,
    steps: Callable[[Mapping[str, Any]], list[Any]],
    *,
    nested: bool,
) -> Any:
    """Return the newest state of a run that has no more than so many steps.

    Raises:
        ValueError: The run has not come as far as that.
    """
    configs = [thread]
    if nested:  # each run of the agent's own graph has a namespace of its own
        spaces = dict.fromkeys(
            [
                item.config["configurable"]["checkpoint_ns"]
                async for item in graph.checkpointer.alist(thread)
            ]
        )
        configs = [
            {"configurable": {**thread["configurable"], "checkpoint_ns": space}}
            for space in spaces
            if space and "|" not in space
        ]
    for config in configs:
        reached = False
        async for past in graph.aget_state_history(config):
            done = len(steps(past.values))
            reached = reached or done > from_step
            if reached and done <= from_step + 1:
                return past
    raise ValueError(f"The run has no step {from_step}. Fix: give one that it has, counted from 0.")
