"""The plan canvas of the console: edges, zoom, drag, minimap, panes, and names for screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.console_server import Served, expect

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

AGENT = """
name: stations
modules: [tests.support.console_stations]
"""


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("plans"), agent=AGENT)
    try:
        yield found
    finally:
        found.end()


def grid(count: int, width: int) -> list[dict[str, Any]]:
    """Return steps that each depend on the step above and on one further up."""
    steps = []
    for n in range(count):
        step: dict[str, Any] = {
            "context_key": f"load_{n}",
            "capability": "train_model",
            "parameters": {"seconds": 0.01},
        }
        if n >= width:
            sources = (n - width, max(0, n - 2 * width - n % 3))
            step["when"] = {
                "and": [{"of": f"load_{one}.value", "is": ">", "than": 0} for one in sources]
            }
        steps.append(step)
    return steps


def opened(page: Any, served: Served, count: int, width: int) -> Any:
    thread = served.run_plan({"steps": grid(count, width)})
    page.goto(f"{served.url}/?thread={thread}#plan")
    page.locator(f'[data-testid=step][data-key="load_{count - 1}"][data-status=done]').wait_for(
        state="attached"
    )
    page.get_by_test_id("stop").wait_for(state="hidden")
    return page.get_by_test_id("plan")


HIDDEN_POINTS = """() => {
  const steps = [...document.querySelectorAll('[data-testid=step]')].map((one) => ({
    left: one.offsetLeft, top: one.offsetTop,
    right: one.offsetLeft + one.offsetWidth, bottom: one.offsetTop + one.offsetHeight,
  }));
  const isUnder = ({ x, y }) => steps.some((one) => (
    x > one.left + 2 && x < one.right - 2 && y > one.top + 2 && y < one.bottom - 2));
  let hidden = 0;
  for (const path of document.querySelectorAll('.sheet .line')) {
    for (let at = 0; at < path.getTotalLength(); at += 5) hidden += isUnder(path.getPointAtLength(at));
  }
  return hidden;
}"""


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_no_edge_runs_behind_a_step(page: Any, served: Served, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    plan = opened(page, served, 14, 4)
    plan.locator(".head").first.wait_for(state="attached")
    page.wait_for_function("document.querySelector('.sheet .line').getTotalLength() > 0")
    page.wait_for_function(f"() => ({HIDDEN_POINTS})() === 0")
    expect(plan.locator(".head").first).to_have_attribute("d", re.compile("M"))


TEXT_SIZE = """() => Math.min(...[...document.querySelectorAll('.step span')]
  .filter((one) => one.offsetParent && one.textContent.trim())
  .map((one) => parseFloat(getComputedStyle(one).fontSize)
    * one.closest('.sheet').getBoundingClientRect().width / one.closest('.sheet').offsetWidth))"""


@pytest.mark.parametrize(("count", "width"), [(30, 5), (300, 20)])
def test_large_plan_fits_its_board_with_readable_text(
    page: Any, served: Served, count: int, width: int
) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    plan = opened(page, served, count, width)
    board = plan.locator(".board").element_handle()
    page.wait_for_function("() => document.querySelector('.sheet').dataset.level !== 'full'")
    fits = "one => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight"
    page.wait_for_function(fits, arg=board)
    page.wait_for_function(f"() => ({TEXT_SIZE})() > 8")
    for _ in range(3):
        page.mouse.move(1100, 400)
        page.mouse.wheel(0, -200)
    page.wait_for_function(f"() => ({TEXT_SIZE})() > 8")


def test_canvas_zooms_drags_and_shows_a_minimap(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    plan = opened(page, served, 30, 5)
    board, minimap = plan.locator(".board"), plan.get_by_test_id("minimap")
    page.wait_for_function("() => document.querySelector('.sheet').dataset.level !== 'full'")
    before = plan.get_by_test_id("step").first.bounding_box()["width"]
    plan.get_by_test_id("step").first.focus()
    for _ in range(4):
        page.keyboard.press("+")
    page.wait_for_function(
        "width => document.querySelector('[data-testid=step]').getBoundingClientRect().width > width",
        arg=2 * before,
    )
    minimap.wait_for()
    box = board.bounding_box()
    start = board.evaluate("one => [one.scrollLeft, one.scrollTop]")
    # The top edge of the board is above the first row of steps.
    page.mouse.move(box["x"] + 200, box["y"] + 4)
    gap = page.evaluate(
        "() => { const all = [...document.querySelectorAll('.step')].map((one) => one.getBoundingClientRect());"
        " const board = document.querySelector('.board').getBoundingClientRect();"
        " for (let y = board.top + 20; y < board.bottom - 20; y += 3)"
        " for (let x = board.left + 20; x < board.right - 200; x += 3)"
        " if (!all.some((one) => x > one.left - 2 && x < one.right + 2 && y > one.top - 2 && y < one.bottom + 2))"
        " return [x, y]; }"
    )
    page.mouse.move(*gap)
    page.mouse.down()
    page.mouse.move(gap[0] + 90, gap[1] + 70, steps=4)
    page.mouse.up()
    page.wait_for_function(
        "([x, y]) => (one => one.scrollLeft !== x || one.scrollTop !== y)"
        "(document.querySelector('.board'))",
        arg=start,
    )
    minimap.click(position={"x": 5, "y": 5})
    page.wait_for_function(
        "(one => one.scrollLeft + one.scrollTop < 20)(document.querySelector('.board'))"
    )
    page.keyboard.press("Tab")
    plan.get_by_role("button", name="Fit").click()
    minimap.wait_for(state="hidden")


def test_side_view_is_resized_and_keeps_its_width(page: Any, served: Served) -> None:
    plan = opened(page, served, 4, 2)
    before = plan.bounding_box()["width"]
    splitter = page.get_by_role("separator")
    splitter.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    is_wider = "width => document.querySelector('[data-testid=plan]').getBoundingClientRect().width > width"
    page.wait_for_function(is_wider, arg=before + 80)
    wider = plan.bounding_box()["width"]
    page.reload()
    plan.get_by_test_id("step").first.wait_for()
    page.wait_for_function(is_wider, arg=wider - 10)
    assert plan.bounding_box()["width"] < wider + 10


def test_steps_have_names_and_marks(page: Any, served: Served) -> None:
    plan = opened(page, served, 4, 2)
    step = plan.get_by_role("button", name="load_0, train_model, done")
    step.wait_for()
    expect(step).to_contain_text("✓")
