"""Translation of run events to AG-UI 1.0 events. Pure functions without I/O.

An :class:`EventTranslator` tracks the open messages and steps of one run, so that each of them is
closed however the run ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import quote

from capgraph.approvals.requests import decision_schema, describe_question
from capgraph.base.plan import plan_key
from capgraph.planning.schedule import recorded_order

PROTOCOL = "1.0"
CLIENT_TOOL = "client_tool"
"""Type of the question that waits for the result of a client tool."""
PLAN_ACTIVITY = "capgraph.plan"
"""Activity type of a run's plan, whose content clients draw."""
_MAX_EVENTS = 20_000
"""Number of events of a run above which only starts and ends are emitted."""
_MAX_DELTA_CHARS = 65_536
"""Maximum number of characters of an answer per event."""
_LONG, _SHORT, _SHORTEST, _MUCH = 10_000, 500, 20, 900_000
"""Maximum length of a text or a list in an oversized event, the length if that is still too much,
and
the size at which it is.
"""
_STEP_STATUSES = {
    "step_started": "running",
    "step_finished": "done",
    "step_failed": "failed",
    "step_skipped": "skipped",
}
_FAILED_STATUSES = frozenset({"failed", "stopped"})
"""Statuses of a turn that end its run with an error, unless a user cancelled the turn."""
_STATE_STATUSES = {"not needed": "skipped", "waiting": "asks"}

AguiEvent = dict[str, Any]


class EventTranslator:
    """Translator from the events of a single run to AG-UI events.

    Args:
        thread_id: Public ID of the thread.
        run_id: ID of the run.

    >>> translator = EventTranslator("t", "r")
    >>> events = translator.translate({"event_type": "answer_token", "text": "Hi"})
    >>> [event["type"] for event in events]
    ['TEXT_MESSAGE_START', 'TEXT_MESSAGE_CONTENT']
    """

    def __init__(self, thread_id: str, run_id: str) -> None:
        self.thread_id = thread_id
        self._run_ids: dict[str, Any] = {"threadId": thread_id, "runId": run_id}
        self._run_id = run_id
        self._message_id = ""
        self._message_count = 0
        self._open_steps: dict[str, None] = {}
        self._step_indexes: dict[str, int] = {}
        self._plan_id = ""
        self._state: dict[str, Any] | None = None
        self._usage: dict[tuple[str, str], dict[str, int]] = {}
        self._count = 0
        self._dropped = 0

    # --- start and end --------------------------------------------------------------------

    def start_events(self, values: Mapping[str, Any], states: Mapping[str, str]) -> list[AguiEvent]:
        """Return the first events of a run.

        If the run continues a turn, they include the turn's plan.

        Args:
            values: State of the thread, which is empty for a new turn.
            states: Status of each step, by context key.
        """
        events = [_make_event("RUN_STARTED", protocolVersion=PROTOCOL, **self._run_ids)]
        plan = values.get("planning_execution_plan")
        if plan and states:
            version = (plan.get("stamp") or {}).get("version", 0)
            events.append(self._plan_snapshot(plan, version, states, None))
        return self._count_events(events)

    def takeover_events(self, recorded: Sequence[Mapping[str, Any]]) -> list[AguiEvent]:
        """Return the events with which this process takes over a run from a dead process.

        Args:
            recorded: Events that the run has already emitted.

        Returns:
            Events that close the messages and steps that the dead process left open.
        """
        for event in recorded:
            self._restore(event)
        self._count = len(recorded)
        return self._count_events(
            [
                *self._close_open(time.time()),
                _make_event("CUSTOM", name="capgraph.taken_up", value={"events": len(recorded)}),
            ]
        )

    def end_events(
        self,
        result: Mapping[str, Any],
        questions: Sequence[Mapping[str, Any]],
        *,
        metadata: Any = None,
    ) -> list[AguiEvent]:
        """Return the final events of a run.

        Args:
            result: Status, outcome, and answer of the turn.
            questions: Open questions, each with its ``question_id``. A question that requests
                the result of a client tool becomes a tool call. All others become interrupts.
            metadata: Metadata to attach to the last event.
        """
        events = self._close_open(time.time())
        interrupts = [to_interrupt(one) for one in questions if not _is_tool_call(one)]
        for question in filter(_is_tool_call, questions):
            events += _tool_call_events(question)
        if self._dropped:
            events.append(_make_event("CUSTOM", name="capgraph.events_lost", value=self._dropped))
        if (error := _extract_run_error(result)) is not None:
            end = _make_event("RUN_ERROR", **error, result=dict(result))
        else:
            outcome: AguiEvent = {"type": "success"}
            if interrupts:
                outcome = {"type": "interrupt", "interrupts": interrupts}
            elif _is_cancelled(result):
                outcome = {"type": "cancelled"}
            end = _make_event("RUN_FINISHED", **self._run_ids, result=dict(result), outcome=outcome)
        if self._usage:
            end["usage"] = [
                {"provider": provider, "model": model, **used}
                for (provider, model), used in self._usage.items()
            ]
        if metadata is not None:
            end["metadata"] = metadata
        return self._count_events([*events, end])

    def state_events(self, values: Mapping[str, Any]) -> list[AguiEvent]:
        """Return the events that report a change in the shared state.

        The first call returns a snapshot, and later calls return deltas.

        Args:
            values: State to share with clients, as plain data.

        >>> translator = EventTranslator("t", "r")
        >>> first, later = translator.state_events({"a": 1}), translator.state_events({"a": 2})
        >>> first[0]["snapshot"], later[0]["delta"]
        ({'a': 1}, [{'op': 'add', 'path': '/a', 'value': 2}])
        """
        known, self._state = self._state, dict(values)
        if known == values:
            return []
        if known is None:
            return self._count_events([_make_event("STATE_SNAPSHOT", snapshot=self._state)])
        patch: list[dict[str, Any]] = [
            {"op": "add", "path": f"/{name}", "value": value}
            for name, value in values.items()
            if name not in known or known[name] != value
        ]
        patch += [{"op": "remove", "path": f"/{name}"} for name in known if name not in values]
        return self._count_events([_make_event("STATE_DELTA", delta=patch)])

    # --- events ---------------------------------------------------------------------------

    def translate(self, event: Mapping[str, Any]) -> list[AguiEvent]:
        """Translate one event of the run to AG-UI events."""
        kind = str(event.get("event_type") or "")
        at = _event_time(event)
        if kind == "answer_token":
            events = list(self._token_events(event, at))
        elif kind in _STEP_STATUSES:
            events = list(self._step_events(kind, event, at))
        elif kind == "plan_made":
            events = [self._plan_snapshot(event["plan"], event.get("version", 1), {}, at)]
            events[0]["content"]["repairs"] = event.get("repairs") or []
        elif kind == "approval_asked":
            events = [
                delta
                for step in event.get("steps") or ()
                for delta in self._plan_deltas(str(step.get("context_key")), {"status": "asks"}, at)
            ]
        elif kind == "step_progress":
            progress = {name: event[name] for name in ("message", "progress") if name in event}
            events = self._plan_deltas(str(event.get("context_key")), progress, at)
        else:
            if kind == "usage":
                self._add_usage(event)
            value = {name: event[name] for name in event if name not in _ENVELOPE_FIELDS}
            events = [_make_event("CUSTOM", at, name=f"capgraph.{kind or 'event'}", value=value)]
        if self._count > _MAX_EVENTS:
            essential = [one for one in events if one["type"] not in _DROPPABLE_TYPES]
            self._dropped += len(events) - len(essential)
            events = essential
        return self._count_events(events)

    def _token_events(self, event: Mapping[str, Any], at: float) -> Iterator[AguiEvent]:
        if event.get("resets") and self._message_id:
            yield _make_event("TEXT_MESSAGE_END", at, messageId=self._message_id)
            yield _make_event("CUSTOM", at, name="capgraph.answer_anew", value=self._message_id)
            self._message_id = ""
        text = event.get("text")
        if not text:
            return
        if not self._message_id:
            self._message_count += 1
            self._message_id = f"{self._run_id}-answer-{self._message_count}"
            yield _make_event(
                "TEXT_MESSAGE_START", at, messageId=self._message_id, role="assistant"
            )
        for begin in range(0, len(text), _MAX_DELTA_CHARS):
            delta = text[begin : begin + _MAX_DELTA_CHARS]
            yield _make_event("TEXT_MESSAGE_CONTENT", at, messageId=self._message_id, delta=delta)

    def _step_events(self, kind: str, event: Mapping[str, Any], at: float) -> Iterator[AguiEvent]:
        key = str(event.get("context_key") or event.get("capability") or "step")
        element = event.get("element")
        if kind == "step_started" and key not in self._open_steps:
            self._open_steps[key] = None
            yield _make_event("STEP_STARTED", at, stepName=key)
        elif kind != "step_started" and key in self._open_steps:
            del self._open_steps[key]
            yield _make_event("STEP_FINISHED", at, stepName=key)
        if element is None:
            changes: dict[str, Any] = {"status": _STEP_STATUSES[kind]}
            changes["started" if kind == "step_started" else "ended"] = at
            names = ("attempt", "duration", "message", "severity", "reason", "outputs", "trace_id")
            changes |= {name: event[name] for name in names if event.get(name) is not None}
            yield from self._plan_deltas(key, changes, at)
        else:
            # A for_each step has one entry, which counts its elements.
            value = {"context_key": plan_key(key), "element": element, "of": event.get("elements")}
            value |= {"status": _STEP_STATUSES[kind], "message": event.get("message")}
            if "trace_id" in event:
                value["trace_id"] = event["trace_id"]
            yield _make_event("CUSTOM", at, name="capgraph.element", value=value)

    def _plan_snapshot(
        self,
        plan: Mapping[str, Any],
        version: int,
        states: Mapping[str, str],
        at: float | None,
    ) -> AguiEvent:
        steps = [dict(step) for step in plan.get("steps") or ()]
        order = recorded_order(plan)
        for step in steps:
            if step["context_key"] in order:
                step["after"] = list(order[step["context_key"]])
            state = states.get(step["context_key"], "pending")
            step["status"] = _STATE_STATUSES.get(state, state)
        self._step_indexes = {str(step["context_key"]): place for place, step in enumerate(steps)}
        self._plan_id = f"{self._run_id}-plan-{version}"
        content = {"version": version, "steps": steps}
        return _make_event(
            "ACTIVITY_SNAPSHOT",
            at,
            messageId=self._plan_id,
            activityType=PLAN_ACTIVITY,
            content=content,
        )

    def _plan_deltas(self, key: str, values: Mapping[str, Any], at: float) -> list[AguiEvent]:
        index = self._step_indexes.get(key)
        if index is None:
            return []
        # JSON pointers use step indexes, because keys may contain any character.
        patch = [
            {"op": "add", "path": f"/steps/{index}/{name}", "value": value}
            for name, value in values.items()
        ]
        return [
            _make_event(
                "ACTIVITY_DELTA",
                at,
                messageId=self._plan_id,
                activityType=PLAN_ACTIVITY,
                patch=patch,
            )
        ]

    def _close_open(self, at: float) -> list[AguiEvent]:
        events = [_make_event("STEP_FINISHED", at, stepName=name) for name in self._open_steps]
        self._open_steps = {}
        if self._message_id:
            events.append(_make_event("TEXT_MESSAGE_END", at, messageId=self._message_id))
            self._message_id = ""
        return events

    def _restore(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "STEP_STARTED":
                self._open_steps[event["stepName"]] = None
            case "STEP_FINISHED":
                self._open_steps.pop(event["stepName"], None)
            case "TEXT_MESSAGE_START":
                self._message_id = event["messageId"]
                self._message_count += 1
            case "TEXT_MESSAGE_END":
                self._message_id = ""
            case "ACTIVITY_SNAPSHOT":
                self._plan_id = event["messageId"]
                steps = event["content"]["steps"]
                self._step_indexes = {str(one["context_key"]): n for n, one in enumerate(steps)}
            case "CUSTOM" if event["name"] == "capgraph.usage":
                self._add_usage(event["value"])

    def _add_usage(self, event: Mapping[str, Any]) -> None:
        key = str(event.get("provider") or ""), str(event.get("model") or "")
        used = self._usage.setdefault(
            key, {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0}
        )
        used["inputTokens"] += event.get("input_tokens") or 0
        used["outputTokens"] += event.get("output_tokens") or 0
        used["cachedInputTokens"] += event.get("cached_tokens") or 0

    def shorten(self, event: AguiEvent) -> AguiEvent:
        """Truncate long strings and lists in an oversized event.

        The event's metadata lists the paths of the truncated parts.

        >>> event = EventTranslator("t", "r").shorten({"type": "CUSTOM", "value": "x" * 20_000})
        >>> event["value"][9_999:], event["metadata"]["capgraph"]["cut"]["parts"]
        ('x… (20,000 characters, complete at: /api/threads/t/state)', ['value'])
        """
        link = f"/api/threads/{quote(self.thread_id, safe='')}/state"
        parts: list[str] = []
        shortened: AguiEvent = {}
        for max_length in (_LONG, _SHORT, _SHORTEST):
            parts.clear()
            shortened = _truncate(event, max_length, link, "", parts)
            if len(repr(shortened)) <= _MUCH:
                break
        del parts[_SHORT:]
        metadata = dict(event.get("metadata") or {})
        capgraph_metadata = {**metadata.get("capgraph", {}), "cut": {"parts": parts, "whole": link}}
        return {**shortened, "metadata": {**metadata, "capgraph": capgraph_metadata}}

    def _count_events(self, events: list[AguiEvent]) -> list[AguiEvent]:
        self._count += len(events)
        return events


_ENVELOPE_FIELDS = frozenset(
    {
        "event_type",
        "timestamp",
        "seq",
        "run_id",
        "thread_id",
        "attempt_id",
        "trace_id",
        "turn_trace",
    }
)
_DROPPABLE_TYPES = frozenset({"TEXT_MESSAGE_CONTENT", "CUSTOM", "ACTIVITY_DELTA"})


def describe_progress(event: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the completed fraction and a text if a run event reports the progress of a step.

    >>> describe_progress({"type": "STEP_STARTED", "stepName": "level"})
    (0.0, 'level started')
    """
    match event["type"]:
        case "STEP_STARTED":
            return 0.0, f"{event['stepName']} started"
        case "STEP_FINISHED":
            return 0.0, f"{event['stepName']} finished"
        case "ACTIVITY_DELTA":
            changes = {one["path"].rpartition("/")[2]: one["value"] for one in event["patch"]}
            if "progress" in changes:
                return changes["progress"] or 0.0, str(changes.get("message") or "")
    return None


def _is_tool_call(question: Mapping[str, Any]) -> bool:
    return question.get("type") == CLIENT_TOOL


def _tool_call_events(question: Mapping[str, Any]) -> list[AguiEvent]:
    """Return the AG-UI events for a tool call that the front end must execute."""
    call = {"toolCallId": question["question_id"]}
    arguments = json.dumps(question["parameters"], ensure_ascii=False)
    return [
        _make_event("TOOL_CALL_START", **call, toolCallName=question["tool"]),
        _make_event("TOOL_CALL_ARGS", **call, delta=arguments),
        _make_event("TOOL_CALL_END", **call),
    ]


def _is_cancelled(result: Mapping[str, Any]) -> bool:
    return result.get("status") == "cancelled" or bool(
        (result.get("outcome") or {}).get("cancelled")
    )


def _extract_run_error(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error message and code of a failed run, or ``None`` if it did not fail."""
    error = result.get("error")
    if error is not None:
        fix = f" Fix: {error['fix']}" if error["fix"] else ""
        return {"message": f"{error['message']}{fix}", "code": error["code"]}
    if result.get("status") not in _FAILED_STATUSES or _is_cancelled(result):
        return None
    outcome = result.get("outcome") or {}
    message = result.get("answer") or outcome.get("reason") or "The turn failed."
    return {"message": str(message), "code": str(outcome.get("code") or result["status"])}


def to_interrupt(question: Mapping[str, Any]) -> AguiEvent:
    """Convert a question to the user to an AG-UI interrupt.

    Args:
        question: Question, including its ``question_id``.
    """
    steps = question.get("steps")
    lines = [
        f"{step['context_key']}: {step.get('reason') or step.get('description') or ''}".rstrip()
        for step in steps or ()
    ]
    interrupt: AguiEvent = {
        "id": question["question_id"],
        "reason": "capgraph.approval" if steps else "capgraph.question",
        "message": "\n".join(lines) or describe_question(question.get("value", question))[:2000],
        "metadata": {"capgraph": dict(question)},
    }
    if steps:
        interrupt["responseSchema"] = decision_schema(question)
    return interrupt


def _truncate(value: Any, max_length: int, link: str, path: str, parts: list[str]) -> Any:
    """Truncate long strings, lists, and mappings in an event, and record their paths."""
    if isinstance(value, Mapping):
        if path and len(value) > max_length:
            parts.append(path)
            value = dict(islice(value.items(), max_length))
        return {
            name: _truncate(item, max_length, link, f"{path}.{name}".lstrip("."), parts)
            for name, item in value.items()
        }
    if isinstance(value, list):
        if len(value) > max_length:
            parts.append(path)
        items = enumerate(value[:max_length])
        return [
            _truncate(item, max_length, link, f"{path}.{index}", parts) for index, item in items
        ]
    if "." not in path:
        max_length = max(max_length, _SHORT)  # IDs of the event itself stay complete
    if not isinstance(value, str) or len(value) <= max_length:
        return value
    parts.append(path)
    return f"{value[:max_length]}… ({len(value):,} characters, complete at: {link})"


def _make_event(kind: str, at: float | None = None, **fields: Any) -> AguiEvent:
    return {"type": kind, "timestamp": int(1000 * (time.time() if at is None else at)), **fields}


def _event_time(event: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(event["timestamp"])).timestamp()
    except (KeyError, ValueError):
        return time.time()
