"""The run as its events tell it."""

from datetime import UTC, datetime, timedelta

import pytest

from framework.cli.progress import Progress
from framework.telemetry import (
    AnswerToken,
    ApprovalAsked,
    CapabilitiesSelected,
    PlanMade,
    Replan,
    Retry,
    Status,
    StepFailed,
    StepFinished,
    StepProgress,
    StepStarted,
    TurnFinished,
    Usage,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return (BEGAN + timedelta(seconds=seconds)).isoformat()


def plan(*steps):
    return {
        "steps": [
            {"context_key": key, "capability": name, "inputs": [{"T": need} for need in needs]}
            for key, name, *needs in steps
        ]
        + [{"context_key": "answer", "capability": "respond"}]
    }


def step(key, name="look"):
    return {"context_key": key, "capability": name}


@pytest.fixture
def progress():
    run = Progress()
    run.apply(CapabilitiesSelected(capabilities=["look", "paint"], reason="both", timestamp=at(0)))
    run.apply(PlanMade(plan=plan(("sky", "look"), ("art", "paint", "sky")), timestamp=at(1)))
    return run


def states(progress):
    return {step.key: step.state for step in progress.steps}


def test_a_plan_begins_pending_without_its_closing_step(progress):
    assert states(progress) == {"sky": "pending", "art": "pending"}
    assert progress.step("art").needs == ("sky",)
    assert progress.selected == ["look", "paint"]


def test_a_step_runs_fails_waits_and_succeeds(progress):
    progress.apply(StepStarted(**step("sky"), timestamp=at(2)))
    assert states(progress)["sky"] == "running"
    progress.apply(StepProgress(**step("sky"), message="half", progress=0.5, timestamp=at(3)))
    assert progress.step("sky").note == "half (50%)"
    progress.apply(
        StepFailed(**step("sky"), duration=2.0, severity="retriable", message="no", timestamp=at(4))
    )
    assert (progress.step("sky").state, progress.step("sky").note) == ("failed", "no")
    progress.apply(
        Retry(name="look", context_key="sky", attempt=2, max_attempts=3, delay=0.5, timestamp=at(4))
    )
    assert progress.step("sky").state == "retrying"
    assert progress.step("sky").note == "attempt 2 of 3 in 0.5 s"
    progress.apply(StepStarted(**step("sky"), attempt=2, timestamp=at(5)))
    progress.apply(StepFinished(**step("sky"), attempt=2, duration=1.0, timestamp=at(6)))
    sky = progress.step("sky")
    assert (sky.state, sky.seconds, sky.attempt, sky.note) == ("done", 1.0, 2, "")
    assert [(s.kind, s.end - s.start) for s in progress.spans] == [("failed", 2.0), ("done", 1.0)]


def test_framework_phases_end_when_the_next_thing_begins(progress):
    progress.apply(
        Status(message="Planning", component="orchestrator", source="framework", timestamp=at(1))
    )
    progress.apply(Status(message="Executing look...", component="look", timestamp=at(2)))
    assert progress.phase == "Planning"
    progress.apply(StepStarted(**step("sky"), timestamp=at(4)))
    assert [(s.label, s.end - s.start) for s in progress.spans if s.end] == [("orchestrator", 3.0)]


def test_a_new_plan_keeps_what_stands_as_before(progress):
    progress.apply(StepFinished(**step("sky"), duration=1.0, timestamp=at(2)))
    progress.apply(Replan(reason="no paint", plans_made=1, timestamp=at(3)))
    assert progress.phase == "Planning again"
    new = plan(("sky", "look"), ("art", "draw", "sky"))
    progress.apply(PlanMade(plan=new, version=2, timestamp=at(4)))
    assert progress.version == 2
    assert states(progress) == {"sky": "done", "art": "pending"}
    assert progress.step("sky").note == "kept"


def test_a_step_that_does_something_else_under_the_same_key_is_not_done(progress):
    progress.apply(StepFinished(**step("sky"), duration=1.0, timestamp=at(2)))
    progress.apply(PlanMade(plan=plan(("sky", "listen")), version=2, timestamp=at(4)))
    assert states(progress) == {"sky": "pending"}


def test_answer_tokens_and_usage_add_up(progress):
    progress.apply(AnswerToken(text="The ", timestamp=at(1)))
    progress.apply(AnswerToken(text="sky", timestamp=at(1)))
    progress.apply(Usage(role="answer", input_tokens=5, output_tokens=2, timestamp=at(1)))
    progress.apply(Usage(role="planning", input_tokens=7, output_tokens=1, timestamp=at(1)))
    progress.apply(TurnFinished(outcome={"status": "completed"}, timestamp=at(2)))
    assert progress.answer == "The sky"
    assert progress.tokens == (2, 12, 3)
    assert progress.outcome == {"status": "completed"}


def test_steps_that_wait_for_a_person_say_so(progress):
    progress.apply(ApprovalAsked(steps=[{"context_key": "art"}], timestamp=at(2)))
    assert states(progress)["art"] == "waiting"


def test_an_event_of_an_unknown_step_is_shown(progress):
    progress.apply(StepStarted(**step("late"), timestamp=at(2)))
    assert states(progress)["late"] == "running"


def test_nothing_looks_as_if_it_ran_after_the_end(progress):
    progress.apply(StepStarted(**step("sky"), timestamp=at(2)))
    progress.settle("cancelled")
    assert (progress.step("sky").state, progress.step("sky").note) == ("pending", "interrupted")


def test_a_stored_thread_tells_how_far_it_is():
    values = {
        "planning_active_capabilities": ["look"],
        "planning_execution_plan": {
            **plan(("a", "look"), ("b", "look"), ("c", "look"), ("d", "look"), ("e", "look")),
            "stamp": {"version": 3},
        },
        "execution_step_results": {
            "a": {"success": True, "execution_time": 1.5},
            "b": {"success": False, "error": "broke"},
            "c": {"success": False, "skipped": True},
        },
        "execution_pending_approvals": {"d": {}},
    }
    progress = Progress.of_state(values)
    assert states(progress) == {
        "a": "done",
        "b": "failed",
        "c": "skipped",
        "d": "waiting",
        "e": "pending",
    }
    assert progress.version == 3
    assert progress.step("b").note == "broke"
