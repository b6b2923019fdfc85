"""The command as it is typed, in a folder of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from capgraph.cli.main import main

Typed = Callable[..., tuple[int, str, str]]
"""Takes the words behind ``capgraph``; gives the exit code, the output and what went to stderr."""


@contextlib.contextmanager
def project(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]
) -> Iterator[Path]:
    """Stand in a folder with these files; modules among them are forgotten at the end."""
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return what runs the command in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def together(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return what runs the command and gives all that it printed as one text."""
    run = typed(capsys)

    def printed(*arguments: str) -> tuple[int, str]:
        code, out, err = run(*arguments)
        return code, out + err

    return printed
