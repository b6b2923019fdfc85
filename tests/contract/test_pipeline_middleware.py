"""What a middleware may do, what it may not, and what it stands around beside capabilities."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

import capgraph
from capgraph import BaseCapability, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, CapgraphError, ConfigurationError, ErrorSeverity
from capgraph.behaviors import middleware
from capgraph.testing import ScriptedModel
from tests.support.doors import (
    STAGES,
    Gauge,
    Instead,
    Watches,
    answer,
    last_words,
    let_others_run,
    question,
    status,
)


@capability_node(examples=["read the gauge"])
async def read() -> Gauge:
    """Read the gauge."""
    return Gauge(value=7)


class Misspelt:
    stage = "observed"

    async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
        return await call_next()


class Nameless:
    async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
        return await call_next()


class Hollow:
    stage = "observe"


class Blocking:
    stage = "observe"

    def wrap_step(self, attempt: Any, call_next: Any) -> Any:
        return call_next()


async def undecorated(attempt: Any, call_next: Any) -> Any:
    return await call_next()


@pytest.mark.parametrize(
    "wrong", [Misspelt(), Nameless(), Hollow(), Blocking(), undecorated, "observe", None]
)
def test_what_is_no_middleware_is_refused_at_build(wrong: Any) -> None:
    registry = Registry()
    registry.register(Gauge)
    registry.register(read)
    with pytest.raises((CapgraphError, TypeError, ValueError)) as found:
        build_graph(registry, behaviors=[wrong])
    assert "unexpected argument" not in str(found.value)
    if isinstance(wrong, Misspelt):
        said = str(found.value)
        assert "observed" in said
        assert all(stage in said for stage in STAGES), "the fix names the stages"


def test_an_unknown_stage_is_refused_on_a_capability_and_in_bind_too() -> None:
    with pytest.raises((CapgraphError, TypeError, ValueError), match="observed"):
        capgraph.bind([read], behaviors=[Misspelt()])

    with pytest.raises((CapgraphError, TypeError, ValueError), match="observed"):
        # At the decorator or when the graph is built: before anything runs.
        @capability_node(behaviors=[Misspelt()])
        async def own() -> Gauge:
            """Read."""
            return Gauge(value=1)

        build_graph([own])


@pytest.mark.parametrize("wrong", [object(), "deny", None, Misspelt()])
def test_what_is_no_policy_is_refused_at_build(wrong: Any) -> None:
    with pytest.raises((CapgraphError, TypeError, ValueError)) as found:
        build_graph([read], policies=[wrong])
    assert "unexpected argument" not in str(found.value)
    assert "polic" in str(found.value).lower()


@pytest.fixture
def paid() -> list[str]:
    return []


@pytest.fixture
def pay(paid: list[str]) -> Any:
    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay"
        provides = ["GAUGE"]
        effect = "once"

        async def execute(self) -> Gauge:
            paid.append(self.step["context_key"])
            return Gauge(value=len(paid))

    return Pay


@pytest.mark.parametrize("stage", ["observe", "validate", "authorize", "finalize", "acquire"])
async def test_a_refusal_above_the_ledger_leaves_no_trace_in_it(
    agent: Any, step: Any, pay: Any, paid: list[str], stage: str
) -> None:
    """Nothing has begun: the next plan runs the same step without a question."""
    refused: list[int] = []

    async def refuse_first(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "pay" and not refused:
            refused.append(1)
            raise CapabilityError("Not yet.", severity=ErrorSeverity.REPLANNING)
        return await call_next()

    it = agent(
        Gauge,
        pay,
        plans=[[step("a", "pay")]],
        behaviors=[Instead(stage, refuse_first)],
        checkpointer=InMemorySaver(),
    )
    out = await it.ask()
    assert not out.get("__interrupt__"), "nobody is asked about an outcome that is known"
    assert (status(out), paid, refused) == ("completed", ["a"], [1])
    assert len(it.planner.calls) == 2


async def test_a_refusal_is_seen_from_observe_and_told_to_the_user(
    agent: Any, step: Any, pay: Any, paid: list[str]
) -> None:
    watches = Watches()

    async def refuse(attempt: Any, call_next: Any) -> Any:
        if attempt.capability == "pay":
            raise CapabilityError("Payments are closed today.")
        return await call_next()

    out = await agent(
        Gauge,
        pay,
        plans=[[step("a", "pay")]],
        behaviors=[watches.at("observe"), Instead("authorize", refuse)],
    ).ask()
    (seen,) = watches.left("observe", "pay")
    assert seen.result.success is False
    assert "closed" in str(seen.result.error)
    assert paid == []
    assert status(out) == "failed"
    assert "closed" in last_words(out)


async def test_interrupts_pass_every_stage_and_are_no_failure(agent: Any, step: Any) -> None:
    watches = Watches()
    finished: list[Any] = []

    @capability_node
    async def ask_back() -> Gauge:
        """Ask back."""
        finished.append(interrupt({"what": "which gauge?"}))
        return Gauge(value=int(finished[-1]))

    it = agent(
        Gauge,
        ask_back,
        plans=[[step("a", "ask_back")]],
        behaviors=watches.everywhere(),
        checkpointer=InMemorySaver(),
    )
    out = await it.ask()
    assert question(out) == {"what": "which gauge?"}
    for stage in STAGES[:5]:
        results = [s.result for s in watches.left(stage, "ask_back") if s.error is None]
        assert all(r is None or getattr(r, "success", None) is not False for r in results), stage
    out = await answer(it, 5)
    assert (status(out), finished) == ("completed", [5])
    assert out["capability_context_data"]["GAUGE"]["a"]["value"] == 5
    assert out["execution_step_results"]["a"]["success"] is True


async def test_a_middleware_stands_around_model_calls(agent: Any, step: Any) -> None:
    entered: list[Any] = []

    async def count(attempt: Any, call_next: Any) -> Any:
        entered.append(attempt)
        return await call_next()

    model = ScriptedModel(responses=["It is four."])
    plans = [[step("a", "read")]]
    it = agent(
        Gauge, read, plans=plans, behaviors=[Instead("call", count)], model={"answer": model}
    )
    assert status(await it.ask()) == "completed"
    assert len(model.calls) == 1
    assert [attempt.capability for attempt in entered] == ["read", "answer"]


async def test_each_method_of_a_middleware_wraps_its_own_kind_of_call(
    agent: Any, step: Any
) -> None:
    entered: list[tuple[str, str]] = []

    class Both:
        stage = "call"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            entered.append(("step", attempt.capability))
            return await call_next(attempt)

        async def wrap_model_call(self, attempt: Any, call_next: Any) -> Any:
            entered.append(("model call", attempt.capability))
            return await call_next(attempt)

    class StepsOnly:
        stage = "call"

        async def wrap_step(self, attempt: Any, call_next: Any) -> Any:
            entered.append(("step only", attempt.capability))
            return await call_next(attempt)

    it = agent(
        Gauge,
        read,
        plans=[[step("a", "read")]],
        behaviors=[Both(), StepsOnly()],
        model={"answer": ScriptedModel(responses=["It is four."])},
    )
    assert status(await it.ask()) == "completed"
    assert entered == [("step", "read"), ("step only", "read"), ("model call", "answer")]


async def test_a_decorated_function_is_a_middleware(agent: Any, step: Any) -> None:
    entered: list[str] = []

    @middleware(stage="observe")
    async def around_steps(attempt: Any, call_next: Any) -> Any:
        entered.append(f"step {attempt.capability}")
        return await call_next(attempt)

    @middleware(stage="call", wraps="model_call")
    async def around_model_calls(attempt: Any, call_next: Any) -> Any:
        entered.append(f"model {attempt.capability}")
        return await call_next(attempt)

    it = agent(
        Gauge,
        read,
        plans=[[step("a", "read")]],
        behaviors=[around_steps, around_model_calls],
        model={"answer": ScriptedModel(responses=["It is four."])},
    )
    assert status(await it.ask()) == "completed"
    assert entered == ["step read", "model answer"]


def test_the_decorator_refuses_an_unknown_stage_and_a_synchronous_function() -> None:
    with pytest.raises(ConfigurationError, match="observed"):
        middleware(stage="observed")
    with pytest.raises(ConfigurationError, match="blocking"):

        @middleware(stage="observe")
        def blocking(attempt: Any, call_next: Any) -> Any:
            return call_next(attempt)


def test_a_model_call_middleware_is_refused_on_a_capability() -> None:
    @middleware(stage="call", wraps="model_call")
    async def around_model_calls(attempt: Any, call_next: Any) -> Any:
        return await call_next(attempt)

    @capability_node(behaviors=[around_model_calls])
    async def own() -> Gauge:
        """Read."""
        return Gauge(value=1)

    with pytest.raises(ConfigurationError, match="around_model_calls"):
        build_graph([own])


async def test_one_middleware_serves_parallel_steps_and_many_threads(agent: Any, step: Any) -> None:
    watches = Watches()
    plan = [step(key, "read") for key in "abc"]
    it = agent(Gauge, read, plans=[plan], behaviors=watches.everywhere())
    for thread in ("1", "2"):
        assert status(await it.ask(thread=thread)) == "completed"
    for key in "abc":
        stages = [s.stage for s in watches.going_in if (s.capability, s.key) == ("read", key)]
        assert stages == [*STAGES, *STAGES]


class Sink:
    """Keeps events."""

    def __init__(self, fails: bool = False) -> None:
        self.events: list[Any] = []
        self.fails = fails

    def emit(self, event: Any) -> None:
        self.events.append(event)
        if self.fails:
            raise OSError("the disk is full")

    def kinds(self) -> list[str]:
        return [
            e["event_type"] if isinstance(e, dict) else str(getattr(e, "event_type", e))
            for e in self.events
        ]


async def test_sinks_get_the_events_of_every_turn(agent: Any, step: Any) -> None:
    first, second = Sink(), Sink()
    it = agent(Gauge, read, plans=[[step("a", "read")]], sinks=[first, second])
    for thread in ("1", "2"):
        assert status(await it.ask(thread=thread)) == "completed"
    kinds = first.kinds()
    for kind in ("plan_made", "step_started", "step_finished", "turn_finished"):
        assert kinds.count(kind) == 2, kind
    assert second.kinds() == kinds
    assert kinds.index("step_started") < kinds.index("step_finished")


async def test_a_sink_may_be_asynchronous(agent: Any, step: Any) -> None:
    class Slow(Sink):
        async def emit(self, event: Any) -> None:  # type: ignore[override]
            await let_others_run(3)
            self.events.append(event)

    sink = Slow()
    it = agent(Gauge, read, plans=[[step("a", "read")]], sinks=[sink])
    assert status(await it.ask()) == "completed"
    await let_others_run()
    assert sink.kinds()[-1] == "turn_finished"


async def test_a_failing_sink_does_not_fail_the_turn(agent: Any, step: Any) -> None:
    broken, good = Sink(fails=True), Sink()
    it = agent(Gauge, read, plans=[[step("a", "read")]], sinks=[broken, good])
    assert status(await it.ask()) == "completed"
    assert "turn_finished" in good.kinds()
