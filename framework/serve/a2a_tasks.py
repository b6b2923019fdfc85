"""A2A tasks, artifacts, and messages, built from the turns of the server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from a2a.helpers import new_data_part, new_text_part
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf.json_format import MessageToDict

from capgraph.approvals import describe_question, is_approval_request
from capgraph.base.errors import ValidationError
from capgraph.base.ports import Caller
from capgraph.helpers.plain_data import to_plain
from capgraph.planning import TERMINAL_STEPS
from capgraph.serve.files import Artifact as StoredArtifact
from capgraph.serve.files import Uploads

if TYPE_CHECKING:
    from capgraph.serve.runs import Turn

_ANSWER = "answer"
_MAX_INLINE_BYTES = 262_144
"""Maximum size of a file that is part of an artifact. Larger files are links."""
RUNNING_STATES = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "stopping": TaskState.TASK_STATE_WORKING,
}
"""State of a task by the status of its active run."""
COMPLETED_STATUSES = frozenset({"completed", "partial"})


# --- messages -----------------------------------------------------------------------------


async def read_files(
    message: Message, caller: Caller, uploads: Uploads | None
) -> Mapping[str, Any] | None:
    """Store the files of a message and return the context data that refers to them.

    Return ``None`` if the message contains no files.

    Raises:
        ContentTypeNotSupportedError: The server does not accept a part of the message.
    """
    if any(part.HasField("url") for part in message.parts):
        raise ContentTypeNotSupportedError(
            "Links to files are not accepted. Fix: send their bytes."
        )
    files = [part for part in message.parts if part.HasField("raw")]
    if not files:
        return None
    if uploads is None or message.task_id:
        raise ContentTypeNotSupportedError("Files are not accepted here. Fix: send text or data.")
    try:
        stored = [
            await uploads.add(caller, part.filename or "file", _chunks(part.raw), len(part.raw))
            for part in files
        ]
    except ValidationError as exc:
        raise ContentTypeNotSupportedError(str(exc)) from exc
    return await uploads.to_context(caller, [one["file_id"] for one in stored])


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content


def read_parts(message: Message) -> tuple[list[str], list[Any]]:
    """Return the text parts and the decoded data parts of an A2A message."""
    texts = [part.text for part in message.parts if part.HasField("text")]
    return texts, [MessageToDict(part.data) for part in message.parts if part.HasField("data")]


def build_history(
    turn: Turn, questions: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[Message]:
    """Yield the requests, questions, and answers of a turn as A2A messages, in order.

    Args:
        turn: Turn whose messages are built.
        questions: Questions that each run asked, by run ID.
    """
    for run_id, request in turn.requests:
        if (text := request.get("message")) is not None:
            yield _user_message(turn, request, run_id, [new_text_part(text)])
        elif "plan" in request:
            yield _user_message(turn, request, run_id, [_data_part({"plan": request["plan"]})])
        if answers := request.get("answers"):
            parts = [
                new_text_part(answer) if isinstance(answer, str) else _data_part(answer)
                for answer in answers.values()
            ]
            yield _user_message(turn, request, run_id, parts)
        for question in questions.get(run_id, ()):
            yield _agent_message(turn, _question_parts(question), f"{run_id}-question")


def _user_message(
    turn: Turn, request: Mapping[str, Any], run_id: str, parts: Sequence[Part]
) -> Message:
    return Message(
        message_id=request.get("message_id") or f"{run_id}-request",
        role=Role.ROLE_USER,
        parts=parts,
        task_id=turn.turn_id,
        context_id=turn.run.thread_id,
    )


def _agent_message(turn: Turn, parts: Sequence[Part], message_id: str = "") -> Message:
    return Message(
        message_id=message_id or uuid.uuid4().hex,
        role=Role.ROLE_AGENT,
        parts=parts,
        task_id=turn.turn_id,
        context_id=turn.run.thread_id,
    )


def _question_parts(
    question: Mapping[str, Any], problems: Sequence[Mapping[str, str]] = ()
) -> list[Part]:
    """Return a question as message parts, with its text and data for each affected step."""
    metadata = {"question_id": question["question_id"]}
    if problems:
        metadata["problems"] = [dict(problem) for problem in problems]
    details = [f"{problem['path']}: {problem['message']}" for problem in problems]
    steps = question["steps"] if is_approval_request(question) else [question]
    return [
        new_text_part(describe_question({**question, "problems": details})),
        *(_data_part({**step, **metadata}) for step in steps),
    ]


def _data_part(value: Any) -> Part:
    return new_data_part(to_plain(value, lenient=True))


# --- tasks --------------------------------------------------------------------------------


def build_task(turn: Turn, state: TaskState, parts: Sequence[Part] = ()) -> Task:
    """Return a turn's A2A task with a given state and no artifacts."""
    status = build_status(turn, state, parts)
    return Task(id=turn.turn_id, context_id=turn.run.thread_id, status=status)


def build_status(turn: Turn, state: TaskState, parts: Sequence[Part] = ()) -> TaskStatus:
    """Return an A2A task status with the time of the turn's last change."""
    status = TaskStatus(state=state)
    status.timestamp.FromMilliseconds(int(turn.updated_at * 1000))
    if parts:
        # Each subscriber of a question must get the same message.
        message_id = f"{turn.run.run_id}-question" if not turn.is_active else ""
        status.message.CopyFrom(_agent_message(turn, parts, message_id))
    return status


def input_required_task(
    turn: Turn, question: Mapping[str, Any], problems: Sequence[Mapping[str, str]] = ()
) -> Task:
    """Return an A2A task that is waiting for the user to answer a question."""
    parts = _question_parts(question, problems)
    return build_task(turn, TaskState.TASK_STATE_INPUT_REQUIRED, parts)


def ended_task(turn: Turn, last_event: Mapping[str, Any]) -> Task:
    """Return the A2A task for a turn whose last run ended without asking a question."""
    result = last_event.get("result") or {}
    answer = str(result.get("answer") or "")
    if turn.run.status == "waiting":  # for a time or an event, not for a person
        return build_task(turn, TaskState.TASK_STATE_WORKING)
    if turn.run.status in COMPLETED_STATUSES:
        task = build_task(turn, TaskState.TASK_STATE_COMPLETED)
        task.artifacts.append(_answer_artifact(answer))
        return task
    # The last event of a stopped task that asked a question is that question.
    if turn.run.status == "stopped" and last_event.get("type") != "RUN_ERROR":
        return build_task(turn, TaskState.TASK_STATE_CANCELED)
    reason = str(last_event.get("message") or answer or turn.run.status)
    return build_task(turn, TaskState.TASK_STATE_FAILED, [new_text_part(reason)])


# --- artifacts ----------------------------------------------------------------------------


def _answer_artifact(text: str) -> Artifact:
    return Artifact(artifact_id=_ANSWER, name=_ANSWER, parts=[new_text_part(text)])


def answer_chunk(turn: Turn, text: str, *, append: bool) -> TaskArtifactUpdateEvent:
    """Return an A2A artifact update that contains a part of the answer text."""
    return TaskArtifactUpdateEvent(
        task_id=turn.turn_id,
        context_id=turn.run.thread_id,
        artifact=_answer_artifact(text),
        append=append,
    )


def data_artifacts(state: Mapping[str, Any]) -> Iterable[Artifact]:
    """Yield artifacts for the structured answer and for step results that no other step uses.

    Args:
        state: State of the thread, as plain data.
    """
    if (answer := state.get("execution_answer")) is not None:
        yield Artifact(artifact_id="data", name="data", parts=[_data_part(answer)])
    steps = (state.get("planning_execution_plan") or {}).get("steps") or ()
    used = {
        key
        for step in steps
        if step["capability"] not in TERMINAL_STEPS
        for item in step.get("inputs") or ()
        for key in item.values()
    }
    data = state.get("capability_context_data") or {}
    for key, record in (state.get("execution_step_results") or {}).items():
        if key in used or not record.get("success"):
            continue
        for kind, name in (record.get("outputs") or {}).items():
            value = (data.get(kind) or {}).get(name)
            if value is not None:
                parts = [_value_part(value)]
                yield Artifact(artifact_id=f"{key}/{kind}", name=kind, parts=parts)


def _value_part(value: Any) -> Part:
    is_text = isinstance(value, Mapping) and [*value] == ["value"]
    if is_text and isinstance(value["value"], str):
        return new_text_part(value["value"])
    return _data_part(value)


async def file_artifact(stored: StoredArtifact, thread_id: str, base_url: str) -> Artifact:
    """Return an artifact with the bytes of a stored file, or with a link to a large file.

    Downloading the linked file requires a login.
    """
    part = Part(filename=stored.name, media_type=stored.media_type.partition(";")[0])
    if stored.size <= _MAX_INLINE_BYTES:
        part.raw = await asyncio.to_thread(_read_file, stored)
    else:
        part.url = f"{base_url}/api/threads/{quote(thread_id, safe='')}/files/{stored.file_id}"
    return Artifact(artifact_id=stored.file_id, name=stored.name, parts=[part])


def _read_file(stored: StoredArtifact) -> bytes:
    file, _ = stored.open()
    with file:
        return file.read(_MAX_INLINE_BYTES)
