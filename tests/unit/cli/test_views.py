"""How a run is shown."""

import io
import json

import pytest
from rich.console import Console

from framework.base import CapabilityError
from framework.cli.progress import Progress, Step
from framework.cli.turn import TurnEnd
from framework.cli.views.json_lines import JsonLines
from framework.cli.views.live import LiveView, hidden_words, time_of, visible_steps
from framework.cli.views.plain import AnswerOnly, PlainLines
from framework.telemetry import (
    AnswerToken,
    CapabilitiesSelected,
    PlanMade,
    Replan,
    Retry,
    Status,
    StepFailed,
    StepFinished,
    StepProgress,
    StepStarted,
    Usage,
)

EVIL = "\x1b[2J[bold]x[/bold] :smile:\n\u202e"
SKY = {"context_key": "sky", "capability": "look"}
PLAN = {
    "steps": [
        {"context_key": "sky", "capability": "look"},
        {"context_key": "art", "capability": "paint", "inputs": [{"SKY": "sky"}]},
        {"context_key": "answer", "capability": "respond"},
    ]
}
EVENTS = [
    Status(message="Choosing capabilities", component="classifier", source="framework"),
    CapabilitiesSelected(capabilities=["look", "paint"], reason=EVIL),
    PlanMade(plan=PLAN, repairs=[EVIL]),
    StepStarted(**SKY),
    StepProgress(**SKY, message=EVIL, progress=0.25),
    StepFailed(**SKY, duration=0.5, severity="retriable", message=EVIL),
    Retry(name="look", context_key="sky", attempt=2, max_attempts=3, delay=0.1, message=EVIL),
    StepStarted(**SKY, attempt=2),
    StepFinished(**SKY, attempt=2, duration=0.25, outputs={"SKY": "sky"}),
    Replan(reason=EVIL, plans_made=1),
    PlanMade(plan=PLAN, version=2),
    Usage(role="answer", input_tokens=1200, output_tokens=30),
    AnswerToken(text="It is "),
    AnswerToken(text=f"blue. {EVIL}"),
]
END = TurnEnd(
    "t1",
    "partial",
    outcome={"status": "partial", "missing": ["art"]},
    answer=f"It is blue. {EVIL}",
    files=[f"/out/{EVIL}.png"],
    seconds=1.25,
    resume_command="capgraph ask --thread t1",
)


def play(view, events=EVENTS, end=END):
    progress = Progress()
    view.begin(f"What {EVIL}?", "t1", progress)
    for event in events:
        progress.apply(event)
        view.event(event, progress)
    progress.settle(end.status)
    view.end(end, progress)
    view.close()


def plain(view_class, **options):
    out = io.StringIO()
    console = Console(file=out, width=100, markup=False, emoji=False, highlight=False)
    play(view_class(console), **options)
    return out.getvalue()


def live(width=100, height=40, **options):
    out = io.StringIO()
    console = Console(
        file=out, width=width, height=height, force_terminal=True, color_system=None,
        markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
    play(LiveView(console), **options)
    return out.getvalue()


@pytest.mark.parametrize("show", [lambda: plain(PlainLines), lambda: plain(AnswerOnly), live])
def test_text_of_others_cannot_act_on_the_terminal(show):
    shown = show()
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J[bold]x[/bold] :smile:" in shown


def test_piped_output_tells_every_event_in_a_line():
    shown = plain(PlainLines)
    for words in (
        "thread: t1",
        "Choosing capabilities",
        "capabilities: look, paint.",
        "plan 1: 2 step(s)",
        "2. art = paint from sky",
        "step sky (look) started",
        "(25%)",
        "step sky (look) failed after 0.50 s, retriable:",
        "retry sky: attempt 2 of 3 in 0.1 s:",
        "step sky (look) started, attempt 2",
        "step sky (look) finished in 0.25 s: SKY",
        "planning again:",
        "plan 2: 2 step(s)",
        "answer:\nIt is blue.",
        "models: 1 call(s), 1,200 tokens sent, 30 received",
        "not done: art",
        "outcome: partial answer in 1.2 s",
        "resume with: capgraph ask --thread t1",
    ):
        assert words in shown, words


def test_quiet_output_is_the_answer_alone():
    assert plain(AnswerOnly).startswith("It is blue. ")
    assert "outcome" not in plain(AnswerOnly)


def test_a_terminal_shows_plan_answer_files_and_outcome():
    shown = live()
    for words in ("plan 1", "plan 2", "✓", "look", "It is blue.", "file: /out/", "partial answer"):
        assert words in shown, words
    assert shown.count("It is blue.") == 1


def test_an_answer_that_was_not_streamed_is_shown_all_the_same():
    assert "It is blue." in live(events=EVENTS[:-2])


def test_the_cursor_comes_back():
    assert live().rfind("\x1b[?25h") > live().rfind("\x1b[?25l")


def test_a_narrow_low_terminal_is_enough():
    many = {"steps": [{"context_key": f"s{n}", "capability": "look"} for n in range(300)]}
    shown = live(width=30, height=12, events=[PlanMade(plan=many)])
    assert "300" not in shown.split("and", 1)[0]
    assert "pending" in shown


def test_json_lines_are_ascii_events_and_end_with_the_result():
    out = io.StringIO()
    play(JsonLines(out))
    lines = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    events = [json.loads(line) for line in lines]
    assert events[0]["event_type"] == "turn_began"
    assert [event["event_type"] for event in events[1:-1]] == [e.event_type for e in EVENTS]
    result = events[-1]
    assert result["event_type"] == "result"
    assert result["answer"] == END.answer
    assert result["outcome"] == {"status": "partial", "missing": ["art"]}
    assert result["thread_id"] == "t1"


def test_an_error_is_part_of_the_end():
    end = TurnEnd("t1", "failed", error=CapabilityError("It broke.", fix="Mend it."))
    assert "error: It broke. Fix: Mend it." in plain(PlainLines, end=end)
    assert end.as_data()["error"] == {
        "code": "CG-CAPABILITY",
        "message": "It broke.",
        "fix": "Mend it.",
    }


def test_when_not_all_steps_fit_those_that_matter_are_shown():
    steps = [Step(f"s{n}", "look", state="done") for n in range(50)]
    steps[40].state, steps[20].state, steps[49].state = "running", "failed", "pending"
    shown = visible_steps(steps, 3)
    assert [step.key for step in shown] == ["s20", "s40", "s49"]
    assert hidden_words(steps, shown) == "and 47 done"
    assert visible_steps(steps[:3], 3) == steps[:3]


def test_time_of_a_step():
    assert time_of(Step("a", "look"), 5.0) == ""
    assert time_of(Step("a", "look", state="running", started=3.0), 5.0) == "2.0 s"
    assert time_of(Step("a", "look", state="done", started=3.0, seconds=0.5), 5.0) == "0.50 s"
