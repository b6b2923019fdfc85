"""CopilotKit's runtime and chat in Chromium against a served agent.

The page is bundled from npm packages; see ``copilotkit_page.jsx`` and ``copilotkit_server.mjs``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from capgraph import capability_node
from tests.conformance.agui_client import CAPABILITIES, make_app
from tests.conformance.browser import SECONDS, require_browser, run_checks
from tests.conformance.kits import UnavailableError, install_npm_packages
from tests.conformance.report import Result
from tests.support.listening import on_loopback
from tests.support.served import Level, OpenValve

VERSION = "1.74.0"
PACKAGES = (
    *(f"@copilotkit/{name}@{VERSION}" for name in ("runtime", "react-core")),
    *("react@19.3.1", "react-dom@19.3.1", "esbuild@0.28.2"),
)
_FILES = [Path(__file__).with_name(f"copilotkit_{name}") for name in ("page.jsx", "server.mjs")]


@capability_node(examples=["wait for the rain"])
async def wait_for_rain() -> Level:
    """Wait for the rain."""
    await asyncio.sleep(600)
    return Level(litres=9)


def run() -> list[Result]:
    """Ask, watch the plan, approve, and stop in the browser."""
    if (node := shutil.which("node")) is None:
        raise UnavailableError("Node.js is not installed.")
    require_browser()
    folder = install_npm_packages("copilotkit", *PACKAGES)
    for file in _FILES:  # Node.js looks for packages in the folders above a script
        shutil.copy(file, folder)
    return [asyncio.run(_run(node, folder))]


async def _run(node: str, folder: Path) -> Result:
    app = partial(make_app, stops=True, capabilities=[*CAPABILITIES, wait_for_rain])
    async with (
        on_loopback(app) as agent_url,
        _page_server(node, folder, agent_url) as page_url,
        httpx.AsyncClient(base_url=agent_url) as http,
    ):
        name = f"AG-UI client, CopilotKit {VERSION} in Chromium"
        return await run_checks(
            name, "1.0", CHECKS, lambda: f"{page_url}/?thread={uuid.uuid4().hex}", http
        )


@contextlib.asynccontextmanager
async def _page_server(node: str, folder: Path, agent_url: str) -> AsyncIterator[str]:
    environment = {**os.environ, "COPILOTKIT_TELEMETRY_DISABLED": "true"}
    process = await asyncio.create_subprocess_exec(
        *(node, folder / _FILES[1].name, agent_url),
        stdout=subprocess.PIPE,
        env=environment,
        cwd=folder,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ask(page: Any, text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.get_by_role("textbox").press("Enter")


async def _wait_for_run(page: Any, http: httpx.AsyncClient, status: str) -> None:
    thread = page.url.rpartition("=")[2]
    async with asyncio.timeout(SECONDS):
        while True:
            runs = (await http.get(f"/api/threads/{thread}")).json().get("runs") or [{}]
            if runs[0].get("status") == status:
                return
            await asyncio.sleep(0.2)


async def ask_and_watch(page: Any, http: httpx.AsyncClient) -> None:
    """Ask a question, and see the plan and the answer."""
    await _ask(page, "Fill the tank")
    await page.get_by_test_id("plan").get_by_text("done").first.wait_for()
    await page.get_by_text(re.compile(r"\b9\b")).first.wait_for()
    await _wait_for_run(page, http, "completed")


async def approve(page: Any, http: httpx.AsyncClient) -> None:
    """Approve a step."""
    before = len(OpenValve.opened)
    await _ask(page, "Open the valve of the tank")
    await page.get_by_test_id("approve").click()
    await _wait_for_run(page, http, "completed")
    assert len(OpenValve.opened) == before + 1


async def stop(page: Any, http: httpx.AsyncClient) -> None:
    """Stop a run with the stop button."""
    await _ask(page, "Wait for the rain")
    await page.get_by_test_id("plan").get_by_text("running").first.wait_for()
    await page.get_by_test_id("copilot-send-button").click()
    await _wait_for_run(page, http, "stopped")


CHECKS = [ask_and_watch, approve, stop]
