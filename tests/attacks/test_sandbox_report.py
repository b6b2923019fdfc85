"""A report of the sandbox that code inside of it has forged."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from capgraph.capabilities._sandbox.limits import SandboxLimits, SandboxOutcome
from capgraph.capabilities._sandbox.process import _SandboxProcess

READY = b'{"event": "ready", "layers": {}}\n'
SIZE = 21_000_000


def judged(written: bytes) -> SandboxOutcome:
    run = _SandboxProcess("namespaces", SandboxLimits())
    try:
        run.messages.write(written)
        run.messages.flush()
        return run.outcome()
    finally:
        run.close()


@pytest.mark.parametrize(
    "forged",
    [
        b"{}\n" * (SIZE // 3),
        READY + b'{"event": "done", "result": [' + b"[]," * (SIZE // 3) + b"0]}\n",
        READY + b'{"event": "done", "result": [' + b"1," * (SIZE // 2) + b"0]}\n",
        READY + b'{"event": "done", "figures": [' + b"{}," * (SIZE // 3) + b"0]}\n",
        READY + b'{"event": "ready", "layers": {"a": [' + b"{}," * (SIZE // 3) + b"0]}}\n",
        b"\r" * SIZE,
        b"\n" * SIZE,
    ],
    ids=["lines", "lists", "numbers", "figures", "layers", "returns", "breaks"],
)
def test_a_forged_report_costs_little(forged: bytes) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        outcome = judged(forged)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome.error is not None
    assert outcome.result is None
    assert time.thread_time() - began < 5
    assert peak < 8 * SIZE


@pytest.mark.parametrize(
    "result", [{"a": [1, 2, {"b": "c, [d] {e}"}]}, list(range(100_000)), "x" * 900_000]
)
def test_a_true_report_is_read(result: Any) -> None:
    done = json.dumps({"event": "done", "result": result, "figures": [], "rejected": []})
    assert judged(READY + done.encode() + b"\n").result == result


@pytest.mark.parametrize(
    "forged",
    [
        b'{"event": "broken", "stage": "s", "message": "' + b"x" * SIZE + b'"}\n',
        b'{"event": "broken", "message": "\\u202e\\u001b[2J", "stage": '
        + b"[" * 900
        + b"]" * 900
        + b"}\n",
        READY + b'{"event": "ready", "layers": {"a": "' + b"x" * SIZE + b'"}}\n',
        READY
        + b'{"event": "done", "rejected": ['
        + b",".join(b'{"name": "%d", "reason": "no"}' % n for n in range(200_000))
        + b"]}\n",
        READY + b'{"event": "failed", "line": ' + b"7" * 4000 + b"}\n",
        READY + b'{"event": "failed", "message": "' + b"x" * SIZE + b'"}\n',
        READY + b'{"event": "done", "result": 0.' + b"1" * SIZE + b"}\n",
    ],
    ids=["error", "control", "layers", "rejected", "line", "failure", "digits"],
)
def test_no_field_of_a_forged_report_is_long(forged: bytes) -> None:
    shown = judged(forged).model_dump_json()
    assert len(shown) < 10_000
    assert "\u202e" not in shown
    assert "\\u001b" not in shown
