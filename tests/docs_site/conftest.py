"""The documentation site, built once, in the browser of the console's tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.conftest import browser

__all__ = ["browser", "site"]

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def site() -> Path:
    """Build the site where ``make check`` builds it, so that only changed pages are read."""
    pytest.importorskip("sphinx")
    html = DOCS / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(DOCS), str(html)]
    subprocess.run(command, check=True, timeout=900)  # noqa: S603
    return html
