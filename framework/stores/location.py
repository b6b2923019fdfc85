"""Which database a URL names."""

from __future__ import annotations

from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from capgraph.base.errors import ConfigurationError
from capgraph.configs.logger import mask_secrets

MEMORY = ":memory:"


class Location(NamedTuple):
    """A database.

    Attributes:
        kind: ``sqlite`` or ``postgres``.
        target: Path of the file (or ``:memory:``), or the connection string.
    """

    kind: Literal["sqlite", "postgres"]
    target: str

    def __str__(self) -> str:
        return mask_secrets(self.target)


def parse_url(url: str) -> Location:
    """Read the URL of a database.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or
            ``postgresql://user@host/database``.

    Raises:
        ConfigurationError: It is none of these.

    >>> parse_url("sqlite:///threads.db")
    Location(kind='sqlite', target='threads.db')
    >>> parse_url("sqlite://:memory:").target
    ':memory:'
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        path = unquote(rest.partition("?")[0])
        if path.lstrip("/") == MEMORY:
            return Location("sqlite", MEMORY)
        if path.startswith("/") and len(path) > 1:
            return Location("sqlite", path[1:])
    if separator and scheme in {"postgresql", "postgres"} and _splits(url):
        return Location("postgres", url)
    raise ConfigurationError(
        f"{mask_secrets(url)!r} names no database that can be used. Fix: write"
        " sqlite:///file.db, sqlite:////absolute/file.db, sqlite://:memory: or"
        " postgresql://user@host/database."
    )


def _splits(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True
