"""Screens of the console's states at three widths, light and dark, written to ``build/console``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.test_console_plan import grid
from tests.console.test_console_turns import AGENT, MEAN, MODEL, ORDER, RATES, READINGS, STATIONS
from tests.support.console_server import Served, expect, new_context, open_view, settle

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

FOLDER = Path(__file__).parents[2] / "build/console"
FITS = (
    "width => [document.documentElement, ...document.querySelectorAll('.chart')]"
    ".every((part) => part.scrollWidth <= Math.min(width, part.clientWidth))"
)
"""True if neither the page nor a chart is wider than its place."""
WIDTHS = {1440: 900, 1024: 700, 390: 844}


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("screens"), agent=AGENT)
    try:
        yield found
    finally:
        found.end()


def opened(page: Any, served: Served, *steps: dict[str, Any]) -> None:
    thread = served.call("/api/threads", {})["thread_id"]
    body = {"message": "Read the stations and order what is missing", "plan": {"steps": [*steps]}}
    served.call(f"/api/threads/{thread}/runs", body)
    page.goto(f"{served.url}/?thread={thread}")


def ended(page: Any, status: str) -> None:
    expect(page.locator(f"[data-testid=turn][data-status={status}]")).to_be_visible()


def empty(page: Any, served: Served) -> None:
    page.goto(served.url)
    expect(page.get_by_test_id("examples")).to_be_visible()


def running(page: Any, served: Served) -> None:
    gate = str(served.folder / "gate")
    Path(gate).unlink(missing_ok=True)
    rates = {**RATES, "parameters": {"gate": gate}}
    opened(page, served, STATIONS, rates, {**MODEL, "parameters": {"seconds": 1, "gate": gate}})
    expect(page.get_by_text("retrying 3 of 4").first).to_be_visible()
    expect(page.get_by_text("epoch 4 of 10").first).to_be_visible()


def partial(page: Any, served: Served) -> None:
    opened(page, served, STATIONS, READINGS)
    ended(page, "partial")


def failed(page: Any, served: Served) -> None:
    opened(page, served, {**MODEL, "parameters": {"seconds": 0.1}}, MEAN)
    ended(page, "failed")


def stopped(page: Any, served: Served) -> None:
    steps = (STATIONS, {**MODEL, "parameters": {"seconds": 60}}, {**MEAN, "context_key": "late"})
    opened(page, served, *steps)
    expect(page.locator("[data-testid=turn-step][data-status=running]")).to_be_visible()
    page.get_by_test_id("stop").click()
    ended(page, "stopped")


def question(page: Any, served: Served) -> None:
    opened(page, served, ORDER)
    expect(page.get_by_test_id("question")).to_be_visible()


def refused(page: Any, served: Served) -> None:
    question(page, served)
    page.get_by_test_id("question").get_by_label("Quantity").first.fill("900")
    page.get_by_test_id("approve").click()
    expect(page.get_by_test_id("problem")).to_be_visible()


def decided(page: Any, served: Served) -> None:
    question(page, served)
    page.get_by_test_id("question").get_by_label("Quantity").first.fill("4")
    page.get_by_test_id("approve").click()
    ended(page, "completed")


def rejected(page: Any, served: Served) -> None:
    question(page, served)
    page.get_by_test_id("reject").click()
    expect(page.get_by_test_id("answer")).to_be_visible()


def inbox(page: Any, served: Served) -> None:
    question(page, served)
    open_view(page, "Inbox")


def elements(page: Any, served: Served) -> None:
    partial(page, served)
    open_view(page, "Plan")
    page.locator("[data-testid=step][data-key=readings]").click()
    expect(page.get_by_test_id("element")).to_have_count(12)


def large_plan(page: Any, served: Served) -> None:
    opened(page, served, *grid(30, 5))
    ended(page, "completed")
    open_view(page, "Plan")


def view(name: str, selector: str) -> Callable[[Any, Served], None]:
    def show(page: Any, served: Served) -> None:
        partial(page, served)
        open_view(page, name)
        expect(page.locator(selector).first).to_be_visible()

    return show


def compared(page: Any, served: Served) -> None:
    partial(page, served)
    open_view(page, "History")
    page.get_by_role("button", name="Replay run 1").click()
    expect(page.get_by_test_id("comparison").get_by_role("table").first).to_be_visible()


def shared(page: Any, served: Served) -> None:
    partial(page, served)
    open_view(page, "History")
    page.get_by_role("button", name="Share run 1").click()
    page.get_by_role("button", name="Create link").click()
    expect(page.get_by_test_id("link")).to_be_visible()


def visited(page: Any, served: Served) -> None:
    shared(page, served)
    page.goto(page.get_by_test_id("link").input_value())
    expect(page.get_by_test_id("steps")).to_contain_text("station S007 gives no signal")


def logged_out(page: Any, served: Served) -> None:
    page.context.clear_cookies()
    page.goto(served.url)
    expect(page.get_by_test_id("token-input")).to_be_visible()


STATES = {
    "empty": empty,
    "login": logged_out,
    "running": running,
    "partial": partial,
    "failed": failed,
    "stopped": stopped,
    "question": question,
    "refused": refused,
    "decided": decided,
    "rejected": rejected,
    "elements": elements,
    "large_plan": large_plan,
    "inbox": inbox,
    "timeline": view("Timeline", "[data-testid=timeline] rect.span"),
    "activity": view("Activity", "[data-testid=budgets] p, [data-testid=budgets] table"),
    "usage": view("Usage", "[data-testid=usage] h3"),
    "agent": view("Agent", "[data-testid=graph] svg"),
    "compared": compared,
    "shared": shared,
    "visited": visited,
}


@pytest.mark.parametrize("state", STATES)
def test_state_fits_each_width(browser: Any, served: Served, state: str) -> None:
    context = served.logged_in(new_context(browser, locale="en-GB", timezone_id="UTC"))
    page = context.new_page()
    STATES[state](page, served)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(FITS, arg=width)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            if page.locator("main.part, main > .part").count():
                settle(page)
            page.screenshot(path=FOLDER / f"{state}_{width}_{scheme}.png")
    if state == "running":
        (served.folder / "gate").touch()
    context.close()
