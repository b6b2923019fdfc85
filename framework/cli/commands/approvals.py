"""``capgraph approvals``: what waits for people, and rules by which nobody is asked."""

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
    help="What waits for people; standing rules: list, make, revoke.",
    invoke_without_command=True,
)


@app.callback()
@with_shared_options("config", "db", "submit", "engine", "temporal", "as_json")
def approvals(context: typer.Context, shared: SharedOptions) -> None:
    """List what waits for people, or with --submit answer it; standing rules: list, make, revoke."""
    if context.invoked_subcommand is None and shared.submit:
        from capgraph.cli.submit import submit_answers

        submit_answers(shared)
    elif context.invoked_subcommand is None:
        waiting(shared=shared, limit=50)
    elif shared != SharedOptions():
        raise ConfigurationError(
            f"Options stand before {context.invoked_subcommand!r}.",
            fix=f"Write them after it: capgraph approvals {context.invoked_subcommand} …",
        )


@app.command("list")
@with_shared_options("config", "db", "as_json")
def list_(shared: SharedOptions) -> None:
    """List the standing rules, the oldest first."""
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
    print_rows(headings, rows, empty_message="There are no standing rules.", data=data)


@app.command("waiting")
@with_shared_options("config", "db", "as_json")
def waiting(
    shared: SharedOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
) -> None:
    """List what waits for people: who has agreed, and who is still needed."""
    from capgraph.stores import waiting_questions

    found = shared.run_with_database(lambda saver, _: waiting_questions(saver, limit=limit))
    rows = [
        (
            thread,
            step.get("context_key"),
            step.get("capability"),
            ", ".join(map(str, (step.get("approvals") or {}).get("agreed") or ())) or "-",
            _missing_approvals(step.get("approvals") or {}),
            step.get("reason") or "",
        )
        for thread, questions in found.items()
        for question in questions
        for step in (question.get("steps") or [] if isinstance(question, dict) else [])
    ]
    headings = ("thread", "step", "capability", "agreed", "still needed", "reason")
    data = found if shared.as_json else None
    print_rows(headings, rows, empty_message="Nothing waits for a person.", data=data)


def _missing_approvals(approvals: Mapping[str, Any]) -> str:
    left = approvals.get("needed", 1) - len(approvals.get("agreed") or ())
    people = "1 person" if left == 1 else f"{left} people"
    return f"{people}, not whoever asked" if approvals.get("not_requester") else people


@app.command("allow")
@with_shared_options("config", "db")
def allow(
    shared: SharedOptions,
    capability: Annotated[str, typer.Argument(help="What may run without a question.")],
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Only in this thread (default: in all).")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="How long, such as 7d (default: until revoked).")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
) -> None:
    """Make a standing rule."""
    from capgraph.stores import StandingRule, add_rule

    read_registry(shared.settings()).capability(capability)
    until = datetime.now(UTC) + parse_duration_option(duration) if duration is not None else None
    rule = StandingRule(capability=capability, thread_id=thread, expires_at=until, reason=reason)
    shared.run_with_database(lambda _, store: add_rule(store, rule), may_create=True)
    typer.echo(rule.id)


@app.command("revoke")
@with_shared_options("config", "db")
def revoke(
    shared: SharedOptions,
    rule: Annotated[str, typer.Argument(help="Id of the rule, or its first letters.")],
) -> None:
    """Take a standing rule back."""
    from capgraph.stores import list_rules, revoke_rule

    async def change(_: object, store: BaseStore) -> str:
        meant = [known.id for known in await list_rules(store) if known.id.startswith(rule)]
        if rule and len(meant) > 1:
            raise ConfigurationError(
                f"{len(meant)} standing rules begin with {rule[:80]!r}.",
                fix="Write more of the id.",
            )
        # An id that nothing begins with is for the store to refuse.
        chosen = meant[0] if rule and meant else rule
        await revoke_rule(store, chosen)
        return chosen

    print_text(shared.run_with_database(change))


def _expiry_text(rule: StandingRule) -> str:
    if rule.expires_at is None:
        return "revoked"
    moment = rule.expires_at.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{moment} (over)" if rule.expires_at <= datetime.now(UTC) else moment
