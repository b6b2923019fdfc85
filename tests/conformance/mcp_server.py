"""Server part of MCP's conformance suite, run against the served agent of ``mcp_agent``."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.conformance import mcp_agent
from tests.conformance.kits import FOLDER, install_node, install_npm_packages, run_command
from tests.conformance.report import Result
from tests.support.listening import on_loopback

VERSION = "0.2.0-alpha.12"
REVISIONS = ("2025-11-25", "2026-07-28")
_SUITE_SECONDS = 300.0
_PROMPTS = "Prompts are requests of users, which are texts."
_FIXED_TEMPLATES = (
    "Resource templates have capgraph:// URIs. The suite reads a template of its own."
)
_NO_SAMPLING = "Tools do not use the client's model or file system roots."
_NO_SUBSCRIPTIONS = "Clients cannot subscribe to changes of resources."
_NOT_OFFERED: dict[str, str] = {
    "input-required-result-basic-list-roots": _NO_SAMPLING,
    "input-required-result-basic-sampling": _NO_SAMPLING,
    "input-required-result-capability-check": _NO_SAMPLING,
    "input-required-result-multiple-input-requests": _NO_SAMPLING,
    "input-required-result-non-tool-request": _PROMPTS,
    "prompts-get-embedded-resource": _PROMPTS,
    "prompts-get-with-image": _PROMPTS,
    "resources-subscribe": _NO_SUBSCRIPTIONS,
    "resources-templates-read": _FIXED_TEMPLATES,
    "resources-unsubscribe": _NO_SUBSCRIPTIONS,
    "server-sse-polling": "A response stream stays open until its result.",
    "server-stateless:sep-2575-http-server-no-independent-requests-on-stream": _NO_SAMPLING,
    "server-stateless:sep-2575-missing-capability-http-400": _NO_SAMPLING,
    "server-stateless:sep-2575-server-rejects-undeclared-capability": _NO_SAMPLING,
    "tools-call-sampling": _NO_SAMPLING,
}
"""Reason by scenario, or by scenario and check (``scenario:check``)."""
_FAILURES: dict[str, str] = {}
"""Reason of each expected failure, by scenario or ``scenario:check``."""


def run() -> list[Result]:
    """Run the suite for each revision."""
    node, program = install_node(), install_suite()
    return [asyncio.run(_run_revision(node, program, revision)) for revision in REVISIONS]


def install_suite() -> Path:
    """Install the suite and return its program, which needs Node.js 22."""
    package = "@modelcontextprotocol/conformance"
    folder = install_npm_packages("mcp", f"{package}@{VERSION}")
    return folder / "node_modules" / package / "dist" / "index.js"


async def _run_revision(node: Path, program: Path, revision: str) -> Result:
    output = FOLDER / f"mcp-server-{revision}"
    shutil.rmtree(output, ignore_errors=True)
    files = FOLDER / "mcp-files"
    files.mkdir(parents=True, exist_ok=True)
    async with on_loopback(lambda _: mcp_agent.make_app(files)) as url:
        arguments = ("server", "--url", f"{url}/mcp", "--requirements", revision, "-o", output)
        await asyncio.to_thread(
            run_command, node, program, *arguments, timeout_seconds=_SUITE_SECONDS
        )
    return read_result("server", revision, output, _FAILURES, _NOT_OFFERED)


def read_result(
    part: str,
    revision: str,
    output: Path,
    failures: Mapping[str, str],
    not_offered: Mapping[str, str],
) -> Result:
    """Read the checks that the suite wrote and sort them by their outcome.

    Args:
        part: ``server`` or ``client``.
        revision: Revision of the protocol.
        output: Folder with the results, one folder for each scenario.
        failures: Reasons of the expected failures, by ``scenario`` or ``scenario:check``.
        not_offered: Reasons of scenarios or checks of features that are not announced.
    """
    passed, failed, left_out, used = 0, {}, {}, set()
    for path in sorted(output.rglob("checks.json")):
        scenario = _scenario_name(path.parent.relative_to(output), part)
        for check in json.loads(path.read_text()):
            name = f"{scenario}:{check['id']}"
            if check["status"] in ("SUCCESS", "WARNING") and scenario not in not_offered:
                passed += check["status"] == "SUCCESS"
            elif check["status"] == "FAILURE":
                key = name if name in {*failures, *not_offered} else scenario
                used.add(key)
                if key in not_offered:
                    left_out[name] = not_offered[key]
                else:
                    failed[name] = failures.get(key, "")
    obsolete = sorted({*failures} - used) if revision == REVISIONS[-1] else []
    suite = f"MCP {part}, @modelcontextprotocol/conformance {VERSION}"
    return Result(suite, revision, passed, failed, left_out, obsolete)


def _scenario_name(folder: Path, part: str) -> str:
    # The folder ends with the time, such as ``server-tools-list-2026-01-01T10-00-00-000Z``.
    return str(folder).removeprefix(f"{part}-").rpartition("T")[0][: -len("-2026-01-01")]
