"""Own state keys and context, capabilities without a registry, registries that do not change."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import capgraph
import capgraph.state as state_room
from capgraph import BaseCapability, Registry, build_graph, capability_node
from capgraph.base import CapgraphError, RegistryError
from capgraph.engine.services import OperatorOptions
from capgraph.state import AgentState
from capgraph.stores import open_saver
from tests.support.doors import Gauge, question, status

CONFIG: Any = {"configurable": {"thread_id": "1"}}
SAY: Any = {"messages": [("user", "read the gauge")]}


@capability_node(examples=["read the gauge"])
async def read() -> Gauge:
    """Read the gauge."""
    return Gauge(value=7)


@capability_node(examples=["weigh the parcel"])
async def weigh() -> Gauge:
    """Weigh the parcel."""
    return Gauge(value=2)


# --- state_schema and context_schema -------------------------------------------------------


def _schema() -> type[Any]:
    class MyState(AgentState, total=False):
        customer: Annotated[str, state_room.CallerInput]
        notes: Annotated[list[str], add]
        total: int
        said: Annotated[str, state_room.TurnScoped]
        wish: Annotated[list[str], state_room.CallerInput, state_room.TurnScoped, add]

    return MyState


@pytest.fixture
def clerk() -> Any:
    @capability_node
    class Clerk(BaseCapability):
        name = "clerk"
        description = "Write down who asks"

        async def execute(self) -> dict[str, Any]:
            who = self.state.get("customer")
            return {"notes": [f"{who} {self.step['context_key']}"], "total": 3}

    return Clerk


async def test_own_keys_are_written_read_and_merged(agent: Any, step: Any, clerk: Any) -> None:
    plan = [step("a", "clerk"), step("b", "clerk")]
    it = agent(clerk, plans=[plan], state_schema=_schema())
    out = await it.ask(customer="Ada")
    assert status(out) == "completed"
    assert sorted(out["notes"]) == ["Ada a", "Ada b"], "the key's own reducer merges"
    assert (out["customer"], out["total"]) == ("Ada", 3)


async def test_what_an_own_reducer_does_not_take_is_named(agent: Any, step: Any) -> None:
    class Wrong(BaseCapability):
        name = "wrong"
        description = "Write a number among the notes"

        async def execute(self) -> dict[str, Any]:
            return {"notes": 5}

    it = agent(capability_node(Wrong), plans=[[step("a", "wrong")]], state_schema=_schema())
    out = await it.ask()
    assert "value 5 for state key 'notes'" in out["execution_outcome"]["reason"]


async def test_what_is_of_a_turn_ends_with_it_whoever_wrote_it(agent: Any, step: Any) -> None:
    seen = []

    class Tell(BaseCapability):
        name = "tell"
        description = "Tell"

        async def execute(self) -> dict[str, Any]:
            seen.append((self.state.get("said"), self.state.get("wish")))
            return {"said": "this"}

    options: dict[str, Any] = {"state_schema": _schema(), "checkpointer": InMemorySaver()}
    it = agent(capability_node(Tell), plans=[[step("a", "tell")]] * 3, **options)
    await it.ask(wish=["tea"])
    await it.ask("And now")
    await it.ask("And then", wish=["milk"])
    assert seen == [(None, ["tea"]), (None, []), (None, ["milk"])]


async def test_a_caller_sends_only_the_keys_that_are_marked(
    agent: Any, step: Any, clerk: Any
) -> None:
    it = agent(clerk, plans=[[step("a", "clerk")]], state_schema=_schema())
    for forged in ({"total": 9}, {"notes": ["mine"]}):
        with pytest.raises(CapgraphError, match=next(iter(forged))):
            await it.ask(**forged)
    with pytest.raises(CapgraphError, match="nonsense"):
        await it.ask(nonsense=1)


def test_a_key_of_the_framework_is_not_declared_anew() -> None:
    class MyState(AgentState, total=False):
        messages: Annotated[list[Any], add]

    with pytest.raises(
        CapgraphError, match=r"MyState must not redeclare keys of AgentState: messages"
    ):
        build_graph([read], state_schema=MyState)


async def test_without_a_schema_an_own_key_is_refused_by_name(
    agent: Any, step: Any, clerk: Any
) -> None:
    it = agent(clerk, plans=[[step("a", "clerk")]])
    with pytest.raises(CapgraphError, match="customer"):
        await it.ask(customer="Ada")


async def test_own_keys_are_seen_in_the_graphs_own_history(
    agent: Any, step: Any, clerk: Any
) -> None:
    saver = InMemorySaver()
    it = agent(clerk, plans=[[step("a", "clerk")]], state_schema=_schema(), checkpointer=saver)
    await it.ask(customer="Ada")
    values = (await it.graph.aget_state(it.config())).values
    assert (values["customer"], values["total"]) == ("Ada", 3)


def test_a_schema_of_something_else_is_refused() -> None:
    class Foreign(dict):  # type: ignore[type-arg]
        pass

    with pytest.raises((CapgraphError, TypeError, ValueError), match="AgentState"):
        build_graph([read], state_schema=Foreign)


async def test_the_context_of_a_run_reaches_a_capability(agent: Any, step: Any) -> None:
    @dataclass
    class Deps:
        unit: str

    seen: list[Any] = []

    @capability_node
    class Ask(BaseCapability):
        name = "ask"
        description = "Ask for the unit"

        @staticmethod
        async def execute(state: Any, *, runtime: Any, **kwargs: Any) -> dict[str, Any]:
            seen.append(runtime.context)
            return {}

    it = agent(Ask, plans=[[step("a", "ask"), step("b", "ask")]], context_schema=Deps)
    out = await it.graph.ainvoke(SAY, it.config(), context=Deps(unit="bar"))
    assert status(out) == "completed"
    assert seen == [Deps(unit="bar"), Deps(unit="bar")]


# --- capabilities themselves ---------------------------------------------------------------


async def test_capabilities_alone_make_a_graph() -> None:
    graph = build_graph([read, weigh])
    out = await graph.ainvoke(SAY)
    assert "7" in out["messages"][-1].content
    assert status(out) == "completed"


def test_what_is_no_capability_is_refused() -> None:
    class Plain:
        pass

    for wrong in ([read, Plain], ["read"], [None]):
        with pytest.raises(RegistryError):
            build_graph(wrong)


# --- a graph's registry is a value ---------------------------------------------------------


def _registry(*items: Any) -> Registry:
    registry = Registry()
    for item in (Gauge, *items):
        registry.register(item)
    return registry


def _change(registry: Any, how: str) -> None:
    if how == "register":
        registry.register(weigh)
    elif how == "override":
        registry.register(read, override=True)
    elif how == "unregister":
        registry.unregister("read")
    elif how == "give":
        registry.declare_provided("GAUGE")
    else:
        registry.discover("tests.support")


@pytest.mark.parametrize("how", ["register", "override", "unregister", "give", "discover"])
async def test_a_registry_that_has_a_graph_does_not_change(how: str) -> None:
    registry = _registry(read)
    graph = build_graph(registry)
    with pytest.raises(RegistryError, match="with_") as found:
        _change(registry, how)
    assert "graph" in str(found.value)
    assert list(registry.capabilities) == ["read"]
    assert status(await graph.ainvoke(SAY)) == "completed"


async def test_with_makes_another_registry() -> None:
    registry = _registry(read)
    graph = build_graph(registry)
    more = registry.with_(weigh)
    assert list(registry.capabilities) == ["read"]
    assert list(more.capabilities) == ["read", "weigh"]
    assert more.context_types == registry.context_types
    wider = build_graph(more)
    assert "weigh" in wider.get_graph().nodes
    assert "weigh" not in graph.get_graph().nodes
    given: Any = {"messages": [("user", "weigh the parcel")]}
    assert "2" in (await wider.ainvoke(given))["messages"][-1].content


def test_with_refuses_what_is_no_capability() -> None:
    registry = _registry(read)
    for wrong in (object(), "weigh", None):
        with pytest.raises(RegistryError):
            registry.with_(wrong)


@pytest.mark.may_block
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_wider_graph_goes_on_with_a_thread_and_a_narrower_one_asks(
    where: str, tmp_path: Any
) -> None:
    """The same saver: a waiting step runs in the new graph; one that has gone is a question."""
    sent: list[str] = []

    @capability_node(requires_approval=True, effect="once", examples=["send the parcel"])
    async def send() -> Gauge:
        """Send the parcel."""
        sent.append("sent")
        return Gauge(value=1)

    given: Any = {"messages": [("user", "send the parcel")]}

    async def tried(saver: Any) -> None:
        registry = _registry(send)
        await build_graph(registry, checkpointer=saver).ainvoke(given, CONFIG)
        narrow = build_graph(_registry(read), checkpointer=saver)
        out = await narrow.ainvoke(Command(resume="approve"), CONFIG)
        assert question(out)["steps"][0]["kind"] == "missing_capability"
        assert "send" in question(out)["steps"][0]["reason"]
        assert sent == []
        wide = build_graph(registry.with_(weigh), checkpointer=saver)
        out = await wide.ainvoke(Command(resume="rerun"), CONFIG)
        if out.get("__interrupt__"):  # agreed to once more, now that it is there again
            assert sent == []
            out = await wide.ainvoke(Command(resume="approve"), CONFIG)
        assert (status(out), sent) == ("completed", ["sent"])

    if where == "memory":
        await tried(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
            await tried(saver)


# --- the names one imports and the keywords one gives ----------------------------------------


@pytest.mark.parametrize("name", ["bind", "build_graph", "open_graph", "Registry", "Verdict"])
def test_the_root_has_what_an_application_needs(name: str) -> None:
    assert name in capgraph.__all__
    assert getattr(capgraph, name)


def _keywords(function: Any) -> set[str]:
    return {*inspect.signature(function).parameters, *OperatorOptions.__annotations__}


def test_build_graph_and_bind_take_the_operators_keywords() -> None:
    operator = {"behaviors", "policies", "sinks", "capacity", "settings", "clock"}
    assert operator <= _keywords(capgraph.bind)
    whole = operator | {"state_schema", "context_schema", "model", "checkpointer", "store"}
    assert whole <= _keywords(build_graph)


def test_a_misspelt_keyword_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="behaviours"):
        build_graph(_registry(read), behaviours=[])
