"""A file of tokens: who may log in, with what role. Only hashes stand in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.helpers.files import write_atomic

_REFRESH_SECONDS = 2.0
_REVOKE = "revoke"


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What the file says of one person.

    Attributes:
        hash: SHA-256 of the token, which has 256 random bits.
        role: What the person may do.
        tenant: To whom the person belongs.
        created: When the token was made.
        expires: When it ends; ``None`` for never.
    """

    hash: str
    role: str | None = None
    tenant: str | None = None
    created: str = ""
    expires: str | None = None

    def is_valid(self) -> bool:
        """Tell whether it has not expired."""
        return self.expires is None or datetime.fromisoformat(self.expires) > datetime.now(UTC)

    def caller(self, name: str) -> Caller:
        """Return who it stands for."""
        return Caller(name, self.role, self.tenant, authenticated=True)


def hash_token(token: str) -> str:
    """Return what stands in the file for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def issue_token(
    path: str | os.PathLike[str],
    name: str,
    *,
    role: str | None = None,
    tenant: str | None = None,
    days: float | None = None,
) -> str:
    """Make a token for a person and write its hash; the one before ends.

    Args:
        path: The file, which only its owner can read; it is made.
        name: The person.
        role: What the person may do.
        tenant: To whom the person belongs.
        days: How long it holds; for ever when not given.

    Returns:
        The token, which is nowhere else.

    Raises:
        ConfigurationError: The name cannot be used, or the file not be written or read.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tokens.json"
    >>> token = issue_token(file, "ada", role="operator")
    >>> token in file.read_text(), read_tokens(file)["ada"].role
    (False, 'operator')
    """
    if not name or not name.isprintable() or name != name.strip() or name == _REVOKE:
        raise ConfigurationError(
            f"{name!r} cannot be somebody's name.", fix="Use printable characters."
        )
    token = f"cg_{secrets.token_urlsafe(32)}"
    now = datetime.now(UTC)
    expires = None if days is None else (now + timedelta(days=days)).isoformat()
    entry = TokenEntry(hash_token(token), role, tenant, now.isoformat(), expires)
    known = dict(read_tokens(path)) if Path(path).exists() else {}
    _write_tokens(path, {**known, name: entry})
    return token


def revoke_token(path: str | os.PathLike[str], name: str) -> None:
    """End a person's token; a server notices within seconds, and ends its sessions.

    Raises:
        ConfigurationError: The file has nobody of that name.
    """
    known = dict(read_tokens(path))
    if known.pop(name, None) is None:
        raise ConfigurationError(
            f"Nobody is called {name!r} in {os.fspath(path)!r}.",
            fix=f"There is {', '.join(sorted(known)) or 'nobody'}.",
        )
    _write_tokens(path, known)


def read_tokens(path: str | os.PathLike[str]) -> Mapping[str, TokenEntry]:
    """Read a file of tokens.

    Raises:
        ConfigurationError: It cannot be read, or others than its owner can.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        found = {name: TokenEntry(**entry) for name, entry in json.loads(text)["tokens"].items()}
        is_shared = os.name == "posix" and bool(file.stat().st_mode & 0o077)
    except OSError as exc:
        raise ConfigurationError(
            f"The tokens in {os.fspath(path)!r} cannot be read: {exc.strerror}.",
            fix=f"Make one: capgraph token NAME --auth {os.fspath(path)}",
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ConfigurationError(
            f"{os.fspath(path)!r} is no file of tokens.", fix="Make one: capgraph token NAME"
        ) from exc
    if is_shared:
        raise ConfigurationError(
            f"Others can read the tokens in {os.fspath(path)!r}.",
            fix=f"chmod 600 {os.fspath(path)}",
        )
    return found


def _write_tokens(path: str | os.PathLike[str], tokens: Mapping[str, TokenEntry]) -> None:
    document = {"version": 1, "tokens": {name: asdict(entry) for name, entry in tokens.items()}}
    try:
        write_atomic(path, json.dumps(document, indent=2) + "\n", mode=0o600)
    except OSError as exc:
        raise ConfigurationError(
            f"The tokens cannot be written to {os.fspath(path)!r}: {exc.strerror}.",
            fix="Check the path and its permissions.",
        ) from exc


class TokenFile:
    """The tokens that hold now, read again when the file changes.

    Args:
        path: The file.

    Raises:
        ConfigurationError: It cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._tokens = read_tokens(path)
        self._loaded_stamp = self._file_stamp()
        self._refreshed_at = time.monotonic()

    async def caller(self, token: str) -> tuple[Caller, str] | None:
        """Return whose token it is, with what stands for it; ``None`` for nobody's."""
        await self._refresh()
        wanted = hash_token(token)
        found = None
        for name, entry in self._tokens.items():
            # All are compared, and each in the same time.
            if secrets.compare_digest(entry.hash, wanted) and entry.is_valid():
                found = entry.caller(name), entry.hash
        return found

    async def is_active(self, token_hash: str) -> bool:
        """Tell whether what stands for a token is still in the file."""
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
                self._tokens = {}  # whoever took the file away let nobody in
            self._loaded_stamp = stamp

    def _file_stamp(self) -> Any:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
