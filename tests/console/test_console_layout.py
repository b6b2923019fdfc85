"""Layout of the console: nothing is cut, hidden, or broken in the middle of a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.test_console_turns import AGENT
from tests.console.test_screens import (
    compared,
    elements,
    logged_out,
    partial,
    question,
    running,
    visited,
)
from tests.support.console_server import Served, expect, new_context, open_view, settle

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("layout"), agent=AGENT)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    context = served.logged_in(new_context(browser, viewport={"width": 1440, "height": 900}))
    yield context.new_page()
    context.close()


def is_cut(part: Any) -> bool:
    return bool(
        part.evaluate(
            "part => part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight + 1"
        )
    )


def lines_of(cell: Any) -> int:
    return int(
        cell.evaluate(
            "cell => { const text = document.createRange(); text.selectNodeContents(cell);"
            " return new Set([...text.getClientRects()].map((one) => Math.round(one.top))).size; }"
        )
    )


def test_agent_view_shows_its_graph_and_breaks_no_word(page: Any, served: Served) -> None:
    page.goto(served.url)
    open_view(page, "Agent")
    graph = page.get_by_test_id("graph")
    expect(graph.locator("svg")).to_be_visible()
    settle(page)
    assert graph.bounding_box()["height"] >= graph.locator("svg").bounding_box()["height"]
    levels = page.get_by_test_id("findings").locator("td[data-label=level]")
    assert {lines_of(levels.nth(n)) for n in range(levels.count())} == {1}


def test_plan_and_thread_list_show_whole_texts(page: Any, served: Served) -> None:
    elements(page, served)
    settle(page)
    readings = page.locator("[data-testid=step][data-key=readings]")
    assert "1 failed" in readings.locator(".state").inner_text()
    assert not is_cut(readings.locator(".state"))
    assert not is_cut(page.get_by_test_id("thread").first.locator(".title"))
    status = page.locator(".detail dt", has_text="Status").locator("+ dd")
    assert "1 failed" in status.inner_text()


def test_turn_card_has_one_row_per_step_in_a_narrow_window(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        running(page, served)
        lines = page.get_by_test_id("turn-step")
        expect(lines).to_have_count(3)
        for line in lines.all():
            words, time = (line.locator(f".{name}").bounding_box() for name in ("words", "time"))
            assert time["x"] >= words["x"] + words["width"] - 1
    finally:
        (served.folder / "gate").touch()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_login_page_has_the_colors_of_the_console(page: Any, served: Served, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(served.url)
    color = "part => getComputedStyle(part).backgroundColor"
    ground = page.locator("body").evaluate(color)
    button = page.get_by_test_id("new-thread").evaluate(color)
    logged_out(page, served)
    assert page.locator("body").evaluate(color) == ground
    assert page.get_by_test_id("login").evaluate(color) == button


def test_comparison_and_shared_page_show_no_raw_values(page: Any, served: Served) -> None:
    compared(page, served)
    expect(page.get_by_test_id("comparison")).to_contain_text("read_station")
    assert "$from" not in page.get_by_test_id("comparison").inner_text()
    visited(page, served)
    assert "$0.0000" not in page.locator("main").inner_text()


def test_error_and_its_fix_are_two_sentences(page: Any, served: Served) -> None:
    partial(page, served)
    expect(page.get_by_test_id("not-done")).to_contain_text("gives no signal. Fix:")


NARROW, WIDE = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


def test_plan_is_arranged_anew_for_a_resized_window(page: Any, served: Served) -> None:
    partial(page, served)
    open_view(page, "Plan")
    boards = page.locator(".boards")
    expect(boards).not_to_have_attribute("data-narrow", "")
    for size, is_narrow in ((NARROW, True), (WIDE, False)):
        page.set_viewport_size(size)
        page.wait_for_function(
            "is => document.querySelector('.boards').hasAttribute('data-narrow') === is",
            arg=is_narrow,
        )


def test_heading_of_the_turn_card_stays_in_one_row(page: Any, served: Served) -> None:
    page.set_viewport_size(NARROW)
    partial(page, served)
    card = page.get_by_test_id("turn")
    heading = card.get_by_role("heading").bounding_box()
    button = card.get_by_role("button", name="Show trace").bounding_box()
    assert heading["y"] < button["y"] + button["height"]
    assert button["y"] < heading["y"] + heading["height"]


def test_no_field_shows_below_the_buttons_of_a_request(page: Any, served: Served) -> None:
    page.set_viewport_size(NARROW)
    question(page, served)
    page.wait_for_function(
        "() => document.querySelector('.decide').getBoundingClientRect().bottom + 1"
        " >= document.querySelector('.log').getBoundingClientRect().bottom"
    )


def test_open_question_stays_where_it_is_while_the_thread_is_polled(
    page: Any, served: Served
) -> None:
    question(page, served)
    card = page.get_by_test_id("question")
    around = page.evaluate("() => innerHeight - document.querySelector('.log').clientHeight")
    height = card.bounding_box()["height"] + around - 20
    page.set_viewport_size({"width": 1440, "height": int(height)})
    card.evaluate("one => one.scrollIntoView({ block: 'start' })")
    settle(page)
    before = page.evaluate("() => document.querySelector('.log').scrollTop")
    for _ in range(2):
        with page.expect_response("**/api/threads?*"):
            pass
    settle(page)
    assert page.evaluate("() => document.querySelector('.log').scrollTop") == before
