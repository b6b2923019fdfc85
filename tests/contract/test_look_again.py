"""Plans that are looked at again half-way, and bounds that a plan brings, through whole graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph, capability_node
from capgraph.base.plan import load_execution_plan_from_file, save_execution_plan_to_file
from capgraph.configs.settings import load_settings
from capgraph.governance import Budget
from capgraph.planning import check_plan
from capgraph.testing import ScriptedModel
from tests.support.one_door import planned, registered, said, status

ANSWER = {"context_key": "answer", "capability": "respond"}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class World:
    """What ran, in order."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def capabilities(self) -> list[Any]:
        @capability_node
        async def look() -> int:
            """Look at it."""
            self.runs.append("look")
            return 7

        @capability_node(effect="once")
        async def act(how: str = "softly") -> str:
            """Act on it."""
            self.runs.append(f"act {how}")
            return how

        @capability_node
        async def slow() -> str:
            """Take long."""
            self.runs.append("slow begins")
            await asyncio.sleep(0.05)
            self.runs.append("slow ends")
            return "done"

        return [look, act, slow]


def steps(**more: Any) -> list[dict[str, Any]]:
    seen = {"of": "look", "is": ">", "than": 0}
    return [
        {"context_key": "slow", "capability": "slow"},
        {"context_key": "look", "capability": "look", "look_again": True, **more},
        {"context_key": "act", "capability": "act", "when": seen},
        ANSWER,
    ]


def answering(*plans: Any) -> ScriptedModel:
    return ScriptedModel(responses=[*plans, "There you are."])


async def test_without_a_model_the_plan_goes_on() -> None:
    world = World()
    out = await build_graph(registered(*world.capabilities())).ainvoke(planned(*steps()))
    assert status(out) == "completed"
    assert world.runs == ["slow begins", "look", "slow ends", "act softly"]
    assert out["control_budget"]["looks"] == 1


async def test_the_rest_is_changed_and_what_is_done_stays() -> None:
    world = World()
    changed = [
        *steps()[:2],
        {"context_key": "act", "capability": "act", "parameters": {"how": "hard"}},
    ]
    model = answering({"steps": [*changed, ANSWER]})
    allowing = load_settings(approvals={"ungrounded": "allow"})
    made = registered(*world.capabilities())
    graph = build_graph(made, model, InMemorySaver(), settings=allowing)
    out = await graph.ainvoke(planned(*steps()), THREAD)
    assert world.runs == ["slow begins", "look", "slow ends", "act hard"]
    assert status(out) == "completed"
    assert len(model.calls) == 2, "one for the look, one for the answer"
    assert "half done" in model.calls[0].prompt
    assert "7" in model.calls[0].prompt
    assert [version["author"] for version in out["planning_history"]] == ["caller", "orchestrator"]
    assert list(out["planning_history"][1]["kept"]) == ["slow", "look"]


async def test_a_plan_without_steps_keeps_it_and_without_a_look_nobody_is_asked() -> None:
    for plan, calls in ((steps(), 2), (steps(look_again=False), 1)):
        world = World()
        model = answering(*([{"steps": []}] if calls == 2 else []))
        graph = build_graph(registered(*world.capabilities()), model)
        out = await graph.ainvoke(planned(*plan))
        assert (status(out), len(model.calls)) == ("completed", calls)
        assert sorted(world.runs) == ["act softly", "look", "slow begins", "slow ends"]


async def test_a_changed_plan_that_stays_wrong_does_not_take_its_place_and_is_reported() -> None:
    world = World()
    wrong = {"steps": [{"context_key": "x", "capability": "look", "parameters": {"depth": 1}}]}
    model = answering(wrong, wrong)
    graph = build_graph(registered(*world.capabilities()), model)
    out = await graph.ainvoke(planned(*steps()))
    assert "act softly" in world.runs
    assert "depth" in model.calls[1].prompt, "the planner reads what is wrong"
    assert (status(out), out["execution_outcome"]["missing"]) == ("partial", ["x"])
    assert "x: the plan for it was refused" in model.calls[2].prompt, "the answer says why"


async def test_a_changed_plan_that_is_corrected_takes_its_place() -> None:
    world = World()
    wrong = {"steps": [{"context_key": "x", "capability": "look", "parameters": {"depth": 1}}]}
    right = {"steps": [{"context_key": "x", "capability": "look", "parameters": {}}]}
    graph = build_graph(registered(*world.capabilities()), answering(wrong, right))
    out = await graph.ainvoke(planned(*steps()))
    assert (status(out), world.runs.count("look")) == ("completed", 2)


async def test_looks_have_a_limit_of_their_own() -> None:
    world = World()
    settings = load_settings(limits={"max_looks": 1})
    more = {"context_key": "more", "capability": "look", "parameters": {}, "look_again": True}
    longer = {"steps": [*steps()[:2], more, *steps()[2:]]}
    model = answering(longer)
    graph = build_graph(registered(*world.capabilities()), model, settings=settings)
    out = await graph.ainvoke(planned(*steps()))
    assert world.runs.count("look") == 2
    assert (status(out), len(model.calls)) == ("completed", 2)
    assert out["control_plans_created_count"] == 1, "a look is no plan made anew"
    [note] = out["execution_outcome"]["notes"]
    assert "more" in note
    assert "limits.max_looks is 1" in note


async def test_a_step_over_a_list_that_runs_ends_before_the_look() -> None:
    world, begun = World(), asyncio.Event()

    @capability_node
    async def rows() -> list[int]:
        """Give rows."""
        return list(range(40))

    @capability_node
    async def work(n: int) -> int:
        """Work on a row."""
        begun.set()
        await asyncio.sleep(0.002)
        world.runs.append("work")
        return n

    @capability_node
    async def soon() -> int:
        """Be done soon after the list has begun."""
        await begun.wait()
        return 1

    each = {"of": "rows", "as": "row"}
    parameters = {"n": {"$from": "row"}}
    plan = [
        {"context_key": "rows", "capability": "rows"},
        {"context_key": "soon", "capability": "soon", "look_again": True},
        {"context_key": "work", "capability": "work", "for_each": each, "parameters": parameters},
        {
            "context_key": "act",
            "capability": "act",
            "when": {"of": "work.3", "is": "==", "than": 3},
        },
        ANSWER,
    ]

    def answer(call: Any) -> Any:
        if call.schema is None:
            return "There you are."
        assert world.runs.count("work") == 40, "it was cut short"
        return {"steps": []}

    settings = load_settings(limits={"max_parallel": 2})
    graph = build_graph(
        registered(*world.capabilities(), rows, work, soon),
        ScriptedModel(responses=answer),
        settings=settings,
    )
    out = await graph.ainvoke(planned(*plan))
    assert (status(out), world.runs.count("work")) == ("completed", 40)
    assert world.runs[-1] == "act softly"


async def test_a_changed_plan_passes_review_and_policies() -> None:
    world = World()
    changed = {"steps": [*steps()[:2], {"context_key": "b", "capability": "act"}, ANSWER]}
    settings = load_settings(approvals={"plans": True})
    graph = build_graph(
        registered(*world.capabilities()), answering(changed), InMemorySaver(), settings=settings
    )
    from langgraph.types import Command

    out = await graph.ainvoke(planned(*steps()), THREAD)
    assert out["__interrupt__"][0].value["steps"][0]["kind"] == "plan"
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    shown = out["__interrupt__"][0].value["steps"][0]["parameters"]["steps"]
    assert [step["context_key"] for step in shown] == ["slow", "look", "b", "answer"]
    assert not any(run.startswith("act") for run in world.runs)
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert world.runs.count("act softly") == 1


async def test_a_deadline_ends_the_plan() -> None:
    world = World()
    given = planned({"context_key": "slow", "capability": "slow"}, ANSWER)
    given["planning_execution_plan"]["deadline"] = 0.01
    out = await build_graph(registered(*world.capabilities())).ainvoke(given)
    assert status(out) == "stopped"
    assert "deadline of 0.01 s" in said(out)


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize("budget", [None, Budget(steps=100)])
async def test_the_budget_of_a_plan_holds_beside_the_operators(saver: Any, budget: Any) -> None:
    world = World()
    given = planned(*({"context_key": key, "capability": "look"} for key in "abc"), ANSWER)
    given["planning_execution_plan"]["budget"] = {"steps": 2}
    graph = build_graph(registered(*world.capabilities()), None, saver, budget=budget)
    out = await graph.ainvoke(given, THREAD)
    assert (status(out), len(world.runs)) == ("stopped", 2)
    assert "steps is limited to 2" in said(out)


async def test_a_budget_of_a_plan_never_widens_the_operators() -> None:
    world = World()
    given = planned(*({"context_key": key, "capability": "look"} for key in "abc"), ANSWER)
    given["planning_execution_plan"]["budget"] = {"steps": 50}
    graph = build_graph(registered(*world.capabilities()), budget=Budget(steps=1))
    out = await graph.ainvoke(given)
    assert status(out) != "completed"
    assert len(world.runs) <= 1


@pytest.mark.parametrize(
    ("bounds", "place"),
    [
        ({"deadline": 0}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"budget": 5}, "budget"),
        ({"budget": {"money": 5}}, "budget.money"),
        ({"budget": {"steps": -1}}, "budget.steps"),
        ({"budget": {"steps": float("inf")}}, "budget.steps"),
    ],
)
def test_a_wrong_bound_is_found_before_the_run(bounds: dict[str, Any], place: str) -> None:
    plan = {"steps": steps(), **bounds}
    found = check_plan(plan, registered(*World().capabilities()))
    assert [problem.field for problem in found] == [place]


def test_files_keep_the_bounds_of_a_plan(tmp_path: Any) -> None:
    plan: Any = {"steps": steps(), "deadline": 5, "budget": {"steps": 3}}
    save_execution_plan_to_file(plan, tmp_path / "plan.json")
    assert load_execution_plan_from_file(tmp_path / "plan.json") == plan


async def test_a_step_that_is_the_last_one_is_looked_at_too() -> None:
    world = World()
    last = {"context_key": "look", "capability": "look", "look_again": True}
    model = answering({"steps": [last, {"context_key": "act", "capability": "act"}, ANSWER]})
    graph = build_graph(registered(*world.capabilities()), model, InMemorySaver())
    out = await graph.ainvoke(planned(last), THREAD)
    assert (status(out), world.runs) == ("completed", ["look", "act softly"])
    assert "<request>\nDo it\n</request>" in model.calls[1].prompt, "the answer knows of it"
