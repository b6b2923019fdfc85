"""Kills the scene's process at chosen moments, resumes it, and counts what was lost or repeated."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import scene

ROOT = Path(__file__).parents[2]
LAST_CHANCE = 300.0
"""Seconds after which a child hangs, however busy the machine is."""


class Zygote:
    """A process that forks the children; one at a time."""

    def __enter__(self) -> Zygote:
        environment = {**os.environ, "LANGSMITH_TRACING": "false", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.scene"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            process_group=0,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        # With all its children: one that a failed test left running would disturb the next.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, order: dict[str, Any]) -> int:
        """Begin a child; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def wait(self) -> int:
        """Wait for the child's end; returns its exit code, negative for a signal."""
        return self._read()

    def run(self, order: dict[str, Any], kill_after: float | None = None) -> int:
        """Run a child, kill it after some seconds if it has not ended."""
        pid = self.start(order)
        timer = threading.Timer(
            kill_after if kill_after is not None else LAST_CHANCE, _kill, args=(pid,)
        )
        timer.start()
        try:
            return self.wait()
        finally:
            timer.cancel()
            timer.join()

    def _read(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("The zygote ended.")
        return int(line)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@dataclass
class Tally:
    """What came of the faults of one kind.

    Attributes:
        tried: Faults.
        survived: Runs that came to the right end.
        lost: Effects that were reported and are not there, or were never done.
        repeated: Effects that happened more than once.
        asked: Unknown outcomes that a person was asked about.
        notes: What was wrong.
    """

    tried: int = 0
    survived: int = 0
    lost: int = 0
    repeated: int = 0
    asked: int = 0
    notes: list[str] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.tried += other.tried
        self.survived += other.survived
        self.lost += other.lost
        self.repeated += other.repeated
        self.asked += other.asked
        self.notes += other.notes
        return self

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, nothing repeated and every run came to its end."""
        return not (self.lost or self.repeated or self.survived != self.tried)


def judge(folder: Path, expected: dict[str, Any], tried: int, *, each: bool = False) -> Tally:
    """Compare the outside world and the answer with those of a run that was left alone."""
    scene.FOLDER = folder
    done = Counter(line.split()[0] for line in scene.lines("once"))
    booked = Counter(path.name.split("-")[1] for path in folder.glob("booked-*"))
    tally = Tally(tried=tried, asked=len(scene.lines("asked")))
    tally.repeated = sum(count - 1 for count in [*done.values(), *booked.values()])
    once, idempotent = scene.EFFECTS[each]
    reported = {key for key in scene.lines("reported") if key in once}
    wanted = {*once, *idempotent} | reported
    tally.lost = len(wanted - done.keys() - booked.keys())
    path = folder / "result"
    found = json.loads(path.read_text()) if path.exists() else {}
    same = all(
        found.get(key) == expected[key] for key in ("answer", "outcome", "contexts", "messages")
    )
    if same and not tally.lost and not tally.repeated:
        tally.survived = tried
    else:
        tally.notes.append(
            f"{folder}: once {dict(done)}, booked {dict(booked)}, same answer {same}"
        )
    return tally


def _ungoverned(result: dict[str, Any], tried: int) -> list[str]:
    """Say what the audit and the budget of a run should not say."""
    wrong = [] if result["valid"] else ["the chain of the audit is broken"]
    ended = Counter(e["effect"] for e in result["effects"] if e["status"] == "finished")
    begun = {e["effect"] for e in result["effects"] if e["status"] == "begun"}
    if strange := ended.keys() - begun:
        wrong.append(f"effects that nobody saw begin: {strange}")
    used = scene.STEPS_ALLOWED - result["budget_left"]["steps"]
    # Eight steps and their further tries; a process that dies takes with it what at most three began.
    again = scene.lines("retried")
    if not 9 <= used <= 8 + len(again) + 3 * tried:
        wrong.append(f"the budget counted {used} tries of steps after {tried} kills: {again}")
    return wrong


class Killer:
    """Kills at chosen moments and sees the thread to its end.

    Args:
        zygote: Forks the children.
        url: Template of the database's URL; ``{folder}`` is where a run acts.
        folder: Where the runs act.
        rng: Chooses the moments.
        governed: Whether all that an operator can put around a step stands around each.
        each: Whether steps run over a list.
    """

    def __init__(
        self,
        zygote: Zygote,
        url: str,
        folder: Path,
        rng: random.Random,
        *,
        governed: bool = False,
        each: bool = False,
    ) -> None:
        self._zygote = zygote
        self._governed = governed
        self._each = each
        self._url = url
        self._folder = folder
        self._rng = rng
        self._number = 0
        zygote.run(self.order())
        began = time.monotonic()
        order = self.order()
        code = zygote.run(order)
        self.seconds = time.monotonic() - began
        if code != 0:
            raise RuntimeError((Path(order["folder"]) / "log").read_text()[-2000:])
        self.expected: dict[str, Any] = json.loads((Path(order["folder"]) / "result").read_text())

    @property
    def instants(self) -> int:
        """How many instants a run that is left alone passes."""
        return int(self.expected["instants"])

    def at_instants(self, *fatal: int) -> Tally:
        """Kill at one instant after the other, then leave the run alone."""
        order = self.order()
        tried = 0
        for instant in fatal:
            tried += self._zygote.run({**order, "fatal": instant}) == -signal.SIGKILL
        return self.to_the_end(order, tried)

    def at_random(self, kills: int) -> Tally:
        """Kill at random moments, then leave the run alone."""
        tried = 0
        while not tried:
            order = self.order()
            for _ in range(kills):
                delay, began = self._rng.uniform(0.0, self.seconds), time.monotonic()
                code = self._zygote.run(order, kill_after=delay)
                if code == 0:
                    # It was faster than the one that was measured: the next ones may be too.
                    self.seconds = min(self.seconds, time.monotonic() - began)
                    break
                tried += code == -signal.SIGKILL
        return self.to_the_end(order, tried)

    def to_the_end(self, order: dict[str, Any], tried: int) -> Tally:
        """Leave a run alone, and compare what came of it."""
        folder = Path(order["folder"])
        code = self._zygote.run(order)
        tally = judge(folder, self.expected, tried, each=self._each)
        if self._governed and code == 0:
            tally.notes += _ungoverned(json.loads((folder / "result").read_text()), tried)
            tally.survived = 0 if tally.notes else tally.survived
        if code != 0:
            tally.survived = 0
            tally.notes.append(f"{folder}: exit {code}: {(folder / 'log').read_text()[-600:]}")
        return tally

    def order(self, **more: Any) -> dict[str, Any]:
        """Describe a new run: a thread and a folder of its own."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir(parents=True)
        url = self._url.replace("{folder}", str(folder))
        more = {"governed": self._governed, "each": self._each, **more}
        return {"folder": str(folder), "url": url, "thread": f"{folder}", **more}
