"""The identity on whose behalf a turn runs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from unicodedata import category, normalize

from capgraph.configs.safe_text import strip_control_characters

_SAFE_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
_MAX_NAME_CHARS = 200
_INVISIBLE = {"Cf", "Cc"}
"""Unicode categories of format and control characters."""


@dataclass(frozen=True, slots=True)
class Caller:
    """User on whose behalf the agent's turn runs.

    Attributes:
        user_id: ID of the user.
        role: Role of the user, which determines permissions.
        tenant: Tenant to which the user belongs.
        authenticated: True if a server has authenticated the user. In this case, identity
            fields in ``configurable`` are ignored.
    """

    user_id: str | None = None
    role: str | None = None
    tenant: str | None = None
    authenticated: bool = False

    @property
    def storage_key(self) -> str | None:
        """Directory name that is unique to this user on any file system, or None without a user ID.

        >>> Caller("Ada/..", tenant="b@c").storage_key
        '%41da%2f%2e%2e@b%40c'
        """
        if not self.user_id:
            return None
        parts = (self.user_id, self.tenant)
        name = "@".join(_escape_name(part) for part in parts if part is not None)
        if len(name) < _MAX_NAME_CHARS:
            return name
        # "%di" is not an escape sequence, so a digest never equals an escaped name.
        return f"%digest-{sha256(name.encode()).hexdigest()}"


def normalize_user_id(user_id: str) -> str:
    """Normalize a user ID so that different spellings of the same ID compare equal.

    Differences in case, compatibility characters, surrounding spaces, and invisible characters
    are removed.

    >>> normalize_user_id(" USER1"), normalize_user_id("us​er１")
    ('user1', 'user1')
    """
    # Folding and removal may yield characters that NFKC composes differently.
    folded = normalize("NFKC", _remove_invisible(user_id)).casefold()
    return normalize("NFKC", _remove_invisible(normalize("NFKC", folded))).strip()


def _remove_invisible(text: str) -> str:
    shown = strip_control_characters(text)
    return "".join(char for char in shown if category(char) not in _INVISIBLE)


def _escape_name(text: str) -> str:
    """Escape text for use in file names that stay distinct on case-insensitive file systems."""
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _SAFE_BYTES else f"%{byte:02x}" for byte in data)
