"""The pictures of the docs: states, light, dark and narrow. ``make pictures`` keeps them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.console_server import Served, open_view

pytestmark = pytest.mark.may_block
ASK = "measure the soil, estimate the need of the garden, read the level of the tank and open the valve"
DOCS = Path(__file__).parents[2] / "docs/_static/console"
WIDE, NARROW = {"width": 1280, "height": 760}, {"width": 360, "height": 740}


def empty(page: Any) -> None:
    page.get_by_test_id("message-input").wait_for()


def question(page: Any) -> None:
    page.get_by_test_id("message-input").fill(ASK)
    page.get_by_test_id("send").click()
    page.get_by_test_id("question").wait_for()


def refused(page: Any) -> None:
    question(page)
    page.get_by_test_id("question").get_by_label("Litres").fill("90")
    page.get_by_test_id("approve").click()
    page.get_by_test_id("problem").wait_for()


def answered(page: Any) -> None:
    question(page)
    page.get_by_test_id("approve").click()
    page.get_by_test_id("answer").get_by_role("button", name="36.5").wait_for()


def sourced(page: Any) -> None:
    answered(page)
    page.get_by_test_id("answer").get_by_role("button", name="36.5").click()
    page.get_by_text("Step record").wait_for()


def part(name: str, testid: str = "") -> Callable[[Any], None]:
    def show(page: Any) -> None:
        answered(page)
        open_view(page, name)
        page.get_by_test_id(testid or name.lower()).wait_for()

    return show


def inbox(page: Any) -> None:
    question(page)
    open_view(page, "Inbox")


def plan(page: Any) -> None:
    question(page)
    open_view(page, "Plan")


STATES: dict[str, tuple[Callable[[Any], None], dict[str, int], str]] = {
    "1_empty": (empty, WIDE, "light"),
    "2_question": (question, WIDE, "light"),
    "2_question_dark": (question, WIDE, "dark"),
    "3_refused_dark": (refused, WIDE, "dark"),
    "4_figure": (sourced, WIDE, "light"),
    "5_timeline_dark": (part("Timeline"), WIDE, "dark"),
    "6_activity": (part("Activity"), WIDE, "light"),
    "7_inbox_narrow": (inbox, NARROW, "light"),
    "8_plan_narrow_dark": (plan, NARROW, "dark"),
}


@pytest.mark.parametrize("name", STATES)
def test_screenshot_is_current(browser: Any, served: Served, tmp_path: Path, name: str) -> None:
    make, size, scheme = STATES[name]
    folder = DOCS if os.environ.get("PICTURES") == "keep" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(
        viewport=size, color_scheme=scheme, locale="en-GB", timezone_id="UTC"
    )
    page = served.logged_in(context).new_page()
    page.goto(served.url)
    make(page)
    page.wait_for_timeout(400)
    page.screenshot(path=folder / f"{name}.png")
    context.close()
    assert (folder / f"{name}.png").stat().st_size < 200_000
