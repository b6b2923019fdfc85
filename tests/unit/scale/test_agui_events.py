"""Events of a run as events of AG-UI: whatever comes, what begins ends."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import Event
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from capgraph.scale import agui_events
from capgraph.scale.agui_events import EventTranslator, to_interrupt
from capgraph.telemetry import AnswerToken

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
KEYS = st.sampled_from(["a", "b", "__proto__", "a/b~c"])


def step(kind: str) -> Any:
    more = {"duration": st.just(0.1), "message": st.text(max_size=5)}
    return st.fixed_dictionaries(
        {"event_type": st.just(kind), "context_key": KEYS, "capability": st.just("c")},
        optional=more,
    )


EVENTS = st.lists(
    st.one_of(
        *map(step, ("step_started", "step_progress", "step_finished", "step_failed")),
        st.fixed_dictionaries(
            {"event_type": st.just("answer_token"), "text": st.text(max_size=5)},
            optional={"resets": st.booleans()},
        ),
        st.fixed_dictionaries(
            {
                "event_type": st.just("plan_made"),
                "version": st.integers(1, 3),
                "plan": st.lists(KEYS, unique=True).map(
                    lambda keys: {"steps": [{"context_key": key} for key in keys]}
                ),
            }
        ),
        st.fixed_dictionaries(
            {"event_type": st.just("usage"), "role": st.just("answer"), "model": st.just("m")},
            optional={"input_tokens": st.integers(0, 9)},
        ),
        st.fixed_dictionaries({"event_type": st.text(max_size=9)}, optional={"x": st.none()}),
    ),
    max_size=30,
)


def checked(events: list[Any]) -> None:
    """Follow the rules that a client of AG-UI checks."""
    steps: set[str] = set()
    message, plans = "", {}
    for event in events:
        EVENT.validate_python(event)
        match event["type"]:
            case "STEP_STARTED":
                assert event["stepName"] not in steps
                steps.add(event["stepName"])
            case "STEP_FINISHED":
                steps.remove(event["stepName"])
            case "TEXT_MESSAGE_START":
                assert not message
                message = event["messageId"]
            case "TEXT_MESSAGE_CONTENT":
                assert event["messageId"] == message
                assert event["delta"]
            case "TEXT_MESSAGE_END":
                assert event["messageId"] == message
                message = ""
            case "ACTIVITY_SNAPSHOT":
                plans[event["messageId"]] = len(event["content"]["steps"])
            case "ACTIVITY_DELTA":
                for change in event["patch"]:
                    place = int(change["path"].split("/")[2])
                    assert place < plans[event["messageId"]]
    assert events[0]["type"] == "RUN_STARTED"
    assert events[-1]["type"] in {"RUN_FINISHED", "RUN_ERROR"}
    assert not steps
    assert not message


@given(EVENTS, st.integers(0, 40), st.booleans())
def test_open_events_are_closed_after_a_restart(events: list[Any], cut: int, fails: bool) -> None:
    translator = EventTranslator("t", "r")
    told = translator.start_events({}, {})
    for event in events:
        told += translator.translate(event)
    at = max(1, min(cut, len(told)))
    again = EventTranslator("t", "r")
    error = {"error": {"message": "It broke.", "fix": None, "code": "CG-000"}} if fails else {}
    result = {"status": "completed", **error}
    checked([*told, *translator.end_events(result, [])])
    checked([*told[:at], *again.takeover_events(told[:at]), *again.end_events(result, [])])


def test_dropped_events_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(agui_events, "_MAX_EVENTS", 10)
    translator = EventTranslator("t", "r")
    told = translator.start_events({}, {})
    for number in range(50):
        told += translator.translate({"event_type": "answer_token", "text": str(number)})
    told += translator.end_events({"status": "completed"}, [])
    checked(told)
    assert len(told) < 20
    (lost,) = [event["value"] for event in told if event.get("name") == "capgraph.events_lost"]
    assert lost == 50 - sum(event["type"] == "TEXT_MESSAGE_CONTENT" for event in told)


def test_for_each_elements_are_counted_on_one_step() -> None:
    translator = EventTranslator("t", "r")
    plan = {"steps": [{"context_key": "each", "capability": "c"}]}
    told = translator.start_events({}, {}) + translator.translate(
        {"event_type": "plan_made", "plan": plan}
    )
    for kind in ("step_started", "step_finished"):
        event = {"event_type": kind, "context_key": "each[1]", "element": 1, "elements": 2}
        told += translator.translate(event)
    values = [event["value"] for event in told if event.get("name") == "capgraph.element"]
    assert [(value["element"], value["of"], value["status"]) for value in values] == [
        (1, 2, "running"),
        (1, 2, "done"),
    ]
    checked([*told, *translator.end_events({"status": "completed"}, [])])


def test_resumed_run_shows_the_current_plan() -> None:
    plan = {"steps": [{"context_key": key} for key in "abc"], "stamp": {"version": 2}}
    states = {"a": "done", "b": "not needed", "c": "waiting"}
    _, snapshot = EventTranslator("t", "r").start_events({"planning_execution_plan": plan}, states)
    assert snapshot["messageId"] == "r-plan-2"
    found = [step["status"] for step in snapshot["content"]["steps"]]
    assert found == ["done", "skipped", "asks"]


def test_custom_question_has_no_schema() -> None:
    found = to_interrupt({"question_id": "q", "value": "Which one?"})
    assert found["message"] == "Which one?"
    assert "responseSchema" not in found


def test_long_answer_is_split_without_loss() -> None:
    translator = EventTranslator("t", "r")
    told = translator.translate({"event_type": "answer_token", "text": "é" * 1_200_000})
    deltas = [one["delta"] for one in told if one["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(deltas) == "é" * 1_200_000
    assert max(map(len, deltas)) < 100_000


def test_answer_that_starts_over_is_a_new_message() -> None:
    translator = EventTranslator("t", "r")
    translator.translate(AnswerToken(text="Four").model_dump(exclude_none=True))
    events = translator.translate(AnswerToken(text="Five", resets=True).model_dump())
    assert [event["type"] for event in events] == [
        "TEXT_MESSAGE_END",
        "CUSTOM",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
    ]


def test_oversized_event_is_truncated_with_a_link() -> None:
    values = ["x" * 1_200_000, ["x" * 9_000] * 300, [[1] * 20_000], {"a": {"b": "x" * 10_001}}]
    for value in values:
        event = {"type": "CUSTOM", "name": "n", "value": value, "metadata": {"capgraph": {"k": 1}}}
        cut = EventTranslator("a/b", "r").shorten(event)
        assert len(json.dumps(cut)) < 500_000
        told = cut["metadata"]["capgraph"]
        assert told["k"] == 1
        assert told["cut"]["whole"] == "/api/threads/a%2Fb/state"
        assert all(part.startswith("value") for part in told["cut"]["parts"])
        assert told["cut"]["parts"]


def test_reviewed_and_unchanged_plan_is_followed_to_its_end() -> None:
    translator = EventTranslator("t", "r")
    plan = {"steps": [{"context_key": "a"}, {"context_key": "b"}]}
    translator.translate({"event_type": "plan_made", "plan": plan})
    translator.translate({"event_type": "replan", "reason": "a ended", "plans_made": 1})
    told = translator.translate(
        {"event_type": "step_skipped", "context_key": "b", "capability": "c", "reason": "no"}
    )
    (delta,) = [one for one in told if one["type"] == "ACTIVITY_DELTA"]
    assert {"op": "add", "path": "/steps/1/status", "value": "skipped"} in delta["patch"]
