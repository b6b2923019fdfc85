"""The documentation site answers the searches that readers make, on every screen size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(1200)]

SEARCHES = {
    "approval": "guides/ask_a_person.html",
    "human in the loop": "guides/ask_a_person.html",
    "guardrail": "guides/guard_against_injection.html",
    "checkpoint": "guides/persistence.html",
    "quickstart": "tutorial.html",
    "streaming": "guides/stream_to_a_web_client.html",
    "retry": "guides/limit_calls.html",
    "structured output": "guides/shape_the_answer.html",
}


@pytest.fixture
def page(browser: Any, site: Path) -> Any:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(("query", "expected"), SEARCHES.items())
def test_a_search_finds_its_guide_among_the_first_three(
    page: Any, site: Path, query: str, expected: str
) -> None:
    page.goto(f"file://{site}/search.html?q={query.replace(' ', '+')}")
    results = page.locator("#search-results ul.search li > a")
    results.first.wait_for()
    pages = [link.get_attribute("href").split("?")[0].split("#")[0] for link in results.all()]
    assert expected in list(dict.fromkeys(pages))[:3]


@pytest.mark.parametrize("size", [(1440, 900), (1024, 700), (390, 844)])
@pytest.mark.parametrize("name", ["index.html", "tutorial.html", "guides/ask_a_person.html"])
def test_no_page_or_program_is_cut(page: Any, site: Path, name: str, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"file://{site}/{name}")
    overflow = "element => element.scrollWidth - element.clientWidth"
    assert page.locator("html").evaluate(overflow) <= 0
    blocks = page.locator(".highlight pre").all()
    assert blocks
    assert [block.inner_text() for block in blocks if block.evaluate(overflow) > 1] == []


def test_the_home_page_shows_program_picture_and_figures_on_one_screen(
    page: Any, site: Path
) -> None:
    page.goto(f"file://{site}/index.html")
    last = page.locator(".home-cards .sd-card").last.bounding_box()
    assert last["y"] + last["height"] <= 900
    assert page.locator(".home-cards .sd-card").count() == 4
    assert page.locator(".home img").first.evaluate("image => image.naturalWidth") > 0


def test_code_can_be_copied_and_pages_can_be_edited(page: Any, site: Path) -> None:
    page.goto(f"file://{site}/tutorial.html")
    assert page.locator("button.copybtn").count() >= 5
    assert page.locator(".edit-this-page a").get_attribute("href").endswith("docs/tutorial.md")


def test_language_models_find_a_list_of_pages(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert "Tutorial: build an agent" in listed
    assert "requires_approval" in (site / "llms-full.txt").read_text(encoding="utf-8")
