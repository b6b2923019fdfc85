"""Questions of a waiting run."""

import io

import pytest
from rich.console import Console

from capgraph.cli import questions
from capgraph.cli.questions import answer_all, ask_all, question_lines

STEP = {
    "context_key": "mail",
    "capability": "send",
    "description": "Send mail.",
    "effect": "once",
    "task_objective": "Tell \x1b[31mthem",
    "parameters": {"to": "all", "copies": 2},
    "inputs": [{"TEXT": "draft"}],
    "kind": "step",
    "decisions": ["approve", "edit", "reject", "respond"],
}
UNKNOWN = {
    **STEP,
    "kind": "unknown_outcome",
    "reason": "It had started.",
    "decisions": ["rerun", "skip", "reject"],
}


def asked(*steps, **more):
    return {"i1": {"type": "approval", "steps": list(steps), **more}}


def answer(monkeypatch, question, *typed):
    lines = iter(typed)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    out = io.StringIO()
    found = ask_all(question, Console(file=out, width=100, markup=False))
    assert next(lines, "all read") == "all read"
    return found["i1"], out.getvalue()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["a"], {"decision": "approve"}),
        (["always"], {"decision": "approve", "remember": {"scope": "thread"}}),
        (["everywhere"], {"decision": "approve", "remember": {"scope": "everywhere"}}),
        (["YES"], {"decision": "approve"}),
        (["r", "too many"], {"decision": "reject", "reason": "too many"}),
        (["n", ""], {"decision": "reject", "reason": ""}),
        (["s", "", "Not today."], {"decision": "respond", "message": "Not today."}),
        (["what?", "rerun", "a"], {"decision": "approve"}),
        (
            ["e", '{"copies": 1}', ""],
            {"decision": "edit", "parameters": {"to": "all", "copies": 1}},
        ),
        (
            ["e", "copies", "[1]", "{broken", '{"to": null}', ""],
            {"decision": "edit", "parameters": {"copies": 2}},
        ),
        (
            ["e", "copies = 3", "to = 7", ""],
            {"decision": "edit", "parameters": {"to": "7", "copies": 3}},
        ),
    ],
)
def test_each_decision_can_be_entered(monkeypatch, typed, expected):
    found, _ = answer(monkeypatch, asked(STEP), *typed)
    assert found == {"mail": expected}


def test_each_step_of_a_question_is_answered(monkeypatch):
    found, _ = answer(monkeypatch, asked(STEP, {**STEP, "context_key": "post"}), "a", "r", "no")
    assert found == {
        "mail": {"decision": "approve"},
        "post": {"decision": "reject", "reason": "no"},
    }


def test_unknown_outcome_offers_its_decisions(monkeypatch):
    found, shown = answer(monkeypatch, asked(UNKNOWN), "a", "again")
    assert found == {"mail": {"decision": "rerun"}}
    assert "It had started." in shown
    assert "Use one of: rerun, skip, reject." in shown


def test_done_decision_takes_outputs(monkeypatch):
    unknown = {**UNKNOWN, "decisions": ["rerun", "skip", "done", "reject"]}
    assert answer(monkeypatch, asked(unknown), "d", "")[0] == {
        "mail": {"decision": "done", "outputs": {}}
    }
    found, _ = answer(monkeypatch, asked(unknown), "always", "done", "no", '{"SENT": {"n": 1}}')
    assert found == {"mail": {"decision": "done", "outputs": {"SENT": {"n": 1}}}}


def test_plan_is_shown_and_replaced_from_a_file(monkeypatch, tmp_path):
    steps = [
        {"context_key": "a", "capability": "look", "parameters": {"at": "\x1b[2J"}},
        {"context_key": "b", "capability": "paint", "inputs": [{"SKY": "a"}]},
    ]
    plan = {**STEP, "context_key": "plan", "kind": "plan", "parameters": {"steps": steps}}
    file = tmp_path / "plan.json"
    file.write_text('{"steps": [{"context_key": "c", "capability": "look"}]}')
    found, shown = answer(monkeypatch, asked(plan), "always", "e", "no.json", str(file))
    new = [{"context_key": "c", "capability": "look"}]
    assert found == {"plan": {"decision": "edit", "steps": new}}
    assert "2. b = paint" in shown
    assert "inputs: SKY from a" in shown
    assert "\x1b[2J" not in shown
    assert "'no.json' cannot be read" in shown


def test_question_is_shown_safely_and_completely(monkeypatch):
    _, shown = answer(monkeypatch, asked(STEP, problems=["parameters.to: no \x1b[31m"]), "a")
    for words in ("mail (send)", "effect: once", "TEXT from draft", "copies = 2", "problem: "):
        assert words in shown
    assert "\x1b[31m" not in shown


def test_custom_interrupt_takes_a_line_of_text(monkeypatch):
    found, shown = answer(monkeypatch, {"i1": "Which city?"}, "Rome")
    assert (found, "Which city?" in shown) == ("Rome", True)
    assert question_lines("Which city?") == ["Which city?"]


def test_yes_and_no_options_answer_every_step():
    assert answer_all(asked(STEP), approve=True) == {"i1": {"mail": {"decision": "approve"}}}
    assert answer_all(asked(STEP), approve=False) == {
        "i1": {"mail": {"decision": "reject", "reason": "rejected with --no"}}
    }


def test_yes_never_repeats_an_effect_of_unknown_outcome():
    assert answer_all(asked(STEP, UNKNOWN), approve=True) is None
    assert answer_all({"i1": "Which city?"}, approve=True) is None


def test_ctrl_c_is_not_swallowed(monkeypatch):
    def interrupt(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    with pytest.raises(KeyboardInterrupt):
        questions.ask_all(asked(STEP), Console(file=io.StringIO()))


def test_approver_sees_all_details(monkeypatch):
    code = "print(1)\n" * 3000 + "print('the end')"
    steps = [
        {
            "context_key": "a",
            "capability": "python",
            "task_objective": "Count " + "very " * 400 + "carefully",
            "parameters": {"code": code},
            "when": {"step": "b"},
        }
    ]
    plan = {**STEP, "context_key": "plan", "kind": "plan", "parameters": {"steps": steps}}
    for entry in (plan, {**STEP, **steps[0], "task_objective": "Count to the end carefully"}):
        _, shown = answer(monkeypatch, asked(entry), "a")
        flat = " ".join(shown.split())
        assert "the end')" in flat
        assert flat.count("print(1)") == 3000
        assert "carefully" in flat
    shown = "\n".join(question_lines(asked(plan)["i1"]))
    assert '"step": "b"' in shown


def test_deceptive_characters_are_escaped(monkeypatch):
    step = {**STEP, "parameters": {"to": "pay\u200bpal\u3164\u00ad"}, "description": "a\u2066b"}
    _, shown = answer(monkeypatch, asked(step), "a")
    assert "pay\\u200bpal\\u3164\\xad" in shown
    assert "a\\u2066b" in shown
