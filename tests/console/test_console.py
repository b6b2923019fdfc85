"""The console in a real browser, as a person meets it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from capgraph.serve.tokens import issue_token
from tests.support.console_agent import HOSTILE
from tests.support.console_server import (
    PATIENCE_MS,
    Served,
    axe,
    expect,
    new_context,
    open_view,
    settle,
    tab_of,
)

pytestmark = pytest.mark.may_block
"""Playwright's loop runs in this thread; the server is another process."""

ASK = "read the level of the tank, get the forecast and open the valve"
ROOT = Path(__file__).parents[2]
PARTS = ["Plan", "Timeline", "Inbox", "Activity", "Usage", "History", "Agent"]


def ask(page: Any, text: str = ASK) -> None:
    page.get_by_test_id("message-input").fill(text)
    page.get_by_test_id("send").click()


def status(page: Any, key: str, word: str, timeout: float = PATIENCE_MS) -> None:
    step = page.locator(f'[data-testid=step][data-key="{key}"][data-status={word}]')
    expect(step).to_be_attached(timeout=timeout)


def test_login_page_is_shown_without_a_session(browser: Any, served: Any) -> None:
    context = new_context(browser)
    page = context.new_page()
    page.goto(served.url)
    expect(page.get_by_test_id("token-input")).to_be_visible()
    assert page.request.get(f"{served.url}/console/app.js").status == 401
    context.close()


def test_first_load_is_small(context: Any, served: Any) -> None:
    page = context.new_page()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(len(answer.body())))
    page.goto(served.url)
    page.get_by_test_id("threads").wait_for()
    page.wait_for_load_state("networkidle")
    assert len(sizes) <= 25
    assert sum(sizes) < 100_000


def test_edit_is_rejected_then_accepted(page: Any, served: Any) -> None:
    ask(page)
    question = page.get_by_test_id("question")
    question.wait_for()
    status(page, "open_valve", "asks")
    expect(page).to_have_title(re.compile(r"^\(\d+\)"))
    expect(page).to_have_url(re.compile(r"thread=\w+"))
    question.get_by_label("Litres").fill("-5")
    question.get_by_test_id("approve").click()
    problem = question.get_by_test_id("problem")
    expect(problem).to_have_text("More than 0.")
    field = question.get_by_label("Litres")
    expect(field).to_have_attribute("aria-invalid", "true")
    description = re.compile(re.escape(problem.get_attribute("id")))
    expect(field).to_have_attribute("aria-describedby", description)
    field.fill("7.5")
    question.get_by_test_id("approve").click()
    page.get_by_test_id("answer").wait_for()
    status(page, "open_valve", "done")
    expect(page.get_by_test_id("question")).to_have_count(0)
    open_view(page, "Activity")
    page.get_by_test_id("activity").get_by_text("open_valve").first.wait_for()
    page.get_by_role("button", name="Verify").click()
    page.get_by_text("The audit log is valid.").wait_for()
    open_view(page, "Usage")
    page.get_by_test_id("usage").wait_for()
    open_view(page, "Timeline")
    page.get_by_test_id("timeline").locator("rect.span").nth(2).wait_for()


def test_reject_with_a_reason(page: Any, served: Any) -> None:
    ask(page)
    page.get_by_test_id("reason").fill("not today")
    page.get_by_test_id("reject").click()
    page.get_by_test_id("answer").wait_for()
    page.get_by_test_id("stop").wait_for(state="hidden")
    thread = page.url.split("thread=")[1].split("#")[0]
    assert "not today" in json.dumps(served.call(f"/api/threads/{thread}/state"))


def test_rejected_step_has_no_open_question(page: Any) -> None:
    ask(page)
    page.get_by_test_id("reject").click()
    page.get_by_test_id("answer").wait_for()
    page.get_by_test_id("stop").wait_for(state="hidden")
    asking = page.locator("[data-testid=step][data-status=asks]")
    expect(asking).to_have_count(0)
    page.reload()
    page.get_by_test_id("answer").wait_for()
    page.locator("[data-testid=step][data-status=done]").first.wait_for(state="attached")
    page.wait_for_load_state("networkidle")
    expect(asking).to_have_count(0)


def test_model_output_is_shown_as_text(page: Any) -> None:
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    ask(page, "get the forecast: will it rain?")
    answer = page.get_by_test_id("answer")
    answer.wait_for()
    expect(answer).to_contain_text("javascript:alert(3)")
    expect(answer).to_contain_text("\\u202e")
    expect(answer.locator("img, script, iframe")).to_have_count(0)
    expect(answer.locator("a")).to_have_count(1)
    text = answer.inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert "\u202e" in HOSTILE
    assert "\u202e" not in text
    assert asked == []


def test_long_line_is_shown_in_part(page: Any, served: Any) -> None:
    ask(page, "x" * 100_000)
    page.get_by_role("button", name="Show all 100,000 characters").wait_for()


def test_number_links_to_its_step(page: Any) -> None:
    ask(page, "get the forecast: will it rain?")
    page.get_by_test_id("answer").get_by_role("button", name="12.0").click()
    detail = page.get_by_test_id("plan").get_by_label(re.compile("Step forecast"))
    detail.get_by_text("rain_forecast", exact=True).wait_for()
    detail.get_by_text("rain_mm: 12").first.wait_for()


def slow(count: int = 3, seconds: float = 0.5, gate: Path | None = None) -> dict[str, Any]:
    """Return a plan of consecutive steps, the second of which waits for the gate."""
    steps = [
        {
            "context_key": f"s{n}",
            "capability": "crunch",
            "parameters": {"seconds": seconds, "gate": str(gate or "") if n == 1 else ""},
            "inputs": [{"SMALL": f"s{n - 1}"}] if n else [],
        }
        for n in range(count)
    ]
    return {"steps": steps}


def test_reload_during_a_run_continues(page: Any, served: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    thread = served.run_plan(slow(gate=gate))
    page.goto(f"{served.url}/?thread={thread}")
    status(page, "s1", "running")
    page.reload()
    status(page, "s0", "done")
    status(page, "s1", "running")
    gate.touch()
    status(page, "s2", "done")
    expect(page.get_by_test_id("stop")).to_be_hidden()


def test_reload_during_a_run_does_not_duplicate_attempts(
    page: Any, served: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    thread = served.run_plan(slow(gate=gate))
    page.goto(f"{served.url}/?thread={thread}")
    status(page, "s1", "running")
    page.reload()
    status(page, "s1", "running")
    gate.touch()
    status(page, "s2", "done")
    page.get_by_test_id("stop").wait_for(state="hidden")
    for key in ("s0", "s1", "s2"):
        step = page.locator(f'[data-testid=step][data-key="{key}"]')
        expect(step).not_to_contain_text("×")


def test_run_is_stopped(page: Any, served: Any) -> None:
    thread = served.run_plan(slow(seconds=60))
    page.goto(f"{served.url}/?thread={thread}")
    status(page, "s0", "running")
    page.get_by_test_id("stop").click()
    page.locator("[data-outcome=stopped]").first.wait_for()
    expect(page.get_by_test_id("send")).to_be_enabled()


def test_eight_tabs_show_the_same_events(context: Any, page: Any, served: Any) -> None:
    thread = served.run_plan(slow(seconds=3))
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"{served.url}/?thread={thread}")
    for tab in tabs:
        status(tab, "s2", "done")


def test_other_tab_shows_a_new_run(context: Any, page: Any, served: Any) -> None:
    ask(page)
    page.get_by_test_id("question").wait_for()
    other = context.new_page()
    other.goto(page.url)
    other.get_by_test_id("question").wait_for()
    page.get_by_test_id("approve").click()
    other.get_by_test_id("answer").wait_for()
    expect(other.get_by_test_id("question")).to_have_count(0)


def test_end_of_a_long_conversation_is_shown(page: Any, served: Any) -> None:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"Word {n}."} for n in range(90)]
    asked = {"messages": [*said, {"role": "user", "content": "Read the level of the tank"}]}
    told = served.call("/v1/chat/completions", asked)
    page.goto(f"{served.url}/?thread={told['metadata']['thread_id']}")
    messages = page.get_by_test_id("message")
    expect(messages).to_have_count(60)
    expect(messages.last).to_contain_text("2480.5")
    page.get_by_role("button", name="Earlier messages").press("Enter")
    expect(messages).to_have_count(92)
    expect(messages.first).to_contain_text("Word 0.")
    ask(page)
    page.get_by_test_id("question").wait_for()
    expect(messages).to_have_count(93)
    assert page.evaluate("document.scrollingElement.scrollTop") == 0


def test_inbox_contains_questions_of_all_threads(page: Any, served: Any) -> None:
    plan = {
        "steps": [
            {"context_key": "level", "capability": "read_level"},
            {
                "context_key": "open",
                "capability": "open_valve",
                "inputs": [{"LEVEL": "level"}],
            },
        ]
    }
    threads = [served.run_plan(plan) for _ in range(2)]
    open_view(page, "Inbox")
    inbox = page.get_by_test_id("inbox")
    inbox.get_by_test_id("question").nth(len(threads) - 1).wait_for()
    for _ in threads:
        before = inbox.get_by_test_id("question").count()
        inbox.get_by_test_id("reject").first.click()
        page.wait_for_function(
            "n => document.querySelectorAll('[data-testid=question]').length < n", arg=before
        )


def test_threads_are_created_renamed_forked_searched_and_deleted(page: Any, served: Any) -> None:
    ask(page, "get the forecast: will it rain?")
    page.get_by_test_id("answer").wait_for()
    first = page.url.split("#")[0]
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New title").fill("Rain of November")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_test_id("thread").filter(has_text="Rain of November").wait_for()
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Fork", exact=True).first.click()
    page.wait_for_function("url => !location.href.startsWith(url)", arg=first)
    page.get_by_test_id("answer").wait_for()
    page.get_by_test_id("new-thread").click()
    page.get_by_text("The plan appears next to the conversation").wait_for()
    page.get_by_label("Search messages").fill("November")
    found = page.get_by_test_id("thread")
    expect(found.filter(has_not_text="November")).to_have_count(0)
    page.get_by_test_id("thread").first.click()
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete permanently").click()
    page.get_by_text("The plan appears next to the conversation").wait_for()


def test_message_is_edited_in_a_fork(page: Any) -> None:
    ask(page, "get the forecast: will it rain?")
    page.get_by_test_id("answer").wait_for()
    page.get_by_role("button", name="Copy").last.wait_for()
    ask(page, "read the level of the tank")
    page.get_by_test_id("answer").nth(1).wait_for()
    page.get_by_role("button", name="Edit and fork").last.wait_for()
    page.get_by_role("button", name="Edit and fork").last.click()
    page.wait_for_function(
        "() => document.querySelector('[data-testid=message-input]').value.startsWith('read')"
    )
    expect(page.get_by_test_id("message")).to_have_count(2)


def big(count: int = 500) -> dict[str, Any]:
    """Twenty chains of twenty-five."""
    steps = []
    for n in range(count):
        before = n - 20
        inputs = [{"SMALL": f"s{before}"}] if before >= 0 else []
        steps.append({"context_key": f"s{n}", "capability": "crunch", "inputs": inputs})
    return {"steps": steps}


def longest_task(page: Any, served: Any) -> float:
    thread = served.call("/api/threads", {})["thread_id"]
    browser = page.context.browser
    browser.start_tracing(page=page, categories=["toplevel"])
    served.call(f"/api/threads/{thread}/runs", {"plan": big()})
    page.goto(f"{served.url}/?thread={thread}")
    status(page, "s499", "done", 2 * PATIENCE_MS)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    expect(page.get_by_test_id("step").nth(499)).to_be_attached()
    mains = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    # Time of the processor, which what else the machine does makes longer, and never shorter.
    return max(one.get("tdur", 0) for one in events if (one["pid"], one["tid"]) in mains)


def test_plan_with_500_steps_renders_fast(page: Any, served: Any) -> None:
    assert any(longest_task(page, served) < 120_000 for _ in range(4))


def test_console_is_usable_by_keyboard(page: Any) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type(ASK)
    page.keyboard.press("Enter")
    page.get_by_test_id("question").wait_for()
    step = page.get_by_test_id("step").first
    step.focus()
    page.keyboard.press("ArrowRight")
    other = page.locator("[data-testid=step]:focus:not([data-key=level])")
    expect(other).to_be_attached()
    page.keyboard.press("Enter")
    page.get_by_test_id("plan").get_by_label(re.compile("^Step ")).wait_for()
    page.get_by_test_id("approve").focus()
    page.keyboard.press("Enter")
    page.get_by_test_id("answer").wait_for()


@pytest.mark.parametrize("width", [360, 800, 1360, 2560])
def test_layout_has_no_overflow_at_any_width(browser: Any, served: Any, width: int) -> None:
    context = served.logged_in(new_context(browser, viewport={"width": width, "height": 800}))
    page = context.new_page()
    page.goto(served.url)
    ask(page)
    page.get_by_test_id("question").wait_for()
    for part in ["Chat", "Threads", *PARTS]:
        if tab_of(page, part).get_attribute("hidden") is not None:
            continue
        open_view(page, part)
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            "() => [...document.querySelectorAll('main > :not([hidden])')]"
            ".filter(one => one.scrollWidth > one.clientWidth + 1 && one.role !== 'tablist')"
            ".map(one => one.className)"
        )
        assert wide == [], part
    context.close()


def test_demo_command_opens_its_thread(browser: Any, tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked, printed = (
        found.replace("$$thread", "demo-1")
        for found in re.findall(r"\$\(BIN\)/capgraph ((?:ask|serve) .* \$\$thread)", makefile)
    )
    (question,) = re.findall(r'"(What .*)"', makefile)
    database = ["--db", f"sqlite:///{tmp_path / 'threads.db'}"]
    command = [sys.executable, "-m", "capgraph", *shlex.split(asked), question, *database]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = [word.replace("configs/", f"{ROOT}/configs/") for word in shlex.split(printed)[1:]]
    server = Served(tmp_path, words=words)
    context = new_context(browser)
    try:
        page = context.new_page()
        page.goto(server.link)
        assert page.url == f"{server.url}/?thread=demo-1"
        page.get_by_test_id("message").filter(has_text=question).wait_for()
        page.get_by_test_id("answer").filter(has_text="2015").wait_for()
    finally:
        context.close()
        server.end()


def test_open_page_continues_after_a_restart(browser: Any, tmp_path: Path) -> None:
    tokens, gate = tmp_path / "tokens.json", tmp_path / "gate"
    token = issue_token(tokens, "ada")
    server = Served(tmp_path, auth=tokens)
    context = new_context(browser)
    try:
        page = context.new_page()
        page.goto(server.url)
        page.get_by_test_id("token-input").fill(token)
        page.get_by_test_id("login").click()
        page.get_by_test_id("message-input").wait_for()
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=server.url, headers=headers) as client:
            thread = client.post("/api/threads").json()["thread_id"]
            client.post(f"/api/threads/{thread}/runs", json={"plan": slow(4, gate=gate)})
        page.goto(f"{server.url}/?thread={thread}")
        status(page, "s1", "running")
        server.end()
        page.get_by_text("connection lost").wait_for()
        server.begin()
        gate.touch()
        # The session is in the database: nobody has to log in again.
        status(page, "s3", "done")
        page.get_by_test_id("stop").wait_for(state="hidden")
    finally:
        context.close()
        server.end()


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_no_violation(browser: Any, served: Any, scheme: str) -> None:
    rules = axe()
    context = served.logged_in(new_context(browser, color_scheme=scheme, bypass_csp=True))
    page = context.new_page()
    found: list[str] = []

    def look(where: str) -> None:
        settle(page)
        page.add_script_tag(path=rules)
        result = page.evaluate("() => axe.run()")
        found.extend(
            f"{where}: {one['id']}: {one['nodes'][0]['html'][:200]}" for one in result["violations"]
        )

    page.goto(served.url)
    look("empty")
    ask(page)
    page.get_by_test_id("question").get_by_label("Litres").fill("-5")
    page.get_by_test_id("approve").click()
    page.get_by_test_id("problem").wait_for()
    page.get_by_test_id("step").first.click()
    look("question")
    page.get_by_test_id("question").get_by_label("Litres").fill("5")
    page.get_by_test_id("approve").click()
    page.get_by_test_id("answer").wait_for()
    for part in PARTS:
        open_view(page, part)
        look(part)
    page.set_viewport_size({"width": 360, "height": 740})
    for part in ["Chat", "Threads", *PARTS]:
        open_view(page, part)
        look(f"narrow {part}")
    context.close()
    assert found == []


def test_short_file_becomes_text_without_uploads(page: Any) -> None:
    page.get_by_test_id("message-input").wait_for()
    expect(page.get_by_test_id("attach")).to_be_hidden()
    for name, size in {"short.txt": 10, "long.txt": 300_000}.items():
        file = {"name": name, "mimeType": "text/plain", "buffer": b"x" * size}
        page.get_by_test_id("file-input").set_input_files([file])
    page.get_by_text("long.txt is too large for a message").wait_for()
    expect(page.get_by_test_id("message-input")).to_have_value(re.compile("xxxxxxxxxx\n"))


def test_activity_view_shows_budgets_and_limits(page: Any, served: Any) -> None:
    ask(page, "get the forecast: will it rain?")
    page.get_by_test_id("answer").wait_for()
    open_view(page, "Activity")
    budgets = page.get_by_test_id("budgets").get_by_role("row")
    row = budgets.filter(has_text="steps").filter(has_text="user")
    expect(row).to_contain_text("100,000")
    expect(row.get_by_role("cell").last).to_have_text(re.compile(r"^\d\d,\d{3}$"))
    expect(budgets.filter(has_text="seconds").filter(has_text="thread")).to_be_visible()
    limits = page.get_by_test_id("limits")
    limits.get_by_role("row").filter(has_text="steps").filter(has_text="concurrency").wait_for()
    for table, heading in ((limits, "maximum"), (page.get_by_test_id("budgets"), "limit on")):
        expect(table.get_by_role("columnheader", name=heading, exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("tab", "path", "place", "item"),
    [
        ("Activity", "**/api/limits?*", "limits", {"kind": "{}", "name": "steps"}),
        ("History", "**/history?*", "history", {"checkpoint_id": "{}", "next": ["{}"]}),
    ],
)
@pytest.mark.parametrize("order", ["in order", "reversed"])
def test_last_of_overlapping_loads_is_shown(
    page: Any, served: Any, tab: str, path: str, place: str, item: Any, order: str
) -> None:
    page.goto(f"{served.url}/?thread={served.run_plan(slow(1, 0.1))}")
    status(page, "s0", "done")
    page.get_by_test_id("stop").wait_for(state="hidden")
    requests: list[Any] = []

    def fulfill(number: int) -> None:
        text = json.dumps([item]).replace("{}", f"request {number}")
        requests[number].fulfill(json={"items": json.loads(text), "next": None})

    def hold_two(route: Any) -> None:
        requests.append(route)
        if len(requests) > 2:
            fulfill(len(requests) - 1)

    page.route(path, hold_two)
    with page.expect_request(path):
        open_view(page, tab)
    with page.expect_request(path):  # the view loads again when the run ends
        ask(page, "get the forecast: will it rain?")
    page.get_by_test_id("stop").wait_for(state="hidden")
    shown = page.get_by_test_id(place)
    for number in (0, 1) if order == "in order" else (1, 0):
        with page.expect_response(path):
            fulfill(number)
        settle(page)
    expect(shown.get_by_text("request", exact=False)).to_have_count(1)
    expect(shown).to_contain_text(f"request {len(requests) - 1}")


def evaluation(label: str, problems: list[str]) -> str:
    case = {"name": "rain", "passed": not problems, "problems": problems}
    report = {"label": label, "figures": {"passed": float(not problems)}, "cases": [case]}
    return json.dumps({"dataset": "tank", "ok": not problems, "reports": [report]})


def test_agent_view_shows_graph_findings_and_evaluations(page: Any, served: Any) -> None:
    folder = served.folder / "evaluations"
    folder.mkdir(exist_ok=True)
    (folder / "monday.json").write_text(evaluation("old", ["- step rain_forecast"]))
    (folder / "tuesday.json").write_text(evaluation("new", []))
    open_view(page, "Agent")
    page.get_by_test_id("graph").get_by_text("orchestrator").wait_for()
    page.get_by_test_id("findings").get_by_text("has no examples").first.wait_for()
    runs = page.get_by_test_id("evaluations")
    runs.get_by_text("1 of 1 passed").wait_for()
    runs.get_by_role("checkbox", name="Select monday").check()
    runs.get_by_role("checkbox", name="Select tuesday").check()
    told = page.get_by_test_id("evaluation-difference")
    told.get_by_text("monday · old → tuesday · new").wait_for()
    assert told.get_by_role("row", name="passed 0 1").inner_text().split() == [
        "passed", "0", "1", "1",
    ]  # fmt: skip
    row = told.get_by_role("row").filter(has_text="rain")
    expect(row).to_contain_text("- step rain_forecast")


def test_timeline_is_saved_and_checkpoints_are_compared(page: Any, served: Any) -> None:
    thread = served.run_plan(slow(2, 0.1))
    page.goto(f"{served.url}/?thread={thread}#timeline")
    page.get_by_test_id("timeline").locator("rect.span").nth(1).wait_for()
    page.get_by_test_id("stop").wait_for(state="hidden")
    for name, start in {"SVG": b"<svg", "PNG": b"\x89PNG"}.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {name}").click()
        assert Path(download.value.path()).read_bytes().startswith(start)
    open_view(page, "History")
    marks = page.get_by_role("checkbox", name="Select checkpoint")
    marks.nth(1).wait_for()
    marks.first.check()
    marks.last.check()
    count = marks.count()
    served.call(f"/api/threads/{thread}/runs", {"plan": slow(1, 0.1)})
    expect(marks.nth(count)).to_be_attached()  # the new run's checkpoints
    page.get_by_role("button", name="Compare").click()
    page.get_by_test_id("history").locator("dl.diff dd.new").first.wait_for()
