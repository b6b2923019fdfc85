"""``capgraph approvals``: list open questions and manage approval rules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import read_registry
from capgraph.cli.options import SharedOptions, parse_duration_option, with_shared_options
from capgraph.cli.terminal import print_rows, print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from capgraph.stores import StandingRule

app: typer.Typer = typer.Typer(
    name="approvals",
    help="List open questions; list, add, and revoke approval rules.",
    invoke_without_command=True,
)


@app.callback()
@with_shared_options("config", "db", "submit", "engine", "temporal", "as_json")
def approvals(context: typer.Context, shared: SharedOptions) -> None:
    """Answer approval requests, and manage approval rules.

    Without a subcommand, list the open requests, or answer them with --submit.
    """
    if context.invoked_subcommand is None and shared.submit:
        from capgraph.cli.submit import submit_answers

        submit_answers(shared)
    elif context.invoked_subcommand is None:
        waiting(shared=shared, limit=50)
    elif shared != SharedOptions():
        raise ConfigurationError(
            f"Options must follow the command {context.invoked_subcommand!r}.",
            fix=f"Write: capgraph approvals {context.invoked_subcommand} [OPTIONS]",
        )


@app.command("list")
@with_shared_options("config", "db", "as_json")
def list_(shared: SharedOptions) -> None:
    """List the approval rules, the oldest first."""
    from capgraph.stores import list_rules

    rules = shared.run_with_database(lambda _, store: list_rules(store))
    rows = [
        (
            rule.id,
            rule.capability,
            f"thread {rule.thread_id}" if rule.thread_id else "everywhere",
            rule.user_id or "everybody",
            _expiry_text(rule),
            rule.reason,
        )
        for rule in rules
    ]
    headings = ("rule", "capability", "holds in", "for", "until", "reason")
    data = [rule.model_dump(mode="json") for rule in rules] if shared.as_json else None
    print_rows(headings, rows, empty_message="No approval rules.", data=data)


@app.command("waiting")
@with_shared_options("config", "db", "as_json")
def waiting(
    shared: SharedOptions,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")
    ] = 50,
) -> None:
    """List open approval requests, with approvals given and missing."""
    from capgraph.stores import waiting_questions

    questions_by_thread = shared.run_with_database(
        lambda saver, _: waiting_questions(saver, limit=limit)
    )
    rows = [
        (
            thread,
            step.get("context_key"),
            step.get("capability"),
            ", ".join(map(str, (step.get("approvals") or {}).get("agreed") or ())) or "-",
            _missing_approvals(step.get("approvals") or {}),
            step.get("reason") or "",
        )
        for thread, questions in questions_by_thread.items()
        for question in questions
        for step in (question.get("steps") or [] if isinstance(question, dict) else [])
    ]
    headings = ("thread", "step", "capability", "agreed", "still needed", "reason")
    data = questions_by_thread if shared.as_json else None
    print_rows(headings, rows, empty_message="No open questions.", data=data)


def _missing_approvals(approvals: Mapping[str, Any]) -> str:
    missing = approvals.get("needed", 1) - len(approvals.get("agreed") or ())
    people = "1 person" if missing == 1 else f"{missing} people"
    return f"{people}, not the requester" if approvals.get("not_requester") else people


@app.command("allow")
@with_shared_options("config", "db")
def allow(
    shared: SharedOptions,
    capability: Annotated[str, typer.Argument(help="Capability that may run without a question.")],
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread", "-t", help="Restrict the rule to this thread (default: all threads)."
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", help="Duration of the rule, such as 7d (default: until revoked)."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason for the rule.")] = "",
) -> None:
    """Add a rule that lets a capability run without approval."""
    from capgraph.stores import StandingRule, add_rule

    read_registry(shared.settings()).capability(capability)
    expires_at = (
        datetime.now(UTC) + parse_duration_option(duration) if duration is not None else None
    )
    rule = StandingRule(
        capability=capability, thread_id=thread, expires_at=expires_at, reason=reason
    )
    shared.run_with_database(lambda _, store: add_rule(store, rule), may_create=True)
    typer.echo(rule.id)


@app.command("revoke")
@with_shared_options("config", "db")
def revoke(
    shared: SharedOptions,
    rule: Annotated[str, typer.Argument(help="ID of the rule, or its first characters.")],
) -> None:
    """Revoke an approval rule, so that approval is required again."""
    from capgraph.stores import list_rules, revoke_rule

    async def change(_: object, store: BaseStore) -> str:
        matches = [
            rule_found.id
            for rule_found in await list_rules(store)
            if rule_found.id.startswith(rule)
        ]
        if rule and len(matches) > 1:
            raise ConfigurationError(
                f"Rule ID {rule[:80]!r} is ambiguous, because {len(matches)} rules have IDs that "
                "start with it.",
                fix="Pass more characters of the ID.",
            )
        # The store rejects an unknown ID.
        rule_id = matches[0] if rule and matches else rule
        await revoke_rule(store, rule_id)
        return rule_id

    print_text(shared.run_with_database(change))


def _expiry_text(rule: StandingRule) -> str:
    if rule.expires_at is None:
        return "until revoked"
    moment = rule.expires_at.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{moment} (expired)" if rule.expires_at <= datetime.now(UTC) else moment
