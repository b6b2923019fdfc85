"""Results of conformance suites, and the page that shows them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
_INTRODUCTION = """\
# Conformance

`make test-conformance` runs the published conformance suites and official clients against capgraph, and writes this
page. *Not offered* counts the checks of optional features that capgraph does not announce.

| Suite | Revision | Passed | Failed | Not offered |
|---|---|---:|---:|---:|
"""


@dataclass(frozen=True)
class Result:
    """Result of a suite for one revision of its protocol.

    Attributes:
        suite: Name of the suite with its version.
        revision: Revision of the protocol.
        passed: Number of passed checks.
        failures: Reason of each failed check, by the name of the check. A failure with an empty
            reason is unexpected and fails the run.
        not_offered: Reason of each check of a feature that capgraph does not announce.
        obsolete_reasons: Checks with a reason that no longer fail. They fail the run, too.
    """

    suite: str
    revision: str
    passed: int
    failures: Mapping[str, str] = field(default_factory=dict)
    not_offered: Mapping[str, str] = field(default_factory=dict)
    obsolete_reasons: Sequence[str] = ()

    @property
    def is_expected(self) -> bool:
        """True if each failure has a reason and each reason has a failure."""
        return all(self.failures.values()) and not self.obsolete_reasons


def read_checks(suite: str, revision: str, done: subprocess.CompletedProcess[str]) -> Result:
    """Return the result of a program that prints a JSON line with ``name`` and ``passed`` per check.

    Args:
        suite: Name of the suite with its version.
        revision: Revision of the protocol.
        done: The program, which has ended.
    """
    checks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [check for check in checks if not check["passed"]]
    for check in failed:
        print(f"  {check['name']}: {check['error']}")
    if not checks or done.returncode:
        failed.append({"name": "program"})
        print(done.stderr[-2000:])
    passed = sum(check["passed"] for check in checks)
    return Result(suite, revision, passed, {check["name"]: "" for check in failed})


def store_results(results: Mapping[str, Sequence[Result]]) -> None:
    """Store results and write the page. Suites that did not run keep their results.

    Args:
        results: Results by the name of the suite in the registry.
    """
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored |= {name: [asdict(result) for result in of_suite] for name, of_suite in results.items()}
    RESULTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(_render_page([Result(**r) for name in sorted(stored) for r in stored[name]]))


def _render_page(results: Sequence[Result]) -> str:
    rows = [
        f"| {r.suite} | {r.revision} | {r.passed} | {len(r.failures)} | {len(r.not_offered)} |\n"
        for r in results
    ]
    text = _INTRODUCTION + "".join(rows)
    for title, attribute in (("Failures", "failures"), ("Features not offered", "not_offered")):
        reasons: dict[tuple[str, str], list[str]] = {}
        for result in results:
            # Sorted as in the stored results, so that a run without kits leaves the page unchanged.
            for check, reason in sorted(getattr(result, attribute).items()):
                group = reasons.setdefault((result.suite, reason or "Unexplained."), [])
                group += [check] if check not in group else []
        text += f"\n## {title}\n\n" + ("" if reasons else "None.\n")
        text += "".join(
            f"- {suite}, {', '.join(f'`{check}`' for check in checks)}: {reason}\n"
            for (suite, reason), checks in reasons.items()
        )
    return text
