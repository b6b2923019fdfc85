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
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from capgraph import capability_node
from tests.conformance.agui_client import CAPABILITIES, make_app
from tests.conformance.kits import UnavailableError, install_npm_packages
from tests.conformance.report import Result
from tests.support.listening import on_loopback
from tests.support.served import Level, OpenValve

VERSION = "1.74.0"
PACKAGES = (
    *(f"@copilotkit/{name}@{VERSION}" for name in ("runtime", "react-core")),
    *("react@19.3.1", "react-dom@19.3.1", "esbuild@0.28.2"),
)
BROWSER = Path("/usr/bin/chromium")
_FILES = [Path(__file__).with_name(f"copilotkit_{name}") for name in ("page.jsx", "server.mjs")]
_SECONDS = 90.0


@capability_node(examples=["wait for the rain"])
async def wait_for_rain() -> Level:
    """Wait for the rain."""
    await asyncio.sleep(600)
    return Level(litres=9)


def run() -> list[Result]:
    """Ask, watch the plan, approve, and stop in the browser."""
    if (node := shutil.which("node")) is None:
        raise UnavailableError("Node.js is not installed.")
    if not BROWSER.exists():
        raise UnavailableError("Chromium is not installed.")
    folder = install_npm_packages("copilotkit", *PACKAGES)
    for file in _FILES:  # Node.js looks for packages in the folders above a script
        shutil.copy(file, folder)
    return [asyncio.run(_run(node, folder))]


async def _run(node: str, folder: Path) -> Result:
    from playwright.async_api import async_playwright

    failed: dict[str, str] = {}
    app = partial(make_app, stops=True, capabilities=[*CAPABILITIES, wait_for_rain])
    async with (
        on_loopback(app) as agent_url,
        _page_server(node, folder, agent_url) as page_url,
        async_playwright() as playwright,
        httpx.AsyncClient(base_url=agent_url) as http,
    ):
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=str(BROWSER), args=flags)
        for check in CHECKS:
            page = await browser.new_page()
            page.set_default_timeout(1000 * _SECONDS)
            thread = uuid.uuid4().hex
            try:
                await page.goto(f"{page_url}/?thread={thread}")
                await check(page, partial(_thread, http, thread))
            except Exception as exc:  # a check may fail in any way
                print(f"  {check.__name__}: {type(exc).__name__}: {exc}"[:1500])
                print((await page.inner_text("body"))[:1000])
                failed[check.__name__] = ""
            await page.close()
        await browser.close()
    name = f"AG-UI client, CopilotKit {VERSION} in Chromium"
    return Result(name, "1.0", len(CHECKS) - len(failed), failed)


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
        line = await asyncio.wait_for(process.stdout.readline(), _SECONDS)
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _thread(http: httpx.AsyncClient, thread: str) -> Any:
    return (await http.get(f"/api/threads/{thread}")).json()


Read = Callable[[], Awaitable[Any]]


async def _ask(page: Any, text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.get_by_role("textbox").press("Enter")


async def _wait_for_run(read: Read, status: str) -> None:
    async with asyncio.timeout(_SECONDS):
        while (runs := (await read()).get("runs") or [{}])[0].get("status") != status:
            await asyncio.sleep(0.2)
    assert runs


async def ask_and_watch(page: Any, read: Read) -> None:
    """Ask a question, and see the plan and the answer."""
    await _ask(page, "Fill the tank")
    await page.get_by_test_id("plan").get_by_text("done").first.wait_for()
    await page.get_by_text(re.compile(r"\b9\b")).first.wait_for()
    await _wait_for_run(read, "completed")


async def approve(page: Any, read: Read) -> None:
    """Approve a step."""
    before = len(OpenValve.opened)
    await _ask(page, "Open the valve of the tank")
    await page.get_by_test_id("approve").click()
    await _wait_for_run(read, "completed")
    assert len(OpenValve.opened) == before + 1


async def stop(page: Any, read: Read) -> None:
    """Stop a run with the stop button."""
    await _ask(page, "Wait for the rain")
    await page.get_by_test_id("plan").get_by_text("running").first.wait_for()
    await page.get_by_test_id("copilot-send-button").click()
    await _wait_for_run(read, "stopped")


CHECKS = [ask_and_watch, approve, stop]
