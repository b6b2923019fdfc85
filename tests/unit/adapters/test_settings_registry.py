"""Tools, graphs, agents, and MCP servers that the settings name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from mcp.server import MCPServer

from capgraph import CapabilityContext, Registry
from capgraph.adapters import mcp_capabilities, open_registry
from capgraph.base.error_classification import ErrorClassification
from capgraph.base.errors import CapgraphError, ConfigurationError, ErrorSeverity, RegistryError
from capgraph.configs.settings import Settings, load_settings

HERE = __name__


class Order(CapabilityContext):
    amount: int


class State(TypedDict):
    amount: int


builder = StateGraph(State).add_node("double", lambda state: {"amount": state["amount"] * 2})
pricing = builder.add_edge(START, "double").compile(name="pricing")


def search(query: str) -> str:
    """Search the archive."""
    return query


async def poet(task: str) -> str:
    return task


def never_again(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
    return ErrorClassification(severity=ErrorSeverity.CRITICAL, user_message=str(exc))


async def good(output: Any) -> float:
    return 1.0


GRAPH = {"import": f"{HERE}:pricing", "input": f"{HERE}:Order", "output": f"{HERE}:Order"}


async def spec(section: str, name: str, entry: dict[str, Any]) -> Any:
    settings = load_settings(**{section: [entry]})
    async with open_registry(settings) as registry:
        return registry.capabilities[name]


async def test_every_declaration_is_available_in_yaml() -> None:
    found = await spec(
        "tools",
        "find",
        {
            "import": f"{HERE}:search",
            "name": "find",
            "effect": "once",
            "provides": "FOUND",
            "requires": [f"{HERE}:Order", ["NOTE", "many"]],
            "requires_approval": {"approvers": 2},
            "permission": "full_access",
            "effect_key": ["query"],
            "labels": ["untrusted"],
            "timeout_seconds": 5,
            "undo": "order",
            "behaviors": [{"use": "retry", "max_retries": 1}],
            "gate": {
                "use": "quality_gate",
                "check": {"object": f"{HERE}:good"},
                "required_level": 2,
            },
            "classify_error": f"{HERE}:never_again",
        },
    )
    assert (found.effect, found.provides, found.timeout_seconds) == ("once", ("FOUND",), 5)
    assert [need.type for need in found.requires] == ["ORDER", "NOTE"]
    assert found.requires_approval.approvers == 2
    assert found.undo.name == "order"
    assert [type(one).__name__ for one in found.behaviors] == ["RetryBehavior"]
    assert found.gate.check is good
    assert found.cls.classify_error is never_again


async def test_graphs_and_agents_accept_adapter_keywords() -> None:
    found = await spec("graphs", "pricing", {**GRAPH, "description": "Prices."})
    assert (found.description, found.provides) == ("Prices.", ("ORDER",))
    found = await spec("agents", "writer", {"import": f"{HERE}:poet", "name": "writer"})
    assert found.provides == ("WRITER_RESULT",)


@pytest.mark.parametrize(
    ("section", "entry", "words"),
    [
        ("tools", {"import": f"{HERE}:search", "efect": "once"}, "tools[0] has the unknown declaration 'efect'. Fix: Write 'effect'"),
        ("tools", {"import": f"{HERE}:search", "exampels": []}, "Fix: Write 'examples'"),
        ("tools", {"imprt": f"{HERE}:search"}, "Fix: Write 'import'"),
        ("tools", {"name": "search"}, "tools[0]: the required key 'import' is missing"),
        ("tools", {"import": f"{HERE}:serach"}, "tools[0].import"),
        ("tools", {"import": f"{HERE}:GRAPH"}, "tools[0]: "),
        ("tools", {"import": f"{HERE}:search", "effect": "twice"}, "tools[0]: "),
        ("tools", {"import": f"{HERE}:search", "requires_approval": {"aprovers": 2}}, "tools[0].requires_approval"),
        ("graphs", {**GRAPH, "inputs": "x"}, "graphs[0] has the unknown declaration 'inputs'. Fix: Write 'input'"),
        ("graphs", {"import": f"{HERE}:pricing"}, "graphs[0]: the required key 'input' is missing"),
        ("graphs", {**GRAPH, "output": f"{HERE}:Ordr"}, "graphs[0].output"),
        ("agents", {"import": f"{HERE}:poet", "services": {}}, "agents[0] has the unknown declaration 'services'"),
        ("agents", {"import": f"{HERE}:Order"}, "agents[0]: "),
    ],
)  # fmt: skip
async def test_invalid_entries_are_reported_with_their_path(
    section: str, entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(CapgraphError) as refused:
        await spec(section, "search", entry)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"url": "http://127.0.0.1:1/mcp", "prefx": "a"}, "mcp[0].prefx: unknown key. Fix: write 'prefix'"),
        ({"prefix": "a"}, "mcp[0]: exactly one of 'command' and 'url'"),
        ({"url": "http://x/mcp", "command": ["x"]}, "exactly one of"),
        ({"command": []}, "mcp[0].command"),
        ({"command": ["x"], "headers": {"a": "b"}}, "'headers' requires 'url'"),
        ({"url": "http://x/mcp", "env": {"a": "b"}}, "'env' requires 'command'"),
        ({"url": "http://x/mcp", "effects": {"pay": "twice"}}, "mcp[0].effects.pay"),
        ({"url": "http://x/mcp", "lables": ["x"]}, "mcp[0].lables: unknown key. Fix: write 'labels'"),
        ({"url": "http://x/mcp", "approve": True, "requires_approval": True}, "'approve' and 'requires_approval'"),
    ],
)  # fmt: skip
def test_mcp_settings_are_validated(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(mcp=[entry])
    assert words in str(refused.value)


async def test_unreachable_server_is_reported_with_its_path() -> None:
    settings = load_settings(mcp=[{"url": "http://127.0.0.1:1/mcp", "timeout_seconds": 5}])
    with pytest.raises(CapgraphError, match=r"mcp\[0\]: "):
        async with open_registry(settings):
            pass
    problems: list[CapgraphError] = []
    async with open_registry(settings, problems) as registry:
        assert not registry.capabilities
    assert len(problems) == 1


def test_server_headers_are_masked() -> None:
    settings = load_settings(mcp=[{"url": "http://x/mcp", "headers": {"Authorization": "hush"}}])
    assert "hush" not in str(settings)


def test_plain_registry_rejects_settings_that_need_opening() -> None:
    with pytest.raises(RegistryError, match="open_registry"):
        Registry.from_settings(Settings(tools=[{"import": f"{HERE}:search"}]))


async def test_configured_capabilities_can_be_excluded_and_replaced() -> None:
    entries = [{"import": f"{HERE}:search"}, {"import": f"{HERE}:search", "name": "find"}]
    async with open_registry(Settings(tools=entries, exclude=["find"])) as registry:
        assert list(registry.capabilities) == ["search"]


async def test_approve_setting_requires_approval_of_tools() -> None:
    server = MCPServer("pier")

    @server.tool()
    def open_gate() -> str:
        """Open the gate."""
        return "open"

    @server.tool()
    def close_gate() -> str:
        """Close the gate."""
        return "closed"

    async def asked(required: Any) -> list[str]:
        async with await mcp_capabilities(server, requires_approval=required) as made:
            found = [one.capability_spec for one in made]
        return [one.name for one in found if one.requires_approval]

    assert await asked({"close_gate": True}) == ["close_gate"]
    assert await asked(True) == ["open_gate", "close_gate"]
    assert await asked(False) == []
    with pytest.raises(ConfigurationError, match="close_gat"):
        await asked({"close_gat": True})


SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("pier")


@server.tool()
def open_gate(gate: str) -> str:
    """Open the gate."""
    return "open"


@server.tool()
def close_gate(gate: str) -> str:
    """Close the gate."""
    return "closed"


server.run("stdio")
'''


@pytest.mark.timeout(120)
async def test_mcp_settings_accept_every_declaration(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    server = {
        "command": [sys.executable, str(tmp_path / "server.py")],
        "prefix": "pier",
        "effects": {"open_gate": "idempotent"},
        "requires_approval": {"close_gate": {"approvers": 2}},
        "examples": {"open_gate": ["let the ship in"]},
        "labels": ["harbour"],
        "removes_labels": {"open_gate": ["secret"]},
        "behaviors": {"open_gate": [{"use": "retry", "max_retries": 1}]},
        "classify_error": f"{HERE}:never_again",
        "gate": {"use": "quality_gate", "check": {"object": f"{HERE}:good"}, "required_level": 2},
        "effect_key": ["gate"],
        "undo": {"close_gate": "pier_open_gate"},
        "max_attempts": {"close_gate": 2},
        "delay_seconds": 0.5,
        "max_parallel": 3,
        "cost_usd": 0.25,
        "queue": "slow",
        "on_unknown": "fail",
        "always_active": True,
        "permission": {"close_gate": "full_access"},
        "large_result": {"open_gate": "file"},
    }
    async with open_registry(load_settings(mcp=[server])) as registry:
        opened, closed = registry.capabilities.values()
    assert (opened.effect, closed.effect) == ("idempotent", "once")
    assert (opened.requires_approval, closed.requires_approval.approvers) == (False, 2)
    assert (opened.examples, closed.examples) == (("let the ship in",), ())
    assert {"harbour", "untrusted"} == set(opened.labels) == set(closed.labels)
    assert (opened.removes_labels, closed.removes_labels) == (("secret",), ())
    assert "RetryBehavior" in [type(one).__name__ for one in opened.behaviors]
    assert "RetryBehavior" not in [type(one).__name__ for one in closed.behaviors]
    assert closed.undo.name == "pier_open_gate"
    assert (opened.large_result, closed.large_result) == ("file", "fail")
    assert closed.cls.get_retry_policy()["max_attempts"] == 2
    assert str(closed.permission) != str(opened.permission)
    for made in (opened, closed):
        assert made.cls.classify_error is never_again
        assert made.gate.check is good
        assert (made.effect_key, made.max_parallel, made.cost_usd) == (("gate",), 3, 0.25)
        assert (made.queue, made.on_unknown, made.always_active) == ("slow", "fail", True)


@pytest.mark.timeout(120)
async def test_approval_policy_applies_to_each_tool(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, str(tmp_path / "server.py")]
    settings = load_settings(mcp=[{"command": command, "requires_approval": {"approvers": 3}}])
    async with open_registry(settings) as registry:
        policies = [spec.requires_approval for spec in registry.capabilities.values()]
    assert [policy.approvers for policy in policies] == [3, 3]
