"""Whole graphs that fail: what is tried again, how often, and how each turn ends."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt

from capgraph import (
    BaseCapability,
    CapabilityContext,
    ErrorClassification,
    ErrorSeverity,
    build_graph,
)
from capgraph.base import CapabilityError, FatalExecutionError, capability_node
from capgraph.telemetry import Retry, parse_event
from capgraph.testing import with_faults
from tests.support.doors import message_and_reason
from tests.support.toys import Reading, Total, add, measure


def severity(level: Any, text: str = "It broke") -> CapabilityError:
    return CapabilityError(text, severity=level)


def said(out: dict[str, Any]) -> str:
    last = out["messages"][-1]
    assert isinstance(last, AIMessage), "the turn ended without a message"
    return str(last.content)


def policy(
    attempts: int, delay: float, factor: float, name: str = "measure"
) -> type[BaseCapability]:
    class Slow(BaseCapability):
        description = "Fails for ever."
        provides = ["READING"]
        calls: ClassVar[int] = 0

        async def execute(self) -> Any:
            type(self).calls += 1
            raise ConnectionError("line is down")

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": attempts, "delay_seconds": delay, "backoff_factor": factor}

    Slow.name = name
    return capability_node(Slow)


# --- RETRIABLE ------------------------------------------------------------------------------


@pytest.mark.row("B5")
@pytest.mark.parametrize(
    ("attempts", "delay", "factor", "waits"),
    [
        (3, 0.5, 1.5, [0.5, 0.75]),
        (5, 2.0, 2.0, [2, 4, 8, 16]),
        (2, 0.1, 1.0, [0.1]),
        (1, 5.0, 1.0, []),
    ],
)
async def test_a_policy_gives_total_tries_and_the_waits_between_them(
    agent: Any, step: Any, attempts: int, delay: float, factor: float, waits: list[float]
) -> None:
    broken = policy(attempts, delay, factor)
    bench = agent(broken, plans=[[step("a", "measure")]])
    out = await bench.ask()
    assert broken.calls == attempts
    assert len(bench.clock.sleeps) == len(waits)
    for slept, wanted in zip(bench.clock.sleeps, waits, strict=True):
        assert wanted <= slept <= wanted * 1.1  # jitter only makes it longer, by a tenth
    assert out["execution_outcome"]["status"] == "failed"
    assert out["execution_outcome"]["tried"] == {"a": attempts}
    assert "line is down" in said(out)


async def test_a_step_that_recovers_is_a_success(agent: Any, step: Any) -> None:
    flaky = with_faults(measure, *[ConnectionError("gone")] * 2)
    out = await agent(Reading, flaky, plans=[[step("a", "measure")]]).ask()
    assert flaky.faults.calls == 3
    assert out["execution_outcome"] == {"status": "completed", "done": ["a"], "missing": []}
    assert out["execution_step_results"]["a"]["attempts"] == 3
    assert not out.get("control_has_error")
    assert said(out) == "The value is 7."


async def test_settings_cap_a_wait_and_the_tries(agent: Any, step: Any) -> None:
    broken = policy(50, 100.0, 3.0)
    bounds = {"max_retry_delay_seconds": 2.0, "max_attempts": 4}
    bench = agent(broken, plans=[[step("a", "measure")]], limits=bounds)
    await bench.ask()
    assert broken.calls == 4
    assert bench.clock.sleeps == [2.0, 2.0, 2.0]


async def test_what_the_other_side_asks_to_wait_is_waited(agent: Any, step: Any) -> None:
    class Response:
        status_code = 429
        headers = {"retry-after": "17"}

    class TooMany(Exception):
        response = Response()

    flaky = with_faults(measure, TooMany("slow down"))
    bench = agent(Reading, flaky, plans=[[step("a", "measure")]])
    out = await bench.ask()
    assert bench.clock.sleeps == [17.0]
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_retry_is_announced(agent: Any, step: Any) -> None:
    bench = agent(
        Reading, with_faults(measure, TimeoutError("late")), plans=[[step("a", "measure")]]
    )
    events = [
        parse_event(event)
        async for event in bench.graph.astream({"messages": [("user", "x")]}, stream_mode="custom")
    ]
    retries = [event for event in events if isinstance(event, Retry)]
    assert [(event.name, event.context_key, event.attempt) for event in retries] == [
        ("measure", "a", 2)
    ]


async def test_each_step_of_a_wave_has_its_own_count(agent: Any, step: Any) -> None:
    one = with_faults(measure, ConnectionError("1"), ConnectionError("2"))
    out = await agent(
        Reading, one, plans=[[step("a", "measure"), step("b", "measure"), step("c", "measure")]]
    ).ask()
    tries = sorted(record["attempts"] for record in out["execution_step_results"].values())
    assert sum(tries) == 5
    assert out["execution_outcome"]["status"] == "completed"


async def test_a_step_at_its_limit_is_not_tried_again_for_the_sake_of_another(
    agent: Any, step: Any
) -> None:
    hasty = policy(1, 0, 1.0, "hasty")
    # It is still at its first try when the other one has failed for good.
    patient = with_faults(policy(5, 0.1, 1.0, "patient"), forever=0.02)
    out = await agent(patient, hasty, plans=[[step("a", "patient"), step("b", "hasty")]]).ask()
    assert hasty.calls == 1
    assert patient.faults.calls <= 5
    assert out["execution_outcome"]["status"] == "failed"
    assert "line is down" in said(out)


@pytest.mark.parametrize(
    "error", [TypeError, KeyError, AttributeError, ZeroDivisionError, NameError]
)
async def test_programming_errors_are_never_tried_again(
    agent: Any, step: Any, error: type[Exception]
) -> None:
    broken = with_faults(measure, forever=error("a bug"))
    bench = agent(Reading, broken, plans=[[step("a", "measure")]])
    out = await bench.ask()
    assert broken.faults.calls == 1
    assert bench.clock.sleeps == []
    assert out["execution_outcome"]["code"] == "programming_error"


@pytest.mark.parametrize("error", [ConnectionError("x"), TimeoutError("x")])
async def test_what_acts_once_is_not_tried_again_by_default(
    agent: Any, step: Any, error: Exception
) -> None:
    @capability_node(effect="once")
    async def send() -> Reading:
        """Send a letter."""
        return Reading(value=1)

    broken = with_faults(send, forever=error)
    bench = agent(Reading, broken, plans=[[step("a", "send")]])
    out = await bench.ask()
    assert broken.faults.calls == 1
    assert out["execution_outcome"]["status"] == "failed"


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        [],
        "often",
        {"max_attempts": "many"},
        {"max_attempts": float("nan")},
        {"max_attempts": 3, "delay_seconds": float("inf"), "backoff_factor": 1},
    ],
)
async def test_a_policy_that_makes_no_sense_still_ends(agent: Any, step: Any, given: Any) -> None:
    broken = policy(1, 0, 0)
    broken.get_retry_policy = staticmethod(lambda: given)  # type: ignore[method-assign]
    out = await agent(broken, plans=[[step("a", "measure")]]).ask()
    assert broken.calls <= 3
    assert "line is down" in said(out)


async def test_a_policy_that_raises_does_not_hide_the_failure(agent: Any, step: Any) -> None:
    def explode() -> Any:
        raise RuntimeError("no policy")

    broken = policy(1, 0, 0)
    broken.get_retry_policy = staticmethod(explode)  # type: ignore[method-assign]
    out = await agent(broken, plans=[[step("a", "measure")]]).ask()
    assert broken.calls == 1
    assert "line is down" in said(out)


# --- REPLANNING -----------------------------------------------------------------------------


async def test_a_new_plan_keeps_what_is_done_and_knows_why(agent: Any, step: Any) -> None:
    source = with_faults(measure)
    broken = with_faults(add, severity(ErrorSeverity.REPLANNING, "too few values"))
    first = [step("a", "measure"), step("t", "add", READING="a")]
    second = [step("a", "measure"), step("b", "measure"), step("t", "add", READING=["a", "b"])]
    bench = agent(Reading, Total, source, broken, plans=[first, second])
    out = await bench.ask()
    assert source.faults.calls == 2, "the finished step ran again"
    request = bench.planner.calls[1]
    assert request.failed_capability == "add"
    assert request.failure["user_message"] == "too few values"
    assert list(request.finished) == ["a"]
    assert [s["context_key"] for s in request.previous["steps"]][:2] == ["a", "t"]
    assert out["capability_context_data"]["TOTAL"]["t"] == {"value": 14.0}
    assert out["execution_outcome"]["status"] == "completed"


@pytest.mark.parametrize("plans", [1, 2, 4])
async def test_the_number_of_plans_is_bounded(agent: Any, step: Any, plans: int) -> None:
    broken = with_faults(measure, forever=severity(ErrorSeverity.REPLANNING))
    bench = agent(
        Reading, broken, plans=[[step("a", "measure")]], limits={"max_planning_attempts": plans}
    )
    out = await bench.ask()
    assert len(bench.planner.calls) == broken.faults.calls == plans
    assert out["execution_outcome"]["status"] == "failed"
    assert out["execution_outcome"]["plans"] == plans
    assert "It broke" in said(out)


@pytest.mark.parametrize("can_correct", [True, False])
async def test_a_planner_that_never_gets_it_right_is_bounded(
    agent: Any, step: Any, can_correct: bool
) -> None:
    wrong = [step("t", "add", TOTAL="nowhere")]
    bench = agent(Reading, Total, add, given=["READING"], plans=[wrong], can_correct=can_correct)
    out = await bench.ask()
    assert len(bench.planner.calls) == (2 if can_correct else 1)
    assert "problem" in message_and_reason(out)
    assert out["execution_outcome"]["status"] == "failed"
    if can_correct:
        assert bench.planner.calls[1].problems


@pytest.mark.parametrize("level", [ErrorSeverity.REPLANNING, ErrorSeverity.RECLASSIFICATION])
async def test_work_that_gives_no_data_and_was_not_done_is_not_told_as_done(level: Any) -> None:
    @capability_node
    class Water(BaseCapability):
        name = "water_plants"
        description = "Waters the plants."

        @staticmethod
        async def execute(state: Any, **_: Any) -> dict[str, Any]:
            raise severity(level, "the tap is shut")

    out = await build_graph([Water]).ainvoke({"messages": [("user", "Water the plants")]})
    assert out["execution_outcome"]["status"] == "failed"
    assert out["execution_outcome"]["reason"].startswith("the tap is shut")
    assert "the tap is shut" in said(out)


# --- RECLASSIFICATION -----------------------------------------------------------------------


@pytest.mark.row("B47")
@pytest.mark.parametrize("again", [0, 1, 3])
async def test_capabilities_are_chosen_again_exactly_as_often_as_allowed(
    agent: Any, step: Any, again: int
) -> None:
    broken = with_faults(measure, forever=severity(ErrorSeverity.RECLASSIFICATION, "wrong tool"))

    class Stubborn:
        calls = 0

        async def select(self, task: str, candidates: Any, **_: Any) -> Any:
            from capgraph.selection import Selection

            self.calls += 1
            return Selection(("measure",))

    chooser = Stubborn()
    bench = agent(
        Reading,
        broken,
        plans=[[step("a", "measure")]],
        selector=chooser,
        limits={"max_reclassifications": again, "max_planning_attempts": 9},
    )
    out = await bench.ask()
    assert chooser.calls == again + 1
    assert broken.faults.calls == again + 1
    assert out.get("control_reclassification_count", 0) == again
    assert "wrong tool" in said(out)


async def test_the_next_choice_knows_what_did_not_fit(agent: Any, step: Any) -> None:
    @capability_node
    async def other() -> Total:
        """Do it in another way."""
        return Total(value=1)

    broken = with_faults(measure, forever=severity(ErrorSeverity.RECLASSIFICATION, "wrong tool"))
    bench = agent(
        Reading, Total, broken, other, plans=[[step("a", "measure")], [step("b", "other")]]
    )
    out = await bench.ask()
    assert bench.selector.calls == [{}, {"measure": "wrong tool"}]
    assert out["execution_outcome"] == {"status": "completed", "done": ["b"], "missing": []}


async def test_choosing_again_ends_also_when_selection_is_switched_off(
    agent: Any, step: Any
) -> None:
    broken = with_faults(measure, forever=severity(ErrorSeverity.RECLASSIFICATION, "wrong tool"))
    bench = agent(
        Reading, broken, plans=[[step("a", "measure")]], limits={"max_planning_attempts": 9}
    )
    out = await bench.ask(agent_control={"capability_selection_bypass_enabled": True})
    assert broken.faults.calls <= 2
    assert said(out)
    assert bench.selector.calls == []


# --- CRITICAL and FATAL ---------------------------------------------------------------------


async def test_critical_ends_with_what_failed_and_what_was_done(agent: Any, step: Any) -> None:
    broken = with_faults(add, forever=severity(ErrorSeverity.CRITICAL, "The adder is broken."))
    plan = [step("a", "measure"), step("t", "add", READING="a")]
    bench = agent(Reading, Total, measure, broken, plans=[plan])
    out = await bench.ask()
    assert broken.faults.calls == 1
    assert len(bench.planner.calls) == 1
    for part in ("The adder is broken.", "The value is 7."):
        assert part in message_and_reason(out)
    assert out["execution_outcome"]["done"] == ["a"]
    assert out["execution_outcome"]["missing"] == ["t"]
    assert out["execution_outcome"]["severity"] == "critical"


@pytest.mark.row("B15")
@pytest.mark.parametrize("parallel", [1, 8])
async def test_fatal_raises_with_its_cause_and_nothing_else_runs(
    agent: Any, step: Any, parallel: int
) -> None:
    ran: list[str] = []
    later = asyncio.Event()
    cause = severity(ErrorSeverity.FATAL, "Disk is corrupt")

    @capability_node
    async def first() -> Reading:
        """Fail."""
        raise cause

    @capability_node
    async def waits() -> Reading:
        """Begin late."""
        await later.wait()
        ran.append("waits")
        return Reading(value=1)

    plan = [
        step("a", "first"),
        step("b", "waits"),
        step("c", "waits"),
        step("t", "add", READING="a"),
    ]
    bench = agent(
        Reading, Total, first, waits, add, plans=[plan], limits={"max_parallel": parallel}
    )
    with pytest.raises(FatalExecutionError, match="Fatal error in first: Disk is corrupt") as info:
        await bench.ask()
    assert isinstance(info.value, RuntimeError)
    assert info.value.__cause__ is cause
    later.set()
    await asyncio.sleep(0.15)
    assert ran == []


@pytest.mark.row("B18")
async def test_fatal_in_a_node_raises_in_the_documented_words(agent: Any) -> None:
    cause = severity(ErrorSeverity.FATAL, "No brain")
    bench = agent(Reading, measure, planner_faults=[cause])
    with pytest.raises(RuntimeError) as info:
        await bench.ask()
    assert str(info.value) == (
        "Fatal error in orchestrator: No brain. Technical details: No brain."
        " Execution terminated due to system-level failure."
    )
    assert info.value.__cause__ is cause


async def test_a_fatal_thread_can_be_used_again(agent: Any, step: Any) -> None:
    broken = with_faults(measure, severity(ErrorSeverity.FATAL))
    bench = agent(Reading, broken, plans=[[step("a", "measure")]], checkpointer=InMemorySaver())
    with pytest.raises(FatalExecutionError):
        await bench.ask()
    assert said(await bench.ask("Again")) == "The value is 7."


# --- what classify_error may answer ----------------------------------------------------------


def classified(answer: Any) -> type[BaseCapability]:
    class Judged(BaseCapability):
        name = "judged"
        description = "Fails and says what it means."
        calls: ClassVar[int] = 0

        async def execute(self) -> Any:
            type(self).calls += 1
            raise OSError("disk is full")

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> Any:
            return answer(exc, context) if callable(answer) else answer

    return capability_node(Judged)


def explodes(exc: Exception, context: dict[str, Any]) -> Any:
    raise LookupError("cannot judge")


@pytest.mark.row("B4")
@pytest.mark.parametrize("answer", [None, explodes, "retriable", 7, {"severity": "critical"}])
async def test_no_usable_classification_means_the_default(
    agent: Any, step: Any, answer: Any
) -> None:
    broken = classified(answer)
    out = await agent(broken, plans=[[step("a", "judged")]]).ask()
    assert broken.calls == 1
    assert out["control_error_info"]["classification"]["severity"] == "critical"
    assert "Unhandled error in judged: disk is full" in message_and_reason(out)


async def test_a_severity_written_as_text_is_understood(agent: Any, step: Any) -> None:
    broken = classified(lambda *_: ErrorClassification("retriable", "soon"))  # type: ignore[arg-type]
    await agent(broken, plans=[[step("a", "judged")]]).ask()
    assert broken.calls == 3


async def test_an_unknown_severity_means_the_default(agent: Any, step: Any) -> None:
    broken = classified(lambda *_: ErrorClassification("apocalyptic", "run"))  # type: ignore[arg-type]
    out = await agent(broken, plans=[[step("a", "judged")]]).ask()
    assert broken.calls == 1
    assert "disk is full" in said(out)


@pytest.mark.row("B4")
async def test_the_classifier_of_a_capability_sees_the_documented_context(
    agent: Any, step: Any
) -> None:
    seen: dict[str, Any] = {}

    def look(exc: Exception, context: dict[str, Any]) -> Any:
        seen.update(context)

    await agent(classified(look), plans=[[step("a", "judged")]]).ask()
    assert seen["capability"] == "judged"
    assert seen["current_step_index"] == 0
    assert seen["execution_time"] >= 0
    assert seen["current_state"]["task_current_task"] == "Do it"


# --- infrastructure nodes --------------------------------------------------------------------


class Failing:
    """Any strategy, failing for ever."""

    can_correct = True

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    async def _fail(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        raise self.error

    extract = select = plan = answer = _fail


@pytest.mark.row("B18")
@pytest.mark.parametrize(
    ("role", "tries"), [("extractor", 3), ("selector", 4), ("planner", 4), ("answerer", 3)]
)
async def test_a_node_that_fails_for_ever_is_bounded_and_ends_with_a_message(
    agent: Any, step: Any, role: str, tries: int
) -> None:
    failing = Failing(ConnectionError("model is away"))
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], **{role: failing})
    out = await bench.ask()
    assert failing.calls == tries
    assert len(bench.clock.sleeps) == tries - 1
    assert bench.clock.sleeps == sorted(bench.clock.sleeps)
    assert all(wait > 0 for wait in bench.clock.sleeps)
    assert "model is away" in message_and_reason(out)
    assert out["execution_outcome"]["status"] == "failed"


@pytest.mark.parametrize("role", ["extractor", "selector", "planner", "answerer"])
@pytest.mark.parametrize("level", ["critical", "replanning", "reclassification", "retriable"])
async def test_no_severity_of_a_node_makes_a_loop(
    agent: Any, step: Any, role: str, level: str
) -> None:
    failing = Failing(severity(ErrorSeverity(level)))
    bench = agent(Reading, measure, plans=[[step("a", "measure")]], **{role: failing})
    out = await bench.ask()
    assert failing.calls <= 4
    assert out["control_routing_count"] < 20
    assert "It broke" in said(out)


async def test_a_node_that_recovers_leaves_no_error_behind(agent: Any, step: Any) -> None:
    bench = agent(
        Reading,
        measure,
        plans=[[step("a", "measure")]],
        selector_faults=[ConnectionError("busy"), None],
        planner_faults=[TimeoutError("late"), None],
    )
    out = await bench.ask()
    assert said(out) == "The value is 7."
    assert not out["control_has_error"]
    assert out["control_error_info"] is None
    assert out["execution_outcome"] == {"status": "completed", "done": ["a"], "missing": []}


async def test_an_outage_of_the_selector_is_not_nothing_matched(agent: Any) -> None:
    failing = Failing(severity(ErrorSeverity.CRITICAL, "The model refused"))
    out = await agent(Reading, measure, selector=failing).ask()
    assert "The model refused" in said(out)
    assert "Nothing here can do that" not in said(out)


async def test_a_question_that_cannot_be_written_still_ends_with_a_message(
    agent: Any, step: Any
) -> None:
    failing = Failing(ValueError("cannot ask"))
    out = await agent(Reading, measure, plans=[[step("q", "clarify")]], answerer=failing).ask()
    assert "cannot ask" in message_and_reason(out)


@pytest.mark.parametrize("then_fail", [False, True])
async def test_a_result_that_cannot_be_summarised_still_ends_with_a_message(
    agent: Any, step: Any, then_fail: bool
) -> None:
    class Mute(CapabilityContext):
        value: int

        def get_summary(self) -> str:
            raise RuntimeError("no words")

    @capability_node
    async def dumb() -> Mute:
        """Give what cannot be told."""
        return Mute(value=1)

    broken = with_faults(measure, forever=severity(ErrorSeverity.CRITICAL))
    plan = [step("m", "dumb")] + ([step("a", "measure")] if then_fail else [])
    out = await agent(Mute, Reading, dumb, broken, plans=[plan]).ask()
    assert ("It broke" if then_fail else "no words") in said(out)


# --- interrupts and signals of LangGraph ------------------------------------------------------


@pytest.mark.row("B17")
async def test_an_interrupt_inside_a_capability_waits_and_goes_on(agent: Any, step: Any) -> None:
    before: list[str] = []

    @capability_node
    async def ask_person() -> Reading:
        """Ask for the value."""
        before.append("asked")
        return Reading(value=float(interrupt("How much?")))

    source = with_faults(measure)
    plan = [step("m", "measure"), step("a", "ask_person"), step("t", "add", READING=["a", "m"])]
    bench = agent(
        Reading, Total, source, ask_person, add, plans=[plan], checkpointer=InMemorySaver()
    )
    out = await bench.ask()
    assert [item.value for item in out["__interrupt__"]] == ["How much?"]
    assert not out.get("control_has_error")
    out = await bench.graph.ainvoke(Command(resume=5), bench.config())
    assert out["capability_context_data"]["TOTAL"]["t"] == {"value": 12.0}
    assert source.faults.calls == 1, "a finished step ran again after the interrupt"


@pytest.mark.row("B17")
async def test_interrupts_of_one_wave_are_asked_together_and_answered_by_id(
    agent: Any, step: Any
) -> None:
    runs: list[str] = []

    class Asks(BaseCapability):
        name = "asks"
        description = "Ask for a value"
        provides = ["READING"]

        async def execute(self) -> Reading:
            key = self.step["context_key"]
            answer = interrupt(f"How much for {key}?")
            runs.append(key)
            return Reading(value=float(answer))

    source = with_faults(measure)
    plan = [
        step("a", "asks"),
        step("m", "measure"),
        step("b", "asks"),
        step("t", "add", READING=["a", "b", "m"]),
    ]
    bench = agent(
        Reading,
        Total,
        capability_node(Asks),
        source,
        add,
        plans=[plan],
        checkpointer=InMemorySaver(),
    )
    out = await bench.ask()
    asked = {item.value: item.id for item in out["__interrupt__"]}
    assert set(asked) == {"How much for a?", "How much for b?"}
    assert len(out["__interrupt__"]) == 2
    out = await bench.graph.ainvoke(Command(resume={asked["How much for a?"]: 1}), bench.config())
    assert [item.value for item in out["__interrupt__"]] == ["How much for b?"]
    out = await bench.graph.ainvoke(Command(resume={asked["How much for b?"]: 2}), bench.config())
    assert out["capability_context_data"]["TOTAL"]["t"] == {"value": 10.0}
    assert source.faults.calls == 1
    assert runs == ["a", "b"], "an answered step ran again"


@pytest.mark.row("B41")
async def test_a_raw_event_of_a_capability_reaches_the_stream(agent: Any, step: Any) -> None:
    class Streams(BaseCapability):
        name = "streams"
        description = "Streams"

        @staticmethod
        async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
            from langgraph.config import get_stream_writer

            writer = get_stream_writer()
            writer({"event_type": "status", "message": "Half", "progress": 0.3})
            writer({"event_type": "status", "message": "Done", "progress": 1.0, "complete": True})
            return {}

    bench = agent(capability_node(Streams), plans=[[step("a", "streams")]])
    stream = bench.graph.astream({"messages": [("user", "x")]}, stream_mode="custom")
    events = [event async for event in stream]
    own = [event for event in events if event.get("progress") is not None]
    assert [(event["message"], event["progress"]) for event in own] == [
        ("Executing streams...", 0.1),
        ("Half", 0.3),
        ("Done", 1.0),
    ]
    kinds = [event["event_type"] for event in events]
    assert kinds.index("step_started") < kinds.index("step_finished") < kinds.index("turn_finished")


@pytest.mark.row("F3")
@pytest.mark.parametrize("form", ["capability", "node"])
async def test_every_signal_of_langgraph_passes_through(agent: Any, step: Any, form: str) -> None:
    class Signal(GraphBubbleUp):
        pass

    judged: list[Any] = []

    class Raises(BaseCapability):
        name = "raises"
        description = "Signals."

        async def execute(self) -> Any:
            raise Signal

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> Any:
            judged.append(exc)

    capability = capability_node(Raises)
    planner = {} if form == "capability" else {"planner": Failing(Signal())}  # type: ignore[arg-type]
    bench = agent(capability, plans=[[step("a", "raises")]], **planner)
    try:
        out = await bench.ask()
    except GraphBubbleUp:
        out = {}
    assert judged == []
    assert not out.get("control_has_error")


# --- development mode -------------------------------------------------------------------------


@pytest.mark.row("B16")
@pytest.mark.parametrize(
    "error", [RuntimeError, ImportError, AttributeError, KeyError, ConnectionError, ValueError]
)
@pytest.mark.parametrize("where", ["capability", "node"])
async def test_development_mode_raises_the_original(
    agent: Any, step: Any, error: type[Exception], where: str
) -> None:
    original = error("as it is")
    if where == "capability":
        bench = agent(
            Reading, with_faults(measure, forever=original), plans=[[step("a", "measure")]]
        )
    else:
        bench = agent(Reading, measure, planner_faults=[original])
    config = bench.config(development={"raise_raw_errors": True})
    with pytest.raises(error) as info:
        await bench.graph.ainvoke({"messages": [("user", "x")]}, config)
    assert info.value is original
    for config in (None, bench.config(development=True)):
        out = await bench.graph.ainvoke({"messages": [("user", "x")]}, config)
        assert "as it is" in message_and_reason(out)


# --- several failures, partial results --------------------------------------------------------


async def test_independent_steps_finish_although_one_fails(agent: Any, step: Any) -> None:
    slow = with_faults(measure, 0.02)
    broken = with_faults(add, forever=severity(ErrorSeverity.CRITICAL))
    plan = [step("a", "measure"), step("t", "add")]
    plan[1]["inputs"] = [{"READING": "old"}]
    bench = agent(Reading, Total, slow, broken, plans=[plan], given=["READING"])
    out = await bench.ask(capability_context_data={"READING": {"old": {"value": 1}}})
    assert out["execution_outcome"]["status"] == "failed"
    assert out["execution_outcome"]["done"] == ["a"]
    assert out["execution_step_results"]["a"]["success"]


async def test_a_step_that_takes_too_long_is_stopped_and_said_so(agent: Any, step: Any) -> None:
    slow = with_faults(measure, forever=30.0)
    bench = agent(
        Reading,
        slow,
        plans=[[step("a", "measure")]],
        limits={"step_timeout_seconds": 0.02, "max_attempts": 1},
    )
    out = await bench.ask()
    assert "limit of 0.02 s" in said(out)
