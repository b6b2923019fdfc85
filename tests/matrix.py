"""Runs the tests on several Pythons: ``python -m tests.matrix 3.11 3.12 3.13 [-- pytest options]``.

Each Python has the newest versions of what the project needs; the oldest one has, in a second
environment, the lowest versions that ``pyproject.toml`` allows. A Python that is not on the
machine is named and left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
_FOR_DEVELOPERS = {"dev", "docs", "bench"}
_ONLY_NEWEST = ("langgraph-cli", "import-linter")
"""Tools that themselves need newer versions of what users may have older."""


def interpreter(version: str) -> str | None:
    """Return the program of a version of Python, if it is on this machine."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    managed = sorted(Path.home().glob(f".local/share/uv/python/cpython-{version}.*/bin/python3"))
    for found in (shutil.which(f"python{version}"), *reversed(places), *reversed(managed)):
        if found and _version(str(found)) == version:  # a shim may stand for nothing
            return str(found)
    return None


def lowest() -> list[str]:
    """Return a constraint to the lowest version of what users install beside the package.

    What only its developers use is not held to its lowest.

    >>> [line for line in lowest() if line.startswith("typer=")]
    ['typer==0.26']
    """
    project = _project()
    lines = [*project["dependencies"]]
    for name, extra in project["optional-dependencies"].items():
        lines += extra if name not in _FOR_DEVELOPERS else []
    found = (re.match(r"([\w.-]+)(?:\[.*?\])?>=([\w.]+)", line) for line in lines)
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


def run(version: str, python: str, pins: list[str], options: list[str]) -> str:
    """Make an environment, run the tests in it, and say what came of it."""
    name = f"{version}-{'lowest' if pins else 'newest'}"
    folder = FOLDER / name
    environment = folder / "bin" / "python"
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    (FOLDER / f"{name}.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    install = [environment, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = _project()["optional-dependencies"]["dev"]
    low = [t.replace("capgraph[", ".[") for t in tools if not t.startswith(_ONLY_NEWEST)]
    what = low if pins else [".[dev]"]
    wanted = ["--constraint", FOLDER / f"{name}.txt", "--editable", *what]
    if subprocess.run([*install, *wanted], cwd=ROOT, check=False).returncode:
        return "cannot be installed"
    tests = [
        environment,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        # What is old may warn of newer neighbours; the newest versions do not.
        *(["-W", "default::DeprecationWarning"] if pins else []),
        *options,
    ]
    code = subprocess.run(tests, cwd=ROOT, check=False).returncode
    return "passed" if code == 0 else f"failed (exit {code})"


def main() -> int:
    """Run what is there; returns 1 when something failed or nothing ran."""
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    versions, options = given[:split], given[split + 1 :]
    rows: list[tuple[str, str]] = []
    for version in versions:
        python = interpreter(version)
        if python is None:
            rows.append((version, "not on this machine: install it, or leave it out of PYTHONS"))
            continue
        first = not any(result.startswith(("passed", "failed")) for _, result in rows)
        for pins in ([], lowest()) if first else ([],):
            label = f"{version}, {'lowest' if pins else 'newest'} versions"
            rows.append((label, run(version, python, pins, options)))
    print()
    for label, result in rows:
        print(f"{label}: {result}")
    results = [result for _, result in rows if not result.startswith("not on this machine")]
    return 0 if results and set(results) == {"passed"} else 1


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found["project"]


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
