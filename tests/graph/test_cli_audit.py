"""``capgraph audit``: what a person does with the chain of a database."""

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.commands import project, typed

ACTS = '''
from capgraph import BaseCapability, CapabilityContext, capability_node


class Sent(CapabilityContext):
    text: str


@capability_node(examples=["send, please"], effect="once")
async def send() -> Sent:
    """Send a letter, "quoted", to Ms Miller."""
    return Sent(text="dear, Ms Miller")
'''


@pytest.fixture
def capgraph(tmp_path, monkeypatch, capsys):
    config = "name: audited\nmodules: [acts]\naudit: {keep: true, signing_key: k}\n"
    with project(tmp_path, monkeypatch, {"acts.py": ACTS, "capgraph.yml": config}):
        yield typed(capsys)


@pytest.fixture
def asked(capgraph):
    code, out, err = capgraph(
        "ask", "Send, please: a secret", "--db", "t.db", "--thread", "t1", "-q"
    )
    assert code == 0, (out, err)
    return capgraph


def test_a_chain_that_holds(asked):
    code, out, _ = asked("audit", "verify", "--db", "t.db")
    assert code == 0
    assert "valid" in out
    code, head, _ = asked("audit", "anchor", "--db", "t.db")
    assert code == 0
    assert len(head.strip()) == 64
    assert int(head, 16)
    assert asked("ask", "Send, please", "--db", "t.db", "-q")[0] == 0
    assert asked("audit", "verify", "--db", "t.db", "--anchor", head.strip())[0] == 0
    code, out, _ = asked("audit", "verify", "--db", "t.db", "--anchor", "ab" * 32)
    assert code == 1
    assert "not in the chain" in out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE capgraph_audit SET line = replace(line, 'begun', 'ended')",
        "DELETE FROM capgraph_audit WHERE seq = (SELECT max(seq) FROM capgraph_audit)",
    ],
)
def test_a_chain_that_was_changed(asked, statement, tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as conn:
        conn.execute(statement)
    conn.close()
    code, out, _ = asked("audit", "verify", "--db", "t.db")
    assert code == 1
    assert "is invalid" in out
    assert asked("audit", "anchor", "--db", "t.db")[0] == 1


@pytest.mark.row("T35")
def test_the_export_is_read_by_others(asked):
    code, out, _ = asked("audit", "export", "--db", "t.db")
    assert code == 0
    records = json.loads(out)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    code, text, _ = asked("audit", "export", "--format", "csv", "--db", "t.db")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [json.loads(row["data"]) for row in rows] == [record["data"] for record in records]
    assert {row["thread_id"] for row in rows} == {"t1"}
    assert all(line.startswith('"') for line in text.splitlines())


@pytest.mark.row("T35")
def test_a_thread_is_shown_without_content(asked):
    code, out, _ = asked("audit", "show", "t1", "--db", "t.db")
    assert code == 0
    assert "effect" in out
    assert "begun" in out
    assert "capability=send" in out or "send" in out
    for content in ("Miller", "secret", "dear"):
        assert content not in out
    _, out, told = asked("audit", "show", "other", "--db", "t.db")
    assert (out, "no records of thread 'other'" in told) == ("", True)
    assert asked("stop", "t1", "--db", "t.db")[0] == 0
    assert asked("ask", "Send, please", "--db", "t.db", "--thread", "t1", "-q")[0] != 0
    assert "code=CG-STOPPED" in asked("audit", "show", "t1", "--db", "t.db")[1]


def test_an_empty_database_holds(capgraph):
    Path("none.db").touch()
    assert capgraph("audit", "verify", "--db", "none.db")[0] == 0
    assert capgraph("audit", "export", "--db", "none.db")[1] == "[]\n"


@pytest.mark.parametrize("db", ["typo.db", "sqlite:///typo.db"])
def test_no_database_is_made_where_one_is_read(capgraph, db):
    for words in (
        "audit verify",
        "stop t",
        "usage",
        "threads list",
        "graph --thread t",
        "signal t k",
    ):
        code, out, err = capgraph(*words.split(), "--db", db)
        assert (code, "does not exist" in out + err) == (2, True), words
    code, out, err = capgraph("check", "--db", db)
    assert (code, "does not exist" in out + err) == (0, True)
    assert not Path("typo.db").exists()
