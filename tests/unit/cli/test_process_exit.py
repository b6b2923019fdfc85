"""How the command ends the process."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

_CODE = """
import atexit
import temporalio.bridge.temporal_sdk_bridge
from capgraph.cli.main import main

class Late:
    def __del__(self):
        print("late")

late = Late()
atexit.register(print, "at the end")
main()
"""


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["worker", "--no"], 2)])
def test_exit_with_temporal_threads_does_not_abort(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == "at the end"


_HELD = """
import threading
import duckdb
from capgraph.cli.main import main

has_started = threading.Event()

def hold():
    types = duckdb.connect().sql("SELECT 1 AS a").types
    has_started.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
has_started.wait()
main()
"""


def test_exit_with_duckdb_objects_in_a_thread_prints_nothing() -> None:
    command = [sys.executable, "-c", _HELD, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_embedding_process_continues_after_the_command() -> None:
    code = "import temporalio, sys\nfrom capgraph.cli.main import main\n"
    code += "try:\n    main(['--version'])\nexcept SystemExit:\n    print('goes on')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "goes on"


def test_unavailable_database_is_not_a_usage_error() -> None:
    """Every command that takes --db says that it cannot be reached, and ends with 1."""
    commands = [
        *(["ask", "Hello?"], ["ask", "Hello?", "--submit"], ["approvals"], ["threads", "list"]),
        *(["worker"], ["workers"], ["schedule", "list"], ["signal", "t", "key"], ["stop", "t"]),
        *(["usage"], ["audit", "verify"], ["serve", "--port", "0"]),
    ]
    code = (
        "import sys\nfrom capgraph.cli.main import main\n"
        f"for words in {commands}:\n"
        "    try:\n        main([*words, '--db', 'postgresql://me@127.0.0.1:9/threads'])\n"
        "    except SystemExit as ended:\n"
        "        print('ended', ended.code, *words, file=sys.stderr, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    *said, rest = re.split(r"ended (\d .*)\n", done.stderr)
    assert rest == ""
    assert said[1::2] == [f"1 {' '.join(words)}" for words in commands]
    for text in said[::2]:
        assert "cannot be reached" in text


_INTERRUPTED = """
import runpy
import sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "capgraph.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
runpy.run_module("capgraph", run_name="__main__")
"""


def test_ctrl_c_during_the_imports_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "")


_IMPORTED = """
import sys
from pathlib import Path
from capgraph.cli.commands.serve import server_settings
from capgraph.cli.options import SharedOptions

server_settings(SharedOptions(), "127.0.0.1", None)
print("langgraph" in sys.modules)
"""


def test_serve_prints_its_first_line_before_it_imports_langgraph() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["False"]
