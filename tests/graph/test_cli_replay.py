"""``capgraph record``, ``replay``, ``check --db`` and ``eval --from-threads``, as typed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from capgraph.cli.main import app
from tests.support.commands import project

pytestmark = pytest.mark.may_block
CODE = """
from capgraph import CapabilityContext, capability_node


class Sky(CapabilityContext):
    colour: str


@capability_node(examples=["look at the sky"])
async def look() -> Sky:
    \"\"\"Look at the sky.\"\"\"
    with open("ran.txt", "a") as log:
        log.write("look\\n")
    return Sky(colour="blue")


@capability_node(examples=["paint the sky"], effect="once", requires_approval=True)
async def paint(sky: Sky, width: int = 10) -> dict:
    \"\"\"Paint the sky.\"\"\"
    with open("ran.txt", "a") as log:
        log.write("paint\\n")
    return {}
"""
Command = Callable[..., Result]


@pytest.fixture
def capgraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    def run(*arguments: str) -> Result:
        sys.modules.pop("painter", None)
        found = CliRunner().invoke(app, arguments)
        if found.exception and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    config = "name: painter\nmodules: [painter]\n"
    with project(tmp_path, monkeypatch, {"painter.py": CODE, "capgraph.yml": config}):
        yield run


def change(before: str, after: str) -> None:
    code = Path("painter.py").read_text()
    assert before in code
    Path("painter.py").write_text(code.replace(before, after))
    # Python tells by second and size whether what it compiled is of this code.
    shutil.rmtree("__pycache__", ignore_errors=True)


def ran() -> list[str]:
    return Path("ran.txt").read_text().splitlines()


@pytest.fixture
def asked(capgraph: Command) -> Command:
    found = capgraph("ask", "look at the sky", "--db", "t.db", "--thread", "one", "-q")
    assert found.exit_code == 0, found.output
    return capgraph


def test_a_thread_and_its_file_replay_without_a_difference(asked: Command) -> None:
    found = asked("replay", "one", "--db", "t.db")
    assert found.exit_code == 0, found.output
    assert "No difference." in found.output
    assert asked("record", "one", "--db", "t.db", "--out", "turn.json").exit_code == 0
    found = asked("replay", "turn.json", "--json")
    told = json.loads(found.output)
    assert (found.exit_code, told["same"], told["differences"]) == (0, True, [])
    assert told["replayed"]["results"]["sky"]["gave"] == {"SKY": {"colour": "blue"}}
    assert json.loads(asked("record", "one", "--db", "t.db").output)["turn"] == 1
    assert ran() == ["look"]


def test_new_code_shows_its_difference(asked: Command) -> None:
    change("    colour: str", "    colour: str\n    hue: int")
    found = asked("replay", "one", "--db", "t.db")
    assert found.exit_code == 1
    assert "hue" in found.output
    assert "difference(s)." in found.output
    assert ran() == ["look"]


def test_from_a_step_on(asked: Command) -> None:
    change('colour="blue"', 'colour="red"')
    found = asked("replay", "one", "--db", "t.db", "--from", "sky")
    assert (found.exit_code, ran()) == (1, ["look", "look"])
    assert "red" in found.output
    assert "ran anew: sky" in found.output


def test_secrets_stay_out_of_files(capgraph: Command) -> None:
    asked = "look at the sky, api_key=sk-abcdefghijklmnop1234567890"
    assert capgraph("ask", asked, "--db", "t.db", "--thread", "one", "-q").exit_code == 0
    text = capgraph("record", "one", "--db", "t.db").output
    assert "sk-abc" not in text
    Path("turn.json").write_text(text)
    assert capgraph("replay", "turn.json").exit_code == 0


def test_what_is_not_there(asked: Command, tmp_path: Any) -> None:
    with pytest.raises(Exception, match="'two' does not exist"):
        asked("replay", "two", "--db", "t.db")
    Path("x.json").write_text("{}")
    with pytest.raises(Exception, match="cannot be loaded"):
        asked("replay", "x.json")


def test_check_says_what_new_code_could_not_take_over(capgraph: Command) -> None:
    found = capgraph("ask", "paint the sky", "--db", "t.db", "--thread", "one", "-q")
    assert found.exit_code == 4, found.output
    found = capgraph("check", "--db", "t.db")
    assert found.exit_code == 0, found.output
    assert "ok threads: 1 waiting or unfinished, can be resumed" in found.output
    change("width: int = 10", "width: int = 12")
    before = {path: Path(path).read_bytes() for path in ("t.db", "ran.txt")}
    found = capgraph("check", "--db", "t.db", "--json")
    told = [one for one in json.loads(found.output) if one["area"] == "threads"]
    assert (found.exit_code, [one["level"] for one in told]) == (2, ["error"])
    assert told[0]["text"].startswith("one, approval: The approval request for the step")
    change("    colour: str", "    colour: str\n    hue: int")
    found = capgraph("check", "--db", "t.db")
    assert "one, context: The stored context SKY." in found.output
    assert {path: Path(path).read_bytes() for path in before} == before
    assert "waiting or unfinished" not in capgraph("check").output


def test_check_reads_what_is_encrypted(capgraph: Command) -> None:
    with Path("capgraph.yml").open("a") as settings:
        settings.write("persistence: {encryption_key: 0123456789abcdef}\n")
    capgraph("ask", "paint the sky", "--db", "t.db", "--thread", "one", "-q")
    assert "1 waiting or unfinished" in capgraph("check", "--db", "t.db").output
    assert capgraph("replay", "one", "--db", "t.db").exit_code == 0
    Path("capgraph.yml").write_text("name: painter\nmodules: [painter]\n")
    found = capgraph("check", "--db", "t.db")
    assert found.exit_code == 2
    assert "one, state: A checkpoint of thread_id 'one' cannot be read" in found.output


def test_a_set_of_turns_is_replayed(asked: Command) -> None:
    asked("ask", "paint the sky", "--db", "t.db", "--thread", "two", "-q", "--yes")
    asked("ask", "sing ${HOME} a song", "--db", "t.db", "--thread", "one", "-q")
    done = ran()
    found = asked("eval", "turns.yml", "--from-threads", "--db", "t.db")
    assert (found.exit_code, found.output) == (0, "3 turn(s) written to turns.yml\n")
    text = Path("turns.yml").read_text()
    assert "edges:\n  - look -> paint" in text
    found = asked("eval", "turns.yml", "--json", "-")
    told = json.loads(found.output)
    assert found.exit_code == 0, found.output
    assert told["reports"][0]["figures"]["passed"] == 1.0
    assert told["reports"][0]["figures"]["model_calls"] == 0
    assert "sing ${HOME} a song" in [case["request"] for case in told["reports"][0]["cases"]]
    assert ran() == done
    change("    colour: str", "    colour: str\n    hue: int = 0")
    found = asked("eval", "turns.yml")
    assert found.exit_code == 1
    assert '+ result {"capability": "look", "gave": {"SKY": {"colour": "blue", "hue": 0}}' in (
        found.output
    )
    assert ran() == done
    Path("one").write_text("by chance the name of a thread")
    assert asked("replay", "one", "--db", "t.db").exit_code == 0
    with pytest.raises(Exception, match="cannot be written"):
        asked("eval", "one/two.yml", "--from-threads", "--db", "t.db")
    Path("one").unlink()
    one = asked("eval", "one.yml", "--from-threads", "--db", "t.db", "-t", "one", "-n", "1")
    assert "1 turn(s) written" in one.output
    with pytest.raises(Exception, match="no finished turn"):
        asked("eval", "none.yml", "--from-threads", "--db", "t.db", "--thread", "three")


def test_the_thread_that_was_saved_last(asked: Command) -> None:
    assert json.loads(asked("record", "--db", "t.db").output)["thread"] == "one"
    Path("empty.db").touch()
    with pytest.raises(Exception, match="has no threads"):
        asked("record", "--db", "empty.db")


def test_secrets_of_the_settings_stay_out_of_files(capgraph: Command) -> None:
    with Path("capgraph.yml").open("a") as settings:
        settings.write("audit: {signing_key: correct-horse-battery}\n")
    asked = ("ask", "look at the sky, correct-horse-battery", "--db", "t.db", "-q")
    assert capgraph(*asked).exit_code == 0
    assert "correct-horse" not in capgraph("record", "--db", "t.db").output
    capgraph("eval", "turns.yml", "--from-threads", "--db", "t.db")
    files = [Path("turns.yml"), *Path("turns_turns").iterdir()]
    assert len(files) == 2
    assert not any("correct-horse" in file.read_text() for file in files)


def test_all_of_it_on_postgresql(capgraph: Command, server: Any) -> None:
    db = ("--db", server.database())
    assert capgraph("ask", "look at the sky", *db, "-t", "one", "-q").exit_code == 0
    assert capgraph("ask", "paint the sky", *db, "-t", "two", "-q").exit_code == 4
    done = ran()
    assert capgraph("replay", "one", *db).exit_code == 0
    assert capgraph("replay", "two", *db).exit_code == 0
    assert "1 waiting or unfinished" in capgraph("check", *db).output
    assert "2 turn(s)" in capgraph("eval", "turns.yml", "--from-threads", *db).output
    assert capgraph("eval", "turns.yml").exit_code == 0
    assert ran() == done
    change("sky: Sky, width", "sky: Sky, to: str, width")
    assert capgraph("eval", "turns.yml").exit_code == 1
