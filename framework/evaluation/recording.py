"""A turn of a thread as it was saved: what came in, what every node wrote, what every step left."""

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

_SCHEMA = StateSchema.of(AgentState)


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class TurnCost(_StrictModel):
    """What the models of a turn used.

    Attributes:
        model_calls: Calls.
        input_tokens: Tokens of their prompts.
        output_tokens: Tokens of their answers.
        cost_usd: US dollars; ``None`` when the price of a call is not known.
    """

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0


class RecordedOutcome(_StrictModel):
    """What came of a turn, as far as two runs of it can be compared.

    Attributes:
        status: ``completed``, ``partial``, ``failed``, ``stopped``, ``waiting``, ``unfinished``,
            or ``raised`` when the run ended with an exception.
        reason: Why it did not complete.
        plan: The steps of the last plan.
        results: Context key to what the step gave, or why it gave nothing.
        asked: What people were asked, in order.
        answer: The message that ended it.
        cost: What its models used.
    """

    status: str = "unfinished"
    reason: str = ""
    plan: list[dict[str, Any]] = Field(default_factory=list)
    results: dict[str, dict[str, Any]] = Field(default_factory=dict)
    asked: list[dict[str, Any]] = Field(default_factory=list)
    answer: str = ""
    cost: TurnCost = Field(default_factory=TurnCost)


class RecordedAnswer(_StrictModel):
    """What a person answered.

    Attributes:
        given: The answer.
        by: Who gave it: ``user_id``, ``role``, ``tenant``.
        at: When, in seconds since the epoch.
    """

    given: Any
    by: dict[str, str] = Field(default_factory=dict)
    at: float = 0.0


class RecordedNodeRun(_StrictModel):
    """One node's turn at work.

    Attributes:
        node: The node.
        writes: What it wrote, the last value of each key.
        steps: What each step left, as LangGraph saved it with the step's task.
        question: What a person was asked.
        answers: What was answered, in order.
    """

    node: str
    writes: dict[str, Any] = Field(default_factory=dict)
    steps: list[dict[str, Any]] = Field(default_factory=list)
    question: Any = None
    answers: list[RecordedAnswer] = Field(default_factory=list)


class Recording(_StrictModel):
    """A turn, with all that running it again needs.

    Attributes:
        version: Version of this form.
        thread: The thread.
        turn: Which turn of it, from 1.
        caller: Who asked: ``user_id``, ``role``, ``tenant``.
        at: When, in seconds since the epoch.
        before: What the thread held before.
        given: What came in.
        visits: What the nodes did, in order.
        signals: What came with the events that it took, by their keys.
        until: When it was saved last, in seconds since the epoch.
        end: What came of it.
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
        """Return plain data, in which secrets are masked."""
        found: dict[str, Any] = mask_data(self.model_dump(mode="json"))
        return found

    @property
    def request(self) -> str:
        """What the person wrote."""
        said = messages_from_dict(self.given.get("messages") or [])
        return next((str(m.text) for m in reversed(said) if m.type == "human"), "")


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Read what ``capgraph record`` wrote.

    Raises:
        ConfigurationError: It cannot be read, or is no recording.
    """
    try:
        return Recording.model_validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as exc:
        raise ConfigurationError(
            f"The recording {os.fspath(path)!r} cannot be used: {exc}.",
            fix="Give a file that 'capgraph record' wrote.",
        ) from exc


async def record(
    saver: BaseCheckpointSaver[Any], thread_id: str, turn: int | None = None
) -> Recording:
    """Read a turn out of a saver.

    Args:
        saver: Where the thread is kept. One whose state has growing keys of its own has to be that
            of a graph that was built.
        thread_id: The thread.
        turn: Which turn, from 1; the last when not given.

    Raises:
        PersistenceError: There is no such thread or turn, or its beginning is not kept any more.

    >>> import asyncio
    >>> from capgraph import build_graph
    >>> from capgraph.stores import open_saver
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         graph = build_graph([], checkpointer=saver)
    ...         given = {"messages": [("user", "Sing")]}
    ...         await graph.ainvoke(given, {"configurable": {"thread_id": "t"}})
    ...         return await record(saver, "t")
    >>> asyncio.run(main()).end.status
    'failed'
    """
    if await saver.aget_tuple(thread_config(thread_id)) is None:
        raise PersistenceError(
            f"There is no thread {thread_id!r}.", fix="See 'capgraph threads list'."
        )
    async for seen in _iter_turns(saver, thread_id):
        begun = seen[-1].checkpoint["channel_values"].get("control_turn") or {}
        if turn in (None, begun.get("number")):
            found = await _build_recording(saver, thread_id, seen)
            if found.visits and not any(visit.node == "begin_turn" for visit in found.visits):
                raise PersistenceError(
                    f"The thread {thread_id!r} is that of another graph than build_graph's.",
                    fix="Record threads of an agent; LangGraph's own history shows the others.",
                )
            return found
    which = "its last turn" if turn is None else f"its turn {turn}"
    raise PersistenceError(
        f"The thread {thread_id!r} does not hold the beginning of {which}.",
        fix="Histories go by persistence.keep_…, 'threads prune' and durability='exit'; record a turn"
        " before.",
    )


async def iter_recordings(
    saver: BaseCheckpointSaver[Any], thread_id: str
) -> AsyncIterator[Recording]:
    """Read every turn of a thread whose beginning is kept, the last first."""
    async for seen in _iter_turns(saver, thread_id):
        yield await _build_recording(saver, thread_id, seen)


async def _iter_turns(
    saver: BaseCheckpointSaver[Any], thread_id: str
) -> AsyncIterator[list[CheckpointTuple]]:
    """Yield the checkpoints of each turn in their order, the last turn first."""
    at = await saver.aget_tuple(thread_config(thread_id))
    seen: list[CheckpointTuple] = []
    while at is not None:
        seen.append(at)
        if at.metadata.get("source") == "input":
            yield seen[::-1]
            seen = []
        at = await saver.aget_tuple(at.parent_config) if at.parent_config else None


async def _build_recording(
    saver: BaseCheckpointSaver[Any], thread_id: str, checkpoints: Sequence[CheckpointTuple]
) -> Recording:
    persistence = Persistence.of(saver)
    first = await load_full_checkpoint(persistence, checkpoints[0])
    last = await load_full_checkpoint(persistence, checkpoints[-1])
    before, values = plain_values(first), plain_values(last)
    visits = [
        _read_node_run(one, after)
        for one, after in zip(checkpoints[1:], [*checkpoints[2:], None], strict=True)
    ]
    begun = values.get("control_turn") or {}
    open_ = open_interrupts(last.pending_writes) if last.pending_writes else []
    end = _build_outcome(_with_pending_writes(values, visits[-1:]), visits, is_waiting=bool(open_))
    end.cost = await _read_cost(saver, thread_id, str(begun.get("id") or ""), values)
    dropped = _SCHEMA.names - _SCHEMA.thread_keys
    kept = {k: v for k, v in before.items() if is_state_key(k)}
    return Recording(
        thread=thread_id,
        turn=int(begun.get("number") or 0),
        caller=_caller_fields(checkpoints[0].metadata),
        at=_timestamp(checkpoints[0]),
        before=_serialize_state({k: v for k, v in kept.items() if k not in dropped}),
        given=_with_message_id(_serialize_state(run_input(checkpoints[0]) or {}), begun),
        visits=visits,
        signals=await _read_signals(saver, thread_id, str(begun.get("id") or ""), visits, end.plan),
        until=_timestamp(checkpoints[-1]),
        end=end,
    )


async def _read_signals(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    turn: str,
    visits: Sequence[RecordedNodeRun],
    plan: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what came with the events that a turn took."""
    questions = [v.question for v in visits if isinstance(v.question, Mapping)]
    keys = {wait.get("for") for asked in questions for wait in asked.get("waits") or ()}
    keys |= {key for step in plan if isinstance(key := awaited_event(step)[0], str)}

    async def read(name: str) -> dict[str, Any]:
        return await read_record(saver, thread_id, name)

    found = {key: await find_signal(read, key, turn) for key in sorted(keys - {None})}
    return {key: sent["value"] for key, sent in found.items() if sent is not None}


def _build_outcome(
    values: Mapping[str, Any], visits: Sequence[RecordedNodeRun], *, is_waiting: bool
) -> RecordedOutcome:
    outcome = values.get("execution_outcome") or {}
    stored = values.get("capability_context_data") or {}
    steps = (values.get("planning_execution_plan") or {}).get("steps") or []
    results = {}
    for key, entry in (values.get("execution_step_results") or {}).items():
        told = {name: entry[name] for name in ("capability", "success", "error") if name in entry}
        gave = {
            kind: stored.get(kind, {}).get(name)
            for kind, name in (entry.get("outputs") or {}).items()
        }
        results[key] = to_plain({**told, **({"gave": gave} if gave else {})}, lenient=True)
    return RecordedOutcome(
        status="waiting" if is_waiting else outcome.get("status", "unfinished"),
        reason=outcome.get("reason") or "",
        plan=[dict(step) for step in steps],
        results=results,
        # What a body asked was asked in it, which a replay does not run.
        asked=[
            e for visit in visits if visit.node != "router" for e in question_steps(visit.question)
        ],
        answer=last_answer(values),
    )


def question_steps(question: Any) -> list[dict[str, Any]]:
    """Return what a question shows of each step, as far as it decides what is agreed to."""
    entries = question.get("steps") if isinstance(question, Mapping) else None
    names = ("context_key", "capability", "kind", "parameters", "input_values")
    return [{name: entry.get(name) for name in names} for entry in entries or []]


def _read_node_run(
    checkpoint: CheckpointTuple, next_checkpoint: CheckpointTuple | None
) -> RecordedNodeRun:
    [node, *_] = [*next_nodes(checkpoint.checkpoint["channel_values"]), ""]
    visit, resumed = RecordedNodeRun(node=node), dict[str, list[RecordedAnswer]]()
    by, moment = (
        _caller_fields((next_checkpoint or checkpoint).metadata),
        _timestamp(next_checkpoint or checkpoint),
    )
    for task, channel, value in checkpoint.pending_writes or ():
        if channel == RETURN and isinstance(value, Mapping) and "update" in value:
            visit.steps.append(_to_plain_value(value))
        elif channel == RETURN and isinstance(value, list) and isinstance(value[-1], Mapping):
            # A task that only asks, in the node of a capability, keeps who answered.
            resumed[task] = [RecordedAnswer(given=value[1], by=_caller_fields(value[2]), at=moment)]
        elif channel == INTERRUPT:
            visit.question = _to_plain_value(value[0].value)
        elif channel == RESUME and task.strip("0-"):
            told = [
                RecordedAnswer(given=answer, by={**by}, at=moment)
                for answer in _to_plain_value(value)
            ]
            resumed.setdefault(task, told)
        elif is_state_key(channel):
            visit.writes |= _serialize_state({channel: value})
    visit.answers = [said for answers in resumed.values() for said in answers]
    for decided in (visit.writes.get("approval_decisions") or {}).values():
        for said in visit.answers if "fingerprints" in decided else ():
            # Another one's run may have taken the answer up, or a server knew who it was.
            said.by.pop("user_id", None)
            said.by |= {"user_id": decided["by"]} if "by" in decided else {}
    return visit


def _timestamp(checkpoint: CheckpointTuple) -> float:
    return datetime.fromisoformat(checkpoint.checkpoint["ts"]).timestamp()


def _caller_fields(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {
        n: str(metadata[n]) for n in ("user_id", "role", "tenant") if metadata.get(n) is not None
    }


def _with_pending_writes(
    values: Mapping[str, Any], last: Sequence[RecordedNodeRun]
) -> Mapping[str, Any]:
    """Add the steps of a pass that did not come to its end."""
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
    known = sum(total.calls for total in totals) >= calls and None not in costs
    return TurnCost(
        model_calls=calls,
        input_tokens=sum(total.input_tokens for total in totals),
        output_tokens=sum(total.output_tokens for total in totals),
        cost_usd=sum(cost or 0.0 for cost in costs) if known else None,
    )


def _serialize_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of the state as plain data; messages in LangChain's own plain form."""
    return {
        name: messages_to_dict(convert_to_messages(_message_list(value)))
        if name == "messages"
        else _to_plain_value(value)
        for name, value in values.items()
    }


def _with_message_id(turn_input: dict[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    """Give the message that opened the turn the id by which the turn goes."""
    opened = [m for m in turn_input.get("messages") or [] if m["type"] == "human"]
    if opened and "plan" not in turn:
        opened[-1]["data"]["id"] = opened[-1]["data"].get("id") or turn.get("id")
    return turn_input


def _message_list(value: Any) -> list[Any]:
    """Return messages of an input as a list; a pair is one message."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str)
    if isinstance(value, (list, tuple)) and not pair:
        return list(value)
    return [] if value is None else [tuple(value) if pair else value]


def _to_plain_value(value: Any) -> Any:
    return to_plain(value.value if isinstance(value, Overwrite) else value, lenient=True)
