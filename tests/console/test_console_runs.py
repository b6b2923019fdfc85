"""Recorded runs in the console: comparison side by side, replay, and read-only links."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.console_server import Served, axe, expect, new_context, open_view

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""


def crunch(key: str, size: int, *inputs: str) -> dict[str, Any]:
    return {
        "context_key": key,
        "capability": "crunch",
        "parameters": {"size": size},
        "inputs": [{"SMALL": one} for one in inputs],
    }


def completed(page: Any, served: Served, title: str, *steps: dict[str, Any]) -> str:
    """Run a plan in a new thread with a title, and return the thread."""
    thread = served.call("/api/threads", {"title": title})["thread_id"]
    served.call(f"/api/threads/{thread}/runs", {"message": title, "plan": {"steps": list(steps)}})
    page.goto(f"{served.url}/?thread={thread}")
    expect(page.locator("[data-testid=turn][data-status=completed]")).to_be_visible()
    return str(thread)


def test_runs_of_two_threads_are_compared_side_by_side(page: Any, served: Served) -> None:
    first = completed(page, served, "Short work", crunch("one", 1))
    open_view(page, "History")
    page.locator(f'[data-run="{first} 1"]').check()
    other = served.call("/api/threads", {"title": "Long work"})["thread_id"]
    plan = {"steps": [crunch("one", 2), crunch("two", 1, "one")]}
    served.call(f"/api/threads/{other}/runs", {"message": "Long work", "plan": plan})
    page.get_by_test_id("thread").filter(has_text="Long work").click()
    expect(page.locator("[data-testid=turn][data-status=completed]")).to_be_visible()
    open_view(page, "History")
    page.locator(f'[data-run="{other} 1"]').check()
    shown = page.get_by_test_id("comparison")
    expect(shown.get_by_role("columnheader", name="Run 1 · Short work").first).to_be_visible()
    expect(shown.get_by_role("columnheader", name="Run 1 · Long work").first).to_be_visible()
    two = shown.get_by_role("row").filter(has_text="two")
    expect(two.first).to_contain_text("not planned")
    expect(shown.get_by_role("row").filter(has_text="Steps")).to_contain_text("≠")
    expect(shown.get_by_role("row").filter(has_text="Cost")).not_to_contain_text("≠")
    page.get_by_role("button", name="Remove Run 1 · Short work").click()
    expect(shown).to_be_empty()


def test_run_is_replayed_with_the_current_code(page: Any, served: Served) -> None:
    thread = completed(page, served, "Replay me", crunch("one", 1))
    open_view(page, "History")
    page.get_by_role("button", name="Replay run 1").click()
    shown = page.get_by_test_id("comparison")
    expect(shown.get_by_role("status")).to_have_text("No differences.")
    expect(shown.get_by_role("columnheader", name="Replayed now").first).to_be_visible()
    assert len(served.call(f"/api/threads/{thread}")["runs"]) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_link_shows_a_run_to_a_visitor_until_it_is_revoked(
    browser: Any, page: Any, served: Served, scheme: str
) -> None:
    completed(page, served, "Share me", crunch("one", 1))
    open_view(page, "History")
    page.get_by_role("button", name="Share run 1").click()
    page.get_by_label("Lifetime").select_option("1")
    page.get_by_role("button", name="Create link").click()
    url = page.get_by_test_id("link").input_value()
    context = new_context(browser, color_scheme=scheme, bypass_csp=True)
    visitor = context.new_page()
    visitor.goto(url)
    expect(visitor.get_by_test_id("request")).to_have_text("Share me")
    expect(visitor.get_by_test_id("steps").get_by_role("listitem")).to_contain_text(["crunch"])
    expect(visitor.locator("button, input, form, script, a")).to_have_count(0)
    assert context.cookies() == []
    visitor.set_viewport_size({"width": 390, "height": 844})
    assert visitor.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.add_script_tag(path=axe())
    assert visitor.evaluate("() => axe.run()")["violations"] == []
    page.get_by_role("button", name="Revoke the link to run 1").click()
    expect(page.get_by_test_id("links")).to_be_empty()
    assert visitor.goto(url).status == 404
    expect(visitor.get_by_role("alert")).to_be_visible()
    context.close()
