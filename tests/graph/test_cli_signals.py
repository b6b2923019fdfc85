"""Signals and dead processes: the thread goes on where it stopped, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capgraph.stores import open_saver
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).with_name("cli_toys.py")

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
    pytest.mark.timeout(600),
]


class Home:
    """A folder with an agent, its database and what its steps left behind."""

    def __init__(self, folder):
        self.folder = folder
        self.gate = folder / "gate"
        self._processes = []
        (folder / "toys.py").write_bytes(TOYS.read_bytes())
        (folder / "capgraph.yml").write_text("modules: [toys]\n")

    def start(self, *arguments, gate=False):
        """Start the command; with a gate, painting waits until the test opens it."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "TOY_LOG": str(self.folder / "log"),
            **({"TOY_GATE": str(self.gate)} if gate else {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "capgraph", *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def run(self, *arguments):
        return self.end(self.start(*arguments))

    @staticmethod
    def end(process):
        out, err = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def close(self):
        """End what a failed test left running."""
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    @property
    def log(self):
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, line, process):
        self._wait(lambda: line in self.log, process, line)

    def wait_until_saved(self, key, process):
        """Wait for a step's result in the database; a step without effect may end before it."""
        url = f"sqlite:///{self.folder}/data/capgraph/threads.sqlite"

        async def saved():
            async with open_saver(url) as saver:
                found = await saver.aget_tuple({"configurable": {"thread_id": "t1"}})
            values = [value for *_, value in found.pending_writes if isinstance(value, dict)]
            return any(value.get("key") == key for value in values)

        self._wait(lambda: asyncio.run(saved()), process, f"result of {key}")

    def _wait(self, done, process, what):
        end = time.monotonic() + PATIENCE
        while not done():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, f"no {what!r}; the log says {self.log}"
            time.sleep(0.02)


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.close()


def result(out):
    return json.loads(out.splitlines()[-1])


def test_ctrl_c_leaves_a_thread_that_the_printed_command_resumes(home):
    process = home.start("ask", "Paint the sky", "--thread", "t1", gate=True)
    home.wait_for("paint began", process)
    process.send_signal(signal.SIGINT)
    code, out, err = home.end(process)
    assert code == 130
    assert "outcome: interrupted" in out
    assert out.splitlines()[-1] == "resume with: capgraph ask --thread t1"
    assert err == ""
    code, out, _ = home.run("ask", "--thread", "t1", "--json")
    assert code == 0
    assert result(out)["files"] == ["/pictures/sky-10.png"]
    assert home.log == ["look", "paint began", "paint began", "paint ended 10"]


def test_sigterm_lets_the_running_step_end(home):
    process = home.start("ask", "Paint the sky", "--thread", "t1", "--json", gate=True)
    home.wait_for("paint began", process)
    process.send_signal(signal.SIGTERM)
    home.gate.touch()
    code, out, err = home.end(process)
    assert err == ""
    assert home.log == ["look", "paint began", "paint ended 10"]
    assert code == 143
    assert result(out)["status"] == "drained"
    assert result(out)["resume_command"] == "capgraph ask --thread t1"
    code, out, _ = home.run("ask", "--thread", "t1", "--json")
    assert code == 0
    assert result(out)["files"] == ["/pictures/sky-10.png"]
    assert home.log == ["look", "paint began", "paint ended 10"]


def test_a_killed_run_goes_on_and_repeats_nothing_that_was_done(home):
    process = home.start("ask", "Paint the sky", "--thread", "t1", gate=True)
    home.wait_for("paint began", process)
    home.wait_until_saved("sky", process)
    process.kill()
    home.end(process)
    code, out, _ = home.run("threads", "show", "t1")
    assert code == 0
    assert "status   unfinished" in out
    _, out, _ = home.run("graph", "--thread", "t1")
    assert "✓ sky  look" in out
    assert "· picture  paint" in out
    code, out, err = home.run("ask", "Something new", "--thread", "t1")
    assert code == 2
    assert "has an unfinished turn" in err
    code, out, _ = home.run("ask", "--thread", "t1")
    assert code == 0
    assert "already done: sky" in out
    assert home.log == ["look", "paint began", "paint began", "paint ended 10"]


def test_an_unfinished_turn_can_be_abandoned(home):
    process = home.start("ask", "Paint the sky", "--thread", "t1", gate=True)
    home.wait_for("paint began", process)
    process.kill()
    home.end(process)
    code, out, _ = home.run("ask", "What colour is the sky?", "--thread", "t1", "--abandon", "-q")
    assert (code, out) == (0, "The sky is blue.\n")


def test_a_thread_that_is_being_run_is_not_run_twice(home):
    process = home.start("ask", "Paint the sky", "--thread", "t1", gate=True)
    home.wait_for("paint began", process)
    code, out, err = home.run("ask", "Look at the sky", "--thread", "t1", "--abandon")
    assert code in {1, 2}
    assert "is already running" in out + err
    home.gate.touch()
    assert home.end(process)[0] == 0
    assert home.log == ["look", "paint began", "paint ended 10"]


def test_a_closed_pipe_ends_the_command_quietly(home):
    process = home.start("ask", "Paint the sky", gate=True)
    assert process.stdout.readline().startswith("thread: ")
    process.stdout.close()
    process.stdout = None
    home.gate.touch()
    _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err
    assert process.returncode != 0


def test_the_command_starts_without_the_heavy_libraries(home):
    code = (
        "import sys; sys.argv = ['capgraph', '--help']\n"
        "import capgraph.cli.main as m\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pandas', 'duckdb', 'matplotlib', 'sklearn', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
