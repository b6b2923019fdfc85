"""``capgraph serve`` in a process of its own, with the agent of the console's tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

PATIENCE_MS = 90_000
"""Time limit of each browser assertion, because the tests share a busy machine."""

REQUIRED = os.environ.get("BROWSER_TESTS") == "required"
"""Set by the continuous integration: there, what is missing is a failure."""

AGENT = """
name: tank
description: Looks after a tank.
modules: [tests.support.console_agent]
audit: {keep: true}
budgets: [{steps: 100000, per: user}, {seconds: 600, per: thread}]
serve: {evaluations: evaluations}
"""


def missing(what: str) -> NoReturn:
    """Skip, or fail where a browser has to be at hand."""
    told = f"{what} is missing: 'apt-get install chromium' and the dev extra bring what is needed"
    if REQUIRED:
        pytest.fail(told)
    pytest.skip(told)


def axe() -> str:
    """Return the path of axe's rules for accessibility."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        missing("axe-playwright-python")
    return str(Path(found.origin).with_name("axe.min.js"))


def expect(target: Any) -> Any:
    """Return Playwright's assertions about a page or a locator, which wait until they hold."""
    from playwright.sync_api import expect as assertions

    assertions.set_options(timeout=PATIENCE_MS)
    return assertions(target)


def new_context(browser: Any, **options: Any) -> Any:
    """Return a browser context whose actions wait for a slow machine."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


def settle(page: Any) -> None:
    """Wait until the open view is loaded, its animations have ended, and it is drawn."""
    page.wait_for_function(
        "() => document.querySelector(`#part-${document.body.dataset.part}:not([hidden])`)"
    )
    page.evaluate(
        "async () => { await Promise.allSettled(document.getAnimations()"
        ".filter((one) => one.effect.getComputedTiming().endTime < Infinity).map((one) => one.finished));"
        " for (let n = 0; n < 2; n += 1) await new Promise((done) => requestAnimationFrame(done)); }"
    )


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition outside the browser holds."""
    for _ in range(PATIENCE_MS // 50):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("the condition does not hold")


def tab_of(page: Any, name: str) -> Any:
    """Return the tab of a view, which may be hidden."""
    part = "conversation" if name == "Chat" else name.lower()
    return page.locator(f".tabbar [role=tab][data-part={part}]")


def open_view(page: Any, name: str) -> None:
    """Open a view by its tab, which may be in the menu of tabs that do not fit."""
    from playwright.sync_api import TimeoutError as Late

    tab = tab_of(page, name)
    for _ in range(30):
        try:  # a resize can move the tab into the menu, or out of it, between the two clicks
            if not tab.is_visible():
                page.locator("details.more:not([open]) > summary").click(timeout=3_000)
            tab.click(timeout=3_000)
            break
        except Late:
            continue
    expect(tab).to_have_attribute("aria-selected", "true")


class Served:
    """A server of its own, which can be ended and begun again at the same place."""

    def __init__(
        self,
        folder: Path,
        *,
        auth: Path | None = None,
        agent: str = AGENT,
        words: Sequence[str] = (),
    ) -> None:
        self.folder, self.auth, self.words = folder, auth, words
        self.port = 0
        (folder / "agent.yml").write_text(agent)
        self.begin()

    def begin(self) -> None:
        command = [
            *(sys.executable, "-m", "capgraph", "serve", "--no-open"),
            *("--config", "agent.yml", "--db", "sqlite:///threads.db", "--port", str(self.port)),
            *(("--auth", str(self.auth)) if self.auth else ()),
            *self.words,
        ]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *(one for one in sys.path if one)])
        with (self.folder / "log.txt").open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words[:1] == ["serving"], (self.folder / "log.txt").read_text()
        self.url = words[1].rstrip("/")
        self.port = int(self.url.rsplit(":", 1)[1])
        self.link = words[2] if len(words) > 2 else ""

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def logged_in(self, context: Any) -> Any:
        """Log a browser in; the one-time link works once, and its cookie is handed on."""
        if self.link:
            found = httpx.get(self.link, timeout=60)
            self.cookie, self.link = next(iter(found.cookies.items())), ""
        name, value = self.cookie
        context.add_cookies([{"name": name, "value": value, "url": self.url}])
        return context

    def call(self, path: str, body: Any = None) -> Any:
        """Ask the API as the same user."""
        method = "GET" if body is None else "POST"
        answer = httpx.request(
            method, self.url + path, json=body, cookies=dict([self.cookie]), timeout=60
        )
        answer.raise_for_status()
        return answer.json()

    def run_plan(self, plan: Any) -> str:
        """Begin a plan in a thread of its own, and return the thread."""
        thread = self.call("/api/threads", {})["thread_id"]
        self.call(f"/api/threads/{thread}/runs", {"plan": plan})
        return str(thread)
