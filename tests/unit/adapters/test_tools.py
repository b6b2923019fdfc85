"""Capabilities backed by LangChain tools and functions."""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, field_validator

from capgraph import CapabilityContext, bind, build_graph
from capgraph.adapters import tool_capability
from capgraph.base.errors import CapabilityError, ConfigurationError, ErrorSeverity
from capgraph.planning import check_plan
from capgraph.testing import run_capability


class Level(CapabilityContext):
    metres: float


class Reading(BaseModel):
    """Which gauge."""

    gauge: str
    unit: str = "m"

    @field_validator("gauge")
    @classmethod
    def known(cls, value: str) -> str:
        if value not in ("north", "south"):
            raise ValueError("no such gauge")
        return value


@tool(args_schema=Reading)
async def read_level(gauge: str, unit: str) -> dict[str, Any]:
    """Read the water level."""
    return {"metres": 2.5}


async def run(thing: Any, parameters: dict[str, Any] | None = None, **options: Any) -> Any:
    made = tool_capability(thing, provides="OUT", **options)
    return (await run_capability(made, parameters=parameters or {})).contexts["OUT"]


async def ran(made: Any, parameters: dict[str, Any], **options: Any) -> dict[str, Any]:
    plan = {"steps": [{"context_key": "k", "capability": made.name, "parameters": parameters}]}
    graph = build_graph([made], **options)
    said: Any = {"messages": [("user", "go")], "planning_execution_plan": plan}
    return await graph.ainvoke(said, context={"user": "Ada"})


async def test_name_description_and_parameters_come_from_the_tool() -> None:
    made = tool_capability(read_level, provides=Level, effect="idempotent", permission="read_only")
    spec = made.capability_spec
    assert (spec.name, spec.description) == ("read_level", "Read the water level.")
    assert (spec.provides, spec.effect, spec.permission) == (("LEVEL",), "idempotent", 1)
    assert spec.parameters is Reading
    found = await run_capability(made, parameters={"gauge": "north"})
    assert found.output == Level(metres=2.5)


def test_a_plan_is_checked_against_the_tools_own_validators() -> None:
    services = bind([tool_capability(read_level, provides="LEVEL")])

    def problems(parameters: dict[str, Any]) -> int:
        step = {"context_key": "k", "capability": "read_level", "parameters": parameters}
        end = {"context_key": "end", "capability": "respond"}
        return len(check_plan({"steps": [step, end]}, services.registry))

    assert problems({"gauge": "north"}) == 0
    for wrong in ({}, {"gauge": "east"}, {"gauge": 3}, {"gauge": "north", "units": "m"}):
        assert problems(wrong) == 1


async def test_function_is_converted_like_in_langchain() -> None:
    def twice(number: int, unit: str = "m") -> str:
        """Double a number.

        Args:
            number: What is doubled.
            unit: Its unit.
        """
        assert threading.current_thread().name.startswith("capgraph-sync")
        return f"{number * 2} {unit}"

    made = tool_capability(twice)
    assert made.capability_spec.provides == ("TWICE_RESULT",)
    schema = made.capability_spec.parameters.model_json_schema()
    assert schema["properties"]["number"]["description"] == "What is doubled."
    assert await run(twice, {"number": 2}) == {"value": "4 m"}


async def test_synchronous_tools_run_in_the_pool() -> None:
    class Old(BaseTool):
        name: str = "old"
        description: str = "Old style."

        def _run(self, text: str) -> str:
            return threading.current_thread().name + text

    assert (await run(Old(), {"text": "!"}))["value"].startswith("capgraph-sync")
    single = Tool("single", lambda text: text.upper(), "One text.")
    assert await run(single, {"tool_input": "a"}) == {"value": "A"}


async def test_json_schema_is_used_unchanged() -> None:
    async def add(**values: Any) -> Any:
        return values

    schema = {
        "type": "object",
        "properties": {"class": {"type": "string"}, "n": {"type": "integer", "default": 1}},
        "required": ["class"],
    }
    made = StructuredTool(name="add", description="Adds.", args_schema=schema, coroutine=add)
    assert await run(made, {"class": "x"}) == {"class": "x", "n": 1}


async def test_content_and_artifact_are_both_stored() -> None:
    @tool(response_format="content_and_artifact")
    async def search(query: str) -> Any:
        """Search."""
        return f"2 hits for {query}", {"hits": [1, 2]}

    assert await run(search, {"query": "a"}) == {
        "value": "2 hits for a",
        "artifact": {"hits": [1, 2]},
    }


async def test_tool_message_is_stored_and_error_message_fails() -> None:
    @tool
    async def answer(status: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Answer."""
        return ToolMessage("done", tool_call_id=tool_call_id, status=status)

    assert await run(answer, {"status": "success"}) == {"value": "done"}
    with pytest.raises(ToolException, match="done"):
        await run(answer, {"status": "error"})


async def test_command_updates_are_complete() -> None:
    @tool
    async def command(goto: str, call: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Command."""
        said = [ToolMessage("kept", tool_call_id=call)]
        return Command(update={"messages": said, "user": "Ada"}, goto=goto or ())

    made = tool_capability(command, provides="OUT")
    found = await run_capability(made, parameters={"goto": ""}, state={"user": None})
    assert (found.contexts, found.updates) == ({"OUT": {"value": "kept"}}, {"user": "Ada"})
    with pytest.raises(CapabilityError, match="goto"):
        await run_capability(made, parameters={"goto": "elsewhere"}, state={"user": None})


async def test_injected_arguments_come_from_the_step() -> None:
    @tool
    async def look(
        word: str,
        state: Annotated[dict[str, Any], InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[Any, InjectedStore()],
        runtime: ToolRuntime[dict[str, Any], Any],
    ) -> dict[str, Any]:
        """Look."""
        assert state["messages"] == messages == runtime.state["messages"]
        await store.aput(("a",), "b", {"c": word})
        found = await runtime.store.aget(("a",), "b")  # type: ignore[union-attr]
        return {"said": messages[0].text, "user": runtime.context["user"], **found.value}

    made = tool_capability(look, provides="OUT")
    assert list(made.capability_spec.parameters.model_fields) == ["word"]
    out = await ran(made, {"word": "w"}, store=InMemoryStore(), context_schema=dict)
    assert out["capability_context_data"]["OUT"]["k"] == {"said": "go", "user": "Ada", "c": "w"}
    # Nobody can forge what is injected.
    forged = await ran(made, {"word": "w", "state": {}}, store=InMemoryStore())
    assert forged["execution_outcome"]["status"] == "failed"


def test_unsupported_injected_arguments_are_rejected() -> None:
    @tool
    def secret(word: str, key: Annotated[str, InjectedToolArg]) -> str:
        """Secret."""
        return word

    with pytest.raises(ConfigurationError, match="'key'"):
        tool_capability(secret)
    with pytest.raises(ConfigurationError, match="neither"):
        tool_capability(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="docstring"):
        tool_capability(lambda a: a)


@pytest.mark.parametrize(
    ("handled", "severity", "said"),
    [
        (False, ErrorSeverity.CRITICAL, "No such place"),
        (True, ErrorSeverity.REPLANNING, "No such place"),
        ("Try another.", ErrorSeverity.REPLANNING, "Try another."),
        (lambda exc: f"({exc})", ErrorSeverity.REPLANNING, "(No such place)"),
    ],
)
async def test_a_tool_exception_is_a_classified_failure(
    handled: Any, severity: ErrorSeverity, said: str
) -> None:
    async def find() -> str:
        """Find."""
        raise ToolException("No such place")

    one = StructuredTool.from_function(coroutine=find, handle_tool_error=handled)
    made = tool_capability(one, provides="OUT")
    out = await ran(made, {})
    record = out["execution_step_results"]["k"]
    assert record["success"] is False
    assert record["severity"] == severity.value
    assert said in record["error"]
    assert "OUT" not in out["capability_context_data"]


async def test_other_errors_are_classified_like_any_capabilitys() -> None:
    async def fetch() -> str:
        """Fetch."""
        raise ConnectionError("away")

    made = tool_capability(fetch, provides="OUT")
    found = made.classify_error(ConnectionError("away"), {})
    assert found is not None
    assert found.severity is ErrorSeverity.RETRIABLE


async def test_langchain_callbacks_see_the_tool() -> None:
    class Watch(BaseCallbackHandler):
        def on_tool_start(self, serialized: Any, input_str: str, **_: Any) -> None:
            seen.append((serialized["name"], input_str))

    def twice(number: int) -> int:
        """Double."""
        return number * 2

    seen: list[Any] = []
    plan = {"steps": [{"context_key": "k", "capability": "twice", "parameters": {"number": 2}}]}
    graph = build_graph([tool_capability(twice, provides="OUT")])
    said: Any = {"messages": [("user", "go")], "planning_execution_plan": plan}
    out = await graph.ainvoke(said, {"callbacks": [Watch()]})
    assert out["capability_context_data"]["OUT"]["k"] == {"value": 4}
    assert seen == [("twice", "{'number': 2}")]
    await graph.ainvoke(said)
    assert len(seen) == 1


async def test_tools_of_partial_functions_and_of_objects() -> None:
    class Times:
        async def __call__(self, number: int, factor: int) -> int:
            return number * factor

    class Given(BaseModel):
        number: int

    made = [
        StructuredTool(
            name="a", description="A.", args_schema=Given, coroutine=partial(one, factor=3)
        )
        for one in (Times(), Times().__call__)
    ]
    assert [await run(one, {"number": 2}) for one in made] == [{"value": 6}, {"value": 6}]


async def test_tool_receives_the_run_configuration() -> None:
    @tool
    async def who(config: RunnableConfig) -> str:
        """Who."""
        return str(config["configurable"]["thread_id"])

    plan = {"steps": [{"context_key": "k", "capability": "who"}]}
    graph = build_graph([tool_capability(who, provides="OUT")])
    said: Any = {"messages": [("user", "go")], "planning_execution_plan": plan}
    out = await graph.ainvoke(said, {"configurable": {"thread_id": "7"}})
    assert out["capability_context_data"]["OUT"]["k"] == {"value": "7"}


def test_tool_arguments_may_be_positional_only() -> None:
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    spec = tool_capability(add, "SUM", "once", "WORKSPACE_WRITE").capability_spec
    assert (spec.provides, spec.effect) == (("SUM",), "once")
