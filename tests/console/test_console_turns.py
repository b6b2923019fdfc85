"""The turn card of the console: the steps of a running turn, its end, its decisions, and its retries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.console_server import Served, expect, open_view, settle

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
        expect(failure).to_contain_text(re.compile("S007.*gives no signal", re.DOTALL))
        node = page.locator('[data-testid=step][data-key="readings"][data-partial]')
        expect(node).to_be_attached()
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
    expect(failed.get_by_test_id("not-done")).to_contain_text("too few readings")
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
        expect(stopped).to_contain_text("Not started: late")
        plan = page.get_by_test_id("plan")
        expect(plan.get_by_role("button", name="model, train_model, interrupted")).to_be_attached()
        expect(plan.get_by_role("button", name="late, compute_mean, not run")).to_be_attached()
        page.reload()
        page.get_by_test_id("stop").wait_for(state="hidden")


def test_running_turn_shows_progress_and_retries(page: Any, served: Served, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    rates = {**RATES, "parameters": {"gate": str(gate)}}
    opened(page, served, rates, {**MODEL, "parameters": {"seconds": 1, "gate": str(gate)}})
    line = page.locator("[data-testid=turn-step][data-key=rates]")
    line.get_by_text("retrying 3 of 4").wait_for()
    model = page.locator("[data-testid=turn-step][data-key=model]")
    model.get_by_text("epoch 4 of 10").wait_for()
    expect(model.get_by_role("progressbar")).to_have_js_property("value", 0.4)
    gate.touch()
    ended = card(page, "completed")
    expect(ended.get_by_test_id("turn-step").first).to_be_hidden()
    ended.get_by_text("Steps", exact=True).click()
    expect(ended.get_by_test_id("turn-step")).to_have_count(2)


def test_rejected_step_is_shown_as_not_run(page: Any, served: Served) -> None:
    opened(page, served, ORDER)
    page.get_by_test_id("reject").click()
    for _ in range(2):
        expect(card(page, "failed").get_by_role("heading")).to_have_text("Rejected")
        step = page.get_by_test_id("plan").get_by_role(
            "button", name="order, order_sensors, not run"
        )
        expect(step).to_be_attached()
        page.reload()


def test_buttons_for_several_steps_name_their_scope(page: Any, served: Served) -> None:
    opened(page, served, ORDER, {**ORDER, "context_key": "spare"})
    question = page.get_by_test_id("question")
    expect(question.get_by_test_id("approve")).to_have_text("Approve all")
    expect(question.get_by_test_id("reject")).to_have_text("Reject all")
    question.get_by_test_id("reject").click()
    card(page, "failed")


def test_decision_leaves_a_record(page: Any, served: Served) -> None:
    opened(page, served, ORDER)
    question = page.get_by_test_id("question")
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    for _ in range(2):
        record = card(page, "completed").get_by_test_id("decisions")
        expect(record).to_contain_text("local approved with changes, quantity 3 → 4")
        page.reload()


def test_decision_made_before_the_events_arrive_shows_its_changes(
    page: Any, served: Served
) -> None:
    opened(page, served, ORDER)
    page.get_by_test_id("question").wait_for()
    runs: set[str] = set()

    def hold_first_run(route: Any) -> None:
        runs.add(route.request.url)
        if len(runs) > 1:
            route.continue_()

    page.route("**/api/runs/*/events", hold_first_run)
    page.reload()
    question = page.get_by_test_id("question")
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    record = card(page, "completed").get_by_test_id("decisions")
    expect(record).to_contain_text("quantity 3 → 4")


def test_decision_shows_its_changes_in_a_page_opened_before_the_turn_ends(
    page: Any, served: Served
) -> None:
    opened(page, served, ORDER)
    question = page.get_by_test_id("question")
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    card(page, "completed")

    def report_active_run(route: Any) -> None:
        thread = route.fetch().json()
        thread["runs"][0]["status"] = "running"
        route.fulfill(json=thread)

    page.route("**/api/threads/*", report_active_run, times=1)
    page.reload()
    record = card(page, "completed").get_by_test_id("decisions")
    expect(record).to_contain_text("quantity 3 → 4")


def test_decision_made_before_the_run_is_seen_to_end_shows_its_changes(
    page: Any, served: Served
) -> None:
    held: list[Any] = []
    page.route("**/api/runs/*/events", lambda route: held.append(route), times=1)
    page.get_by_test_id("message-input").fill("Order new sensors")
    page.get_by_test_id("send").click()
    question = page.get_by_test_id("question")
    question.get_by_label("Quantity").first.fill("4")
    question.get_by_test_id("approve").click()
    record = card(page, "completed").get_by_test_id("decisions")
    expect(record).to_contain_text("quantity 3 → 4")
    page.locator('[data-testid=step][data-key*="order"]').click()
    detail = page.get_by_test_id("plan").get_by_label(re.compile("^Step "))
    detail.get_by_role("tab", name="Attempts").click()
    expect(detail.get_by_role("listitem").first).to_contain_text("needs approval")
    assert len(held) == 1


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_activity_tables_fit_their_view(page: Any, served: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, served, ORDER)
    page.get_by_test_id("approve").click()
    card(page, "completed")
    open_view(page, "Activity")
    page.get_by_test_id("activity").get_by_text("order_sensors").first.wait_for()
    expect(page.get_by_test_id("activity").locator(".scroll")).not_to_have_count(0)
    page.wait_for_function(
        "() => { document.querySelectorAll('[data-testid=activity] details').forEach((one) => { one.open = true; });"
        " return [...document.querySelectorAll('[data-testid=activity] .scroll')]"
        ".every((one) => one.scrollWidth <= one.clientWidth); }"
    )


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
        expect(page.get_by_test_id("question")).to_be_visible()
        page.get_by_role("button", name=name).click()
        page.get_by_test_id("confirm-send").wait_for(state="hidden")
    page.get_by_test_id("question").wait_for(state="detached")
    message = page.get_by_test_id("message").nth(1)
    expect(message).to_contain_text("List the stations")
    assert message.inner_text().count("List the stations") == 1


def test_used_login_link_opens_the_console_for_a_logged_in_user(page: Any, served: Served) -> None:
    page.goto(f"{served.url}/login?link=used")
    page.get_by_test_id("message-input").wait_for()


def test_new_thread_shows_the_agent_and_clickable_examples(page: Any, served: Served) -> None:
    page.get_by_role("heading", name="stations", exact=True).wait_for()
    page.get_by_text("Reads weather stations").wait_for()
    examples = page.get_by_test_id("examples").get_by_role("button")
    expect(examples.filter(has_text="What does a sensor cost?")).to_be_visible()
    examples.filter(has_text="Fetch the exchange rates").click()
    page.get_by_test_id("answer").get_by_role("button", name="17.25").wait_for()
    part_of_name = page.get_by_test_id("answer").get_by_role("button", name="017", exact=True)
    expect(part_of_name).to_have_count(0)


def test_approval_form_edits_dates_lists_and_rows(page: Any, served: Served) -> None:
    thread = opened(page, served, ORDER)
    question = page.get_by_test_id("question")
    question.get_by_label("Deliver on").fill("2026-12-24")
    expect(question.get_by_label("Pickup at")).to_have_attribute("type", "datetime-local")
    question.get_by_label("Tags").fill("north")
    question.get_by_label("Tags").press("Enter")
    question.get_by_role("button", name="Remove urgent").click()
    expect(question.get_by_test_id("chip")).to_have_text(["roof×", "north×"])
    question.get_by_role("button", name="Add a row").click()
    question.get_by_test_id("row").nth(2).get_by_label("Part").fill("mast")
    question.get_by_role("button", name="Remove row 2").click()
    question.locator(".field[data-changed]").filter(has_text="was 2026-12-01").wait_for()
    question.get_by_label("Quantity").first.fill("900")
    question.get_by_test_id("approve").click()
    expect(question.get_by_test_id("problem")).to_have_text("At most 100.")
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
    with page.expect_response("**/api/threads?*query=stations*"):
        page.get_by_label("Search messages").fill("stations network")
    settle(page)
    current.wait_for()
    page.get_by_label("Search messages").fill("zanzibar unheard")
    current.wait_for(state="detached")


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_no_tab_is_cut(page: Any, served: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.get_by_test_id("message-input").wait_for()
    for name in ("Plan", "Timeline", "Inbox", "Activity", "Usage", "History", "Agent"):
        open_view(page, name)
        page.wait_for_function(
            "() => [...document.querySelectorAll('.tabs')]"
            ".every(one => one.scrollWidth <= one.clientWidth)"
        )


def test_menu_of_tabs_stays_open_while_a_view_loads(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    held: list[Any] = []
    page.route("**/console/timeline.js", lambda route: held.append(route))
    open_view(page, "Timeline")
    page.locator("details.more > summary").click()
    agent = page.get_by_role("tab", name="Agent")
    expect(agent).to_be_visible()
    held[0].continue_()
    expect(page.get_by_test_id("timeline")).to_be_attached()
    settle(page)
    agent.click(timeout=5_000)
    expect(page.get_by_role("heading", name="Agent", exact=True)).to_be_visible()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_arrow_keys_reach_each_tab(page: Any, served: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    tabs = page.locator(".tabs [role=tab]:visible")
    expect(page.locator(".tabs [role=tab][data-part=inbox]")).to_be_visible()
    tabs.first.focus()
    for number in range(1, tabs.count()):
        page.keyboard.press("ArrowRight")
        expect(tabs.nth(number)).to_be_focused()
        expect(tabs.nth(number)).to_have_attribute("aria-selected", "true")


def test_count_of_requests_cuts_no_tab(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 900, "height": 844})
    expect(page.locator(".tabs [role=tab][data-part=inbox]")).to_be_visible()
    page.evaluate(
        "() => { const tabs = document.querySelector('.tabs'); const main = document.querySelector('main');"
        " for (let share = 30; share < 70; share += 0.1) {"
        "   main.style.setProperty('--side', `${share}%`); dispatchEvent(new Event('resize'));"
        "   const inbox = document.querySelector('.tabs [data-part=inbox]');"
        "   const last = [...tabs.children].filter((one) => !one.hidden).at(-1);"
        "   if (inbox && tabs.getBoundingClientRect().right - last.getBoundingClientRect().right < 2) return share; }"
        " return null; }"
    )
    thread = served.run_plan({"steps": [ORDER]})
    expect(page.locator(".tabbar .count")).to_be_visible()
    page.wait_for_function(
        "() => (one => one.scrollWidth <= one.clientWidth)(document.querySelector('.tabs'))"
    )
    for question in served.call(f"/api/questions?thread_id={thread}")["items"]:
        served.call(f"/api/questions/{question['question_id']}", {"answer": "reject"})


def test_step_detail_has_tabs_cells_and_runs_again(page: Any, served: Served) -> None:
    thread = opened(page, served, STATIONS, READINGS, RATES)
    card(page, "partial")
    page.locator('[data-testid=step][data-key="readings"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step readings")
    cells = detail.get_by_test_id("element")
    expect(cells).to_have_count(12)
    expect(cells.first).to_have_attribute("aria-label", "S007, failed")
    detail.get_by_text("gives no signal").first.wait_for()
    detail.get_by_role("tab", name="Input").click()
    detail.get_by_text("of: stations.codes").wait_for()
    detail.get_by_role("tab", name="Input").press("ArrowRight")
    detail.get_by_text("code: S001").wait_for()
    page.locator('[data-testid=step][data-key="rates"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step rates")
    detail.get_by_role("tab", name="Attempts").click()
    expect(detail.get_by_role("listitem")).to_have_count(3)
    page.locator('[data-testid=step][data-key="stations"]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step stations")
    detail.get_by_test_id("rerun").click()
    detail.get_by_text("Confirm: run stations, readings again").click()
    page.get_by_test_id("message").filter(has_text="Run again from stations").wait_for()
    card(page, "partial")
    results = served.call(f"/api/threads/{thread}")["results"]
    assert "stations" in results
    assert "rates" not in results


def test_element_names_appear_when_the_inputs_arrive(page: Any, served: Served) -> None:
    held: list[Any] = []
    page.route("**/api/threads/*/files", lambda route: held.append(route))
    opened(page, served, STATIONS, READINGS)
    card(page, "partial")
    page.locator('[data-testid=step][data-key="readings"]').click()
    cells = page.get_by_test_id("plan").get_by_test_id("element")
    expect(cells.first).to_have_attribute("aria-label", "element 7, failed")
    for route in held:
        route.continue_()
    expect(cells.first).to_have_attribute("aria-label", "S007, failed")


def test_step_opened_during_the_run_can_run_again_afterwards(
    page: Any, served: Served, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    opened(page, served, STATIONS, {**RATES, "parameters": {"failures": 0, "gate": str(gate)}})
    page.locator('[data-testid=step][data-key="stations"][data-status=done]').click()
    detail = page.get_by_test_id("plan").get_by_label("Step stations")
    detail.wait_for()
    expect(detail.get_by_test_id("rerun")).to_have_count(0)
    gate.touch()
    detail.get_by_test_id("rerun").wait_for()
