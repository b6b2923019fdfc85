"""Runner of the conformance suites: ``python -m tests.conformance [SUITE ...]``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from tests.conformance.kits import UnavailableError
from tests.conformance.report import Result, store_results

SUITES = {
    "a2a-tck": "tests.conformance.a2a_tck",
    "agent-chat-ui": "tests.conformance.agent_chat_ui",
    "agui-client": "tests.conformance.agui_client",
    "copilotkit": "tests.conformance.copilotkit",
    "mcp-client": "tests.conformance.mcp_client",
    "mcp-server": "tests.conformance.mcp_server",
    "openai-clients": "tests.conformance.openai_clients",
}
"""Module of each suite. Its function ``run()`` returns one ``Result`` for each revision.

It raises ``UnavailableError`` if a kit cannot be had on this machine.
"""


def main(arguments: list[str]) -> int:
    """Run the suites, write the page, and return the exit code.

    The code is 1 if a check fails that has no reason, or if a check with a reason no longer fails.

    Args:
        arguments: Names of the suites. Default: all.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    names = parser.parse_args(arguments).suites or [*SUITES]
    if unknown := sorted({*names} - {*SUITES}):
        parser.error(f"Unknown suites {unknown}. The suites are {', '.join(SUITES)}.")
    results: dict[str, list[Result]] = {}
    for name in names:
        started = time.monotonic()
        try:
            results[name] = importlib.import_module(SUITES[name]).run()
        except UnavailableError as exc:
            print(f"{name}: skipped, {exc}", flush=True)
            continue
        for result in results[name]:
            _print_result(name, result, time.monotonic() - started)
    store_results(results)
    every = [result for of_suite in results.values() for result in of_suite]
    unexpected = sum(not reason for result in every for reason in result.failures.values())
    unexpected += sum(len(result.obsolete_reasons) for result in every)
    print(f"{sum(result.passed for result in every)} passed, {unexpected} failed")
    return 0 if all(result.is_expected for result in every) else 1


def _print_result(name: str, result: Result, seconds: float) -> None:
    counts = f"{result.passed} passed, {len(result.failures)} failed"
    counts += f", {len(result.not_offered)} not offered"
    print(f"{name} {result.revision}: {counts} ({seconds:.0f} s)", flush=True)
    for check, reason in result.failures.items():
        print(f"  {check}: {reason or 'failed without a reason'}")
    for check in result.obsolete_reasons:
        print(f"  {check}: passes now. Delete its reason.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
