"""From events of a run to events of AG-UI 1.0, as plain data. Pure: nothing is read or sent here.

One run is one :class:`Translator`, which remembers what is open: a client has to see every message
and every step that begins also end, however the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from capgraph.approvals.requests import decision_schema
from capgraph.base.plan import plan_key

PROTOCOL = "1.0"
PLAN_ACTIVITY = "capgraph.plan"
"""Activity type of the plan of a run; its content is what a client draws."""
_MAX_EVENTS = 20_000
"""Past so many events a run tells only what begins and ends."""
_MAX_DELTA_CHARS = 65_536
"""Characters of an answer in one event."""
_LONG, _SHORT, _MUCH = 10_000, 500, 900_000
"""So much is left of a text or a list of an event that is too long; less, where that is still much."""
_STEP_STATUSES = {
    "step_started": "running",
    "step_finished": "done",
    "step_failed": "failed",
    "step_skipped": "skipped",
}
_STATE_STATUSES = {"not needed": "skipped", "waiting": "asks"}

AguiEvent = dict[str, Any]


class EventTranslator:
    """Turns the events of one run into those of AG-UI.

    Args:
        thread_id: The thread, as its user calls it.
        run_id: The run.

    >>> translator = EventTranslator("t", "r")
    >>> [translate["type"] for translate in translator.translate({"event_type": "answer_token", "text": "Hi"})]
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
        self._usage: dict[tuple[str, str], dict[str, int]] = {}
        self._count = 0
        self._dropped = 0

    # --- begin and end --------------------------------------------------------------------

    def start_events(self, values: Mapping[str, Any], states: Mapping[str, str]) -> list[AguiEvent]:
        """Return what a run begins with; one that goes on with a turn shows the plan as it is.

        Args:
            values: The state of the thread; empty for a new turn.
            states: How far each step is, by context key.
        """
        found = [_make_event("RUN_STARTED", protocolVersion=PROTOCOL, **self._run_ids)]
        plan = values.get("planning_execution_plan")
        if plan and states:
            version = (plan.get("stamp") or {}).get("version", 0)
            found.append(self._plan_snapshot(plan, version, states, None))
        return self._count_events(found)

    def takeover_events(self, recorded: Sequence[Mapping[str, Any]]) -> list[AguiEvent]:
        """Go on where another process ended, in the middle of the run.

        Args:
            recorded: What the run has told so far.

        Returns:
            What closes that which nobody will close any more.
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
        self, result: Mapping[str, Any], interrupts: Sequence[AguiEvent], *, metadata: Any = None
    ) -> list[AguiEvent]:
        """Return what a run ends with.

        Args:
            result: The turn's status, outcome and answer.
            interrupts: Open questions, as :func:`interrupt_of` gives them.
            metadata: What is said of the end besides.
        """
        found = self._close_open(time.time())
        if self._dropped:
            found.append(_make_event("CUSTOM", name="capgraph.events_lost", value=self._dropped))
        error = result.get("error")
        if error is not None:
            text = f"{error['message']} Fix: {error['fix']}" if error["fix"] else error["message"]
            end = _make_event("RUN_ERROR", message=text, code=error["code"])
        else:
            outcome: AguiEvent = {"type": "success"}
            if interrupts:
                outcome = {"type": "interrupt", "interrupts": list(interrupts)}
            elif (result.get("outcome") or {}).get("cancelled"):
                outcome = {"type": "cancelled"}
            end = _make_event("RUN_FINISHED", **self._run_ids, result=dict(result), outcome=outcome)
        if self._usage:
            end["usage"] = [
                {"provider": provider, "model": model, **used}
                for (provider, model), used in self._usage.items()
            ]
        if metadata is not None:
            end["metadata"] = metadata
        return self._count_events([*found, end])

    # --- in between -----------------------------------------------------------------------

    def translate(self, event: Mapping[str, Any]) -> list[AguiEvent]:
        """Return what one event of the run means to a client."""
        kind = str(event.get("event_type") or "")
        at = _event_time(event)
        if kind == "answer_token":
            found = list(self._token_events(event, at))
        elif kind in _STEP_STATUSES:
            found = list(self._step_events(kind, event, at))
        elif kind == "plan_made":
            found = [self._plan_snapshot(event["plan"], event.get("version", 1), {}, at)]
            found[0]["content"]["repairs"] = event.get("repairs") or []
        elif kind == "approval_asked":
            found = [
                delta
                for step in event.get("steps") or ()
                for delta in self._plan_deltas(str(step.get("context_key")), {"status": "asks"}, at)
            ]
        elif kind == "step_progress":
            told = {name: event[name] for name in ("message", "progress") if name in event}
            found = self._plan_deltas(str(event.get("context_key")), told, at)
        else:
            if kind == "usage":
                self._add_usage(event)
            value = {name: event[name] for name in event if name not in _ENVELOPE_FIELDS}
            found = [_make_event("CUSTOM", at, name=f"capgraph.{kind or 'event'}", value=value)]
        if self._count > _MAX_EVENTS:
            kept = [one for one in found if one["type"] not in _DROPPABLE_TYPES]
            self._dropped += len(found) - len(kept)
            found = kept
        return self._count_events(found)

    def _token_events(self, event: Mapping[str, Any], at: float) -> Iterator[AguiEvent]:
        if event.get("anew") and self._message_id:
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
        number = event.get("element")
        if kind == "step_started" and key not in self._open_steps:
            self._open_steps[key] = None
            yield _make_event("STEP_STARTED", at, stepName=key)
        elif kind != "step_started" and key in self._open_steps:
            del self._open_steps[key]
            yield _make_event("STEP_FINISHED", at, stepName=key)
        if number is None:
            told: dict[str, Any] = {"status": _STEP_STATUSES[kind]}
            told["started" if kind == "step_started" else "ended"] = at
            names = ("attempt", "duration", "message", "severity", "reason", "outputs", "trace_id")
            told |= {name: event[name] for name in names if event.get(name) is not None}
            yield from self._plan_deltas(key, told, at)
        else:
            # One entry stands for all copies: it counts them.
            value = {"context_key": plan_key(key), "element": number, "of": event.get("elements")}
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
        for step in steps:
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
        place = self._step_indexes.get(key)
        if place is None:
            return []
        # Steps are named by their place: a key could be any text.
        patch = [
            {"op": "add", "path": f"/steps/{place}/{name}", "value": value}
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
        found = [_make_event("STEP_FINISHED", at, stepName=name) for name in self._open_steps]
        self._open_steps = {}
        if self._message_id:
            found.append(_make_event("TEXT_MESSAGE_END", at, messageId=self._message_id))
            self._message_id = ""
        return found

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
        name = str(event.get("provider") or ""), str(event.get("model") or "")
        used = self._usage.setdefault(
            name, {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0}
        )
        used["inputTokens"] += event.get("input_tokens") or 0
        used["outputTokens"] += event.get("output_tokens") or 0
        used["cachedInputTokens"] += event.get("cached_tokens") or 0

    def shorten(self, event: AguiEvent) -> AguiEvent:
        """Return an event that is too long with its long texts and lists cut; it says so.

        >>> cut = EventTranslator("t", "r").shorten({"type": "CUSTOM", "value": "x" * 20_000})
        >>> cut["value"][9_999:], cut["metadata"]["capgraph"]["cut"]["parts"]
        ('x… (20,000 characters, the whole: /api/threads/t/state)', ['value'])
        """
        whole = f"/api/threads/{quote(self.thread_id, safe='')}/state"
        parts: list[str] = []
        found: AguiEvent = _truncate(event, _LONG, whole, "", parts)
        if len(repr(found)) > _MUCH:
            parts.clear()
            found = _truncate(event, _SHORT, whole, "", parts)
        metadata = dict(event.get("metadata") or {})
        told = {**metadata.get("capgraph", {}), "cut": {"parts": parts, "whole": whole}}
        return {**found, "metadata": {**metadata, "capgraph": told}}

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


def to_interrupt(question: Mapping[str, Any]) -> AguiEvent:
    """Return a question as an interrupt of AG-UI.

    Args:
        question: The question with its ``question_id``.
    """
    steps = question.get("steps")
    told = [
        f"{step['context_key']}: {step.get('reason') or step.get('description') or ''}".rstrip()
        for step in steps or ()
    ]
    found: AguiEvent = {
        "id": question["question_id"],
        "reason": "capgraph.approval" if steps else "capgraph.question",
        "message": "\n".join(told) or str(question.get("value", ""))[:2000],
        "metadata": {"capgraph": dict(question)},
    }
    if steps:
        found["responseSchema"] = decision_schema(question)
    return found


def _truncate(value: Any, max_chars: int, link: str, path: str, parts: list[str]) -> Any:
    """Cut long texts and lists, and name the places of those that were."""
    if isinstance(value, Mapping):
        return {
            name: _truncate(one, max_chars, link, f"{path}.{name}".lstrip("."), parts)
            for name, one in value.items()
        }
    if isinstance(value, list):
        if len(value) > _LONG:
            parts.append(path)
        kept = enumerate(value[:_LONG])
        return [_truncate(one, max_chars, link, f"{path}.{place}", parts) for place, one in kept]
    if not isinstance(value, str) or len(value) <= max_chars:
        return value
    parts.append(path)
    return f"{value[:max_chars]}… ({len(value):,} characters, the whole: {link})"


def _make_event(kind: str, at: float | None = None, **fields: Any) -> AguiEvent:
    return {"type": kind, "timestamp": int(1000 * (time.time() if at is None else at)), **fields}


def _event_time(event: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(event["timestamp"])).timestamp()
    except (KeyError, ValueError):
        return time.time()
