"""``capgraph token``: create and revoke login tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP

app: typer.Typer = typer.Typer()


@app.command("token", epilog=EXIT_CODES_HELP)
def token(
    name: Annotated[str, typer.Argument(help="User name, or 'revoke' followed by a user name.")],
    revoked: Annotated[
        str | None, typer.Argument(help="User whose token to revoke, after 'revoke'.")
    ] = None,
    auth: Annotated[
        Path, typer.Option("--auth", help="Token file, which stores only hashes.")
    ] = Path("tokens.json"),
    roles: Annotated[list[str] | None, typer.Option("--role", help="Role of the user.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Tenant of the user.")] = None,
    days: Annotated[
        float | None, typer.Option("--days", min=0.0, help="Lifetime in days (default: unlimited).")
    ] = None,
) -> None:
    """Create or revoke an API token of a user."""
    from capgraph.configs.errors import ConfigurationError
    from capgraph.serve.tokens import issue_token, revoke_token

    if name == "revoke":
        if revoked is None:
            raise ConfigurationError(
                "The user name is missing.", fix="Run: capgraph token revoke NAME"
            )
        revoke_token(auth, revoked)
        return
    if revoked is not None:
        raise ConfigurationError(
            f"Unexpected second name {revoked!r} after {name!r}.",
            fix="Quote a name that contains a space.",
        )
    if len(roles or ()) > 1:
        raise ConfigurationError(
            f"A user can have only one role, but several were given: {', '.join(map(repr, roles or ()))}.",
            fix="Define a role in the permission settings that combines them.",
        )
    role = roles[0] if roles else None
    typer.echo(issue_token(auth, name, role=role, tenant=tenant, days=days))
