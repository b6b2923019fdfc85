"""``capgraph check``: what would fail, before anything runs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import CapgraphError
from framework.cli.commands.options import Config, Database, Json, Model
from framework.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from framework.cli.checks import Finding

_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def check(
    config: Config = None,
    model: Model = None,
    db: Database = None,
    ask_models: Annotated[
        bool,
        typer.Option("--ask-models/--no-ask-models", help="Ask every model for one word."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Say what would fail, and how to mend it.

    Looks at configuration, registry, extras, models and database without running anything.
    """
    findings = _all_findings(config, model, db, ask_models)
    errors = [finding for finding in findings if finding.level == "error"]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    raise typer.Exit(ExitCode.USAGE if errors else ExitCode.ANSWERED)


def _all_findings(
    config: Any, model: str | None, db: str | None, ask_models: bool
) -> list[Finding]:
    from framework.cli import checks
    from framework.cli.agent import config_files, database_url, read_settings

    try:
        settings = read_settings(config)
    except CapgraphError as exc:
        return [checks.Finding.of_error("configuration", exc)]
    text = f"read from {checks.named_files(config_files(config))}"
    findings = [checks.Finding("configuration", "ok", text)]
    registry, found = checks.check_registry(settings)
    if registry is not None:
        findings += checks.check_settings(settings, registry)
    findings += found
    try:
        url = database_url(db, settings)
    except CapgraphError as exc:
        findings.append(checks.Finding.of_error("database", exc))
        url = ""
    if registry is not None:
        findings += checks.check_promises(registry, settings, model, url)
    findings += checks.check_extras(settings)
    findings += asyncio.run(checks.check_models(settings, model, ask=ask_models))
    if url:
        findings.append(asyncio.run(checks.check_database(url, settings)))
    return findings


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    from framework.cli.terminal import make_console, safe

    console = make_console()
    for finding in findings:
        sign, style = _SIGNS[finding.level]
        words = finding.level if not console.is_terminal else sign
        line = Text.assemble((words, style), f" {finding.area}: {safe(finding.text)}")
        console.print(line, soft_wrap=True)
        if finding.fix:
            console.print(f"  Fix: {safe(finding.fix)}", soft_wrap=True)
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    console.print(f"{errors} error(s), {warnings} warning(s)")
