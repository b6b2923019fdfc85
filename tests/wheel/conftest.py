"""The wheel of this tree, installed into an environment that does not see the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPENDENCIES = ROOT / ".venv" / "wheel" / "lib"
"""Made by ``make .venv/.wheel``: everything that the wheel needs, without capgraph."""

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the wheel."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def run(self, *command: str, cwd: Path, check: bool = True, **variables: str) -> Completed:
        """Run a command of the environment with nothing of this process's environment."""
        program = self.bin / command[0]
        clean = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=cwd,
            env={**clean, **variables},
            capture_output=True,
            text=True,
            timeout=250,
        )
        if check:
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done

    def python(self, code: str, *, cwd: Path, check: bool = True) -> Completed:
        """Run a piece of Python."""
        return self.run("python", "-W", "error", "-c", code, cwd=cwd, check=check)


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a wheel or an sdist of a source tree and return the file."""
    target.mkdir()
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "-o", str(target), "."],
        cwd=source,
        check=True,
        capture_output=True,
    )
    [made] = target.iterdir()
    return made


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the tree."""
    return build(ROOT, tmp_path_factory.mktemp("built") / "wheel", "wheel")


@pytest.fixture(scope="session")
def new_environment(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Environment]:
    """Return a function that makes an environment with the wheel."""
    if not DEPENDENCIES.is_dir():
        pytest.skip("'make .venv/.wheel' installs what these tests need")

    def make() -> Environment:
        found = Environment(tmp_path_factory.mktemp("environment"))
        venv.create(found.folder)
        [dependencies] = DEPENDENCIES.glob("python*/site-packages")
        (found.site / "dependencies.pth").write_text(str(dependencies), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(found.bin / "python")]
        options = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, str(wheel)], check=True, capture_output=True)
        return found

    return make


@pytest.fixture(scope="session")
def environment(new_environment: Callable[[], Environment]) -> Environment:
    """One environment with the wheel, for tests that change nothing in it."""
    return new_environment()
