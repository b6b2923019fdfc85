"""What was done is taken back when a person wants that, after a failure, through the same door."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, bind, capability_node
from capgraph.base import CapabilityError, RegistryError, Undo, ValidationError
from capgraph.governance import Budget, stop
from capgraph.state import AgentState
from tests.support.doors import question, shown, status
from tests.support.one_door import breaker, said

pytestmark = pytest.mark.row("A5")


class Booking(CapabilityContext):
    """A room that was booked."""

    number: int
    room: str

    def get_summary(self) -> str:
        return f"Room {self.room}, booking {self.number}."


class House:
    """Capabilities that book and cancel, with a log of what they did."""

    def __init__(self, undo: Any = "cancel", **declared: Any) -> None:
        self.log = log = []

        @capability_node
        class Cancel(BaseCapability):
            name = "cancel"
            description = "Cancel a booking"
            effect = "once"
            requires = [("BOOKING", "optional")]

            class Parameters(BaseModel):
                number: int
                nights: int = 0

            async def execute(self) -> dict[str, Any]:
                values = self.parameters
                log.append(f"cancel {values.number} {values.nights}")
                if declared.get("stuck") == values.number:
                    raise CapabilityError("too late")
                return {}

        class Book(BaseCapability):
            name = "book"
            description = "Book a room"
            provides = ["BOOKING"]
            effect = "once"

            class Parameters(BaseModel):
                room: str = "blue"
                nights: int = 2

            async def execute(self) -> Booking:
                log.append(f"book {self.parameters.room}")
                return Booking(number=len(log), room=self.parameters.room)

        Book.undo = Cancel if undo is None else undo
        self.cancel = Cancel
        self.items = (Booking, Cancel, capability_node(Book))
        self.fail = breaker("fail", CapabilityError("no power"), requires=[("BOOKING", "many")])


@pytest.fixture
def turn(agent: Any, step: Any) -> Any:
    def make(house: House, **options: Any) -> Any:
        plan = [
            step("a", "book", {"room": "red"}),
            step("b", "book", {"nights": 7}),
            step("f", "fail", BOOKING=["a", "b"]),
        ]
        options.setdefault("checkpointer", InMemorySaver())
        options.setdefault("limits", {"max_parallel": 1})
        return agent(*house.items, house.fail, plans=[plan], **options)

    return make


@pytest.mark.parametrize("known", [True, False], ids=["", "of a capability of the inner ones only"])
async def test_effects_inside_of_steps_are_offered_too(agent: Any, step: Any, known: bool) -> None:
    house = House()
    book = house.items[-1]
    node = bind([*house.items]).node(book)

    @capability_node
    class Travel(BaseCapability):
        name = "travel"
        description = "Book two rooms"

        async def execute(self) -> dict[str, Any]:
            for _ in range(2):
                await node({})
            return {}

    plan = [step("t", "travel"), step("u", "travel"), step("f", "fail", after=["t", "u"])]
    fail = breaker("fail", CapabilityError("no power"))
    options: dict[str, Any] = {"limits": {"max_parallel": 1}, "checkpointer": InMemorySaver()}
    items = house.items if known else house.items[:-1]
    it = agent(*items, Travel, fail, plans=[plan], **options)
    (entry,) = question(await it.ask())["steps"]
    undone = [s["parameters"] for s in entry["parameters"]["steps"] if s["capability"] == "cancel"]
    assert undone == [{"number": number, "nights": 2} for number in (4, 3, 2, 1)]
    await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert house.log[4:] == [f"cancel {number} 2" for number in (4, 3, 2, 1)]


@pytest.mark.parametrize("undo", ["cancel", None, Undo("cancel")], ids=["name", "class", "Undo"])
async def test_after_a_failure_a_person_is_offered_to_undo_what_was_done(
    turn: Any, undo: Any
) -> None:
    house = House(undo)
    it = turn(house)
    out = await it.ask()
    assert house.log == ["book red", "book blue"]
    (entry,) = question(out)["steps"]
    assert entry["decisions"] == ["approve", "reject"]
    assert "no power" in shown(out)
    planned = [s for s in entry["parameters"]["steps"] if s["capability"] == "cancel"]
    assert [s["parameters"] for s in planned] == [
        {"number": 2, "nights": 7},
        {"number": 1, "nights": 2},
    ]
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert house.log[2:] == ["cancel 2 7", "cancel 1 2"], "the last effect comes first"
    assert status(out) == "failed"
    assert out["execution_outcome"]["undone"] == ["b", "a"]
    assert out["execution_outcome"]["done"] == ["a", "b"]
    assert out["execution_outcome"]["missing"] == ["f"]
    assert "no power" in said(out)
    assert "Undone: b; a." in said(out)


async def test_a_person_may_leave_everything(turn: Any) -> None:
    house = House()
    it = turn(house)
    await it.ask()
    out = await it.graph.ainvoke(Command(resume="reject"), it.config())
    assert house.log == ["book red", "book blue"]
    assert (status(out), out["execution_outcome"]["undone"]) == ("failed", [])
    assert "Done and not undone: a; b." in said(out)
    out = await it.ask("Again")
    assert "no power" in shown(out), "another turn asks for itself"


async def test_an_undo_that_fails_ends_it_and_says_what_is_left(turn: Any) -> None:
    house = House(stuck=2)
    it = turn(house)
    await it.ask()
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert house.log[2:] == ["cancel 2 7"]
    assert status(out) == "failed"
    assert "too late" in said(out)
    assert "no power" in said(out)
    assert "Done and not undone: a; b." in said(out)


async def test_the_parameters_follow_from_what_was_done(turn: Any) -> None:
    house = House(Undo("cancel", lambda done: {"number": done.outputs["BOOKING"]["number"] * 10}))
    it = turn(house)
    await it.ask()
    await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert house.log[2:] == ["cancel 20 0", "cancel 10 0"]


async def test_an_undo_whose_plan_cannot_be_made_is_told_of(turn: Any) -> None:
    house = House(Undo("cancel", lambda done: {"number": done.outputs["NOTHING"]}))
    out = await turn(house).ask()
    assert not out.get("__interrupt__")
    assert status(out) == "failed"
    assert "not undone: Do a; Do b" in said(out)


async def test_a_policy_may_refuse_the_undoing(turn: Any) -> None:
    from capgraph import Verdict

    class Never:
        async def decide(self, step: Any, view: Any) -> Any:
            return Verdict("deny" if step["capability"] == "cancel" else "allow", ["Not here."])

    house = House()
    out = await turn(house, policies=[Never()]).ask()
    assert "Not here." in said(out)
    assert house.log == ["book red", "book blue"]


async def test_where_the_budget_is_used_up_what_is_left_done_is_told(turn: Any) -> None:
    out = await turn(House(), budget=Budget(steps=3)).ask()
    assert "no power" in said(out)
    assert "not undone: Do a; Do b (The estimated usage of the plan exceeds a budget." in said(out)


async def test_nothing_is_offered_where_nothing_was_done_or_all_went_well(
    agent: Any, step: Any
) -> None:
    house = House()
    plan = [step("a", "book")]
    out = await agent(*house.items, plans=[plan], checkpointer=InMemorySaver()).ask()
    assert status(out) == "completed"
    assert "undone" not in out["execution_outcome"]
    fails = breaker("fail", CapabilityError("no power"))
    out = await agent(*house.items, fails, plans=[[step("f", "fail")]]).ask()
    assert status(out) == "failed"
    assert not out.get("__interrupt__")


async def test_a_stopped_turn_undoes_nothing(agent: Any, step: Any) -> None:
    house = House()
    saver = InMemorySaver()

    @capability_node
    async def halt(booking: Booking) -> None:
        """Stop."""
        await stop(saver, thread="1")
        raise CapabilityError("no power")

    plan = [step("a", "book"), step("h", "halt", BOOKING="a")]
    out = await agent(*house.items, halt, plans=[plan], checkpointer=saver).ask()
    assert not out.get("__interrupt__")
    assert house.log == ["book blue"]


async def test_an_undo_that_needs_agreement_asks_for_itself(agent: Any, step: Any) -> None:
    house = House()
    asking = type("Cancel", (house.cancel,), {"requires_approval": True})
    items = [capability_node(asking), Booking, house.items[2]]
    plan = [step("a", "book"), step("f", "fail", BOOKING="a")]
    it = agent(*items, house.fail, plans=[plan], checkpointer=InMemorySaver())
    await it.ask()
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert question(out)["steps"][0]["capability"] == "cancel"
    assert house.log == ["book blue"]
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert house.log == ["book blue", "cancel 1 2"]
    assert out["execution_outcome"]["undone"] == ["a"]


def test_an_undo_without_an_effect_is_refused() -> None:
    with pytest.raises(ValidationError, match="no effect to undo"):

        @capability_node
        class Look(BaseCapability):
            name = "look"
            description = "Look"
            undo = "forget"

            async def execute(self) -> dict[str, Any]:
                return {}


def test_an_undo_that_is_not_registered_is_refused(agent: Any) -> None:
    house = House("nobody")
    with pytest.raises(RegistryError, match="undo='nobody'"):
        agent(*house.items)


def test_an_undo_that_is_no_capability_is_refused() -> None:
    with pytest.raises(ValidationError, match="undo"):
        House(7)


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_in_a_graph_of_ones_own_the_node_that_failed_offers_it(decision: str) -> None:
    house = House()
    tried: list[int] = []

    @capability_node
    async def fail() -> Booking:
        """Fail."""
        tried.append(1)
        raise CapabilityError("no power")

    services = bind([*house.items, fail])
    builder = StateGraph(AgentState)
    names = ["one", "two", "fail"]
    for name in names:
        cls = fail if name == "fail" else house.items[2]
        builder.add_node(name, services.node(cls))
    for before, after in zip([START, *names[:-1]], names, strict=True):
        builder.add_edge(before, after)
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({"messages": [("user", "Book two rooms")]}, config)
    assert house.log == ["book blue", "book blue"]
    (entry,) = question(out)["steps"]
    assert entry["decisions"] == ["approve", "reject"]
    assert "no power" in shown(out)
    out = await graph.ainvoke(Command(resume=decision), config)
    done = ["cancel 2 2", "cancel 1 2"] if decision == "approve" else []
    assert house.log[2:] == done, "the last effect comes first"
    assert len(out["control_undo"]["undone"]) == len(done)
    assert "no power" in out["control_error_info"]["user_message"]
    assert tried == [1], "what failed is not run again for the answer"
    out = await graph.ainvoke({"messages": [("user", "Book again")]}, config)
    assert "no power" in shown(out), "another request asks for itself"
    planned = [s for s in question(out)["steps"][0]["parameters"]["steps"] if s["parameters"]]
    assert [s["parameters"]["number"] for s in planned] == [len(house.log), len(house.log) - 1]


async def test_a_graph_of_ones_own_without_a_saver_offers_nothing() -> None:
    house = House()
    services = bind([*house.items, house.fail])
    builder = StateGraph(AgentState)
    builder.add_node("book", services.node(house.items[2]))
    builder.add_node("fail", services.node(house.fail))
    builder.add_edge(START, "book")
    builder.add_edge("book", "fail")
    out = await builder.compile().ainvoke({"messages": [("user", "Book a room")]})
    assert house.log == ["book blue"]
    assert "no power" in out["control_error_info"]["user_message"]
