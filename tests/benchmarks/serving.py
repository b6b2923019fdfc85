"""How long an event takes from a run to a client, against a bare stream of the same events.

``make bench-serve`` starts two servers on loopback in processes of their own: the served agent and
a Starlette application that streams the same numbers at the same pace from memory. Clients in this
process follow both; each event says when it was made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEEPS_LITTLE = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Of the C library: what it keeps to give out again later is not what a turn leaves behind."""


def memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


# --- what is served ---------------------------------------------------------------------------


def _ticker() -> Any:
    from capgraph import CapabilityContext, capability_node
    from capgraph.telemetry import Status, emit

    class Ticked(CapabilityContext):
        count: int

    @capability_node
    async def tick(events: int = 100, pause: float = 0.02) -> Ticked:
        """Tell so many events."""
        for number in range(events):
            emit(Status(message=repr(time.time()), component="tick", progress=number / events))
            await asyncio.sleep(pause)
        return Ticked(count=events)

    return tick


async def _serve_agent(url: str, listening: socket.socket) -> None:
    from capgraph import build_graph
    from capgraph.base.ports import Caller
    from capgraph.configs.settings import Settings
    from capgraph.serve.app import create_app
    from capgraph.serve.server import Server
    from capgraph.stores import open_saver

    class Anybody:
        async def caller(self, _: Any) -> Caller:
            return Caller("ann", authenticated=True)

    serve = {"requests_per_minute": 1e6, "max_active_runs_per_user": 1000}
    async with open_saver(url) as saver:
        # All runs at once: the default would have them wait for slots of the process.
        settings = Settings(serve=serve, limits={"max_parallel": 1000})
        graph = build_graph([_ticker()], checkpointer=saver, settings=settings)
        app = create_app(graph, auth=Anybody())
        await Server(app, listening, lambda: None).listen()


async def _serve_bare(listening: socket.socket) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def events(request: Request) -> StreamingResponse:
        count = int(request.query_params["events"])
        pause = float(request.query_params["pause"])
        size = int(request.query_params["size"])

        async def told() -> AsyncIterator[bytes]:
            for number in range(count):
                event = {"name": "capgraph.status", "value": {"message": repr(time.time())}}
                event["padding"] = "x" * max(0, size - 100)
                yield f"id: {number + 1}\ndata: {json.dumps(event)}\n\n".encode()
                await asyncio.sleep(pause)

        return StreamingResponse(told(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/events", events)])
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
    await uvicorn.Server(config).serve([listening])


# --- who listens ------------------------------------------------------------------------------


async def _follow(port: int, path: str, seen: list[float], sizes: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            now = time.time()
            if line.startswith(b"data: ") and b'"capgraph.status"' in line:
                made = json.loads(line[6:])["value"]["message"]
                if made[:1].isdigit():
                    seen.append(now - float(made))
                    sizes.append(len(line))
            if line.startswith(b"0\r\n") or b'"RUN_FINISHED"' in line:
                return
    finally:
        writer.close()


async def _post(port: int, path: str, body: Any) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def _told(name: str, seen: list[float], wanted: int) -> dict[str, float]:
    found = sorted(1000 * one for one in seen)
    p99 = found[int(len(found) * 0.99)]
    print(
        f"{name:<28} {len(found):>7} of {wanted:>7} events"
        f"   median {statistics.median(found):7.2f} ms   99th {p99:8.2f} ms"
    )
    return {"median": statistics.median(found), "p99": p99}


async def _measure(ports: tuple[int, int], pids: tuple[int, int], options: Any) -> None:
    agent, bare = ports
    plan = {"steps": [{"context_key": "t", "capability": "tick",
                       "parameters": {"events": options.events, "pause": options.pause}}]}  # fmt: skip
    warm = {"steps": [{**plan["steps"][0], "parameters": {"events": 5, "pause": 0.0}}]}
    for wanted in (warm, plan):
        seen, sizes = [], []
        runs = []
        for _ in range(options.runs if wanted is plan else 1):
            thread = (await _post(agent, "/api/threads", {}))["thread_id"]
            runs.append(thread)
        before = memory_of(pids[0])
        ids = await asyncio.gather(
            *(_post(agent, f"/api/threads/{one}/runs", {"plan": wanted}) for one in runs)
        )
        paths = [f"/api/runs/{one['run_id']}/events" for one in ids] * options.listeners
        following = [asyncio.create_task(_follow(agent, path, seen, sizes)) for path in paths]
        await asyncio.sleep(options.events * options.pause / 2)
        held = memory_of(pids[0]) - before
        await asyncio.gather(*following)
    count = len(paths) * options.events
    ours = _told(f"served ({len(paths)} streams)", seen, count)
    seen = []
    size = int(statistics.mean(sizes))
    path = f"/events?events={options.events}&pause={options.pause}&size={size}"
    before = memory_of(pids[1])
    following = [asyncio.create_task(_follow(bare, path, seen, [])) for _ in range(len(paths))]
    await asyncio.sleep(options.events * options.pause / 2)
    bare_held = memory_of(pids[1]) - before
    await asyncio.gather(*following)
    theirs = _told(f"bare ({len(paths)} streams)", seen, count)
    print(f"served / bare: median {ours['median'] / theirs['median']:.2f},"
          f" 99th {ours['p99'] / theirs['p99']:.2f}")  # fmt: skip
    print(f"memory a stream, with its share of the runs: served {held / len(paths) / 1000:.0f} kB,"
          f" bare {bare_held / len(paths) / 1000:.0f} kB")  # fmt: skip


async def _grow(port: int, pid: int, turns: int) -> None:
    """Run turns without pauses, ten at once, and print what memory they leave behind."""
    warm = {"steps": [{"context_key": "t", "capability": "tick",
                       "parameters": {"events": 5, "pause": 0.0}}]}  # fmt: skip

    async def some(count: int) -> None:
        for _ in range(count):
            thread = (await _post(port, "/api/threads", {}))["thread_id"]
            run = (await _post(port, f"/api/threads/{thread}/runs", {"plan": warm}))["run_id"]
            await _follow(port, f"/api/runs/{run}/events", [], [])

    held = []
    for _ in range(4):
        await asyncio.gather(*(some(turns // 40) for _ in range(10)))
        held.append(memory_of(pid))
    print(
        f"memory after each quarter of {turns // 40 * 40:,} turns:"
        f" {', '.join(f'{one / 1e6:.1f}' for one in held)} MB;"
        f" a turn of the last quarter leaves {(held[3] - held[2]) / (turns // 40 * 10) / 1000:.2f} kB"
    )


def main() -> None:
    """Measure, or serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--listeners", type=int, default=5)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=0, help="turns that must leave no memory")
    parser.add_argument("--db", default="")
    parser.add_argument("--serve", choices=("agent", "bare"))
    parser.add_argument("--fd", type=int)
    options = parser.parse_args()
    if options.serve:
        listening = socket.socket(fileno=options.fd)
        serving = (
            _serve_agent(options.db, listening)
            if options.serve == "agent"
            else _serve_bare(listening)
        )
        asyncio.run(serving)
        return
    with tempfile.TemporaryDirectory() as folder:
        db = options.db or f"sqlite:///{folder}/threads.db"
        processes, ports = [], []
        for kind in ("agent", "bare"):
            with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
                fd = listening.fileno()
                command = [sys.executable, "-m", "tests.benchmarks.serving", "--serve", kind]
                processes.append(
                    subprocess.Popen(
                        [*command, "--fd", str(fd), "--db", db], pass_fds=[fd], cwd=ROOT,
                        env={**os.environ, "PYTHONPATH": str(ROOT), **KEEPS_LITTLE},
                    )
                )  # fmt: skip
                ports.append(listening.getsockname()[1])
        try:
            pids = (processes[0].pid, processes[1].pid)
            asyncio.run(_measure((ports[0], ports[1]), pids, options))
            if options.turns:
                asyncio.run(_grow(ports[0], pids[0], options.turns))
        finally:
            for process in processes:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
