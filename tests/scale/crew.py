"""Workers as processes, and whoever asks them for turns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from capgraph import Registry, build_graph
from capgraph.configs.settings import Settings
from capgraph.scale import Client, Worker, open_engine
from tests.scale import toys

ROOT = Path(__file__).parents[2]
LEASE = 3.0
PATIENCE = 60.0


def step(key: str, capability: str, *levels: str) -> dict[str, Any]:
    inputs = [{"LEVEL": level} for level in levels]
    return {"context_key": key, "capability": capability, "task_objective": key, "inputs": inputs}


FILL = {"steps": [step("a", "read_level"), step("f", "fill_tank", "a")]}
VALVE = {"steps": [step("a", "read_level"), step("v", "open_valve", "a")]}
READ = {"steps": [step("a", "read_level")]}
BLOCK = {"steps": [step("a", "read_level"), step("b", "block_tank", "a")]}


def tank(**settings: Any) -> Any:
    """Return the graph that the workers run, without a saver."""
    registry = Registry()
    for kind in (toys.Level, toys.Filled, toys.Film):
        registry.register(kind)
    tools = (toys.read_level, toys.fill_tank, toys.block_tank, toys.film_tank)
    for capability in (*tools, toys.OpenValve, toys.SealTank):
        registry.register(capability)
    return build_graph(registry, settings=Settings(scale={"lease_seconds": LEASE}, **settings))


class Crew:
    """A database, an engine, and processes that work."""

    def __init__(self, folder: Path, server: Any, engine: str, temporal: str | None) -> None:
        self.folder, self.server, self.engine, self.temporal = folder, server, engine, temporal
        self.url = server.database()
        self.log, self.gate = folder / "toy.log", folder / "toy.gate"
        self.workers: list[subprocess.Popen[str]] = []
        # Names of workflows are the same for all databases.
        self.mark = uuid.uuid4().hex[:8]

    def __enter__(self) -> Self:
        shutil.copy(toys.__file__, self.folder / "scale_toys.py")
        config = f"modules: [scale_toys]\nscale: {{lease_seconds: {LEASE}}}\n"
        (self.folder / "agent.yml").write_text(config)
        self.log.touch()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    def named(self, thread: str) -> str:
        return f"{thread}-{self.mark}"

    # --- processes ------------------------------------------------------------------------

    def _command(self, command: Sequence[str]) -> list[str]:
        where = ["--db", self.url, "--config", str(self.folder / "agent.yml")]
        return [sys.executable, "-m", "capgraph", *command, *where]

    def _how(self) -> list[str]:
        return ["--engine", self.engine, *(["--temporal", self.temporal] if self.temporal else [])]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        toy = {"TOY_LOG": str(self.log), "TOY_GATE": str(self.gate)}
        return {**os.environ, **toy, "PYTHONPATH": str(ROOT), **more}

    def launch(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start a worker, and do not wait for it."""
        with (self.folder / "errors").open("a") as errors:
            worker = subprocess.Popen(
                self._command(["worker", *self._how(), *options]),
                env=self._environment(environment),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.workers.append(worker)
        return worker

    def ready(self, worker: subprocess.Popen[str]) -> str:
        """Wait until a worker takes orders; returns its id."""
        assert worker.stdout is not None
        word, name, ready = (worker.stdout.readline() or self.errors()).split()
        assert (word, ready) == ("worker", "ready"), self.errors()
        return name

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        worker = self.launch(*options, **environment)
        self.ready(worker)
        return worker

    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    def run(
        self, *command: str, code: int = 0, text: str | None = None, engine: bool = True
    ) -> str:
        """Run a command to its end; returns what it printed."""
        how = self._how() if engine else []
        done = subprocess.run(
            self._command([*command, *how]),
            env=self._environment({}),
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout.strip() if not code else done.stderr

    def plan(self, plan: dict[str, Any]) -> str:
        file = self.folder / f"{uuid.uuid4().hex}.json"
        file.write_text(json.dumps(plan))
        return str(file)

    def notes(self) -> list[str]:
        return self.log.read_text().splitlines()

    def end(self, worker: subprocess.Popen[str]) -> int:
        worker.send_signal(signal.SIGTERM)
        return worker.wait(PATIENCE)

    # --- in this process ------------------------------------------------------------------

    def client(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[Client]:
        graph = tank(**settings)
        return open_engine(self.url, graph=graph, engine=self.engine, temporal=self.temporal)

    @contextlib.asynccontextmanager
    async def worker(
        self, *queues: str, concurrency: int = 10, **settings: Any
    ) -> AsyncIterator[Worker]:
        """Have a worker in this process for the length of a block."""
        async with self.client(**settings) as client:
            one = Worker(client, queues or ["turns"], concurrency=concurrency)
            running = asyncio.create_task(one.run())
            await one.ready.wait()
            try:
                yield one
            finally:
                one.drain(0.1)
                await running

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Wait until something holds; returns what was found."""
        end = time.monotonic() + PATIENCE
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            assert time.monotonic() < end, self.errors()
            await asyncio.sleep(0.05)

    async def over(self, client: Client, *threads: str) -> list[str]:
        """Wait until threads have nothing to do; returns how they are."""

        async def ended() -> list[str] | None:
            found = [(await client.status(thread)).status for thread in threads]
            return None if {"queued", "running"} & set(found) else found

        found: list[str] = await self.until(ended)
        return found

    async def asked(self, client: Client, thread: str) -> str:
        """Wait until a person is asked; returns the id of the question."""

        async def open_() -> list[str]:
            return list((await client.status(thread)).questions)

        return str((await self.until(open_))[0])


async def told(client: Client, thread: str, ends: int, after: int = 0) -> list[dict[str, Any]]:
    """Read a thread's events until so many of its runs have ended."""
    found: list[dict[str, Any]] = []
    async for event in client.events(thread, after):
        found.append(event)
        ends -= event["type"] in {"RUN_FINISHED", "RUN_ERROR"}
        if not ends:
            break
    return found
