"""Budgets in whole graphs: never over, nothing twice, whoever calls the model and wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

from capgraph import BaseCapability, bind, build_graph, capability_node
from capgraph.base.errors import ConfigurationError
from capgraph.cli.main import app
from capgraph.governance import Budget
from capgraph.graph import build
from capgraph.state import AgentState
from capgraph.stores import Persistence, open_saver, prune_threads
from capgraph.telemetry import ModelPricing, PriceTable
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK
from capgraph.telemetry.usage_callback import USAGE_CALLBACK
from capgraph.telemetry.usage_recorder import usage_totals
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, WorkflowEdge, WorkflowNode
from capgraph.workflows.nodes import to_workflow_result
from tests.support.doors import Gauge, last_words, soon, status

PRICES = PriceTable({"scripted": ModelPricing(0.0, 1000.0)}, use_genai_prices=False)


def answer(tokens: int, prompt: int = 1) -> Any:
    used = {"input_tokens": prompt, "output_tokens": tokens, "total_tokens": prompt + tokens}
    name = {"model_name": "scripted"}
    return lambda call: AIMessage("hm", usage_metadata=used, response_metadata=name)  # type: ignore[arg-type]


def chatter(times: int, *, form: str = "async", cost: float = 0.0) -> Any:
    if form == "thread":

        @capability_node
        class Talker(BaseCapability):
            name = "chatter"
            description = "Talk"
            provides = ["GAUGE"]

            def execute(self) -> Gauge:
                for n in range(times):
                    self.chat_model().invoke(f"again {n}")
                return Gauge(value=times)

        return Talker

    @capability_node
    class Chatter(BaseCapability):
        name = "chatter"
        description = "Talk"
        provides = ["GAUGE"]
        cost_usd = cost

        async def execute(self) -> Gauge:
            for n in range(times):
                if form == "holding":
                    self.chat_model().invoke(f"again {n}")
                else:
                    await self.chat_model().ainvoke(f"again {n}")
            return Gauge(value=times)

    return Chatter


@pytest.mark.row("T13")
@pytest.mark.parametrize("form", ["async", "thread"])
async def test_no_call_is_sent_past_the_budget(agent: Any, step: Any, form: str) -> None:
    model = ScriptedModel(responses=answer(5))
    it = agent(
        Gauge,
        chatter(50, form=form),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(requests=3),
    )
    out = await soon(it.ask())
    assert len(model.calls) == 3
    assert status(out) == "stopped"
    assert "requests is limited to 3" in last_words(out)


@pytest.mark.row("T13")
@pytest.mark.parametrize("first", ["meter", "cashier"])
async def test_a_call_counts_once_whoever_is_told_of_its_end_first(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    if first == "cashier":
        monkeypatch.setattr(build, "USAGE_CALLBACK", BUDGET_CALLBACK)
        monkeypatch.setattr(build, "BUDGET_CALLBACK", USAGE_CALLBACK)
    told: list[str] = []
    counted, paid = USAGE_CALLBACK.on_llm_end, BUDGET_CALLBACK.on_llm_end

    def count(*args: Any, **more: Any) -> None:
        told.append("meter")
        counted(*args, **more)

    async def pay(*args: Any, **more: Any) -> None:
        told.append("cashier")
        await paid(*args, **more)

    monkeypatch.setattr(USAGE_CALLBACK, "on_llm_end", count)
    monkeypatch.setattr(BUDGET_CALLBACK, "on_llm_end", pay)
    it = agent(
        Gauge,
        chatter(3),
        plans=[[step("a", "chatter")]],
        model={"capability": ScriptedModel(responses=answer(5))},
        budget=Budget(requests=10, tokens=1000, per="thread"),
    )
    assert status(await soon(it.ask())) == "completed"
    assert told[0] == first, "LangChain tells handlers in their order; the test forces both"
    [budget] = it.graph.services.budget_policy.budgets
    assert await budget.remaining("1") == {"requests": 7, "tokens": 1000 - 3 * 6}


@pytest.mark.may_block
async def test_a_call_that_holds_up_the_loop_counts_when_its_step_has_ended(
    agent: Any, step: Any
) -> None:
    model = ScriptedModel(responses=answer(5))
    it = agent(
        Gauge,
        chatter(2, form="holding"),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(requests=2, per="thread"),
        limits={"max_parallel": 1},
    )
    assert status(await soon(it.ask())) == "completed"
    services = it.graph.services
    assert len(model.calls) == 2
    [budget] = services.budget_policy.budgets
    assert await budget.remaining("1") == {"requests": 0}


async def test_parallel_steps_never_take_more_than_there_is(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(9))
    it = agent(
        Gauge,
        chatter(1),
        plans=[[step(key, "chatter") for key in "abcdefgh"]],
        model={"capability": model},
        budget=Budget(requests=5),
    )
    out = await soon(it.ask())
    assert len(model.calls) == 5
    assert status(out) == "stopped"


async def test_tokens_are_those_that_the_model_says(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(99))
    it = agent(
        Gauge,
        chatter(50),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(tokens=1000),
    )
    out = await soon(it.ask())
    assert len(model.calls) == 10  # of a hundred each; the eleventh is not sent
    assert "tokens is limited to 1000" in last_words(out)


async def test_a_known_cap_is_reserved_whole(agent: Any, step: Any) -> None:
    class Capped(ScriptedModel):
        max_tokens: int = 500

        def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
            return {**super()._get_ls_params(stop=stop, **kwargs), "ls_max_tokens": 500}

    model = Capped(responses=answer(99))
    it = agent(
        Gauge,
        chatter(50),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(tokens=1000),
    )
    await soon(it.ask())
    assert len(model.calls) == 5  # after five hundred, a sixth might go over


async def test_money_is_counted_by_the_price(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(10))
    it = agent(
        Gauge,
        chatter(50),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(cost_usd=0.05),
        prices=PRICES,
    )
    out = await soon(it.ask())
    assert len(model.calls) == 5  # a cent each
    assert "cost_usd is limited to 0.05" in last_words(out)


async def test_a_price_that_nobody_knows_is_refused_where_money_is_limited(
    agent: Any, step: Any
) -> None:
    model = ScriptedModel(responses=answer(10), model_name="mystery")
    options: dict[str, Any] = {"plans": [[step("a", "chatter")]], "model": {"capability": model}}
    it = agent(Gauge, chatter(1), budget=Budget(cost_usd=5), **options)
    out = await soon(it.ask())
    assert model.calls == []
    assert "price of the model 'mystery' is unknown" in last_words(out)
    capped = Budget(cost_usd=5, unknown_price=ModelPricing(0, 1_000_000))
    it = agent(Gauge, chatter(1), budget=capped, **options)
    assert status(await soon(it.ask())) == "completed"
    free = agent(Gauge, chatter(1), budget=Budget(tokens=5000), **options)
    assert status(await soon(free.ask())) == "completed"


async def test_steps_and_declared_costs_are_bounded(agent: Any, step: Any) -> None:
    plans = [[step(key, "chatter") for key in "abc"]]
    it = agent(Gauge, chatter(0), plans=plans, budget=Budget(steps=2))
    out = await soon(it.ask())
    assert status(out) == "stopped"
    it = agent(Gauge, chatter(0, cost=0.4), plans=plans, budget=Budget(cost_usd=1.0))
    out = await soon(it.ask())
    assert status(out) == "stopped"
    assert "cost_usd is limited to 1" in last_words(out)


async def test_each_turn_begins_anew_and_a_thread_goes_on(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(5))
    options: dict[str, Any] = {"plans": [[step("a", "chatter")]], "model": {"capability": model}}
    turns = agent(Gauge, chatter(2), budget=Budget(requests=2), **options)
    for _ in range(3):
        assert status(await soon(turns.ask())) == "completed"
    async with open_saver("sqlite://:memory:") as saver:
        it = agent(
            Gauge,
            chatter(2),
            budget=Budget(requests=4, per="thread"),
            checkpointer=saver,
            **options,
        )
        ends = [status(await soon(it.ask(thread="t"))) for _ in range(3)]
        assert ends == ["completed", "completed", "stopped"]
        assert status(await soon(it.ask(thread="u"))) == "completed"


@pytest.mark.row("T13")
@pytest.mark.parametrize(("asks", "steps"), [("asking", 1), ("around", 2)])
async def test_a_question_in_a_step_counts_it_once(
    agent: Any, step: Any, tmp_path: Path, asks: str, steps: int
) -> None:
    model = ScriptedModel(responses=answer(5))

    @capability_node
    class Asking(BaseCapability):
        name = "asking"
        description = "Ask"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            said = interrupt("Go on?")
            await self.chat_model().ainvoke(str(said))
            return Gauge(value=1)

    @capability_node
    async def around() -> Gauge:
        """Have another one ask."""
        await Asking.langgraph_node({})  # type: ignore[attr-defined]
        return Gauge(value=1)

    def make(saver: Any) -> Any:
        return agent(
            Gauge,
            Asking,
            around,
            plans=[[step("a", asks)]],
            model={"capability": model},
            budget=Budget(steps=steps, requests=1),
            checkpointer=saver,
        )

    async with open_saver(f"sqlite:///{tmp_path}/t.db") as saver:
        out = await soon(make(saver).ask(thread="t"))
        assert out["__interrupt__"]
    async with open_saver(f"sqlite:///{tmp_path}/t.db") as saver:  # another process goes on
        it = make(saver)
        out = await soon(it.graph.ainvoke(Command(resume="yes"), it.config("t")))
        assert status(out) == "completed"
        rows = Persistence.of(saver).tables
        assert rows is not None
        _, found = await rows.run("SELECT value FROM capgraph_cells")
        ((used, held),) = (json.loads(value) for (value,) in found)
        assert (used["steps"], used["requests"], held) == (steps, 1, {})


@pytest.mark.parametrize("window", ["hour", "month"])
async def test_a_window_goes_by_the_clock_of_the_graph(agent: Any, step: Any, window: Any) -> None:
    budget = Budget(steps=1, per="user", window=window)
    plan = [step("a", "chatter")]
    it = agent(Gauge, chatter(0), plans=[plan, plan, plan], budget=budget)
    found = []
    for thread in ("1", "2", "3"):
        it.clock.advance(32 * 86_400 if thread == "3" else 0)
        found.append(status(await it.ask(thread=thread)))
    assert found == ["completed", "stopped", "completed"]


async def test_failures_in_a_row_end_the_turn(agent: Any, step: Any) -> None:
    tries = []

    @capability_node
    class Failing(BaseCapability):
        name = "failing"
        description = "Fail"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            tries.append(1)
            raise ConnectionError("away")

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 9, "delay_seconds": 0.1}

    it = agent(
        Gauge,
        Failing,
        plans=[[step("a", "failing")]],
        budget=Budget(consecutive_failures=3),
    )
    out = await soon(it.ask())
    assert len(tries) == 3
    assert status(out) == "stopped"


async def test_the_nodes_of_the_graph_draw_on_the_budget_too(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(5))
    it = agent(
        Gauge,
        chatter(0),
        plans=[[step("a", "chatter")]],
        model={"answer": model},
        budget=Budget(requests=1, per="user"),
    )
    assert status(await soon(it.ask())) == "completed"
    assert len(model.calls) == 1
    out = await soon(it.ask())
    assert len(model.calls) == 1
    assert status(out) == "stopped"


async def test_a_bound_node_reserves_its_steps() -> None:
    services = bind([Gauge, chatter(0)], budget=Budget(steps=0))
    node = services.node(services.registry.capabilities["chatter"].cls)
    out = await node({})
    assert "steps is limited to 0" in out["control_error_info"]["user_message"]


async def test_a_run_of_a_workflow_is_one_turn() -> None:
    talker = chatter(0)
    services = bind([Gauge, talker], budget=Budget(steps=2))
    names = "abc"
    flow = DAGWorkflow(
        nodes=[WorkflowNode(name, talker) for name in names],
        edges=[WorkflowEdge("a", "b"), WorkflowEdge("b", "c")],
        services=services,
    )
    async with open_saver("sqlite://:memory:") as saver:
        graph = flow.compile(saver)
        for _ in range(2):  # each run of the thread
            found = to_workflow_result(
                await graph.ainvoke({"task": "x"}, {"configurable": {"thread_id": "1"}})
            )
            assert not found.success
            assert "steps is limited to 2" in str(found.outputs["c"].error)
            assert [found.outputs[name].error for name in "ab"] == [None, None]


async def test_what_calls_used_goes_with_the_days_of_the_settings(
    agent: Any, step: Any, tmp_path: Path
) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/t.db") as saver:
        rows = Persistence.of(saver).tables
        assert rows is not None
        for kept, calls in ((None, [1, 2]), (1e-9, [0])):
            it = agent(
                Gauge,
                chatter(1),
                plans=[[step("a", "chatter")]],
                model={"capability": ScriptedModel(responses=answer(10))},
                checkpointer=saver,
                prices=PRICES,
                settings={"persistence": {"keep_days": kept}},
            )
            for _, expected in enumerate(calls):
                await soon(it.ask(thread="t"))
                await asyncio.to_thread(it.graph.services.budget_policy.recorder.flush)
                if kept is not None:
                    await prune_threads(saver, policy="older_than", older_than=timedelta(days=kept))
                found = await usage_totals(rows)
                assert sum(total.calls for total in found) == expected


async def test_what_calls_used_is_kept_by_model_thread_and_user(
    agent: Any, step: Any, tmp_path: Path
) -> None:
    model = ScriptedModel(responses=answer(10, prompt=3))
    async with open_saver(f"sqlite:///{tmp_path}/t.db") as saver:
        it = agent(
            Gauge,
            chatter(2),
            plans=[[step("a", "chatter"), step("b", "chatter")]],
            model={"capability": model},
            checkpointer=saver,
            prices=PRICES,
        )
        for thread, user in (("t", "ada"), ("u", "bob")):
            config = {"configurable": {"thread_id": thread, "user_id": user}}
            await soon(it.graph.ainvoke({"messages": [("user", "talk")]}, config))
        await asyncio.to_thread(it.graph.services.budget_policy.recorder.flush)
        rows = Persistence.of(saver).tables
        assert rows is not None
        [every] = await usage_totals(rows)
        assert (every.model, every.calls, every.input_tokens) == ("scripted", 8, 24)
        assert every.cost_usd == pytest.approx(0.08)
        [own] = await usage_totals(rows, thread_id="t")
        assert own.calls == 4
        [ada] = await usage_totals(rows, user_id="ada")
        assert ada.calls == 4
        _, found = await rows.run(
            "SELECT DISTINCT capability, role, step_id FROM capgraph_usage ORDER BY step_id"
        )
        assert found == [("chatter", "capability", "a"), ("chatter", "capability", "b")]


@pytest.mark.parametrize("wrong", ["much", [Budget(tokens=1), Budget(tokens=2)], 5])
def test_a_budget_that_is_none_is_refused_when_the_graph_is_built(wrong: Any, agent: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        agent(Gauge, chatter(0), budget=wrong)


@pytest.mark.row("T13")
async def test_a_plan_that_is_too_dear_is_refused_before_anything_runs(
    agent: Any, step: Any
) -> None:
    ran = []

    @capability_node
    class Dear(BaseCapability):
        name = "dear"
        description = "Costs"
        provides = ["GAUGE"]
        cost_usd = 0.4

        async def execute(self) -> Gauge:
            ran.append(1)
            return Gauge(value=1)

    plans = [[step(key, "dear") for key in "abc"]]
    out = await soon(agent(Gauge, Dear, plans=plans, budget=Budget(cost_usd=1.0)).ask())
    assert ran == []
    assert status(out) == "stopped"
    assert "plan exceeds a budget" in last_words(out)
    assert "1.2 more is required" in last_words(out)


@pytest.mark.row("T13")
@pytest.mark.parametrize("durable", [False, True])
async def test_what_a_plan_will_need_is_held_while_it_runs(
    agent: Any, step: Any, tmp_path: Path, durable: bool
) -> None:
    """Each plan fits by itself, and the two of them do not fit together."""
    ran: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @capability_node
    class Dear(BaseCapability):
        name = "dear"
        description = "Costs"
        provides = ["GAUGE"]
        cost_usd = 0.4

        async def execute(self) -> Gauge:
            ran.append(self.idempotency_key.partition("/")[0])
            begun.set()
            await go_on.wait()
            return Gauge(value=1)

    @capability_node
    class Later(BaseCapability):
        name = "later"
        description = "Costs as much, after it"
        requires = ["GAUGE"]
        cost_usd = 0.4

        async def execute(self) -> dict[str, Any]:
            return {}

    plan = [step("a", "dear"), step("b", "later", GAUGE="a")]
    async with open_saver(
        f"sqlite:///{tmp_path}/t.db" if durable else "sqlite://:memory:"
    ) as saver:
        it = agent(
            Gauge,
            Dear,
            Later,
            plans=[plan, plan, plan],
            checkpointer=saver,
            budget=Budget(cost_usd=1.3, per="user"),
        )
        say = {"messages": [("user", "Go")]}
        first = asyncio.create_task(it.graph.ainvoke(say, it.config("1", user_id="ann")))
        await soon(begun.wait())
        out = await soon(it.graph.ainvoke(say, it.config("2", user_id="ann")))
        assert status(out) == "stopped"
        assert "plan exceeds a budget" in last_words(out)
        assert "0.8 is used or reserved, and 0.8 more is required" in last_words(out)
        go_on.set()
        assert status(await soon(first)) == "completed"
        assert ran == ["1"], "nothing of the other one began"
        out = await soon(it.graph.ainvoke(say, it.config("3", user_id="bob")))
        assert status(out) == "completed"
        assert out["execution_outcome"]["budget_left"]["cost_usd"] == pytest.approx(0.5)


async def test_a_plan_is_priced_by_what_its_capabilities_used_before(
    agent: Any, step: Any, tmp_path: Path
) -> None:
    model = ScriptedModel(responses=answer(99))
    async with open_saver(f"sqlite:///{tmp_path}/t.db") as saver:
        options: dict[str, Any] = {"model": {"capability": model}, "checkpointer": saver}
        one = agent(Gauge, chatter(2), plans=[[step("a", "chatter")]], **options)
        await soon(one.ask(thread="t"))
        await asyncio.to_thread(one.graph.services.budget_policy.recorder.flush)
        plans = [[step(key, "chatter") for key in "abc"]]
        it = agent(Gauge, chatter(2), plans=plans, budget=Budget(tokens=500), **options)
        out = await soon(it.ask(thread="u"))
        assert len(model.calls) == 2  # those of the first graph
        assert "tokens is limited to 500" in last_words(out)
        assert "600 more is required" in last_words(out)


async def test_what_is_left_is_known_to_the_planner_and_in_the_outcome(
    agent: Any, step: Any
) -> None:
    model = ScriptedModel(responses=answer(9))
    it = agent(
        Gauge,
        chatter(1),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=Budget(requests=5, tokens=5000),
    )
    out = await soon(it.ask())
    assert it.planner.calls[0].budget_left == {"requests": 5, "tokens": 5000}
    assert out["execution_outcome"]["budget_left"] == {"requests": 4, "tokens": 4990}


async def test_a_model_that_plans_reads_what_is_left() -> None:
    plan = {"steps": [{"capability": "chatter", "task_objective": "talk"}]}
    model = ScriptedModel(responses=lambda call: plan if call.schema else "Done.")
    graph = build_graph([Gauge, chatter(0)], model=model, budget=Budget(requests=7))
    out = await soon(graph.ainvoke({"messages": [("user", "Talk to me")]}))
    assert any("Left of the budget: requests" in call.prompt for call in model.calls)
    assert out["execution_outcome"]["budget_left"]["requests"] == 7 - len(model.calls)


@pytest.mark.row("T28")
async def test_several_budgets_hold_together(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(9))
    it = agent(
        Gauge,
        chatter(2),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        budget=[Budget(requests=2), Budget(requests=3, per="tenant", window="day")],
    )
    assert status(await soon(it.ask())) == "completed"
    out = await soon(it.ask())
    assert len(model.calls) == 3
    assert "tenant" in last_words(out)
    assert "per day" in last_words(out)


def test_the_command_shows_what_was_used(agent: Any, step: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"

    async def run() -> None:
        async with open_saver(url) as saver:
            for name in ("known", "mystery"):
                model = ScriptedModel(responses=lambda call: "hm", model_name=name)
                it = agent(
                    Gauge,
                    chatter(1),
                    plans=[[step("a", "chatter")]],
                    model={"capability": model},
                    checkpointer=saver,
                    prices=PriceTable({"known": ModelPricing(1, 10_000)}),
                )
                config = {"configurable": {"thread_id": name, "user_id": "ada"}}
                await it.graph.ainvoke({"messages": [("user", "talk")]}, config)
                await asyncio.to_thread(it.graph.services.budget_policy.recorder.flush)

    asyncio.run(run())
    runner = CliRunner()
    shown = runner.invoke(app, ["usage", "--db", url])
    assert shown.exit_code == 0, shown.output
    known, mystery = (line.split("\t") for line in shown.output.splitlines())
    assert known[0] == "known"
    assert known[-1].startswith("$0.01")
    assert (mystery[0], mystery[-1]) == ("mystery", "unknown price")
    told = json.loads(
        runner.invoke(app, ["usage", "--db", url, "--thread", "known", "--json"]).output
    )
    assert [item["model"] for item in told] == ["known"]
    for by, names in (("thread", ["known", "mystery"]), ("user", ["ada"]), ("tenant", ["(none)"])):
        lines = runner.invoke(app, ["usage", "--db", url, "--by", by]).output.splitlines()
        assert [line.split("\t")[0] for line in lines] == names
    said = runner.invoke(app, ["usage", "--db", url, "--by", "step", "--json"]).output
    assert [(item["step"], item["calls"]) for item in json.loads(said)] == [("a", 2)]
    assert runner.invoke(app, ["usage", "--db", url, "--user", "bob"]).output.strip() == ""


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_calls_in_a_graph_of_ones_own_are_bounded_too(form: str) -> None:
    model = ScriptedModel(responses=answer(5))
    talker = chatter(5, form=form)
    services = bind([Gauge, talker], model={"capability": model}, budget=Budget(requests=2))
    builder = StateGraph(AgentState)
    builder.add_node("talk", services.node(talker))
    builder.add_edge(START, "talk")
    graph = builder.compile()
    out = await soon(graph.ainvoke({}))
    assert len(model.calls) == 2
    assert "requests is limited to 2" in out["control_error_info"]["user_message"]
    used = [
        event
        async for event in graph.astream({}, stream_mode="custom")
        if event.get("event_type") == "usage"
    ]
    assert len(used) == 2


async def test_a_call_inside_another_step_draws_on_that_step(agent: Any, step: Any) -> None:
    inner = chatter(1)

    @capability_node
    class Outer(BaseCapability):
        name = "outer"
        description = "Have another one talk"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            await inner.langgraph_node({})
            return Gauge(value=1)

    model = ScriptedModel(responses=answer(5))
    it = agent(
        Gauge,
        inner,
        Outer,
        plans=[[step("a", "outer")]],
        model={"capability": model},
        budget=Budget(requests=9, steps=9),
    )
    out = await soon(it.ask())
    assert status(out) == "completed"
    left = out["execution_outcome"]["budget_left"]
    assert left["requests"] == 9 - len(model.calls)
    assert 7 <= left["steps"] <= 8


async def test_a_graph_inside_a_step_does_not_count_twice_where_both_count(
    agent: Any, step: Any
) -> None:
    model = ScriptedModel(responses=answer(5))
    shared = Budget(requests=4, per="tenant")
    plan: Any = {"steps": [step("b", "chatter")]}

    @capability_node
    class Outer(BaseCapability):
        name = "outer"
        description = "Have another graph talk"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            inner = build_graph([Gauge, chatter(4)], model={"capability": model}, budget=shared)
            given: Any = {"messages": [("user", "talk")], "planning_execution_plan": plan}
            out = await inner.ainvoke(given)
            assert status(out) == "completed", last_words(out)
            return Gauge(value=1)

    it = agent(Gauge, Outer, plans=[[step("a", "outer")]], budget=shared)
    out = await soon(it.ask())
    assert status(out) == "completed"
    assert len(model.calls) == 4
    assert out["execution_outcome"]["budget_left"] == {"requests": 0}


async def test_settings_declare_budgets_and_prices(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(10))
    said = {
        "budgets": [{"cost_usd": 0.03}, {"requests": 50, "per": "user", "window": "day"}],
        "prices": {"scripted": {"input_per_million": 0, "output_per_million": 1000}},
    }
    it = agent(
        Gauge,
        chatter(9),
        plans=[[step("a", "chatter")]],
        model={"capability": model},
        settings=said,
    )
    await soon(it.ask())
    assert len(model.calls) == 3
    for wrong in ({"budgets": [{"tokns": 1}]}, {"prices": {"m": {"input_per_million": -1}}}):
        with pytest.raises(ConfigurationError, match="setting"):
            agent(Gauge, chatter(1), settings=wrong)


async def test_calls_side_by_side_wait_for_what_others_give_back(agent: Any, step: Any) -> None:
    model = ScriptedModel(responses=answer(19))
    it = agent(
        Gauge,
        chatter(2),
        plans=[[step(key, "chatter") for key in "abcdefgh"]],
        model={"capability": model},
        budget=Budget(tokens=16 * 20),  # less than one call reserves, and enough for all
    )
    out = await soon(it.ask())
    assert status(out) == "completed"
    assert len(model.calls) == 16
    assert out["execution_outcome"]["budget_left"]["tokens"] == 0


async def test_who_waits_goes_on_when_a_call_is_cancelled(agent: Any, step: Any) -> None:
    class Hanging(ScriptedModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if "hang" in str(messages[-1].content):
                await asyncio.Event().wait()
            return self._generate(messages, *args, **kwargs)

    model = Hanging(responses=answer(5))

    @capability_node
    class Both(BaseCapability):
        name = "both"
        description = "Two calls, one of which hangs"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            hanging = asyncio.create_task(self.chat_model().ainvoke("hang"))
            await asyncio.sleep(0.01)
            other = asyncio.create_task(self.chat_model().ainvoke("go"))
            await asyncio.sleep(0.01)
            assert not other.done()
            hanging.cancel()
            await other
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self.chat_model().ainvoke("hang")
            await self.chat_model().ainvoke("go")
            return Gauge(value=1)

    it = agent(
        Gauge,
        Both,
        plans=[[step("a", "both")], [step("b", "both")]],
        model={"capability": model},
        budget=Budget(tokens=1500, per="thread", assumed_output_tokens=800),
    )
    assert status(await soon(it.ask())) == "completed"
    assert status(await soon(it.ask())) == "completed"  # nothing is held for what was cancelled
