"""A policy engine in a graph: its actions act, and are bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from capgraph import BaseCapability, bind, build_graph, capability_node, open_graph
from capgraph.base import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.governance import (
    AgentFailed,
    AllAgentsComplete,
    CostExceeded,
    GateBelow,
    PhaseCompleted,
    PhaseContext,
    PolicyActionData,
    PolicyCondition,
    PolicyEngine,
    PolicyRule,
    QualityAt,
    QualityGate,
    QualityLevel,
    RetryExhausted,
    TimedOut,
)
from capgraph.governance.model_call_adjuster import _drop_oldest
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.telemetry import ModelPricing
from capgraph.telemetry.usage import PriceTable
from capgraph.testing import ScriptedModel
from tests.support.doors import Amount, Gauge, answer, last_words, question, shown, status


class Sink:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: dict[str, Any]) -> None:
        if event["event_type"] == "policy_acted":
            self.events.append(event)

    @property
    def acted(self) -> list[tuple[str, str, bool]]:
        return [(e["rule"], e["action"], e["done"]) for e in self.events]


def rule(name: str, condition: Any, *actions: Any, **more: Any) -> PolicyRule:
    made = [a if isinstance(a, PolicyActionData) else PolicyActionData(a) for a in actions]
    return PolicyRule(name, condition, made, **more)


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def desk(agent: Any, step: Any, ran: list[str]) -> Any:
    def make(
        rules: Any,
        fails: int = 0,
        plans: Any = None,
        effect: str = "none",
        gate: Any = None,
        error: Any = None,
        **options: Any,
    ) -> Any:
        left = [fails]

        class Look(BaseCapability):
            name = "look"
            description = "Look"
            provides = ["GAUGE"]
            Parameters = Amount

            async def execute(self) -> Gauge:
                ran.append(self.step["context_key"])
                if self.step["context_key"] == "a" and left[0]:
                    left[0] -= 1
                    raise error or CapabilityError("It is broken.")
                return Gauge(value=1)

            @staticmethod
            def get_retry_policy() -> dict[str, Any]:
                return {"max_attempts": 2, "delay_seconds": 1.0}

        Look.effect, Look.gate = effect, gate
        capability_node(Look)
        engine = rules if isinstance(rules, PolicyEngine) else PolicyEngine(rules)
        plans = plans or [[step("a", "look")], [step("b", "look", {"amount": 2})]]
        options.setdefault("checkpointer", InMemorySaver())
        return agent(Gauge, Look, plans=plans, policies=engine, **options)

    return make


@pytest.mark.row("T17")
async def test_what_failed_is_tried_again_once_more_than_its_policy_says(
    desk: Any, ran: list[str]
) -> None:
    it = desk([rule("again", AgentFailed("look"), "retry_agent")], fails=1)
    out = await it.ask()
    assert (status(out), ran) == ("completed", ["a", "a"])
    ran.clear()
    out = await desk([rule("again", AgentFailed(), "retry_agent")], fails=9).ask()
    assert (status(out), ran) == ("failed", ["a", "a"])
    assert "it is broken" in last_words(out)


async def test_retries_that_are_used_up_are_followed_by_one_more(desk: Any, ran: list[str]) -> None:
    passing = CapabilityError("Busy.", severity=ErrorSeverity.RETRIABLE)
    rules = [rule("again", RetryExhausted("tool_execution_error"), "retry_agent")]
    out = await desk(rules, fails=2, error=passing).ask()
    assert (status(out), ran) == ("completed", ["a"] * 3)
    ran.clear()
    out = await desk(PolicyEngine(rules, max_uses_per_turn=3), fails=99, error=passing).ask()
    assert (status(out), ran) == ("failed", ["a"] * 5)


@pytest.mark.row("T17")
async def test_the_turns_own_bound_is_not_passed(desk: Any, ran: list[str]) -> None:
    engine = PolicyEngine([rule("again", AgentFailed(), "retry_agent")], max_uses_per_turn=50)
    out = await desk(engine, fails=99, limits={"max_turn_attempts": 4}).ask()
    assert (status(out), ran) == ("stopped", ["a"] * 4)


@pytest.mark.row("T17")
async def test_an_effect_is_not_repeated_by_a_rule(desk: Any, ran: list[str]) -> None:
    bad = QualityGate(QualityLevel.STRICT, check=lambda result: QualityLevel.MINIMAL)
    sink = Sink()
    rules = [rule("again", AgentFailed(), "retry_agent", "retry_phase")]
    out = await desk(rules, effect="once", gate=bad, sinks=[sink]).ask()
    assert (status(out), ran) == ("failed", ["a"])
    assert [done for _, _, done in sink.acted] == [False, False]


async def test_another_plan_is_written(desk: Any, ran: list[str]) -> None:
    out = await desk([rule("anew", AgentFailed(), "retry_phase")], fails=9).ask()
    assert (status(out), ran) == ("completed", ["a", "b"])


async def test_a_failed_step_is_left_out(desk: Any, ran: list[str], step: Any) -> None:
    plans = [[step("a", "look"), step("b", "look", {"amount": 2})]]
    out = await desk([rule("go on", AgentFailed(), "advance_phase")], fails=9, plans=plans).ask()
    assert status(out) == "partial"
    assert sorted(ran) == ["a", "b"]
    assert out["execution_step_results"]["a"]["skipped"] is True
    assert "skipped the step" in out["execution_step_results"]["a"]["error"]


async def test_a_person_is_asked_and_decides(desk: Any, ran: list[str]) -> None:
    it = desk([rule("ask", AgentFailed(), "escalate")], fails=1)
    out = await it.ask()
    assert question(out)["steps"][0]["kind"] == "plan"
    assert "It is broken." in shown(out)
    assert ran == ["a"]
    out = await answer(it, "approve")
    assert (status(out), ran) == ("completed", ["a", "a"])
    it = desk([rule("ask", AgentFailed(), "escalate")], fails=1)
    await it.ask(thread="2")
    out = await answer(it, {"plan": {"decision": "reject", "reason": "no"}}, thread="2")
    assert ran == ["a", "a", "a", "b"], "a rejection is told to the planner"


async def test_without_a_saver_nobody_is_asked_and_the_failure_stays(
    desk: Any, ran: list[str]
) -> None:
    sink = Sink()
    rules = [rule("ask", AgentFailed(), "escalate")]
    out = await desk(rules, fails=1, checkpointer=None, sinks=[sink]).ask()
    assert (status(out), ran) == ("failed", ["a"])
    assert "it is broken" in last_words(out)
    assert sink.acted == [("ask", "escalate", False)]


async def test_a_turn_is_stopped(desk: Any, ran: list[str], step: Any) -> None:
    class Hour(PolicyCondition):
        async def matches(self, ctx: PhaseContext) -> bool:  # type: ignore[override]
            return ctx.elapsed_seconds == 0

    stop = PolicyActionData("abort_phase", {"message": "It is too early."})
    out = await desk([rule("closed", Hour(), stop)]).ask()
    assert (status(out), ran) == ("stopped", [])
    assert "the rule 'closed' stopped the turn. it is too early." in last_words(out)


async def test_rules_look_at_time_quality_and_the_end(desk: Any, ran: list[str]) -> None:
    sink = Sink()
    gate = QualityGate(QualityLevel.MINIMAL, check=lambda result: QualityLevel.STANDARD)
    rules = [
        rule("late", TimedOut(3600), "notify"),
        rule("good", QualityAt(QualityLevel.STANDARD), "notify"),
        rule("strict", QualityAt(QualityLevel.STRICT), "notify"),
        rule("below", GateBelow(3), "notify", "store_gate_feedback"),
        rule("over", PhaseCompleted(), "notify", "generate_handoff", priority=1),
        rule("all", AllAgentsComplete(), "notify"),
        rule("dear", CostExceeded(0), "notify"),
        rule("failed", AgentFailed(), "notify"),
    ]
    out = await desk(rules, gate=gate, sinks=[sink]).ask()
    assert status(out) == "completed"
    names = [name for name, _, _ in sink.acted]
    assert names == ["over", "over", "good", "below", "below", "all"], "each once, by priority"
    assert out["execution_step_results"]["a"]["quality"] == 2
    [handoff] = [e for e in sink.events if e["action"] == "generate_handoff"]
    assert handoff["params"]["handoff"]["done"] == ["a"]


async def test_without_a_gate_nothing_is_below(desk: Any) -> None:
    sink = Sink()
    await desk([rule("below", GateBelow(4), "notify")], sinks=[sink]).ask()
    assert sink.acted == []


async def test_what_was_not_good_enough_is_told_to_the_next_plan(desk: Any) -> None:
    feedback = PolicyActionData("store_gate_feedback", {"message": "Look closer."})
    it = desk([rule("tell", AgentFailed(), "retry_phase", feedback)], fails=9)
    await it.ask()
    assert "Look closer." in str(it.planner.calls[1].failure) or "broken" in str(
        it.planner.calls[1].failure
    )


async def test_one_condition_that_fails_stops_neither_turn_nor_others(
    desk: Any, ran: list[str], caplog: Any
) -> None:
    class Broken(PolicyCondition):
        def matches(self, ctx: PhaseContext) -> bool:
            raise RuntimeError("boom")

    sink = Sink()
    rules = [rule("broken", Broken(), "abort_phase"), rule("good", PhaseCompleted(), "notify")]
    out = await desk(rules, sinks=[sink]).ask()
    assert (status(out), sink.acted) == ("completed", [("good", "notify", True)])
    assert "'broken'" in caplog.text


# --- models ------------------------------------------------------------------------------------


def models(ran: list[str]) -> tuple[Any, Any]:
    @capability_node
    async def read_level() -> Gauge:
        """Read the level."""
        ran.append("level")
        return Gauge(value=1)

    plan = {"steps": [{"capability": "read_level", "context_key": "a"}]}
    good = ScriptedModel(responses=lambda call: plan if call.tools or call.schema else "Done.")
    return read_level, good


@pytest.mark.row("T17")
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (PolicyActionData("retry_agent", {"switch_model": True}), "completed"),
        ("recover_once", "completed"),
        ("retry_agent", "failed"),
    ],
)
async def test_the_next_model_is_asked(ran: list[str], action: Any, expected: str) -> None:
    capability, good = models(ran)
    broken = ScriptedModel(responses=lambda call: ConnectionError("gone"))
    engine = PolicyEngine([rule("next", AgentFailed(), action)], models=[good])
    from capgraph.testing import FakeClock

    graph = build_graph([capability], model=broken, policies=[engine], clock=FakeClock())
    out = await graph.ainvoke({"messages": [("user", "Read the level")]})
    assert status(out) == expected
    assert ran == (["level"] if expected == "completed" else [])


def test_a_shorter_conversation_keeps_instructions_and_the_last_message() -> None:
    said = [
        SystemMessage("s" * 100),
        HumanMessage("a" * 100),
        AIMessage("b" * 100),
        HumanMessage("c" * 100),
    ]
    assert [m.text[0] for m in _drop_oldest(said, 1)] == ["s", "b", "c"]
    assert [m.text[0] for m in _drop_oldest(said, 3)] == ["s", "c"]
    assert [m.text[0] for m in _drop_oldest(said, 50)] == ["s", "c"]


@pytest.mark.row("T17")
@pytest.mark.parametrize(
    ("condition", "action", "fails", "tries", "error"),
    [
        (AgentFailed("look"), "retry_agent", 1, 2, None),
        (AgentFailed("look"), "retry_agent", 9, 2, "no power"),
        (AgentFailed("other"), "retry_agent", 1, 1, "no power"),
        (AgentFailed("look"), "advance_phase", 1, 1, None),
        (AgentFailed("look"), "retry_phase", 1, 1, "no power"),
        (PhaseCompleted(), "notify", 0, 1, None),
        (CostExceeded(1e-9), "abort_phase", 0, 1, "The rule 'r' stopped the turn."),
    ],
)
async def test_rules_act_about_a_node_of_a_graph_of_ones_own(
    ran: list[str], condition: Any, action: str, fails: int, tries: int, error: str | None
) -> None:
    @capability_node
    class Look(BaseCapability):
        name = "look"
        description = "Look at the gauge"
        provides = ("GAUGE",)

        async def execute(self) -> Gauge:
            ran.append("look")
            if len(ran) <= fails:
                raise CapabilityError("no power")
            await self.chat_model().ainvoke("How much?")
            return Gauge(value=1)

    sink = Sink()
    services = bind(
        [Gauge, Look],
        policies=PolicyEngine([rule("r", condition, action)]),
        model={"capability": ScriptedModel(responses=lambda _: "Much.", model_name="m")},
        prices=PriceTable({"m": ModelPricing(9.0, 9.0)}),
        sinks=[sink],
    )
    builder = StateGraph(AgentState)
    builder.add_node("look", services.node(Look))
    builder.add_edge(START, "look")
    async with open_saver("sqlite://:memory:") as saver:
        graph = builder.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "1"}}
        out = await graph.ainvoke({"messages": [("user", "Look!")]}, config)
        again = await graph.ainvoke({"messages": [("user", "Look again!")]}, config)
    assert ran[:tries] == ["look"] * tries
    assert bool(out["control_has_error"]) is (error is not None)
    if error is not None:
        assert error in out["control_error_info"]["user_message"]
    acts = error is None or action == "abort_phase" or fails > 1
    await services.events.flush()
    assert sink.acted[:1] == ([] if "other" in repr(condition) else [("r", action, acts)])
    assert again["messages"]


def test_rules_of_one_name_in_two_engines_are_refused(desk: Any) -> None:
    engines = [PolicyEngine([rule("same", AgentFailed(), "notify")]) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="same"):
        build_graph([], policies=engines)
    with pytest.raises(ConfigurationError, match="PolicyEngine"):
        build_graph([], policies=[rule("alone", AgentFailed(), "notify")])  # type: ignore[list-item]


async def test_what_calls_cost_is_known_by_their_prices(ran: list[str], tmp_path: Any) -> None:
    capability, _ = models(ran)
    plan = {"steps": [{"capability": "read_level", "context_key": "a"}]}

    def reply(call: Any) -> Any:
        text = json.dumps(plan) if call.tools or call.schema else "Done."
        used = {"input_tokens": 1000, "output_tokens": 0, "total_tokens": 1000}
        return AIMessage(text, usage_metadata=used)  # type: ignore[arg-type]

    prices = PriceTable()
    prices.register("scripted", ModelPricing(1000.0, 1000.0))  # a dollar for a thousand tokens
    for limit, fires in ((0.5, True), (50.0, False)):
        sink = Sink()
        settings = load_settings(persistence={"url": f"sqlite:///{tmp_path}/{limit}.db"})
        engine = PolicyEngine([rule("dear", CostExceeded(limit), "notify")])
        model = ScriptedModel(responses=reply)
        options: Any = {"policies": engine, "sinks": [sink], "prices": prices}
        async with open_graph([capability], model=model, settings=settings, **options) as graph:
            given = {"messages": [("user", "Read the level")]}
            out = await graph.ainvoke(given, {"configurable": {"thread_id": "1"}})
        assert status(out) == "completed"
        assert bool(sink.acted) is fires


async def test_a_cost_that_is_not_known_counts_as_too_much(ran: list[str]) -> None:
    capability, good = models(ran)
    sink = Sink()
    engine = PolicyEngine([rule("dear", CostExceeded(1000), "notify")])
    graph = build_graph([capability], model=good, policies=engine, sinks=[sink])
    await graph.ainvoke({"messages": [("user", "Read the level")]})
    assert sink.acted == [("dear", "notify", True)]
