"""How a run is shown."""

import io
import json
import time

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from capgraph.base import CapabilityError
from capgraph.cli.views import AnswerView, JsonView, LiveView, PlainView
from capgraph.graph.turn_runner import TurnResult
from capgraph.telemetry import (
    AnswerToken,
    CapabilitiesSelected,
    PlanMade,
    Replan,
    Retry,
    Status,
    StepFailed,
    StepFinished,
    StepProgress,
    StepSkipped,
    StepStarted,
    Usage,
)
from tests.support.screens import screen_text

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
END = TurnResult(
    "t1",
    "partial",
    outcome={
        "status": "partial",
        "missing": ["art"],
        "not_needed": ["sun"],
        "notes": [f"'look' used default parameters: {EVIL}"],
    },
    answer=f"It is blue. {EVIL}",
    files=[f"/out/{EVIL}.png"],
    seconds=1.25,
    resume_command="capgraph ask --thread t1",
    model_calls=1,
    input_tokens=1200,
    output_tokens=30,
)


def play(view, events=EVENTS, end=END, values=None):
    view.start_turn(f"What {EVIL}?", "t1", values or {})
    for event in events:
        view.show_event(event)
    view.show_end(end)
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


def on_screen(width=100, **options):
    """Return the text that a terminal of this width shows in the end."""
    return screen_text(live(width=width, **options), width)


@pytest.mark.parametrize("show", [lambda: plain(PlainView), lambda: plain(AnswerView), live])
def test_untrusted_text_cannot_control_the_terminal(show):
    shown = show()
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J[bold]x[/bold] :smile:" in shown


def test_live_table_at_80_columns_shows_names_durations_and_whole_notes():
    steps = [
        {"context_key": f"station_{n}_of_the_network", "capability": "read_station", "inputs": []}
        for n in range(4)
    ]
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=80, height=24))
    view.start_turn("Read", "t1", {})
    view.show_event(PlanMade(plan={"steps": steps}))
    words = "the antenna of the station does not answer since yesterday evening at nine o'clock"
    for step in steps:
        known = {"context_key": step["context_key"], "capability": "read_station"}
        view.show_event(StepStarted(**known))
        view.show_event(StepProgress(**known, message=words, progress=0.5))
        view.show_event(StepFinished(**known, duration=1.25))
    view.show_event(StepStarted(**known, attempt=2))
    view.show_event(StepProgress(**known, message=words, progress=0.5))
    view.close()
    lines = Text.from_ansi(out.getvalue()).plain.splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    shown = " ".join(" ".join(lines).split())
    assert "station_3_of_the_network" in shown
    assert "1.25 s" in shown
    for word in words.split():
        assert word in shown


def test_piped_output_has_a_line_per_event():
    shown = plain(PlainView)
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
        "not needed: sun",
        "note: 'look' used default parameters",
        "models: 1 call(s), 1,200 tokens sent, 30 received",
        "not done: art",
        "outcome: partial answer in 1.2 s",
        "resume with: capgraph ask --thread t1",
    ):
        assert words in shown, words


def test_quiet_output_is_only_the_answer():
    assert plain(AnswerView).startswith("It is blue. ")
    assert "outcome" not in plain(AnswerView)


def test_terminal_shows_plan_answer_files_and_outcome():
    shown = on_screen()
    for words in ("plan 1", "plan 2", "✓", "look", "It is blue.", "file: /out/", "partial answer"):
        assert words in shown, words
    assert shown.count("It is blue.") == 1


def test_answer_is_shown_once():
    assert on_screen(events=EVENTS[:-2]).count("It is blue.") == 1
    whole = on_screen(end=TurnResult("t1", "completed", answer="It is blue. And so on."),
                 events=[AnswerToken(text="It is "), AnswerToken(text="blue.")])  # fmt: skip
    assert whole.count("It is blue. And so on.") == 1
    assert whole.count("It is") == 1


def test_restarted_answer_is_complete():
    begun = [
        AnswerToken(text="It is gr"),
        Retry(name="respond", attempt=2, max_attempts=3, delay=0),
    ]
    shown = on_screen(events=[*begun, AnswerToken(text="It is blue.")],
                 end=TurnResult("t1", "completed", answer="It is blue."))  # fmt: skip
    assert shown.rstrip().count("\nIt is blue.") == 1
    assert "retry respond" in shown


def test_interrupted_answer_is_separated_from_the_next():
    shown = on_screen(events=[AnswerToken(text="It is gr"), AnswerToken(text="", resets=True),
                         AnswerToken(text="It is blue.")],
                 end=TurnResult("t1", "completed", answer="It is blue."))  # fmt: skip
    assert shown.index("It is gr\n") < shown.index("starts over") < shown.index("\nIt is blue.")
    assert shown.count("It is blue.") == 1


def test_resumed_turn_shows_finished_steps():
    values = {
        "planning_execution_plan": PLAN,
        "execution_step_results": {"sky": {"success": True}},
        "execution_pending_approvals": {"art": {}},
    }
    assert "already done: sky" in plain(PlainView, values=values, events=[])
    shown = live(values=values, events=[])
    assert "✓" in shown
    assert "?" in shown


def test_new_plan_keeps_unchanged_rows():
    done = [
        PlanMade(plan=PLAN),
        StepFinished(**SKY, duration=1.0),
        Replan(reason="x", plans_made=1),
    ]
    assert "✓" in live(events=[*done, PlanMade(plan=PLAN, version=2)]).split("plan 2")[-1]
    other = {"steps": [{"context_key": "sky", "capability": "listen"}]}
    assert "✓" not in live(events=[*done, PlanMade(plan=other, version=2)]).split("plan 2")[-1]


def test_cursor_is_restored():
    assert live().rfind("\x1b[?25h") > live().rfind("\x1b[?25l")


def test_small_terminal_shows_running_steps_and_progress():
    many = {"steps": [{"context_key": f"s{n}", "capability": "look"} for n in range(300)]}
    step = {"context_key": "s299", "capability": "look"}
    done = {"context_key": "s1", "capability": "look"}
    shown = live(
        width=60, height=12,
        events=[PlanMade(plan=many), StepFinished(**done, duration=1), StepStarted(**step)],
    )  # fmt: skip
    assert "s299" in shown
    assert "s200" not in shown
    assert "1 of 300 steps done" in shown


def test_json_lines_are_ascii_events_and_end_with_the_result():
    out = io.StringIO()
    play(JsonView(out))
    lines = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    events = [json.loads(line) for line in lines]
    assert events[0]["event_type"] == "turn_began"
    assert [event["event_type"] for event in events[1:-1]] == [e.event_type for e in EVENTS]
    result = events[-1]
    assert result["event_type"] == "result"
    assert result["answer"] == END.answer
    assert result["outcome"] == END.outcome
    assert result["thread_id"] == "t1"


def test_error_is_shown_at_the_end():
    end = TurnResult("t1", "failed", error=CapabilityError("It broke.", fix="Mend it."))
    assert "error: It broke. Fix: Mend it." in plain(PlainView, end=end)
    assert end.to_dict()["error"] == {
        "code": "CG-CAPABILITY",
        "message": "It broke.",
        "fix": "Mend it.",
    }


def test_for_each_step_is_one_row_and_skipped_step_has_a_reason():
    plan = {
        "steps": [
            {"context_key": "sky", "capability": "look", "for_each": {"of": "x.places"}},
            {
                "context_key": "art",
                "capability": "paint",
                "when": {"of": "x.n", "is": ">", "than": 3},
            },
        ]
    }
    copies = [{**SKY, "context_key": f"sky[{n}]", "element": n, "elements": 3} for n in range(3)]
    events = [
        PlanMade(plan=plan),
        StepStarted(**SKY),
        *(StepStarted(**copy) for copy in copies),
        *(StepFinished(**copy, duration=0.1) for copy in copies[:2]),
        StepSkipped(
            context_key="art", capability="paint", reason="x.n > 3 does not hold.", not_needed=True
        ),
    ]
    shown = plain(PlainView, events=events)
    assert "1. sky = look for each of x.places" in shown
    assert "2. art = paint if x.n > 3" in shown
    assert "step art (paint) is not needed: x.n > 3 does not hold." in shown
    assert "sky[" not in shown
    assert "sky[" not in live(events=events, height=60, width=160)


MARKDOWN = """# Levels

Two tanks **are full**.
The third <b>is</b> not.

- north
- south

| tank | level |
|------|-------|
| 1    | 2.5 m |

```python
print("a")

print("b")
```

Read [the manual](https://tank.example/manual)."""


@pytest.mark.parametrize("size", [None, 3, 1000])
def test_terminal_renders_markdown_of_streamed_and_whole_answers(size):
    parts = [MARKDOWN[n : n + size] for n in range(0, len(MARKDOWN), size)] if size else []
    shown = on_screen(width=80, events=[AnswerToken(text=part) for part in parts],
                      end=TurnResult("t1", "completed", answer=MARKDOWN))  # fmt: skip
    for syntax in ("#", "**", "```", "|--", "](", "- north"):
        assert syntax not in shown, syntax
    lines = [line.strip() for line in shown.splitlines()]
    for words in ("Levels", "Two tanks are full.", "The third <b>is</b> not.", 'print("b")'):
        assert lines.count(words) == 1, words
    assert any(line.endswith("north") for line in lines)
    assert any("1" in line and "2.5 m" in line for line in lines)
    assert "https://tank.example/manual" in shown


def test_pipe_and_plain_view_receive_markdown_as_it_is_written():
    end = TurnResult("t1", "completed", answer=MARKDOWN)
    assert MARKDOWN in plain(PlainView, events=[], end=end)
    assert MARKDOWN in plain(AnswerView, events=[], end=end)


def test_narrow_terminal_breaks_prose_between_words():
    words = "the station has not answered since yesterday evening " * 3
    end = TurnResult("t1", "partial", outcome={"notes": [words]}, answer=words)
    lines = on_screen(width=40, events=[PlanMade(plan=PLAN, repairs=[words])], end=end).split("\n")
    known = set(f"{words} note: repaired: {SKY} What".split())
    prose = [line for line in lines if "station" in line or "yesterday" in line]
    assert prose
    assert all(word in known for line in prose for word in line.split())


def test_clock_of_a_plain_view_continues_in_a_resumed_turn():
    out = io.StringIO()
    view = PlainView(Console(file=out, width=100))
    view.start_turn("Read", "t1", {})
    time.sleep(0.05)
    view.show_event(EVENTS[0])
    view.start_turn(None, "t1", {"planning_execution_plan": PLAN})
    view.show_event(EVENTS[0])
    times = [
        float(line[1:].partition("]")[0])
        for line in out.getvalue().splitlines()
        if line.startswith("[ ")
    ]
    assert times[1] >= times[0] > 0
