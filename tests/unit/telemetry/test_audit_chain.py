"""The audit chain: any change shows, several writers keep one chain, the old can go (T35)."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.stores import open_saver
from capgraph.stores.persistence import Persistence
from capgraph.telemetry import AuditLog
from capgraph.telemetry.audit_chain import EMPTY_HASH, ChainHead, ChainVerifier, build_record
from capgraph.telemetry.audit_log import AuditTable


def written(path: Path, count: int = 5, **options: Any) -> AuditLog:
    log = AuditLog(path, **options)
    for number in range(count):
        log.append("effect", {"status": "begun", "number": number, "text": "zwölf"})
    return log


def chain(count: int, key: bytes | None = None) -> list[str]:
    head, lines = ChainHead(), []
    for number in range(count):
        head, line = build_record(head, "effect", {"number": number, "to": ["é", 1.5, None]}, key)
        lines.append(line)
    return lines


def checked(lines: list[Any], key: bytes | None = None, **more: Any) -> bool:
    checker = ChainVerifier(key, **more)
    checker.feed(lines)
    return checker.result().valid


def test_a_chain_as_it_was_written_holds(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl")
    found = log.verify()
    assert found
    assert found.valid
    assert found.records == 5
    assert log.verify(anchor=found.head)
    assert log.anchor() == found.head
    assert len(found.head) == 64
    assert [record["data"]["number"] for record in log.records()] == [0, 1, 2, 3, 4]
    assert AuditLog(tmp_path / "none.jsonl").verify().head == EMPTY_HASH


async def test_on_a_loop_it_is_awaited(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    found = log.append("plan", {"steps": 1})
    assert inspect.isawaitable(found)
    await found
    assert (await log.verify()).valid


LINES = chain(4)
SIGNED = chain(4, b"key")


@pytest.mark.row("T35")
@given(st.data())
def test_any_byte_of_any_record_shows(data: st.DataObject) -> None:
    signed = data.draw(st.booleans())
    lines = [line.encode() for line in (SIGNED if signed else LINES)]
    place = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, len(lines[place]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != lines[place][at]))
    lines[place] = lines[place][:at] + bytes([byte]) + lines[place][at + 1 :]
    assert not checked(lines, b"key" if signed else None)


@pytest.mark.row("T35")
def test_any_byte_of_the_file_shows(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", 2)
    whole = log.path.read_bytes()
    for at in range(0, len(whole), 5):
        for byte in {whole[at] ^ 1, whole[at] ^ 0x80, ord("\n"), ord(" ")} - {whole[at]}:
            log.path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            assert not log.verify(), (at, byte)


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_missing_record_is_detected(tmp_path: Path, gone: int) -> None:
    log = written(tmp_path / "a.jsonl", 4)
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
    assert not log.verify()


def test_records_in_another_order_show() -> None:
    assert checked(LINES)
    assert not checked([LINES[1], LINES[0], *LINES[2:]])
    assert not checked([LINES[0], LINES[0], *LINES[1:]])


def test_the_anchor_detects_a_truncated_chain(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", 3)
    anchor = log.verify().head
    log.path.unlink()
    Path(f"{log.path}.head").unlink()
    fresh = written(tmp_path / "a.jsonl", 3)  # whoever writes all of it anew
    assert fresh.verify()
    assert not fresh.verify(anchor=anchor)
    assert "not in the chain" in fresh.verify(anchor=anchor).problem


@pytest.mark.row("T35")
def test_without_the_key_nobody_writes_a_record_that_holds(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", 2, signing_key="secret")
    assert log.verify()
    assert AuditLog(log.path).verify()  # the chain itself can be checked by anybody
    assert not AuditLog(log.path, signing_key=b"other").verify()
    AuditLog(log.path).append("effect", {"status": "finished"})
    assert not log.verify()
    assert checked(SIGNED, b"key")
    assert not checked(LINES, b"key")


def test_data_that_is_not_plain_is_rejected_and_keeps_the_chain_valid(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", 2)
    with pytest.raises(ValidationError):
        log.append("effect", {"what": object()})
    log.append("effect", {"when": timedelta(seconds=1).total_seconds()})
    assert log.verify().records == 3


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="audit"):
        AuditLog(tmp_path / "no" / "such" / "folder.jsonl").append("effect", {})


def test_a_partial_record_is_truncated(tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", 3)
    with log.path.open("ab") as file:
        file.write(b'{"at":"2026-01-0')
    assert not log.verify()
    log.append("effect", {"number": 3})
    assert log.verify().records == 4
    # A record that was acknowledged is not taken off in silence.
    log.path.write_bytes(log.path.read_bytes()[:-1])
    with pytest.raises(PersistenceError, match="record 4 is missing"):
        log.append("effect", {"number": 4})
    assert not log.verify()


@pytest.mark.row("T35")
def test_the_old_can_go_and_the_rest_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capgraph.telemetry import audit_chain

    log = AuditLog(tmp_path / "a.jsonl")
    for day in range(1, 7):
        monkeypatch.setattr(
            audit_chain, "utc_now_text", lambda d=day: f"2026-01-0{d}T00:00:00+00:00"
        )
        log.append("effect", {"day": day})
    monkeypatch.undo()
    first = log.records()[0]["hash"]
    log.append("effect", {"day": "today"})
    assert log.prune() == 6
    assert "Records 1 to 6 were sealed" in log.verify(anchor=first).problem
    assert log.prune() == 0
    kept = log.records()
    assert [record["data"].get("day") for record in kept] == ["today", None]
    assert kept[-1]["kind"] == "sealed"
    assert log.verify()
    log.append("effect", {"day": "tomorrow"})
    assert log.verify()
    # Who only cuts the beginning off has no record that seals it.
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[1:]))
    assert not log.verify()


WRITER = """
    import asyncio, sys
    from capgraph.telemetry import AuditLog
    from capgraph.telemetry.audit_log import AuditTable
    from capgraph.stores import open_saver
    from capgraph.stores.persistence import Persistence

    kind, place, name, count = sys.argv[1:]

    async def rows():
        async with open_saver(f"sqlite:///{place}") as saver:
            table = AuditTable(Persistence.of(saver).tables)
            for number in range(int(count)):
                await table.awrite([("effect", {"by": name, "number": number})])
                print(number, flush=True)

    if kind == "rows":
        asyncio.run(rows())
    else:
        log = AuditLog(place)
        for number in range(int(count)):
            log.append("effect", {"by": name, "number": number})
            print(number, flush=True)
"""


def writer(kind: str, place: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), kind, str(place), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def whole_chain(kind: str, place: Path) -> tuple[Any, list[dict[str, Any]]]:
    if kind == "file":
        return AuditLog(place).verify(), AuditLog(place).records()

    async def read() -> tuple[Any, list[dict[str, Any]]]:
        async with open_saver(f"sqlite:///{place}") as saver:
            rows = Persistence.of(saver).tables
            assert rows is not None
            table = AuditTable(rows)
            verified = await table.averify()
            lines: list[str] = []
            while page := await table.aread_lines(len(lines)):
                lines += page
            return verified, [json.loads(line) for line in lines]

    return asyncio.run(read())


@pytest.mark.row("T35")
@pytest.mark.parametrize("kind", ["file", "rows"])
def test_four_processes_keep_one_chain(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "audit"
    writers = [writer(kind, place, str(n), 200) for n in range(4)]
    assert [w.communicate()[0].count("\n") for w in writers] == [200] * 4
    verified, records = whole_chain(kind, place)
    assert verified.valid, verified.problem
    assert len(records) == 800
    for name in "0123":
        assert [r["data"]["number"] for r in records if r["data"]["by"] == name] == list(range(200))


@pytest.mark.row("T35")
@pytest.mark.parametrize("kind", ["file", "rows"])
def test_a_killed_process_leaves_a_chain_that_holds(kind: str, tmp_path: Path) -> None:
    place, seen = tmp_path / "audit", 0
    for turn in range(3):
        process = writer(kind, place, str(turn), 100_000)
        assert process.stdout is not None
        for _ in range(5 + 3 * turn):
            process.stdout.readline()
        seen += 5 + 3 * turn
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        verified, records = whole_chain(kind, place)
        assert verified.valid, verified.problem
        assert len(records) >= seen


async def table_of(saver: Any, **options: Any) -> AuditTable:
    rows = Persistence.of(saver).tables
    assert rows is not None
    return AuditTable(rows, **options)


async def test_a_chain_beside_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capgraph.telemetry import audit_chain

    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        table = await table_of(saver, signing_key="k")
        assert (await table.averify()).valid
        await asyncio.gather(*(table.awrite([("effect", {"n": n})]) for n in range(20)))
        found = await table.averify()
        assert found.valid
        assert found.records == 20
        assert (await table.averify(found.head)).valid
        assert not (await table.averify("0" * 63 + "1")).valid
        rows = Persistence.of(saver).tables
        assert rows is not None
        monkeypatch.setattr(audit_chain, "utc_now_text", lambda: "2020-01-01T00:00:00+00:00")
        old = await table_of(saver, signing_key="k")
        await old.awrite([("effect", {"n": 20})])
        monkeypatch.undo()
        # The chain is pruned from its beginning only, as far as it is old.
        assert await table.aprune() == 0
        assert await table.aprune(timedelta(0)) == 21
        assert (await table.averify()).valid
        await table.awrite([("effect", {"n": 21})])
        assert (await table.averify()).records == 2


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM capgraph_audit WHERE seq = 1",
        "DELETE FROM capgraph_audit WHERE seq = 3",
        "DELETE FROM capgraph_audit WHERE seq = 5",
        "DELETE FROM capgraph_audit WHERE seq >= 4",
        "UPDATE capgraph_audit SET line = replace(line, 'begun', 'ended') WHERE seq = 2",
        "UPDATE capgraph_audit SET seq = 9 WHERE seq = 5",
        "UPDATE capgraph_audit SET line = 'x' WHERE seq = 0",
    ],
)
async def test_a_change_of_the_rows_shows(statement: str, tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        table = await table_of(saver)
        await table.awrite([("effect", {"status": "begun", "n": n}) for n in range(5)])
        rows = Persistence.of(saver).tables
        assert rows is not None
        await rows.run(statement)
        assert not await table.averify()
