"""Keys of the application's own state: sent by callers, read by prompts, written by steps."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from capgraph import BaseCapability, CapabilityContext, bind, build_graph, capability_node
from capgraph.adapters import as_tool, tool_capability
from capgraph.base.errors import FatalExecutionError, ValidationError
from capgraph.state import AgentState, CallerInput, TurnScoped, TurnView
from capgraph.testing import ScriptedModel, run_capability

THREAD: Any = {"configurable": {"thread_id": "1"}}


class Shop(AgentState, total=False):
    user_info: Annotated[dict[str, Any], CallerInput]
    locale: Annotated[str, CallerInput, TurnScoped]
    basket: Annotated[list[str], operator.add]
    seat: str


class Seat(CapabilityContext):
    name: str


@tool
def pick(item: str, call: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Put an item into the basket."""
    said = ToolMessage(f"Picked {item}.", tool_call_id=call)
    return Command(update={"messages": [said], "basket": [item]})


@capability_node(effect="once")
async def take(seat: str) -> Command[Any]:
    """Take a seat."""
    return Command(update={"seat": seat, "messages": [("ai", "Taken.")]})


@capability_node
def quiet(seat: str) -> str | Command[Any]:
    """Take a seat without words."""
    return Command(update={"seat": seat}) if seat else "no seat"


class _Seat(BaseModel):
    seat: str


@capability_node
class Assign(BaseCapability):
    """Gives a context and a key."""

    name = "assign"
    description = "Assign a seat"
    provides = (Seat,)
    Parameters = _Seat

    async def execute(self) -> Any:
        name = self.parameters.seat
        return Command(update={"SEAT": Seat(name=name), "seat": name})


ALL = [tool_capability(pick), take, quiet, Assign]


def _plan(*steps: tuple[str, str, dict[str, Any]]) -> Any:
    written = [{"context_key": k, "capability": c, "parameters": p} for k, c, p in steps]
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": written}}


async def test_a_command_writes_declared_keys_and_the_checkpoint_holds_them() -> None:
    graph = build_graph(ALL, state_schema=Shop, checkpointer=InMemorySaver())
    steps = [("a", "pick", {"item": "pen"}), ("b", "pick", {"item": "ink"})]
    out: Any = await graph.ainvoke(_plan(*steps, ("c", "take", {"seat": "4A"})), THREAD)
    assert out["execution_outcome"]["status"] == "completed"
    assert (sorted(out["basket"]), out["seat"]) == (["ink", "pen"], "4A")
    data = out["capability_context_data"]
    assert data["PICK_RESULT"] == {"a": {"value": "Picked pen."}, "b": {"value": "Picked ink."}}
    assert data["TAKE"] == {"c": {"value": "Taken."}}
    out = await graph.ainvoke(_plan(("d", "pick", {"item": "cap"})), THREAD)
    kept = (await graph.aget_state(THREAD)).values
    assert (sorted(kept["basket"]), kept["seat"]) == (["cap", "ink", "pen"], "4A")


@pytest.mark.parametrize(
    ("name", "value"), [("quiet", {"value": None}), ("assign", {"name": "7C"})]
)
async def test_a_command_without_messages_writes_keys_and_context_types(
    name: str, value: Any
) -> None:
    graph = build_graph(ALL, state_schema=Shop)
    out: Any = await graph.ainvoke(_plan(("s", name, {"seat": "7C"})))
    [kept] = [kind["s"] for kind in out["capability_context_data"].values()]
    assert (out["seat"], kept) == ("7C", value)


async def test_an_effect_that_is_not_repeated_writes_its_keys_after_a_crash() -> None:
    taken: list[str] = []

    @capability_node(effect="once")
    async def reserve(seat: str) -> Command[Any]:
        """Reserve a seat."""
        taken.append(seat)
        return Command(update={"seat": seat, "basket": ["seat"]})

    @capability_node(on_unknown="rerun")
    async def crash(after: Annotated[str | None, "the seat"]) -> str:
        """End the process once."""
        if len(taken) == 1 and not crashed:
            crashed.append(True)
            raise FatalExecutionError("The process ended.")
        return "done"

    crashed: list[bool] = []
    graph = build_graph([reserve, crash], state_schema=Shop, checkpointer=InMemorySaver())
    after = {"after": {"$from": "s"}}
    with pytest.raises(FatalExecutionError):
        await graph.ainvoke(_plan(("s", "reserve", {"seat": "4A"}), ("c", "crash", after)), THREAD)
    out: Any = await graph.ainvoke(None, THREAD)
    assert taken == ["4A"]
    assert (out["seat"], out["basket"]) == ("4A", ["seat"])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (Command(update={"control_has_error": False}), "control_has_error"),
        (Command(update={"task_custom_message": "x"}), "the framework owns it"),
        (Command(update={"baskett": ["x"]}), "use 'basket'"),
        (Command(update={"wholly_other": 1}), "declare 'wholly_other'"),
        (Command(update={"seat": "1"}, goto="respond"), "goto"),
        (Command(resume="yes"), "resume"),
        (Command(update={"seat": "1"}, graph=Command.PARENT), "graph"),
        (Command(update=[("seat", "1")]), "no named update"),
    ],
)
@pytest.mark.parametrize("form", ["function", "class", "tool"])
async def test_other_keys_and_jumps_are_refused_by_name(
    command: Any, named: str, form: str
) -> None:
    async def act() -> Command[Any]:
        """Act."""
        return command  # type: ignore[no-any-return]

    class Act(BaseCapability):
        name = "act"
        description = "Act"

        @staticmethod
        async def execute(state: Any, **_: Any) -> Any:
            return command

    made = {"function": lambda: capability_node(act), "tool": lambda: tool_capability(act)}
    capability = made[form]() if form in made else capability_node(Act)
    out: Any = await build_graph([capability], state_schema=Shop).ainvoke(_plan(("s", "act", {})))
    assert named in out["execution_step_results"]["s"]["error"]
    assert "seat" not in out
    assert out["execution_outcome"]["status"] == "failed"


async def test_a_capability_is_tested_with_the_keys_that_the_test_names() -> None:
    found = await run_capability(take, parameters={"seat": "4A"}, state={"seat": None})
    assert found.updates == {"seat": "4A"}


async def test_a_tool_of_an_agent_has_no_state_to_write() -> None:
    found = await as_tool(quiet, bind([quiet], state_schema=Shop)).ainvoke({"seat": "7C"})
    assert "'seat'" in found


async def test_what_a_caller_sends_is_read_by_the_prompt_and_lives_as_declared() -> None:
    plan = {"steps": [], "answer": "Hello."}
    model = ScriptedModel(responses=[plan, {"task": "Hi again"}, plan])

    def prompt(view: TurnView) -> str:
        who = (view.state.get("user_info") or {}).get("name", "a stranger")
        return f"You speak with {who} in {view.state.get('locale') or 'English'}."

    graph = build_graph(
        [quiet],
        model=model,
        state_schema=Shop,
        system_prompt=prompt,
        checkpointer=InMemorySaver(),
    )
    first: Any = {"messages": [("user", "Hi")], "user_info": {"name": "Ada"}, "locale": "Dutch"}
    await graph.ainvoke(first, THREAD)
    assert "You speak with Ada in Dutch." in str(model.calls)
    await graph.ainvoke({"messages": [("user", "Hi again")]}, THREAD)
    assert "You speak with Ada in English." in str(model.calls[-1])


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("seat", r"seat: Annotated\[.*CallerInput\]"),
        ("user_inf", "'user_info'"),
        ("passenger", r"passenger: Annotated\[.*CallerInput\].*state_schema"),
    ],
)
async def test_a_key_that_a_caller_may_not_send_names_the_annotation(key: str, fix: str) -> None:
    graph = build_graph([quiet], state_schema=Shop)
    with pytest.raises(ValidationError, match=fix):
        await graph.ainvoke({"messages": [("user", "Hi")], key: "x"})  # type: ignore[misc]
