"""Audit records that were replaced by those of another audit with the same signing key."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from capgraph.stores import Persistence, open_saver
from capgraph.telemetry import AuditLog
from capgraph.telemetry import audit_log as module
from capgraph.telemetry.audit_chain import build_record

KEY = "k"


def log(path: Path, **options: Any) -> AuditLog:
    path.parent.mkdir(parents=True, exist_ok=True)
    return AuditLog(path, signing_key=KEY, **options)


def copy(source: AuditLog, target: AuditLog) -> None:
    shutil.copy(source.path, target.path)
    shutil.copy(f"{source.path}.head", f"{target.path}.head")


@pytest.mark.parametrize("other_name", ["b.jsonl", "elsewhere/a.jsonl"])
def test_the_file_of_another_audit_does_not_verify(tmp_path: Path, other_name: str) -> None:
    audit, other = log(tmp_path / "a.jsonl"), log(tmp_path / other_name)
    audit.append("effect", {"status": "begun"})
    other.append("effect", {"status": "finished"})
    assert audit.verify()
    copy(other, audit)
    assert not audit.verify()
    assert log(audit.path, name=str(other.path)).verify()


def test_records_of_another_audit_do_not_continue_this_one(tmp_path: Path) -> None:
    audit = log(tmp_path / "a.jsonl")
    audit.append("effect", {"status": "begun"})
    log(audit.path, name="another").append("effect", {"status": "finished"})
    assert not audit.verify()


def test_records_that_name_no_audit_are_no_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, earlier = log(tmp_path / "a.jsonl"), log(tmp_path / "b.jsonl")
    audit.append("effect", {"status": "begun"})
    with monkeypatch.context() as patch:  # an audit that an earlier release wrote
        patch.setattr(module, "build_record", lambda *parts: build_record(*parts[:4]))
        earlier.append("effect", {"status": "finished"})
        patch.undo()
    copy(earlier, audit)
    assert not audit.verify()
    audit.append("effect", {"status": "begun"})
    assert audit.verify()  # its owner continued it
    monkeypatch.setattr(module, "build_record", lambda *parts: build_record(*parts[:4]))
    audit.append("effect", {"status": "finished"})
    assert not audit.verify()


async def test_the_table_of_another_database_does_not_verify(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db")]
    async with open_saver(urls[0]) as one, open_saver(urls[1]) as two:
        tables = [Persistence.of(saver).audit_table(KEY) for saver in (one, two)]
        for table in tables:
            assert table is not None
            await table.awrite([("effect", {"status": "begun"})])
            assert await table.averify()
        await one.conn.execute("DELETE FROM capgraph_audit")
        await one.conn.execute("ATTACH ? AS other", (str(tmp_path / "b.db"),))
        await one.conn.execute("INSERT INTO capgraph_audit SELECT * FROM other.capgraph_audit")
        await one.conn.commit()
        assert tables[0] is not None
        assert not await tables[0].averify()


async def test_a_named_audit_is_not_replaced_by_a_whole_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'b.db'}"
    async with open_saver(url) as saver:
        other = Persistence.of(saver).audit_table(KEY)
        assert other is not None
        await other.awrite([("effect", {"status": "begun"})])
    async with open_saver(url) as saver:
        named = Persistence.of(saver).audit_table(KEY, "payments")
        assert named is not None
        assert not await named.averify()
