"""The file of tokens, and ``capgraph token``."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capgraph.base.errors import ConfigurationError
from capgraph.cli.main import app
from capgraph.serve import tokens
from capgraph.serve.tokens import TokenFile, issue_token, read_tokens, revoke_token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def capgraph(*words: str):
    return CliRunner().invoke(app, ["token", *words])


def test_token_command_prints_the_token_and_stores_its_hash(file: Path) -> None:
    made = capgraph("ada", "--role", "operator", "--tenant", "north", "--auth", str(file))
    assert made.exit_code == 0
    [token] = made.stdout.split()
    assert made.stdout == f"{token}\n"
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = read_tokens(file)["ada"]
    assert (entry.role, entry.tenant) == ("operator", "north")
    found = asyncio.run(TokenFile(file).caller(token))
    assert found is not None
    assert (found[0].user_id, found[0].role, found[0].authenticated) == ("ada", "operator", True)


def test_revoke_removes_a_token_and_rejects_unknown_names(file: Path) -> None:
    issue_token(file, "ada")
    assert capgraph("revoke", "ada", "--auth", str(file)).exit_code == 0
    assert read_tokens(file) == {}
    nobody = capgraph("revoke", "bob", "--auth", str(file))
    assert isinstance(nobody.exception, ConfigurationError)
    assert "user 'bob'" in str(nobody.exception)
    assert isinstance(capgraph("revoke", "--auth", str(file)).exception, ConfigurationError)


def test_user_has_one_role(file: Path) -> None:
    two = capgraph("ada", "--role", "clerk", "--role", "operator", "--auth", str(file))
    assert "'clerk', 'operator'" in str(two.exception)
    assert not file.exists()


def test_new_token_replaces_the_old_one(file: Path) -> None:
    old, new = issue_token(file, "ada"), issue_token(file, "ada")
    known = TokenFile(file)
    assert asyncio.run(known.caller(old)) is None
    assert asyncio.run(known.caller(new)) is not None


def test_expired_token_is_rejected(file: Path) -> None:
    token = issue_token(file, "ada", days=-1)
    assert asyncio.run(TokenFile(file).caller(token)) is None


def test_token_file_is_reloaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_REFRESH_SECONDS", 0.0)
    token = issue_token(file, "ada")

    async def look() -> None:
        known = await asyncio.to_thread(TokenFile, file)
        found = await known.caller(token)
        assert found is not None
        assert await known.is_active(found[1])
        await asyncio.to_thread(revoke_token, file, "ada")
        assert await known.caller(token) is None
        assert not await known.is_active(found[1])
        await asyncio.to_thread(file.unlink)
        assert await known.caller(token) is None

    asyncio.run(look())


def test_readable_token_file_is_rejected(file: Path) -> None:
    issue_token(file, "ada")
    os.chmod(file, 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        TokenFile(file)


@pytest.mark.parametrize("text", ["", "[]", '{"tokens": 3}', '{"tokens": {"a": {"hush": 1}}}'])
def test_invalid_token_file_is_rejected(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a token file"):
        TokenFile(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        TokenFile(file.parent / "none.json")


@pytest.mark.parametrize("name", ["", " ada", "a\nb", "revoke"])
def test_invalid_user_names_are_rejected(file: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        issue_token(file, name)
