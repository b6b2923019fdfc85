"""``capgraph chat`` and ``ask`` on a terminal of their own."""

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import PATIENCE
from tests.support.screens import draw_screen

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).with_name("cli_toys.py")

pty = pytest.importorskip("pty", reason="needs a POSIX terminal")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
pytestmark = pytest.mark.timeout(600)


class Terminal:
    """A command on a pseudo-terminal, read and typed as a person does."""

    def __init__(self, folder, *arguments, columns=120, **toys):
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_DATA_HOME": str(folder / "data"),
            "TOY_LOG": str(folder / "log"),
            "TERM": "xterm",
            "COLUMNS": str(columns),
            "LINES": "50",
            **{f"TOY_{name.upper()}": str(value) for name, value in toys.items()},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "capgraph", *arguments],
            cwd=folder,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(other)
        self.shown = ""
        self._seen = 0

    def expect(self, words, seconds=PATIENCE):
        """Wait for words that come after those that were expected before."""
        end = time.monotonic() + seconds
        while (found := self.text.find(words, self._seen)) < 0:
            assert time.monotonic() < end, f"no {words!r} in:\n{self.text[self._seen :]}"
            self._read(0.2)
        self._seen = found + len(words)

    def type(self, line):
        os.write(self._main, line.encode() + b"\n")

    def interrupt(self):
        os.write(self._main, b"\x03")

    def interrupt_until(self, words):
        """Press Ctrl-C as a person would: again, when the prompt was not listening yet."""
        for _ in range(8):
            if self._process.poll() is None:
                self.interrupt()
            end = time.monotonic() + 4
            while time.monotonic() < end:
                if self.text.find(words, self._seen) >= 0:
                    return self.expect(words)
                self._read(0.2)
        return self.expect(words, seconds=1)

    def end(self, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < end:
            self._read(0.1)
        self._read(0.1)
        assert self._process.poll() is not None, f"still running:\n{self.text}"
        assert "Traceback" not in self.text
        return self._process.returncode

    @property
    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.shown)

    def close(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._main)

    def _read(self, seconds):
        if select.select([self._main], [], [], seconds)[0]:
            try:
                self.shown += os.read(self._main, 65536).decode("utf-8", "replace")
            except OSError:  # the other end is closed
                time.sleep(0.05)


def _own_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "toys.py").write_bytes(TOYS.read_bytes())
    (tmp_path / "capgraph.yml").write_text(
        "name: toy painter\nmodules: [toys]\napprovals: {callers_may_disable: true}\n"
    )
    opened = []

    def start(*arguments, **toys):
        opened.append(Terminal(tmp_path, *arguments, **toys))
        return opened[-1]

    start.log = lambda: (tmp_path / "log").read_text().splitlines()
    yield start
    for one in opened:
        one.close()


def test_a_conversation_with_commands_is_resumed_later(terminal):
    chat = terminal("chat", "--thread", "t1")
    chat.expect("toy painter, thread t1")
    chat.expect("you> ")
    chat.type("/help")
    chat.expect("/capabilities")
    chat.expect("you> ")
    chat.type("/capabilities")
    chat.expect("- paint: Paint a picture of the sky.")
    chat.type("/never")
    chat.expect("'/never' is unknown")
    chat.type("What colour is the sky?")
    chat.expect("✓")
    chat.expect("The sky is blue.")
    chat.expect("outcome: completed")
    chat.type("/approval:off")
    chat.expect("approval_disabled = true")
    chat.type("/status")
    chat.expect("1 turn(s)")
    chat.expect("SKY: sky")
    chat.type("/exit")
    chat.expect("resume with: capgraph chat --thread t1")
    assert chat.end() == 0

    again = terminal("chat", "--thread", "t1")
    again.expect("you> What colour is the sky?")
    again.expect("agent> The sky is blue.")
    again.expect("you> ")
    os.write(again._main, b"\x04")  # end of input
    assert again.end() == 0


def test_an_approval_is_edited_checked_and_given(terminal):
    ask = terminal("ask", "Paint the sky", approval=1)
    ask.expect("May step picture (paint) run?")
    ask.expect("decision> ")
    ask.type("maybe")
    ask.expect("Use one of: approve, edit, reject, respond.")
    ask.expect("decision> ")
    ask.type("e")
    ask.expect("parameter> ")
    ask.type("width = -3")
    ask.expect("parameter> ")
    ask.type("")
    ask.expect("width -3")
    ask.expect("decision> ")
    ask.type("e")
    ask.expect("parameter> ")
    ask.type('{"width": 33}')
    ask.expect("parameter> ")
    ask.type("")
    ask.expect("file: /pictures/sky-33.png")
    assert ask.end() == 0
    assert terminal.log() == ["look", "paint began", "paint ended 33"]


def test_responding_instead_ends_the_turn_with_the_persons_words(terminal):
    ask = terminal("ask", "Paint the sky", approval=1)
    ask.expect("decision> ")
    ask.type("s")
    ask.expect("message> ")
    ask.type("No paint today.")
    ask.expect("No paint today.\n")
    ask.end()
    assert terminal.log() == ["look"]


def test_ctrl_c_at_a_question_leaves_it_open(terminal):
    ask = terminal("ask", "Paint the sky", "--thread", "t1", approval=1)
    ask.expect("decision> ")
    ask.interrupt_until("resume with: capgraph ask --thread t1")
    assert ask.end() == 130
    again = terminal("ask", "--thread", "t1", approval=1)
    again.expect("decision> ")
    again.type("a")
    again.expect("outcome: completed")
    assert again.end() == 0
    assert terminal.log() == ["look", "paint began", "paint ended 10"]


def test_ctrl_c_at_a_question_does_not_end_the_chat(terminal):
    chat = terminal("chat", "--thread", "t1", approval=1)
    chat.expect("you> ")
    chat.type("Paint the sky")
    chat.expect("decision> ")
    chat.interrupt_until("stays open")
    chat.expect("you> ")
    chat.type("")
    chat.expect("decision> ")
    chat.type("a")
    chat.expect("file: /pictures/sky-10.png")
    chat.expect("you> ")
    chat.type("/exit")
    assert chat.end() == 0


def test_new_message_cancels_an_open_request_only_after_a_confirmation(terminal):
    chat = terminal("chat", "--thread", "t1", approval=1)
    chat.expect("you> ")
    chat.type("Paint the sky")
    chat.expect("decision> ")
    chat.interrupt_until("stays open")
    assert chat.text.count("May step") == 1
    chat.expect("you> ")
    chat.type("Look at the sea")
    chat.expect("[y/N]")
    chat.type("")
    chat.expect("you> ")
    chat.type("Look at the sea")
    chat.expect("[y/N]")
    chat.type("y")
    chat.expect("outcome: completed")
    chat.expect("you> ")
    chat.type("/exit")
    assert chat.end() == 0
    assert not any(line.startswith("paint") for line in terminal.log())


def test_error_is_wrapped_between_words(terminal, tmp_path):
    words = "the quick brown fox jumps over the lazy dog and runs into the deep dark wood " * 3
    (tmp_path / "capgraph.yml").write_text(f"{words.replace(' ', '_')[:70]}: 1\n")
    ask = terminal("ask", "Paint the sky", columns=80)
    assert ask.end() == 2
    lines = ask.text.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)


def test_ctrl_c_in_a_turn_offers_to_go_on_and_leaves_a_thread_to_resume(terminal, tmp_path):
    chat = terminal("chat", "--thread", "t1", gate=tmp_path / "never opened")
    chat.expect("you> ")
    chat.type("Paint the sky")
    chat.expect("Mixing")
    chat.interrupt()
    chat.expect("outcome: interrupted")
    chat.expect("Resume it? [Y/n]")
    chat.interrupt_until("resume with: capgraph chat --thread t1")
    assert chat.end() == 130

    again = terminal("chat", "--thread", "t1")
    again.expect("Resume it? [Y/n]")
    again.type("")
    again.expect("file: /pictures/sky-10.png")
    again.expect("you> ")
    again.type("/exit")
    assert again.end() == 0
    assert terminal.log() == ["look", "paint began", "paint began", "paint ended 10"]


def test_always_makes_a_standing_rule_for_the_thread(terminal):
    ask = terminal("ask", "Paint the sky", "--thread", "t1", approval=1)
    ask.expect("[always] in this thread")
    ask.expect("decision> ")
    ask.type("always")
    ask.expect("outcome: completed")
    assert ask.end() == 0
    again = terminal("ask", "Paint the sky", "--thread", "t1", approval=1)
    again.expect("outcome: completed")
    assert again.end() == 0
    rules = terminal("approvals", "list")
    rules.expect("paint")
    rules.expect("thread t1")
    assert rules.end() == 0


def test_a_plan_is_reviewed_before_it_runs(terminal, tmp_path):
    chat = terminal("chat", "--thread", "t1")
    chat.expect("you> ")
    chat.type("/planning:on What colour is the sky?")
    chat.expect("May this plan run?")
    chat.expect("1. sky = look")
    chat.expect("decision> ")
    assert not (tmp_path / "log").exists()
    chat.type("a")
    chat.expect("The sky is blue.")
    chat.expect("you> ")
    chat.type("/exit")
    assert chat.end() == 0


SURVEY = '''
"""A survey of the network, whose report is Markdown."""

from capgraph import CapabilityContext, capability_node


class Readings(CapabilityContext):
    celsius: list[float]

    def get_summary(self) -> str:
        return f"{len(self.celsius)} readings"


@capability_node(examples=["survey the network of weather stations"])
def read_the_stations_of_the_network() -> Readings:
    """Read every station of the network, the ones on the islands included, and say how it went."""
    return Readings(celsius=[12.5, 13.25])


class Report(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


@capability_node(requires_approval=True, examples=["report on the network"])
def report(readings: Readings, title: str = "The network of weather stations") -> Report:
    """Write the report."""
    return Report(text="# Report\\n\\nTwo stations **answer**, and the one on the northern island has"
        " not answered since yesterday evening at nine.\\n\\n| station | celsius |\\n|---|---|\\n| A | 12.5 |")
'''


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_run_with_an_approval_fits_a_terminal_of_80_columns(terminal, tmp_path, command):
    (tmp_path / "survey.py").write_text(SURVEY)
    (tmp_path / "capgraph.yml").write_text("name: survey\nmodules: [survey]\n")
    question = "Survey the network of weather stations and report on the network"
    shown = terminal(command, *([question] if command == "ask" else []), columns=80)
    if command == "chat":
        shown.expect("you> ")
        shown.type(question)
    shown.expect("pprove")
    shown.type("y")
    shown.expect("outcome: completed")
    if command == "chat":
        shown.expect("you> ")
        shown.type("/exit")
    assert shown.end() == 0
    lines, long_lines = draw_screen(shown.shown, 80)
    assert [line for line in long_lines if "resume with" not in line] == []
    text = "\n".join(lines)
    assert "…" not in text
    for syntax in ("# Report", "**answer**", "|---|"):
        assert syntax not in text
    for words in ("Two stations answer", "read_the_stations_of_the_network"):
        assert words in text, text
