"""The last lines of a turn: files, tokens, how it ended and how it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.cli.questions import question_lines
from framework.cli.terminal import one_line, safe

if TYPE_CHECKING:
    from framework.cli.progress import Progress
    from framework.cli.turn import TurnEnd

_WORDS = {
    "completed": "completed",
    "partial": "partial answer",
    "failed": "failed",
    "stopped": "stopped by a limit",
    "waiting": "waiting for a person",
    "cancelled": "interrupted",
    "drained": "drained",
}


def ending_lines(end: TurnEnd, progress: Progress) -> list[str]:
    """Return the lines that close a turn, in a fixed order."""
    lines = [f"file: {one_line(path, 4000)}" for path in end.files]
    if end.status in {"waiting", "cancelled"}:
        lines += [line for asked in end.questions.values() for line in question_lines(asked)]
    missing = end.outcome.get("missing") or []
    if missing and end.status != "completed":
        lines.append(one_line(f"not done: {', '.join(missing)}", 1000))
    calls, sent, received = progress.tokens
    if calls:
        lines.append(f"models: {calls} call(s), {sent:,} tokens sent, {received:,} received")
    if end.error is not None:
        lines.append(f"error: {safe(end.error)}")
    lines.append(f"outcome: {outcome_words(end)}")
    if end.resume_command:
        lines.append(f"resume with: {one_line(end.resume_command, 4000)}")
    return lines


def outcome_words(end: TurnEnd) -> str:
    """Say how a turn ended and how long it took."""
    return f"{_WORDS.get(end.status, end.status)} in {end.seconds:.1f} s"
