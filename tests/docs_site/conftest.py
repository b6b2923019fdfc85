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
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site without the reference, whose docstrings take most of the time."""
    html = tmp_path_factory.mktemp("site")
    left_out = "exclude_patterns=_build,comparison/properties.md,reference/*,errors/*,decisions/*"
    command = [sys.executable, "-m", "sphinx", "-Q", "-b", "html", "-D", left_out]
    subprocess.run([*command, str(DOCS), str(html)], check=True, timeout=900)
    return html
