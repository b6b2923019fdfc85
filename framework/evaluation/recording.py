"""Recordings of turns, which are read from a thread's checkpoints."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from langchain_core.messages import convert_to_messages, messages_from_dict, messages_to_dict
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Overwrite
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capgraph.base.errors import PersistenceError
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.logger import mask_data
from capgraph.graph.turn_runner import last_answer
from capgraph.helpers.plain_data import to_plain
from capgraph.langgraph_compat import (
    INTERRUPT,
    RESUME,
    RETURN,
    is_state_key,
    next_nodes,
    open_interrupts,
    plain_values,
    run_input,
)
from capgraph.pipeline.state_update import apply_writes, merge_writes
from capgraph.planning.waits import awaited_event
from capgraph.state import AgentState, StateSchema
from capgraph.stores import Persistence
from capgraph.stores.history import load_full_checkpoint
from capgraph.stores.records import read_record, thread_config
from capgraph.stores.waits import find_signal
from capgraph.telemetry.usage_recorder import usage_totals

_SCHEMA = StateSchema.from_class(AgentState)


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class TurnCost(_StrictModel):
    """Model calls, tokens, and cost of one turn.

    Attributes:
        model_calls: Number of model calls.
        input_tokens: Number of prompt tokens.
        output_tokens: Number of answer tokens.
        cost_usd: Cost in US dollars. ``None`` if the price of a call is unknown.
    """

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0


class RecordedOutcome(_StrictModel):
    """Outcome of one turn, in a form that can be compared between runs.

    Attributes:
        status: ``completed``, ``partial``, ``failed``, ``stopped``, ``waiting``, ``unfinished``, or
            ``raised`` if the run ended with an exception.
        reason: Reason why the turn did not complete.
        plan: Steps of the last plan.
        results: Result or error of each step, by context key.
        asked: Approval requests in the turn, in order.
        answer: Final message.
        cost: Model usage.
    """

    status: str = "unfinished"
    reason: str = ""
    plan: list[dict[str, Any]] = Field(default_factory=list)
    results: dict[str, dict[str, Any]] = Field(default_factory=dict)
    asked: list[dict[str, Any]] = Field(default_factory=list)
    answer: str = ""
    cost: TurnCost = Field(default_factory=TurnCost)


class RecordedAnswer(_StrictModel):
    """Recorded answer of a user to an interrupt, such as an approval.

    Attributes:
        given: Answer that the user sent.
        by: ``user_id``, ``role``, and ``tenant`` of the user.
        at: Time of the answer, in seconds since the epoch.
    """

    given: Any
    by: dict[str, str] = Field(default_factory=dict)
    at: float = 0.0


class RecordedNodeRun(_StrictModel):
    """Recorded run of one graph node.

    Attributes:
        node: Name of the node.
        writes: Last value that the node wrote to each state key.
        steps: Result of each step, as LangGraph stored it with the step's task.
        question: Interrupt value of the node, such as an approval request.
        answers: Answers to the node's interrupts, in order.
    """

    node: str
    writes: dict[str, Any] = Field(default_factory=dict)
    steps: list[dict[str, Any]] = Field(default_factory=list)
    question: Any = None
    answers: list[RecordedAnswer] = Field(default_factory=list)


class Recording(_StrictModel):
    """Recording of one turn, with everything that a replay needs.

    Attributes:
        version: Version of the format.
        thread: Thread ID.
        turn: Number of the turn in the thread, starting at 1.
        caller: ``user_id``, ``role``, and ``tenant`` of the caller.
        at: Start of the turn, in seconds since the epoch.
        before: Thread state before the turn.
        given: Graph input that started the turn.
        visits: Runs of the graph's nodes, in order.
        signals: Payloads of the events that the turn received, by event key.
        until: Time of the last checkpoint, in seconds since the epoch.
        end: Outcome of the turn.
    """

    version: Literal[1] = 1
    thread: str
    turn: int
    caller: dict[str, str] = Field(default_factory=dict)
    at: float = 0.0
    before: dict[str, Any] = Field(default_factory=dict)
    given: dict[str, Any] = Field(default_factory=dict)
    visits: list[RecordedNodeRun] = Field(default_factory=list)
    signals: dict[str, Any] = Field(default_factory=dict)
    until: float = 0.0
    end: RecordedOutcome = Field(default_factory=RecordedOutcome)

    def as_data(self) -> dict[str, Any]:
        """Return the recording as plain data, such as for a file, with secrets masked."""
        data: dict[str, Any] = mask_data(self.model_dump(mode="json"))
        return data

    @property
    def request(self) -> str:
        """Text of the user's request."""
        messages = messages_from_dict(self.given.get("messages") or [])
        return next((str(m.text) for m in reversed(messages) if m.type == "human"), "")


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Load a recording from a file that ``capgraph record`` created.

    Raises:
        ConfigurationError: The file cannot be read, or is not a recording.
    """
    try:
        return Recording.model_validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as exc:
        raise ConfigurationError(
            f"The recording {os.fspath(path)!r} cannot be loaded: {exc}.",
            fix="Pass a file that 'capgraph record' created.",
        ) from exc


async def record(
    saver: BaseCheckpointSaver[Any], thread_id: str, turn: int | None = None
) -> Recording:
    """Create a recording of a turn from the checkpoints of its thread.

    Args:
        saver: Checkpointer that contains the thread. If its graph has its own delta channels, use
            the checkpointer of a built graph.
        thread_id: ID of the thread.
        turn: Number of the turn, starting at 1. Defaults to the last turn.

    Raises:
        PersistenceError: The thread or turn does not exist, or its first checkpoint was deleted.

    >>> import asyncio
    >>> from capgraph import build_graph
    >>> from capgraph.stores import open_saver
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         graph = build_graph([], checkpointer=saver)
    ...         turn_input = {"messages": [("user", "Sing")]}
    ...         await graph.ainvoke(turn_input, {"configurable": {"thread_id": "t"}})
    ...         return await record(saver, "t")
    >>> asyncio.run(main()).end.status
    'failed'
    """
    if await saver.aget_tuple(thread_config(thread_id)) is None:
        raise PersistenceError(
            f"The thread {thread_id!r} does not exist.",
            fix="Run 'capgraph threads list' to see all threads.",
        )
    async for checkpoints in _iter_turns(saver, thread_id):
        turn_info = checkpoints[-1].checkpoint["channel_values"].get("control_turn") or {}
        if turn in (None, turn_info.get("number")):
            recording = await _build_recording(saver, thread_id, checkpoints)
            if recording.visits and not any(
                visit.node == "begin_turn" for visit in recording.visits
            ):
                raise PersistenceError(
                    f"Cannot record thread {thread_id!r} because it was not created by a graph "
                    "from build_graph.",
                    fix="Record a thread of an agent. For other graphs, use LangGraph's history.",
                )
            return recording
    which = "its last turn" if turn is None else f"its turn {turn}"
    raise PersistenceError(
        f"The thread {thread_id!r} lacks the first checkpoint of {which}.",
        fix=(
            "Record the turn before persistence.keep_… or 'threads prune' deletes its history, and"
            " do not run it with durability='exit'."
        ),
    )


async def iter_recordings(
    saver: BaseCheckpointSaver[Any], thread_id: str
) -> AsyncIterator[Recording]:
    """Yield a recording of each turn in a thread, latest turn first.

    Turns whose first checkpoint was deleted are omitted.
    """
    async for checkpoints in _iter_turns(saver, thread_id):
        yield await _build_recording(saver, thread_id, checkpoints)


async def _iter_turns(
    saver: BaseCheckpointSaver[Any], thread_id: str
) -> AsyncIterator[list[CheckpointTuple]]:
    """Yield the list of checkpoints of each turn in a thread, latest turn first.

    The checkpoints of a turn are in chronological order.
    """
    checkpoint = await saver.aget_tuple(thread_config(thread_id))
    checkpoints: list[CheckpointTuple] = []
    while checkpoint is not None:
        checkpoints.append(checkpoint)
        if checkpoint.metadata.get("source") == "input":
            yield checkpoints[::-1]
            checkpoints = []
        checkpoint = (
            await saver.aget_tuple(checkpoint.parent_config) if checkpoint.parent_config else None
        )


async def _build_recording(
    saver: BaseCheckpointSaver[Any], thread_id: str, checkpoints: Sequence[CheckpointTuple]
) -> Recording:
    persistence = Persistence.of(saver)
    first = await load_full_checkpoint(persistence, checkpoints[0])
    last = await load_full_checkpoint(persistence, checkpoints[-1])
    before, values = plain_values(first), plain_values(last)
    visits = [
        _read_node_run(current, following)
        for current, following in zip(checkpoints[1:], [*checkpoints[2:], None], strict=True)
    ]
    turn_info = values.get("control_turn") or {}
    interrupts = open_interrupts(last.pending_writes) if last.pending_writes else []
    end = _build_outcome(
        _add_pending_writes(values, visits[-1:]), visits, is_waiting=bool(interrupts)
    )
    end.cost = await _read_cost(saver, thread_id, str(turn_info.get("id") or ""), values)
    dropped = _SCHEMA.names - _SCHEMA.thread_keys
    own_state = {k: v for k, v in before.items() if is_state_key(k)}
    return Recording(
        thread=thread_id,
        turn=int(turn_info.get("number") or 0),
        caller=_read_caller(checkpoints[0].metadata),
        at=_get_timestamp(checkpoints[0]),
        before=_serialize_state({k: v for k, v in own_state.items() if k not in dropped}),
        given=_set_message_id(_serialize_state(run_input(checkpoints[0]) or {}), turn_info),
        visits=visits,
        signals=await _read_signals(
            saver, thread_id, str(turn_info.get("id") or ""), visits, end.plan
        ),
        until=_get_timestamp(checkpoints[-1]),
        end=end,
    )


async def _read_signals(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    turn: str,
    visits: Sequence[RecordedNodeRun],
    plan: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the payloads of the events that a recorded turn received, by event name."""
    questions = [v.question for v in visits if isinstance(v.question, Mapping)]
    keys = {wait.get("for") for question in questions for wait in question.get("waits") or ()}
    keys |= {key for step in plan if isinstance(key := awaited_event(step)[0], str)}

    async def read(name: str) -> dict[str, Any]:
        return await read_record(saver, thread_id, name)

    received = {key: await find_signal(read, key, turn) for key in sorted(keys - {None})}
    return {key: signal["value"] for key, signal in received.items() if signal is not None}


def _build_outcome(
    values: Mapping[str, Any], visits: Sequence[RecordedNodeRun], *, is_waiting: bool
) -> RecordedOutcome:
    outcome = values.get("execution_outcome") or {}
    context_data = values.get("capability_context_data") or {}
    steps = (values.get("planning_execution_plan") or {}).get("steps") or []
    results = {}
    for key, entry in (values.get("execution_step_results") or {}).items():
        fields = {name: entry[name] for name in ("capability", "success", "error") if name in entry}
        outputs = {
            context_type: context_data.get(context_type, {}).get(name)
            for context_type, name in (entry.get("outputs") or {}).items()
        }
        results[key] = to_plain({**fields, **({"gave": outputs} if outputs else {})}, lenient=True)
    return RecordedOutcome(
        status="waiting" if is_waiting else outcome.get("status", "unfinished"),
        reason=outcome.get("reason") or "",
        plan=[dict(step) for step in steps],
        results=results,
        # Questions inside capabilities are left out, because a replay does not run capabilities.
        asked=[
            e for visit in visits if visit.node != "router" for e in question_steps(visit.question)
        ],
        answer=last_answer(values),
    )


def question_steps(question: Any) -> list[dict[str, Any]]:
    """Return the fields of an approval request that identify what is approved, for each step."""
    entries = question.get("steps") if isinstance(question, Mapping) else None
    names = ("context_key", "capability", "kind", "parameters", "input_values")
    return [{name: entry.get(name) for name in names} for entry in entries or []]


def _read_node_run(
    checkpoint: CheckpointTuple, next_checkpoint: CheckpointTuple | None
) -> RecordedNodeRun:
    [node, *_] = [*next_nodes(checkpoint.checkpoint["channel_values"]), ""]
    node_run, resumed = RecordedNodeRun(node=node), dict[str, list[RecordedAnswer]]()
    by, answered_at = (
        _read_caller((next_checkpoint or checkpoint).metadata),
        _get_timestamp(next_checkpoint or checkpoint),
    )
    for task, channel, value in checkpoint.pending_writes or ():
        if channel == RETURN and isinstance(value, Mapping) and "update" in value:
            node_run.steps.append(_to_plain_value(value))
        elif channel == RETURN and isinstance(value, list) and isinstance(value[-1], Mapping):
            # A task that only asks, in a capability's node, stores who answered.
            resumed[task] = [
                RecordedAnswer(given=value[1], by=_read_caller(value[2]), at=answered_at)
            ]
        elif channel == INTERRUPT:
            node_run.question = _to_plain_value(value[0].value)
        elif channel == RESUME and task.strip("0-"):
            told = [
                RecordedAnswer(given=answer, by={**by}, at=answered_at)
                for answer in _to_plain_value(value)
            ]
            resumed.setdefault(task, told)
        elif is_state_key(channel):
            node_run.writes |= _serialize_state({channel: value})
    node_run.answers = [said for answers in resumed.values() for said in answers]
    for decision in (node_run.writes.get("approval_decisions") or {}).values():
        for said in node_run.answers if "fingerprints" in decision else ():
            # The decision's own user ID is authoritative: another user's run may have resumed it.
            said.by.pop("user_id", None)
            said.by |= {"user_id": decision["by"]} if "by" in decision else {}
    return node_run


def _get_timestamp(checkpoint: CheckpointTuple) -> float:
    return datetime.fromisoformat(checkpoint.checkpoint["ts"]).timestamp()


def _read_caller(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {
        n: str(metadata[n]) for n in ("user_id", "role", "tenant") if metadata.get(n) is not None
    }


def _add_pending_writes(
    values: Mapping[str, Any], last: Sequence[RecordedNodeRun]
) -> Mapping[str, Any]:
    """Return the turn's state including the saved step results of an unfinished node run."""
    writes = [pair for visit in last for step in visit.steps for pair in step["update"].items()]
    return apply_writes(values, merge_writes(writes))


async def _read_cost(
    saver: BaseCheckpointSaver[Any], thread: str, turn: str, values: Mapping[str, Any]
) -> TurnCost:
    calls = int((values.get("control_budget") or {}).get("model_calls") or 0)
    rows = Persistence.of(saver).tables
    if not calls or rows is None:
        return TurnCost(model_calls=calls, cost_usd=None if calls else 0.0)
    totals = await usage_totals(rows, thread_id=thread, turn_id=turn)
    costs = [total.cost_usd for total in totals]
    is_complete = sum(total.calls for total in totals) >= calls and None not in costs
    return TurnCost(
        model_calls=calls,
        input_tokens=sum(total.input_tokens for total in totals),
        output_tokens=sum(total.output_tokens for total in totals),
        cost_usd=sum(cost or 0.0 for cost in costs) if is_complete else None,
    )


def _serialize_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert state values to plain data, with messages in LangChain's serialized format."""
    return {
        name: messages_to_dict(convert_to_messages(_list_messages(value)))
        if name == "messages"
        else _to_plain_value(value)
        for name, value in values.items()
    }


def _set_message_id(turn_input: dict[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    """Set the ID of the message that started a turn to the ID of the turn.

    A message that already has an ID keeps it.
    """
    requests = [m for m in turn_input.get("messages") or [] if m["type"] == "human"]
    if requests and "plan" not in turn:
        requests[-1]["data"]["id"] = requests[-1]["data"].get("id") or turn.get("id")
    return turn_input


def _list_messages(value: Any) -> list[Any]:
    """Convert the messages of a run's input to a list.

    A ``(role, text)`` pair is a single message.
    """
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)
    if isinstance(value, (list, tuple)) and not pair:
        return list(value)
    return [] if value is None else [tuple(value) if pair else value]


def _to_plain_value(value: Any) -> Any:
    return to_plain(value.value if isinstance(value, Overwrite) else value, lenient=True)
