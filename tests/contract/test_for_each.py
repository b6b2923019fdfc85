"""A step for each element of a list, through whole graphs."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.adapters import agent_capability, graph_capability, tool_capability
from capgraph.base import IdempotencyKey
from capgraph.configs.settings import load_settings
from capgraph.engine import for_each
from capgraph.governance import InformationFlow
from capgraph.planning import check_plan, repair_plan
from capgraph.stores import open_saver
from capgraph.testing import ScriptedModel
from tests.support.one_door import planned, registered, said, status

ANSWER = {"context_key": "answer", "capability": "respond"}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class Batch(CapabilityContext):
    rows: list[dict[str, Any]]
    names: list[str] = []
    size: int = 0


class Row(CapabilityContext):
    n: int


class Sum(CapabilityContext):
    order: list[int]


class World:
    """What the capabilities of a test did."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.keys: list[str] = []
        self.now = self.most = 0
        self.bad: set[int] = set()

    def capabilities(self, **options: Any) -> list[Any]:
        @capability_node
        async def fetch(count: int = 4) -> Batch:
            """Fetch a batch."""
            rows = [{"n": number} for number in range(count)]
            return Batch(rows=rows, names=[f"row {n}" for n in range(count)], size=count)

        @capability_node(max_attempts=1, **options)
        async def work(n: int, key: IdempotencyKey) -> Row:
            """Work on a row."""
            self.now += 1
            self.most = max(self.most, self.now)
            # Later elements end first.
            await asyncio.sleep(0.002 * (5 - n % 5))
            self.now -= 1
            self.runs.append(n)
            self.keys.append(key)
            if n in self.bad:
                raise ValueError(f"row {n} is bad")
            return Row(n=10 * n)

        @capability_node
        async def put_together(rows: list[Row]) -> Sum:
            """Put rows together."""
            return Sum(order=[row.n for row in rows])

        @capability_node
        async def label(name: str) -> str:
            """Give a label."""
            return name.upper()

        @capability_node
        async def show(labels: list[str]) -> str:
            """Show labels."""
            return ", ".join(labels)

        return [fetch, work, put_together, label, show]


def each(of: str = "b.rows", **more: Any) -> dict[str, Any]:
    return {"of": of, "as": "item", **more}


def plan(count: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [
        {"context_key": "b", "capability": "fetch", "parameters": {"count": count}},
        {
            "context_key": "w",
            "capability": "work",
            "for_each": each(),
            "parameters": {"n": {"$from": "item.n"}},
            **more,
        },
        {"context_key": "t", "capability": "put_together", "inputs": [{"ROW": "w"}]},
        ANSWER,
    ]


@pytest.fixture
def world() -> World:
    return World()


async def test_the_list_comes_in_order_and_each_copy_has_its_record(world: World) -> None:
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan()))
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 10, 20, 30]
    assert world.runs != sorted(world.runs), "they did not run side by side"
    results = out["execution_step_results"]
    assert [results[f"w[{n}]"]["success"] for n in range(4)] == [True] * 4
    assert (results["w"]["elements"], results["w"]["missing"]) == (4, [])
    assert out["execution_outcome"] == {
        "status": "completed",
        "done": ["b", "w", "t"],
        "missing": [],
    }


@pytest.mark.parametrize(("own", "of_run", "most"), [(2, 8, 2), (None, 3, 3)])
async def test_copies_keep_to_the_limits(
    world: World, own: int | None, of_run: int, most: int
) -> None:
    options = {"max_parallel": own} if own else {}
    settings = load_settings(limits={"max_parallel": of_run})
    graph = build_graph(registered(*world.capabilities(**options)), settings=settings)
    await graph.ainvoke(planned(*plan(12)))
    assert world.most == most


async def test_a_model_plans_it_without_naming_the_steps(world: World) -> None:
    @capability_node
    async def numbers() -> list[int]:
        """Give numbers."""
        return [3, 1, 2]

    wind = {"of": "numbers.0", "is": ">", "than": 2}
    written = [
        {"capability": "numbers"},
        {
            "capability": "work",
            "for_each": {"of": "numbers"},
            "parameters": {"n": {"$from": "item"}},
        },
        {"capability": "put_together", "when": wind},
    ]
    model = ScriptedModel(responses=[{"steps": written}, "There you are."])
    graph = build_graph(registered(numbers, *world.capabilities()), model)
    out = await graph.ainvoke({"messages": [("user", "Work on all numbers")]})
    assert status(out) == "completed"
    assert out["capability_context_data"]["SUM"]["sum"]["order"] == [30, 10, 20]
    assert "for_each" in model.calls[0].prompt


async def test_an_empty_list_is_a_result(world: World) -> None:
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan(0)))
    assert out["capability_context_data"]["SUM"]["t"]["order"] == []
    assert status(out) == "completed"


async def test_a_list_that_is_too_long_is_refused_before_any_copy_runs(world: World) -> None:
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan(100_000)))
    assert (status(out), world.runs) == ("failed", [])
    assert "has 100,000 elements" in said(out)
    assert "limits.max_elements" in said(out)


async def test_a_long_list_takes_several_supersteps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(for_each, "MOST_AT_ONCE", 5)
    graph = build_graph(registered(*world.capabilities()), checkpointer=InMemorySaver())
    out = await graph.ainvoke(planned(*plan(12)), THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [10 * n for n in range(12)]
    assert sorted(world.runs) == list(range(12))


async def test_a_copy_that_fails_stops_the_others_that_have_not_begun(world: World) -> None:
    world.bad = {1}
    settings = load_settings(limits={"max_parallel": 2})
    graph = build_graph(registered(*world.capabilities()), settings=settings)
    out = await graph.ainvoke(planned(*plan(30)))
    assert status(out) == "failed"
    assert len(world.runs) < 8
    assert out["execution_step_results"]["w[0]"]["success"]
    assert "Element 1 of 30" in said(out)
    assert "row 1 is bad" in said(out)


async def test_the_others_go_on_where_results_are_collected(world: World) -> None:
    world.bad = {1, 2}
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan(5, for_each=each(on_failure="collect"))))
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 30, 40]
    outcome = out["execution_outcome"]
    assert (outcome["status"], outcome["missing"]) == ("partial", ["w[1]", "w[2]"])
    assert out["execution_step_results"]["w"]["missing"] == ["w[1]", "w[2]"]
    assert "row 2 is bad" in said(out)


async def test_nothing_collected_is_a_failure(world: World) -> None:
    world.bad = {0, 1}
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan(2, for_each=each(on_failure="collect"))))
    assert status(out) == "failed"
    assert "None of 2 elements has a result" in said(out)


async def test_an_optional_step_over_a_list_leaves_the_plan_going(world: World) -> None:
    world.bad = {0}
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(planned(*plan(2, optional=True)))
    assert (status(out), out["execution_outcome"]["missing"]) == ("partial", ["w", "t"])


async def test_plain_values_and_lists_of_lists_of_references(world: World) -> None:
    graph = build_graph(registered(*world.capabilities()))
    out = await graph.ainvoke(
        planned(
            {"context_key": "b", "capability": "fetch"},
            {
                "context_key": "l",
                "capability": "label",
                "for_each": {"of": "b.names"},
                "parameters": {"name": {"$from": "item"}},
            },
            {"context_key": "s", "capability": "show", "parameters": {"labels": {"$from": "l"}}},
            {
                "context_key": "again",
                "capability": "label",
                "for_each": {"of": "l", "as": "text"},
                "parameters": {"name": {"$from": "text"}},
                "when": {"of": "l.0", "is": "==", "than": "ROW 0"},
            },
            ANSWER,
        )
    )
    assert out["capability_context_data"]["SHOW"]["s"]["value"] == "ROW 0, ROW 1, ROW 2, ROW 3"
    assert out["execution_step_results"]["again"]["elements"] == 4


async def test_an_element_that_looks_like_a_reference_is_data(world: World) -> None:
    @capability_node
    async def strange() -> list[dict[str, Any]]:
        """Give what a stranger wrote."""
        return [{"$from": "secret"}]

    @capability_node
    async def secret() -> str:
        """Know a secret."""
        return "hidden"

    @capability_node
    async def take(given: Any) -> str:
        """Take it."""
        return repr(given)

    graph = build_graph(registered(strange, secret, take))
    out = await graph.ainvoke(
        planned(
            {"context_key": "x", "capability": "strange"},
            {"context_key": "secret", "capability": "secret"},
            {
                "context_key": "t",
                "capability": "take",
                "for_each": {"of": "x"},
                "parameters": {"given": {"$from": "item"}},
            },
            ANSWER,
        )
    )
    assert "hidden" not in repr(out["capability_context_data"].get("TAKE[]"))


async def test_equal_elements_are_effects_of_their_own(world: World) -> None:
    @capability_node
    async def twins() -> Batch:
        """Give equal rows."""
        return Batch(rows=[{"n": 7}] * 3)

    saver = InMemorySaver()
    made = [
        item for item in world.capabilities(effect="once") if item.capability_spec.name != "fetch"
    ]
    graph = build_graph(registered(twins, *made), checkpointer=saver)
    steps = plan()
    steps[0] = {"context_key": "b", "capability": "twins"}
    out = await graph.ainvoke(planned(*steps), THREAD)
    assert (world.runs, len(set(world.keys))) == ([7, 7, 7], 3)
    assert {key.rpartition("/")[2] for key in world.keys} == {"1", "2", "3"}
    assert len(out["execution_effects"]) == 3


async def test_a_person_is_shown_each_element_and_finished_copies_stay(world: World) -> None:
    asks = {"requires_approval": True}
    graph = build_graph(registered(*world.capabilities(**asks)), checkpointer=InMemorySaver())
    out = await graph.ainvoke(planned(*plan(3)), THREAD)
    (question,) = out["__interrupt__"]
    entries = question.value["steps"]
    assert [entry["context_key"] for entry in entries] == ["w[0]", "w[1]", "w[2]"]
    assert [entry["element"] for entry in entries] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [entry["parameters"] for entry in entries] == [{"n": 0}, {"n": 1}, {"n": 2}]
    out = await graph.ainvoke(Command(resume="approve"), THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 10, 20]
    assert sorted(world.runs) == [0, 1, 2]


async def test_a_person_rejects_one_element(world: World) -> None:
    asks = {"requires_approval": True}
    graph = build_graph(registered(*world.capabilities(**asks)), checkpointer=InMemorySaver())
    await graph.ainvoke(planned(*plan(2)), THREAD)
    answer = {"w[0]": {"decision": "approve"}, "w[1]": {"decision": "reject", "reason": "no"}}
    out = await graph.ainvoke(Command(resume=answer), THREAD)
    assert status(out) == "failed"
    assert "w[1]" in said(out)


@pytest.mark.parametrize("effect", ["none", "once"])
async def test_a_person_changes_the_parameters_of_one_element(world: World, effect: str) -> None:
    made = registered(*world.capabilities(requires_approval=True, effect=effect))
    saver = InMemorySaver()
    await build_graph(made, checkpointer=saver).ainvoke(planned(*plan(3)), THREAD)
    changed = {"decision": "edit", "parameters": {"n": 7}}
    answer: Any = {"w[0]": {"decision": "approve"}, "w[1]": changed, "w[2]": changed}
    out = await build_graph(made, checkpointer=saver).ainvoke(Command(resume=answer), THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 70, 70]
    assert sorted(world.runs) == [0, 7, 7]
    assert out["approval_decisions"]["w[1]"]["before"] == {"n": {"$from": "item.n"}}
    assert plan()[1]["parameters"] == out["planning_execution_plan"]["steps"][1]["parameters"]


async def test_what_was_changed_for_an_element_outlives_a_kill_and_the_question_after_it(
    world: World,
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @capability_node(effect="once", requires_approval=True)
    async def act(n: int) -> Row:
        """Act on a row."""
        if n == 7 and not begun.is_set():
            begun.set()
            await never.wait()
        return Row(n=10 * n)

    graph = build_graph(registered(*world.capabilities(), act), checkpointer=InMemorySaver())
    steps = plan(2)
    steps[1]["capability"] = "act"
    await graph.ainvoke(planned(*steps), THREAD)
    changed = {"decision": "edit", "parameters": {"n": 7}}
    answer: Any = Command(resume={"w[0]": "approve", "w[1]": changed})
    killed = asyncio.create_task(graph.ainvoke(answer, THREAD))
    await begun.wait()
    killed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killed
    out = await graph.ainvoke(None, THREAD)
    [asked] = out["__interrupt__"][0].value["steps"]
    assert (asked["kind"], asked["parameters"]) == ("unknown_outcome", {"n": 7})
    out = await graph.ainvoke(Command(resume={"w[1]": {"decision": "rerun"}}), THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 70]


async def test_what_is_changed_for_an_element_has_to_fit(world: World) -> None:
    made = registered(*world.capabilities(requires_approval=True))
    graph = build_graph(made, checkpointer=InMemorySaver())
    await graph.ainvoke(planned(*plan(1)), THREAD)
    answer = {"w[0]": {"decision": "edit", "parameters": {"n": "seven"}}}
    out = await graph.ainvoke(Command(resume=answer), THREAD)
    assert "w[0]" in str(out["__interrupt__"][0].value["problems"])
    assert world.runs == []


class Priced(TypedDict):
    n: int
    total: int


class Price(CapabilityContext):
    total: int


async def test_an_input_may_be_the_element_so_that_graphs_and_agents_take_it(world: World) -> None:
    tasks: list[str] = []

    async def poet(task: str) -> str:
        tasks.append(task)
        return "ok"

    builder = StateGraph(Priced).add_node("price", lambda state: {"total": state["n"] + 1})
    priced = builder.add_edge(START, "price").compile(name="pricing")
    made = [
        *world.capabilities(),
        graph_capability(priced, input=Row, output=Price),
        agent_capability(poet, requires=[Row]),
    ]
    over = {"for_each": each(), "inputs": [{"ROW": "item"}]}
    steps = [
        plan(2)[0],
        {"context_key": "p", "capability": "pricing", **over},
        {"context_key": "q", "capability": "poet", "task_objective": "Rhyme", **over},
        {"context_key": "r", "capability": "pricing", **over, "for_each": each("again")},
        ANSWER,
    ]
    steps[3]["for_each"]["of"] = "w"
    steps.insert(1, plan()[1])
    out = await build_graph(registered(*made)).ainvoke(planned(*steps))
    found = out["capability_context_data"]["PRICE[]"]
    assert [[one["total"] for one in found[key]] for key in "pr"] == [[1, 2], [1, 11]]
    assert sorted(tasks) == [f'Rhyme\n\n{{"ROW": {{"n": {n}}}}}' for n in (0, 1)]


class Tank(CapabilityContext):
    n: int


class Tanks(CapabilityContext):
    tanks: list[Tank]


async def test_an_element_of_a_result_is_there_without_being_given_by_the_caller() -> None:
    @capability_node
    async def look() -> Tanks:
        """Look at the tanks."""
        return Tanks(tanks=[Tank(n=1), Tank(n=2)])

    @capability_node
    async def read(tank: Tank) -> int:
        """Read a tank."""
        return tank.n

    steps = [
        {"context_key": "t", "capability": "look"},
        {"context_key": "r", "capability": "read", "for_each": {"of": "t.tanks"}},
        ANSWER,
    ]
    out = await build_graph([look, read]).ainvoke(planned(*steps))
    assert out["capability_context_data"]["READ[]"]["r"] == [{"value": 1}, {"value": 2}]


def test_an_element_that_is_no_such_input_is_found_before(world: World) -> None:
    @capability_node
    async def take(batch: Batch) -> Row:
        """Take a batch."""
        return Row(n=len(batch.rows))

    made = registered(*world.capabilities(), take)
    over = {"for_each": each("b.names"), "inputs": [{"BATCH": "item"}]}
    (problem,) = check_plan(
        {
            "steps": [
                plan()[0],
                {**plan()[1], **over, "capability": "take", "parameters": None},
                ANSWER,
            ]
        },
        made,
    )
    assert "an element of the list is string, not BATCH" in str(problem)
    without = {**plan()[1], "capability": "take", "parameters": None, "for_each": None}
    assert check_plan({"steps": [plan()[0], {**without, **over, "for_each": None}, ANSWER]}, made)


async def test_a_question_of_a_copys_own_is_answered_and_the_others_are_not_repeated(
    world: World,
) -> None:
    asked: list[int] = []

    @capability_node
    async def ask(n: int) -> Row:
        """Ask about one row."""
        asked.append(n)
        given = interrupt(f"What of {n}?") if n == 1 else n
        return Row(n=given)

    graph = build_graph(registered(*world.capabilities(), ask), checkpointer=InMemorySaver())
    steps = plan(3)
    steps[1]["capability"] = "ask"
    out = await graph.ainvoke(planned(*steps), THREAD)
    assert [item.value for item in out["__interrupt__"]] == ["What of 1?"]
    out = await graph.ainvoke(Command(resume=42), THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 42, 2]
    assert sorted(asked) == [0, 1, 1, 2]


async def test_a_copy_that_fails_for_a_time_is_tried_again(world: World) -> None:
    tries: list[int] = []

    @capability_node(max_attempts=3, delay_seconds=0)
    async def flaky(n: int) -> Row:
        """Fail once for each row."""
        tries.append(n)
        if tries.count(n) == 1:
            raise ConnectionError("not yet")
        return Row(n=n)

    graph = build_graph(registered(*world.capabilities(), flaky))
    steps = plan(4)
    steps[1]["capability"] = "flaky"
    out = await graph.ainvoke(planned(*steps))
    assert out["capability_context_data"]["SUM"]["t"]["order"] == [0, 1, 2, 3]
    assert [out["execution_step_results"][f"w[{n}]"]["attempts"] for n in range(4)] == [2] * 4


async def test_a_value_that_turns_out_to_be_no_list_is_a_failure_that_says_so() -> None:
    @capability_node
    async def anything() -> Any:
        """Give anything."""
        return {"rows": 5}

    world = World()
    graph = build_graph(registered(anything, *world.capabilities()))
    steps = plan()
    steps[0] = {"context_key": "b", "capability": "anything"}
    out = await graph.ainvoke(planned(*steps))
    assert (status(out), world.runs) == ("failed", [])
    assert "is 5, not a list" in said(out)


async def test_labels_of_the_list_and_of_all_else_reach_each_copy() -> None:
    """What a copy refers to besides its element is labelled data too."""

    class Secret(CapabilityContext):
        labels = ["secret"]
        value: str

    sent: list[str] = []

    @capability_node
    async def know() -> Secret:
        """Know a secret."""
        return Secret(value="1234")

    @capability_node(sends_externally=True)
    async def send(n: Any, text: str = "") -> str:
        """Send something out of the house."""
        sent.append(text)
        return text

    @capability_node
    async def spread(text: str) -> list[str]:
        """Make a list of it."""
        return [text]

    graph = build_graph(
        registered(*World().capabilities(), know, send, spread), policies=[InformationFlow()]
    )
    know_it = {"context_key": "k", "capability": "know"}
    fetch = {"context_key": "b", "capability": "fetch"}
    beside = {"n": {"$from": "item.n"}, "text": {"$from": "k.value"}}
    listed = {
        "context_key": "l",
        "capability": "spread",
        "parameters": {"text": {"$from": "k.value"}},
    }
    inside = {"of": "l", "as": "item"}
    for steps in (
        [
            fetch,
            {"context_key": "s", "capability": "send", "for_each": each(), "parameters": beside},
        ],
        [
            listed,
            {
                "context_key": "s",
                "capability": "send",
                "for_each": inside,
                "parameters": {"n": {"$from": "item"}},
            },
        ],
    ):
        out = await graph.ainvoke(planned(know_it, *steps, ANSWER))
        assert (status(out), sent) == ("failed", [])
        assert "secret" in said(out)


async def test_what_a_dead_process_had_finished_is_not_repeated(tmp_path: Any) -> None:
    begun: list[int] = []
    ended: list[int] = []

    @capability_node
    async def slow(n: int) -> Row:
        """Take a while."""
        begun.append(n)
        await asyncio.sleep(0.01 + 0.001 * (n % 3))
        ended.append(n)
        return Row(n=n)

    settings = load_settings(limits={"max_parallel": 4})
    steps = plan(60)
    steps[1]["capability"] = "slow"
    async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
        graph = build_graph(
            registered(*World().capabilities(), slow), None, saver, settings=settings
        )
        run = asyncio.create_task(graph.ainvoke(planned(*steps), THREAD))
        while len(ended) < 30:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        finished, broken_off = set(ended), set(begun) - set(ended)
        begun.clear()
        graph = build_graph(
            registered(*World().capabilities(), slow), None, saver, settings=settings
        )
        out = await graph.ainvoke(None, THREAD)
    assert out["capability_context_data"]["SUM"]["t"]["order"] == list(range(60))
    assert finished.isdisjoint(begun)
    assert broken_off <= set(begun)


async def test_what_is_kept_of_a_copy_does_not_grow_with_those_before_it(tmp_path: Any) -> None:
    sizes = {}
    for count in (100, 400):
        file = tmp_path / f"{count}.db"
        async with open_saver(f"sqlite:///{file}") as saver:
            graph = build_graph(registered(*World().capabilities()), None, saver)
            await graph.ainvoke(planned(*plan(count)), THREAD)
        sizes[count] = file.stat().st_size
    each_of_100, each_of_400 = sizes[100] / 100, (sizes[400] - sizes[100]) / 300
    assert each_of_400 <= each_of_100
    assert each_of_400 < 8_000


@pytest.mark.parametrize(
    ("more", "code", "place"),
    [
        ({"for_each": each("b.size")}, "CG-P23", "for_each.of"),
        ({"for_each": each("b.cols")}, "CG-P23", "for_each.of"),
        ({"for_each": each("nowhere")}, "CG-P23", "for_each.of"),
        ({"for_each": each("t")}, "CG-P18", "inputs"),
        ({"for_each": each("w")}, "CG-P18", "inputs"),
        ({"for_each": "b.rows"}, "CG-P23", "for_each"),
        ({"for_each": {"of": "b.rows", "over": 1}}, "CG-P23", "for_each"),
        ({"for_each": {"of": "b.rows", "as": "b"}}, "CG-P23", "for_each.as"),
        ({"for_each": each(on_failure="ignore")}, "CG-P23", "for_each.on_failure"),
        ({"for_each": each("b.names")}, "CG-P19", "parameters.n"),
        (
            {"for_each": each("b.names"), "parameters": {"n": {"$from": "item"}}},
            "CG-P19",
            "parameters.n",
        ),
        ({"parameters": {"n": {"$from": "thing.n"}}}, "CG-P19", "parameters.n"),
        ({"for_each": None}, "CG-P19", "parameters.n"),
    ],
)
def test_a_wrong_list_is_found_before_the_run(
    world: World, more: dict[str, Any], code: str, place: str
) -> None:
    given = {"steps": plan(**more)}
    found = check_plan(given, registered(*world.capabilities()))
    assert (code, place) in [(problem.code, problem.field) for problem in found]


def test_what_reads_one_does_not_take_a_list(world: World) -> None:
    @capability_node
    async def read_one(row: Row) -> Row:
        """Read one row."""
        return row

    steps = plan()
    steps[2] = {"context_key": "t", "capability": "read_one", "inputs": [{"ROW": "w"}]}
    found = check_plan({"steps": steps}, registered(*world.capabilities(), read_one))
    assert [problem.code for problem in found] == ["CG-P15"]


async def test_an_agent_is_given_the_results_of_a_list_without_having_asked() -> None:
    seen: list[str] = []

    async def add_up(task: str) -> str:
        seen.append(task)
        return "sum"

    class Hours(CapabilityContext):
        hours: list[int]

    @capability_node
    async def given_hours() -> Hours:
        """Say which hours."""
        return Hours(hours=[3, 1])

    def tenfold(v: int) -> dict[str, int]:
        """Multiply by ten."""
        return {"got": v * 10}

    graph = build_graph(
        [given_hours, tool_capability(tenfold, "FETCHED"), agent_capability(add_up, "add_up")]
    )
    over: Any = {"of": "h.hours", "as": "item", "on_failure": "stop"}
    steps: Any = [
        {"context_key": "h", "capability": "given_hours"},
        {"context_key": "x", "capability": "tenfold", "parameters": {"v": {"$from": "item"}}}
        | {"for_each": over},
        {"context_key": "s", "capability": "add_up", "task_objective": "Add."}
        | {"inputs": [{"FETCHED": "x"}]},
    ]
    given: Any = {"messages": [("user", "go")], "planning_execution_plan": {"steps": steps}}
    out = await graph.ainvoke(given)
    assert out["execution_outcome"]["status"] == "completed"
    assert seen == ['Add.\n\n{"FETCHED": [{"got": 30}, {"got": 10}]}']


async def test_what_takes_one_is_not_given_several_and_says_so() -> None:
    class Hours(CapabilityContext):
        hours: list[int]

    @capability_node
    async def given_hours() -> Hours:
        """Say which hours."""
        return Hours(hours=[3, 1])

    def fetch(v: int) -> int:
        """Fetch."""
        return v

    agent = agent_capability(lambda task: task, "add_up", requires=["FETCHED"])
    steps: Any = [
        {"context_key": "h", "capability": "given_hours"},
        {"context_key": "x", "capability": "fetch", "parameters": {"v": {"$from": "item"}}}
        | {"for_each": {"of": "h.hours", "as": "item", "on_failure": "stop"}},
        {"context_key": "s", "capability": "add_up", "inputs": [{"FETCHED": "x"}]},
    ]
    given: Any = {"messages": [("user", "go")], "planning_execution_plan": {"steps": steps}}
    graph = build_graph([given_hours, tool_capability(fetch, "FETCHED"), agent])
    out = await graph.ainvoke(given)
    assert "supplies several FETCHED, not one" in out["execution_outcome"]["reason"]


class Typed(CapabilityContext):
    rows: list[Row]


def test_an_input_that_can_only_be_the_element_is_filled_in(world: World) -> None:
    @capability_node
    async def typed() -> Typed:
        """Give rows."""
        return Typed(rows=[])

    @capability_node
    async def take(row: Row, by: int = 1) -> Sum:
        """Take a row."""
        return Sum(order=[row.n * by])

    made = registered(*world.capabilities(), typed, take)
    first = {"context_key": "b", "capability": "typed"}
    step = {"context_key": "t", "capability": "take", "for_each": {"of": "b.rows"}}
    found = repair_plan({"steps": [first, step, ANSWER]}, made)
    assert (found.problems, found.plan["steps"][1]["inputs"]) == ([], [{"ROW": "item"}])
    # Where the element is taken already, the input is something else.
    used = {**step, "parameters": {"by": {"$from": "item.n"}}}
    inputs = repair_plan({"steps": [first, used, ANSWER]}, made).plan["steps"][1].get("inputs")
    assert inputs != [{"ROW": "item"}]
