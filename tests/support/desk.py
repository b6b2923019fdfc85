"""An application whose tool, graph, agent, and MCP server are configured in one file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx

from tests.support import PATIENCE

APP = '''
from typing import TypedDict

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph

from capgraph import CapabilityContext, capability_node
from capgraph.testing import ScriptedModel


class Order(CapabilityContext):
    amount: int


class Price(CapabilityContext):
    total: int

    def get_summary(self) -> str:
        return f"The price is {self.total}."


class State(TypedDict):
    amount: int
    total: int


@capability_node
async def order() -> Order:
    """Find the order."""
    return Order(amount=21)


@tool
def search(query: str = "tides") -> str:
    """Search the archive."""
    return f"Found a map of {query}."


builder = StateGraph(State).add_node("add", lambda state: {"total": state["amount"] * 2})
pricing = builder.add_edge(START, "add").compile(name="pricing")
poet = create_agent(ScriptedModel(responses=["Roses are red."] * 9), [], name="poet")
'''
SERVER = '''
import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

Path("server.pid").write_text(str(os.getpid()))
server = MCPServer("pier")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def tide(harbour: str = "Oslo") -> str:
    """Tell the height of the tide."""
    return f"The tide at {harbour} is {os.environ['HEIGHT']} m."


@server.tool()
def close_gate() -> str:
    """Close the gate of the lock."""
    return "closed"


server.run("stdio")
'''
CONFIG = """\
name: desk
modules: [desk_app]
tools:
  - import: "desk_app:search"
    effect: none
    timeout_seconds: 20
graphs:
  - import: "desk_app:pricing"
    input: "desk_app:Order"
    output: "desk_app:Price"
    description: Compute the price of the order.
agents:
  - import: "desk_app:poet"
    description: Write a poem.
    requires_approval: {approvers: 1}
mcp:
  - command: ["PYTHON", server.py]
    env: {HEIGHT: "1.5"}
    prefix: pier
    approve: [close_gate]
approvals: {callers_may_disable: true}
"""
SET = """
version: 1
name: desk
config: capgraph.yml
cases:
  - {name: tool, request: Search the archive, capabilities: [search]}
  - {name: graph, request: Compute the price of the order, capabilities: [order, pricing]}
  - {name: mcp, request: Tell the height of the tide, capabilities: [pier_tide], answer: [{number: 1.5}]}
  - {name: agent, request: Write a poem, capabilities: [poet], outcome: waiting}
"""
ANSWERS = {
    "Search the archive": "Found a map of tides.",
    "Compute the price of the order": "The price is 42.",
    "Tell the height of the tide": "The tide at Oslo is 1.5 m.",
}
STEPS = [
    {"context_key": "found", "capability": "search"},
    {"context_key": "ordered", "capability": "order"},
    {"context_key": "price", "capability": "pricing", "inputs": [{"ORDER": "ordered"}]},
    {"context_key": "tide", "capability": "pier_tide", "parameters": {"harbour": "Bergen"}},
]
STEP_ANSWERS = ("a map of tides", "The price is 42", "The tide at Bergen is 1.5 m.")


def write_desk(folder: Path, python: str) -> None:
    """Write the application; ``python`` runs its MCP server."""
    files = {"desk_app.py": APP, "server.py": SERVER, "capgraph.yml": CONFIG, "set.yml": SET}
    for name, text in files.items():
        (folder / name).write_text(text.replace("PYTHON", python), encoding="utf-8")


def has_ended(folder: Path) -> bool:
    """Return whether the MCP server that was started last has ended."""
    process = int((folder / "server.pid").read_text())
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def run_plan(url: str, login: str, plan: Any) -> str:
    """Run a plan on the server and return its answer."""
    with httpx.Client(base_url=url, timeout=PATIENCE, follow_redirects=True) as client:
        assert client.get(login).status_code == 200
        client.headers["origin"] = url.rstrip("/")
        thread = client.post("/api/threads", json={}).json()["thread_id"]
        begun = client.post(f"/api/threads/{thread}/runs", json={"plan": plan})
        assert begun.status_code < 300, begun.text
        run = begun.json()["run_id"]
        with client.stream("GET", f"/api/runs/{run}/events") as events:
            assert [line for line in events.iter_lines() if "RUN_FINISHED" in line]
        return str(client.get(f"/api/threads/{thread}").json())
