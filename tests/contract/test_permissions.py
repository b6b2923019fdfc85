"""Permissions in a graph: on the whole plan, at dispatch, on every door, and in what is shown."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import BaseCapability, bind, build_graph, capability_node
from capgraph.adapters import as_tool
from capgraph.base import ConfigurationError, ValidationError
from capgraph.governance import PermissionMode, PermissionPolicy, RolePermissionConfig
from capgraph.state import AgentState
from capgraph.testing import ScriptedModel
from capgraph.workflows import DAGWorkflow, WorkflowNode
from tests.support.doors import Amount, Gauge, last_words, status

POLICY = PermissionPolicy(
    [
        RolePermissionConfig("viewer", PermissionMode.READ_ONLY),
        RolePermissionConfig("clerk", PermissionMode.WORKSPACE_WRITE),
        RolePermissionConfig("chief", PermissionMode.FULL_ACCESS, denied_tools=["LOOK"]),
    ]
)
STEPS = ("a", "look"), ("b", "pay"), ("c", "wipe")


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def tools(ran: list[str]) -> list[Any]:
    @capability_node
    class Look(BaseCapability):
        name = "look"
        description = "Look at the gauge"
        provides = ["GAUGE"]

        async def execute(self) -> Gauge:
            ran.append("look")
            return Gauge(value=1)

    @capability_node
    class Pay(BaseCapability):
        name = "pay"
        description = "Pay an amount"
        effect = "once"
        Parameters = Amount

        async def execute(self) -> dict[str, Any]:
            ran.append("pay")
            return {}

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> Any:
            from capgraph.base import ErrorClassification, ErrorSeverity

            return ErrorClassification(ErrorSeverity.RETRIABLE, "Again!")

    @capability_node
    class Wipe(BaseCapability):
        name = "wipe"
        description = "Wipe everything"
        permission = "full_access"

        async def execute(self) -> dict[str, Any]:
            ran.append("wipe")
            return {}

    return [Gauge, Look, Pay, Wipe]


@pytest.fixture
def desk(agent: Any, tools: list[Any], step: Any) -> Any:
    def make(*names: str, **options: Any) -> Any:
        plan = [step(key, name) for key, name in STEPS if name in names]
        options.setdefault("permissions", POLICY)
        options.setdefault("checkpointer", InMemorySaver())
        return agent(*tools, plans=[plan], **options)

    return make


async def ask(it: Any, thread: str = "1", **who: Any) -> dict[str, Any]:
    given = {"messages": [("user", "Do it")]}
    out: dict[str, Any] = await it.graph.ainvoke(given, it.config(thread, **who))
    return out


@pytest.mark.parametrize(
    ("who", "names", "expected"),
    [
        ({"role": "viewer"}, ["look"], ["look"]),
        ({"role": "viewer"}, ["pay"], []),  # an effect asks for write at least
        ({"role": "clerk"}, ["look", "pay"], ["look", "pay"]),
        ({"role": "clerk"}, ["wipe"], []),
        ({"role": "chief"}, ["wipe", "pay"], ["pay", "wipe"]),
        ({"role": "chief"}, ["look"], []),
        ({"role": "stranger"}, ["look"], []),
        ({}, ["look"], []),
    ],
)
async def test_a_caller_runs_what_the_role_may(
    desk: Any, ran: list[str], who: dict[str, str], names: list[str], expected: list[str]
) -> None:
    out = await ask(desk(*names), **who)
    assert sorted(ran) == expected
    if not expected and who:
        assert status(out) == "failed"
        assert "permission denied" in last_words(out) or "nothing here can" in last_words(out)


@pytest.mark.row("T16")
async def test_the_whole_plan_is_refused_before_its_first_step(desk: Any, ran: list[str]) -> None:
    it = desk("look", "pay", "wipe")
    plan = {"steps": [{"context_key": k, "capability": n, "task_objective": n} for k, n in STEPS]}
    given = {"messages": [("user", "Do it")], "planning_execution_plan": plan}
    out = await it.graph.ainvoke(given, it.config(role="viewer"))
    assert (status(out), ran) == ("failed", [])
    assert "'pay' requires workspace_write" in last_words(out)
    assert "'wipe' requires full_access" in last_words(out), "all are named at once"
    assert out["control_error_info"]["classification"]["metadata"]["code"] == "CG-PERMISSION"


async def test_state_says_nothing_about_who_calls(desk: Any, ran: list[str]) -> None:
    it = desk("pay")
    out = await ask(it, role="viewer")
    await it.graph.aupdate_state(it.config(), {"runtime_info": {"role": "chief"}})
    assert (status(out), ran) == ("failed", [])


@pytest.mark.row("T16")
async def test_whom_a_server_authenticated_cannot_name_another_role(
    desk: Any, ran: list[str]
) -> None:
    known = {"identity": "u1", "role": "viewer"}
    await ask(desk("pay"), langgraph_auth_user=known, role="chief")
    assert ran == []
    await ask(desk("pay"), thread="2", langgraph_auth_user={"identity": "u1", "role": "clerk"})
    assert ran == ["pay"]


@pytest.mark.parametrize(
    ("user", "runs"),
    [
        ({"langgraph_auth_user": None, "langgraph_auth_user_id": ""}, True),
        ({"langgraph_auth_user": {"identity": "", "is_authenticated": False}}, True),
        ({"langgraph_auth_user": {"identity": "", "is_authenticated": True}}, False),
        ({"langgraph_auth_user": {"identity": "", "role": "viewer"}}, False),
    ],
)
async def test_a_server_that_authenticates_nobody_leaves_it_to_the_client(
    desk: Any, ran: list[str], user: dict[str, Any], runs: bool
) -> None:
    await ask(desk("pay"), **user, role="clerk")
    assert ran == (["pay"] if runs else [])


@pytest.mark.row("T16")
async def test_at_dispatch_the_one_who_goes_on_is_asked_about(desk: Any, ran: list[str]) -> None:
    it = desk("pay", settings={"approvals": {"steps": "all"}})
    await ask(it, role="clerk")
    assert ran == []
    out = await it.graph.ainvoke(Command(resume="approve"), it.config(role="viewer"))
    assert (status(out), ran) == ("failed", [])
    assert "permission denied" in last_words(out), "and the author's classify_error is not asked"
    await ask(it, thread="2", role="clerk")
    assert status(await answer_as(it, "2", "clerk")) == "completed"
    assert ran == ["pay"]


async def answer_as(it: Any, thread: str, role: str) -> Any:
    return await it.graph.ainvoke(Command(resume="approve"), it.config(thread, role=role))


@pytest.mark.parametrize(
    "who",
    [
        {"role": ["chief"]},
        {"role": {"role": "chief"}},
        {"role": "clerk", "tenant": ["acme"]},
        {"role": 3},
        {"role": ""},
        {"role": None, "user_id": "chief"},
    ],
)
async def test_a_caller_that_makes_no_sense_may_nothing(
    desk: Any, ran: list[str], who: dict[str, Any]
) -> None:
    out = await ask(desk("pay"), **who)
    assert (status(out), ran) == ("failed", [])


async def test_permissions_that_fail_deny(desk: Any, ran: list[str]) -> None:
    class Broken:
        def authorize(self, role: Any, name: str, **_: Any) -> Any:
            raise ConnectionError("the service is away")

    out = await ask(desk("look", permissions=Broken()), role="chief")
    assert (status(out), ran) == ("failed", [])


@pytest.mark.row("T16")
async def test_whoever_chooses_and_plans_is_shown_what_the_caller_may_use(desk: Any) -> None:
    shown: list[list[str]] = []

    class Selector:
        async def select(self, task: str, candidates: Any, **_: Any) -> Any:
            from capgraph.selection import Selection

            shown.append([c.name for c in candidates])
            return Selection(tuple(c.name for c in candidates))

    it = desk("look", selector=Selector())
    await ask(it, role="viewer")
    assert shown == [["look"]]
    request = it.planner.calls[0]
    assert request.active == ("look",)
    assert list(request.catalog.capabilities) == ["look"]
    await ask(it, thread="2", role="clerk")
    assert shown[1] == ["look", "pay"]


async def test_a_model_that_chooses_with_the_plan_is_shown_no_more(
    tools: list[Any], ran: list[str]
) -> None:
    plan = {"steps": [{"capability": "look", "context_key": "a"}]}
    model = ScriptedModel(responses=lambda call: plan if call.schema or call.tools else "Done.")
    graph = build_graph(tools, model=model, permissions=POLICY)
    given = {"messages": [("user", "Look")]}
    await graph.ainvoke(given, {"configurable": {"role": "viewer"}})
    assert ran == ["look"]
    told = str(model.calls[0])
    assert "Look at the gauge" in told
    assert "Wipe everything" not in told
    assert "Pay an amount" not in told


async def test_what_the_agent_can_do_is_what_the_caller_may(tools: list[Any]) -> None:
    graph = build_graph(tools, permissions=POLICY)
    given = {"messages": [("user", "Sing a song about the sea")]}
    out = await graph.ainvoke(given, {"configurable": {"role": "viewer"}})
    assert "look:" in out["messages"][-1].content
    assert "wipe" not in out["messages"][-1].content


async def test_a_node_of_a_graph_of_ones_own_asks_too(tools: list[Any], ran: list[str]) -> None:
    services = bind(tools, permissions=POLICY)
    builder = StateGraph(AgentState)
    builder.add_node("wipe", services.node(tools[3]))
    builder.add_edge(START, "wipe")
    graph = builder.compile()
    out = await graph.ainvoke({}, {"configurable": {"role": "clerk"}})
    assert ran == []
    assert "Permission denied" in out["control_error_info"]["user_message"]
    await graph.ainvoke({}, {"configurable": {"role": "chief"}})
    assert ran == ["wipe"]


@pytest.mark.parametrize("way", ["node", "tool", "workflow"])
async def test_a_capability_inside_another_asks_too(
    agent: Any, tools: list[Any], ran: list[str], step: Any, way: str
) -> None:
    look, told = tools[1], list[str]()
    flow = DAGWorkflow([WorkflowNode("look", look)], [])
    ways = {
        "node": lambda: look.langgraph_node({}),
        "tool": lambda: as_tool(look).ainvoke({}),
        "workflow": lambda: flow.run({"task": "Look"}),
    }

    @capability_node
    async def tidy() -> dict[str, Any]:
        """Tidy up, by another capability."""
        told.append(str(await ways[way]()))
        return {}

    it = agent(*tools, tidy, plans=[[step("a", "tidy")]], permissions=POLICY)
    await ask(it, role="chief")
    assert ran == []
    assert "Permission denied" in told[0]
    await ask(it, role="clerk")
    assert ran == ["look"]


def test_what_cannot_be_used_is_said_when_the_graph_is_built(
    tools: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for nonsense in (PermissionPolicy, "chief", {"chief": 3}):
        with pytest.raises(ConfigurationError, match="permissions"):
            bind(tools, permissions=nonsense)  # type: ignore[arg-type]
    with caplog.at_level("WARNING", logger="capgraph"):
        bind(tools)
    assert "declare a permission: wipe" in caplog.text

    async def drop() -> None:
        """Drop it."""

    with pytest.raises(ValidationError, match="READ_ONLY"):
        capability_node(permission="everything")(drop)


async def test_unbound_a_declared_permission_is_refused(tools: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="permission"):
        await tools[3].langgraph_node({})
