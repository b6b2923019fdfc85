"""Client part of MCP's conformance suite, run against ``mcp_capabilities``."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from tests.conformance.kits import FOLDER, install_node, run_command
from tests.conformance.mcp_client_scenarios import run_scenario
from tests.conformance.mcp_server import REVISIONS, install_suite, read_result
from tests.conformance.report import Result

_SCENARIO_SECONDS = 60
_MAX_PARALLEL = 4
_FAILURES: dict[str, str] = {}
"""Reason of each expected failure, by scenario or ``scenario:check``."""


def run() -> list[Result]:
    """Run the suite for each revision."""
    node, program = install_node(), install_suite()
    return [asyncio.run(_run_revision(node, program, revision)) for revision in REVISIONS]


async def _run_revision(node: Path, program: Path, revision: str) -> Result:
    output = FOLDER / f"mcp-client-{revision}"
    shutil.rmtree(output, ignore_errors=True)
    options = ("list", "--requirements", revision)
    listing = run_command(node, program, *options, timeout_seconds=_SCENARIO_SECONDS).stdout
    scenarios = re.findall(r"^  - (\S+)", listing.partition("Client scenarios")[2], re.MULTILINE)
    slots = asyncio.Semaphore(_MAX_PARALLEL)
    server = await asyncio.start_server(partial(_serve_scenario, revision), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Path(__file__).with_name("mcp_client_program.py")
    command = f"{sys.executable} -I -S {client} {port}"

    async def run_one(scenario: str) -> None:
        limit = ("--timeout", _SCENARIO_SECONDS * 1000)
        chosen = ("--scenario", scenario, "--spec-version", revision, "-o", output)
        parts = (node, program, "client", "--command", command, *limit, *chosen)
        async with slots:
            try:
                await asyncio.to_thread(run_command, *parts, timeout_seconds=2 * _SCENARIO_SECONDS)
            except TimeoutExpired:
                print(f"mcp-client {revision} {scenario}: no result")

    async with server:
        await asyncio.gather(*map(run_one, dict.fromkeys(scenarios)))
    return read_result("client", revision, output, _FAILURES, {})


async def _serve_scenario(
    revision: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run the scenario that the suite's program hands over, and reply with its error."""
    request = json.loads(await reader.readline())
    context = json.loads(request["CONTEXT"] or "{}")
    try:
        await run_scenario(request["url"], request["SCENARIO"], context, revision)
    except Exception as exc:
        writer.write(f"{type(exc).__name__}: {exc}\n".encode())
    writer.close()
