"""Requests whose next step depends on the last result: plan, look at the result, plan on."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from capgraph import build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.base import ErrorClassification, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.testing import ModelCall, ScriptedModel
from tests.support.hotel import (
    Desk,
    book_cheapest,
    in_mode,
    plan,
    request_of,
    results_of,
    said_before,
)

CONFIG: Any = {"configurable": {"thread_id": "1"}}
MODES = pytest.mark.parametrize("mode", ["look", "auto"])


def agent(desk: Desk, script: Any, mode: str = "look", saver: Any = None, **more: Any) -> Any:
    more["planning"] = {"mode": mode, **more.get("planning", {})}
    declared = more.pop("booking", {})
    model = ScriptedModel(responses=in_mode(mode, script))
    graph = build_graph(
        desk.capabilities(**declared),
        model,
        saver or InMemorySaver(),
        settings=load_settings(**more),
    )
    return graph, model


async def ask(graph: Any, text: str) -> dict[str, Any]:
    out: dict[str, Any] = await graph.ainvoke({"messages": [("user", text)]}, CONFIG)
    return out


def said(out: dict[str, Any]) -> str:
    return str(out["messages"][-1].content)


def status(out: dict[str, Any]) -> str:
    return str(out["execution_outcome"]["status"])


@MODES
async def test_search_then_book_the_cheapest(mode: str) -> None:
    desk = Desk()
    graph, model = agent(desk, book_cheapest, mode)
    calls = []
    answers = []
    for city in ("Basel", "Bern", "Chur"):
        out = await ask(graph, f"Book the cheapest room in {city}")
        calls.append(len(model.calls) - sum(calls))
        answers.append(said(out))
        assert status(out) == "completed"
    assert desk.done == ["search Basel", "book H3", "search Bern", "book H2", "search Chur"]
    assert answers == ["Booked: B-H3.", "Booked: B-H2.", "No hotel in Chur has a room."]
    assert calls == [3, 3, 2], "one for each look; none for the task, none for the answer"


async def test_a_marked_step_brings_in_a_capability_that_the_first_plan_did_not_use() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        found = book_cheapest(call)
        for step in found["steps"]:
            step["look_again"] = True
        return found

    graph, _ = agent(desk, script, "plan", planning={"features": ["look_again"]})
    out = await ask(graph, "Book the cheapest room in Basel")
    assert desk.done == ["search Basel", "book H3"]
    assert (status(out), said(out)) == ("completed", "Booked: B-H3.")


async def test_a_capability_past_the_shortlist_can_be_brought_in_as_well() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if call.schema == "Choice":
            return {"reason": "searches", "capabilities": ["search_hotels"], "answer": ""}
        return book_cheapest(call)

    graph, _ = agent(desk, script, selection={"max_catalog_tokens": 10})
    out = await ask(graph, "Book the cheapest room in Basel")
    assert desk.done == ["search Basel", "book H3"]
    assert status(out) == "completed"


@MODES
async def test_compare_then_choose(mode: str) -> None:
    def script(call: ModelCall) -> Any:
        if booked := results_of(call, "book_hotel"):
            return plan(answer=f"Booked: {booked[-1]['booking']}.")
        if reviews := results_of(call, "read_reviews"):
            best = max(reviews, key=lambda review: review["stars"])
            return plan(("book_hotel", {"hotel_id": best["hotel"]}))
        if found := results_of(call, "search_hotels"):
            return plan(*(("read_reviews", {"hotel_id": h["id"]}) for h in found[-1]))
        return plan(("search_hotels", {"city": request_of(call).split()[-1]}))

    desk = Desk()
    graph, model = agent(desk, script, mode)
    for city, best in (("Basel", "H9"), ("Bern", "H2"), ("Basel", "H9")):
        before = len(model.calls)
        out = await ask(graph, f"Compare the reviews and book the best hotel in {city}")
        assert (status(out), said(out)) == ("completed", f"Booked: B-{best}.")
        assert len(model.calls) - before == 4, "the reviews are read in one step of the loop"
    assert [done for done in desk.done if "book" in done] == ["book H9", "book H2", "book H9"]


@MODES
async def test_ask_the_person_then_go_on(mode: str) -> None:
    def script(call: ModelCall) -> Any:
        request, before = request_of(call), said_before(call)
        if "Book" in request and not any(city in request for city in ("Basel", "Bern")):
            return plan(answer="In which city?")
        if request in ("Basel", "Bern"):
            assert before.endswith("Book a room")
        return book_cheapest(call)

    desk = Desk()
    graph, model = agent(desk, script, mode)
    for city, booked in (("Basel", "H3"), ("Bern", "H2"), ("Basel", "H3")):
        asked = await ask(graph, "Book a room")
        assert said(asked) == "In which city?"
        out = await ask(graph, city)
        assert said(out) == f"Booked: B-{booked}."
    assert len(model.calls) == 3 * (1 + 3), "a question costs one call"


async def test_a_clarifying_step_costs_no_call_of_its_own() -> None:
    question = {"steps": [{"capability": "clarify", "task_objective": "In which city?"}]}
    graph, model = agent(Desk(), lambda _: question)
    assert said(await ask(graph, "Book a room")) == "In which city?"
    assert len(model.calls) == 1


@MODES
async def test_a_booking_of_a_later_look_asks_and_resumes(mode: str) -> None:
    desk = Desk()
    graph, model = agent(desk, book_cheapest, mode, booking={"requires_approval": True})
    for city, hotel in (("Basel", "H3"), ("Bern", "H2"), ("Basel", "H3")):
        before = len(desk.done)
        out = await ask(graph, f"Book the cheapest room in {city}")
        [entry] = out["__interrupt__"][0].value["steps"]
        assert entry["parameters"] == {"hotel_id": hotel}
        assert "ungrounded" not in entry, "the value stands in a result that the planner saw"
        assert desk.done[before:] == [f"search {city}"]
        out = await graph.ainvoke(Command(resume="approve"), CONFIG)
        assert said(out) == f"Booked: B-{hotel}."
    assert len(model.calls) == 9


async def test_a_process_that_dies_in_a_look_goes_on_where_it_was(path: Path, saver: Any) -> None:
    command = [sys.executable, "-m", "tests.support.hotel", f"sqlite:///{path}", "look"]
    died = await asyncio.to_thread(subprocess.run, command, check=False)
    assert died.returncode == 9
    desk = Desk()
    graph, model = agent(desk, book_cheapest, saver=saver)
    out = await graph.ainvoke(None, CONFIG)
    assert (status(out), said(out)) == ("completed", "Booked: B-H3.")
    assert (desk.done, len(model.calls)) == (["book H3"], 2), "nothing is searched again"


async def test_small_talk_and_what_the_instructions_answer_cost_one_call_in_every_turn() -> None:
    def script(call: ModelCall) -> Any:
        assert "open from 8 to 20" in call.prompt
        return plan(answer={"hello": "Hello!", "thanks": "Welcome!"}.get(request_of(call), "8-20"))

    model = ScriptedModel(responses=script)
    graph = build_graph(
        Desk().capabilities(),
        model,
        InMemorySaver(),
        settings=load_settings(planning={"mode": "look"}),
        system_prompt="The desk is open from 8 to 20.",
    )
    answers = [said(await ask(graph, t)) for t in ("hello", "When are you open?", "thanks")]
    assert answers == ["Hello!", "8-20", "Welcome!"]
    assert len(model.calls) == 3


async def test_a_thread_keeps_as_many_results_as_the_settings_say(saver: Any) -> None:
    graph, _ = agent(Desk(), book_cheapest, saver=saver, persistence={"keep_results": 2})
    for city in ("Basel", "Bern", "Basel", "Bern"):
        out = await ask(graph, f"Book the cheapest room in {city}")
        assert status(out) == "completed"
    stored = (await graph.aget_state(CONFIG)).values["capability_context_data"]
    assert {kind: len(entries) for kind, entries in stored.items()} == {
        "SEARCH_HOTELS": 3,
        "BOOK_HOTEL": 3,
    }, "two of earlier turns, and that of the last one"


async def test_the_results_of_the_turn_before_are_shown_whole_and_older_ones_by_their_keys() -> (
    None
):
    def script(call: ModelCall) -> Any:
        if "compare" not in request_of(call):
            return book_cheapest(call)
        shown = str(call.messages[-1].text)
        assert "\nH2 | 60\n" in shown, "the last search"
        assert "H3" not in shown, "the first one"
        assert re.search(r"SEARCH_HOTELS, older: \S+", shown)
        return plan(answer="H2 is the cheaper one.")

    graph, model = agent(Desk(), script, planning={"max_stored_results": 1})
    await ask(graph, "Book the cheapest room in Basel")
    await ask(graph, "Book the cheapest room in Bern")
    assert said(await ask(graph, "Now compare H1 and H2")) == "H2 is the cheaper one."
    assert len(model.calls) == 7


async def test_an_invented_value_is_still_asked_about() -> None:
    graph, _ = agent(Desk(), lambda _: plan(("book_hotel", {"hotel_id": "H99"})))
    out = await ask(graph, "Book a room")
    assert out["__interrupt__"][0].value["steps"][0]["ungrounded"] == {"hotel_id": "H99"}


async def test_a_refused_look_is_corrected_and_what_cannot_be_mended_is_reported() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if not results_of(call, "search_hotels"):
            return plan(("search_hotels", {"city": "Basel"}))
        if call.schema is None:
            return "It was not booked."
        return plan(("book_hotel", {"room": "H3"}))

    graph, model = agent(desk, script)
    out = await ask(graph, "Book the cheapest room in Basel")
    assert desk.done == ["search Basel"]
    assert (status(out), out["execution_outcome"]["missing"]) == ("partial", ["book_hotel"])
    assert "room" in out["execution_outcome"]["notes"][0]
    assert "was refused" in model.calls[2].prompt


async def test_looks_end_at_their_limit_and_the_outcome_says_so() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if call.schema is None:
            return "Nothing was booked."
        city = ("Basel", "Bern", "Chur")[len(results_of(call, "search_hotels")) % 3]
        return plan(("search_hotels", {"city": city}))

    graph, model = agent(desk, script, limits={"max_looks": 2})
    out = await ask(graph, "Book a room")
    assert desk.done == ["search Basel", "search Bern", "search Chur"]
    assert (status(out), len(model.calls)) == ("partial", 4)
    assert "not asked again" in model.calls[2].prompt
    assert "limits.max_looks is 2" in out["execution_outcome"]["notes"][0]


async def test_without_looks_the_mode_plans_as_before() -> None:
    def script(call: ModelCall) -> Any:
        return plan(("search_hotels", {"city": "Basel"})) if call.schema else "Three."

    graph, model = agent(Desk(), script, limits={"max_looks": 0})
    assert said(await ask(graph, "How many hotels has Basel?")) == "Three."
    assert len(model.calls) == 2


async def test_a_finished_effect_that_is_written_again_is_not_repeated() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if call.schema is None:
            return "Booked."
        return plan(("book_hotel", {"hotel_id": "H3"}))

    graph, _ = agent(desk, script)
    out = await ask(graph, "Book H3")
    assert (desk.done, status(out)) == (["book H3"], "completed")


async def test_a_read_after_an_effect_runs_again() -> None:
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if len(results_of(call, "search_hotels")) == 2:
            return plan(answer="Still three.")
        if results_of(call, "book_hotel"):
            return plan(("search_hotels", {"city": "Basel"}))
        return plan(("search_hotels", {"city": "Basel"}), ("book_hotel", {"hotel_id": "H3"}))

    graph, _ = agent(desk, script)
    out = await ask(graph, "Book H3 in Basel and look whether it is gone")
    assert said(out) == "Still three."
    assert desk.done.count("search Basel") == 2


async def test_the_task_is_extracted_where_a_plan_is_for_the_whole_request() -> None:
    def script(call: ModelCall) -> Any:
        if call.schema == "ExtractedTask" or call.schema == "Task":
            return {
                "task": "Search Bern",
                "depends_on_chat_history": True,
                "depends_on_user_memory": False,
            }
        if call.schema is None:
            return "Found."
        return plan(("search_hotels", {"city": "Bern" if "Bern" in call.prompt else "Basel"}))

    desk = Desk()
    graph, model = agent(desk, script, "plan")
    await ask(graph, "Search Basel")
    await ask(graph, "And Bern?")
    assert desk.done == ["search Basel", "search Bern"]
    assert len(model.calls) == 2 + 3


async def test_a_reply_can_refer_to_a_result_and_the_rest_of_a_plan_is_dropped_by_an_answer() -> (
    None
):
    desk = Desk()

    def script(call: ModelCall) -> Any:
        if results_of(call, "search_hotels"):
            return plan(answer="There is none, so nothing was booked.")
        search = {"capability": "search_hotels", "parameters": {"city": "Chur"}}
        book = {"capability": "book_hotel", "parameters": {"hotel_id": {"$from": "found.0.id"}}}
        return {"steps": [{**search, "context_key": "found", "look_again": True}, book]}

    graph, _ = agent(desk, script, planning={"features": "all"})
    out = await ask(graph, "Book the first hotel in Chur")
    assert (status(out), desk.done) == ("completed", ["search Chur"])
    assert said(out) == "There is none, so nothing was booked."


async def test_an_application_that_judges_answers_gets_one_from_the_answerer() -> None:
    from pydantic import BaseModel

    class Booking(BaseModel):
        """What was booked."""

        id: str

    def script(call: ModelCall) -> Any:
        return {"id": "B-H3"} if call.schema == "Booking" else book_cheapest(call)

    desk = Desk()
    graph = build_graph(
        desk.capabilities(),
        ScriptedModel(responses=script),
        InMemorySaver(),
        settings=load_settings(planning={"mode": "look"}),
        answer_type=Booking,
    )
    out = await ask(graph, "Book the cheapest room in Basel")
    assert out["execution_answer"] == {"id": "B-H3"}


async def test_a_planner_of_ones_own_may_ask_to_look() -> None:
    seen: list[Any] = []

    class Own:
        can_correct = True
        writes_with_model = False

        async def plan(self, request: Any) -> Any:
            seen.append(request.look_again)
            if request.look_again:
                return {"steps": [], "answer": "Seen."}
            step = {"capability": "search_hotels", "parameters": {"city": "Bern"}}
            return {"steps": [step], "look": True}

    @capability_node(examples=["search hotels"])
    async def search_hotels(city: str) -> int:
        """Search hotels."""
        return len(city)

    graph = build_graph([search_hotels], planner=Own())
    out = await graph.ainvoke({"messages": [("user", "Search hotels")]})
    assert seen == [(), ("search_hotels",)]
    assert said(out) == "Seen."


def tool_agent(script: Any, mode: str = "look", **declared: Any) -> tuple[Any, Any, list[str]]:
    """Return an agent with a LangChain tool that fails for some cities."""
    done: list[str] = []

    @tool
    def find_ferry(port: str) -> str:
        """Find a ferry from a port."""
        done.append(port)
        if port == "Basel":
            raise ToolException("Basel has no port. The nearest port is Genoa.")
        if port == "Atlantis":
            raise ValueError("Atlantis is under water.")
        return f"A ferry leaves {port} at 9."

    model = ScriptedModel(responses=in_mode(mode, script))
    graph = build_graph(
        [tool_capability(find_ferry, **declared)],
        model,
        InMemorySaver(),
        settings=load_settings(planning={"mode": mode}),
    )
    return graph, model, done


def find_ferry(call: ModelCall) -> Any:
    """Look for a ferry; after an error, from the port that the error names."""
    shown = str(call.messages[-1].text).partition("These steps are done")[2]
    if found := re.search(r"A ferry leaves \w+ at 9\.", shown):
        return plan(answer=found[0])
    if "nearest port is" in shown:
        return plan(("find_ferry", {"port": "Genoa"}))
    if "under water" in shown:
        return plan(answer="Nothing sails from there.")
    return plan(("find_ferry", {"port": request_of(call).split()[-1]}))


@MODES
async def test_fix_after_an_error(mode: str) -> None:
    graph, model, done = tool_agent(find_ferry, mode)
    found = []
    for port in ("Basel", "Genoa", "Atlantis"):
        out = await ask(graph, f"When does a ferry leave {port}")
        found.append((said(out), status(out)))
    assert found == [
        ("A ferry leaves Genoa at 9.", "completed"),
        ("A ferry leaves Genoa at 9.", "completed"),
        ("Nothing sails from there.", "partial"),
    ]
    assert done == ["Basel", "Genoa", "Genoa", "Atlantis"]
    assert len(model.calls) == 3 + 2 + 2


async def test_a_planned_turn_continues_after_an_observed_error() -> None:
    def script(call: ModelCall) -> Any:
        return find_ferry(call) if call.schema else "A ferry leaves Genoa at 9."

    graph, model, done = tool_agent(script, "plan")
    out = await ask(graph, "When does a ferry leave Basel")
    assert (said(out), status(out)) == ("A ferry leaves Genoa at 9.", "completed")
    assert done == ["Basel", "Genoa"]
    assert len(model.calls) == 3, "the error adds one call"


@pytest.mark.parametrize("mode", ["look", "plan"])
async def test_errors_that_repeat_are_bounded(mode: str) -> None:
    def script(call: ModelCall) -> Any:
        if call.schema is None:
            return "No ferry was found."
        return plan(("find_ferry", {"port": "Atlantis"}))

    graph, model, done = tool_agent(script, mode)
    out = await ask(graph, "When does a ferry leave Atlantis")
    assert status(out) == "partial"
    assert len(done) == 11
    assert len(model.calls) == 12


async def test_who_classifies_an_error_decides_what_becomes_of_it() -> None:
    def critical(error: Exception, context: Any) -> Any:
        return ErrorClassification(ErrorSeverity.CRITICAL, "The harbor is closed.")

    graph, _, done = tool_agent(find_ferry, classify_error=critical)
    out = await ask(graph, "When does a ferry leave Atlantis")
    assert status(out) == "failed"
    assert done == ["Atlantis"]

    graph, _, done = tool_agent(find_ferry, on_error="fail")
    out = await ask(graph, "When does a ferry leave Basel")
    assert (status(out), done) == ("failed", ["Basel"])


async def test_a_capability_can_declare_that_its_errors_are_observed() -> None:
    done: list[int] = []

    @capability_node(on_error="observe", examples=["measure the depth"])
    async def measure(depth: int) -> str:
        """Measure at a depth in metres."""
        done.append(depth)
        if depth > 10:
            raise ValueError("the cable is 10 m long")
        return "clear"

    def script(call: ModelCall) -> Any:
        shown = str(call.messages[-1].text)
        if "clear" in shown:
            return plan(answer="Clear at 10 m.")
        return plan(("measure", {"depth": 10 if "cable is 10 m" in shown else 20}))

    graph = build_graph(
        [measure],
        ScriptedModel(responses=script),
        settings=load_settings(planning={"mode": "look"}),
    )
    out = await graph.ainvoke({"messages": [("user", "Measure as deep as you can")]})
    assert (said(out), status(out), done) == ("Clear at 10 m.", "completed", [20, 10])


def booking_graph(*replies: Any, **options: Any) -> tuple[Any, ScriptedModel]:
    """Return a graph whose booking of A and B fails, with the plans of a model."""

    @capability_node(**options)
    def book(room: str) -> str:
        """Book a room."""
        if room != "C":
            raise ToolException(f"room {room} is taken")
        return f"room {room} is booked"

    model = ScriptedModel(responses=list(replies))
    graph = build_graph([book], model, settings=load_settings(planning={"mode": "look"}))
    return graph, model


ROOMS = [plan(("book", {"room": room})) for room in "ABC"]


@pytest.mark.parametrize("key", [None, "booking"])
async def test_earlier_failures_stay_visible_when_a_plan_reuses_their_key(key: str | None) -> None:
    plans = [{"steps": [{**step, "context_key": key} for step in one["steps"]]} for one in ROOMS]
    graph, model = booking_graph(
        *(plans if key else ROOMS), plan(answer="C is yours."), on_error="observe"
    )
    out = await graph.ainvoke({"messages": [("user", "Book a room")]})
    assert (said(out), status(out)) == ("C is yours.", "completed")
    shown = str(model.calls[-1].messages[-1].text)
    for room in "AB":
        assert f'book("room":"{room}")\n  -> failed: room {room} is taken' in shown
    assert "Unhandled" not in shown


async def test_a_look_follows_every_failure_that_asks_for_a_new_plan() -> None:
    def classify(error: Exception, context: Any) -> ErrorClassification:
        return ErrorClassification(ErrorSeverity.REPLANNING, str(error))

    graph, model = booking_graph(*ROOMS, plan(answer="C is yours."), classify_error=classify)
    out = await graph.ainvoke({"messages": [("user", "Book a room")]})
    assert (said(out), status(out)) == ("C is yours.", "completed")
    assert len(model.calls) == 4


async def test_a_tool_exception_is_reported_in_the_words_of_its_author() -> None:
    graph, _ = booking_graph(ROOMS[0])
    out = await graph.ainvoke({"messages": [("user", "Book a room")]})
    assert out["execution_outcome"]["reason"] == "room A is taken"


@pytest.mark.parametrize("mode", ["plan", "look"])
async def test_rejected_steps_that_nothing_replaces_are_missing(mode: Any) -> None:
    @capability_node
    def times() -> str:
        """List the free times."""
        return "at nine"

    @capability_node(effect="once", requires_approval=True)
    def meet() -> str:
        """Schedule a meeting."""
        return "scheduled"

    def script(call: ModelCall) -> Any:
        if "not done" in call.prompt:
            return "Free at nine. Nothing was scheduled."
        if "rejected" in call.prompt:
            return {"steps": []}
        steps = ["times", "meet"] if mode == "plan" or "at nine" in call.prompt else ["times"]
        return {"steps": [{"capability": name} for name in steps]}

    model = ScriptedModel(responses=script)
    settings = load_settings(planning={"mode": mode})
    graph = build_graph([times, meet], model, InMemorySaver(), settings=settings)
    await ask(graph, "When am I free? Schedule a meeting then.")
    out: dict[str, Any] = await graph.ainvoke(Command(resume="reject"), CONFIG)
    assert status(out) == "partial"
    assert out["execution_outcome"]["done"] == ["times"]
    assert out["execution_outcome"]["missing"] == ["meet"]
    assert "at nine" in model.calls[-1].prompt
    assert "meet: a person rejected it" in model.calls[-1].prompt
