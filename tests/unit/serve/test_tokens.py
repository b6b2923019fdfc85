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


def test_the_command_prints_the_token_only_and_keeps_its_hash(file: Path) -> None:
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


def test_revoking_ends_a_token_and_revoking_nobody_is_an_error(file: Path) -> None:
    issue_token(file, "ada")
    assert capgraph("revoke", "ada", "--auth", str(file)).exit_code == 0
    assert read_tokens(file) == {}
    nobody = capgraph("revoke", "bob", "--auth", str(file))
    assert isinstance(nobody.exception, ConfigurationError)
    assert "no user 'bob'" in str(nobody.exception)
    assert isinstance(capgraph("revoke", "--auth", str(file)).exception, ConfigurationError)


def test_a_person_has_one_role(file: Path) -> None:
    two = capgraph("ada", "--role", "clerk", "--role", "operator", "--auth", str(file))
    assert "'clerk', 'operator'" in str(two.exception)
    assert not file.exists()


def test_a_new_token_takes_the_place_of_the_old_one(file: Path) -> None:
    old, new = issue_token(file, "ada"), issue_token(file, "ada")
    known = TokenFile(file)
    assert asyncio.run(known.caller(old)) is None
    assert asyncio.run(known.caller(new)) is not None


def test_an_expired_token_is_nobodys(file: Path) -> None:
    token = issue_token(file, "ada", days=-1)
    assert asyncio.run(TokenFile(file).caller(token)) is None


def test_a_change_is_seen_without_a_restart(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    issue_token(file, "ada")
    os.chmod(file, 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        TokenFile(file)


@pytest.mark.parametrize("text", ["", "[]", '{"tokens": 3}', '{"tokens": {"a": {"hush": 1}}}'])
def test_what_is_no_file_of_tokens_is_told(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a token file"):
        TokenFile(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        TokenFile(file.parent / "none.json")


@pytest.mark.parametrize("name", ["", " ada", "a\nb", "revoke"])
def test_odd_names_are_refused(file: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        issue_token(file, name)
