"""``capgraph ask`` and what looks at its threads, on a real graph and a real SQLite file."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.commands import project, typed

TOYS = Path(__file__).with_name("cli_toys.py")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    for name in ("TOY_FAIL", "TOY_APPROVAL", "TOY_GATE"):
        monkeypatch.delenv(name, raising=False)
    config = "name: toy painter\nmodules: [toys]\n"
    files = {"toys.py": TOYS.read_text(), "capgraph.yml": config}
    with project(tmp_path, monkeypatch, files) as folder:
        yield folder


@pytest.fixture
def capgraph(home, capsys):
    return typed(capsys)


@pytest.fixture
def log(home):
    return lambda: (home / "log").read_text().splitlines() if (home / "log").exists() else []


def events(out):
    return [json.loads(line) for line in out.splitlines()]


def result(out):
    return events(out)[-1]


def test_a_question_is_answered_line_by_line_in_a_pipe(capgraph):
    code, out, err = capgraph("ask", "Look at the sky and paint a picture", "--thread", "t1")
    assert (code, err) == (0, "")
    for words in ("thread: t1", "capabilities: ", "plan 1: 2 step(s)", "step sky (look) finished",
                  "answer:\nThe sky was painted \\x1b[31mred", "file: /pictures/sky-10.png",
                  "outcome: completed"):  # fmt: skip
        assert words in out, words
    assert "\x1b" not in out


def test_json_events_end_with_the_result(capgraph):
    code, out, _ = capgraph("ask", "What colour is the sky?", "--json")
    assert code == 0
    kinds = [event["event_type"] for event in events(out)]
    assert kinds.index("plan_made") < kinds.index("step_started") < kinds.index("step_finished")
    assert result(out)["answer"] == "The sky is blue."
    assert result(out)["outcome"]["status"] == "completed"


def test_quiet_prints_the_answer(capgraph):
    assert capgraph("ask", "What colour is the sky?", "-q") == (0, "The sky is blue.\n", "")


def test_a_timeline_is_drawn(capgraph, home):
    capgraph("ask", "What colour is the sky?", "--timeline", "run.svg")
    drawn = "".join(ElementTree.parse(home / "run.svg").getroot().itertext())
    assert "sky (look)" in drawn.replace("\xa0", " ")


def test_a_plan_file_runs_as_it_is(capgraph, home, log):
    plan = {"steps": [{"context_key": "mine", "capability": "look"},
                      {"context_key": "art", "capability": "paint", "parameters": {"width": 7},
                       "inputs": [{"SKY": "mine"}]}]}  # fmt: skip
    (home / "plan.json").write_text(json.dumps(plan))
    code, out, _ = capgraph("ask", "--plan", "plan.json", "--json")
    assert code == 0
    assert result(out)["files"] == ["/pictures/sky-7.png"]
    code, out, _ = capgraph("graph", "--plan", "plan.json", "--mermaid")
    assert code == 0
    assert "mine<br/>look" in out
    _, out, _ = capgraph("graph", "--plan", "plan.json")
    assert out.splitlines()[1:] == ["└── mine  look", "    └── art  paint"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask"], "The question is missing"),
        (["ask", "x", "--config", "no.yml"], "'no.yml' cannot be read"),
        (["ask", "x", "--data", "no.csv"], "'no.csv' does not exist"),
        (["ask", "x", "--data", "toys.py"], "no provided context type"),
        (["ask", "x", "--plan", "no.json"], "'no.json' cannot be read"),
        (["ask", "x", "--thread", "a\nb"], "thread id"),
        (["ask", "x", "--db", "mysql://h/x"], "'mysql://h/x'"),
        (["ask", "x", "--db", "no/folder/x.db"], "no/folder/x.db"),
        (["ask", "/never"], "'/never' is unknown"),
        (["graph", "--thread", "none"], "'none' has no plan"),
        (["graph", "--thread", "a", "--plan", "b"], "--plan cannot be combined with --thread"),
        (["threads", "show", "none"], "'none' does not exist"),
        (["threads", "prune"], "No threads are selected"),
        (["threads", "fork", "none"], "'none' does not exist"),
        (["approvals", "revoke", "none"], "standing rule 'none'"),
        (["approvals", "allow", "none"], "The capability 'none' is not registered"),
        (["new", "project", "x y"], "Invalid name 'x y'"),
    ],
)
def test_every_mistake_is_one_clean_message(capgraph, arguments, words):
    code, out, err = capgraph(*arguments)
    assert code == 2
    assert err.startswith("Error: ")
    assert words in err
    assert "Fix:" in err
    assert "Traceback" not in out + err


def test_options_that_do_not_exist_are_a_usage_error(capgraph):
    assert capgraph("ask", "x", "--nonsense")[0] == 2
    assert capgraph("nonsense")[0] == 2


def test_help_names_the_exit_codes(capgraph):
    code, out, _ = capgraph("--help")
    assert code == 0
    assert "130 interrupted" in " ".join(out.split())


def test_a_failed_turn_has_its_own_code_and_no_traceback(capgraph, monkeypatch):
    monkeypatch.setenv("TOY_FAIL", "critical")
    code, out, err = capgraph("ask", "Paint the sky")
    assert code == 1
    assert "outcome: failed" in out
    assert "The brush broke." in out
    assert err == ""


def test_a_fatal_failure_is_told_and_not_thrown(capgraph, monkeypatch):
    monkeypatch.setenv("TOY_FAIL", "fatal")
    code, out, err = capgraph("ask", "Paint the sky", "--json")
    assert code == 1
    assert "The house burns." in result(out)["error"]["message"]
    assert "Traceback" not in out + err


def test_a_retry_is_shown(capgraph, monkeypatch):
    monkeypatch.setenv("TOY_FAIL", "once")
    code, out, _ = capgraph("ask", "Paint the sky")
    assert code == 0
    assert "retry picture: attempt 2 of 3" in out
    assert "step picture (paint) started, attempt 2" in out


def test_a_limit_has_its_own_code(capgraph, home, monkeypatch):
    (home / "capgraph.yml").write_text("modules: [toys]\nlimits: {run_timeout_seconds: 0.3}\n")
    monkeypatch.setenv("TOY_GATE", str(home / "never opened"))
    code, out, _ = capgraph("ask", "Paint the sky")
    assert code == 5
    assert "outcome: stopped by a limit" in out


def test_a_waiting_run_is_left_and_taken_up_with_yes(capgraph, monkeypatch, log):
    monkeypatch.setenv("TOY_APPROVAL", "1")
    code, out, _ = capgraph("ask", "Paint the sky", "--thread", "t1")
    assert code == 4
    assert "May step picture (paint) run?" in out
    assert "resume with: capgraph ask --thread t1" in out
    assert log() == ["look"]
    code, out, _ = capgraph("ask", "--thread", "t1", "--json")
    assert code == 4
    assert [q["type"] for q in result(out)["questions"].values()] == ["approval"]
    code, out, _ = capgraph("ask", "--thread", "t1", "--yes", "--json")
    assert code == 0
    assert log() == ["look", "paint began", "paint ended 10"]
    kinds = [e["event_type"] for e in events(out)]
    assert (kinds.count("result"), kinds.count("approval_asked")) == (1, 0)


def test_yes_from_the_start_asks_nobody(capgraph, monkeypatch, log):
    monkeypatch.setenv("TOY_APPROVAL", "1")
    code, _out, _ = capgraph("ask", "Paint the sky", "--yes")
    assert code == 0
    assert log() == ["look", "paint began", "paint ended 10"]


def test_no_rejects_and_nothing_runs(capgraph, monkeypatch, log):
    monkeypatch.setenv("TOY_APPROVAL", "1")
    code, out, _ = capgraph("ask", "Paint the sky", "--no")
    assert code == 1
    assert log() == ["look"]
    assert "rejected" in out


def test_an_answer_in_words_is_taken_for_the_open_question(capgraph, monkeypatch, log):
    monkeypatch.setenv("TOY_APPROVAL", "1")
    capgraph("ask", "Paint the sky", "--thread", "t1")
    code, out, _ = capgraph("ask", "perhaps", "--thread", "t1")
    assert code == 4
    assert "problem: " in out
    assert capgraph("ask", "yes", "--thread", "t1")[0] == 0
    assert log()[-1] == "paint ended 10"


def test_a_thread_goes_on_with_what_it_knows(capgraph, log):
    capgraph("ask", "What colour is the sky?", "--thread", "t1")
    code, out, _ = capgraph("ask", "Paint a picture", "--thread", "t1", "--json")
    assert code == 0
    assert log()[-1] == "paint ended 10"
    _, out, _ = capgraph("threads", "show", "t1", "--json")
    said = [message["text"] for message in json.loads(out)["conversation"]]
    assert said[:3] == ["What colour is the sky?", "The sky is blue.", "Paint a picture"]


def test_threads_are_listed_shown_forked_and_dropped(capgraph):
    capgraph("ask", "What colour is the sky?", "--thread", "one")
    capgraph("ask", "Paint the sky", "--thread", "two")
    _, out, _ = capgraph("threads", "list", "--json")
    assert [(t["thread_id"], t["status"]) for t in json.loads(out)] == [
        ("two", "completed"),
        ("one", "completed"),
    ]
    _, out, _ = capgraph("threads", "list")
    assert out.startswith("two\tcompleted\t")
    _, out, _ = capgraph("threads", "show", "one")
    assert "you> What colour is the sky?" in out
    assert "agent> The sky is blue." in out
    assert capgraph("threads", "fork", "one", "copy")[:2] == (0, "copy\n")
    _, out, _ = capgraph("threads", "show", "copy", "--json")
    assert json.loads(out)["conversation"][1] == {"from": "ai", "text": "The sky is blue."}
    assert capgraph("threads", "fork", "one", "two")[0] == 2
    _, out, _ = capgraph("threads", "list", "--limit", "1", "--after", "two", "--json")
    assert [t["thread_id"] for t in json.loads(out)] == ["one"]
    assert capgraph("threads", "prune", "one")[:2] == (0, "one\n")
    assert capgraph("ask", "Paint the sky", "--thread", "one")[0] == 0
    assert capgraph("threads", "prune", "one", "copy", "--delete", "--yes")[0] == 0
    _, out, _ = capgraph("threads", "list", "--json")
    assert [t["thread_id"] for t in json.loads(out)] == ["two"]


def test_what_the_settings_keep_is_kept(capgraph, monkeypatch):
    for turn in ("first", "second", "third"):
        capgraph("ask", f"Paint the sky, {turn}", "--thread", "one")
    monkeypatch.setenv("CAPGRAPH_PERSISTENCE__KEEP_TURNS", "2")
    assert capgraph("threads", "prune")[:2] == (0, "one\n")
    _, out, _ = capgraph("threads", "show", "one", "--json")
    assert len(json.loads(out)["conversation"]) == 6
    monkeypatch.setenv("CAPGRAPH_PERSISTENCE__KEEP_DAYS", "0.0000001")
    assert capgraph("threads", "prune", "--yes")[:2] == (0, "one\n")
    _, out, _ = capgraph("threads", "list", "--json")
    assert json.loads(out) == []


def test_a_run_is_drawn(capgraph, monkeypatch):
    monkeypatch.setenv("TOY_FAIL", "critical")
    capgraph("ask", "Paint the sky", "--thread", "t1")
    code, out, _ = capgraph("graph", "--thread", "t1", "--mermaid")
    assert code == 0
    assert "✓ sky<br/>look" in out
    assert "✗ picture<br/>paint" in out
    _, out, _ = capgraph("graph", "--thread", "t1")
    assert "└── ✓ sky  look" in out
    assert "✗ picture  paint" in out


def test_the_agent_is_drawn_and_listed(capgraph):
    _, out, _ = capgraph("graph", "--mermaid")
    assert out.startswith("---") or "graph TD" in out
    assert "paint" in out
    _, out, _ = capgraph("graph")
    assert "paint  SKY → PICTURE" in out
    _, out, _ = capgraph("capabilities", "--json")
    assert json.loads(out)[1] == {
        "name": "paint",
        "description": "Paint a picture of the sky.",
        "needs": ["SKY"],
        "gives": ["PICTURE"],
        "effect": "none",
        "approval": "no",
    }


def test_standing_rules_are_made_listed_and_revoked(capgraph):
    code, out, _ = capgraph(
        "approvals", "allow", "paint", "--thread", "t1", "--for", "7d", "--reason", "dull"
    )
    assert code == 0
    rule = out.strip()
    _, out, _ = capgraph("approvals", "list", "--json")
    assert [(r["id"], r["capability"], r["thread_id"], r["reason"]) for r in json.loads(out)] == [
        (rule, "paint", "t1", "dull")
    ]
    assert "thread t1" in capgraph("approvals", "list")[1]
    assert capgraph("approvals", "revoke", rule[:6])[:2] == (0, f"{rule}\n")
    assert capgraph("approvals", "list", "--json")[1] == "[]\n"


def test_check_finds_nothing_wrong_here(capgraph):
    code, out, _ = capgraph("check", "--json")
    assert code == 0
    assert {f["area"]: f["level"] for f in json.loads(out)}["database"] == "ok"
    assert not [f for f in json.loads(out) if f["level"] == "error"]


@pytest.mark.parametrize(
    ("config", "area", "words"),
    [
        ("modules: [toys, no_such]", "registry", "no_such"),
        ("modles: [toys]", "configuration", "modles"),
        ("modules: [toys]\nexclude: [look]", "registry", "requires 'SKY'"),
        ("modules: [toys]\ncontext: {SKY: {a: {colour: 3}}}", "configuration", "SKY.a"),
        (
            "modules: [toys]\npersistence: {url: 'sqlite:///no/such/folder/x.db'}",
            "database",
            "no/such",
        ),
        ("modules: [toys]\nmodel: 'openai:gpt-5-mini'", "models", "API key"),
    ],
)
def test_check_says_what_is_wrong_and_how_to_mend_it(capgraph, home, config, area, words):
    (home / "capgraph.yml").write_text(config)
    code, out, _ = capgraph("check", "--json", "--no-ask-models")
    assert code == 2
    wrong = [f for f in json.loads(out) if f["level"] == "error"]
    assert [f["area"] for f in wrong] == [area]
    assert words in wrong[0]["text"] + wrong[0]["fix"]
    assert wrong[0]["fix"] or "Fix:" in wrong[0]["text"]


def test_a_secret_of_the_settings_is_not_shown(capgraph, home, monkeypatch):
    (home / "capgraph.yml").write_text("modules: [toys]\nsecrets: [brush broke]\n")
    monkeypatch.setenv("TOY_FAIL", "critical")
    code, out, err = capgraph("ask", "Paint the sky", "--thread", "t1", "--json")
    assert code == 1
    assert "The ***." in out
    assert "brush broke" not in out + err
    _, out, _ = capgraph("threads", "show", "t1", "--json")
    assert "The ***." in out
    assert "brush broke" not in out


@pytest.mark.row("A1")
def test_two_people_agree_from_two_terminals(capgraph, monkeypatch, log):
    monkeypatch.setenv("TOY_APPROVAL", "two")
    question = "Look at the sky and paint a picture"
    assert capgraph("ask", question, "--thread", "t1", "--as", "ann")[0] == 4
    _, out, _ = capgraph("approvals", "waiting")
    assert "t1" in out
    assert "2 people, not the requester" in out
    assert capgraph("ask", "--thread", "t1", "--yes", "--as", "ann")[0] == 4
    assert capgraph("ask", "--thread", "t1", "--yes", "--as", "bob")[0] == 4
    _, out, _ = capgraph("approvals", "waiting")
    assert "bob" in out
    assert "1 person, not the requester" in out
    assert "paint began" not in log()
    assert capgraph("ask", "--thread", "t1", "--yes", "--as", "carol")[0] == 0
    assert "paint began" in log()
    assert capgraph("approvals", "waiting") == (0, "", "")
