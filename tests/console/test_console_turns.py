"""The turn card of the console: the steps of a running turn, its end, its decisions, and its retries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.console_server import Served, open_view

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

AGENT = """
name: stations
description: Reads weather stations, trains a model, and orders sensors.
modules: [tests.support.console_stations]
"""
STATIONS = {"context_key": "stations", "capability": "list_stations"}
READINGS = {
    "context_key": "readings",
    "capability": "read_station",
    "for_each": {"of": "stations.codes", "on_failure": "collect"},
    "parameters": {"code": {"$from": "item"}},
}
RATES = {"context_key": "rates", "capability": "fetch_rates"}
MODEL = {"context_key": "model", "capability": "train_model"}
MEAN = {
    "context_key": "mean",
    "capability": "compute_mean",
    "when": {"of": "model.value", "is": ">", "than": 0.1},
}
ORDER = {"context_key": "order", "capability": "order_sensors"}


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("stations")
    os.environ["STATION_REPAIRED"] = str(folder / "repaired")
    found = Served(folder, agent=AGENT)
    try:
        yield found
    finally:
        found.end()
        del os.environ["STATION_REPAIRED"]


@pytest.fixture
def repaired(served: Served) -> Iterator[Path]:
    path = served.folder / "repaired"
    yield path
    path.unlink(missing_ok=True)


def opened(page: Any, served: Served, *steps: dict[str, Any]) -> str:
    thread = str(served.call("/api/threads", {})["thread_id"])
    body = {"message": "Do it", "plan": {"steps": list(steps)}}
    served.call(f"/api/threads/{thread}/runs", body)
    page.goto(f"{served.url}/?thread={thread}")
    return thread


def card(page: Any, status: str) -> Any:
    found = page.locator(f"[data-testid=turn][data-status={status}]")
    found.wait_for()
    return found


def test_failed_element_is_named_and_retried_alone(
    page: Any, served: Served, repaired: Path
) -> None:
    thread = opened(page, served, STATIONS, READINGS)
    for _ in range(2):
        failure = card(page, "partial").get_by_test_id("not-done")
        failure.get_by_text("S007", exact=False).first.wait_for()
        assert "gives no signal" in failure.inner_text()
        node = page.locator('[data-testid=step][data-key="readings"]')
        assert node.get_attribute("data-partial") is not None
        page.locator("[data-testid=message][data-outcome=partial]").wait_for()
        page.reload()
    repaired.touch()
    card(page, "partial").get_by_test_id("retry-step").click()
    card(page, "completed")
    results = served.call(f"/api/threads/{thread}")["results"]
    assert [key for key in results if key.startswith("readings")] == ["readings_7"]


def test_failed_step_is_retried_with_the_results_of_the_others(
    page: Any, served: Served, repaired: Path
) -> None:
    thread = opened(page, served, {**MODEL, "parameters": {"seconds": 0.1}}, MEAN)
    failed = card(page, "failed")
    assert "too few readings" in failed.get_by_test_id("not-done").inner_text()
    page.locator("[data-testid=message][data-outcome=failed]").wait_for()
    repaired.touch()
    failed.get_by_test_id("retry-step").click()
    card(page, "completed")
    results = served.call(f"/api/threads/{thread}")["results"]
    assert results["mean"]["success"]
    assert "model" not in results


def test_retried_step_asks_for_approval_again(page: Any, served: Served, repaired: Path) -> None:
    opened(page, served, {**ORDER, "parameters": {"note": "rare part"}})
    page.get_by_test_id("approve").click()
    failed = card(page, "failed")
    repaired.touch()
    failed.get_by_test_id("retry-step").click()
    page.get_by_test_id("approve").click()
    card(page, "completed")


def test_stopped_turn_names_its_steps(page: Any, served: Served) -> None:
    opened(
        page,
        served,
        STATIONS,
        {**MODEL, "parameters": {"seconds": 60}},
        {**MEAN, "context_key": "late"},
    )
    page.locator("[data-testid=turn-step][data-key=model][data-status=running]").wait_for()
    page.get_by_test_id("stop").click()
    for _ in range(2):
        stopped = card(page, "stopped")
        stopped.get_by_text("1 of 3 done").wait_for()
        assert "Not started: late" in stopped.inner_text().replace("\n", " ")
        page.reload()
        page.get_by_test_id("stop").wait_for(state="hidden")


def test_running_turn_shows_progress_and_retries(page: Any, served: Served) -> None:
    opened(page, served, RATES, {**MODEL, "parameters": {"seconds": 6}})
    line = page.locator("[data-testid=turn-step][data-key=rates]")
    line.get_by_text("retrying 3 of 4").wait_for()
    model = page.locator("[data-testid=turn-step][data-key=model]")
    model.get_by_text("epoch 4 of 10").wait_for()
    assert model.get_by_role("progressbar").evaluate("bar => bar.value") >= 0.4
    ended = card(page, "completed")
    assert ended.get_by_test_id("turn-step").first.is_hidden()
    ended.get_by_text("Steps", exact=True).click()
    assert ended.get_by_test_id("turn-step").count() == 2


def test_decision_leaves_a_record(page: Any, served: Served) -> None:
    opened(page, served, ORDER)
    question = page.get_by_test_id("question")
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    for _ in range(2):
        record = card(page, "completed").get_by_test_id("decisions")
        record.get_by_text("quantity 3 → 4").wait_for()
        assert "local approved with changes" in record.inner_text()
        page.reload()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_activity_tables_fit_their_view(page: Any, served: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, served, ORDER)
    page.get_by_test_id("approve").click()
    card(page, "completed")
    open_view(page, "Activity")
    page.get_by_test_id("activity").get_by_text("order_sensors").first.wait_for()
    for summary in page.get_by_test_id("activity").locator("summary").all():
        summary.click()
    cut = page.evaluate(
        "() => [...document.querySelectorAll('[data-testid=activity] .scroll')]"
        ".filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
    )
    assert cut == []


def test_menu_closes_on_an_outside_click(page: Any, served: Served) -> None:
    opened(page, served, STATIONS)
    card(page, "completed")
    page.get_by_text("Actions", exact=True).click()
    rename = page.get_by_role("button", name="Rename")
    rename.wait_for()
    page.get_by_test_id("answer").click()
    rename.wait_for(state="hidden")


def test_message_cancels_an_open_request_only_after_a_confirmation(
    page: Any, served: Served
) -> None:
    opened(page, served, ORDER)
    page.get_by_test_id("question").wait_for()
    for name in ("Keep the request", "Send and cancel the request"):
        page.get_by_test_id("message-input").fill("List the stations of the network")
        page.get_by_test_id("send").click()
        page.get_by_test_id("confirm-send").get_by_text("Order new sensors.").wait_for()
        assert page.get_by_test_id("question").is_visible()
        page.get_by_role("button", name=name).click()
        page.get_by_test_id("confirm-send").wait_for(state="hidden")
    page.get_by_test_id("question").wait_for(state="detached")
    assert page.get_by_test_id("message").nth(1).inner_text().count("List the stations") == 1


def test_used_login_link_opens_the_console_for_a_logged_in_user(page: Any, served: Served) -> None:
    page.goto(f"{served.url}/login?link=used")
    page.get_by_test_id("message-input").wait_for()


def test_new_thread_shows_the_agent_and_clickable_examples(page: Any, served: Served) -> None:
    page.get_by_role("heading", name="stations", exact=True).wait_for()
    page.get_by_text("Reads weather stations").wait_for()
    examples = page.get_by_test_id("examples").get_by_role("button")
    assert "What does a sensor cost?" in examples.all_inner_texts()
    examples.filter(has_text="Fetch the exchange rates").click()
    page.get_by_test_id("answer").get_by_role("button", name="17.25").wait_for()
    assert page.get_by_test_id("answer").get_by_role("button", name="017", exact=True).count() == 0


def test_approval_form_edits_dates_lists_and_rows(page: Any, served: Served) -> None:
    thread = opened(page, served, ORDER)
    question = page.get_by_test_id("question")
    question.get_by_label("Deliver on").fill("2026-12-24")
    assert question.get_by_label("Pickup at").get_attribute("type") == "datetime-local"
    question.get_by_label("Tags").fill("north")
    question.get_by_label("Tags").press("Enter")
    question.get_by_role("button", name="Remove urgent").click()
    assert question.get_by_test_id("chip").all_inner_texts() == ["roof×", "north×"]
    question.get_by_role("button", name="Add a row").click()
    question.get_by_test_id("row").nth(2).get_by_label("Part").fill("mast")
    question.get_by_role("button", name="Remove row 2").click()
    question.locator(".field[data-changed]").filter(has_text="was 2026-12-01").wait_for()
    question.get_by_label("Quantity").first.fill("900")
    question.get_by_test_id("approve").click()
    problem = question.get_by_test_id("problem")
    problem.wait_for()
    assert problem.inner_text() == "At most 100."
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    card(page, "completed")
    [step] = [
        one
        for one in served.call(f"/api/threads/{thread}")["plan"]["steps"]
        if one["context_key"] == "order"
    ]
    assert step["parameters"] == {
        "quantity": 4,
        "supplier": "Acme",
        "deliver_on": "2026-12-24",
        "pickup_at": None,
        "tags": ["roof", "north"],
        "positions": [{"part": "sensor", "quantity": 3}, {"part": "mast", "quantity": 1}],
        "express": False,
        "note": None,
    }


def test_threads_keep_their_title_and_are_found_by_any_message(page: Any, served: Served) -> None:
    page.get_by_test_id("message-input").fill("Fetch the exchange rates of Zanzibar")
    page.get_by_test_id("send").click()
    card(page, "completed")
    page.get_by_test_id("message-input").fill("List the stations of the network")
    page.get_by_test_id("send").click()
    page.get_by_test_id("answer").nth(1).wait_for()
    card(page, "completed")
    page.get_by_test_id("threads").get_by_text("Today").wait_for()
    current = page.locator("[data-testid=thread][aria-current=page]")
    current.get_by_text("Fetch the exchange rates of Zanzibar").wait_for()
    page.get_by_label("Search messages").fill("stations network")
    page.wait_for_timeout(600)
    current.wait_for()
    page.get_by_label("Search messages").fill("zanzibar unheard")
    current.wait_for(state="detached")


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_no_tab_is_cut(page: Any, served: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.get_by_test_id("message-input").wait_for()
    for name in ("Plan", "Timeline", "Inbox", "Activity", "Usage", "History", "Agent"):
        open_view(page, name)
        assert page.evaluate(
            "() => [...document.querySelectorAll('.tabs')]"
            ".every(one => one.scrollWidth <= one.clientWidth)"
        )
        assert page.locator(".tabbar [aria-selected=true]").get_attribute("data-part")


def test_step_detail_has_tabs_cells_and_runs_again(page: Any, served: Served) -> None:
    thread = opened(page, served, STATIONS, READINGS, RATES)
    card(page, "partial")
    page.locator('[data-testid=step][data-key="readings"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step readings")
    cells = detail.get_by_test_id("element")
    assert cells.count() == 12
    assert cells.first.get_attribute("aria-label") == "S007, failed"
    detail.get_by_text("gives no signal").first.wait_for()
    detail.get_by_role("tab", name="Input").click()
    detail.get_by_text("of: stations.codes").wait_for()
    detail.get_by_role("tab", name="Input").press("ArrowRight")
    detail.get_by_text("code: S001").wait_for()
    page.locator('[data-testid=step][data-key="rates"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step rates")
    detail.get_by_role("tab", name="Attempts").click()
    assert detail.get_by_role("listitem").count() == 3
    page.locator('[data-testid=step][data-key="stations"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step stations")
    detail.get_by_test_id("rerun").click()
    detail.get_by_text("Confirm: run stations, readings again").click()
    page.get_by_test_id("message").filter(has_text="Run again from stations").wait_for()
    card(page, "partial")
    results = served.call(f"/api/threads/{thread}")["results"]
    assert "stations" in results
    assert "rates" not in results
