"""Files in the console: brought along with a message, and what steps made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.console_server import Served, axe, expect, new_context

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

AGENT = """
name: load
modules: [capgraph.capabilities.contexts, capgraph.capabilities.query_data, capgraph.capabilities.plotting]
provided_types: [DATA_SOURCE]
serve: {uploads: {folder: brought, max_file_bytes: 100000}}
"""
CSV = "time,load\n" + "".join(
    f"2024-{month:02}-{day:02},{month * day}\n" for month in range(1, 13) for day in range(1, 29)
)


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("files"), agent=AGENT)
    try:
        yield found
    finally:
        found.end()


def brought(name: str, text: str = CSV) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/csv", "buffer": text.encode()}


def ask(page: Any, text: str) -> None:
    page.get_by_test_id("message-input").fill(text)
    page.get_by_test_id("send").click()


def test_attached_file_and_artifacts_are_shown(page: Any) -> None:
    page.get_by_test_id("attach").wait_for()
    page.get_by_test_id("file-input").set_input_files([brought("load.csv"), brought("no.exe")])
    uploads = page.get_by_test_id("upload")
    uploads.and_(page.locator("[data-status=done]")).get_by_text("load.csv").wait_for()
    failed = uploads.and_(page.locator("[data-status=failed]"))
    expect(failed.get_by_role("alert")).to_contain_text("not accepted")
    failed.get_by_role("button", name="Remove no.exe").click()
    ask(page, "Plot the average load by month")
    page.get_by_text("Attached: load.csv").wait_for()
    picture = page.get_by_test_id("plot").get_by_role("img")
    picture.wait_for()
    page.wait_for_function("() => document.querySelector('figure img').naturalWidth > 100")
    rows = page.get_by_test_id("table")
    rows.get_by_text("1–10 of 12").wait_for()
    rows.get_by_role("button", name="Next rows").click()
    rows.get_by_text("11–12 of 12").wait_for()
    expect(rows.get_by_role("row")).to_have_count(3)
    for kind, start in {"table": b"month,", "plot": b"\x89PNG"}.items():
        with page.expect_download() as download:
            page.get_by_test_id(kind).get_by_test_id("download").click()
        assert Path(download.value.path()).read_bytes().startswith(start)
    page.get_by_test_id("plot").get_by_test_id("came-from").click()
    detail = page.get_by_test_id("plan").locator("section.detail")
    detail.get_by_text("plotting", exact=True).first.wait_for()
    page.reload()
    page.get_by_test_id("plot").wait_for()
    page.get_by_text("Attached: load.csv").wait_for()
    # Asked again, it goes along again: below, and in place of what has been asked since.
    page.get_by_role("button", name="Retry").last.click()
    said = page.get_by_test_id("message")
    expect(said).to_have_count(4)
    said.nth(2).get_by_text("Attached: load.csv").wait_for()
    page.reload()
    expect(said).to_have_count(4)
    page.get_by_role("button", name="Retry").first.click()
    expect(said).to_have_count(2)
    page.get_by_text("Attached: load.csv").wait_for()
    page.get_by_test_id("plot").wait_for()


def test_file_is_attached_by_drag_and_drop(page: Any) -> None:
    page.get_by_test_id("attach").wait_for()
    held = page.evaluate_handle(
        """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "dropped.csv", { type: "text/csv" }));
            return data;
        }""",
        CSV,
    )
    page.dispatch_event("form.write", "drop", {"dataTransfer": held})
    page.locator("[data-testid=upload][data-status=done]").wait_for()
    ask(page, "What is the highest load?")
    page.get_by_test_id("answer").get_by_text("336").first.wait_for()


@pytest.mark.parametrize("width", [360, 1360])
def test_nothing_is_cut(browser: Any, served: Served, width: int) -> None:
    context = served.logged_in(new_context(browser, viewport={"width": width, "height": 800}))
    page = context.new_page()
    page.goto(served.url)
    page.get_by_test_id("file-input").set_input_files([brought(f"{'long' * 20}.csv")])
    page.locator("[data-testid=upload][data-status=done]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ask(page, "Plot the average load by month")
    page.get_by_test_id("plot").wait_for()
    page.get_by_test_id("table").get_by_text("1–10 of 12").wait_for()
    page.wait_for_function(
        "(n => n.scrollWidth - n.clientWidth <= 1)(document.querySelector('.log'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_axe_reports_no_serious_violation(browser: Any, served: Served) -> None:
    rules = axe()
    context = served.logged_in(new_context(browser, bypass_csp=True))
    page = context.new_page()
    page.goto(served.url)
    page.get_by_test_id("attach").wait_for()
    page.get_by_test_id("file-input").set_input_files([brought("load.csv"), brought("no.exe")])
    page.locator("[data-testid=upload][data-status=done]").wait_for()
    page.locator("[data-testid=upload][data-status=failed]").wait_for()
    page.add_script_tag(path=rules)
    found = page.evaluate("() => axe.run()")["violations"]
    ask(page, "Plot the average load by month")
    page.get_by_test_id("table").get_by_text("1–10 of 12").wait_for()
    found += page.evaluate("() => axe.run()")["violations"]
    context.close()
    serious = [one["id"] for one in found if one["impact"] in {"serious", "critical"}]
    assert serious == []
