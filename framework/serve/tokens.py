"""Token files: bearer tokens with names and roles, stored as hashes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller, normalize_user_id
from capgraph.helpers.files import write_atomic

_REFRESH_SECONDS = 2.0
_REVOKE = "revoke"


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """Entry of a token file, which describes one user's access token.

    Attributes:
        hash: SHA-256 hash of the token, which has 256 random bits.
        role: Role of the user.
        tenant: Tenant of the user.
        created: Creation time.
        expires: Expiration time; ``None`` if the token does not expire.
    """

    hash: str
    role: str | None = None
    tenant: str | None = None
    created: str = ""
    expires: str | None = None

    def is_valid(self) -> bool:
        """Return True if the access token has not expired."""
        return self.expires is None or datetime.fromisoformat(self.expires) > datetime.now(UTC)

    def caller(self, name: str) -> Caller:
        """Return the caller whom the access token authenticates."""
        return Caller(name, self.role, self.tenant, authenticated=True)


def hash_token(token: str) -> str:
    """Return the SHA-256 hash under which an access token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def issue_token(
    path: str | os.PathLike[str],
    name: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    days: float | None = None,
) -> str:
    """Create an access token for a user, store its hash, and replace the user's previous token.

    Args:
        path: Token file, readable only by its owner; created if it does not exist.
        name: Name of the user.
        role: Role of the user.
        tenant: Tenant of the user.
        days: Lifetime in days; without it, the token does not expire.

    Returns:
        The token. It is not stored anywhere.

    Raises:
        ConfigurationError: The name is invalid, or the file cannot be read or written.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tokens.json"
    >>> token = issue_token(file, "ada", role="operator")
    >>> token in file.read_text(), read_tokens(file)["ada"].role
    (False, 'operator')
    """
    if not name or not name.isprintable() or name != name.strip() or name == _REVOKE:
        raise ConfigurationError(
            f"Invalid user name {name!r}: it is empty, reserved, or not printable.",
            fix="Use printable characters, without spaces at the ends.",
        )
    token = f"cg_{secrets.token_urlsafe(32)}"
    now = datetime.now(UTC)
    expires = None if days is None else (now + timedelta(days=days)).isoformat()
    entry = TokenEntry(hash_token(token), role, tenant, now.isoformat(), expires)
    entries = dict(read_tokens(path)) if Path(path).exists() else {}
    same = [one for one in entries if normalize_user_id(one) == normalize_user_id(name)]
    if other := next((one for one in same if one != name), None):
        raise ConfigurationError(
            f"The user name {name!r} is another spelling of {other!r}, which has a token.",
            fix=f"Use {other!r}, or a name that differs in more than case.",
        )
    _write_tokens(path, {**entries, name: entry})
    return token


def revoke_token(path: str | os.PathLike[str], name: str) -> None:
    """Delete a user's access token from a token file.

    A running server notices the change within seconds and ends the user's sessions.

    Raises:
        ConfigurationError: The file has no token for this user.
    """
    entries = dict(read_tokens(path))
    if entries.pop(name, None) is None:
        raise ConfigurationError(
            f"The token file {os.fspath(path)!r} contains no token for user {name!r}.",
            fix=f"Use one of: {', '.join(sorted(entries)) or '(the file is empty)'}.",
        )
    _write_tokens(path, entries)


def read_tokens(path: str | os.PathLike[str]) -> Mapping[str, TokenEntry]:
    """Read the users and their token hashes from a token file.

    Raises:
        ConfigurationError: The file cannot be read, is invalid, or is readable by other users.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        entries = {name: TokenEntry(**entry) for name, entry in json.loads(text)["tokens"].items()}
        is_shared = os.name == "posix" and bool(file.stat().st_mode & 0o077)
    except OSError as exc:
        raise ConfigurationError(
            f"The token file {os.fspath(path)!r} cannot be read: {exc.strerror}.",
            fix=f"Create it: capgraph token NAME --auth {os.fspath(path)}",
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ConfigurationError(
            f"The file {os.fspath(path)!r} is not a token file.",
            fix="Create one: capgraph token NAME",
        ) from exc
    if is_shared:
        raise ConfigurationError(
            f"The token file {os.fspath(path)!r} is readable by other users.",
            fix=f"Run: chmod 600 {os.fspath(path)}",
        )
    return entries


def _write_tokens(path: str | os.PathLike[str], tokens: Mapping[str, TokenEntry]) -> None:
    document = {"version": 1, "tokens": {name: asdict(entry) for name, entry in tokens.items()}}
    try:
        write_atomic(path, json.dumps(document, indent=2) + "\n", mode=0o600)
    except OSError as exc:
        raise ConfigurationError(
            f"The token file {os.fspath(path)!r} cannot be written: {exc.strerror}.",
            fix="Check the path and its permissions.",
        ) from exc


class TokenFile:
    """Valid access tokens of a token file, which is reloaded when it changes.

    Args:
        path: Path of the token file.

    Raises:
        ConfigurationError: The token file cannot be read, is invalid, or is readable by other
            users.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._tokens = read_tokens(path)
        self._loaded_stamp = self._file_stamp()
        self._refreshed_at = time.monotonic()

    async def caller(self, token: str) -> tuple[Caller, str] | None:
        """Return the owner and the hash of an access token, or ``None`` for an invalid token."""
        await self._refresh()
        wanted_hash = hash_token(token)
        owner = None
        for name, entry in self._tokens.items():
            # Compare every entry in constant time, so that timing reveals nothing.
            if secrets.compare_digest(entry.hash, wanted_hash) and entry.is_valid():
                owner = entry.caller(name), entry.hash
        return owner

    async def current(self, caller: Caller) -> Caller | None:
        """Return a user with the role from the token file, or ``None`` without a valid token."""
        await self._refresh()
        entry = self._tokens.get(caller.user_id or "")
        if entry is None or not entry.is_valid() or entry.tenant != caller.tenant:
            return None
        return replace(caller, role=entry.role)

    async def is_active(self, token_hash: str) -> bool:
        """Return True if the token file contains a valid token with this hash."""
        await self._refresh()
        return any(e.hash == token_hash and e.is_valid() for e in self._tokens.values())

    async def _refresh(self) -> None:
        if time.monotonic() - self._refreshed_at < _REFRESH_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        await asyncio.to_thread(self._reload)

    def _reload(self) -> None:
        stamp = self._file_stamp()
        if stamp != self._loaded_stamp:
            try:
                self._tokens = read_tokens(self._path)
            except ConfigurationError:
                self._tokens = {}  # a missing file authenticates nobody
            self._loaded_stamp = stamp

    def _file_stamp(self) -> Any:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
