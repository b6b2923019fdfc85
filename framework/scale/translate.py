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

from capgraph.approvals.questions import answer_schema
from capgraph.base.plan import plan_key

PROTOCOL = "1.0"
PLAN = "capgraph.plan"
"""Activity type of the plan of a run; its content is what a client draws."""
_MAX_EVENTS = 20_000
"""Past so many events a run tells only what begins and ends."""
_PIECE = 65_536
"""Characters of an answer in one event."""
_LONG, _SHORT, _MUCH = 10_000, 500, 900_000
"""So much is left of a text or a list of an event that is too long; less, where that is still much."""
_STEP = {
    "step_started": "running",
    "step_finished": "done",
    "step_failed": "failed",
    "step_skipped": "skipped",
}
_IN_STATE = {"not needed": "skipped", "waiting": "asks"}

Out = dict[str, Any]


class Translator:
    """Turns the events of one run into those of AG-UI.

    Args:
        thread_id: The thread, as its user calls it.
        run_id: The run.

    >>> translator = Translator("t", "r")
    >>> [event["type"] for event in translator.event({"event_type": "answer_token", "text": "Hi"})]
    ['TEXT_MESSAGE_START', 'TEXT_MESSAGE_CONTENT']
    """

    def __init__(self, thread_id: str, run_id: str) -> None:
        self.thread_id = thread_id
        self._named: dict[str, Any] = {"threadId": thread_id, "runId": run_id}
        self._run_id = run_id
        self._message = ""
        self._messages = 0
        self._open: dict[str, None] = {}
        self._places: dict[str, int] = {}
        self._plan = ""
        self._usage: dict[tuple[str, str], dict[str, int]] = {}
        self._count = 0
        self._lost = 0

    # --- begin and end --------------------------------------------------------------------

    def started(self, values: Mapping[str, Any], states: Mapping[str, str]) -> list[Out]:
        """Return what a run begins with; one that goes on with a turn shows the plan as it is.

        Args:
            values: The state of the thread; empty for a new turn.
            states: How far each step is, by context key.
        """
        found = [_made("RUN_STARTED", protocolVersion=PROTOCOL, **self._named)]
        plan = values.get("planning_execution_plan")
        if plan and states:
            version = (plan.get("stamp") or {}).get("version", 0)
            found.append(self._snapshot(plan, version, states, None))
        return self._counted(found)

    def taken_up(self, told: Sequence[Mapping[str, Any]]) -> list[Out]:
        """Go on where another process ended, in the middle of the run.

        Args:
            told: What the run has told so far.

        Returns:
            What closes that which nobody will close any more.
        """
        for event in told:
            self._remember(event)
        self._count = len(told)
        return self._counted(
            [
                *self._close(time.time()),
                _made("CUSTOM", name="capgraph.taken_up", value={"events": len(told)}),
            ]
        )

    def finished(
        self, result: Mapping[str, Any], interrupts: Sequence[Out], *, metadata: Any = None
    ) -> list[Out]:
        """Return what a run ends with.

        Args:
            result: The turn's status, outcome and answer.
            interrupts: Open questions, as :func:`interrupt_of` gives them.
            metadata: What is said of the end besides.
        """
        found = self._close(time.time())
        if self._lost:
            found.append(_made("CUSTOM", name="capgraph.events_lost", value=self._lost))
        error = result.get("error")
        if error is not None:
            text = f"{error['message']} Fix: {error['fix']}" if error["fix"] else error["message"]
            end = _made("RUN_ERROR", message=text, code=error["code"])
        else:
            outcome: Out = {"type": "success"}
            if interrupts:
                outcome = {"type": "interrupt", "interrupts": list(interrupts)}
            elif (result.get("outcome") or {}).get("cancelled"):
                outcome = {"type": "cancelled"}
            end = _made("RUN_FINISHED", **self._named, result=dict(result), outcome=outcome)
        if self._usage:
            end["usage"] = [
                {"provider": provider, "model": model, **used}
                for (provider, model), used in self._usage.items()
            ]
        if metadata is not None:
            end["metadata"] = metadata
        return self._counted([*found, end])

    # --- in between -----------------------------------------------------------------------

    def event(self, event: Mapping[str, Any]) -> list[Out]:
        """Return what one event of the run means to a client."""
        kind = str(event.get("event_type") or "")
        at = _moment(event)
        if kind == "answer_token":
            found = list(self._token(event, at))
        elif kind in _STEP:
            found = list(self._step(kind, event, at))
        elif kind == "plan_made":
            found = [self._snapshot(event["plan"], event.get("version", 1), {}, at)]
            found[0]["content"]["repairs"] = event.get("repairs") or []
        elif kind == "approval_asked":
            found = [
                delta
                for step in event.get("steps") or ()
                for delta in self._delta(str(step.get("context_key")), {"status": "asks"}, at)
            ]
        elif kind == "step_progress":
            told = {name: event[name] for name in ("message", "progress") if name in event}
            found = self._delta(str(event.get("context_key")), told, at)
        else:
            if kind == "usage":
                self._add_usage(event)
            value = {name: event[name] for name in event if name not in _OWN}
            found = [_made("CUSTOM", at, name=f"capgraph.{kind or 'event'}", value=value)]
        if self._count > _MAX_EVENTS:
            kept = [one for one in found if one["type"] not in _DROPPED]
            self._lost += len(found) - len(kept)
            found = kept
        return self._counted(found)

    def _token(self, event: Mapping[str, Any], at: float) -> Iterator[Out]:
        if event.get("anew") and self._message:
            yield _made("TEXT_MESSAGE_END", at, messageId=self._message)
            yield _made("CUSTOM", at, name="capgraph.answer_anew", value=self._message)
            self._message = ""
        text = event.get("text")
        if not text:
            return
        if not self._message:
            self._messages += 1
            self._message = f"{self._run_id}-answer-{self._messages}"
            yield _made("TEXT_MESSAGE_START", at, messageId=self._message, role="assistant")
        for begin in range(0, len(text), _PIECE):
            delta = text[begin : begin + _PIECE]
            yield _made("TEXT_MESSAGE_CONTENT", at, messageId=self._message, delta=delta)

    def _step(self, kind: str, event: Mapping[str, Any], at: float) -> Iterator[Out]:
        key = str(event.get("context_key") or event.get("capability") or "step")
        number = event.get("element")
        if kind == "step_started" and key not in self._open:
            self._open[key] = None
            yield _made("STEP_STARTED", at, stepName=key)
        elif kind != "step_started" and key in self._open:
            del self._open[key]
            yield _made("STEP_FINISHED", at, stepName=key)
        if number is None:
            told: dict[str, Any] = {"status": _STEP[kind]}
            told["started" if kind == "step_started" else "ended"] = at
            names = ("attempt", "duration", "message", "severity", "reason", "outputs", "trace_id")
            told |= {name: event[name] for name in names if event.get(name) is not None}
            yield from self._delta(key, told, at)
        else:
            # One entry stands for all copies: it counts them.
            value = {"context_key": plan_key(key), "element": number, "of": event.get("elements")}
            value |= {"status": _STEP[kind], "message": event.get("message")}
            if "trace_id" in event:
                value["trace_id"] = event["trace_id"]
            yield _made("CUSTOM", at, name="capgraph.element", value=value)

    def _snapshot(
        self,
        plan: Mapping[str, Any],
        version: int,
        states: Mapping[str, str],
        at: float | None,
    ) -> Out:
        steps = [dict(step) for step in plan.get("steps") or ()]
        for step in steps:
            state = states.get(step["context_key"], "pending")
            step["status"] = _IN_STATE.get(state, state)
        self._places = {str(step["context_key"]): place for place, step in enumerate(steps)}
        self._plan = f"{self._run_id}-plan-{version}"
        content = {"version": version, "steps": steps}
        return _made(
            "ACTIVITY_SNAPSHOT", at, messageId=self._plan, activityType=PLAN, content=content
        )

    def _delta(self, key: str, told: Mapping[str, Any], at: float) -> list[Out]:
        place = self._places.get(key)
        if place is None:
            return []
        # Steps are named by their place: a key could be any text.
        patch = [
            {"op": "add", "path": f"/steps/{place}/{name}", "value": value}
            for name, value in told.items()
        ]
        return [_made("ACTIVITY_DELTA", at, messageId=self._plan, activityType=PLAN, patch=patch)]

    def _close(self, at: float) -> list[Out]:
        found = [_made("STEP_FINISHED", at, stepName=name) for name in self._open]
        self._open = {}
        if self._message:
            found.append(_made("TEXT_MESSAGE_END", at, messageId=self._message))
            self._message = ""
        return found

    def _remember(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "STEP_STARTED":
                self._open[event["stepName"]] = None
            case "STEP_FINISHED":
                self._open.pop(event["stepName"], None)
            case "TEXT_MESSAGE_START":
                self._message = event["messageId"]
                self._messages += 1
            case "TEXT_MESSAGE_END":
                self._message = ""
            case "ACTIVITY_SNAPSHOT":
                self._plan = event["messageId"]
                steps = event["content"]["steps"]
                self._places = {str(one["context_key"]): n for n, one in enumerate(steps)}
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

    def shortened(self, event: Out) -> Out:
        """Return an event that is too long with its long texts and lists cut; it says so.

        >>> cut = Translator("t", "r").shortened({"type": "CUSTOM", "value": "x" * 20_000})
        >>> cut["value"][9_999:], cut["metadata"]["capgraph"]["cut"]["parts"]
        ('x… (20,000 characters, the whole: /api/threads/t/state)', ['value'])
        """
        whole = f"/api/threads/{quote(self.thread_id, safe='')}/state"
        parts: list[str] = []
        found: Out = _cut(event, _LONG, whole, "", parts)
        if len(repr(found)) > _MUCH:
            parts.clear()
            found = _cut(event, _SHORT, whole, "", parts)
        metadata = dict(event.get("metadata") or {})
        told = {**metadata.get("capgraph", {}), "cut": {"parts": parts, "whole": whole}}
        return {**found, "metadata": {**metadata, "capgraph": told}}

    def _counted(self, found: list[Out]) -> list[Out]:
        self._count += len(found)
        return found


_OWN = frozenset(
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
_DROPPED = frozenset({"TEXT_MESSAGE_CONTENT", "CUSTOM", "ACTIVITY_DELTA"})


def interrupt_of(question: Mapping[str, Any]) -> Out:
    """Return a question as an interrupt of AG-UI.

    Args:
        question: The question with its ``question_id``.
    """
    steps = question.get("steps")
    told = [
        f"{step['context_key']}: {step.get('reason') or step.get('description') or ''}".rstrip()
        for step in steps or ()
    ]
    found: Out = {
        "id": question["question_id"],
        "reason": "capgraph.approval" if steps else "capgraph.question",
        "message": "\n".join(told) or str(question.get("value", ""))[:2000],
        "metadata": {"capgraph": dict(question)},
    }
    if steps:
        found["responseSchema"] = answer_schema(question)
    return found


def _cut(value: Any, most: int, whole: str, path: str, parts: list[str]) -> Any:
    """Cut long texts and lists, and name the places of those that were."""
    if isinstance(value, Mapping):
        return {
            name: _cut(one, most, whole, f"{path}.{name}".lstrip("."), parts)
            for name, one in value.items()
        }
    if isinstance(value, list):
        if len(value) > _LONG:
            parts.append(path)
        kept = enumerate(value[:_LONG])
        return [_cut(one, most, whole, f"{path}.{place}", parts) for place, one in kept]
    if not isinstance(value, str) or len(value) <= most:
        return value
    parts.append(path)
    return f"{value[:most]}… ({len(value):,} characters, the whole: {whole})"


def _made(kind: str, at: float | None = None, **fields: Any) -> Out:
    return {"type": kind, "timestamp": int(1000 * (time.time() if at is None else at)), **fields}


def _moment(event: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(event["timestamp"])).timestamp()
    except (KeyError, ValueError):
        return time.time()
