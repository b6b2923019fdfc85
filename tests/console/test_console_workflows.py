"""What a person meets more rarely: two people, unknown outcomes, other plans, waits, exports."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capgraph.serve.tokens import issue_token
from tests.support.console_server import (
    Served,
    expect,
    new_context,
    open_view,
    tab_of,
    wait_until,
)

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

AGENT = """
name: more
modules: [tests.support.console_more]
permissions:
  roles:
    - {role: clerk, mode: full_access}
"""


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rarer")
    os.environ["LAUNCHED"] = str(folder / "launched")
    found = Served(folder, agent=AGENT.partition("permissions")[0])
    try:
        yield found
    finally:
        found.end()
        del os.environ["LAUNCHED"]


def opened(page: Any, served: Served, *steps: dict[str, Any]) -> str:
    """Begin a plan in a thread of its own, and open that."""
    thread = str(served.call("/api/threads", {})["thread_id"])
    body = {"message": "Do it", "plan": {"steps": list(steps)}}
    served.call(f"/api/threads/{thread}/runs", body)
    page.goto(f"{served.url}/?thread={thread}")
    return thread


def status(page: Any, key: str, word: str) -> Any:
    step = page.locator(f'[data-testid=step][data-key="{key}"][data-status={word}]')
    step.wait_for(state="attached")
    return step


FIRST = {"context_key": "first", "capability": "base"}


def test_both_plan_versions_are_shown_after_a_reload(page: Any) -> None:
    page.get_by_test_id("message-input").fill("Ask the station for the weather")
    page.get_by_test_id("send").click()
    page.get_by_test_id("answer").get_by_text("fine").wait_for()
    for _ in range(2):
        plan = page.get_by_test_id("plan")
        plan.get_by_role("button", name="Version 1").click()
        for version in (1, 2):
            plan.get_by_role("heading", name=f"Version {version}").wait_for()
        expect(plan.locator("[data-key=weather][data-status=failed]")).to_have_count(1)
        expect(plan.locator("[data-key=weather][data-status=done]")).to_have_count(1)
        page.reload()


def test_wait_is_shown_and_resumed(page: Any, served: Served) -> None:
    step = {**FIRST, "wait_for": {"key": "go", "within": "1h"}}
    thread = opened(page, served, step)
    for _ in range(2):
        status(page, "first", "waits").click()
        page.get_by_test_id("plan").locator("section.detail").get_by_text(
            "go", exact=True
        ).first.wait_for()
        page.reload()
    served.call(f"/api/threads/{thread}/signals/go", {"value": 1})
    status(page, "first", "done")
    opened(page, served, step)
    status(page, "first", "waits")
    page.get_by_test_id("stop").click()
    page.locator("[data-testid=thread] [data-outcome=stopped]").first.wait_for()


def test_for_each_conditions_and_reviews_are_marked(page: Any, served: Served) -> None:
    opened(
        page,
        served,
        {"context_key": "weather", "capability": "satellite", "look_again": True},
        {
            "context_key": "each",
            "capability": "one_day",
            "for_each": {"of": "weather.days"},
            "parameters": {"day": {"$from": "item"}},
        },
        {**FIRST, "when": {"of": "weather.words", "is": "==", "than": "bad"}},
    )
    each = status(page, "each", "done")
    expect(each).to_contain_text("3 / 3")
    expect(each).to_contain_class("each")
    expect(status(page, "first", "skipped")).to_contain_class("if")
    status(page, "weather", "done").click()
    page.get_by_test_id("plan").get_by_text("Reviews plan after step").wait_for()


LAUNCH = {"context_key": "go", "capability": "launch", "parameters": {"amount": 3}}


def test_step_is_always_allowed_in_the_thread(page: Any, served: Served) -> None:
    Path(os.environ["LAUNCHED"]).touch()
    thread = opened(page, served, LAUNCH)
    page.get_by_label("Always allow in this thread").check()
    page.get_by_test_id("approve").click()
    status(page, "go", "done")
    page.get_by_test_id("stop").wait_for(state="hidden")
    served.call(
        f"/api/threads/{thread}/runs", {"plan": {"steps": [{**LAUNCH, "context_key": "two"}]}}
    )
    status(page, "two", "done")
    expect(page.get_by_test_id("question")).to_have_count(0)
    Path(os.environ["LAUNCHED"]).unlink()


def test_respond_instead_ends_the_question(page: Any, served: Served) -> None:
    thread = opened(page, served, LAUNCH)
    page.get_by_test_id("reason").fill("do it yourself")
    page.get_by_role("button", name="Respond instead").click()
    page.get_by_test_id("question").wait_for(state="detached")
    page.get_by_test_id("answer").get_by_text("do it yourself").wait_for()
    assert served.call(f"/api/threads/{thread}")["outcome"] != "waiting"


def test_unknown_outcome_shows_the_idempotency_key(page: Any, served: Served) -> None:
    thread = opened(page, served, LAUNCH)
    page.get_by_test_id("approve").click()
    status(page, "go", "running")
    wait_until(Path(os.environ["LAUNCHED"]).exists)
    served.kill()
    served.begin()
    served.logged_in(page.context)
    page.goto(f"{served.url}/?thread={thread}")
    page.get_by_text("It is unknown whether this effect happened.").wait_for()
    question = page.get_by_test_id("question")
    expect(question).to_contain_text("Idempotency key sent to the external system:")
    question.get_by_role("button", name="Mark as done").click()
    status(page, "go", "done")


def test_message_is_retried(page: Any) -> None:
    page.get_by_test_id("message-input").fill("Make the first report")
    page.get_by_test_id("send").click()
    page.get_by_test_id("answer").wait_for()
    again = page.get_by_role("button", name="Retry").first
    again.wait_for()
    again.click()
    page.get_by_test_id("answer").nth(1).wait_for()
    said = page.locator("[data-testid=message][data-role=user]")
    expect(said).to_contain_text(["Make the first report"] * 2)


def test_earlier_message_is_retried_in_a_fork(page: Any) -> None:
    for number, text in enumerate(("Make the first report", "Ask the satellite for the weather")):
        page.get_by_test_id("message-input").fill(text)
        page.get_by_test_id("send").click()
        page.get_by_test_id("answer").nth(number).wait_for()
        page.locator(".working[data-on]").wait_for(state="detached")
    first = page.get_by_test_id("message").nth(1)
    first.get_by_role("button", name="Sources").click()
    first.locator(".sources").get_by_role("button", name="report").click()
    plan = page.get_by_test_id("plan")
    plan.get_by_text("text: first").wait_for()
    expect(plan.get_by_test_id("step").first).to_have_text(re.compile("^report"))
    plan.get_by_role("button", name="Back to the current plan").click()
    plan.locator('[data-key^="weather"]').first.wait_for()
    before = page.url
    first.get_by_role("button", name="Retry").click()
    page.wait_for_function("url => location.href !== url", arg=before)
    page.get_by_test_id("answer").wait_for()
    page.locator(".working[data-on]").wait_for(state="detached")
    expect(page.get_by_test_id("message")).to_have_count(2)
    expect(page.get_by_test_id("message").first).to_contain_text("Make the first report")


def test_thread_is_filtered_exported_and_forked(page: Any, served: Served) -> None:
    opened(page, served, FIRST)
    page.get_by_test_id("answer").wait_for()
    page.get_by_text("Actions", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert json.loads(Path(download.value.path()).read_text())["messages"]
    page.get_by_label("Outcome").select_option("completed")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-testid=thread] [data-outcome]')]"
        ".every(one => one.dataset.outcome === 'completed')"
    )
    before = page.url
    page.get_by_test_id("message").last.get_by_role("button", name="Fork").click()
    page.wait_for_function("url => location.href !== url", arg=before)
    page.get_by_test_id("answer").wait_for()


def test_two_approvers_are_notified(browser: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    names = {name: issue_token(tokens, name, role="clerk") for name in ("ann", "bob")}
    server = Served(tmp_path, auth=tokens, agent=AGENT)
    pages = {}
    try:
        for name, token in names.items():
            context = new_context(browser, permissions=["notifications"])
            page = pages[name] = context.new_page()
            page.goto(server.url)
            page.get_by_test_id("token-input").fill(token)
            page.get_by_test_id("login").click()
            page.get_by_test_id("message-input").wait_for()
        ann, bob = pages.values()
        ann.get_by_test_id("message-input").fill("Pay")
        ann.get_by_test_id("send").click()
        ann.get_by_test_id("question").get_by_text(
            "2 approvals required; approved by: nobody"
        ).wait_for()
        ann.get_by_test_id("approve").click()
        ann.get_by_test_id("question").get_by_text(
            "2 approvals required; approved by: ann."
        ).wait_for()
        open_view(bob, "Inbox")
        question = bob.get_by_test_id("inbox").get_by_test_id("question")
        question.get_by_text("2 approvals required; approved by: ann.").wait_for()
        expect(bob).to_have_title(re.compile(r"^\(1\)"))
        question.get_by_test_id("approve").click()
        question.wait_for(state="detached")
        ann.get_by_test_id("answer").wait_for()
        paid = ann.locator("[data-testid=step][data-status=done]").first
        paid.wait_for(state="attached")
        expect(paid).not_to_contain_text("×")
    finally:
        for page in pages.values():
            page.context.close()
        server.end()


def tab_to(page: Any, target: Any) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if target.evaluate("one => one === document.activeElement"):
            return
    pytest.fail("the element cannot be reached by Tab")


def open_inbox_by_keyboard(page: Any) -> None:
    tab_to(page, page.locator(".tabbar [role=tab][aria-selected=true]"))
    for _ in range(8):
        if tab_of(page, "Inbox").get_attribute("aria-selected") == "true":
            return
        page.keyboard.press("ArrowRight")
    pytest.fail("the inbox cannot be reached by the arrow keys")


def test_two_approvers_decide_by_keyboard_without_permissions(browser: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    names = {name: issue_token(tokens, name) for name in ("ann", "bob", "carol")}
    server = Served(tmp_path, auth=tokens, agent=AGENT.partition("permissions")[0])
    pages = {}
    try:
        for name, token in names.items():
            page = pages[name] = new_context(browser).new_page()
            page.goto(server.url)
            expect(page.get_by_test_id("token-input")).to_be_focused()
            page.keyboard.type(token)
            page.keyboard.press("Enter")
            page.get_by_test_id("message-input").wait_for()
        ann, bob, carol = pages.values()
        tab_to(ann, ann.get_by_test_id("message-input"))
        ann.keyboard.type("Transfer the money")
        ann.keyboard.press("Enter")
        card = ann.get_by_test_id("question")
        card.get_by_test_id("cannot-decide").wait_for()
        expect(card.get_by_role("button")).to_have_count(0)
        text = card.inner_text()
        assert "any user except the requester" in text
        assert text.count("2 approvals required") == 1
        assert text.count("Transfer the money") == 1
        expect(card.locator("dt", has_text="amount").locator("+ dd")).to_have_text("100")
        assert not re.search(r"\d{4}-\d\d-\d\dT|[0-9a-f]{20}", text)
        for user in (bob, carol):
            open_inbox_by_keyboard(user)
            question = user.get_by_test_id("inbox").get_by_test_id("question")
            question.get_by_text("Requested by ann").wait_for()
            tab_to(user, question.get_by_test_id("approve"))
            user.keyboard.press("Enter")
            if user is bob:
                question.get_by_text("You approved this step").wait_for()
                expect(question.get_by_role("button")).to_have_count(0)
        card.wait_for(state="detached")
        ann.locator("[data-testid=turn][data-status=completed]").wait_for()
    finally:
        for page in pages.values():
            page.context.close()
        server.end()


def test_system_notification_after_consent(page: Any, served: Served) -> None:
    page.add_init_script(
        "window.told = []; window.Notification = class { static permission = 'granted';"
        " constructor(title, more) { window.told.push([title, more.body]); } };"
        "Object.defineProperty(document, 'hidden', { get: () => true });"
    )
    page.clock.install()
    page.goto(served.url)
    page.get_by_test_id("threads").wait_for()
    thread = served.run_plan({"steps": [LAUNCH]})
    expected = ["capgraph needs an answer", "Launch."]

    def is_notified() -> bool:
        page.clock.fast_forward(30_000)  # a hidden page polls
        return expected in page.evaluate("window.told")

    wait_until(is_notified)
    expect(page).to_have_title(re.compile(r"^\("))
    [question] = served.call(f"/api/questions?thread_id={thread}")["items"]
    served.call(f"/api/questions/{question['question_id']}", {"answer": "reject"})
