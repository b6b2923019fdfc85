"""The demonstration agent on the in-memory Agent Server, driven through langgraph-sdk."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_client

ROOT = Path(__file__).parents[2]
QUESTION = "What was the hottest day in the summer of 2015?"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = _free_port()
    folder = tmp_path_factory.mktemp("server")
    log = folder / "server.log"
    command = [
        sys.executable,
        "-m",
        "langgraph_cli",
        "dev",
        "--no-browser",
        "--no-reload",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--config",
        str(ROOT / "langgraph.json"),
    ]
    environment = {
        **os.environ,
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGSMITH_TRACING": "false",
        "CAPGRAPH_CAPABILITIES__PLOTTING__OUTPUT_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
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
@pytest.mark.timeout(120)
async def test_a_run_streams_through_the_sdk(server: str) -> None:
    types: list[str] = []
    nodes: list[str] = []
    async with get_client(url=server) as client, asyncio.timeout(90):
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
    assert types.count("step_finished") >= 3
    assert "plan_made" in types
    assert types[-1] == "turn_finished"
    assert {"begin_turn", "classifier", "orchestrator", "statistics", "respond"} <= set(nodes)
    assert "19 July 2015" in state["values"]["messages"][-1]["content"]
    assert state["values"]["execution_outcome"]["status"] == "completed"


@pytest.mark.service
@pytest.mark.timeout(120)
async def test_the_server_shows_every_node_with_its_description(server: str) -> None:
    async with get_client(url=server) as client:
        (assistant,) = await client.assistants.search(graph_id="demo")
        graph = await client.assistants.get_graph(assistant["assistant_id"])
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert {"classifier", "router", "statistics", "data_retrieval", "memory"} <= set(nodes)
    assert nodes["statistics"]["metadata"]["kind"] == "capability"
