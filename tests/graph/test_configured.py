"""An application whose tool, graph, agent and MCP server stand in its configuration alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]
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
CONFIG = f"""\
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
    requires_approval: {{approvers: 1}}
mcp:
  - command: ["{sys.executable}", server.py]
    env: {{HEIGHT: "1.5"}}
    prefix: pier
    approve: [close_gate]
approvals: {{callers_may_disable: true}}
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

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(600)]
Capgraph = Callable[..., subprocess.CompletedProcess[str]]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(folder / "data")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert len(CONFIG.splitlines()) <= 25
    for name, text in {
        "desk_app.py": APP,
        "server.py": SERVER,
        "capgraph.yml": CONFIG,
        "set.yml": SET,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def capgraph(folder: Path) -> Capgraph:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "capgraph", *words],
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def _has_ended(folder: Path) -> bool:
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


def test_ask_uses_each_of_them_and_closes_the_server(capgraph: Capgraph, folder: Path) -> None:
    for question, answer in {
        "Search the archive": "Found a map of tides.",
        "Compute the price of the order": "The price is 42.",
        "Tell the height of the tide": "The tide at Oslo is 1.5 m.",
    }.items():
        done = capgraph("ask", question, "-q")
        assert answer in done.stdout, done.stdout + done.stderr
        assert _has_ended(folder)
    for question in ("Write a poem", "Close the gate of the lock"):
        assert capgraph("ask", question, "--plain").returncode == 4, "a person is asked first"
    assert "Roses are red." in capgraph("ask", "Write a poem", "--yes", "-q").stdout


def test_eval_uses_each_of_them_and_closes_the_server(capgraph: Capgraph, folder: Path) -> None:
    done = capgraph("eval", "set.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _has_ended(folder)


def test_check_and_capabilities_list_each_of_them(capgraph: Capgraph, folder: Path) -> None:
    listed = json.loads(capgraph("capabilities", "--json").stdout)
    told = {row["name"]: (row["effect"], row["approval"]) for row in listed}
    assert told == {
        "order": ("none", "no"),
        "search": ("none", "no"),
        "pricing": ("none", "no"),
        "poet": ("none", "yes"),
        "pier_tide": ("none", "no"),
        "pier_close_gate": ("once", "yes"),
    }
    findings = json.loads(capgraph("check", "--json", "--no-ask-models").stdout)
    good = {finding["area"] for finding in findings if finding["level"] == "ok"}
    assert {"tools[0]", "graphs[0]", "agents[0]", "mcp[0]"} <= good
    assert not [finding for finding in findings if finding["level"] == "error"]
    assert _has_ended(folder)


def test_check_reports_each_entry_that_fails_and_goes_on(capgraph: Capgraph, folder: Path) -> None:
    config = yaml.safe_load(CONFIG)
    config["tools"][0]["import"] = "desk_app:serach"
    config["agents"][0]["import"] = "no_such_module:poet"
    config["mcp"][0]["command"] = ["no-such-program"]
    (folder / "capgraph.yml").write_text(yaml.safe_dump(config))
    done = capgraph("check", "--json", "--no-ask-models")
    errors = [one["text"] for one in json.loads(done.stdout) if one["level"] == "error"]
    assert [text.split(":")[0].split(".")[0] for text in errors] == [
        "tools[0]",
        "agents[0]",
        "mcp[0]",
    ]
    refused = capgraph("ask", "Search the archive")
    assert refused.returncode == 2
    assert "tools[0]" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_serve_uses_each_of_them_and_closes_the_server(folder: Path) -> None:
    words = ("serve", "--port", "0", "--db", "threads.db", "--no-open")
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "capgraph", *words],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line, (folder / "err").read_text()
        steps = [
            {"context_key": "found", "capability": "search"},
            {"context_key": "ordered", "capability": "order"},
            {"context_key": "price", "capability": "pricing", "inputs": [{"ORDER": "ordered"}]},
            {"context_key": "tide", "capability": "pier_tide", "parameters": {"harbour": "Bergen"}},
        ]
        answer = _run(line[1], line[2], {"steps": steps})
        assert all(
            text in answer
            for text in ("a map of tides", "The price is 42", "The tide at Bergen is 1.5 m.")
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()  # type: ignore[union-attr]
    assert _has_ended(folder)


def _run(url: str, login: str, plan: Any) -> str:
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
