"""Checks of web front ends in Chromium."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.kits import UnavailableError
from tests.conformance.report import Result

SECONDS = 90.0
"""Maximum number of seconds until the front end shows what a check waits for."""
_PROGRAM = Path("/usr/bin/chromium")

Check = Callable[..., Awaitable[None]]


def require_browser() -> None:
    """Check that Chromium is installed.

    Raises:
        UnavailableError: It is not.
    """
    if not _PROGRAM.exists():
        raise UnavailableError("Chromium is not installed.")


async def run_checks(
    suite: str, revision: str, checks: Sequence[Check], url: Callable[[], str], *context: Any
) -> Result:
    """Run each check on a page of its own and return the result.

    Args:
        suite: Name of the suite with its version.
        revision: Revision of the protocol.
        checks: The checks. Each gets the page and the context.
        url: Returns the URL of the next page.
        *context: Further arguments of the checks.
    """
    from playwright.async_api import async_playwright

    failed: dict[str, str] = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(_PROGRAM), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for check in checks:
            page = await browser.new_page()
            page.set_default_timeout(1000 * SECONDS)
            try:
                await page.goto(url())
                await check(page, *context)
            except Exception as exc:  # a check may fail in any way
                print(f"  {check.__name__}: {type(exc).__name__}: {exc}"[:1500])
                print((await page.inner_text("body"))[:1000])
                failed[check.__name__] = ""
            await page.close()
        await browser.close()
    return Result(suite, revision, len(checks) - len(failed), failed)
