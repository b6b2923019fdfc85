"""Quality gates in a graph: on a capability's result, on a plan, on the answer."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import BaseCapability, bind, capability_node
from capgraph.base import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.behaviors import BaseBehavior
from capgraph.governance import QualityGate, QualityLevel
from capgraph.state import AgentState
from tests.support.doors import Amount, Gauge, answer, last_words, question, shown, status


def level(result: Any) -> QualityLevel | None:
    return QualityLevel.RELEASE if result.value > 2 else QualityLevel.MINIMAL


def tool(ran: list[int], gate: Any, values: list[Any], **more: Any) -> Any:
    """A capability whose results are those of a list, the last one for ever."""

    class Look(BaseCapability):
        name = "look"
        description = "Look"
        provides = ["GAUGE"]
        Parameters = Amount

        async def execute(self) -> Gauge:
            ran.append(self.parameters.amount)
            value = values[min(len(ran), len(values)) - 1]
            if isinstance(value, Exception):
                raise value
            return Gauge(value=value)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 1.0}

    for name, value in {"gate": gate, **more}.items():
        setattr(Look, name, value)
    return capability_node(Look)


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def desk(agent: Any, step: Any, ran: list[int]) -> Any:
    def make(gate: Any, values: list[Any], options: Any = None, **more: Any) -> Any:
        plans = [[step("a", "look")], [step("b", "look", {"amount": 2})]]
        options = {"plans": plans, "checkpointer": InMemorySaver(), **(options or {})}
        return agent(Gauge, tool(ran, gate, values, **more), **options)

    return make


def gate(below: Any, check: Any = level) -> QualityGate:
    return QualityGate(QualityLevel.STANDARD, check=check, below=below)


async def test_a_good_result_passes(desk: Any, ran: list[int]) -> None:
    out = await desk(gate("fail"), [3]).ask()
    assert (status(out), ran) == ("completed", [1])


async def test_retry_tries_again_and_is_bounded(desk: Any, ran: list[int]) -> None:
    it = desk(gate("retry"), [1, 2, 3])
    out = await it.ask()
    assert (status(out), len(ran), len(it.clock.sleeps)) == ("completed", 3, 2)
    ran.clear()
    out = await desk(gate("retry"), [1]).ask()
    assert (status(out), len(ran)) == ("failed", 3)
    assert "requires standard" in last_words(out)
    assert "GAUGE" not in out["capability_context_data"]


async def test_replan_writes_another_plan(desk: Any, ran: list[int]) -> None:
    out = await desk(gate("replan"), [1, 3]).ask()
    assert (status(out), ran) == ("completed", [1, 2])


async def test_fail_ends_the_turn_and_the_authors_word_does_not_count(
    desk: Any, ran: list[int]
) -> None:
    def classify_error(exc: Exception, context: dict[str, Any]) -> Any:
        from capgraph.base import ErrorClassification

        return ErrorClassification(ErrorSeverity.RETRIABLE, "Again!")

    out = await desk(gate("fail"), [1], classify_error=staticmethod(classify_error)).ask()
    assert (status(out), ran) == ("failed", [1])
    assert out["control_error_info"]["classification"]["metadata"]["code"] == "CG-QUALITY"


@pytest.mark.row("T18")
async def test_ask_shows_the_result_and_agreeing_makes_no_other(desk: Any, ran: list[int]) -> None:
    it = desk(gate("ask"), [1, 2])
    out = await it.ask()
    asked = question(out)["steps"][0]
    assert (asked["kind"], asked["result"]) == (
        "result",
        {"GAUGE": {"value": 1, "origin": ""}},
    )
    assert "is Minimal" in shown(out)
    assert "GAUGE" not in (out.get("capability_context_data") or {})
    out = await answer(it, "approve")
    assert (status(out), ran) == ("completed", [1]), (
        "the result that was shown is the one that counts"
    )
    assert out["capability_context_data"]["GAUGE"]["a"]["value"] == 1


async def test_a_result_that_a_person_rejects_does_not_count(desk: Any, ran: list[int]) -> None:
    it = desk(gate("ask"), [1, 3])
    await it.ask()
    out = await answer(it, {"a": {"decision": "reject", "reason": "too low"}})
    assert "a" not in out["capability_context_data"].get("GAUGE", {})
    assert ran == [1, 2], "the planner is told, and plans anew"


async def test_in_a_graph_of_ones_own_a_person_is_asked_too(ran: list[int]) -> None:
    look = tool(ran, gate("ask"), [1, 2])
    services = bind([Gauge, look])
    builder = StateGraph(AgentState)
    builder.add_node("look", services.node(look))
    builder.add_edge(START, "look")
    graph = builder.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({}, config)
    assert out["__interrupt__"][0].value["steps"][0]["kind"] == "result"
    out = await graph.ainvoke(Command(resume="approve"), config)
    assert ran == [1]
    assert out["capability_context_data"]["GAUGE"]["0_look"]["value"] == 1


@pytest.mark.row("T18")
@pytest.mark.parametrize("below", ["retry", "replan", "fail"])
async def test_an_effect_that_is_done_is_never_repeated_for_its_quality(
    desk: Any, ran: list[int], below: Any
) -> None:
    out = await desk(gate(below), [1], effect="once").ask()
    assert (status(out), ran) == ("failed", [1])
    assert "the effect of this step is done" in last_words(out)


async def test_an_effect_that_is_asked_about_happened_once(desk: Any, ran: list[int]) -> None:
    it = desk(gate("ask"), [1], effect="once")
    await it.ask()
    out = await answer(it, "approve")
    assert (status(out), ran) == ("completed", [1])


async def test_what_stands_in_for_a_result_passes_the_gate_too(desk: Any, ran: list[int]) -> None:
    class Fallback(BaseBehavior):
        def on_error(self, context: Any, error: Exception) -> Any:
            return Gauge(value=1)

    broken = [CapabilityError("broken")]
    out = await desk(gate("fail"), broken, {"behaviors": [Fallback()]}).ask()
    assert status(out) == "failed"
    assert "is minimal" in last_words(out)


async def test_a_gate_without_a_check_is_refused_where_results_pass(ran: list[int]) -> None:
    for nonsense in (QualityGate(QualityLevel.MINIMAL), QualityGate, "strict"):
        with pytest.raises(Exception, match="gate"):
            tool(ran, nonsense, [1])


# --- plans and answers -----------------------------------------------------------------------


def short(plan: Any) -> QualityLevel:
    works = [step for step in plan["steps"] if step["capability"] != "respond"]
    return QualityLevel.STRICT if (works[0].get("parameters") or {}) else QualityLevel.MINIMAL


@pytest.mark.parametrize("below", ["retry", "replan"])
async def test_a_plan_below_its_gate_is_written_again(
    desk: Any, ran: list[int], below: Any
) -> None:
    it = desk(None, [3], {"policies": [gate(below, short)]})
    out = await it.ask()
    assert (status(out), ran) == ("completed", [2])
    assert "is Minimal" in str(it.planner.calls[1].failure)


async def test_a_plan_below_its_gate_fails_or_is_asked_about(desk: Any, ran: list[int]) -> None:
    out = await desk(None, [3], {"policies": [gate("fail", short)]}).ask()
    assert (status(out), ran) == ("failed", [])
    it = desk(None, [3], {"policies": [gate("ask", short)]})
    assert question(await it.ask())["steps"][0]["kind"] == "plan"
    assert ran == []
    assert status(await answer(it, "approve")) == "completed"


class Writer:
    """Gives the answers of a list."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def answer(self, request: Any) -> str:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def polite(text: str) -> QualityLevel:
    assert "please" in text, "it is not polite"
    return QualityLevel.STANDARD


@pytest.mark.parametrize("below", ["retry", "replan"])
async def test_an_answer_below_its_gate_is_written_again(desk: Any, below: Any) -> None:
    more = {"answerer": Writer("No.", "Here you are, please."), "answer_gate": gate(below, polite)}
    out = await desk(None, [3], more).ask()
    assert (status(out), last_words(out)) == ("completed", "here you are, please.")


async def test_an_answer_that_stays_below_is_not_given(desk: Any) -> None:
    for below in ("retry", "fail"):
        more = {"answerer": Writer("No."), "answer_gate": gate(below, polite)}
        out = await desk(None, [3], more).ask()
        assert status(out) == "failed"
        assert "it is not polite" in last_words(out)
    with pytest.raises(ConfigurationError, match="below='ask'"):
        desk(None, [3], {"answer_gate": gate("ask", polite)})
