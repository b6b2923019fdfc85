"""LangGraph's and LangChain's injected arguments: the run supplies them, never a plan."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Annotated, Any, ClassVar, Optional

import langchain_core.tools
import langgraph.prebuilt
import pytest
from langchain_core.callbacks import AsyncCallbackManagerForToolRun, Callbacks
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    tool,
)
from langchain_core.tools.base import FILTERED_ARGS, _DirectlyInjectedToolArg
from langgraph._internal._runnable import ANY_TYPE, KWARGS_CONFIG_KEYS
from langgraph.errors import NodeError
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import StreamWriter
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.adapters import tool_capability
from capgraph.base.argument_injection import RESERVED_ARGUMENTS, find_injection
from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.testing import run_capability


def _subclasses(cls: type[Any]) -> set[type[Any]]:
    return {cls, *(deep for one in cls.__subclasses__() for deep in _subclasses(one))}


def _marks() -> list[Any]:
    """Return every mark and every direct type that the installed packages define."""
    for package in (langchain_core.tools, langgraph.prebuilt):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = _subclasses(InjectedToolArg) | _subclasses(_DirectlyInjectedToolArg)
    ours = [one for one in found if one.__module__.split(".")[0] in {"langchain_core", "langgraph"}]
    return sorted(ours, key=lambda one: one.__name__)


_FOR_NODES = [
    (name, annotation)
    for name, annotations, *_ in KWARGS_CONFIG_KEYS
    for annotation in annotations
    if annotation not in (inspect.Parameter.empty, ANY_TYPE)
]


@pytest.mark.parametrize(("name", "annotation"), _FOR_NODES)
def test_every_type_that_langgraph_injects_into_a_node_is_matched(
    name: str, annotation: Any
) -> None:
    for one in (annotation, Annotated[annotation, "words"]):
        found = find_injection(one)
        assert found is not None
        assert found.get is not None or found.kind == "NodeError"


@pytest.mark.parametrize("mark", _marks())
def test_every_mark_that_langchain_injects_into_a_tool_is_matched(mark: Any) -> None:
    forms: list[Any] = [mark, list[mark], mark | None]
    if issubclass(mark, InjectedToolArg):
        forms = [Annotated[str, mark], Annotated[str | None, mark], Annotated[str, mark()]]
        forms += [Optional[Annotated[str, mark]], list[Annotated[str, mark]]]  # noqa: UP045
    for form in forms:
        found = find_injection(form)
        assert found is not None
        assert found.get is not None or found.fix


def test_every_name_that_is_filled_whatever_its_annotation_is_reserved() -> None:
    names = {name for name, annotations, *_ in KWARGS_CONFIG_KEYS if annotations == (ANY_TYPE,)}
    assert RESERVED_ARGUMENTS.keys() == {*names, *FILTERED_ARGS, "config"}
    for name in RESERVED_ARGUMENTS:

        def work(value: str) -> str:
            """Work."""
            return value

        work.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str)]
        )
        work.__annotations__ = {name: str, "return": str}
        with pytest.raises(ValidationError, match=repr(name)):
            capability_node(work)


@pytest.mark.parametrize(
    "annotation",
    [
        NodeError,
        Callbacks,
        AsyncCallbackManagerForToolRun,
        Annotated[str, InjectedToolArg],
        list[RunnableConfig],
        dict[str, BaseStore] | None,
        RunnableConfig | str,
        IsLastStep,
        RemainingSteps,
    ],
)
def test_what_a_capability_cannot_have_is_refused_where_it_is_declared(annotation: Any) -> None:
    async def work(it: Any) -> str:
        """Work."""
        return ""

    work.__annotations__ = {"it": annotation, "return": str}
    with pytest.raises(ValidationError, match=r"'it'.*Fix: "):
        capability_node(work)
    with pytest.raises(ConfigurationError, match=r"'it'.*Fix: "):
        tool_capability(StructuredTool(name="w", description="W", args_schema={}, coroutine=work))

    with pytest.raises(ValidationError, match=r"'it'.*Fix: "):

        @capability_node
        class Work(BaseCapability):
            name = "work"
            description = "Work"

            Parameters: ClassVar[Any] = create_model(
                "Parameters", __config__={"arbitrary_types_allowed": True}, it=(annotation, ...)
            )

            async def execute(self) -> Any:
                return {}


def _seen(config: Any, writer: Any, store: Any, runtime: Any, user: str) -> dict[str, Any]:
    writer({"wrote": user})
    return {
        "user": (config or {}).get("configurable", {}).get("user_id"),
        "store": store is runtime.store and isinstance(store, BaseStore),
        "deps": runtime.context["name"],
        "asked": user,
    }


class Deps(TypedDict):
    name: str


@capability_node
def of_function(
    user: str,
    config: RunnableConfig,
    optional: RunnableConfig | None,
    writer: StreamWriter,
    store: Annotated[BaseStore, "where"],
    runtime: Runtime[Deps],
    tools: ToolRuntime[Any, Any],
    messages: Annotated[list[Any], InjectedState("messages")],
    state: Annotated[dict[str, Any], InjectedState],
    kept: Annotated[Any, InjectedStore()],
    call: Annotated[str, InjectedToolCallId],
    maybe: Optional[BaseStore] = None,  # noqa: UP045
) -> dict[str, Any]:
    """Tell what a function is handed."""
    assert (optional or {})["configurable"] == config["configurable"]
    assert messages == state["messages"] == tools.state["messages"]
    assert kept is store is tools.store is maybe
    assert call == tools.tool_call_id
    assert tools.config["configurable"]["user_id"] == config["configurable"]["user_id"]
    return _seen(config, writer, store, runtime, user)


class _User(BaseModel):
    user: str


@capability_node
class OfStatic(BaseCapability):
    """Static form."""

    name = "of_static"
    description = "Tell what a static execute is handed"
    provides = ("SEEN",)
    Parameters = _User

    @staticmethod
    async def execute(state, step, config, writer: StreamWriter, store=None, **kwargs):  # type: ignore[no-untyped-def]
        user = step["parameters"]["user"]
        return {"SEEN": _seen(config, writer, store, kwargs["runtime"], user)}


@capability_node
class OfInstance(BaseCapability):
    """Instance form."""

    name = "of_instance"
    description = "Tell what an execute is handed"
    provides = ("SEEN",)
    Parameters = _User

    def execute(
        self,
        config: RunnableConfig,
        writer: StreamWriter,
        store: BaseStore,
        runtime: Runtime[Deps],
        limit: int = 3,
    ) -> Any:
        assert limit == 3
        return {"SEEN": _seen(config, writer, store, runtime, self.parameters.user)}


@tool
async def of_tool(
    user: str,
    writer: StreamWriter,
    store: BaseStore,
    runtime: Any,
    config: Optional[RunnableConfig] = None,  # noqa: UP045
) -> dict[str, Any]:
    """Tell what a tool is handed."""
    assert isinstance(runtime, ToolRuntime)
    return _seen(config, writer, store, runtime, user)


class _OfClass(BaseTool):
    name: str = "of_class"
    description: str = "Tell what a tool class is handed."

    def _run(
        self,
        user: str,
        config: RunnableConfig,
        runtime: ToolRuntime[Any, Any],
        writer: StreamWriter,
    ) -> dict[str, Any]:
        return _seen(config, writer, runtime.store, runtime, user)


ALL = [
    of_function,
    OfStatic,
    OfInstance,
    tool_capability(of_tool, provides="SEEN"),
    tool_capability(_OfClass(), provides="SEEN"),
]


def _asking(capability: Any, **parameters: Any) -> Any:
    step = {"context_key": "seen", "capability": capability.name, "parameters": parameters}
    return {"messages": [("user", "go")], "planning_execution_plan": {"steps": [step]}}


@pytest.mark.parametrize("capability", ALL)
async def test_the_run_supplies_what_langgraph_injects(capability: Any) -> None:
    assert [*capability.capability_spec.parameters.model_json_schema()["properties"]] == ["user"]
    graph = build_graph([capability], store=InMemoryStore(), context_schema=Deps)
    config: Any = {"configurable": {"thread_id": "1", "user_id": "ada"}}
    wrote: list[Any] = []
    out: Any = {}
    async for mode, part in graph.astream(
        _asking(capability, user="bob"),
        config,
        context={"name": "deps"},
        stream_mode=["custom", "values"],
    ):
        if mode == "values":
            out = part
        elif "wrote" in part:
            wrote.append(part)
    [data] = [kind["seen"] for kind in out["capability_context_data"].values()]
    data = data.get("value", data)
    assert data == {"user": "ada", "store": True, "deps": "deps", "asked": "bob"}
    assert wrote == [{"wrote": "bob"}]


@pytest.mark.parametrize("capability", ALL)
@pytest.mark.parametrize("name", ["config", "writer", "store", "runtime", "state"])
async def test_no_plan_says_who_the_user_is(capability: Any, name: str) -> None:
    graph = build_graph([capability], store=InMemoryStore())
    forged = {"configurable": {"user_id": "eve"}}
    out: Any = await graph.ainvoke(
        _asking(capability, user="bob", **{name: forged}), {"configurable": {"user_id": "ada"}}
    )
    assert out["execution_outcome"]["status"] == "failed"
    assert "eve" not in str(out.get("capability_context_data"))


async def test_a_store_that_the_graph_lacks_is_named() -> None:
    @capability_node
    async def needs(store: BaseStore) -> str:
        """Need a store."""
        return "never"

    @capability_node
    async def may(store: BaseStore | None, config: RunnableConfig, writer: StreamWriter) -> str:
        """Use a store if there is one."""
        writer("nobody hears it")
        return f"{store} {config['configurable']}"

    out: Any = await build_graph([needs]).ainvoke(_asking(needs))
    assert "store=" in out["execution_step_results"]["seen"]["error"]
    assert (await run_capability(may)).output.value == "None {}"
    found = await run_capability(may, configurable={"user_id": "ada"})
    assert "'user_id': 'ada'" in found.output.value


def test_annotations_that_cannot_be_read_hide_nothing() -> None:
    @capability_node
    class Reads(BaseCapability):
        name = "reads"
        description = "Reads"

        @staticmethod
        async def execute(
            state: Unknown,  # type: ignore[name-defined]  # noqa: F821
            config: RunnableConfig,
            **kwargs: Any,
        ) -> Any:
            return {}

    assert find_injection("Optional[BaseStore]") is not None
    hidden = find_injection("list[RunnableConfig]")
    assert hidden is not None
    assert hidden.get is None
