"""The demonstration agent on the in-memory Agent Server, driven through langgraph-sdk."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client

from capgraph import build_graph
from capgraph.adapters import remote_capability
from tests.support.sweeps import LONG

ROOT = Path(__file__).parents[2]
QUESTION = "What was the hottest day in the summer of 2015?"
RISKY = '''
import asyncio
from pathlib import Path

from capgraph import CapabilityContext, capability_node

HERE = Path(__file__).parent


class Valve(CapabilityContext):
    opened: int

    def get_summary(self) -> str:
        return f"Valve {self.opened} is open."


@capability_node(examples=["open the valve", "open valve 2"], requires_approval=True)
async def open_valve(number: int = 1) -> Valve:
    """Open a valve."""
    return Valve(opened=number)


def note(name: str) -> None:
    with (HERE / "acts").open("a") as acts:
        acts.write(name + "\\n")


@capability_node
async def look() -> str:
    """Look at the tank."""
    note("look")
    return "It is full."


@capability_node(effect="once")
async def drain(seen: str) -> str:
    """Empty the tank."""
    note("drain")
    while (HERE / "hold").exists():
        await asyncio.sleep(0.05)
    return "It is empty."
'''
STEPS: list[dict[str, Any]] = [
    {"context_key": "seen", "capability": "look", "task_objective": "Look"},
    {
        "context_key": "done",
        "capability": "drain",
        "task_objective": "Empty it",
        "parameters": {"seen": {"$from": "seen"}},
    },
]
EMPTY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go"}],
    "planning_execution_plan": {"steps": STEPS},
}


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """An Agent Server, its folder, and what the capabilities there have done."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("langgraph_cli", reason="needs langgraph-cli[inmem]")
        self.folder = folder
        self.hold = folder / "hold"
        self.url = f"http://127.0.0.1:{find_free_port()}"
        (folder / "risky_valves.py").write_text(RISKY)
        (folder / "agent.yml").write_text("modules: [risky_valves]\n")
        served = json.loads((ROOT / "langgraph.json").read_text())
        served["graphs"]["own"] = "capgraph.cli.serve:configured"
        (folder / "langgraph.json").write_text(json.dumps(served))

    def start(self) -> None:
        folder, log = self.folder, self.folder / "server.log"
        command = [
            sys.executable,
            *("-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"),
            *("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]),
            *("--config", str(folder / "langgraph.json")),
        ]
        environment = {
            **os.environ,
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGSMITH_TRACING": "false",
            "CAPGRAPH_CAPABILITIES__PLOTTING__OUTPUT_DIR": str(folder),
            "CAPGRAPH_CONFIG": str(folder / "agent.yml"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        }
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
            )
        _wait(self.url, self.process, log)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def acts(self) -> list[str]:
        acts = self.folder / "acts"
        return acts.read_text().split() if acts.exists() else []

    async def until(self, *acts: str) -> None:
        async with asyncio.timeout(60):
            while self.acts != list(acts):
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> str:
    return running.url


@pytest.fixture
def tank(running: Server) -> Iterator[Server]:
    """The server whose capability ``drain`` ends when ``hold`` is gone."""
    running.hold.touch()
    (running.folder / "acts").unlink(missing_ok=True)
    yield running
    running.hold.unlink(missing_ok=True)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1000):
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/ok", timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.25)
    pytest.fail(f"The Agent Server did not start:\n{log.read_text()[-3000:]}")


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_a_run_streams_through_the_sdk(server: str) -> None:
    types: list[str] = []
    nodes: list[str] = []
    async with get_client(url=server) as client, asyncio.timeout(400):
        thread = await client.threads.create()
        async for part in client.runs.stream(
            thread["thread_id"],
            "demo",
            input={"messages": [{"role": "user", "content": QUESTION}]},
            stream_mode=["custom", "updates"],
        ):
            if part.event == "custom":
                types.append(part.data["event_type"])
            elif part.event == "updates":
                nodes += list(part.data)
            assert part.event != "error", part.data
        state = await client.threads.get_state(thread["thread_id"])
    assert types.count("step_finished") >= 1
    assert "plan_made" in types
    assert types[-1] == "turn_finished"
    assert {"begin_turn", "classifier", "orchestrator", "query_data", "respond"} <= set(nodes)
    assert "19 July 2015" in state["values"]["messages"][-1]["content"]
    assert state["values"]["execution_outcome"]["status"] == "completed"


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_the_server_shows_every_node_with_its_description(server: str) -> None:
    async with get_client(url=server) as client:
        (assistant,) = await client.assistants.search(graph_id="demo")
        graph = await client.assistants.get_graph(assistant["assistant_id"])
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert {"classifier", "router", "query_data", "plotting", "memory"} <= set(nodes)
    assert nodes["query_data"]["metadata"]["kind"] == "capability"


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_a_person_answers_through_the_server(server: str) -> None:
    async with get_client(url=server) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        asked = {"messages": [{"role": "user", "content": "open the valve"}]}
        await client.runs.wait(thread, "own", input=asked)
        state = await client.threads.get_state(thread)
        (question,) = [i for task in state["tasks"] for i in task["interrupts"]]
        (step,) = question["value"]["steps"]
        assert step["capability"] == "open_valve"
        key = step["context_key"]

        await client.runs.wait(thread, "own", command={"resume": {key: {"decision": "maybe"}}})
        state = await client.threads.get_state(thread)
        (question,) = [i for task in state["tasks"] for i in task["interrupts"]]
        assert "decision" in question["value"]["problems"][0]

        edited = {key: {"decision": "edit", "parameters": {"number": 2}}}
        await client.runs.wait(thread, "own", command={"resume": edited})
        state = await client.threads.get_state(thread)
    assert state["values"]["messages"][-1]["content"] == "Valve 2 is open."
    assert state["values"]["execution_outcome"]["status"] == "completed"


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_a_graph_of_a_server_is_a_step_whose_thread_is_kept(server: str) -> None:
    remote = await asyncio.to_thread(RemoteGraph, "own", url=server)
    saver = InMemorySaver()
    steps = [{"context_key": "v", "capability": "valves", "task_objective": "open the valve"}]
    given = {"messages": [("user", "go")], "planning_execution_plan": {"steps": steps}}
    thread: Any = {"configurable": {"thread_id": "1"}}
    async with asyncio.timeout(400), get_client(url=server) as client:
        before = {one["thread_id"] for one in await client.threads.search(limit=100)}
        graph = build_graph([remote_capability(remote, "valves")], checkpointer=saver)
        out = await graph.ainvoke(given, thread)
        # What the graph over there asks is this step's question.
        (asked,) = out["__interrupt__"]
        assert asked.value["type"] == "approval"
        # Another process goes on, in the same thread over there.
        graph = build_graph([remote_capability(remote, "valves")], checkpointer=saver)
        out = await graph.ainvoke(Command(resume="approve"), thread)
        assert out["capability_context_data"]["VALVES_RESULT"]["v"]["output"] == "Valve 1 is open."
        (own,) = {one["thread_id"] for one in await client.threads.search(limit=100)} - before
        assert len(await client.runs.list(own)) == 2


long = pytest.mark.skipif(not LONG, reason="takes long (LONG_TESTS=1)")


async def _asked(client: Any, thread: str) -> list[Any]:
    state = await client.threads.get_state(thread)
    return [one["value"] for task in state["tasks"] for one in task["interrupts"]]


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_an_interrupted_run_goes_on_and_asks_about_the_effect(tank: Server) -> None:
    async with get_client(url=tank.url) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "own", input=EMPTY)
        await tank.until("look", "drain")
        await client.runs.cancel(thread, run["run_id"], wait=True)
        await client.runs.wait(thread, "own", input=None)
        (question,) = await _asked(client, thread)
        (step,) = question["steps"]
        assert step["kind"] == "unknown_outcome"
        tank.hold.unlink()
        answer = {"done": {"decision": "done", "outputs": {"DRAIN": {"value": "It is empty."}}}}
        await client.runs.wait(thread, "own", command={"resume": answer})
        state = await client.threads.get_state(thread)
    assert state["values"]["execution_outcome"]["status"] == "completed"
    assert tank.acts == ["look", "drain"]


@long
@pytest.mark.service
@pytest.mark.timeout(600)
async def test_what_is_rolled_back_is_forgotten_and_may_act_again(tank: Server) -> None:
    async with get_client(url=tank.url) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "own", input=EMPTY)
        await tank.until("look", "drain")
        await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
        tank.hold.unlink()
        await client.runs.wait(thread, "own", input=EMPTY)
    assert tank.acts == ["look", "drain"] * 2


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_runs_of_a_thread_follow_one_another(tank: Server) -> None:
    async with get_client(url=tank.url) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        runs = [await client.runs.create(thread, "own", input=EMPTY) for _ in range(2)]
        await tank.until("look", "drain")
        assert {run["status"] for run in await client.runs.list(thread)} == {"running", "pending"}
        tank.hold.unlink()
        for run in runs:
            await client.runs.join(thread, run["run_id"])
    assert tank.acts == ["look", "drain"] * 2


@pytest.mark.service
@pytest.mark.timeout(600)
async def test_what_a_caller_may_not_send_is_refused_there_too(server: str) -> None:
    async with get_client(url=server) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        given = {"messages": [{"role": "user", "content": "go"}], "control_budget": {"plans": 0}}
        with pytest.raises(Exception, match="control_budget"):
            await client.runs.wait(thread, "own", input=given)


@long
@pytest.mark.service
@pytest.mark.timeout(600)
async def test_nothing_there_wakes_a_turn_but_a_run_of_its_thread(server: str) -> None:
    waits = {**STEPS[0], "wait_until": "1s"}
    given = {**EMPTY, "planning_execution_plan": {"steps": [waits]}}
    async with get_client(url=server) as client, asyncio.timeout(400):
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "own", input=given)
        state = await client.threads.get_state(thread)
        assert state["values"]["execution_outcome"]["status"] == "waiting"
        await asyncio.sleep(2)
        state = await client.threads.get_state(thread)
        assert state["values"]["execution_outcome"]["status"] == "waiting"
        await client.runs.wait(thread, "own", input=None)
        state = await client.threads.get_state(thread)
    assert state["values"]["execution_outcome"]["status"] == "completed"


@pytest.mark.service
@pytest.mark.may_block
@pytest.mark.timeout(600)
@long
async def test_a_killed_server_asks_about_the_effect(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    server.hold.touch()
    try:
        async with get_client(url=server.url) as client, asyncio.timeout(400):
            thread = (await client.threads.create())["thread_id"]
            await client.runs.create(thread, "own", input=EMPTY)
            await server.until("look", "drain")
            await asyncio.sleep(25)  # the in-memory server writes every ten seconds
            server.process.kill()
            server.process.wait()
            server.hold.unlink()
            server.start()
            while not await _asked(client, thread):
                await asyncio.sleep(0.2)
        assert server.acts == ["look", "drain"]
    finally:
        server.stop()
