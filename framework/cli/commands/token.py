"""``capgraph token``: who may log in to the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP

app: typer.Typer = typer.Typer()


@app.command("token", epilog=EXIT_CODES_HELP)
def token(
    name: Annotated[
        str, typer.Argument(help="Who it is for; or 'revoke', with the name behind it.")
    ],
    revoked: Annotated[
        str | None, typer.Argument(help="Whose token ends, behind 'revoke'.")
    ] = None,
    auth: Annotated[
        Path, typer.Option("--auth", help="File of tokens; only hashes stand in it.")
    ] = Path("tokens.json"),
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="What the person may do.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="For whom.")] = None,
    days: Annotated[
        float | None, typer.Option("--days", min=0.0, help="How long it holds (default: for ever).")
    ] = None,
) -> None:
    """Make a token for a person and print it, once; 'token revoke NAME' ends it."""
    from capgraph.configs.errors import ConfigurationError
    from capgraph.serve.tokens import issue_token, revoke_token

    if name == "revoke":
        if revoked is None:
            raise ConfigurationError("Whose token ends?", fix="capgraph token revoke NAME")
        revoke_token(auth, revoked)
        return
    if revoked is not None:
        raise ConfigurationError(
            f"{name!r} {revoked!r} are two names.", fix="Quote a name that holds a space."
        )
    if len(roles or ()) > 1:
        raise ConfigurationError(
            f"A person has one role, and {', '.join(map(repr, roles or ()))} are named.",
            fix="Make a role of the settings' permissions that may do what both may.",
        )
    role = roles[0] if roles else None
    typer.echo(issue_token(auth, name, role=role, tenant=tenant, days=days))
