"""LangChain's agent-chat-ui in Chromium against an agent on ``langgraph dev``.

The application is not a package. ``AGENT_CHAT_UI`` names the folder of a checkout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tests.conformance.browser import SECONDS, require_browser, run_checks
from tests.conformance.kits import FOLDER, UnavailableError, run_command
from tests.conformance.report import Result
from tests.graph.test_agent_server import Server, find_free_port

_PNPM = "pnpm@10.5.1"
_BUILD_SECONDS = 900.0
_ENVIRONMENT = {**os.environ, "NEXT_TELEMETRY_DISABLED": "1"}


def run() -> list[Result]:
    """Ask, approve, edit, and reject in the browser."""
    source = os.environ.get("AGENT_CHAT_UI")
    if source is None:
        raise UnavailableError("AGENT_CHAT_UI does not name a checkout of agent-chat-ui.")
    if (npx := shutil.which("npx")) is None:
        raise UnavailableError("npm is not installed.")
    require_browser()
    return [asyncio.run(_run(npx, _build(npx, Path(source))))]


def _build(npx: str, source: Path) -> Path:
    """Build the application and return its folder."""
    folder = FOLDER / "agent-chat-ui"
    stamp, lock = folder / "built.txt", (source / "pnpm-lock.yaml").read_text()
    if stamp.exists() and stamp.read_text() == lock:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "node_modules", ".next"))
    # The build would download this font.
    layout = folder / "src" / "app" / "layout.tsx"
    text = re.sub(r"import \{ Inter \}.*\n", "", layout.read_text())
    layout.write_text(
        re.sub(r"Inter\(\{.*?\}\)", '{ className: "" }', text, count=1, flags=re.DOTALL)
    )
    install = ("--yes", _PNPM, "install", "--frozen-lockfile", "--reporter=silent")
    for arguments in (install, ("next", "build", "--no-lint", "--turbopack")):
        done = run_command(
            npx, *arguments, timeout_seconds=_BUILD_SECONDS, cwd=folder, env=_ENVIRONMENT
        )
        if done.returncode:
            raise UnavailableError(f"agent-chat-ui cannot be built: {done.stderr[-500:]}")
    stamp.write_text(lock)
    return folder


async def _run(npx: str, folder: Path) -> Result:
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary))
        await asyncio.to_thread(server.start)
        try:
            async with _page_server(npx, folder) as page_url:
                url = f"{page_url}/?apiUrl={server.url}&assistantId=own"
                name = "agent-chat-ui in Chromium against langgraph dev"
                return await run_checks(name, "HITLRequest", CHECKS, lambda: url)
        finally:
            await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def _page_server(npx: str, folder: Path) -> AsyncIterator[str]:
    port = find_free_port()
    process = await asyncio.create_subprocess_exec(
        *(npx, "next", "start", "-H", "127.0.0.1", "-p", str(port)),
        cwd=folder,
        env=_ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await http.get(url)
                    break
                await asyncio.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, 15)  # npx starts Node.js as a child
        await process.wait()


async def _ask(page: Any, text: str) -> None:
    await page.get_by_placeholder("Type your message...").fill(text)
    await page.get_by_role("button", name="Send").click()


async def _fill(page: Any, field: Any, text: str, selection: str) -> None:
    """Fill a field of the approval form, and wait until the form selects the decision.

    The application resets the form, and selects an approval, when it has loaded the history of the
    thread after the end of the stream.
    """
    await page.get_by_role("button", name="Send").wait_for()  # shown after the end of the stream
    for _ in range(20):
        await field.fill(text)
        await asyncio.sleep(1)
        if await page.get_by_text(selection).count():
            return


async def ask(page: Any) -> None:
    """Ask a question and see the answer."""
    await _ask(page, "Look at the tank")
    await page.get_by_text("It is full.").first.wait_for()


async def approve(page: Any) -> None:
    """Approve a step."""
    await _ask(page, "open the valve")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.get_by_text("Valve 1 is open.").first.wait_for()


async def edit(page: Any) -> None:
    """Change a parameter of a step."""
    await _ask(page, "open the valve")
    field = page.locator("div", has_text="Edit/Approve").locator("textarea").first
    await _fill(page, field, "3", "Currently selected: Edit")
    await page.get_by_role("button", name="Submit", exact=True).click()
    await page.get_by_text("Valve 3 is open.").first.wait_for()


async def reject(page: Any) -> None:
    """Reject a step with a reason."""
    await _ask(page, "open the valve")
    field = page.get_by_placeholder("Share feedback with the agent...")
    await _fill(page, field, "It is dry.", "Currently selected: Reject")
    await page.get_by_role("button", name="Submit rejection").click()
    await page.get_by_text("It is dry.").first.wait_for()
    assert await page.get_by_text("is open.").count() == 0


CHECKS = [ask, approve, edit, reject]
