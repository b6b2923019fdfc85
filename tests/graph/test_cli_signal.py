"""``capgraph signal`` on a real graph and a real SQLite file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import project, together

MODULE = '''
from capgraph import capability_node

@capability_node
async def ship(amount: float = 0.0) -> str:
    """Ships an order."""
    return f"Shipped for {amount}."
'''
PLAN = {
    "steps": [
        {
            "context_key": "parcel",
            "capability": "ship",
            "wait_for": "paid",
            "parameters": {"amount": {"$from": "signal.amount"}},
        }
    ]
}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def capgraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    files = {"shippers.py": MODULE, "capgraph.yml": "modules: [shippers]\n"}
    files["plan.json"] = json.dumps(PLAN)
    with project(tmp_path, monkeypatch, files):
        yield together(capsys)


def test_a_turn_waits_is_listed_and_woken(capgraph: Run) -> None:
    code, out = capgraph("ask", "Ship it when it is paid", "--plan", "plan.json", "--thread", "t")
    assert code == 4, out
    assert "step parcel waits for 'paid', at the latest until " in out
    assert "outcome: waiting for an event or a time" in out
    assert "\twaiting\t" in capgraph("threads", "list")[1]
    assert "parcel waits for 'paid'" in capgraph("threads", "show", "t")[1]
    assert capgraph("approvals", "waiting")[1] == ""
    code, out = capgraph("ask", "--thread", "t")  # nothing came
    assert code == 4
    code, out = capgraph("ask", "What else?", "--thread", "t")
    assert code == 2
    assert "unfinished turn" in out
    assert capgraph("signal", "t", "other")[1] == "Stored: no step waits for it yet.\n"
    code, out = capgraph("signal", "t", "paid", '{"amount": 30}')
    assert code == 0, out
    assert "step parcel resumes: received 'paid'" in out
    assert "Shipped for 30.0." in out
    code, out = capgraph("signal", "t", "paid", "again")
    assert (code, out) == (0, "Stored: no step waits for it yet.\n")
    assert capgraph("signal", "nowhere", "paid")[0] == 2


def test_a_signal_may_be_left_to_whoever_serves_the_thread(capgraph: Run) -> None:
    capgraph("ask", "Ship it", "--plan", "plan.json", "--thread", "t")
    out = capgraph("signal", "t", "paid", '{"amount": 2}', "--later")[1]
    assert out == "The waiting step can continue.\n"
    code, out = capgraph("ask", "--thread", "t")
    assert code == 0
    assert "Shipped for 2.0." in out


def test_json_ends_with_the_result(capgraph: Run) -> None:
    code, out = capgraph("ask", "Ship it", "--plan", "plan.json", "--thread", "t", "--json")
    assert code == 4
    last = json.loads(out.splitlines()[-1])
    assert last["status"] == "waiting"
    assert last["outcome"]["waiting"]["parcel"]["for"] == "paid"
    assert "questions" not in last
