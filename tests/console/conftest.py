"""A real browser at a real server: Debian's Chromium, ``capgraph serve`` in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.support.console_server import Served, missing, new_context

BROWSER = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    if not BROWSER.exists():
        missing(str(BROWSER))
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(BROWSER), args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("served"))
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def context(browser: Any, served: Served) -> Iterator[Any]:
    found = new_context(browser, viewport={"width": 1360, "height": 820})
    yield served.logged_in(found)
    found.close()


@pytest.fixture
def page(context: Any, served: Served) -> Iterator[Any]:
    """A page of the console that reaches nobody else, breaks no policy and raises nothing."""
    found = context.new_page()
    faults: list[str] = []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on(
        "console",
        lambda message: faults.append(message.text) if "Policy" in message.text else None,
    )
    found.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((served.url, "data:", "blob:"))
            else faults.append(request.url)
        ),
    )
    found.goto(served.url)
    yield found
    assert faults == []


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a failed test once with a new page, because a busy machine delays browser and server."""
    if not Path(item.path).is_relative_to(Path(__file__).parent):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports):
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
