"""What the benchmark of workers writes into the guide."""

from __future__ import annotations

import argparse
import os

from tests.benchmarks.scale import Result, cpu_of, told


def test_figures_stand_beside_one_process_and_say_what_gives_way_first() -> None:
    plain = Result("one process", 50, 0.02, 0.05, 0, 20, 5, 0, 20)
    postgres = Result("PostgreSQL, 1 worker", 30, 0.04, 0.09, 1, 28, 8.5, 0, 40)
    temporal = Result("Temporal, 1 worker", 10, 0.1, 0.2, 2, 40, 8, 30, 44)
    options = argparse.Namespace(turns=2000, busy=None, temporal_file=False)
    text = told([plain, postgres, temporal], options)
    assert "2,000 turns of six steps" in text
    assert "it keeps what it knows in memory" in text
    assert (
        "| PostgreSQL, 1 worker | 30 | 40 ms | 90 ms | 1.0 | 28.0 | 8.5 | 0.0 | 1.50 | 1.50 |"
        in text
    )
    assert (
        "| Temporal, 1 worker | 10 | 100 ms | 200 ms | 2.0 | 40.0 | 8.0 | 30.0 | 3.20 | 3.20 |"
        in text
    )
    assert "40,000 commits a second. What gives way first is the database" in text
    assert "What gives way first is Temporal's server" in text


def test_the_processor_of_a_process_and_its_children_is_read() -> None:
    assert 0 < cpu_of(os.getpid()) <= cpu_of(os.getpid(), tree=True)
    assert cpu_of(2**22 + 1) == 0
